"""The tokenizer of the audio adapter: clips become spectrograms or waveforms."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from dxn.core.schema import options
from dxn.tokenize.audio.augment import (
    AudioAugment,
    augment_spectrogram,
    augment_waveform,
    draw_gains,
)
from dxn.tokenize.audio.reader import LOUD, SILENCE, AudioReader, audio_seconds
from dxn.tokenize.audio.spectrogram import Spectrogram, SpectrogramOptions, hop_samples
from dxn.tokenize.audio.waveform_stem import WaveformOptions
from dxn.tokenize.base import TIME_MAP, Placement, Sample, Tokenizer
from dxn.tokenize.media import check_seconds
from dxn.tokenize.patches import as_pair

AudioTokens = Literal["frames", "patches", "waveform"]
NormalizationKind = Literal["dataset", "clip", "none"]


@options
class PatchOptions:
    """Options of the patches of a spectrogram.

    Args:
        size: Size of a patch: [mel bins, frames], or one number for a square.
        stride: Distance between consecutive patches: [mel bins, frames], or one number for both.
            Default: size, so that patches do not overlap.
        pad_end: Pad the end of a clip to a whole patch or token. False: drop the incomplete one.
        wav2vec: Options of stem=wav2vec, whose tokens are overlapping patches of the waveform.
    """

    size: int | Sequence[int] = 16
    stride: int | Sequence[int] | None = None
    pad_end: bool = True
    wav2vec: WaveformOptions = WaveformOptions()

    def __post_init__(self) -> None:
        # object.__setattr__, because the dataclass is frozen.
        object.__setattr__(self, "size", bins_and_frames(self.size, "patch size"))
        if self.stride is not None:
            object.__setattr__(self, "stride", bins_and_frames(self.stride, "patch stride"))


def bins_and_frames(size: int | Sequence[int], name: str) -> tuple[int, int]:
    """Convert one number, or a pair (mel bins, frames), to a pair."""
    return as_pair(size, name=name, axes="mel bins, frames")


@options
class AudioNormalization:
    """Normalization of the features to mean 0 and standard deviation 1.

    Args:
        kind: Source of the statistics: dataset (each bin over the training split), clip (each clip
            by itself) or none (no normalization).
        mean: Mean of all bins, for kind=dataset. Default: computed from the training split.
        std: Standard deviation of all bins, for kind=dataset. Default: computed from the training
            split.
    """

    kind: NormalizationKind = "dataset"
    mean: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError(
                f"normalize needs both mean and std, or neither, got {self.mean} and {self.std}"
            )
        if self.mean is not None and self.kind != "dataset":
            raise ValueError(
                f"normalize.mean and normalize.std need kind=dataset, got kind={self.kind}"
            )


# Frames per token in `length`. The default frame_size; the exact value is not needed, because
# `length` serves only to compare clips with each other.
USUAL_FRAMES = 4


class AudioTokenizer(Tokenizer):
    """Convert a clip to features: a log-mel spectrogram or the waveform itself.

    Args:
        tokens: Content of a token: frames, patches or waveform.
        sample_rate: Sample rate in hertz to which clips are resampled.
        spectrogram: Options of the log-mel spectrogram.
        normalize: Source of the statistics: dataset, clip or none. The tokenizer applies only clip;
            the adapter applies dataset.
        augment: Augmentation of training clips.
    """

    reader: AudioReader
    cut_option = "spectrogram.num_frames"

    def __init__(
        self,
        *,
        tokens: AudioTokens,
        sample_rate: int,
        spectrogram: SpectrogramOptions,
        normalize: NormalizationKind,
        augment: AudioAugment,
    ):
        frontend = spectrogram.frontend
        if tokens == "waveform" and (frontend != "mel" or spectrogram.num_frames is not None):
            raise ValueError(
                "tokens=waveform has no spectrogram: leave out frontend and num_frames, "
                f"got {frontend} and {spectrogram.num_frames}"
            )
        if frontend != "mel" and augment.equalize:
            raise ValueError(f"augment.equalize needs frontend=mel, got frontend={frontend}")
        self.reader = AudioReader(sample_rate=sample_rate, max_seconds=spectrogram.max_seconds)
        can_cut = spectrogram.num_frames is not None and not spectrogram.windows
        self.cut_unit = "frames" if can_cut else ""
        self.tokens: AudioTokens = tokens
        self.sample_rate = sample_rate
        self.n_mels = spectrogram.n_mels
        self.normalize: NormalizationKind = normalize
        self.augment = augment
        self.is_random = augment != AudioAugment()
        # Also set for waveforms, because `length` uses it.
        self.hop_length = hop_samples(spectrogram, sample_rate)
        self.spectrogram = None
        if tokens != "waveform":
            self.spectrogram = Spectrogram(spectrogram, sample_rate)

    @property
    def num_features(self) -> int:
        """Width F of the features: the number of mel bins, or 1 for a waveform."""
        return 1 if self.spectrogram is None else self.n_mels

    @property
    def seconds(self) -> float:
        """Duration of one row of the features in seconds."""
        samples = 1 if self.spectrogram is None else self.hop_length
        return samples / self.sample_rate

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> Sample:
        """Return the features of a clip raw (T,), augmented if rand is not None.

        Returns:
            features (frames, F): A log-mel spectrogram, or the waveform (T, 1).
            lengths (): Number of rows of the features.
            level (F + 1,): Mean of each bin and standard deviation before the normalization, with
                normalize.kind=clip.
            time_map (2,): Start of the features in the clip in seconds, and seconds of the clip per
                row, after augmentation that moves the time.
        """
        gains = None
        first, rate = 0.0, 1.0
        if rand is not None:
            raw, first, rate = augment_waveform(raw, self.augment, self.sample_rate, rand)
            gains = draw_gains(self.n_mels, self.augment, rand)
        features = self.features(raw, gains)
        level: dict[str, Tensor] = {}
        if self.normalize == "clip":
            # One standard deviation for all bins keeps their relative levels, which distinguish
            # sounds. The constant, that of wav2vec 2.0, avoids a division by zero for silent clips.
            is_real = self.is_real(len(raw), len(features))
            real = features[is_real]
            std = (real.var(correction=0) + 1e-7).sqrt()
            mean = real.mean(0)
            level["level"] = torch.cat([mean, std[None]])
            # Padding gets the mean, so that it has no sound of its own.
            features = (features - mean) / std * is_real[:, None]
        # After normalization, because masks contain the mean of the normalized clip.
        if rand is not None and self.spectrogram is not None:
            features = augment_spectrogram(features, self.augment, rand)
        sample = {"features": features, "lengths": torch.tensor(len(features)), **level}
        if rand is not None and self.augment.moves_time:
            sample[TIME_MAP] = torch.tensor([first / self.sample_rate, rate * self.seconds])
        return sample

    def is_real(self, length: int, num_rows: int) -> Tensor:
        """Return which rows of the features of so many samples are not padding."""
        if self.spectrogram is None:
            return torch.ones(num_rows, dtype=torch.bool)
        return self.spectrogram.is_real(length)

    def time_map(self, sample: Mapping[str, Tensor]) -> Tensor:
        """Return the start of the features in seconds and the seconds per row (..., 2).

        Args:
            sample: A sample, or a batch.
        """
        if TIME_MAP in sample:
            return sample[TIME_MAP]
        rate = torch.full_like(sample["lengths"], self.seconds, dtype=torch.float32)
        return torch.stack([torch.zeros_like(rate), rate], -1)

    def placement(self, sample: Mapping[str, Tensor]) -> Placement:
        """Return where the features lie. Places are seconds."""
        first, rate = self.time_map(sample).split(1, -1)
        return Placement(first, rate * sample["lengths"][..., None], torch.ones_like(first))

    def features(self, raw: Tensor, gains: Tensor | None = None) -> Tensor:
        """Compute the features without augmentation: (T, 1), or a log-mel spectrogram (frames, F).

        Args:
            raw: Waveform (T,).
            gains: Factors (F,) of the mel power. Only frontend=mel applies them.
        """
        if self.spectrogram is None:
            return rearrange(raw, "t -> t 1")
        return self.spectrogram(raw, gains)

    def real_features(self, raw: Tensor) -> Tensor:
        """Compute the features of a clip raw (T,) without padding."""
        features = self.features(raw)
        return features[self.is_real(len(raw), len(features))]

    def waveform(self, features: Tensor) -> Tensor:
        """Return a clip (T,) with the features (1, 1, frames, F), before normalization."""
        if self.spectrogram is None:
            return features.flatten()
        return self.spectrogram.waveform(features[0, 0])

    def count(self, raw: Tensor) -> int:
        """Return the number of columns of a clip raw (T,), without computing its features."""
        assert self.count_columns is not None
        rows = len(raw) if self.spectrogram is None else self.spectrogram.num_frames(len(raw))
        return int(self.count_columns({"lengths": torch.tensor([rows])}))

    def cut(self, raw: Tensor) -> tuple[int, int] | None:
        """Return the numbers of frames that are read and of all. None: all are read."""
        if not self.cut_unit:
            return None
        assert self.spectrogram is not None
        num_read = self.spectrogram.num_frames(len(raw))
        total = self.spectrogram.num_real_frames(len(raw))
        # The last frame of a clip is centered at its end.
        return (num_read, total) if total > num_read + 1 else None

    def remark(self, raws: Sequence[Tensor | None]) -> str:
        """Return that a clip is silent, or has samples far beyond the range -1 to 1.

        Only a single clip is examined: many of them would be decoded twice.
        """
        if len(raws) != 1 or raws[0] is None:
            return ""
        peak = float(raws[0].abs().max())
        if peak < SILENCE:
            return "silence, or channels in opposite phase, whose mean is silence"
        return f"samples up to {peak:,.0f}, far beyond -1 to 1" if peak > LOUD else ""

    def length(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of a clip raw (T,)."""
        return len(raw) / self.hop_length / USUAL_FRAMES

    def header(self, cell: Any) -> float | None:
        """Check the format and the duration of a clip, and return its `length`."""
        seconds = audio_seconds(cell)
        if not seconds:  # unknown, or an empty clip, which the reader refuses
            return super().header(cell)
        check_seconds(seconds, self.reader.max_seconds)
        return math.ceil(seconds * self.sample_rate) / self.hop_length / USUAL_FRAMES
