"""Tables whose rows are time steps: clocks, seasons, windows, splits by time, and wrong tables."""

import datetime
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data import write_table
from helpers.runs import SMALL, log_of, metrics_of, refused, train

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.data.columns.steps import explain_steps
from dxn.data.series.clock import Clock, find_clock, find_season, grid_positions, parse_times
from dxn.data.series.layouts import layout_of
from dxn.data.series.timeline import timeline
from dxn.data.series.windows import running_scales
from dxn.data.tables.read import read_table
from dxn.tasks.forecast.futures import ForecastMetric, seasonal_scale
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.text.tokenizer import TextReader

DRAWS_PICTURES = True  # see conftest.py
SERIES = ["adapters=[series]", "adapters.series.patch_size=3"]
SEASON = 7


def readers():
    return {"text": TextReader(), "series": SeriesReader()}


def rows_of(count=101, *, start="2024-01-01", **extra):
    """Daily rows with a season of a week, a trend, and further columns."""
    first = datetime.date.fromisoformat(start)
    rows = []
    for i in range(count):
        sales = 10 + 0.1 * i + 5 * math.sin(2 * math.pi * i / SEASON)
        day = (first + datetime.timedelta(days=i)).isoformat()
        rows.append({"day": day, "sales": f"{sales:.3f}", **extra})
    return rows


def source_of(tmp_path, rows, **options):
    path = write_table(tmp_path / "t.csv", rows)
    return timeline(path, readers=readers(), **options)


def note_with(source, words):
    return next(note for note in source.notes if words in note)


def seconds(text):
    ((value,), _) = parse_times([text], str, "day")
    return value


@pytest.mark.parametrize(
    ("cells", "step", "following"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "1 month", ["2024-04-30", "2024-05-31"]),
        (["2023-12", "2024-01"], "1 month", ["2024-02", "2024-03"]),
        (["2023-07-01", "2023-10-01", "2024-01-01"], "1 quarter", ["2024-04-01", "2024-07-01"]),
        (["1/2/2023", "1/2/2024"], "1 year", ["1/2/2025", "1/2/2026"]),
        # Only with the day first, these are regular.
        (["01/11/2023", "01/12/2023", "01/01/2024"], "1 month", ["01/02/2024", "01/03/2024"]),
        (["01/02/2024", "01/03/2024", "01/04/2024"], "1 day", ["01/05/2024"]),
        (["2024-02-24", "2024-03-02"], "1 week", ["2024-03-09", "2024-03-16"]),
        (["2024-02-27", "2024-02-28"], "1 day", ["2024-02-29", "2024-03-01"]),
        (["2024-01-01 22:00", "2024-01-01 23:00"], "1 hour", ["2024-01-02 00:00"]),
        (["2024-01-01 00:00", "2024-01-01 00:15"], "15 minutes", ["2024-01-01 00:30"]),
        (["20240101", "20240102"], "1 day", ["20240103"]),
        (["30.12.2023", "31.12.2023"], "1 day", ["01.01.2024"]),
        (["2023-11-02T06:00Z", "2023-11-02T12:00Z"], "6 hours", ["2023-11-02T18:00Z"]),
        (
            ["2023-11-02T06:00:00+02:00", "2023-11-02T07:00:00+02:00"],
            "1 hour",
            ["2023-11-02T08:00:00+02:00"],
        ),
        (["2020-W52", "2020-W53"], "1 week", ["2021-W01", "2021-W02"]),
        (["2020Q3", "2020Q4"], "1 quarter", ["2021Q1"]),
        (["Q1 2020", "Q2 2020"], "1 quarter", ["Q3 2020"]),
        (["202011", "202012"], "1 month", ["202101"]),
        (["2020.09", "2020.10"], "1 month", ["2020.11"]),
        (["2020M11", "2020M12"], "1 month", ["2021M01"]),
        (["9/2020", "10/2020"], "1 month", ["11/2020"]),
        (["09.2020", "10.2020"], "1 month", ["11.2020"]),
        (["200011", "200012", "200013"], "1", [200014]),
        (["10.2020", "10.2021"], "0.0001", [10.2022]),
        (["2020-Q1", "2020 Q2"], "1 quarter", ["2020-07-01"]),  # no common way to write them
        (["1700.0", "1701.0"], "1", [1702, 1703]),
        ([0.5, 0.75], "0.25", [1, 1.25]),
    ],
)
def test_a_clock_continues_the_times_of_a_table(cells, step, following):
    times, written = parse_times(cells, str, "when")
    clock = find_clock(written, [times])
    assert str(clock) == step
    later = [clock.after(times[-1], i + 1) for i in range(len(following))]
    assert [clock.format(time) for time in later] == following
    assert grid_positions(times, clock) == list(range(len(cells)))


