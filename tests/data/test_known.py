"""Forecasts with columns whose future is known, and with static columns of each series."""

import csv
import math
from pathlib import Path

import pytest
import torch
from helpers.data import EXAMPLES, write_table
from helpers.exhaustive import exhaustive_except
from helpers.runs import SMALL, metrics_of, refused, train
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.data.series.layouts import layout_of
from dxn.data.series.timeline import timeline
from dxn.data.series.windows import Windows
from dxn.data.tables.read import Rearranging, read_table
from dxn.tasks import Forecast
from dxn.tasks.forecast.futures import Future
from dxn.tokenize import SeriesAdapter
from dxn.tokenize.cells.category import CategoryReader
from dxn.tokenize.series.reader import SeriesReader

DRAWS_PICTURES = True  # see conftest.py
NAIVE = "seasonal naive (7)"
H, T = 3, 7  # steps of a forecast and of a history
OPTIONS = {"target": "sales", "horizon": H, "context": T, "known": "promo"}


def rows_of(count=41, *, future=0, **extra):
    """Daily rows; those of the last `future` days have no sales."""
    rows = []
    for i in range(count):
        sales = "" if i >= count - future else f"{10 + 5 * math.sin(2 * math.pi * i / 7):.3f}"
        rows.append({"day": i, "sales": sales, "price": 100 + i, "promo": i % 5, **extra})
    return rows


def source_of(tmp_path, rows, **options):
    path = write_table(tmp_path / "t.csv", rows)
    readers = {"series": SeriesReader(), "category": CategoryReader()}
    return timeline(path, readers=readers, **{**OPTIONS, **options})


def test_a_window_has_the_future_of_known_columns_only(tmp_path):
    train = source_of(tmp_path, rows_of()).splits["train"]
    values, future = train.cells["series"][0], train.cells["target"][0]
    assert values.shape == (T + H, 3)
    assert values[:, 2].tolist() == [i % 5 for i in range(T + H)]
    assert values[:T, 1].tolist() == list(range(100, 100 + T))
    assert not values[:T].isnan().any() and values[T:, :2].isnan().all()
    assert future.num_known == 1
    assert future.values[0, 0] == pytest.approx(10, abs=1e-3)


def test_later_rows_without_a_target_are_not_used_in_training(tmp_path):
    expected = source_of(tmp_path, rows_of(41))
    source = source_of(tmp_path, rows_of(50, future=9))
    for name, rows in expected.splits.items():
        assert source.splits[name].origin == rows.origin
        for a, b in zip(source.splits[name].cells["series"], rows.cells["series"], strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("known", [["promo"], []])
def test_a_table_without_any_history_is_refused_and_an_empty_series_is_named(tmp_path, known):
    formats = [[".", ""] for _ in ["sales", *known]]
    options = {"horizon": H, "context": T, "formats": formats}
    windows = Windows(["sales"], time="day", series_id="shop", known=known, **options)

    def rearranged(*tables):
        rows = [row for rows in tables for row in rows]
        table = read_table(Path(write_table(tmp_path / "t.csv", rows)))
        notes = []
        return windows.rearranged(table, Rearranging("", (), False, notes)), notes

    empty = rows_of(5, future=5, shop="a")
    message = "t.csv: has 5 rows, but the history is missing: no row has a value of sales"
    with pytest.raises(UserError, match=message):
        rearranged(empty)
    table, notes = rearranged(empty, rows_of(20, future=H if known else 0, shop="b"))
    assert table.columns["shop"] == ["b"]
    assert notes[-1] == "no forecast of 1 of 2 series, which have no value: a"


def test_a_known_column_may_also_be_named_as_a_covariate(tmp_path):
    both = source_of(tmp_path, rows_of(), covariates=["promo", "price"])
    alone = source_of(tmp_path, rows_of(), covariates=[])
    assert both.splits["train"].cells["series"][0].shape[1] == 3
    assert alone.splits["train"].cells["series"][0].shape[1] == 2


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"known": "sales"}, "data.known: column 'sales' is already the target"),
        ({}, {"known": "prom"}, "data.known: no column 'prom'.*did you mean 'promo'"),
        (
            {"sales": "Easter"},
            {"known": []},
            "data.target: column 'sales' must contain numbers, got",
        ),
        ({"promo": ""}, {}, "data.known: column 'promo' must contain numbers, but it is empty"),
        ({"kind": "a"}, {"static": "kind"}, "data.static: needs data.series_id"),
        ({"id": 1}, {"static": "promo", "series_id": "id"}, "data.static: column 'promo' is alr"),
        ({"id": 1}, {"static": "id", "series_id": "id"}, "data.static: column 'id' is already"),
        ({"id": 1}, {"static": "price", "series_id": "id"}, "row 3: column 'price' has '101', but"),
        ({"id": 1, "m": "1 2"}, {"static": "m", "series_id": "id"}, "data.static: .*'m'.*adapter"),
    ],
)
def test_wrong_columns_are_refused_in_a_sentence(tmp_path, change, options, message):
    with pytest.raises(UserError, match=message):
        source_of(tmp_path, rows_of(**change), **options)


