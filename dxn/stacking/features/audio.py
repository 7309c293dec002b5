"""Statistics of a spectrogram and of its cepstral coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.stacking.features.base import Features, time_statistics

NUM_MFCC = 20  # cepstral coefficients, as many as librosa computes
NUM_PARTS = 4  # parts of a clip that are described separately


def audio_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features | None:
    """Return statistics of the spectrogram and of its MFCC. None: there is no spectrogram.

    They are those of the levels before `normalize.kind=clip`: how loud a sound is tells what it is,
    and so does a short click, which only the maximum over time shows.
    """
    if adapter.tokenizer.spectrogram is None:
        return None
    from torchaudio.functional import create_dct  # it takes time to import

    x, lengths = batch["features"].float(), batch["lengths"]
    if "level" in batch:
        mean, std = batch["level"].float().split([x.shape[2], 1], 1)
        x = x * std[..., None] + mean[:, None]
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    count = x.shape[2]
    mfcc = x @ create_dct(min(NUM_MFCC, count), count, "ortho").to(x.device)
    parts = [time_statistics(mfcc, mask), time_statistics(x, mask), extremes(x, lengths)]
    dense = torch.cat([*parts, means_of_parts(mfcc, lengths, NUM_PARTS)], 1)
    return Features("MFCC statistics", dense)


def extremes(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the maximum and the minimum over time, (B, 2 F).

    Args:
        x: (B, T, F).
        lengths: (B,). Number of steps of each sample.
    """
    is_padding = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]
    largest = x.masked_fill(is_padding, -torch.inf).amax(1)
    smallest = x.masked_fill(is_padding, torch.inf).amin(1)
    return torch.cat([largest, smallest], 1)


def means_of_parts(x: Tensor, lengths: Tensor, num_parts: int) -> Tensor:
    """Return the mean of each of equally long parts of a sequence, (B, num_parts F).

    Args:
        x: (B, T, F).
        lengths: (B,). Number of steps of each sample.
        num_parts: Number of parts.
    """
    steps = torch.arange(x.shape[1], device=x.device)
    means: list[Tensor] = []
    for part in range(num_parts):
        start = lengths * part // num_parts
        # At least one step, because a sequence can be shorter than the number of parts.
        stop = torch.maximum(lengths * (part + 1) // num_parts, start + 1)
        inside = (steps >= start[:, None]) & (steps < stop[:, None])
        weights = inside.to(x.dtype) / (stop - start)[:, None]
        means.append((x * weights[..., None]).sum(1))
    return torch.cat(means, 1)