@pytest.mark.parametrize(
    ("days", "step"),
    [
        (["01-31", "02-29", "03-29", "04-30", "05-31", "06-28"], "1 month"),  # last weekdays
        (["01-19", "02-16", "03-15", "04-19", "05-17"], "1 month"),  # third Fridays
        (["01-30", "02-29", "03-30", "04-30"], "1 month"),
        (["01-01", "01-29", "02-26", "03-25"], "4 weeks"),
        (["01-03", "01-31", "02-28", "04-03"], "4 weeks"),
        (["01-01", "02-05", "03-11", "05-20", "06-24"], "5 weeks"),  # one row is missing
    ],
)
def test_one_time_in_each_month_is_a_month(days, step):
    times, written = parse_times([f"2024-{day}" for day in days], str, "day")
    assert str(find_clock(written, [times])) == step


@pytest.mark.parametrize(
    ("style", "day"), [("DD/MM/YYYY", "2024-02-01"), ("M/D/YYYY", "2024-01-02")]
)
def test_the_order_of_day_and_month_is_that_of_the_training(style, day):
    (time, *_), _ = parse_times(["01/02/2024", "01/03/2024"], str, "day", style=style)
    assert time == seconds(day)


def test_a_clock_of_weekdays_has_no_weekends():
    days = [f"2024-01-{day:02}" for day in (1, 2, 3, 4, 5, 8, 9, 10, 11)]
    times, written = parse_times(days, str, "day")
    clock = find_clock(written, [times])
    assert str(clock) == "1 weekday"
    assert grid_positions(times, clock) == list(range(9))
    assert clock.format(clock.after(times[-1], 2)) == "2024-01-15"


