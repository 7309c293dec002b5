"""A small picture, and histograms of its gradients and colors; statistics of them for a video."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from dxn.stacking.features.base import Features, time_statistics

SIDE = 32  # pixels of the reduced picture
GRID = 8  # cells along each side, for colors and for histograms
NUM_LEVELS = 8  # of each channel in the histogram of colors
NUM_BINS = 9  # orientations of a gradient, as in HOG (Dalal and Triggs, CVPR 2005)
EPS = 1e-2  # about the contrast of noise; it keeps the noise of plain areas small
MIN_SHARE = 1e-3  # of the area of a picture; smaller areas of a color matter little


def image_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return a small picture and histograms of each image of a batch."""
    return Features("small pictures", picture_features(batch["pixels"], batch["sizes"]))


def video_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the statistics over time of a small picture and of its histograms."""
    pixels, lengths = batch["pixels"], batch["lengths"]
    frames = rearrange(pixels, "b t c h w -> (b t) c h w")
    sizes = repeat(batch["sizes"], "b s -> (b t) s", t=pixels.shape[1])
    x = rearrange(picture_features(frames, sizes), "(b t) f -> b t f", b=pixels.shape[0])
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return Features("small pictures", time_statistics(x, mask))


def picture_features(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Return the colors and the gradients of a grid of cells, and a histogram of colors, (B, F).

    Args:
        pixels: uint8 (B, C, H, W), padded at the bottom and on the right.
        sizes: (B, 2). Height and width of each picture.
    """
    small = _reduced(pixels, sizes)
    cell = SIDE // GRID
    colors = reduce(small, "b c (h p) (w q) -> b (c h w)", "mean", p=cell, q=cell)
    return torch.cat([colors, _histograms(small.mean(1), cell), _color_histogram(small)], 1)


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


def _color_histogram(small: Tensor) -> Tensor:
    """Return the area of each color, (B, F), wherever it is (Swain and Ballard, IJCV 1991).

    Args:
        small: (B, C, SIDE, SIDE), from 0 to 1.

    Returns:
        A number for each combination of NUM_LEVELS levels of the C channels. It is the square root
        of the area, so that small areas count too.
    """
    levels = torch.arange(NUM_LEVELS, device=small.device)[:, None]
    x = rearrange(small, "b c h w -> b c 1 (h w)") * NUM_LEVELS - 0.5
    x = x.clamp(0, NUM_LEVELS - 1)
    # The two nearest levels share a pixel.
    shares = (1 - (x - levels).abs()).clamp(min=0)
    *others, last = shares.unbind(1)
    joint = torch.ones_like(last[:, :1])
    for share in others:
        joint = rearrange(joint[:, :, None] * share[:, None], "b j k p -> b (j k) p")
    areas = (joint @ last.mT).flatten(1) / SIDE**2
    return (areas + MIN_SHARE).sqrt()
