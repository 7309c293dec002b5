"""Augmentation of training clips: waveforms and spectrograms."""

from __future__ import annotations

import math
import random
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval
from torch import Tensor

from dxn.core.randomness import torch_seeded
from dxn.core.schema import options


@options
class AudioAugment:
    """Random augmentation of training clips. It is drawn again in each epoch.

    Args:
        crop: Train with a random part of this many seconds of longer clips. Validation, test and
            prediction use the whole clip. 0: off.
        time_shift: Maximum duration in seconds of the silence that is inserted before a clip.
        noise: Maximum amplitude of added white noise, relative to the root mean square of the clip.
        gain: Maximum change of the volume in decibels, up or down.
        speed: Maximum relative change of the speed, which also changes the pitch.
        freq_mask: Maximum number of mel bins in the frequency mask (SpecAugment, arXiv:1904.08779).
        time_mask: Maximum fraction of the frames in the time mask (SpecAugment).
        warp: Maximum relative stretching of the mel axis, which simulates another vocal tract
            length.
        equalize: Maximum change in decibels of a random gain that varies smoothly along the mel
            axis, which simulates another microphone (arXiv:2110.03282). It requires frontend=mel.
    """

    crop: Annotated[float, Ge(0)] = 0.0
    time_shift: Annotated[float, Ge(0)] = 0.0
    noise: Annotated[float, Ge(0)] = 0.0
    gain: Annotated[float, Ge(0)] = 0.0
    speed: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    freq_mask: Annotated[int, Ge(0)] = 0
    time_mask: Annotated[float, Ge(0)] = 0.0
    warp: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    equalize: Annotated[float, Ge(0)] = 0.0

    @property
    def moves_time(self) -> bool:
        """Whether a time in a training clip can be another one than in the original clip."""
        return any((self.crop, self.time_shift, self.speed))


# `equalize` draws gains at this number of points of the mel axis and interpolates between them.
# With few points the gain varies smoothly, like the frequency response of a microphone.
NUM_POINTS = 5


def augment_waveform(
    x: Tensor, options: AudioAugment, sample_rate: int, rand: random.Random
) -> tuple[Tensor, float, float]:
    """Apply crop, speed, gain, time shift and noise to a waveform (T,).

    Returns:
        The waveform, whose length can change; the sample of the original at which it starts,
        negative after inserted silence; and how many samples of the original one sample covers.
    """
    first, rate = 0.0, 1.0
    if options.crop:
        length = max(round(options.crop * sample_rate), 1)
        start = rand.randint(0, max(len(x) - length, 0))
        x = x[start : start + length]
        first = start
    if options.speed:
        factor = 1 + rand.uniform(-options.speed, options.speed)
        length = max(round(len(x) / factor), 1)  # at least one sample remains
        rate = len(x) / length
        x = F.interpolate(x[None, None], length, mode="linear")[0, 0]
    if options.gain:
        # 20 decibels multiply the amplitude by 10, and 10 decibels multiply the power by 10.
        x = x * 10 ** (rand.uniform(-options.gain, options.gain) / 20)
    if options.time_shift:
        silence = round(rand.uniform(0, options.time_shift) * sample_rate)
        x = F.pad(x, (silence, 0))
        first -= silence * rate
    if options.noise:
        # Relative to the root mean square of the clip, so that quiet clips are not drowned out.
        level = rand.uniform(0, options.noise) * x.square().mean().sqrt()
        with torch_seeded(rand):
            x = x + level * torch.randn(len(x))
    return x, first, rate


def draw_gains(n_mels: int, options: AudioAugment, rand: random.Random) -> Tensor | None:
    """Draw the factors (F,) of the mel power for `equalize`. None: `equalize` is off."""
    if not options.equalize:
        return None
    limit = options.equalize
    points = torch.tensor([rand.uniform(-limit, limit) for _ in range(NUM_POINTS)])
    decibels = F.interpolate(points[None, None], n_mels, mode="linear", align_corners=True)[0, 0]
    return 10 ** (decibels / 10)  # decibels of the power, not of the amplitude


def augment_spectrogram(mel: Tensor, options: AudioAugment, rand: random.Random) -> Tensor:
    """Apply warp and SpecAugment masks to a log-mel spectrogram (T, F).

    Masked cells get the mean of the clip.
    """
    import torchaudio  # it takes time to import

    if options.warp:
        mel = _warp(mel, 1 + rand.uniform(-options.warp, options.warp))
    mean = float(mel.mean())
    mask = torchaudio.functional.mask_along_axis
    # mask_along_axis draws from the global generator of torch.
    with torch_seeded(rand):
        if options.freq_mask:
            mel = mask(mel[None], options.freq_mask, mean, 2)[0]
        if options.time_mask:
            width = math.ceil(options.time_mask * len(mel))
            mel = mask(mel[None], width, mean, 1)[0]
    return mel


def _warp(mel: Tensor, factor: float) -> Tensor:
    """Stretch the mel axis of mel (T, F): bin f gets the interpolated value of bin f * factor.

    The highest bin is repeated where f * factor exceeds it.
    """
    num_bins = mel.shape[1]
    source = (torch.arange(num_bins) * factor).clamp(max=num_bins - 1)
    low = source.floor().long()
    high = (low + 1).clamp(max=num_bins - 1)
    weight = source - low
    return mel[:, low] * (1 - weight) + mel[:, high] * weight
