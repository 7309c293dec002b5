"""Grids over time: frames of cells, whose next frames are predicted."""

import zlib

import numpy as np
import pytest
import torch
import yaml
from dxn_examples.fields import fields
from helpers.runs import refused, train

from dxn.cli import main
from dxn.core.errors import UserError
from dxn.data.rows import TARGET
from dxn.data.series.grid import grid, read_grid
from dxn.export.programs import series as program
from dxn.export.recipes import series_recipe
from dxn.presets.grids import advise_frames, read_frames
from dxn.presets.rules import Facts
from dxn.tasks import Forecast
from dxn.tasks.forecast.futures import ForecastMetric, Future
from dxn.tokenize.base import BadMedia
from dxn.tokenize.patches import CellPatches, divided
from dxn.tokenize.series.adapter import SeriesAdapter
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.series.tokenizer import SeriesPatchOptions
from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.strip import FramesDrawer

READERS = {"series": SeriesReader()}


def shifting(num: int, steps: int, size: int = 8, seed: int = 0) -> np.ndarray:
    """Return random frames that move by one cell to the right at each step, periodically."""
    first = np.random.default_rng(seed).standard_normal((num, size, size))
    return np.stack([np.roll(first, step, -1) for step in range(steps)], 1).astype(np.float32)


def test_each_cell_has_one_place_in_the_patches_also_beyond_whole_patches():
    patches = CellPatches((5, 7), 3)
    cells = torch.arange(35)[None]
    inside = divided(cells, patches.order())
    assert inside.shape == (1, len(patches) * 9)
    assert torch.equal(inside[:, patches.places()], cells)
    # The first patch has the cells of the first three rows and columns.
    assert inside[0, :9].tolist() == [0, 1, 2, 7, 8, 9, 14, 15, 16]
    assert patches.boxes()[-1].tolist() == [3, 6, 5, 7]


def test_the_margins_of_a_periodic_frame_are_at_its_opposite_border():
    cells = torch.arange(4).reshape(2, 2).flatten()
    beyond = divided(cells + 1, CellPatches((2, 2), 1, 1).order())
    assert beyond[:9].tolist() == [0, 0, 0, 0, 1, 2, 0, 3, 4]
    periodic = divided(cells + 1, CellPatches((2, 2), 1, 1, periodic=True).order())
    assert periodic[:9].tolist() == [4, 3, 4, 2, 1, 2, 4, 3, 4]


def test_tokens_of_frames_have_a_time_and_a_place_and_future_ones_follow():
    frames = torch.randn(5, 6, 10)
    adapter = SeriesAdapter(16, patch_size=2, patch=SeriesPatchOptions(cells=5))
    adapter.tokenizer.reader.learn([frames])
    raw = adapter.tokenizer.reader.read(frames)
    assert raw is not None
    adapter.fit([raw])
    adapter.tokenizer.continue_from(5, horizon=3)
    tokens = adapter(adapter.tokenizer.batch([raw]))
    coords = tokens.spans[0].coords[0]
    assert coords.shape == ((3 + 2) * 2 * 2, 6)
    assert coords[0].tolist() == [0, 2, 0, 0, 5, 5]
    assert coords[3].tolist() == [0, 2, 5, 5, 6, 10]
    assert tokens.mask.all()


def test_all_cells_have_the_same_mean_and_scale():
    reader_of = SeriesAdapter(8, patch_size=1, normalize="sample")
    frames = torch.randn(4, 3, 3) + 10 * torch.arange(9).reshape(3, 3)
    reader_of.tokenizer.reader.learn([frames])
    sample = reader_of.fit([frames.flatten(1)]).tokenizer(frames.flatten(1))
    assert sample["loc"].unique().numel() == sample["scale"].unique().numel() == 1
    assert sample["values"].mean().abs() < 1e-5


def test_a_missing_cell_is_not_read():
    frames = torch.randn(4, 6, 6)
    adapter = SeriesAdapter(16, patch_size=2, normalize="train")
    adapter.tokenizer.reader.learn([frames])
    adapter.fit([frames.flatten(1)])
    frames[1, 2, 3] = torch.nan
    batch = adapter.tokenizer.batch([frames.flatten(1)])
    assert (~batch["observed"]).sum() == 1
    tokens = adapter(batch)
    assert tokens.x.isfinite().all()


