"""Masking of tokens, cells and patches for masked pretraining.

`adapter.masking()` creates a masking after `fit`. A masking is applied to one sample at a time in a
data worker. Its result depends only on the sample and the random generator, not on the batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dxn.core.randomness import torch_generator
from dxn.tokenize.base import MASKED, Sample
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import PatchGrid

# Default number of consecutive patches of a series or sound that are hidden together.
SPAN = 5


class Masking:
    """Hides a part of a sample for masked pretraining. It is picklable and runs in data workers.

    Attributes:
        num_outputs: Number K of values to predict per column. None: token ids are predicted by
            comparing the output with the adapter's embedding.
    """

    num_outputs: int | None

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return a copy of the sample in which the content of the masked columns is replaced.

        The result depends only on the sample and rand, so it does not depend on the batch. It has
        the additional keys `masked` bool, (n,) or a grid, True at the columns to predict, and
        `masked_target`: token ids (m,), or values (m, K) together with `masked_valid` (m, K) bool,
        False at padding.
        """
        raise NotImplementedError


def check_ratio(ratio: float) -> float:
    """Return the mask ratio, or raise a ValueError if it is outside [0, 1)."""
    if not 0 <= ratio < 1:
        raise ValueError(f"mask_ratio must be at least 0 and below 1, got {ratio}")
    return ratio


@dataclass(frozen=True)
class TokenMasking(Masking):
    """Masks tokens of a vocabulary, as in BERT (arXiv:1810.04805, section 3.1).

    Of the tokens to predict, some are replaced by the mask token, some by a random token, and the
    others are unchanged.

    Args:
        ratio: Probability that a token is selected for prediction.
        mask_id: Id of the mask token.
        vocab_size: Number of token ids.
        special_ids: Ids of special tokens, which are never masked.
        replaced: Fraction of the tokens to predict that are replaced by the mask token.
        randomized: Fraction of the tokens to predict that are replaced by a random token.
    """

    ratio: float
    mask_id: int
    vocab_size: int
    special_ids: Sequence[int] = ()
    replaced: float = 0.8
    randomized: float = 0.1

    num_outputs = None

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with masked ids, masked (n,), and masked_target.

        masked_target (m,) contains the original ids of the m masked tokens.
        """
        ids = sample["ids"]
        generator = torch_generator(rand)
        special = torch.tensor(list(self.special_ids))
        draws = torch.rand(ids.shape, generator=generator)
        masked = ~torch.isin(ids, special) & (draws < self.ratio)
        random_ids = torch.randint(self.vocab_size, ids.shape, generator=generator)
        # Special tokens do not occur inside a text, so they would be too easy to recognize. Tokens
        # for which one was drawn are unchanged.
        random_ids = torch.where(torch.isin(random_ids, special), ids, random_ids)
        # The same draw decides whether a token is masked and how, which saves a second draw.
        limits = self.replaced * self.ratio, (self.replaced + self.randomized) * self.ratio
        new_ids = torch.where(masked & (draws < limits[0]), self.mask_id, ids)
        is_random = masked & (draws >= limits[0]) & (draws < limits[1])
        return {
            **sample,
            "ids": torch.where(is_random, random_ids, new_ids),
            MASKED: masked,
            "masked_target": ids[masked],
        }


@dataclass(frozen=True)
class CellMasking(Masking):
    """Hides the value of a cell, and predicts it.

    Args:
        ratio: Probability that a cell is hidden.
        num_outputs: Number of values to predict.
    """

    ratio: float
    num_outputs: int

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with hidden (1,), masked (1,), masked_target and masked_valid (m, K).

        m is 1 if the cell is hidden, otherwise 0.
        """
        value = sample["value"]  # (1, K)
        masked = torch.tensor([rand.random() < self.ratio])
        valid = sample.get("valid", torch.ones_like(value, dtype=torch.bool))
        return {
            **sample,
            "value": value.masked_fill(masked[:, None], 0.0),
            MASKED: masked,
            "masked_target": value[masked],
            "masked_valid": valid[masked],
        }


@dataclass(frozen=True)
class PatchMasking(Masking):
    """Hides patches, and predicts their values.

    It hides single patches of pictures (arXiv:2111.06377, section 4), and the same patches in all
    frames of a clip (arXiv:2203.12602, section 3.3): a patch that is hidden in a few frames only
    would be easy to predict from the others. It hides runs of sounds and series
    (arXiv:2211.14730, section 3.2), whose neighbors are similar too.

    Args:
        ratio: Fraction of the patches of a sample that is hidden.
        contents: Values of the patches, such as the pixels of a picture. Patches at the same place
            are hidden in all G groups, such as the frames of a clip.
        span: Length in patches of the runs along the first axis that are hidden together, over the
            whole second axis. Runs are shorter in a sample where ratio allows fewer hidden patches.
            None: single patches are hidden.
        is_standardized: Whether the values of each patch are predicted with mean 0 and standard
            deviation 1.
        stem_pads_end: Whether the stem of the adapter pads an end that the grid drops. The
            resulting columns are not predicted.
    """

    ratio: float
    contents: PatchContents
    span: int | None = None
    is_standardized: bool = False
    stem_pads_end: bool = False

    @property
    def num_outputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number K of values of a patch."""
        return self.contents.num_outputs

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with hidden, masked (G, h, w), masked_target and masked_valid (m, K).

        hidden is True at hidden values: (H, W), or (H,) with `span`.
        """
        grid = self.contents.grid
        x, is_present = self.contents.read(sample)
        height, width = x.shape[2:]
        # Tiles do not overlap and cover a whole patch, even if patches overlap each other.
        tile = tile_size(grid)
        stride = grid.stride
        if self.span is not None:
            steps = -(-height // stride[0])  # rounded up
            run = max(min(round(self.ratio * steps), self.span), tile[0])
            stride, tile = (stride[0], width), (run, 1)
        generator = torch_generator(rand)
        hidden = hide_tiles((height, width), stride, tile, self.ratio, generator)
        masked = fully_hidden(hidden, grid, stem_pads_end=self.stem_pads_end)
        masked = masked.expand(len(x), -1, -1)
        values, valid = self.contents.patches(sample)
        if is_present is not None:
            # A patch without values is not a token, so that nothing can be predicted from it.
            masked = masked & valid.any(1).view(masked.shape)
        # Columns that result from the padding of the stem are never masked, and have no values.
        inner = masked[:, : grid.count(height, 0), : grid.count(width, 1)].flatten()
        target, valid = values[inner], valid[inner]
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
    visible = columns.unfold(~hidden[None, None])[0, 0]  # (h, w, *size), False at padding
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
