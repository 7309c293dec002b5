"""Times have one meaning in all layouts: their order, their zone and their step."""

import datetime

import numpy as np
import pytest

from dxn.data import table
from dxn.data.series.layouts import Long
from dxn.tokenize.series.reader import SeriesReader
from tests.helpers.newcomer import printed, write_csv

UTC = datetime.UTC
SUMMER, WINTER = "+02:00", "+01:00"


def berlin(hours, start=datetime.datetime(2026, 10, 23, tzinfo=UTC)):
    """Hours around the end of summer time, as a table from Berlin has them."""
    end = datetime.datetime(2026, 10, 25, 1, tzinfo=UTC)
    texts = []
    for i in range(hours):
        moment = start + datetime.timedelta(hours=i)
        ahead, zone = (2, SUMMER) if moment < end else (1, WINTER)
        texts.append(f"{moment + datetime.timedelta(hours=ahead):%Y-%m-%d %H:%M}{zone}")
    return texts


def check_timeline(folder, capsys, times):
    write_csv(folder / "t.csv", ["when", "x"], [[t, (i * 7) % 24] for i, t in enumerate(times)])
    return printed(capsys, "check", "data=timeline", f"data.path={folder / 't.csv'}", "target=x")


def test_the_hour_that_occurs_twice_at_the_end_of_summer_time_is_two_hours(tmp_path, capsys):
    output = check_timeline(tmp_path, capsys, berlin(96))
    assert "one row per 1 hour" in output
    assert "with the time of another row" not in output
    assert "without a row" not in output


@pytest.mark.parametrize("zone", ["Z", " UTC", "+0530", "-08", ""])
def test_one_zone_in_all_rows_needs_no_conversion(zone, tmp_path, capsys):
    start = datetime.datetime(2026, 3, 1)
    times = [f"{start + datetime.timedelta(hours=i):%Y-%m-%d %H:%M}{zone}" for i in range(96)]
    output = check_timeline(tmp_path, capsys, times)
    assert "one row per 1 hour" in output
    assert "of another row" not in output


def test_days_that_start_at_midnight_of_the_place_are_days_in_summer_and_in_winter(
    tmp_path, capsys
):
    start = datetime.datetime(2026, 10, 1)
    days = [start + datetime.timedelta(days=i) for i in range(60)]
    times = [f"{day:%Y-%m-%dT%H:%M}{SUMMER if i < 25 else WINTER}" for i, day in enumerate(days)]
    output = check_timeline(tmp_path, capsys, times)
    assert "one row per 1 day" in output
    assert "not regular" not in output


def read_long(folder, times, **options):
    """The values of the only series of a table with the numbers 0, 1, ... in its rows."""
    rows = [["a", t, i, "uv"[i % 2]] for i, t in enumerate(times)]
    write_csv(folder / "t.csv", ["id", "when", "x", "other"], rows)
    source = table(
        folder / "t.csv",
        long=Long("id", "when", "x", **options),
        readers={"series": SeriesReader()},
        series="values",
        fractions=[1.0],
    )
    (series,) = source.splits["train"].cells["series"]
    return np.asarray(series)[:, 0].tolist()


def test_a_long_table_has_the_same_two_hours(tmp_path):
    first, last = f"2026-10-25 02:30{SUMMER}", f"2026-10-25 02:30{WINTER}"
    assert read_long(tmp_path, [last, first]) == [1, 0]
    assert read_long(tmp_path, [last, first], step=3600) == [1, 0]


@pytest.mark.parametrize(
    "times",
    [
        ["31.1.2026", "1.2.2026", "2.2.2026"],
        ["1/31/2026", "2/1/2026", "2/2/2026"],
        ["20260131", "20260201", "20260202"],
        ["31 Jan 2026", "1 Feb 2026", "2 Feb 2026"],
    ],
)
def test_a_long_table_reads_the_dates_that_a_timeline_reads(times, tmp_path, capsys):
    assert read_long(tmp_path, times[::-1], step=86400) == [2, 1, 0]
    first = datetime.date(2026, 1, 31)
    write = {".": "{0.day}.{0.month}.{0.year}", "/": "{0.month}/{0.day}/{0.year}"}
    style = write.get(next((c for c in times[0] if c in write), ""), "{0:%Y%m%d}")
    days = [style.format(first + datetime.timedelta(days=i)) for i in range(60)]
    assert "one row per 1 day" in check_timeline(tmp_path, capsys, days)