def test_an_exported_program_reads_frames_like_the_tokenizer():
    frames = np.random.default_rng(0).standard_normal((7, 3, 5)).astype(np.float32)
    frames[6, 1, 2] = np.nan
    adapter = SeriesAdapter(8, patch_size=2)
    reader = adapter.tokenizer.reader
    reader.learn([frames])
    raw = reader.read(frames)
    adapter.fit([raw])
    adapter.tokenizer.continue_from(4, horizon=2)
    options = series_recipe(adapter.tokenizer)
    exported = program.read(frames, options)
    assert exported is not None
    prepared = program.prepare([exported], options)
    batch = adapter.tokenizer.batch([raw])
    for name, value in prepared.items():
        assert np.allclose(value, batch[name], atol=1e-6), name
    with pytest.raises(ValueError, match="frames of"):
        program.read(frames.transpose(0, 2, 1), options)


def test_skill_is_zero_for_persistence_and_one_for_the_truth():
    history, values = torch.randn(6, 9), torch.randn(2, 9)
    future = Future(values, season=1, history=history, frame=(3, 3))
    metric = ForecastMetric([0.5])
    last = history[-1].expand(2, 9)[..., None]
    for forecast, skill in ((last, 0.0), (values[..., None], 1.0)):
        figures = metric.value(metric.rows([forecast], [future]).sum(0))
        assert float(figures["skill"]) == pytest.approx(skill)


def test_skill_leaves_out_cells_without_a_history():
    history, values = torch.randn(6, 9), torch.randn(2, 9)
    forecast = history[-1].repeat(2, 1)
    history[:, 0], forecast[:, 0] = torch.nan, 100.0
    future = Future(values, season=1, history=history, frame=(3, 3))
    metric = ForecastMetric([0.5])
    figures = metric.value(metric.rows([forecast[..., None]], [future]).sum(0))
    assert float(figures["skill"]) == pytest.approx(0.0)


def test_a_long_sequence_is_split_by_time_without_overlap_of_the_targets(tmp_path):
    frames = np.arange(40, dtype=np.float32)[:, None, None] + np.zeros((40, 3, 3), np.float32)
    np.save(tmp_path / "long.npy", frames)
    source = grid(str(tmp_path / "long.npy"), readers=READERS, horizon=3, context=5)
    future = {
        name: {int(step) for target in rows.cells[TARGET] for step in target.values[:, 0]}
        for name, rows in source.splits.items()
    }
    assert max(future["train"]) < min(future["validation"])
    assert max(future["validation"]) < min(future["test"])
    first = source.splits["train"].cells["series"][0]
    assert first.shape == (5, 3, 3)
    assert source.splits["train"].origin[0] == "long.npy row 5"


@pytest.mark.parametrize("steps", [6, 12, 24, 48])
def test_the_default_horizon_of_one_short_sequence_leaves_several_training_windows(steps, tmp_path):
    np.save(tmp_path / "short.npy", np.random.default_rng(0).standard_normal((steps, 3, 3)))
    source = grid(str(tmp_path / "short.npy"), readers=READERS)
    assert len(source.splits["train"]) > 1
    assert list(source.splits) == ["train", "validation", "test"]


def test_each_of_several_sequences_is_in_one_split(tmp_path):
    frames = np.arange(20, dtype=np.float32)[:, None, None, None] + np.zeros((20, 7, 2, 3))
    np.savez(tmp_path / "many.npz", frames=frames)
    source = grid(str(tmp_path / "many.npz"), readers=READERS, horizon=2)
    used = [{int(t.values[0, 0]) for t in rows.cells[TARGET]} for rows in source.splits.values()]
    assert sorted(number for each in used for number in each) == list(range(20))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 3)), "got float64 (5, 3)"),
        (np.zeros((2, 2, 5, 3, 3)), "got float64 (2, 2, 5, 3, 3)"),
        (np.zeros((0, 3, 3)), "got float64 (0, 3, 3)"),
        (np.full((4, 3, 3), "a"), "must be an array of numbers"),
        (np.full((4, 3, 3), np.inf), "infinite numbers"),
        (np.zeros((1, 400, 400)), "at most 100,000 cells"),
        (np.zeros((1, 2, 2)), "in each split; use more frames"),
        (np.zeros((3, 2, 2)), "in each split; set a smaller data.context, or use more frames"),
        (np.zeros((4, 2, 2)), "in each split; set a smaller data.context, or use more frames"),
        (np.zeros((3, 1, 2, 2)), "its sequences have 1 time step, too few for a history and a"),
        (np.full((40, 2, 2), np.nan), "has no value"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError) as caught:
        grid(str(tmp_path / "a.npy"), readers=READERS)
    assert message in str(caught.value)


