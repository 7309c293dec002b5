"""Dates and times of a table as tokens."""

import datetime
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tokenize import BadMedia, DateAdapter
from dxn.tokenize.cells.date_values import are_dates, find_day_first, parse_date

DIM = 11
DATES = ["2026-01-31", "2025-07-02", "2024-12-24 18:30", "2026-03-08"]


def fitted(cells=DATES, **options):
    adapter = DateAdapter(DIM, **options)
    adapter.tokenizer.reader.learn(cells)
    return adapter.fit([adapter.tokenizer.reader.read(cell) for cell in cells])


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("2026-01-31", "2026-01-31"),
        ("2026/1/31", "2026-01-31"),
        ("31.1.2026", "2026-01-31"),
        ("31.01.26", "2026-01-31"),
        ("31.01.69", "1969-01-31"),
        ("31 January 2026", "2026-01-31"),
        ("31. Jan. 2026", "2026-01-31"),
        ("January 31, 2026", "2026-01-31"),
        ("5. Mai 2026", "2026-05-05"),
        ("20260131", "2026-01-31"),
        (20260131, "2026-01-31"),
        ("2026-01-31T12:30:15.250Z", "2026-01-31 12:30"),
        ("2026-01-31 12:30:15+02:00", "2026-01-31 12:30"),
        ("2026-01-31 12:30 CET", "2026-01-31 12:30"),
        ("2026-01-31 24:00", "2026-02-01 00:00"),
        ("2026-12-31 23:59:60", "2027-01-01 00:00"),
        ("24:00", "00:00"),
        ("5. März 2026", "2026-03-05"),
        ("7 fevrier 2026", "2026-02-07"),
        ("31-OCT-2026", "2026-10-31"),
        ("31-Oct-26", "2026-10-31"),
        ("31OCT2026", "2026-10-31"),
        ("2026 Oct 31", "2026-10-31"),
        ("Oct 2026", "2026-10-01"),
        ("Sept. 7, 2026", "2026-09-07"),
        ("5 février 2026", "2026-02-05"),
        ("14 juillet 2026", "2026-07-14"),
        ("14 juin 2026", "2026-06-14"),
        ("3 dic 2026", "2026-12-03"),
        ("2026-01-31 9:05 pm", "2026-01-31 21:05"),
        ("12:30", "12:30"),
        ("12:05 AM", "00:05"),
        (datetime.date(2026, 1, 31), "2026-01-31"),
        (datetime.datetime(2026, 1, 31, 7, 5), "2026-01-31 07:05"),
        (datetime.time(7, 5), "07:05"),
    ],
)
def test_dates_are_read_as_people_write_them(cell, text):
    assert str(parse_date(cell, day_first=True)) == text


@pytest.mark.parametrize(
    ("cells", "day_first"),
    [
        (["1/2/2026", "25/2/2026"], True),
        (["1/2/2026", "2/25/2026"], False),
        (["1/2/2026", "3/4/2026"], False),
        (["1.2.2026", "3.4.2026"], True),
        (["2026-01-31"], True),
        ([], True),
    ],
)
def test_all_cells_together_tell_whether_the_day_comes_first(cells, day_first):
    assert find_day_first(cells) == day_first


def test_a_note_says_how_dates_are_read_if_no_cell_shows_their_order():
    learn = DateAdapter(DIM).tokenizer.reader.learn
    assert learn(["3/3/2026", "1/2/2026"]).startswith(
        "dates such as 1/2/2026 are read with the month first, although no cell shows it; "
    )
    assert learn(["1/2/2026", "25/2/2026"]) == learn(["1.2.2026"]) == learn(["3/3/2026"]) == ""


@pytest.mark.parametrize(
    "cell",
    [
        "2026-02-30",
        "2026-13-01",
        "soon",
        "31 Foo 2026",
        "Marathon 26 2019",
        "3 outlets 2021",
        "7 jui 2020",
        "31 Oct 26",
        "model 2026",
        "2026-01-31 25:00",
        "13:00 pm",
        5,
        b"x",
    ],
)
def test_a_cell_that_is_no_date_is_explained(cell):
    with pytest.raises(BadMedia, match=r"must be a date such as 2026-01-31 or day/month/year"):
        DateAdapter(DIM).tokenizer.reader.read(cell)


@pytest.mark.parametrize("cell", ["N/A", "", "unknown", "0000-00-00", None, float("nan")])
def test_a_missing_date_has_no_value(cell):
    assert DateAdapter(DIM).tokenizer.reader.read(cell) is None


@settings(deadline=None)
@given(st.datetimes())
def test_every_date_and_time_gives_bounded_features(moment):
    adapter = fitted()
    value, valid = adapter.tokenizer.features(adapter.tokenizer.reader.read(moment))
    assert all(valid) and max(map(abs, value)) <= 3


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ("2026-01-05", "2026-01-12", True),  # Mondays
        ("2026-01-05", "2026-01-06", False),
    ],
)
def test_weekdays_repeat_after_seven_days(one, other, is_equal):
    prepare = fitted().tokenizer
    a, b = (prepare.features(prepare.reader.read(cell))[0][:6] for cell in (one, other))
    assert (a == pytest.approx(b)) == is_equal


def test_a_date_is_one_token_and_batch_mates_do_not_change_it():
    adapter = fitted()
    tokens = adapter.tokens([*DATES, "12:30"])
    assert tokens.matrix.shape == (5, DIM, 1)
    torch.testing.assert_close(tokens[2], adapter.tokens(DATES[2:3])[0])