def test_a_static_column_is_an_input_beside_the_series(tmp_path):
    rows = rows_of(shop="a", kind="food") + rows_of(shop="b", kind="toys")
    rows[3]["kind"] = ""  # known from the other rows of the series
    source = source_of(tmp_path, rows, series_id="shop", static=["kind"])
    assert source.inputs["kind"].modality == "category"
    for part in source.splits.values():
        pairs = set(zip(part.ids["shop"], part.cells["kind"], strict=True))
        assert pairs == {("a", "food"), ("b", "toys")}


def test_a_category_that_is_known_ahead_has_a_channel_per_value(tmp_path):
    rows = rows_of(45, future=4)
    for i, row in enumerate(rows):
        row["promo"] = ("", "half", "Easter")[i % 3]
        row["sky"] = "sun" if i % 2 else "rain"
    source = source_of(tmp_path, rows, covariates=["sky"])
    assert "promo: 2 different values, one channel each" in source.notes
    values, future = (
        source.splits["train"].cells["series"][0],
        source.splits["train"].cells["target"][0],
    )
    # The channels: sales, rain, sun, Easter, half. An empty cell has 0 in both.
    assert values[:T, 1:3].tolist() == [[1 - i % 2, i % 2] for i in range(T)]
    assert values[:, 3].tolist() == [i % 3 == 2 for i in range(T + H)]
    assert values[:, 4].tolist() == [i % 3 == 1 for i in range(T + H)]
    assert values[T:, :3].isnan().all()
    assert future.num_known == 2
    layout = layout_of(source.layout)
    rows[-4]["promo"] = "Christmas"
    notes = []
    table = read_table(Path(write_table(tmp_path / "new.csv", rows)))
    new = layout.apply(table, with_target=False, notes=notes).columns["values"][0]
    assert new[T, 3:].isnan().all() and not new[T + 1 :, 3:].isnan().any()
    assert (
        "promo: 1 cell with a value that the training did not have, such as 'Christmas'" in notes[0]
    )
    with pytest.raises(UserError, match="no row at 43; a forecast needs promo of the 3 steps"):
        layout.apply(
            read_table(Path(write_table(tmp_path / "short.csv", rows[:-2]))), with_target=False
        )


def test_a_column_of_free_texts_is_not_known_ahead(tmp_path):
    rows = rows_of(100)
    for i, row in enumerate(rows):
        row["promo"] = f"note {i}"
    with pytest.raises(UserError, match="at most 64 different texts, got 100 such as 'note 0'"):
        source_of(tmp_path, rows)


@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_a_forecast_depends_on_known_values_of_the_future(channels):
    generator = torch.Generator().manual_seed(0)
    history = torch.randn(T + H, 3, generator=generator)
    history[T:, :2] = math.nan
    task = Forecast(residual="season")
    adapter = SeriesAdapter(16, patch_size=2, channels=channels).fit([history])
    task.target.bind({"series": adapter})
    task.target.fit([Future(torch.zeros(H, 1), season=2, history=history, num_known=1)])
    assert (task.target.context, task.target.ahead) == (T, H)
    head = task.make_head(16, 16, {"series": adapter})
    torch.nn.init.normal_(head.out.weight)
    changed = history.clone()
    changed[-1, 2] += 1
    batch = adapter.tokenizer.batch([history, changed])
    past = adapter.tokenizer.history(batch)
    torch.testing.assert_close(past[:, :, 2], batch["values"][:, :T, 2])
    output = head.eval()(adapter(batch), torch.zeros(2, 16), {"series": batch})
    assert output.shape == (2, H, 1, 5)
    assert (output[0] - output[1]).abs().max() > 1e-3
    # The statistics of a history are those of its own steps.
    assert batch["loc"][0, 0] == pytest.approx(float(history[:T, 0].mean()), abs=1e-5)