def test_options_that_leave_one_training_window_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((12, 2, 2)))
    with pytest.raises(UserError, match=r"set a smaller data\.horizon or data\.context, or use"):
        grid(str(tmp_path / "a.npy"), readers=READERS, horizon=3)
    with pytest.raises(UserError, match=r"set a smaller data\.context or data\.stride, or use"):
        grid(str(tmp_path / "a.npy"), readers=READERS, stride=20)


def test_files_that_are_no_arrays_are_refused(tmp_path):
    for name in ("a.npy", "a.npz"):
        (tmp_path / name).write_bytes(b"no array")
        with pytest.raises(UserError, match="not a"):
            read_grid(tmp_path / name)
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(UserError, match="must have one array, got 2"):
        read_grid(tmp_path / "two.npz")


@pytest.mark.parametrize("error", [zlib.error("invalid block type"), MemoryError("too large")])
def test_a_damaged_archive_is_refused(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    np.savez_compressed(tmp_path / "a.npz", np.zeros((40, 2, 2)))
    monkeypatch.setattr(np.lib.format, "read_array", fail)
    with pytest.raises(UserError, match=f"not a .npz file of numbers .{error}"):
        read_grid(tmp_path / "a.npz")


def test_a_split_without_values_is_left_out(tmp_path):
    frames = np.random.default_rng(0).standard_normal((80, 3, 3))
    frames[:62] = np.nan
    path = tmp_path / "a.npy"
    np.save(path, frames)
    source = grid(str(path), readers=READERS, horizon=2, context=4)
    assert set(source.splits) == {"validation", "test"}
    frames[:79] = np.nan
    np.save(path, frames)
    with pytest.raises(UserError, match="no window of 4 frames and the next 2 has values"):
        grid(str(path), readers=READERS, horizon=2, context=4)


def test_channels_with_different_units_keep_their_digits():
    prediction = torch.full((200, 6, 1), 0.25)
    prediction[:, 1] = 1e9
    assert Forecast().answer(prediction)["prediction"][0][:2] == [0.25, 1e9]


def test_the_boxes_of_a_short_series_are_at_its_frames():
    adapter = SeriesAdapter(16, patch_size=1, patch=SeriesPatchOptions(cells=3))
    adapter.tokenizer.reader.learn([torch.zeros(3, 3, 3)])
    raw = torch.rand(3, 9)
    adapter.fit([raw])
    adapter.tokenizer.continue_from(5, horizon=1)
    coords = adapter(adapter.tokenizer.batch([raw])).spans[0].coords[0].numpy()
    boxes = FramesDrawer().boxes(Shown("series", raw, adapter.tokenizer), coords)
    # Two missing frames, three frames next to each other, and a future one.
    assert np.isnan(boxes[[0, 1, 5]]).all()
    assert boxes[2:5, 1].tolist() == [0, 4, 8]


def test_frames_for_a_model_of_channels_have_a_plain_message():
    adapter = SeriesAdapter(8, patch_size=2).fit([torch.rand(7, 15)])
    options = series_recipe(adapter.tokenizer)
    with pytest.raises(ValueError, match=r"axes \(time steps, 15 channels\)"):
        program.read(np.zeros((7, 3, 5), np.float32), options)


def test_frames_of_another_size_are_refused():
    reader = SeriesReader()
    reader.learn([torch.zeros(4, 3, 5)])
    for wrong in (torch.zeros(4, 5, 3), torch.zeros(4, 3)):
        with pytest.raises(BadMedia, match="must be frames of 3×5 cells"):
            reader.read(wrong)


def test_wrong_options_of_generated_fields_are_refused():
    for options in ({"size": 4}, {"noise": -1.0}, {"horizon": 0}, {"num_train": 0}):
        with pytest.raises(UserError, match=r"data\."):
            fields(readers=READERS, **options)


SMALL = ["dim=32", "backbone.depth=1", "preset=plain", "report=false", "trainer.patience=0"]


def test_a_command_trains_on_an_array_and_writes_the_next_frames(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frames = shifting(1, 60)[0]
    frames[::7, 2, 2] = np.nan
    np.save("rain.npy", frames)
    learned = ["adapters.series.pos_embed=learned", "adapters.series.max_len=2"]
    sizes = ["data.horizon=2", "data.context=4", "trainer.epochs=1"]
    (line,) = refused(capsys, ["train", "rain.npy", *sizes, *learned, *SMALL, "output=x"])
    assert "max_len: learned positions" in line
    metrics = train(tmp_path / "r", "rain.npy", *sizes, *SMALL)
    assert "test/skill" in metrics
    assert any("persistence" in name for name in metrics)
    assert any("baseline" in name for name in metrics)
    assert main(["predict", "run=r", "rain.npy", "output=next.npy"]) == 0
    following = np.load("next.npy")
    assert following.shape == (2, 8, 8)
    assert np.isfinite(following).all()
    np.save("many.npy", shifting(3, 4))
    assert main(["predict", "run=r", "many.npy", "output=nexts.npy"]) == 0
    assert np.load("nexts.npy").shape == (3, 2, 8, 8)
    assert main(["predict", "run=r", "rain.npy"]) == 0
    assert "step 2: 8×8 cells, mean" in capsys.readouterr().out
    np.save("wrong.npy", np.zeros((4, 8, 9)))
    (tmp_path / "table.csv").write_text("a\n1\n")
    for words, message in (
        (["wrong.npy", "output=n.npy"], "must be frames of 8×8 cells"),
        (["table.csv", "output=n.npy"], "must be a .npy or .npz file"),
        (["many.npy"], "got float32 (3, 4, 8, 8)"),
    ):
        assert message in " ".join(refused(capsys, ["predict", "run=r", *words]))


def test_a_deterministic_shift_is_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = shifting(400, 3, size=4)
    np.save("shift.npy", frames)
    options = ["data.horizon=1", "data.context=2", "adapters.series.patch.cells=2"]
    options += ["trainer.epochs=6", "optimizer.lr=3e-3", "baseline=none", "batch_size=16"]
    metrics = train(tmp_path / "r", "shift.npy", *options, *SMALL)
    assert metrics["test/skill"] > 0.3


def test_sentences_about_sparse_frames_are_true(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frames = np.random.default_rng(0).standard_normal((48, 3, 4)).astype(np.float32).cumsum(0)
    frames[::2] = np.nan
    np.save("sparse.npy", frames)
    options = ["data.horizon=2", "data.stride=2", "trainer.epochs=1", "baseline=none", *SMALL]
    train(tmp_path / "r", "sparse.npy", *options)
    out = " ".join(capsys.readouterr().out.split())
    assert "(the context is twice the horizon, or the frames before it if they are fewer)" in out
    # The scale of a cell needs two consecutive values. A forecast has no classes.
    assert "note: mase is not defined for these rows written" in out


def windows(frames, horizon=3, context=5):
    """The histories and the futures of all windows of one sequence (T, H, W)."""
    starts = range(context, len(frames) - horizon + 1)
    size = frames.shape[1:]
    futures = [Future(frames[t : t + horizon].flatten(1), frame=tuple(size)) for t in starts]
    return [frames[t - context : t] for t in starts], futures


def advised(frames, epochs=1e9, **sizes):
    found = read_frames(*windows(frames, **sizes))
    assert found is not None
    facts = Facts(100, 1, 1, epochs_within_limit=lambda tokens: epochs / tokens)
    return {advice.key: advice.value for advice in advise_frames(found, facts, "series")}


def test_the_preset_adds_the_output_to_the_nearer_simple_forecast():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 4, 6, generator=generator)
    noise[::9, 1] = torch.nan
    assert advised(noise)["head.residual"] == "mean"
    assert advised(noise.nan_to_num().cumsum(0))["head.residual"] == "last"


def residual(histories, futures):
    found = read_frames(histories, futures)
    assert found is not None
    advice = advise_frames(found, Facts(100, 1, 1), "series")
    return next((each for each in advice if each.key == "head.residual"), None)


def test_the_simple_forecasts_of_the_preset_are_those_of_the_head():
    frames = torch.randn(60, 4, 6, generator=torch.Generator().manual_seed(0)).cumsum(0)
    histories, futures = windows(frames)
    histories = [torch.cat([x[:-1], torch.full_like(x[-1:], torch.nan)]) for x in histories]
    found = residual(histories, futures)
    # The last known value of a cell.
    assert found is not None and found.value == "last" and "nan" not in found.reason
    found = residual(*windows(frames, context=1))
    assert found is not None and found.value == "last"
    assert "the last frame is as near to the next ones as the mean" in found.reason
    unknown = [torch.full_like(history, torch.nan) for history in histories]
    assert residual(unknown, futures) is None


def test_the_patches_of_a_grid_are_as_small_as_the_time_allows():
    frames = torch.zeros(20, 40, 24)
    options = advised(frames)
    # A patch of two cells gives 240 patches, and one of four 60.
    assert options["adapters.series.patch.cells"] == 2
    assert options["adapters.series.patch_size"] == 3
    # Two past tokens and a future one per place, with their embedding and output.
    assert advised(frames, 20 * 4 * 3 * 239)["adapters.series.patch.cells"] == 4
    assert advised(frames, 1)["adapters.series.patch.cells"] == 4
    assert advised(frames, context=2)["adapters.series.patch_size"] == 2
    # Two past tokens of four frames, instead of one of five and one of three.
    assert advised(frames, horizon=5, context=8)["adapters.series.patch_size"] == 4
    # The first layer of large patches would be large.
    large = advised(torch.zeros(30, 256, 256), 1, horizon=8, context=16)
    assert large["adapters.series.patch.cells"] == 32
    assert large["adapters.series.patch_size"] == 2


def test_series_without_frames_are_no_grid():
    assert read_frames([torch.zeros(5, 2)], [Future(torch.zeros(3, 2))]) is None
    assert read_frames(["1,2,3"], [[4, 5]]) is None


def test_the_forecast_starts_from_the_mean_of_the_history(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = np.random.default_rng(0).standard_normal((40, 3, 5)).astype(np.float32)
    frames += 5 * np.arange(15).reshape(3, 5)
    frames[:, 0, 0] = np.nan
    frames[::2, 1, 1] = np.nan
    np.save("noise.npy", frames)
    options = ["data.horizon=2", "data.context=4", "trainer.epochs=1", "optimizer.lr=1e-30"]
    small = [word for word in SMALL if not word.startswith("preset")]
    train(tmp_path / "r", "noise.npy", *options, *small, "baseline=none")
    config = yaml.safe_load((tmp_path / "r" / ".hydra" / "config.yaml").read_text())
    assert config["head"]["residual"] == "mean"
    assert main(["predict", "run=r", "noise.npy", "output=next.npy"]) == 0
    predicted = np.load("next.npy")
    known = np.arange(15).reshape(3, 5) > 0
    expected = np.nanmean(frames[-4:, known], 0)
    np.testing.assert_allclose(predicted[0][known], expected, atol=1e-3)
    np.testing.assert_allclose(predicted[1][known], expected, atol=1e-3)
    assert main(["export", "run=r", "output=export"]) == 0


def test_large_targets_are_compared_by_a_short_representation():
    values = torch.arange(2 * 900.0).reshape(2, 900)
    assert repr(Future(values)) == repr(Future(values.clone()))
    assert repr(Future(values)) != repr(Future(values + 1))
    assert repr(Future(values)) != repr(Future(values.reshape(4, 450)))
    assert len(repr(Future(values))) < 100
