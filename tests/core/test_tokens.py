"""Properties of Tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.tokens import Span, Tokens, join, sinusoidal


def make(name="text", lengths=(3, 5), dim=7, num_coords=2, modality="text"):
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), n, dim)
    coords = torch.zeros(len(lengths), n, num_coords)
    return Tokens(x, mask, (Span(name, modality, 0, n, coords),))


def test_matrix_is_a_view_of_the_same_memory():
    tokens = make()
    assert tokens.matrix.shape == (2, 7, 5)
    assert tokens.matrix.data_ptr() == tokens.x.data_ptr()
    assert tokens.matrix[1, 3, 4] == tokens.x[1, 4, 3]


def test_indexing_gives_the_matrix_of_one_sample_without_padding():
    tokens = make(lengths=(3, 5))
    assert len(tokens) == 2
    assert tokens[0].shape == (7, 3)
    assert torch.equal(tokens[0], tokens.x[0, :3].T)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3))
def test_splitting_joined_tokens_gives_the_parts(lengths):
    parts = [make(f"input {i}", pair, num_coords=i + 1) for i, pair in enumerate(lengths)]
    for part, split in zip(parts, join(parts).split(), strict=True):
        assert torch.equal(part.x, split.x) and torch.equal(part.mask, split.mask)
        assert (split.spans[0].name, split.spans[0].start) == (part.spans[0].name, 0)
        assert torch.equal(split.spans[0].coords, part.spans[0].coords)


def test_spreading_leaves_only_padding_in_the_other_rows():
    spread = make(lengths=(3, 5)).spread(torch.tensor([1, 3]), 5)
    assert spread.mask.sum(1).tolist() == [0, 3, 0, 5, 0]
    assert spread.spans[0].coords.shape == (5, 5, 2)
    assert bool(spread.spans[0].coords[0].isnan().all())


def test_spreading_to_the_same_rows_changes_nothing():
    tokens = make()
    assert tokens.spread(torch.arange(2), 2) is tokens


def test_renaming_changes_the_name_of_every_span_and_nothing_else():
    tokens = join([make("text"), make("image", modality="image")])
    renamed = tokens.renamed("front.photo v1.0")
    assert [(s.name, s.modality) for s in renamed.spans] == [
        ("front.photo v1.0", "text"),
        ("front.photo v1.0", "image"),
    ]
    assert renamed.x is tokens.x and renamed.mask is tokens.mask


def test_columns_are_selected_by_the_name_of_the_input_and_not_by_its_modality():
    front, back = make("front", modality="image"), make("back.photo 2", modality="image")
    assert torch.equal(join([front, back]).select("back.photo 2").x, back.x)
    with pytest.raises(KeyError, match="no columns of 'image'"):
        join([front, back]).select("image")


def test_selecting_an_unknown_input_names_the_known_ones():
    with pytest.raises(KeyError, match=r"no columns of 'audio', only of \['text'\]"):
        make().select("audio")


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), "x must be"),
        (torch.zeros(2, 3, 5), torch.ones(3, 2, dtype=torch.bool), "x must be"),
        (torch.zeros(2, 3, 5), torch.ones(2, 3), "mask must be bool"),
    ],
)
def test_shapes_that_do_not_match_raise_a_clear_error(x, mask, message):
    with pytest.raises(ValueError, match=message):
        Tokens(x, mask)


def span_at(start, stop, batch_size=2):
    return Span("text", "text", start, stop, torch.zeros(batch_size, stop - start, 2))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((span_at(0, 3),), "spans end at column 3, but the matrix has 5 columns"),
        ((span_at(1, 5),), "span 'text' covers columns 1:5 .* it must start at column 0"),
        ((span_at(0, 3), span_at(2, 5)), "it must start at column 3"),
        ((span_at(0, 5, batch_size=3),), "covers columns 0:5 with coords"),
    ],
)
def test_spans_must_cover_all_columns_in_order(spans, message):
    mask = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        Tokens(torch.zeros(2, 5, 7), mask, spans)


def test_tokens_are_printed_with_their_shape_and_inputs():
    tokens = join([make("title", (3, 5)), make("photo", (2, 2))])
    assert repr(tokens) == "Tokens(B=2, D=7, N=7, title 0:5, photo 5:7)"
    assert repr(tokens.spans[1]) == "Span(name='photo', modality='text', start=5, stop=7)"


@pytest.mark.parametrize("other", [make("photo", (2, 2, 3)), make("photo", (2, 2), dim=11)])
def test_parts_of_other_batches_or_widths_cannot_be_joined(other):
    message = r"same batch size B and width D, got Tokens\(B=2, D=7, N=5, text 0:5\), Tokens\(B="
    with pytest.raises(ValueError, match=message):
        join([make(), other])


@pytest.mark.parametrize(
    "rows", [torch.tensor([0, 2, 4]), torch.tensor([True, True, False, False])]
)
def test_spreading_needs_one_row_per_sample(rows):
    with pytest.raises(ValueError, match="index of each of the 2 samples in the new batch, got"):
        make().spread(rows, 3)


def test_joining_nothing_raises_a_clear_error():
    with pytest.raises(ValueError, match="nothing to join"):
        join([])


def test_sinusoidal_positions_equal_their_formula():
    encoding = sinusoidal(torch.tensor([0, 3, 1000]), 6)
    for row, index in zip(encoding.tolist(), (0, 3, 1000), strict=True):
        angles = torch.tensor([index / 10000 ** (2 * i / 6) for i in range(3)])
        assert row == pytest.approx([*angles.sin().tolist(), *angles.cos().tolist()], abs=1e-4)
    with pytest.raises(ValueError, match="dim must be even for sinusoidal positions, got 7"):
        sinusoidal(torch.arange(3), 7)
