"""The laws of Tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.tokens import Span, Tokens, check_columns, join


def make(modality="text", lengths=(3, 5), dim=7, places=2):
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), n, dim)
    return Tokens(x, mask, (Span(modality, 0, n, torch.zeros(len(lengths), n, places)),))


def test_matrix_is_a_view_of_the_same_memory():
    tokens = make()
    assert tokens.matrix.shape == (2, 7, 5)
    assert tokens.matrix.data_ptr() == tokens.x.data_ptr()
    assert tokens.matrix[1, 3, 4] == tokens.x[1, 4, 3]


def test_indexing_gives_a_samples_own_matrix_without_padding():
    tokens = make(lengths=(3, 5))
    assert tokens[0].shape == (7, 3)
    assert torch.equal(tokens[0], tokens.x[0, :3].T)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3))
def test_joining_then_splitting_gives_back_the_parts(lengths):
    parts = [make(f"m{i}", pair) for i, pair in enumerate(lengths)]
    for part, again in zip(parts, join(parts).split(), strict=True):
        assert torch.equal(part.x, again.x) and torch.equal(part.mask, again.mask)
        assert again.spans[0].modality == part.spans[0].modality


def test_spreading_leaves_the_other_rows_without_a_real_column():
    spread = make(lengths=(3, 5)).spread(torch.tensor([1, 3]), 5)
    assert spread.mask.sum(1).tolist() == [0, 3, 0, 5, 0]
    assert spread.spans[0].places.shape == (5, 5, 2)
    assert bool(spread.spans[0].places[0].isnan().all())


def test_selecting_a_modality_that_is_not_there_names_those_that_are():
    with pytest.raises(KeyError, match=r"no audio columns, only \['text'\]"):
        make().select("audio")


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), "x must be"),
        (torch.zeros(2, 3, 5), torch.ones(3, 2, dtype=torch.bool), "x must be"),
        (torch.zeros(2, 3, 5), torch.ones(2, 3), "mask must be bool"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, mask, message):
    with pytest.raises(ValueError, match=message):
        Tokens(x, mask)


def test_spans_must_follow_each_other_to_the_last_column():
    mask = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match="spans end at column 3"):
        Tokens(torch.zeros(2, 5, 7), mask, (Span("text", 0, 3, torch.zeros(2, 3, 2)),))


def test_a_sample_with_no_columns_at_all_is_a_clear_error():
    with pytest.raises(ValueError, match="no tokens at all in sample 1"):
        check_columns(torch.tensor([[True, False], [False, False]]))


def test_nothing_to_join_is_an_error():
    with pytest.raises(ValueError, match="nothing to join"):
        join([])
