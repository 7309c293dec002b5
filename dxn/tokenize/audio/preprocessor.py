"""The preprocessor of the audio adapter, which runs in data workers."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.presets.advice import Advice, Facts
from dxn.presets.audio import advise_audio
from dxn.tokenize.audio.augment import augment_spectrogram, augment_waveform, draw_gains
from dxn.tokenize.audio.file import audio_rate, read_audio
from dxn.tokenize.audio.options import (
    AudioAugment,
    AudioTokens,
    NormalizationKind,
    SpectrogramOptions,
)
from dxn.tokenize.audio.sound_track import NoSoundTrack
from dxn.tokenize.audio.spectrogram import Spectrogram, hop_samples
from dxn.tokenize.examples import random_clips
from dxn.tokenize.grid import collate_grids
from dxn.tokenize.media import (
    SOUND_TRACK_SCORE,
    BadMedia,
    is_audio,
    matching_fraction,
    may_have_sound_track,
)

MAX_RATES = 5  # a summary lists only the most common sample rates, to fit into one line
# Frames per token in `num_tokens`. The default frame_size; the exact value is not needed, because
# `num_tokens` serves only to compare clips with each other.
USUAL_FRAMES = 4


class AudioPreprocessor:
    """Convert a clip to features: a log-mel spectrogram or the waveform itself.

    Args:
        tokens: Content of a token: frames, patches or waveform.
        sample_rate: Sample rate in hertz to which clips are resampled.
        spectrogram: Options of the log-mel spectrogram.
        normalize: Source of the statistics: dataset, clip or none. The preprocessor applies only
            clip; the adapter applies dataset.
        augment: Augmentation of training clips.
    """

    modality = "audio"
    reads_files = True
    media_type = "audio/*"
    has_words = False

    def __init__(
        self,
        *,
        tokens: AudioTokens,
        sample_rate: int,
        spectrogram: SpectrogramOptions,
        normalize: NormalizationKind,
        augment: AudioAugment,
    ):
        if tokens not in get_args(AudioTokens):
            raise ValueError(f"tokens must be frames, patches or waveform, got {tokens!r}")
        if sample_rate < 100:
            raise ValueError(f"sample_rate must be at least 100 hertz, got {sample_rate}")
        frontend = spectrogram.frontend
        if tokens == "waveform" and (frontend != "mel" or spectrogram.num_frames is not None):
            raise ValueError(
                "tokens=waveform has no spectrogram: leave out frontend and num_frames, "
                f"got {frontend} and {spectrogram.num_frames}"
            )
        if frontend != "mel" and augment.equalize:
            raise ValueError(f"augment.equalize needs frontend=mel, got frontend={frontend}")
        if spectrogram.num_frames is not None and augment.tempo:
            raise ValueError(
                "augment.tempo changes the number of frames, which num_frames fixes: leave out "
                f"one of them, got tempo={augment.tempo} and num_frames={spectrogram.num_frames}"
            )
        self.tokens: AudioTokens = tokens
        self.sample_rate = sample_rate
        self.max_seconds = spectrogram.max_seconds
        self.n_mels = spectrogram.n_mels
        self.normalize: NormalizationKind = normalize
        self.augment = augment
        # Also set for waveforms, because `num_tokens` uses it.
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

    def read(self, source: Any) -> Tensor | None:
        """Read a path, bytes or an (array, rate) pair as mono float32 (T,) at sample_rate.

        None: the source is a video without a sound track.

        Raises:
            BadMedia: If the clip cannot be read or is longer than max_seconds.
        """
        try:
            return read_audio(source, sample_rate=self.sample_rate, max_seconds=self.max_seconds)
        except NoSoundTrack:
            return None  # a missing input: a table can have videos with and without sound

    def advise(self, cells: Sequence[Any], facts: Facts) -> list[Advice]:
        """Return the options that preset=auto sets."""
        return advise_audio(cells, facts)

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Return the features of a clip raw (T,), augmented if rand is not None.

        Returns:
            features (frames, F): A log-mel spectrogram, or the waveform (T, 1).
            level (F + 1,): Mean of each bin and standard deviation before the normalization, with
                normalize.kind=clip.
        """
        gains = None
        if rand is not None:
            raw = augment_waveform(raw, self.augment, self.sample_rate, rand)
            gains = draw_gains(self.n_mels, self.augment, rand)
        features = self.features(raw, gains)
        level: dict[str, Tensor] = {}
        if self.normalize == "clip":
            # One standard deviation for all bins keeps their relative levels, which distinguish
            # sounds. The clamp avoids a division by zero for silent clips.
            std = features.std(correction=0).clamp(min=1e-3)
            mean = features.mean(0)
            level["level"] = torch.cat([mean, std[None]])
            features = (features - mean) / std
        # After normalization, because masks contain the mean of the normalized clip.
        if rand is not None and self.spectrogram is not None:
            features = augment_spectrogram(features, self.augment, rand)
        return {"features": features, **level}

    def features(self, raw: Tensor, gains: Tensor | None = None) -> Tensor:
        """Compute the features without augmentation: (T, 1), or a log-mel spectrogram (frames, F).

        Args:
            raw: Waveform (T,).
            gains: Factors (F,) of the mel power. Only frontend=mel applies them.
        """
        if self.spectrogram is None:
            return rearrange(raw, "t -> t 1")
        return self.spectrogram(raw, gains)

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate features (B, T, F), padded with zeros at the end, and lengths (B,).

        With normalize.kind=clip, also level (B, F + 1).
        """
        features = [sample["features"] for sample in samples]
        is_leveled = self.normalize == "clip"
        level = {"level": torch.stack([s["level"] for s in samples])} if is_leveled else {}
        return {
            "features": nn.utils.rnn.pad_sequence(features, batch_first=True),
            "lengths": torch.tensor([len(f) for f in features]),
            **level,
            **collate_grids(samples),
        }

    def num_tokens(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of a clip raw (T,)."""
        return len(raw) / self.hop_length / USUAL_FRAMES

    def examples(self, count: int, rand: random.Random) -> list[Tensor]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        return random_clips(self.sample_rate, count, rand)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        waveform = {"prepare": "audio", "frontend": "waveform", "sample_rate": self.sample_rate}
        steps = waveform if self.spectrogram is None else self.spectrogram.recipe()
        return {**steps, "normalize": self.normalize, "max_seconds": self.max_seconds}

    def accepts(self, values: Sequence[Any]) -> float:
        """Return the fraction of the values that look like clips, see `is_audio`.

        The sound track of videos is read as well. They have a lower score, so that they are videos
        if there is an adapter for their pictures.
        """
        tracks = matching_fraction(values, may_have_sound_track)
        return max(matching_fraction(values, is_audio), SOUND_TRACK_SCORE * tracks)

    def summarize(self, raws: Sequence[Tensor], sources: Sequence[Any]) -> str:
        """Summarize the durations of the clips and the sample rates of their sources."""
        if not raws:
            return ""
        seconds = [len(raw) / self.sample_rate for raw in raws]
        median = statistics.median(seconds)
        parts = [f"{min(seconds):.2f} to {max(seconds):.2f}, median {median:.2f} s"]
        rates: Counter[int] = Counter()
        for source in sources:
            with suppress(BadMedia):  # the data set reports invalid files itself
                if source is not None:
                    rates[audio_rate(source)] += 1
        common = rates.most_common(MAX_RATES)
        if common:
            parts.append(", ".join(f"{count:,} at {rate:,} Hz" for rate, count in common))
        return "; ".join(parts)
