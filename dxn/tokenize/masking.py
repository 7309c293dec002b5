"""Masking for masked pretraining: tokens of a text, patches of an image, frames of a clip.

`adapter.masking()` creates a masking after `fit`. A masking is applied to one sample at a time in a
data worker. Its result depends only on the sample and the random generator, not on the batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from dxn.tokenize.base import Masking
from dxn.tokenize.grid import PatchGrid


@dataclass(frozen=True)
class TextMasking(Masking):
    """Masks tokens as in BERT (arXiv:1810.04805, section 3.1).

    Of the tokens to predict, 80% are replaced by the mask token, 10% are replaced by a random
    token, and 10% are unchanged.

    Args:
        ratio: Probability that a token is selected for prediction.
        vocab_size: Number of token ids.
        special_ids: Ids of special tokens, which are never masked.
        mask_id: Id of the mask token.
        num_copies: Number of columns per token. It is more than 1 if the adapter adds columns for
            n-grams. Only the first N columns, the tokens themselves, are predicted.
    """

    ratio: float
    vocab_size: int
    special_ids: Sequence[int]
    mask_id: int
    num_copies: int = 1

    num_outputs = None

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with masked ids, masked (n,) or (num_copies, n), and masked_target.

        masked_target (m,) contains the original ids of the m masked tokens.
        """
        ids = sample["ids"]
        generator = make_generator(rand)
        special = torch.tensor(list(self.special_ids))
        draws = torch.rand(ids.shape, generator=generator)
        masked = ~torch.isin(ids, special) & (draws < self.ratio)
        random_ids = torch.randint(self.vocab_size, ids.shape, generator=generator)
        # Special tokens do not occur inside a text, so they would be too easy to recognize. Tokens
        # for which one was drawn are unchanged.
        random_ids = torch.where(torch.isin(random_ids, special), ids, random_ids)
        # The same draw decides whether a token is masked and how, which saves a second draw.
        new_ids = torch.where(masked & (draws < 0.8 * self.ratio), self.mask_id, ids)
        is_random = masked & (draws >= 0.8 * self.ratio) & (draws < 0.9 * self.ratio)
        columns = masked
        if self.num_copies > 1:
            columns = torch.zeros(self.num_copies, len(masked), dtype=torch.bool)
            columns[0] = masked
        hidden: dict[str, Tensor] = {}
        if "chars" in sample:
            # The n-grams of a word also belong to its other tokens, so all of them would tell which
            # tokens were masked.
            hidden["chars"] = torch.zeros_like(sample["chars"])
        return {
            **sample,
            **hidden,
            "ids": torch.where(is_random, random_ids, new_ids),
            "masked": columns,
            "masked_target": ids[masked],
        }


