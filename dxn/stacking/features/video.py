"""Statistics over time of the features of each frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor

from dxn.stacking.features.base import Features, time_statistics
from dxn.stacking.features.image import picture_features


def video_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the statistics over time of a small picture and of its histograms."""
    pixels, lengths = batch["pixels"], batch["lengths"]
    frames = rearrange(pixels, "b t c h w -> (b t) c h w")
    # Not repeat_interleave, which torch.onnx converts wrongly for a number that varies.
    sizes = repeat(batch["sizes"], "b s -> (b t) s", t=pixels.shape[1])
    x = rearrange(picture_features(frames, sizes), "(b t) f -> b t f", b=pixels.shape[0])
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return Features("small pictures", time_statistics(x, mask))