@pytest.mark.parametrize(("off", "name"), [([4], "Fridays"), ([4, 5], "Fridays and Saturdays")])
def test_other_weekends_have_no_step_either(off, name):
    days = [day for day in range(60) if day % 7 not in off]  # January 1, 2024 is a Monday
    first = datetime.date(2024, 1, 1)
    cells = [(first + datetime.timedelta(day)).isoformat() for day in days]
    times, written = parse_times(cells, str, "day")
    clock = find_clock(written, [times])
    assert str(clock) == f"1 day without {name}"
    assert grid_positions(times, clock) == list(range(len(days)))
    later = [seconds(clock.format(clock.after(times[-1], i))) // 86_400 % 7 for i in range(1, 9)]
    assert not set(later) & set(off)


def test_a_number_of_a_column_of_weeks_is_an_iso_week():
    times, written = parse_times([202352, "202401"], str, "Year_Week")
    clock = find_clock(written, [times])
    assert str(clock) == "1 week" and times[0] == seconds("2023-12-25")
    assert [clock.format(clock.after(times[-1], n)) for n in (1, 51, 52)] == [
        "202402",
        "202452",
        "202501",
    ]
    # The first weeks of a year could also be months, and a new table can have one row only.
    first, _ = parse_times([202301, 202312], str, "week")
    assert first == [seconds("2023-01-02"), seconds("2023-03-20")]
    assert parse_times([202303], str, "t", style="GGGGww")[0] == [seconds("2023-01-16")]
    # 2023 has 52 weeks. Counters, and numbers of other columns, stay numbers.
    for cells, column in (([202352, 202353], "week"), ([1, 2], "week"), ([202352, 202401], "t")):
        assert parse_times(cells, str, column) == (cells, Clock())
    assert parse_times([202311, 202312], str, "t")[1].style == "YYYYMM"


def test_a_month_as_a_number_is_one_if_the_training_had_months():
    assert parse_times(["10.2020"], str, "t", style="MM.YYYY")[0] == [seconds("2020-10-01")]


@pytest.mark.parametrize("written", ["2024-01-{:02}", "{}"])
def test_a_time_column_with_an_empty_cell_is_refused(tmp_path, written):
    rows = [{"day": written.format(i + 1), "y": i} for i in range(20)]
    rows[-1]["day"] = ""
    with pytest.raises(UserError, match=r"row 21: column 'day' must .*, got an empty"):
        source_of(tmp_path, rows, target="y")


def moments(days, hours=(0,)):
    first = datetime.datetime(2024, 1, 1)
    return [first + datetime.timedelta(days=day, hours=hour) for day in days for hour in hours]


END = (31, 29, 31, 30, 31)  # of the months in 2024


@pytest.mark.parametrize(
    ("cells", "step", "season", "following"),
    [
        # Trading hours.
        (
            moments([*range(5), *range(7, 11)], [9.5, 10, 10.5, 11, 11.5]),
            "30 minutes from 09:30 to 11:30, without Saturdays and Sundays",
            5,
            ["2024-01-12 09:30:00", "2024-01-12 10:00:00"],
        ),
        (
            moments(range(9), [8, 12, 18]),
            "time of the day: 08:00, 12:00 and 18:00",
            21,
            ["2024-01-10 08:00:00", "2024-01-10 12:00:00"],
        ),
        (
            moments([day for day in range(60) if day % 7 in (0, 2, 4)]),
            "1 day on Mondays, Wednesdays and Fridays",
            3,
            ["2024-03-01 00:00:00", "2024-03-04 00:00:00"],
        ),
        (
            [f"2024-{month:02}-{day:02}" for month in range(1, 7) for day in (1, 15)],
            "day 1 and 15 of a month",
            24,
            ["2024-07-01", "2024-07-15", "2024-08-01"],
        ),
        (
            [f"2024-{month:02}-{day}" for month in range(1, 6) for day in (15, END[month - 1])],
            "day 15 and last of a month",
            24,
            ["2024-06-15", "2024-06-30"],
        ),
    ],
)
def test_steps_can_be_times_of_a_day_or_days_of_a_week_or_a_month(cells, step, season, following):
    times, written = parse_times([str(cell) for cell in cells], str, "t")
    clock = find_clock(written, [times])
    assert str(clock) == step
    assert grid_positions(times, clock) == list(range(len(times)))
    assert find_season(np.zeros(100), clock)[0] == season
    later = [clock.after(times[-1], i + 1) for i in range(len(following))]
    assert later == [seconds(cell) for cell in following]
    if clock.times:  # from a time between two steps
        assert clock.after(later[0] - 86_400 / 4, 1) == later[0]
    # A missing row is a gap, and a row at another time has no step.
    assert grid_positions([times[0], *times[2:]], clock)[1] == 2
    assert grid_positions([*times, times[-1] + 997], clock) is None


def test_series_can_have_different_times_of_a_day():
    days = [day for day in range(30) if day % 7 < 5]
    series = []
    for hours in (range(9, 15), range(12, 18)):
        times, written = parse_times([str(cell) for cell in moments(days, hours)], str, "t")
        series.append(times)
    clock = find_clock(written, series)
    assert str(clock) == "1 hour from 09:00 to 17:00, without Saturdays and Sundays"


def test_a_few_or_rare_times_of_a_day_are_no_steps():
    hours = moments(range(4), [9, 10, 11])
    for cells in (hours, [*moments(range(20), [9, 10, 11]), *moments([20], [18])]):
        times, written = parse_times([str(cell) for cell in cells], str, "t")
        assert str(find_clock(written, [times])) == "1 hour"


@pytest.mark.parametrize(("factor", "style"), [(1, "unix"), (1000, "unix_ms")])
def test_unix_times_are_dates_and_are_written_as_numbers(tmp_path, factor, style):
    start = 1_577_836_800
    rows = [{"timestamp": (start + 3600 * i) * factor, "y": i % 24} for i in range(240)]
    source = source_of(tmp_path, rows, target="y")
    assert note_with(source, "one row per") == "time: timestamp, one row per 1 hour"
    assert "a day" in note_with(source, "season: 24")
    clock = layout_of(source.layout).known_clock
    assert clock.style == style
    times = list(source.splits["test"].ids["timestamp"][-1])
    assert times[0] - times[1] == -3600 * factor and times[-1] == rows[-1]["timestamp"]
    # Other numbers stay numbers.
    rows = [{"reading": row["timestamp"], "y": row["y"]} for row in rows]
    source = source_of(tmp_path, rows, target="y", time="reading")
    assert layout_of(source.layout).known_clock.unit == "numeric"


def test_times_that_are_written_a_little_late_have_a_step(tmp_path):
    late = np.random.default_rng(0).uniform(0, 0.9, 200)
    first = datetime.datetime(2024, 1, 1)
    cells = [
        (first + datetime.timedelta(seconds=120 * i + float(late[i]))).isoformat(" ")
        for i in range(200)
    ]
    times, written = parse_times(cells, str, "t")
    clock = find_clock(written, [times])
    assert str(clock) == "2 minutes"
    assert grid_positions(times, clock) == list(range(200))


@pytest.mark.parametrize(
    ("wrong", "words"), [("2204-01-08", "a typing error"), ("2024-01-08 07:00", "may not be those")]
)
def test_a_time_that_does_not_fit_is_named_by_its_kind(tmp_path, wrong, words):
    rows = rows_of(60)
    rows[7]["day"] = wrong
    assert "each row is read as one step" in note_with(source_of(tmp_path, rows), words)


def test_irregular_times_have_no_grid():
    clock = Clock("second", 86_400)
    noon = seconds("2024-01-02 12:00")
    assert grid_positions([seconds("2024-01-01"), noon], clock) is None


@pytest.mark.parametrize(
    ("clock", "season"),
    [
        (Clock("month", 1), 12),
        (Clock("month", 3), 4),
        (Clock("second", 7 * 86_400), 52),
        (Clock("second", 86_400), 7),
        (Clock("second", 86_400, days_off=[5, 6]), 5),
        (Clock("second", 86_400, days_off=[4]), 6),
        (Clock("second", 3600), 24),
        (Clock("second", 900), 96),
        (Clock("second", 60), 60),
    ],
)
def test_the_step_between_the_rows_tells_the_season(clock, season):
    found, reason = find_season(np.zeros(500), clock)
    assert found == season and reason.startswith("a")


def test_without_a_calendar_the_autocorrelation_tells_the_season():
    rng = np.random.default_rng(0)
    steps = np.arange(211)
    wave = np.sin(2 * np.pi * steps / 11) + 0.05 * steps + 0.3 * rng.normal(size=211)
    wave[17] = np.nan
    season, reason = find_season(wave, None)
    assert season == 11 and "autocorrelation" in reason
    assert find_season(rng.normal(size=211), None) == (1, "no repetition found in the values")
    assert find_season(np.ones(211), None)[0] == 1
    assert find_season(wave[:20], Clock("month", 1))[0] == 1  # less than three years


@pytest.mark.parametrize(("count", "context", "windows"), [(60, 12, 13), (48, 12, 10)])
def test_a_short_series_has_several_training_windows(tmp_path, count, context, windows):
    rows = [{"month": f"{2000 + i // 12}-{i % 12 + 1:02}", "y": i % 12} for i in range(count)]
    source = source_of(tmp_path, rows, target="y")
    assert f"context: {context}" in note_with(source, "season: 12 steps")
    assert f"windows: train {windows}," in note_with(source, "splits: by time")


def test_running_scales_are_the_scales_of_each_history():
    values = torch.randn(23, 2, generator=torch.Generator().manual_seed(0))
    values[5, 0] = math.nan
    scales = running_scales(values, SEASON)
    for t in range(24):
        expected = seasonal_scale(values[:t], SEASON).float()
        torch.testing.assert_close(scales[t], expected, equal_nan=True)


def test_the_splits_follow_the_time_and_their_targets_do_not_overlap(tmp_path):
    source = source_of(tmp_path, rows_of(101), target="sales", horizon=5, context=13)
    days = {}
    for name, rows in source.splits.items():
        times = [day for times in rows.ids["day"] for day in times]
        days[name] = (min(times), max(times))
    assert days["train"][1] < days["validation"][0]
    assert days["validation"][1] < days["test"][0]
    assert days["test"][1] == "2024-04-10"  # the last row
    future = source.splits["test"].cells["target"][-1]
    assert future.values[-1, 0] == pytest.approx(float(rows_of(101)[-1]["sales"]))
    # 81 training steps: histories of 13 steps, and futures of 5.
    assert len(source.splits["train"]) == 81 - 13 - 5 + 1
    assert source.splits["train"].cells["series"][0].shape == (13, 1)


def test_windows_know_the_time_of_their_last_value(tmp_path):
    source = source_of(tmp_path, rows_of(), horizon=7)
    futures = source.splits["test"].cells["target"]
    assert {future.end - future.time for future in futures} == {6 * 86_400}
    ids = ForecastMetric([0.5]).blocks(futures).ids
    assert ids == [i // 7 for i in range(len(futures))]


def test_the_defaults_are_one_season_ahead_from_three_seasons(tmp_path):
    source = source_of(tmp_path, rows_of(), target="sales")
    assert "season: 7 steps (a week); horizon: 7, context: 21" in source.notes
    assert "time: day, one row per 1 day" in source.notes
    assert source.task == "forecast" and source.target == "sales"


def test_the_only_column_of_numbers_is_the_target(tmp_path):
    source = source_of(tmp_path, rows_of(place="north"))
    assert source.target == "sales" and "not used: place" in source.notes
    with pytest.raises(UserError, match=r"data.target: set it .* are sales, price"):
        source_of(tmp_path, rows_of(price="3"))


def test_further_columns_of_numbers_are_channels_after_the_target(tmp_path):
    rows = [{"price": i, **row} for i, row in enumerate(rows_of())]
    source = source_of(tmp_path, rows, target="sales", context=3)
    first = source.splits["train"].cells["series"][0]
    assert first[:, 1].tolist() == [0, 1, 2]
    assert source.splits["train"].cells["target"][0].values.shape == (7, 1)
    alone = source_of(tmp_path, rows, target="sales", covariates=[], context=3)
    assert alone.splits["train"].cells["series"][0].shape == (3, 1)
    both = source_of(tmp_path, rows, target=["sales", "price"])
    assert both.target == "sales, price"
    assert both.splits["train"].cells["target"][0].values.shape == (7, 2)


def test_rows_are_sorted_repeated_times_are_averaged_and_gaps_are_missing(tmp_path):
    rows = rows_of(61)
    expected = [float(row["sales"]) for row in rows]
    del rows[20:22]
    rows.append({**rows[10], "sales": str(expected[10] + 2)})
    rows[3], rows[4] = rows[4], rows[3]
    source = source_of(tmp_path, rows, target="sales", context=61 - 7 - 14, horizon=7)
    assert "2 rows not in the order of time; the rows are sorted" in note_with(source, "order")
    assert "1 row with the time of another row" in note_with(source, "mean is used")
    assert "time steps without a row: 2 of 61;" in note_with(source, "missing")
    series = source.splits["train"].cells["series"][0][:, 0]
    expected[10] += 1
    torch.testing.assert_close(series[:20], torch.tensor(expected[:20]))
    assert series[20:22].isnan().all() and series[22] == pytest.approx(expected[22])


def test_several_series_are_split_each_by_its_own_end(tmp_path):
    rows = [{"shop": shop, **row} for shop in ("a", "b") for row in rows_of(61)]
    rows += [{"shop": "c", **row} for row in rows_of(5)]
    source = source_of(tmp_path, rows, target="sales", series_id="shop", horizon=5)
    for part in source.splits.values():
        shops = part.ids["shop"]
        assert shops.count("a") == shops.count("b") > 0 and "c" not in shops
    assert "not used: 1 of 3 series, which are too short" in source.notes


def test_a_stride_keeps_the_newest_training_window(tmp_path):
    every = source_of(tmp_path, rows_of(), target="sales").splits["train"]
    third = source_of(tmp_path, rows_of(), target="sales", stride=3).splits["train"]
    assert third.origin == every.origin[::-3][::-1]


def test_a_table_without_times_is_read_in_its_order(tmp_path):
    rows = [{"sales": row["sales"]} for row in rows_of()]
    source = source_of(tmp_path, rows)
    assert note_with(source, "no time column")
    assert "season: 7 steps (values at this distance" in note_with(source, "season")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"target": "sale"}, "data.target: no column 'sale' in t.csv.*did you mean 'sales'"),
        ({}, {"target": "sales", "time": "date"}, "data.time: no column 'date'"),
        ({}, {"target": "sales", "horizon": 0}, "data.horizon: must be at least 1, got 0"),
        ({}, {"target": "sales", "stride": 0}, "data.stride: must be at least 1, got 0"),
        ({}, {"target": "sales", "horizon": 60}, "has 101 time steps, but a history and a horizon"),
        ({}, {"target": "sales", "fractions": [0.5, 0.4]}, "data.fractions: must be one to three"),
        ({"place": "x"}, {"target": "place"}, "column 'place' must contain numbers, got 'x'"),
        (
            {"place": ""},
            {"target": "place"},
            "column 'place' must contain numbers, but it is empty",
        ),
        ({}, {"target": "sales", "covariates": ["sales"]}, "'sales' is already the target"),
        ({"id": ""}, {"target": "sales", "series_id": "id"}, "row 2: no value in column 'id'"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(tmp_path, change, options, message):
    with pytest.raises(UserError, match=message):
        source_of(tmp_path, rows_of(**change), **options)


def test_a_cell_that_is_no_time_is_named_with_its_row(tmp_path):
    rows = rows_of(20)
    rows[7]["day"] = "soon"
    with pytest.raises(UserError, match=r"t.csv row 9: column 'day' must contain times.*'soon'"):
        source_of(tmp_path, rows, target="sales", time="day")


def test_several_series_without_their_id_are_noticed(tmp_path):
    rows = [row for _ in range(3) for row in rows_of(40)]
    with pytest.raises(UserError, match=r"set data.series_id"):
        source_of(tmp_path, rows, target="sales")


def test_a_series_adapter_is_needed(tmp_path):
    path = write_table(tmp_path / "t.csv", rows_of(20))
    with pytest.raises(UserError, match=r"needs an adapter that reads series.*got text"):
        timeline(path, readers={"text": TextReader()}, target="sales")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "windows.horizon must be a positive integer"),
        ({"context": 10**9}, "windows.context must be a positive integer"),
        ({"target": []}, "windows must name columns"),
        ({"time": 3}, "windows must name columns"),
        ({"clock": {"unit": "year"}}, "unit and step must be valid"),
        ({"clock": {"step": -1}}, "unit and step must be valid"),
        ({"formats": []}, "windows.formats must have an item per column"),
        ({"formats": [["."]]}, "windows.formats must have a decimal separator and a unit"),
        ({"formats": [{"values": []}]}, "windows.formats must have a decimal separator and a unit"),
        ({"formats": [{"values": ["a"]}]}, "windows.formats must not have categories of a target"),
        ({"size": 3}, "unexpected keyword"),
    ],
)
def test_a_wrong_layout_of_a_model_folder_is_refused(change, message):
    node = {"target": ["sales"], "horizon": 3, "context": 5}
    with pytest.raises(ValueError, match=message):
        layout_of({"windows": {**node, **change}})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small model, and the table that it was trained on."""
    folder = tmp_path_factory.mktemp("timeline")
    rows = [{"shop": shop, **row} for shop in ("a", "b") for row in rows_of(61)]
    path = write_table(folder / "sales.csv", rows)
    options = ["data=timeline", f"data.path={path}", "target=sales", "data.series_id=shop"]
    train(folder / "run", *options, *SERIES, *SMALL, "trainer.epochs=2")
    return folder


def test_a_training_compares_itself_with_the_seasonal_naive_forecast(run):
    metrics = metrics_of(run / "run")
    names = ("mase", "mae", "crps")
    assert all(f"test/{name}[seasonal naive (7)]" in metrics for name in names)
    assert metrics["test/coverage"] >= 0
    assert "validation/mase" in log_of(run / "run")[0]
    lines = (run / "run" / "predictions.csv").read_text().splitlines()
    assert lines[0] == "file,row,shop,day,step,target,prediction,q0.1,q0.25,q0.75,q0.9"
    assert "seasonal naive (7)" in (run / "run" / "model" / "README.md").read_text()


def test_predict_writes_the_values_after_the_end_of_each_series(run, capsys):
    path, output = run / "sales.csv", run / "forecast.csv"
    assert main(["predict", f"run={run / 'run'}", str(path), f"output={output}"]) == 0
    lines = [line.split(",") for line in output.read_text().splitlines()]
    header = "file,row,shop,day,step,prediction,q0.1,q0.25,q0.75,q0.9"
    assert ",".join(lines[0]) == header
    assert [line[2] for line in lines[1:]] == ["a"] * SEASON + ["b"] * SEASON
    assert lines[1][3] == "2024-03-02" and lines[SEASON][3] == "2024-03-08"
    values = [float(value) for value in lines[1][6:]]
    assert values == sorted(values)
    capsys.readouterr()
    assert main(["predict", f"run={run / 'run'}", str(path)]) == 0
    assert "sales.csv row 62, a, 2024-03-02: prediction " in capsys.readouterr().out


def test_a_table_of_new_rows_is_evaluated_with_rolling_origins(run, capsys):
    path = write_table(run / "new.csv", [{"shop": "c", **row} for row in rows_of(40)])
    output = run / "evaluation"
    options = [f"run={run / 'run'}", path, f"output={output}"]
    assert main(["evaluate", *options]) == 0
    assert "seasonal naive (7)" in capsys.readouterr().out
    assert metrics_of(output)["evaluated"] == 40 - 21 - 7 + 1
    short = write_table(run / "short.csv", [{"shop": "c", **row} for row in rows_of(5)])
    lines = refused(capsys, ["evaluate", f"run={run / 'run'}", short])
    assert "has 5 time steps, but an evaluation needs a history and 7 later values" in lines[-1]


def test_a_new_data_set_has_the_horizon_and_the_season_of_the_training(run):
    # On its own, a table of 30 steps would get a horizon of 6.
    path = write_table(run / "few.csv", [{"shop": "c", **row} for row in rows_of(30)])
    output = run / "few"
    options = ["data=timeline", f"data.path={path}", f"output={output}"]
    assert main(["evaluate", f"run={run / 'run'}", *options]) == 0
    metrics = metrics_of(output)
    assert "all/mase[seasonal naive (7)]" in metrics
    assert metrics["evaluated"] == 30 - 21 - 7 + 1


def test_a_new_table_is_read_in_the_number_format_of_the_training(tmp_path):
    def rows(values):
        return [{"day": f"2024-01-{i + 1:02}", "sales": value} for i, value in enumerate(values)]

    written = [f"{1000 + i},5".replace("1", "1.", 1) for i in range(30)]  # 1.000,5 and so on
    path = write_table(tmp_path / "train.csv", rows(written))
    source = timeline(path, readers={"series": SeriesReader()}, target="sales")
    layout = layout_of(source.layout)
    # On their own, these cells would be read as 1.5 and so on.
    table = read_table(Path(write_table(tmp_path / "new.csv", rows(["1.500"] * 4 + ["2.500"]))))
    values = layout.apply(table, with_target=False).columns["values"][0]
    assert values[:, 0].tolist() == [1500.0] * 4 + [2500.0]
    points = write_table(tmp_path / "wrong.csv", rows([f"{i}.25" for i in range(9)]))
    message = "must contain numbers with the decimal separator ',', as in the training, got '0.25'"
    with pytest.raises(UserError, match=message):
        layout.apply(read_table(Path(points)), with_target=False)


def test_the_python_interface_forecasts_a_list_of_numbers(run):
    model = dxn.load(run / "run")
    history = [3.0 + i % SEASON for i in range(30)]
    answer = model.predict(series=history)
    assert len(answer["prediction"]) == SEASON == len(answer["quantiles"]["0.9"])
    moved = model.predict(series=[2 * value - 5 for value in history])
    expected = [2 * value - 5 for value in answer["prediction"]]
    assert moved["prediction"] == pytest.approx(expected, abs=1e-2)
    assert model.predict(series=history[:4])["prediction"]  # shorter than the training context


def test_check_tokenize_and_attend_work(run, capsys):
    options = [f"data.path={run / 'sales.csv'}", "target=sales", "data.series_id=shop"]
    bad = run / "bad.csv"
    assert main(["check", "data=timeline", *options, *SERIES, f"output={bad}"]) == 0
    assert "the next 7 values" in capsys.readouterr().out
    sample = "input.series=[1,2,3,4,5,6,7,8,9,10]"
    assert main(["attend", f"run={run / 'run'}", sample, f"output={run / 'attend'}"]) == 0
    picture = f"output={run / 'tokens.png'}"
    assert main(["tokenize", f"run={run / 'run'}", sample, picture]) == 0


def test_lists_in_a_table_are_forecast_together_with_a_text(tmp_path):
    rows = []
    for i in range(40):
        slope = 1 if i % 2 else -1
        history = [round(slope * t + i / 3, 3) for t in range(12)]
        rows.append({"name": f"{'rise' if i % 2 else 'fall'} {i}", "past": history})
        rows[-1]["next"] = [slope * 12 + i / 3, slope * 13 + i / 3]
    path = write_table(tmp_path / "lists.jsonl", rows)
    options = [path, "target=next", "data.series=past", "data.text=name", "head=forecast"]
    adapters = ["adapters=[text,series]", "adapters.series.patch_size=3"]
    metrics = train(tmp_path / "run", *options, *adapters, *SMALL, "trainer.epochs=2")
    assert metrics["test/mase[seasonal naive (1)]"] == pytest.approx(1.5, abs=1e-4)
    assert dxn.load(tmp_path / "run").predict(past=rows[0]["past"])["prediction"]


def test_a_table_of_several_series_is_recognized_with_the_column_of_their_names(tmp_path):
    days = [f"2026-01-{day:02}" for day in range(1, 31)]
    rows = [(shop, day, str(i)) for shop in "AB" for i, day in enumerate(days)]
    lines = [",".join(row) for row in rows]
    path = tmp_path / "shops.csv"
    path.write_text("\n".join(["shop,day,sales", *lines]), encoding="utf-8")
    table = read_table(path)
    command = f"{path} data=timeline target=sales data.time=day data.series_id=shop"
    assert explain_steps(table, ["day"], "sales", ["shop", "day"]) == (
        "one row per shop and day; to forecast sales from its own past instead: dxn train "
        f"{command}"
    )
    # Neither if the steps between the days differ, nor if no column names the series.
    first = datetime.date(2026, 1, 1)
    cells = [str(first + datetime.timedelta(i * i % 97)) for i in range(40)]
    path.write_text("\n".join(["day,sales", *(f"{day},1" for day in cells)]), encoding="utf-8")
    assert explain_steps(read_table(path), ["day"], "sales", ["day"]) == ""
    assert explain_steps(table, ["day"], "sales", ["day"]) == ""


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"hour": [0, 1, 2]}, {}),  # the hour names no series
        ({"shop": ["a"] * 3, "item": ["x", "y", "z"]}, {"series_id": "shop"}),
    ],
)
def test_hours_or_several_series_are_not_averaged(tmp_path, columns, options):
    rows = []
    for row in rows_of(30):
        rows += [{**row, **{name: c[i] for name, c in columns.items()}} for i in range(3)]
    with pytest.raises(UserError, match=r"several series, set data\.series_id to the column"):
        source_of(tmp_path, rows, target="sales", **options)
