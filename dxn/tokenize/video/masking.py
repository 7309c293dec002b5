"""Masking of clips for masked pretraining."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from dxn.tokenize.base import Masking
from dxn.tokenize.grid import PatchGrid
from dxn.tokenize.masking import (
    fully_hidden,
    hide_tiles,
    make_generator,
    patch_contents,
    standardize,
)
from dxn.tokenize.pixels import normalize_pixels


@dataclass(frozen=True)
class VideoMasking(Masking):
    """Hides the same patches in all frames, and predicts their pixels (arXiv:2203.12602).

    This is the tube masking of section 3.3. A patch that is hidden in a few frames only would be
    easy to predict from the other frames.

    Args:
        ratio: Fraction of the patches of a clip that is hidden.
        grid: Patches of the adapter.
        num_frames: Number of frames of a tubelet.
        mean: (C,). Mean of each channel, for pixels from 0 to 1.
        std: (C,). Standard deviation of each channel, for pixels from 0 to 1.
    """

    ratio: float
    grid: PatchGrid
    num_frames: int
    mean: Tensor
    std: Tensor

    @property
    def num_outputs(self) -> int:
        """Number of values of a tubelet: frames times pixels times channels."""
        return self.num_frames * len(self.mean) * self.grid.size[0] * self.grid.size[1]

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (H, W), masked (t, h, w), masked_target and masked_valid.

        Both masked_target and masked_valid have the shape (m, F C P P) for m masked tubelets of F
        frames of P×P pixels.
        """
        pixels = sample["pixels"]
        size = (pixels.shape[2], pixels.shape[3])
        hidden = hide_tiles(size, self.grid.stride, (1, 1), self.ratio, make_generator(rand))
        masked = fully_hidden(hidden, self.grid)
        x = normalize_pixels(pixels, self.mean, self.std)
        # The last tubelet can have missing frames.
        x = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % self.num_frames))
        tubelets = rearrange(x, "(t f) c h w -> t (f c) h w", f=self.num_frames)
        is_frame = torch.arange(len(x)).view(len(tubelets), -1) < len(pixels)
        targets: list[Tensor] = []
        valids: list[Tensor] = []
        for tubelet, has_frame in zip(tubelets, is_frame, strict=True):
            target, valid = patch_contents(tubelet, masked, self.grid)
            per_frame = target.shape[1] // self.num_frames
            valid = valid & has_frame.repeat_interleave(per_frame)
            targets.append(standardize(target, valid))
            valids.append(valid)
        return {
            **sample,
            "hidden": hidden,
            "masked": repeat(masked, "h w -> t h w", t=len(tubelets)),
            "masked_target": torch.cat(targets),
            "masked_valid": torch.cat(valids),
        }
