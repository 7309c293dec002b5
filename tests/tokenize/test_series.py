"""Series to Tokens: cells, patches, missing values, normalization, augmentation and masking."""

import io
import json
import pickle
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tokenize import BadMedia, SeriesAdapter, SeriesAugment
from dxn.tokenize.column_profile import is_series, modality_of, profile_of
from dxn.tokenize.series.reader import SeriesReader, read_series
from dxn.tokenize.series.tokenizer import SeriesPatchOptions, augment_series
from dxn.tokenize.series.values import MAX_VALUES

D = 12
NAN = float("nan")


def series(steps=23, channels=3, missing=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 5 + 3 * torch.randn(steps, channels, generator=generator)
    hidden = torch.rand(x.shape, generator=generator) < missing
    return x.masked_fill(hidden, NAN)


def adapter_of(*, raws=None, **options):
    torch.manual_seed(0)
    adapter = SeriesAdapter(D, **{"patch_size": 5, **options})
    return adapter.fit(raws or [series(), series(seed=1)]).eval()


def embed(adapter, raws):
    prepare = adapter.tokenizer
    return adapter(prepare.collate([prepare(raw) for raw in raws]))


# Cells


def test_all_kinds_of_cells_give_the_same_series(tmp_path):
    rows = [[1.0, 2.5], [3.0, NAN], [5.0, 6.0]]
    array = np.array(rows)
    np.save(tmp_path / "a.npy", array)
    (tmp_path / "a.csv").write_text("hr,bp\n1,2.5\n3,\n5,6\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("1;2.5\n3;nan\n5;6\n", encoding="utf-8")
    table = pa.table({"hr": [1, 3, 5], "bp": [2.5, None, 6]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    cells = [
        rows,
        [["1", "2.5"], ["3", None], [5, "6"]],
        tuple(map(tuple, rows)),
        array,
        torch.tensor(rows),
        "[[1, 2.5], [3, NaN], [5, 6]]",
        "[[1, 2.5], [3, null], [5, 6]]",
        (tmp_path / "a.npy").read_bytes(),
        *[str(tmp_path / name) for name in ("a.npy", "a.csv", "b.csv", "a.parquet")],
    ]
    for cell in cells:
        x = read_series(cell)
        assert x is not None and x.dtype == torch.float32
        torch.testing.assert_close(x, torch.tensor(rows), equal_nan=True)


@pytest.mark.parametrize(
    "cell",
    ["1 2 nan 4", "1,2,?,4", "1; 2; n/a; 4", "[1, 2, None, 4]", "[1. 2. nan 4.]", [1, 2, None, 4]],
)
def test_a_list_or_a_text_of_numbers_is_one_channel(cell):
    expected = torch.tensor([[1], [2], [NAN], [4]])
    torch.testing.assert_close(read_series(cell), expected, equal_nan=True)


def test_missing_steps_at_the_end_are_padding_and_a_series_without_values_is_missing():
    assert read_series([1, 2, None, NAN]).shape == (2, 1)
    for cell in ([NAN, None], "nan nan", [[None, None]], "", np.zeros((0, 2))):
        assert read_series(cell) is None


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ([1, "two", 3], "must contain only numbers, got 'two'"),
        ("one two three", "must contain only numbers, got 'one'"),
        (["3.5", "1,234"], "must contain only numbers, got '1,234'"),  # 1234 or 1.234
        ([True, False], "must contain only numbers, got True"),
        ([[1, 2], [3]], "every time step must have the same number of channels, got 2 in step 1"),
        ([[1, 2], 3], "step 2 must be a list like the other steps, got 3"),
        ([[[1]]], "must contain only numbers, got [1]"),
        ([1, float("inf")], "infinite numbers"),
        ([1, 1e300], "infinite numbers, or numbers beyond 3e38"),
        ([10**400, 1], "must contain only numbers"),
        (np.zeros((2, 3, 5, 7)), "must be numbers with the axes"),
        (np.array(["a"]), "must be numbers with the axes"),
        (np.array([1j]), "must be numbers with the axes"),
        ({"a": [1]}, "must be a list of numbers, got {'a': [1]}"),
        (7, "must be a list of numbers, got 7"),
        ("[" * 100_000 + "a", "must contain only numbers"),
        ("no.npy", "file not found"),
        (b"\x93NUMPY broken", "not a .npy file of numbers"),
        (np.broadcast_to(np.float32(0), (MAX_VALUES + 1,)), "values, more than"),
    ],
)
def test_a_bad_cell_is_refused_in_one_sentence(cell, message):
    with pytest.raises(BadMedia) as error:
        read_series(cell)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"", "empty file"),
        ("a.npy", b"text", "not a .npy file"),
        ("a.csv", b"\xff\xfe\x00", "not a .csv file"),
        ("a.csv", b"a,b\n1,2\n3\n", "every time step must have the same number of channels"),
        ("a.parquet", b"PAR1", "not a .parquet file"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadMedia, match=message):
        read_series(str(tmp_path / name))


@pytest.mark.parametrize(
    "content",
    [
        ",a,b\n0,1.5,2\n1,3,4\n",  # the index of pandas, and names
        ",0,1\n0,1.5,2\n1,3,4\n",
        "0,1\n1.5,2.0\n3.0,4.0\n",
        ",a,b\n2026-01-01,1.5,2\n2026-01-02,3,4\n",
    ],
)
def test_numbers_and_index_of_pandas_are_no_values(tmp_path, content):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    assert read_series(str(tmp_path / "a.csv")).tolist() == [[1.5, 2], [3, 4]]


@pytest.mark.parametrize("content", ["0,1\n2,3\n", ",1\n2,3\n", "0\n1.5\n"])
def test_a_first_step_that_can_have_values_is_kept(tmp_path, content):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    assert len(read_series(str(tmp_path / "a.csv"))) == 2


def test_the_index_of_a_parquet_file_is_no_channel(tmp_path):
    frame = pd.DataFrame({"a": [1.5, 3.0]}, index=[5, 7])
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_series(str(tmp_path / "a.parquet")).tolist() == [[1.5], [3]]


def test_a_text_with_decimal_commas_among_decimal_points_is_refused():
    reader = SeriesReader()
    reader.learn(["0.5 0.7 0.9", "0.1 0.2 0.3", "0,5; 0,7; 0,05"])
    with pytest.raises(BadMedia, match="must have decimal points"):
        reader.read("0,5; 0,7; 0,05")
    assert len(reader.read("1,2,3")) == 3


def test_a_npy_file_with_objects_or_a_huge_header_is_not_loaded(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadMedia, match=r"not a \.npy file"):
        read_series(str(tmp_path / "objects.npy"))
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    content = b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little") + header + b"\n"
    (tmp_path / "huge.npy").write_bytes(content)
    with pytest.raises(BadMedia, match=r"not a \.npy file"):
        read_series(str(tmp_path / "huge.npy"))
    with pytest.raises(BadMedia, match=r"not a \.npy file"):
        read_series(content)


@pytest.mark.parametrize(
    "cell",
    [
        [1, 2],
        [None, 2.5],
        [[1, 2], [3, 4]],
        "1 2 3 4",
        "[0.5, 1, 2, 4]",
        "walk.npy",
        np.zeros(5),
        np.zeros((5, 2), np.float32),
        torch.zeros(3),
    ],
)
def test_cells_of_series_are_recognized(cell):
    assert is_series(cell, ".")


@pytest.mark.parametrize(
    "cell",
    [
        "a text",
        "2026-01-31",
        "12",
        "1,200",
        "10 to 20",
        "3 4",
        [],
        ["a", "b"],
        5,
        None,
        np.zeros((8, 8), np.uint8),
        np.zeros((2, 3, 4)),
        (np.zeros(5), 8000),
        "photo.jpg",
    ],
)
def test_other_cells_are_not_taken_for_series(cell):
    assert not is_series(cell, ".")


def test_the_first_readable_cell_of_a_column_decides_about_the_channels():
    prepare = SeriesAdapter(7).tokenizer
    prepare.reader.learn(["no numbers", [[1.0, 2.0]], [1.0]])
    # The rows are read by several threads, in any order.
    with pytest.raises(BadMedia, match="same number of channels, got 1 instead of 2"):
        prepare.reader.read([1.0, 2.0, 3.0])
    assert prepare.reader.read([[1.0, 2.0]]).shape == (1, 2)


def test_every_series_has_the_channels_of_the_first_one():
    prepare = SeriesAdapter(D).tokenizer
    assert prepare.reader.read([[1, 2], [3, 4]]).shape == (2, 2)
    with pytest.raises(BadMedia, match="same number of channels, got 1 instead of 2"):
        prepare.reader.read([1, 2, 3])


# Tokens


@pytest.mark.parametrize("channels", ["joint", "independent"])
@pytest.mark.parametrize(
    ("stem", "patch_size", "stride"), [("patch", 5, None), ("patch", 5, 3), ("conv", 4, None)]
)
@pytest.mark.parametrize("normalize", ["train", "sample", "none"])
def test_padding_and_batch_mates_change_nothing(channels, stem, patch_size, stride, normalize):
    adapter = adapter_of(
        channels=channels, stem=stem, patch_size=patch_size, stride=stride, normalize=normalize
    )
    raws = [series(7, missing=0.3), series(23, missing=0.3, seed=1), series(11, seed=2)]
    together = embed(adapter, raws)
    for i, raw in enumerate(raws):
        torch.testing.assert_close(together[i], embed(adapter, [raw])[0], atol=1e-5, rtol=1e-5)


def test_a_token_holds_all_channels_of_a_patch_or_one_of_them():
    raw = series(23, 3)
    assert embed(adapter_of(), [raw]).x.shape == (1, 5, D)
    independent = embed(adapter_of(channels="independent"), [raw])
    assert independent.x.shape == (1, 15, D)
    coords = independent.spans[0].coords[0]
    assert coords[:4].tolist() == [[0, 5, 0], [0, 5, 1], [0, 5, 2], [5, 10, 0]]
    assert coords[-1].tolist() == [20, 23, 2]


def test_a_token_is_the_projection_of_its_values_and_of_their_presence():
    raw = series(10, 2, missing=0.2)
    adapter = adapter_of(raws=[raw], pos_embed="none")
    tokens = embed(adapter, [raw])
    mean, std = raw.nanmean(0), None
    std = (raw - mean).square().nanmean(0).sqrt()
    z = (raw - mean) / std
    patch = torch.stack([z.nan_to_num(0.0), (~raw.isnan()).float()])[:, 5:10]  # (2, 5, C)
    expected = adapter.proj(patch.flatten())
    torch.testing.assert_close(tokens.x[0, 1], expected, atol=1e-5, rtol=1e-5)


def test_a_patch_without_any_value_is_no_token():
    raw = series(20, 2)
    raw[5:10] = NAN
    tokens = embed(adapter_of(raws=[raw]), [raw])
    assert tokens.mask.tolist() == [[True, False, True, True]]
    assert tokens.spans[0].coords[0, 1].isnan().all()
    raw[10:15, 1] = NAN
    independent = embed(adapter_of(raws=[raw], channels="independent"), [raw])
    expected = [True, True, False, False, True, False, True, True]
    assert independent.mask[0].tolist() == expected


def test_the_value_below_a_missing_one_has_no_effect():
    raw = series(20, 2, missing=0.3)
    prepare = adapter_of(raws=[series(20, 2)]).tokenizer
    assert prepare(raw)["values"][raw.isnan()].abs().max() == 0
    assert not prepare(raw)["observed"][raw.isnan()].any()


def test_statistics_of_the_training_split_or_of_the_sample_normalize_each_channel():
    raws = [series(50, 2, missing=0.1, seed=i) * torch.tensor([1.0, 100.0]) for i in range(3)]
    adapter = adapter_of(raws=raws)
    both = torch.cat([adapter.tokenizer(raw)["values"] for raw in raws])
    present = torch.cat([~raw.isnan() for raw in raws])
    for channel in range(2):
        values = both[:, channel][present[:, channel]]
        assert values.mean().item() == pytest.approx(0, abs=1e-4)
        assert values.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    alone = adapter_of(raws=raws, normalize="sample").tokenizer(raws[0])
    restored = alone["values"] * alone["scale"] + alone["loc"]
    torch.testing.assert_close(
        restored[~raws[0].isnan()], raws[0][~raws[0].isnan()], rtol=1e-5, atol=1e-3
    )
    plain = adapter_of(raws=raws, normalize="none").tokenizer(raws[0])
    assert plain["values"].equal(raws[0].nan_to_num(0.0))


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_constant_and_huge_channels_stay_finite(value, steps):
    raw = torch.full((steps, 2), value)
    raw[-1, 1] = -value
    for normalize in ("train", "sample"):
        tokens = embed(adapter_of(raws=[raw], normalize=normalize), [raw])
        assert tokens.x.isfinite().all()


def test_the_default_patch_size_follows_the_median_length():
    for length, size in ((7, 1), (29, 1), (100, 4), (1000, 32)):
        adapter = SeriesAdapter(D).fit([series(length), series(length), series(3)])
        assert adapter.tokenizer.patch_size == size


def test_places_are_steps_of_the_whole_series():
    def starts_of(adapter, *raws):
        batch = adapter.tokenizer.batch(list(raws))
        coords = adapter(batch).spans[0].coords
        return [row[~row.isnan().any(1)][:, 0].tolist() for row in coords]

    raw = torch.arange(100.0)[:, None]
    late = raw.clone()
    late[:60] = torch.nan
    adapter = SeriesAdapter(8, patch_size=5, max_len=4).fit([raw])
    # A series that starts with missing values is read from its first value.
    assert starts_of(adapter, late, raw) == [[60, 65, 70, 75], [0, 5, 10, 15]]
    assert adapter.tokenizer.placement(adapter.tokenizer(late)).origin.tolist() == [60]
    adapter.tokenizer.continue_from(30)
    # The last steps, and a short history after missing values.
    assert starts_of(adapter, raw) == [[80, 85, 90, 95]]
    assert starts_of(adapter, raw[:7]) == [[-3, 2]]
    front = SeriesPatchOptions(fill_start=True)
    adapter = SeriesAdapter(8, patch_size=4, channels="separate", patch=front).fit([raw])
    assert starts_of(adapter, raw[:10], raw[:3]) == [[-2, 2, 6], [-1]]


def test_a_long_series_is_truncated_and_this_is_reported():
    adapter = adapter_of(max_len=3)
    sample = adapter.tokenizer(series(23))
    assert sample["values"].shape == (15, 3)
    assert adapter.tokenizer.cut(series(23)) == (15, 23)
    assert adapter.tokenizer.cut(series(15)) is None
    late = series(40)
    late[:30] = NAN  # the kept part must have a value
    assert adapter.tokenizer(late)["observed"].any()


def test_the_history_ends_with_the_last_step_of_each_sample():
    adapter = adapter_of()
    raws = [series(4), series(9, seed=1)]
    batch = adapter.tokenizer.collate([adapter.tokenizer(raw) for raw in raws])
    history = adapter.tokenizer.history(batch)
    assert history.shape == (2, 9, 3)
    assert history[0, :5].isnan().all()
    torch.testing.assert_close(history[0, 5:], batch["values"][0, :4])
    torch.testing.assert_close(history[1], batch["values"][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"max_len": 0}, "max_len must be at least 1, got 0"),
        ({"stride": 3}, "stride must be at most patch_size, got 3 and patch_size=None"),
        ({"patch_size": 3, "stride": 5}, "stride must be at most patch_size, got 5"),
        (
            {"channels": "mixed"},
            "channels must be one of 'joint', 'independent' or 'separate', got 'mixed'",
        ),
        ({"normalize": "batch"}, "normalize must be one of 'train', 'sample' or 'none'"),
        ({"stem": "conv", "patch_size": 3}, "stem=conv needs a patch_size of 2, 4, 8, 16 or 32"),
        ({"stem": "conv", "patch_size": 4, "stride": 2}, "and no stride"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(ValueError, match=r"must|needs") as error:
        SeriesAdapter(D, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("noise", -1), ("scale", 1.0), ("crop", 1.5)])
def test_wrong_augmentation_is_explained(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        SeriesAugment(**{name: value})


# Augmentation

ALL = SeriesAugment(noise=0.2, scale=0.2, shift=0.2, warp=0.2, crop=0.3, time_mask=0.3)


def test_augmentation_depends_on_the_random_generator_only():
    raw = series(31, missing=0.1)
    first, _ = augment_series(raw, ALL, random.Random(3))
    torch.testing.assert_close(first, augment_series(raw, ALL, random.Random(3))[0], equal_nan=True)
    assert (
        not first[:5]
        .nan_to_num()
        .equal(augment_series(raw, ALL, random.Random(4))[0][:5].nan_to_num())
    )
    none, _ = augment_series(raw, SeriesAugment(), random.Random(3))
    torch.testing.assert_close(none, raw, equal_nan=True)


@given(st.integers(1, 11), st.integers(1, 3), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_an_augmented_series_always_has_a_value(steps, channels, seed):
    raw = torch.full((steps, channels), NAN)
    raw[seed % steps, seed % channels] = 1.0
    x, _ = augment_series(raw, ALL, random.Random(seed))
    assert len(x) and (~x.isnan()).any() and not x.isinf().any()


def test_scale_shift_and_noise_are_relative_to_each_channel():
    raw = series(2003, 2) * torch.tensor([1.0, 1000.0])
    x, _ = augment_series(raw, SeriesAugment(shift=0.5, scale=0.5, noise=0.1), random.Random(0))
    change = (x.mean(0) - raw.mean(0)).abs() / raw.std(0)
    assert (change < 0.51).all()
    assert ((x.std(0) / raw.std(0) - 1).abs() < 0.52).all()


# Masking, saving


@pytest.mark.parametrize("channels", ["joint", "independent"])
@pytest.mark.parametrize("stride", [None, 3])
def test_masking_predicts_only_hidden_values_that_exist(channels, stride):
    adapter = adapter_of(channels=channels, stride=stride)
    masking = pickle.loads(pickle.dumps(replace(adapter.masking(ratio=0.5), span=2)))
    raws = [series(37, missing=0.4, seed=i) for i in range(7)]
    rand = random.Random(0)
    samples = [masking(adapter.tokenizer(raw), rand) for raw in raws]
    batch = adapter.tokenizer.collate(samples)
    tokens = adapter(batch)
    masked = batch["masked"]
    assert masked.any()
    # Only tokens are predicted, and each of them has a target.
    assert tokens.mask[:, : masked.shape[1]][masked].all()
    assert len(batch["masked_target"]) == int(masked.sum()) == len(batch["masked_valid"])
    assert batch["masked_target"].shape[1] == masking.num_outputs
    assert batch["masked_valid"].any(1).all()
    # The model cannot see what it predicts.
    changed = [dict(sample) for sample in samples]
    for sample in changed:
        hidden = sample["hidden"]
        sample["values"] = torch.where(hidden[:, None], 99.0, sample["values"])
    again = adapter(adapter.tokenizer.collate(changed))
    torch.testing.assert_close(again.x, tokens.x)


def test_masking_can_be_switched_off_and_checks_its_options():
    adapter = adapter_of()
    assert adapter.masking(ratio=0) is None
    with pytest.raises(ValueError, match="mask_ratio must be"):
        adapter.masking(ratio=1.0)


def test_a_saved_adapter_gives_the_same_tokens(tmp_path):
    raws = [series(29, 2, missing=0.1), series(31, 2, seed=1)]
    adapter = SeriesAdapter(D, channels="independent").fit(raws).eval()
    adapter.save(tmp_path, "series")
    other = SeriesAdapter(D, channels="independent")
    other.load(tmp_path, "series")
    other.load_state_dict(adapter.state_dict())
    assert embed(other.eval(), raws).x.equal(embed(adapter, raws).x)
    with pytest.raises(BadMedia, match="instead of 2"):
        other.tokenizer.reader.read([1, 2, 3])


@pytest.mark.parametrize(
    "change",
    [
        {"num_channels": 0},
        {"num_channels": 10**9},
        {"patch_size": "x"},
        {"patch_size": True},
        {"mean": [1.0]},
        {"std": [0.0, 1.0]},
        {"std": "x"},
        {"mean": None},
    ],
)
def test_a_damaged_state_file_is_refused(tmp_path, change):
    adapter = SeriesAdapter(D).fit([series(29, 2)])
    adapter.save(tmp_path, "series")
    path = tmp_path / "adapters.jsonl"
    state = json.loads(path.read_text())["series"]
    path.write_text(json.dumps({"series": {**state, **change}}))
    with pytest.raises(UserError, match=r"adapters.jsonl: series: "):
        SeriesAdapter(D).load(tmp_path, "series")


def test_the_adapter_describes_series():
    adapter = adapter_of()
    raws = [series(23, missing=0.5), series(7)]
    assert adapter.describe(raws[1]) == "2 patches of 5 time steps; 7 time steps, 3 channels"
    assert "missing" in adapter.describe(raws[0])
    text = adapter.tokenizer.reader.describe(raws, [])
    assert text.startswith("7 to 23, median 15 time steps of 3 channels; ")
    assert adapter.tokenizer.reader.describe([], []) == ""
    with pytest.raises(ValueError, match="call fit"):
        SeriesAdapter(D)({})


def test_the_content_of_a_file_of_each_kind_is_read():
    table, array = io.BytesIO(), io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, None]}), table)
    np.save(array, np.array([[1.0, 3.0], [2.0, np.nan]]))
    for content in (table.getvalue(), array.getvalue(), b"a,b\n1,3\n2,\n"):
        assert torch.equal(read_series(content).nan_to_num(9), torch.tensor([[1.0, 3], [2, 9]]))
    with pytest.raises(BadMedia, match="of numbers"):
        read_series(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0,5;0,7;1", [0.5, 0.7, 1]),
        ("1,5 2,7\t3", [1.5, 2.7, 3]),
        ("1, 2, 3", [1, 2, 3]),
        ("1,2,3", [1, 2, 3]),
        ("1,2,\n3,4", [1, 2, 3, 4]),
        ("1;2;3", [1, 2, 3]),
        ("1,2,3\n4,5,6", [1, 2, 3, 4, 5, 6]),
        ("1,2\n3,4", [1, 2, 3, 4]),
        ("0,5;0,7;0,9", [0.5, 0.7, 0.9]),
        ("-0,5 1,05", [-0.5, 1.05]),
    ],
)
def test_a_comma_beside_another_separator_can_be_a_decimal_comma(text, values):
    assert read_series(text)[:, 0].tolist() == pytest.approx(values)


@pytest.mark.parametrize("text", ["1 2,3 4", "1,050 2,300", "0,5, 0,7", "1.234,5 2,5"])
def test_a_comma_that_can_be_a_decimal_comma_or_not_is_refused(text):
    with pytest.raises(BadMedia, match="can be a decimal comma or between two numbers"):
        read_series(text)


def test_all_cells_of_a_column_have_the_same_decimal_mark():
    reader = SeriesReader()
    note = reader.learn(["1,5 2,5", "1,5 2,5 3"])
    assert note == "read with decimal commas, such as '1,5 2,5'"
    assert reader.read("1,5 2,5").tolist() == [[1.5], [2.5]]
    reader = SeriesReader()
    assert reader.learn(["1,5 2,5", "1.5 2.5"]) == ""
    assert reader.read("1,5 2,5").tolist() == [[1], [5], [2], [5]]
    # Two numbers with decimal commas are a range, and no series.
    assert modality_of(profile_of(["52,5;13,4", "51,2;7,1"]), {"series": SeriesReader()}) is None
