"""Numbers of a table as tokens."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.tokenize import BadMedia, NumberAdapter
from dxn.tokenize.cells.number import quantile_edges
from dxn.tokenize.column_profile import profile_of, scores_of

DIM = 11
NUMBERS = [3.0, -7.5, 11.25, 1300.0, 17.0, 19.0, 2.0, 5.0]
KINDS = ("piecewise", "linear")


def fitted(**options):
    return NumberAdapter(DIM, **options).fit(NUMBERS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_is_one_token(kind):
    tokens = fitted(embedding=kind).tokens([3.0, -7.5])
    assert tokens.matrix.shape == (2, DIM, 1)
    assert tokens.mask.all()
    assert tokens.spans[0].coords.tolist() == [[[0.0, 1.0]], [[0.0, 1.0]]]
    assert tokens.x.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_batch_mates_do_not_change_a_token(kind):
    adapter = fitted(embedding=kind)
    together = adapter.tokens(NUMBERS).x
    alone = torch.cat([adapter.tokens([number]).x for number in NUMBERS])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_numbers_are_overfitted(kind):
    torch.manual_seed(0)
    adapter = fitted(embedding=kind)
    target = torch.tensor([float(2 < number < 18) for number in NUMBERS])
    head = torch.nn.Sequential(torch.nn.Linear(DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*adapter.parameters(), *head.parameters()], lr=0.02)
    for _ in range(600):
        output = head(adapter.tokens(NUMBERS).x[:, 0]).squeeze(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_the_piecewise_encoding_is_that_of_the_paper():
    adapter = fitted(num_bins=3)
    adapter.edges.copy_(torch.tensor([-1.0, 0.0, 2.0, 3.0]))
    value = torch.tensor([[[-2.0]], [[-0.25]], [[1.5]], [[5.0]]])
    expected = [[0, 0, 0], [0.75, 0, 0], [1, 0.75, 0], [1, 1, 1]]
    assert adapter._bins(value)[:, 0].tolist() == expected


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=50), st.integers(1, 7))
def test_the_edges_of_the_bins_ascend_whatever_the_numbers_are(numbers, num_bins):
    edges = quantile_edges(np.array(numbers), num_bins)
    assert edges.shape == (num_bins + 1,)
    assert (edges.diff() > 0).all()


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_any_finite_numbers_give_finite_tokens(numbers):
    adapter = NumberAdapter(DIM).fit(numbers)
    assert adapter.tokens(numbers).x.isfinite().all()


def test_an_outlier_does_not_dominate_the_other_numbers():
    prepare = NumberAdapter(DIM).fit([*range(101), 10**9]).tokenizer
    assert abs(prepare.standardize(10.0) - prepare.standardize(90.0)) > 1
    assert prepare.standardize(1e9) <= 3


def test_seconds_since_1970_stay_apart():
    seconds = [1.7e9 + i for i in range(7)]
    prepare = NumberAdapter(DIM).fit(seconds).tokenizer
    assert len({float(prepare(s)["value"]) for s in seconds}) == 7


# Reading


@pytest.mark.parametrize(
    ("column", "cell", "number"),
    [
        (["1.5", "2"], "3", 3.0),
        (["1,234.5", "950"], "2,000", 2000.0),
        (["3,5", "4,25"], "1.234,5", 1234.5),
        (["$5", "$7.50"], "9", 9.0),
        (["12 %", "15 %"], "20 %", 20.0),
        ([1, 2.5], np.float32(0.5), 0.5),
        (["1", "N/A"], "-", None),
        (["1", "2"], math.nan, None),
        (["1", "2"], np.float64("nan"), None),
        (["1", "2"], " ", None),
        (["1", "2"], "unknown", None),
    ],
)
def test_numbers_are_read_in_the_format_of_their_column(column, cell, number):
    prepare = NumberAdapter(DIM).tokenizer
    prepare.reader.learn(column)
    assert prepare.reader.read(cell) == number


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (["1"], "abc", "must be a number with a decimal point, got 'abc'"),
        (["3,5"], "3.5", "must be a number with a decimal comma, got '3.5'"),
        (["1"], "inf", "must be a number with a decimal point, got 'inf'"),
        ([1], True, "must be a number with a decimal point, got True"),
        (["1"], [1, 2], "must be a number with a decimal point, got [1, 2]"),
        (["1"], b"\xff", "must be a number with a decimal point, got b'\\xff'"),
        (["$5", "$6"], "7 kg", "must be a number with a decimal point and an optional unit '$', "),
    ],
)
def test_a_cell_that_is_no_number_is_explained(column, cell, message):
    prepare = NumberAdapter(DIM).tokenizer
    prepare.reader.learn(column)
    with pytest.raises(BadMedia) as caught:
        prepare.reader.read(cell)
    assert str(caught.value).startswith(message)


def test_a_decimal_separator_that_the_user_sets_wins():
    prepare = NumberAdapter(DIM, decimal=",").tokenizer
    prepare.reader.learn(["1,234", "950"])
    assert prepare.reader.read("1,234") == 1.234


@pytest.mark.parametrize(
    ("values", "score"),
    [
        (["1", "2.5", "N/A"], 1.0),
        ([1, 2, 3], 1.0),
        (["01234", "55555", "00012"], 0.0),  # zip codes
        ([True, False], 0.0),
        ([*range(40), True], 1.0),  # one cell is wrong
        (["2026-01-31", "2026-02-01"], 0.0),
        ([20260131, 20260201], 0.0),
        (["red", "blue"], 0.0),
        ([[1.0, 2.0]], 0.0),
    ],
)
def test_only_numbers_are_accepted(values, score):
    assert scores_of(profile_of(values)).get("number", 0) == score


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "cubic"}, "embedding must be one of 'piecewise' or 'linear'"),
        ({"num_bins": 0}, "num_bins must be at least 1, got 0"),
        ({"decimal": ";"}, "decimal must be one of '.' or ',', got ';'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NumberAdapter(DIM, **options)


# Masked pretraining and files


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_number_is_hidden_and_predicted(kind):
    adapter = fitted(embedding=kind)
    masking = adapter.masking(ratio=0.5)
    samples = [
        masking(adapter.tokenizer(number), random.Random(i)) for i, number in enumerate(NUMBERS)
    ]
    batch = adapter.tokenizer.collate(samples)
    masked = batch["masked"][:, 0]
    assert 0 < masked.sum() < len(NUMBERS)
    expected = [adapter.tokenizer.standardize(n) for n, m in zip(NUMBERS, masked, strict=True) if m]
    torch.testing.assert_close(batch["masked_target"][:, 0], torch.tensor(expected))
    x = adapter(batch).x[masked]
    assert (x == x[0]).all()  # nothing is left of the number
    assert adapter.masking(ratio=0) is None


def test_the_format_and_the_statistics_are_saved(tmp_path):
    adapter = NumberAdapter(DIM)
    adapter.tokenizer.reader.learn(["3,5 kg", "4,5 kg"])
    adapter.fit(NUMBERS).save(tmp_path, "a/b")
    NumberAdapter(DIM).fit([1.0, 2.0]).save(tmp_path, "other")
    again = NumberAdapter(DIM)
    again.load(tmp_path, "a/b")
    again.load_state_dict(adapter.state_dict())
    assert again.tokenizer.reader.read("7,5 kg") == 7.5
    assert torch.equal(again.tokens(["7,5"]).x, adapter.tokens(["7,5"]).x)
    again.fit([100.0])  # a loaded adapter keeps its statistics
    assert again.tokenizer.center == adapter.tokenizer.center


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"x": 5}',
        '{"x": {"decimal": ".", "unit": "", "center": 0, "scale": 0}}',
        '{"x": {"decimal": ".", "unit": "", "center": NaN, "scale": 1}}',
        '{"x": {"decimal": "x", "unit": "", "center": 0, "scale": 1}}',
        '{"x": {"decimal": ".", "unit": 3, "center": 0, "scale": 1}}',
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "adapters.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"adapters\.jsonl"):
        NumberAdapter(DIM).load(tmp_path, "x")
