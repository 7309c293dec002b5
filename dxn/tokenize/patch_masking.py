"""Masking of the patches of pictures, spectrograms, clips and series, for masked pretraining."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from dxn.core.randomness import torch_generator
from dxn.tokenize.base import MASKED, Sample
from dxn.tokenize.masking import Masking
from dxn.tokenize.patches import PatchGrid

# Values (G, C, H, W) of a sample, normalized, and which of them are known. None: all of them.
Contents = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class PatchMasking(Masking):
    """Hides patches, and predicts their values.

    It hides single patches of pictures (arXiv:2111.06377, section 4), and the same patches in all
    frames of a clip (arXiv:2203.12602, section 3.3): a patch that is hidden in a few frames only
    would be easy to predict from the others. It hides runs of sounds and series
    (arXiv:2211.14730, section 3.2), whose neighbors are similar too.

    Args:
        ratio: Fraction of the patches of a sample that is hidden.
        grid: Patches of the adapter.
        num_outputs: Number K of values of a patch.
        contents: Function that returns the values of a sample, such as the pixels of a picture.
            Patches at the same place are hidden in all G groups, such as the frames of a clip.
        span: Length in patches of the runs along the first axis that are hidden together, over the
            whole second axis. Runs are shorter in a sample where ratio allows fewer hidden patches.
            None: single patches are hidden.
        is_standardized: Whether the values of each patch are predicted with mean 0 and standard
            deviation 1.
        stem_pads_end: Whether the stem of the adapter pads an end that the grid drops. The
            resulting columns are not predicted.
    """

    ratio: float
    grid: PatchGrid
    num_outputs: int
    contents: Contents
    span: int | None = None
    is_standardized: bool = False
    stem_pads_end: bool = False

    def __post_init__(self):
        if self.span is not None and self.span < 1:
            raise ValueError(f"span must be at least 1, got {self.span}")

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with hidden, masked (G, h, w), masked_target and masked_valid (m, K).

        hidden is True at hidden values: (H, W), or (H,) with `span`.
        """
        x, known = self.contents(sample)
        height, width = x.shape[2:]
        # Tiles do not overlap and cover a whole patch, even if patches overlap each other.
        tile = tile_size(self.grid)
        stride = self.grid.stride
        if self.span is not None:
            steps = -(-height // stride[0])  # rounded up
            run = max(min(round(self.ratio * steps), self.span), tile[0])
            stride, tile = (stride[0], width), (run, 1)
        generator = torch_generator(rand)
        hidden = hide_tiles((height, width), stride, tile, self.ratio, generator)
        masked = fully_hidden(hidden, self.grid, stem_pads_end=self.stem_pads_end)
        masked = masked.expand(len(x), -1, -1)
        if known is None:
            known = torch.ones_like(x, dtype=torch.bool)
        else:
            # A patch without values is not a token, so that nothing can be predicted from it.
            masked = masked & self.grid.windows(known).movedim(1, 3).flatten(3).any(-1)
        index = masked.nonzero(as_tuple=True)
        target, valid = (
            rearrange(self.grid.windows(each), "g c h w p q -> g h w c p q")[index].flatten(1)
            for each in (x, known)
        )
        return {
            **sample,
            "hidden": hidden if self.span is None else hidden[:, 0],
            MASKED: masked,
            "masked_target": standardize(target, valid) if self.is_standardized else target,
            "masked_valid": valid,
        }


def hide_tiles(
    size: tuple[int, int],
    stride: tuple[int, int],
    tile: tuple[int, int],
    ratio: float,
    generator: torch.Generator,
) -> Tensor:
    """Hide random tiles of a grid of cells.

    The tiles start at a random offset of up to one tile before the grid. Otherwise the boundaries
    of the hidden areas would be the same in each sample.

    Args:
        size: Height H and width W of the grid in cells.
        stride: Distance between consecutive patches along both axes, in cells.
        tile: Height and width of a tile in strides.
        ratio: Fraction of the tiles to hide. The number of tiles is rounded up or down at random,
            so that its expected value is exact.
        generator: Random generator.

    Returns:
        (H, W) bool. True at the hidden cells.
    """
    indices = []  # for both axes: index of the tile that contains each cell
    counts = []  # for both axes: number of tiles
    starts = torch.rand(2, generator=generator).tolist()
    for length, step, run, start in zip(size, stride, tile, starts, strict=True):
        first = int(start * run) * step  # cells of the first tile before the grid
        indices.append(torch.arange(first, first + length) // (step * run))
        counts.append((first + length - 1) // (step * run) + 1)
    draws = torch.rand(counts[0] * counts[1], generator=generator)
    rounding = torch.rand(1, generator=generator).item()
    num_hidden = int(ratio * len(draws) + rounding)
    hidden = torch.zeros(len(draws), dtype=torch.bool)
    hidden[draws.argsort()[:num_hidden]] = True
    rows, columns = indices
    return hidden.view(counts)[rows[:, None], columns]


def fully_hidden(hidden: Tensor, grid: PatchGrid, *, stem_pads_end: bool = False) -> Tensor:
    """Return masked (h, w) bool, True at the patches whose cells are all hidden (H, W).

    Only these patches are predicted: the model cannot copy their content from an overlapping patch
    or from the receptive field of a convolution.
    """
    columns = grid
    if stem_pads_end and not grid.pad_end:
        columns = PatchGrid(grid.size, grid.stride, pad_end=True)
    visible = columns.windows(~hidden[None, None])[0, 0]  # (h, w, *size), False at padding
    masked = ~visible.flatten(2).any(-1)
    # Columns that result from the padding of the stem have no complete content to predict.
    masked[grid.count(hidden.shape[0], 0) :] = False
    masked[:, grid.count(hidden.shape[1], 1) :] = False
    return masked


def standardize(x: Tensor, valid: Tensor) -> Tensor:
    """Normalize each row of x (m, K) to mean 0 and standard deviation 1 over its valid values."""
    count = valid.sum(1, keepdim=True)
    x = x - (x * valid).sum(1, keepdim=True) / count
    # 1e-6 avoids a division by 0 for patches of a single color (official code of the paper).
    return x / ((x**2 * valid).sum(1, keepdim=True) / count + 1e-6).sqrt()


def tile_size(grid: PatchGrid) -> tuple[int, int]:
    """Return the size of a patch along both axes in strides, rounded up."""
    # At this distance, two patches do not overlap.
    return -(-grid.size[0] // grid.stride[0]), -(-grid.size[1] // grid.stride[1])