@dataclass(frozen=True)
class ImageMasking(Masking):
    """Hides patches at random and predicts their normalized pixels (arXiv:2111.06377, section 4).

    Args:
        ratio: Fraction of the patches of an image that is hidden.
        grid: Patches of the adapter.
        mean: (C,). Mean of each channel, for pixels from 0 to 1.
        std: (C,). Standard deviation of each channel, for pixels from 0 to 1.
    """

    ratio: float
    grid: PatchGrid
    mean: Tensor
    std: Tensor

    @property
    def num_outputs(self) -> int:
        """Number of values of a patch: pixels times channels."""
        return len(self.mean) * self.grid.size[0] * self.grid.size[1]

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (H, W), masked (h, w), masked_target and masked_valid.

        Both masked_target and masked_valid have the shape (m, C P P) for m masked patches of P×P
        pixels.
        """
        pixels = sample["pixels"]
        height, width = pixels.shape[1:]
        # Tiles do not overlap and cover a whole patch, even if patches overlap each other.
        tile = _tile_size(self.grid)
        hidden = hide_tiles(
            (height, width), self.grid.stride, tile, self.ratio, make_generator(rand)
        )
        masked = fully_hidden(hidden, self.grid)
        target, valid = patch_contents(pixels, masked, self.grid)
        # A flattened patch has the shape (C P P): all pixels of the first channel come first.
        num_pixels = target.shape[1] // len(self.mean)
        mean = self.mean.repeat_interleave(num_pixels)
        std = self.std.repeat_interleave(num_pixels)
        target = (target.to(mean.dtype) / 255 - mean) / std
        return {
            **sample,
            "hidden": hidden,
            "masked": masked,
            "masked_target": standardize(target, valid),
            "masked_valid": valid,
        }


@dataclass(frozen=True)
class AudioMasking(Masking):
    """Hides runs of consecutive columns and predicts their features.

    A single hidden frame would be easy to predict, because neighboring frames are similar. With
    patches of a spectrogram, all patches at the same time are hidden together.

    Args:
        ratio: Fraction of the columns of a clip that is hidden.
        span: Length of a run in columns. Runs are shorter in a clip where ratio allows fewer
            hidden columns.
        grid: Patches of the adapter along time and mel bins.
        mean: (F,). Mean of each bin.
        std: (F,). Standard deviation of each bin.
        stem_pads_end: Whether the stem of the adapter pads the end of a clip that the grid drops.
            The resulting columns are not predicted.
    """

    ratio: float
    span: int
    grid: PatchGrid
    mean: Tensor
    std: Tensor
    stem_pads_end: bool = False

    @property
    def num_outputs(self) -> int:
        """Number of features of a column."""
        return self.grid.size[0] * self.grid.size[1]

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (T,), masked (t, f), masked_target and masked_valid.

        Both masked_target and masked_valid have the shape (m, frames bins) for m masked columns.
        """
        features = sample["features"]
        length, num_bins = features.shape
        stride = self.grid.stride[0]
        steps = -(-length // stride)  # rounded up
        shortest, _ = _tile_size(self.grid)
        # A run must cover a whole patch. Otherwise no patch would be hidden completely.
        run = max(min(round(self.ratio * steps), self.span), shortest)
        hidden = hide_tiles(
            (length, num_bins), (stride, num_bins), (run, 1), self.ratio, make_generator(rand)
        )
        masked = fully_hidden(hidden, self.grid, stem_pads_end=self.stem_pads_end)
        x = ((features - self.mean) / self.std)[None]
        target, valid = patch_contents(x, masked, self.grid)
        return {
            **sample,
            "hidden": hidden[:, 0],  # identical in all bins
            "masked": masked,
            "masked_target": target,
            "masked_valid": valid,
        }


def make_generator(rand: random.Random) -> torch.Generator:
    """Create a torch generator that is seeded from rand.

    Drawing a tensor from it is much faster than drawing many numbers from rand.
    """
    return torch.Generator().manual_seed(rand.getrandbits(63))


def check_ratio(ratio: float) -> float:
    """Return the mask ratio, or raise a ValueError if it is outside [0, 1)."""
    if not 0 <= ratio < 1:
        raise ValueError(f"mask_ratio must be at least 0 and below 1, got {ratio}")
    return ratio


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


def patch_contents(x: Tensor, masked: Tensor, grid: PatchGrid) -> tuple[Tensor, Tensor]:
    """Return the values of the masked patches of x (C, H, W), and which values are valid.

    Returns:
        Two tensors (m, C P Q): the values, and bool, False at the padding of patches that exceed x.
    """
    rows, columns = masked.nonzero(as_tuple=True)

    def contents(x: Tensor) -> Tensor:
        windows = rearrange(grid.windows(x[None]), "1 c h w p q -> h w c p q")
        return windows[rows, columns].flatten(1)

    values = contents(x)
    has_padding = False
    for axis, length in enumerate(x.shape[1:]):
        end = (grid.count(length, axis) - 1) * grid.stride[axis] + grid.size[axis]
        has_padding = has_padding or end > length
    if not has_padding:  # the usual case, which needs no second pass over the patches
        return values, torch.ones_like(values, dtype=torch.bool)
    return values, contents(torch.ones_like(x, dtype=torch.bool))


def standardize(x: Tensor, valid: Tensor) -> Tensor:
    """Normalize each row of x (m, K) to mean 0 and standard deviation 1 over its valid values."""
    count = valid.sum(1, keepdim=True)
    x = x - (x * valid).sum(1, keepdim=True) / count
    # 1e-6 avoids a division by 0 for patches of a single color (official code of the paper).
    return x / ((x**2 * valid).sum(1, keepdim=True) / count + 1e-6).sqrt()


def _tile_size(grid: PatchGrid) -> tuple[int, int]:
    """Return the size of a patch along both axes in strides, rounded up."""
    # At this distance, two patches do not overlap.
    return -(-grid.size[0] // grid.stride[0]), -(-grid.size[1] // grid.stride[1])
