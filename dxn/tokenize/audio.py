"""Audio to Tokens: log-mel frames, spectrogram patches or raw waveform frames."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
import torchaudio
from einops import rearrange
from torch import Tensor, nn

from dxn.tokenize.media import read_audio
from dxn.tokenize.positions import PositionKind, Positions1d, Positions2d
from dxn.tokenize.randomness import torch_seeded
from dxn.tokenize.stem import ConvStem, WhisperStem
from dxn.tokens import Span, Tokens

FLOOR = 1e-6  # added to mel power before the logarithm: -60 dB under a full-scale sine's order of magnitude
AudioTokens = Literal["frames", "patches", "waveform"]
Frontend = Literal["mel", "kaldi", "whisper"]


class AudioAugment:
    """Changes to a training sound, drawn anew for each epoch.

    Args:
        time_shift: silence of up to this many seconds before the sound.
        noise: white noise of up to this many times the sound's own level.
        gain: louder or softer by up to this many decibels.
        speed: faster or slower, and so higher or lower, by up to this share.
        freq_mask: mel bins of one blanked band at most (SpecAugment, arXiv:1904.08779).
        time_mask: share of the frames in one blanked stretch at most (SpecAugment).
        warp: stretch or squeeze the mel axis by up to this share, like another vocal tract's length.
        tempo: stretch or squeeze time by up to this share, the pitch unchanged.
        equalize: louder or softer by up to this many decibels, changing smoothly along the mel axis, like another
            microphone (arXiv:2110.03282); with frontend=mel.
    """

    def __init__(
        self,
        *,
        time_shift: float = 0.0,
        noise: float = 0.0,
        gain: float = 0.0,
        speed: float = 0.0,
        freq_mask: int = 0,
        time_mask: float = 0.0,
        warp: float = 0.0,
        tempo: float = 0.0,
        equalize: float = 0.0,
    ):
        self.time_shift, self.noise, self.gain, self.speed = time_shift, noise, gain, speed
        self.freq_mask, self.time_mask, self.warp = freq_mask, time_mask, warp
        self.tempo, self.equalize = tempo, equalize

    def waveform(self, x: Tensor, sample_rate: int, rng: random.Random) -> Tensor:
        """(T,) to (T',)."""
        if self.speed:
            factor = 1 + rng.uniform(-self.speed, self.speed)
            x = F.interpolate(x[None, None], max(round(len(x) / factor), 1), mode="linear")[0, 0]
        if self.gain:
            x = x * 10 ** (rng.uniform(-self.gain, self.gain) / 20)
        if self.time_shift:
            x = F.pad(x, (round(rng.uniform(0, self.time_shift) * sample_rate), 0))
        if self.noise:
            level = rng.uniform(0, self.noise) * x.square().mean().sqrt()
            with torch_seeded(rng):
                x = x + level * torch.randn(len(x))
        return x

    def gains(self, n_mels: int, rng: random.Random) -> Tensor | None:
        """Factors (F,) of the mel power, drawn at five places along the axis and joined by lines in decibels."""
        if not self.equalize:
            return None
        points = torch.tensor([rng.uniform(-self.equalize, self.equalize) for _ in range(5)])
        decibels = F.interpolate(points[None, None], n_mels, mode="linear", align_corners=True)[0, 0]
        return 10 ** (decibels / 10)

    def spectrogram(self, mel: Tensor, rng: random.Random) -> Tensor:
        """Log-mel (T, F) to (T', F), T' = T but for tempo; blanked cells hold the clip's mean."""
        if self.tempo:
            steps = max(round(len(mel) * (1 + rng.uniform(-self.tempo, self.tempo))), 1)
            mel = F.interpolate(mel.T[None], steps, mode="linear")[0].T
        if self.warp:
            mel = _warp(mel, 1 + rng.uniform(-self.warp, self.warp))
        mean = float(mel.mean())
        with torch_seeded(rng):
            if self.freq_mask:
                mel = torchaudio.functional.mask_along_axis(mel[None], self.freq_mask, mean, 2)[0]
            if self.time_mask:
                width = math.ceil(self.time_mask * len(mel))
                mel = torchaudio.functional.mask_along_axis(mel[None], width, mean, 1)[0]
        return mel


def _warp(mel: Tensor, factor: float) -> Tensor:
    """Bin f takes what bin f * factor held, interpolated; the top bin is repeated beyond the end."""
    bins = mel.shape[1]
    source = (torch.arange(bins) * factor).clamp(max=bins - 1)
    low = source.floor().long()
    high, share = (low + 1).clamp(max=bins - 1), source - low
    return mel[:, low] * (1 - share) + mel[:, high] * share


class AudioPrepare:
    """A sound to the small matrix its tokens are cut from. No learned weights; picklable."""

    def __init__(
        self,
        *,
        tokens: AudioTokens,
        sample_rate: int,
        n_fft: int,
        hop_length: int,
        n_mels: int,
        f_min: float,
        f_max: float | None,
        frontend: Frontend,
        top_db: float | None,
        num_frames: int | None,
        normalize: Literal["dataset", "clip", "none"],
        max_seconds: float,
        augment: AudioAugment | None,
    ):
        self.waveform = tokens == "waveform"
        if frontend not in ("mel", "kaldi", "whisper"):
            raise ValueError(f"frontend must be mel, kaldi or whisper, got {frontend!r}")
        if self.waveform and (frontend != "mel" or num_frames is not None):
            raise ValueError("tokens=waveform has no spectrogram: leave frontend and num_frames out")
        if not 0 <= f_min < (f_max or sample_rate / 2) <= sample_rate / 2:
            raise ValueError(
                f"f_min and f_max must rise, up to half of sample_rate={sample_rate}, got {f_min}, {f_max}"
            )
        if frontend != "mel" and (f_min or f_max or top_db or (augment is not None and augment.equalize)):
            raise ValueError(f"frontend={frontend} has its own f_min, f_max and range: leave these and equalize out")
        if num_frames is not None and augment is not None and augment.tempo:
            raise ValueError("num_frames holds every sound to one length: leave augment.tempo out")
        if top_db is not None and top_db <= 0:
            raise ValueError(f"top_db must be over 0, got {top_db}")
        self.sample_rate, self.n_fft, self.hop_length, self.n_mels = sample_rate, n_fft, hop_length, n_mels
        self.frontend, self.top_db, self.num_frames = frontend, top_db, num_frames
        self.normalize, self.max_seconds, self.augment = normalize, max_seconds, augment
        whisper = frontend == "whisper"
        if self.waveform or frontend == "kaldi":
            return
        self.mel = torchaudio.transforms.MelSpectrogram(
            sample_rate,
            n_fft=n_fft,
            hop_length=hop_length,
            n_mels=n_mels,
            f_min=f_min,
            f_max=f_max,
            pad_mode="reflect" if whisper else "constant",
            norm="slaney" if whisper else None,
            mel_scale="slaney" if whisper else "htk",
        )

    def read(self, source) -> Tensor:
        """Path, bytes or (array, rate) to mono float32 (T,) at sample_rate; media.BadMedia with the reason."""
        return read_audio(source, sample_rate=self.sample_rate, max_seconds=self.max_seconds)

    def __call__(self, raw: Tensor, rng: random.Random | None = None) -> dict[str, Tensor]:
        """features: log-mel (T, F), a row each hop_length samples, or the waveform (T, 1)."""
        augment = self.augment if rng is not None else None
        if augment is not None and rng is not None:
            raw = augment.waveform(raw, self.sample_rate, rng)
        gains = augment.gains(self.n_mels, rng) if augment is not None and rng is not None else None
        features = self.features(raw, gains)
        if self.normalize == "clip":
            features = (features - features.mean(0)) / features.std(correction=0).clamp(min=1e-3)
        if augment is not None and rng is not None and not self.waveform:
            features = augment.spectrogram(features, rng)
        return {"features": features}

    def size(self, raw: Tensor) -> float:
        """Roughly how many tokens it has, to put like with like."""
        return len(raw) / self.hop_length / 4

    def features(self, raw: Tensor, gains: Tensor | None = None) -> Tensor:
        """Waveform (T,) to itself (T, 1) or to logarithms of mel power (frames, F), num_frames where it is given."""
        if self.waveform:
            return rearrange(raw, "t -> t 1")
        if self.frontend == "mel":
            return self._log_mel(raw, gains)
        return self._kaldi(raw) if self.frontend == "kaldi" else self._whisper(raw)

    def _log_mel(self, raw: Tensor, gains: Tensor | None) -> Tensor:
        """A frame each hop_length samples, 1 + T // hop_length of them; natural logarithm."""
        power = self.mel(raw) if gains is None else self.mel(raw) * gains[:, None]
        if self.top_db is not None:
            power = power.clamp(min=float(power.max()) * 10 ** (-self.top_db / 10))
        return self._cut_or_padded(rearrange((power + FLOOR).log(), "f t -> t f"))

    def _kaldi(self, raw: Tensor) -> Tensor:
        """Kaldi's filter banks with a Hann window, as AST was trained on (arXiv:2104.01778, 2.1)."""
        length = self.n_fft / self.sample_rate * 1000
        bank = torchaudio.compliance.kaldi.fbank(
            F.pad(raw, (0, max(self.n_fft - len(raw), 0)))[None],
            sample_frequency=self.sample_rate,
            window_type="hanning",
            frame_length=length,
            frame_shift=self.hop_length / self.sample_rate * 1000,
            num_mel_bins=self.n_mels,
        )
        return self._cut_or_padded(bank)

    def _whisper(self, raw: Tensor) -> Tensor:
        """Whisper's (arXiv:2212.04356, 2.2): base 10, at most 80 dB below the loudest, brought to about -1 to 1.
        Silence fills it up before the transform, and the frame centred on the last sample is left out."""
        if self.num_frames is not None:
            want = self.num_frames * self.hop_length
            raw = F.pad(raw[:want], (0, max(want - len(raw), 0)))
        raw = F.pad(raw, (0, max(self.n_fft // 2 + 1 - len(raw), 0)))  # what the reflection at the ends needs
        log = self.mel(raw)[:, :-1].clamp(min=1e-10).log10()
        return rearrange((log.clamp(min=float(log.max()) - 8) + 4) / 4, "f t -> t f")

    def _cut_or_padded(self, mel: Tensor) -> Tensor:
        if self.num_frames is None:
            return mel
        return F.pad(mel[: self.num_frames], (0, 0, 0, max(self.num_frames - len(mel), 0)))

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """features (B, T, F) padded with zeros at the end, lengths (B,)."""
        features = [s["features"] for s in samples]
        return {
            "features": nn.utils.rnn.pad_sequence(features, batch_first=True),
            "lengths": torch.tensor([len(f) for f in features]),
        }


class AudioAdapter(nn.Module):
    """Audio to Tokens.

    Args:
        dim: width D of a token.
        tokens: frames (frame_size log-mel frames a token), patches (of the spectrogram), or waveform.
        sample_rate: in hertz; files of other rates are resampled to it.
        n_fft: samples in a spectrogram's window, 25 ms unless given.
        hop_length: samples from one window to the next, 10 ms unless given.
        n_mels: mel bins of the spectrogram.
        f_min: lowest frequency of the mel bins in hertz.
        f_max: highest, half of sample_rate unless given.
        frontend: of the spectrogram: mel (torchaudio's), or those of public models: kaldi (AST's), whisper.
        top_db: with frontend=mel, nothing is quieter than so many decibels below the clip's loudest cell.
        num_frames: frames that every sound is cut or filled up to; its own number unless given.
        frame_size: log-mel frames a token; with tokens=waveform, samples a token.
        patch_size: a patch's height in mel bins and width in frames.
        stride: from one patch to the next, patch_size unless given; smaller ones overlap.
        pad_end: fill up the last patch where they do not come out even; otherwise what is over is left out.
        stem: patch, or conv: convolutions that halve time (frames; frame_size is their stride), or time and mel
            bins alike (patches; patch_size, a square, is their stride); or whisper: its two (frames of size 2).
        normalize: dataset (mean and deviation of each bin over the training split), clip, or none.
        mean: of all bins, taken off in place of what the training split has.
        std: of all bins, divided by in place of what the training split has.
        position: learned, sinusoidal or none, added to each column.
        max_len: tokens (with patches: columns of patches) that learned positions reach.
        max_seconds: a longer file is bad.
        dropout: of the embedded columns, in training.
        augment: changes to training sounds.
    """

    modality = "audio"

    def __init__(
        self,
        dim: int = 128,
        *,
        tokens: AudioTokens = "frames",
        sample_rate: int = 16000,
        n_fft: int | None = None,
        hop_length: int | None = None,
        n_mels: int = 64,
        f_min: float = 0.0,
        f_max: float | None = None,
        frontend: Frontend = "mel",
        top_db: float | None = None,
        num_frames: int | None = None,
        frame_size: int = 4,
        patch_size: int | Sequence[int] = 16,
        stride: int | Sequence[int] | None = None,
        pad_end: bool = True,
        stem: Literal["patch", "conv", "whisper"] = "patch",
        normalize: Literal["dataset", "clip", "none"] = "dataset",
        mean: float | None = None,
        std: float | None = None,
        position: PositionKind = "sinusoidal",
        max_len: int = 1024,
        max_seconds: float = 60.0,
        dropout: float = 0.0,
        augment: AudioAugment | None = None,
    ):
        super().__init__()
        hop_length = hop_length or sample_rate // 100
        self.prepare = AudioPrepare(
            tokens=tokens,
            sample_rate=sample_rate,
            n_fft=n_fft or sample_rate // 40,
            hop_length=hop_length,
            n_mels=n_mels,
            f_min=f_min,
            f_max=f_max,
            frontend=frontend,
            top_db=top_db,
            num_frames=num_frames,
            normalize=normalize,
            max_seconds=max_seconds,
            augment=augment,
        )
        self.dim, self.cut = dim, _cut(tokens, n_mels, frame_size, patch_size)
        self.stride = self.cut if stride is None or tokens != "patches" else _pair(stride, "stride")
        if any(not 0 < s <= c for s, c in zip(self.stride, self.cut, strict=True)):
            raise ValueError(f"stride must be from 1 to patch_size, got {self.stride} and {self.cut}")
        self.seconds = (1 if tokens == "waveform" else hop_length) / sample_rate  # a row of the features
        num_features = 1 if tokens == "waveform" else n_mels
        self.pad_end = pad_end
        self.bands = int(self._count(torch.tensor(num_features), 0))
        self.mean: Tensor
        self.std: Tensor
        if (mean is None) != (std is None) or (mean is not None and normalize != "dataset"):
            raise ValueError("mean and std must be given both, and with normalize=dataset")
        self.given = mean is not None
        self.register_buffer("mean", torch.full((num_features,), mean or 0.0))
        self.register_buffer("std", torch.full((num_features,), std or 1.0))
        if stem == "conv":
            if tokens == "waveform" or (tokens == "patches" and self.cut[0] != self.cut[1]) or self.stride != self.cut:
                raise ValueError("stem=conv needs tokens=frames, or tokens=patches of a square size and no stride")
            along_time = tokens == "frames"
            self.stem = ConvStem(
                in_channels=n_mels if along_time else 1,
                dim=dim,
                stride=self.cut[1],
                width=dim if along_time else 48,
                axes=1 if along_time else 2,
            )
        elif stem == "whisper":
            if tokens != "frames" or self.cut[1] != 2:
                raise ValueError("stem=whisper needs tokens=frames and frame_size=2")
            self.stem = WhisperStem(n_mels, dim)
        else:
            self.stem = None
            self.proj = nn.Linear(self.cut[0] * self.cut[1], dim)
        if tokens == "patches":
            self.position = Positions2d(position, dim=dim, grid=(max_len if position == "learned" else 1, self.bands))
        else:
            self.position = Positions1d(position, dim=dim, max_len=max_len)
        self.dropout = nn.Dropout(dropout)

    def fit(self, raws: Iterable[Tensor]) -> AudioAdapter:
        """With normalize=dataset, mean and deviation of each bin over up to 1,000 training clips."""
        if self.prepare.normalize != "dataset" or self.given:
            return self
        clips = [self.prepare.features(raw) for raw in islice(raws, 1000)]
        if clips:
            rows = torch.cat(clips)
            self.mean.copy_(rows.mean(0))
            self.std.copy_(rows.std(0, correction=0).clamp(min=1e-3))
        return self

    def save(self, folder: Path) -> None:
        """Nothing but weights to save."""

    def load(self, folder: Path) -> None:
        """Nothing but weights to load."""

    def tokens(self, raws: Sequence) -> Tokens:
        """Paths, bytes or (array, rate) pairs straight to Tokens."""
        prepare = self.prepare
        return self(prepare.collate([prepare(prepare.read(raw)) for raw in raws]))

    def describe(self, raw: Tensor) -> str:
        """What the columns are: their number, length and the sound's."""
        steps = int(self._count(torch.tensor(len(self.prepare(raw)["features"])), 1))
        bands = f" × {self.bands} bands" if self.bands > 1 else ""
        rate = self.prepare.sample_rate
        return f"{steps} frames of {self.cut[1] * self.seconds:.3g} s{bands}, {len(raw) / rate:.2f} s at {rate} Hz"

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """A collated batch to Tokens (B, N, D), in time; patches of one moment from low to high."""
        lengths = batch["lengths"]
        features = (batch["features"] - self.mean) / self.std
        rows = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        features = features * rows[..., None]
        steps = self._count(lengths, 1)
        x = self._stem(features, lengths) if self.stem is not None else self.proj(self._cells(features))
        x = x + self._positions(x.shape[1], x.device)
        mask = torch.arange(x.shape[1], device=x.device) < steps[:, None]
        mask = mask.repeat_interleave(self.bands, 1)
        places = self._places(lengths, x.shape[1], mask)
        x = rearrange(x, "b t f d -> b (t f) d")
        return Tokens(self.dropout(x), mask, (Span("audio", 0, x.shape[1], places),))

    def _stem(self, features: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, F) to (B, t, f, D): mel bins are channels of a line of frames, or the second side of a grid."""
        if isinstance(self.stem, WhisperStem):
            return rearrange(self.stem(features, lengths), "b t d -> b t 1 d")
        assert self.stem is not None
        grid = rearrange(features, "b t f -> b f t 1" if self.stem.axes == 1 else "b t f -> b 1 t f")
        return self.stem(grid, torch.stack([lengths, torch.full_like(lengths, grid.shape[3])], 1))

    def _cells(self, features: Tensor) -> Tensor:
        """(B, T, F) to (B, t, f, cut), what is over at the end filled up with zeros."""
        steps = int(self._count(torch.tensor(features.shape[1]), 1))
        need_f = (self.bands - 1) * self.stride[0] + self.cut[0]
        need_t = (steps - 1) * self.stride[1] + self.cut[1]
        x = F.pad(features, (0, need_f - features.shape[2], 0, need_t - features.shape[1]))
        x = x.unfold(1, self.cut[1], self.stride[1]).unfold(2, self.cut[0], self.stride[0])
        return rearrange(x, "b t f q p -> b t f (p q)")

    def _count(self, length: Tensor, axis: int) -> Tensor:
        """Tokens along mel bins (0) or time (1) for so many of them: at least one, and with pad_end as many as it
        takes to see all."""
        over = (length - self.cut[axis]).clamp(min=0)
        return (over + (self.stride[axis] - 1 if self.pad_end else 0)) // self.stride[axis] + 1

    def _positions(self, steps: int, device: torch.device) -> Tensor:
        if isinstance(self.position, Positions1d):
            codes = self.position(steps, device)
            return codes[:, None] if codes.ndim else codes
        if self.position.kind == "learned":
            if steps > len(self.position.table):
                raise ValueError(
                    f"learned positions reach {len(self.position.table)} steps, got {steps}: raise max_len"
                )
            return self.position.table[:steps]
        return self.position(steps, self.bands, device)

    def _places(self, lengths: Tensor, steps: int, mask: Tensor) -> Tensor:
        """(B, N, 2): start and stop of each token in seconds, NaN at padding."""
        start = torch.arange(steps, device=lengths.device) * self.stride[1]
        stop = torch.minimum(start + self.cut[1], lengths[:, None])
        places = torch.stack([start.expand_as(stop), stop], -1) * self.seconds
        return places.repeat_interleave(self.bands, 1).masked_fill(~mask[..., None], torch.nan)


def _cut(tokens: AudioTokens, n_mels: int, frame_size: int, patch_size: int | Sequence[int]) -> tuple[int, int]:
    """Features and time steps of one token."""
    if tokens == "waveform":
        return 1, frame_size
    return (n_mels, frame_size) if tokens == "frames" else _pair(patch_size)


def _pair(size: int | Sequence[int], name: str = "patch_size") -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{name} must be one positive number or [mel bins, frames], got {size}")
    return pair
