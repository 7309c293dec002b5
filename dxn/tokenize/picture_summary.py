"""A small picture and histograms of gradients, from which a baseline learns."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor

SIDE = 32  # pixels of the reduced picture
GRID = 8  # cells along each side, for colors and for histograms
NUM_BINS = 9  # orientations of a gradient, as in HOG (Dalal and Triggs, CVPR 2005)
EPS = 1e-2  # about the contrast of noise; it keeps the noise of plain areas small


def picture_features(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Return the colors and the histograms of gradients of a grid of cells, (B, F).

    Args:
        pixels: uint8 (B, C, H, W), padded at the bottom and on the right.
        sizes: (B, 2). Height and width of each picture.
    """
    small = _reduced(pixels, sizes)
    cell = SIDE // GRID
    colors = reduce(small, "b c (h p) (w q) -> b (c h w)", "mean", p=cell, q=cell)
    return torch.cat([colors, _histograms(small.mean(1), cell)], 1)


def _reduced(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Return pictures (B, C, SIDE, SIDE) from 0 to 1."""
    result = torch.zeros(len(pixels), pixels.shape[1], SIDE, SIDE, device=pixels.device)
    # Usually all pictures have the same size.
    for height, width in sizes.unique(dim=0).tolist():
        rows = (sizes == sizes.new_tensor([height, width])).all(1).nonzero()[:, 0]
        part = pixels[rows, :, :height, :width].float() / 255
        small = F.interpolate(
            part, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False
        )
        result.index_copy_(0, rows, small)
    return result


def _histograms(gray: Tensor, cell: int) -> Tensor:
    """Return normalized histograms of the orientations of gradients, (B, F)."""
    padded = F.pad(gray[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    dx = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    dy = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = (dx.square() + dy.square()).sqrt()
    # The two nearest bins share a gradient. Opposite directions have the same orientation.
    position = torch.atan2(dy, dx).remainder(math.pi) / math.pi * NUM_BINS
    bins = torch.arange(NUM_BINS, device=gray.device)[:, None, None]
    distance = (position[:, None] - bins).abs()
    distance = torch.minimum(distance, NUM_BINS - distance)
    votes = strength[:, None] * (1 - distance).clamp(min=0)
    histograms = reduce(votes, "b k (h p) (w q) -> b k h w", "mean", p=cell, q=cell)
    # Relative to the neighboring cells, because the contrast depends on the light.
    energy = histograms.square().sum(1, keepdim=True)
    around = F.avg_pool2d(energy, 3, stride=1, padding=1, count_include_pad=False)
    return rearrange(histograms / (around.sqrt() + EPS), "b k h w -> b (k h w)")
