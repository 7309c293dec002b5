"""Position embeddings against their formulas, and learned grids at other sizes."""

import math

import pytest
import torch
import torch.nn.functional as F

from dxn.core.tokens import sinusoidal
from dxn.tokenize.positions import PosEmbed1d, PosEmbed2d, sinusoidal_2d

CPU = torch.device("cpu")


def encoding_of(index, dim):
    """sin(pos / 10000^(2i/dim)) for each i, then the cosines of the same angles."""
    angles = [index / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


@pytest.mark.parametrize("dim", [2, 6, 14])
def test_sinusoidal_positions_equal_the_formula_of_the_paper(dim):
    expected = torch.tensor([encoding_of(i, dim) for i in range(31)])
    torch.testing.assert_close(sinusoidal(torch.arange(31), dim), expected, rtol=0, atol=1e-5)


def test_sinusoidal_positions_keep_the_shape_of_the_index():
    index = torch.tensor([[0, 5, 11], [3, 2, 7]])
    assert sinusoidal(index, 10).shape == (2, 3, 10)
    assert torch.equal(sinusoidal(index, 10)[1, 2], sinusoidal(torch.tensor(7), 10))


def test_the_embedding_of_a_cell_is_that_of_its_row_then_that_of_its_column():
    grid = sinusoidal_2d(3, 5, 12)
    assert grid.shape == (3, 5, 12)
    for row in range(3):
        for column in range(5):
            expected = torch.tensor(encoding_of(row, 6) + encoding_of(column, 6))
            torch.testing.assert_close(grid[row, column], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: PosEmbed1d("rope", dim=7, max_len=5),
            "kind must be one of 'learned', 'sinusoidal' or 'none', got 'rope'",
        ),
        (
            lambda: sinusoidal(torch.arange(3), 7),
            "dim must be even for sinusoidal positions, got 7",
        ),
        (
            lambda: sinusoidal_2d(3, 5, 10),
            "dim must be a multiple of 4 for two-dimensional .* got 10",
        ),
        (
            lambda: PosEmbed1d("learned", dim=7, max_len=5)(6, CPU),
            "learned positions reach 5 tokens, got 6: raise max_len",
        ),
    ],
)
def test_wrong_options_are_refused_with_their_values(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_learned_positions_are_the_first_rows_of_the_weight():
    pos_embed = PosEmbed1d("learned", dim=7, max_len=5)
    assert torch.equal(pos_embed(3, CPU), pos_embed.weight[:3])
    assert torch.equal(pos_embed(5, CPU), pos_embed.weight)
    pos_embed(3, CPU).sum().backward()
    assert pos_embed.weight.grad.sum(1).tolist() == [7, 7, 7, 0, 0]


def test_sinusoidal_positions_are_not_limited_by_max_len():
    codes = PosEmbed1d("sinusoidal", dim=6, max_len=5)(13, CPU)
    assert torch.equal(codes, sinusoidal(torch.arange(13), 6))


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
def test_only_learned_positions_have_weights(kind):
    assert not list(PosEmbed1d(kind, dim=8, max_len=5).parameters())
    assert not list(PosEmbed2d(kind, dim=8, grid=(3, 5)).parameters())
    assert [tuple(p.shape) for p in PosEmbed2d("learned", dim=8, grid=(3, 5)).parameters()] == [
        (3, 5, 8)
    ]


def test_without_positions_the_embedding_is_a_zero_that_broadcasts():
    for zero in (
        PosEmbed1d("none", dim=7, max_len=5)(3, CPU),
        PosEmbed2d("none", dim=7, grid=(3, 5))(2, 3, CPU),
    ):
        assert zero.ndim == 0 and zero == 0


def test_a_learned_grid_at_its_own_size_is_the_weight_itself():
    pos_embed = PosEmbed2d("learned", dim=7, grid=(3, 5))
    assert torch.equal(pos_embed(3, 5, CPU), pos_embed.weight)


@pytest.mark.parametrize("size", [(5, 3), (2, 5), (7, 11), (1, 1)])
def test_a_learned_grid_is_interpolated_in_each_channel_separately(size):
    pos_embed = PosEmbed2d("learned", dim=7, grid=(3, 5))
    got = pos_embed(*size, CPU)
    assert got.shape == (*size, 7)
    for channel in range(7):
        plane = pos_embed.weight[None, None, :, :, channel]
        expected = F.interpolate(plane, size, mode="bicubic", antialias=True)[0, 0]
        torch.testing.assert_close(got[..., channel], expected, rtol=0, atol=1e-6)


def test_interpolation_keeps_the_direction_of_a_gradient():
    pos_embed = PosEmbed2d("learned", dim=1, grid=(5, 3))
    pos_embed.weight.data = torch.arange(5.0)[:, None, None].expand(5, 3, 1).clone()
    grown = pos_embed(11, 7, CPU)[..., 0]
    assert bool((grown.diff(dim=0) > 0).all())  # down the rows, as in the weight
    torch.testing.assert_close(
        grown, grown[:, :1].expand(11, 7), rtol=0, atol=1e-5
    )  # but not across them