def test_a_list_must_leave_the_future_of_the_other_channels_empty():
    reader = SeriesReader()
    reader.ahead, reader.num_known = 1, 1
    assert reader.read([[1, 2], [None, 3]]) is not None
    with pytest.raises(ValueError, match="the last 1 steps are those of the forecast"):
        reader.read([[1, 2], [2, 3]])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small model of the generated shops, with known promotions and the kind of each shop."""
    folder = tmp_path_factory.mktemp("known") / "run"
    train(folder, *SHOPS)
    return folder


SHOPS = [EXAMPLES, "data=shops", "dim=32", "backbone.depth=1", "baseline=none", "optimizer.lr=3e-3"]
SHOPS += ["trainer.epochs=5", "trainer.precision=float32"]


@pytest.mark.exhaustive
def test_a_known_promotion_and_the_kind_of_a_shop_lower_the_error(run, tmp_path):
    metrics = metrics_of(run)
    train(tmp_path / "past", *SHOPS, "data.known=[]", "data.static=[]")
    past = metrics_of(tmp_path / "past")
    assert metrics["test/mae"] < 0.7 * past["test/mae"]
    assert metrics["test/mae"] < 0.8 * metrics["test/mae[series]"]


def later_rows():
    """Two shops of different lengths, one of a new kind, with seven days to predict."""
    rows = []
    for shop, kind, days in (("a", "food", 30), ("b", "cars", 19)):
        for day in range(days):
            visits = "" if day >= days - 7 else 70 + 20 * math.sin(2 * math.pi * day / 7)
            rows.append({"shop": shop, "kind": kind, "day": day, "visits": visits, "promotion": 0})
    return rows


def test_a_table_to_predict_ends_with_rows_whose_promotions_are_known(run, tmp_path):
    rows = later_rows()
    rows[28]["promotion"] = 1
    rows.append(dict(rows[3]))  # a day of shop b twice
    output = tmp_path / "forecast.csv"
    path = write_table(tmp_path / "later.csv", rows)
    assert main(["predict", f"run={run}", path, f"output={output}"]) == 0
    lines = [line.split(",") for line in output.read_text().splitlines()]
    column = {name: lines[0].index(name) for name in ("shop", "day", "prediction")}
    days = [(line[column["shop"]], int(float(line[column["day"]]))) for line in lines[1:]]
    expected = [("a", day) for day in range(23, 30)] + [("b", day) for day in range(12, 19)]
    assert days == expected
    values = [float(line[column["prediction"]]) for line in lines[1:8]]
    assert max(values) == values[5] > 1.2 * values[4]


def test_a_missing_row_or_cell_of_a_known_column_is_named(run, tmp_path, capsys):
    rows = later_rows()
    short = write_table(tmp_path / "short.csv", rows[:-2])
    lines = refused(capsys, ["predict", f"run={run}", short])
    assert "short.csv: no row of series 'b' at 17; a forecast needs promotion" in lines[-1]
    rows[25]["promotion"] = ""
    empty = write_table(tmp_path / "empty.csv", rows)
    lines = refused(capsys, ["predict", f"run={run}", empty])
    assert "empty.csv row 27: no value in column 'promotion', which must be known" in lines[-1]
    lines = refused(capsys, ["predict", f"run={run}", "input.kind=food"])
    assert "no value of the input series" in lines[-1]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A model that learned nothing, beside the baseline."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    options = [*SHOPS[:3], "optimizer.lr=1e-6", "trainer.epochs=1", "report=false"]
    train(folder, *options, "data.num_series=12")
    return folder


def test_the_baseline_reads_known_and_static_columns(mixed, tmp_path):
    metrics = metrics_of(mixed)
    assert metrics["baseline"].endswith("14 values, known columns and static columns")
    alone, naive = (metrics[f"test/mase[{name}]"] for name in ("baseline alone", NAIVE))
    assert alone < 0.6 * naive
    assert metrics["answers"] == "mixture"
    # The saved baseline is the trained one.
    output = tmp_path / "forecast.csv"
    rows = later_rows()
    plain = write_table(tmp_path / "plain.csv", rows)
    assert main(["predict", f"run={mixed}", plain, f"output={output}"]) == 0
    before = predictions_of(output)
    rows[28]["promotion"] = 1
    later = write_table(tmp_path / "later.csv", rows)
    assert main(["predict", f"run={mixed}", later, f"output={output}"]) == 0
    jumps = [b - a for a, b in zip(before, predictions_of(output), strict=True)]
    # A food shop has twice the visits. Only the sixth day has a promotion.
    assert 30 < jumps[5] < 120
    assert max(abs(jump) for step, jump in enumerate(jumps) if step != 5) < 0.3 * jumps[5]


@pytest.mark.exhaustive
def test_a_forecast_with_known_and_static_columns_is_exported_with_its_baseline(mixed, tmp_path):
    # The export compares its graph with the model, and fails if they differ.
    assert main(["export", f"run={mixed}", f"output={tmp_path / 'export'}"]) == 0


def predictions_of(path):
    with path.open() as file:
        return [float(row["prediction"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("fusion", exhaustive_except(["early", "late", "bottleneck"], "late"))
def test_a_static_column_can_contain_pictures(tmp_path, fusion):
    rows = []
    for shop, color in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (16, 16), color).save(tmp_path / f"{shop}.png")
        rows += rows_of(60, shop=shop, photo=f"{shop}.png")
    table = write_table(tmp_path / "t.csv", rows)
    options = [f"data.path={table}", "target=sales", "data.series_id=shop", "data.horizon=3"]
    options += ["data=timeline", "data.context=7", "data.known=promo", "data.static=photo"]
    train(tmp_path / "run", *options, *SMALL, f"fusion={fusion}", "trainer.epochs=1")
    assert metrics_of(tmp_path / "run")["test/mae"] >= 0
    inputs = dxn.load(tmp_path / "run").inputs
    assert set(inputs) == {"series", "photo"}