def test_a_masked_date_is_hidden_and_its_own_features_are_predicted():
    adapter = fitted()
    masking = adapter.masking(ratio=0.5)
    prepare = adapter.tokenizer
    raws = [prepare.reader.read(cell) for cell in ["12:30", *DATES]]
    batch = prepare.collate([masking(prepare(raw), random.Random(i)) for i, raw in enumerate(raws)])
    masked = batch["masked"][:, 0]
    assert 0 < masked.sum() < len(raws)
    x = adapter(batch).x[masked]
    assert (x == x[0]).all()
    valid = prepare.collate([prepare(raw) for raw in raws])["valid"][masked, 0]
    assert torch.equal(batch["masked_valid"], valid) and not valid.all()
    assert adapter.masking(ratio=0) is None


def test_eight_dates_are_overfitted():
    torch.manual_seed(0)
    cells = [f"2026-01-{day:02}" for day in (3, 7, 8, 11, 17, 19, 23, 29)]
    adapter = fitted(cells)
    target = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0])
    head = torch.nn.Sequential(torch.nn.Linear(DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*adapter.parameters(), *head.parameters()], lr=0.02)
    for _ in range(200):
        output = head(adapter.tokens(cells).x[:, 0]).squeeze(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_the_format_and_the_statistics_are_saved(tmp_path):
    adapter = fitted(["1/2/2026", "2/25/2026"])
    adapter.save(tmp_path, "day")
    again = DateAdapter(DIM)
    again.load(tmp_path, "day")
    again.load_state_dict(adapter.state_dict())
    assert str(again.tokenizer.reader.read("1/2/2026")) == "2026-01-02"
    assert torch.equal(again.tokens(["3/4/2026"]).x, adapter.tokens(["3/4/2026"]).x)


@pytest.mark.parametrize("day", ["2026-01-05", datetime.datetime(2026, 1, 5)])
def test_a_date_at_midnight_is_the_date_in_a_column_without_times(day):
    """Data frames and JSON have no dates without a time."""
    read = fitted([day, "1/25/2026", None]).tokenizer.reader.read
    written = ["2026-01-05", datetime.datetime(2026, 1, 5), "2026-01-05T00:00:00.000Z"]
    assert len({read(cell) for cell in written}) == 1
    assert str(read("2026-01-05 9:30")) == "2026-01-05" and str(read("9:30")) == "09:30"


@pytest.mark.parametrize("time", ["1/25/2026 9:30", "9:30", "00:00", datetime.time(0)])
def test_one_time_shows_that_the_dates_of_a_column_have_times(time):
    read = fitted(["1/25/2026", time]).tokenizer.reader.read
    assert str(read("2026-01-05 00:00")) == "2026-01-05 00:00"


def test_an_order_that_the_user_sets_wins():
    adapter = fitted(["1/2/2026", "3/4/2026"], day_first=True)
    assert str(adapter.tokenizer.reader.read("1/2/2026")) == "2026-02-01"


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"x": {"day_first": 1, "has_times": true, "center": 0, "scale": 1}}',
        '{"x": {"day_first": true, "has_times": true, "center": 0, "scale": -1}}',
        '{"x": {"day_first": true, "has_times": true, "center": null, "scale": 1}}',
        '{"x": {"day_first": true, "has_times": null, "center": 0, "scale": 1}}',
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "adapters.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"adapters\.jsonl"):
        DateAdapter(DIM).load(tmp_path, "x")


def test_the_hours_of_a_day_can_be_numbered_from_1_to_24():
    cells = [f"2026-01-31 {hour:02}:00" for hour in range(1, 25)]
    days = [parse_date(cell, day_first=True).days for cell in cells]
    assert days == sorted(days) and len({*days}) == 24


@pytest.mark.parametrize("cell", ["2026-01-31 24:01", "2026-01-31 25:00", "24:00:01"])
def test_a_time_after_the_end_of_the_day_is_none(cell):
    assert parse_date(cell, day_first=True) is None


def test_zones_of_a_time_tell_how_far_its_clock_is_ahead_of_utc():
    cells = ("12:00 CET", "12:00 CEST", "12:00 PDT", "12:00 GMT", "12:00 IST")
    offsets = [parse_date(f"2026-01-31 {cell}", day_first=True).offset for cell in cells]
    assert offsets == [3600, 7200, -25200, 0, None]


@pytest.mark.parametrize(
    "cells",
    [
        ["45:10", "61:20", "12:30"],
        ["5 apples 2024", "6 pears 2025"],
        ["99-82-52", "33-48-74"],  # parts and phones
        ["1/2/345", "3/4/567"],
    ],
)
def test_durations_and_texts_with_numbers_are_no_dates(cells):
    assert not are_dates(cells)


def test_dates_of_eight_digits_can_be_decimals_as_pandas_writes_them():
    for cell in ("20260131.0", 20260131.0, 20260131):
        assert str(parse_date(cell, day_first=True)) == "2026-01-31"
    assert are_dates(["20260131.0", "", "20251224.0"])
    assert are_dates([20260131.0, None, 20251224.0])


def test_a_note_says_how_dates_are_read_that_can_start_with_the_year():
    learn = DateAdapter(DIM).tokenizer.reader.learn
    assert learn(["25-09-06", "24-10-17"]).startswith(
        "dates such as 25-09-06 are read as 2006-09-25; "
    )
    assert learn(["25-09-06", "4-10-17"]) == learn(["25-09-2006"]) == learn(["25-09-46"]) == ""
