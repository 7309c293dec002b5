"""Mel spectrograms as computed by torchaudio, Kaldi and Whisper."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt
from einops import rearrange
from torch import Tensor

from dxn.core.schema import options

Frontend = Literal["mel", "kaldi", "whisper"]


@options
class SpectrogramOptions:
    """Options of the mel spectrogram of a clip.

    Args:
        n_fft: Window length in samples. Default: 25 ms.
        hop_length: Distance between consecutive windows in samples. Default: 10 ms.
        n_mels: Number of mel bins.
        f_min: Lowest frequency of the mel bins in hertz.
        f_max: Highest frequency of the mel bins in hertz. Default: sample_rate / 2.
        frontend: Implementation of the spectrogram: mel (torchaudio), kaldi (Kaldi's filter banks,
            as used by AST) or whisper.
        top_db: With frontend=mel, clamp values to this many decibels below the maximum of the clip.
            Default: no clamping.
        num_frames: Number of frames to which every clip is truncated or padded. Default: keep the
            length of each clip.
        pad: Pad shorter clips to num_frames. False: only truncate longer ones.
        windows: Cut longer clips into consecutive windows of num_frames instead of truncating them.
            A model whose only input is the clip encodes each window alone.
        max_seconds: Maximum duration in seconds. Longer clips are rejected.
    """

    n_fft: int | None = None
    hop_length: int | None = None
    n_mels: int = 64
    f_min: float = 0.0
    f_max: float | None = None
    frontend: Frontend = "mel"
    top_db: Annotated[float, Gt(0)] | None = None
    num_frames: int | None = None
    pad: bool = True
    windows: bool = False
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.windows and self.num_frames is None:
            raise ValueError("windows=true needs the length of a window: set num_frames")
        if self.frontend != "mel" and (self.f_min or self.f_max or self.top_db):
            raise ValueError(
                f"frontend={self.frontend} has a fixed frequency and dynamic range: leave out "
                f"f_min, f_max and top_db, got {self.f_min}, {self.f_max} and {self.top_db}"
            )


# Added to the mel power before the logarithm, so that silence gives a finite number. It is about
# 60 dB below the power of a full-scale sine, which is below the noise of usual recordings.
FLOOR = 1e-6

SHORTEST_WINDOW = 0.1  # seconds of a clip in its last window

KALDI_PREEMPHASIS = 0.97


class Spectrogram:
    """Computes the mel spectrogram (frames, F) of a waveform (T,). It can be pickled.

    Args:
        options: Options of the spectrogram.
        sample_rate: Sample rate of the waveforms in hertz.
    """

    def __init__(self, options: SpectrogramOptions, sample_rate: int):
        nyquist = sample_rate / 2
        f_max = options.f_max or nyquist
        if not 0 <= options.f_min < f_max <= nyquist:
            raise ValueError(
                "f_min and f_max must satisfy 0 <= f_min < f_max <= sample_rate / 2 = "
                f"{nyquist:g}, got {options.f_min} and {options.f_max}"
            )
        self.options = options
        self.sample_rate = sample_rate
        self.n_fft = options.n_fft or sample_rate // 40  # 25 ms
        self.hop_length = hop_samples(options, sample_rate)

    @property
    def window_seconds(self) -> float | None:
        """Duration of the windows into which a longer clip is cut. None: it is not cut."""
        if not self.options.windows:
            return None
        assert self.options.num_frames is not None
        return self.options.num_frames * self.hop_length / self.sample_rate

    @cached_property
    def window(self) -> Tensor:
        """The Hann window (n_fft,)."""
        return torch.hann_window(self.n_fft, periodic=self.options.frontend != "kaldi")

    @cached_property
    def filters(self) -> Tensor:
        """The weights of the mel bins, (frequencies, F)."""
        options = self.options
        if options.frontend == "mel":
            f_max = options.f_max or self.sample_rate / 2
            num_freqs = self.n_fft // 2 + 1
            return htk_filters(num_freqs, options.n_mels, self.sample_rate, options.f_min, f_max)
        # torchaudio takes time to import, which other frontends save.
        if options.frontend == "kaldi":
            from torchaudio.compliance.kaldi import get_mel_banks

            # A power of two of samples; the frequencies and the other constants of fbank.
            size = 1 << (self.n_fft - 1).bit_length()
            rate = float(self.sample_rate)
            banks, _ = get_mel_banks(options.n_mels, size, rate, 20.0, 0.0, 100.0, -500.0, 1.0)
            # No bin has the highest frequency.
            return F.pad(banks, (0, 1)).T
        from torchaudio.functional import melscale_fbanks

        num_freqs, f_max = self.n_fft // 2 + 1, self.sample_rate / 2
        return melscale_fbanks(
            num_freqs, 0.0, f_max, options.n_mels, self.sample_rate, "slaney", "slaney"
        )

    def mel(self, raw: Tensor) -> Tensor:
        """Return the mel power (F, frames) of a waveform (T,), but for frontend=kaldi."""
        spectrum = torch.stft(
            raw,
            self.n_fft,
            self.hop_length,
            window=self.window,
            pad_mode="reflect" if self.options.frontend == "whisper" else "constant",
            return_complex=True,
        )
        return (_power(spectrum).T @ self.filters).T

    def __call__(self, raw: Tensor, gains: Tensor | None = None) -> Tensor:
        """Compute the spectrogram (frames, F).

        Args:
            raw: Waveform (T,).
            gains: Factors (F,) of the mel power. Only frontend=mel applies them.
        """
        if not self.options.windows:
            return self._frames(raw, gains)
        sizes = self._window_sizes(len(raw))
        parts = raw[: sum(sizes)].split(sizes)
        return torch.cat([self._frames(part, gains) for part in parts])

    def _window_sizes(self, length: int) -> list[int]:
        """Return the number of samples of each window of a waveform of so many samples."""
        assert self.options.num_frames is not None
        size = self.options.num_frames * self.hop_length
        whole, rest = divmod(length, size)
        # A short rest would be a window of silence.
        has_rest = not whole or rest >= int(SHORTEST_WINDOW * self.sample_rate)
        return [size] * whole + [rest] * has_rest

    def _frames(self, raw: Tensor, gains: Tensor | None) -> Tensor:
        if self.options.frontend == "mel":
            return self._mel(raw, gains)
        return self._kaldi(raw) if self.options.frontend == "kaldi" else self._whisper(raw)

    @property
    def has_waveform(self) -> bool:
        """Whether a sound can be computed from the spectrogram."""
        return self.options.frontend == "mel"

    def waveform(self, mel: Tensor) -> Tensor:
        """Return a waveform (T,) with this log-mel spectrogram (frames, F).

        The power of all frequencies is the nonnegative one with the nearest mel power, and the
        phases are those of Griffin and Lim (1984). Clips sound robotic, because a mel spectrogram
        has no phases and few frequencies.

        It must be one that `has_waveform`.
        """
        assert self.has_waveform
        options = self.options
        import torchaudio

        power = (mel.T.exp() - FLOOR).clamp(min=0)
        inverse = torchaudio.transforms.InverseMelScale(
            self.n_fft // 2 + 1,
            options.n_mels,
            self.sample_rate,
            f_min=options.f_min,
            f_max=options.f_max,
            driver="gelsd",  # some of many bins contain no frequency
        )
        phases = torchaudio.transforms.GriffinLim(
            self.n_fft, hop_length=self.hop_length, rand_init=False
        )
        return phases(inverse(power).clamp(min=0))

    def num_frames(self, length: int) -> int:
        """Return the number of frames of a waveform of so many samples."""
        options = self.options
        if options.num_frames is None:
            return self.num_real_frames(length)
        sizes = self._window_sizes(length) if options.windows else [length]
        if options.pad:
            return len(sizes) * options.num_frames
        return sum(min(self.num_real_frames(size), options.num_frames) for size in sizes)

    def is_real(self, length: int) -> Tensor:
        """Return which frames (frames,) of a waveform of so many samples are not padding.

        Whisper's padding is silence in the waveform, which has a spectrogram.
        """
        options = self.options
        if options.num_frames is None or not options.pad or options.frontend == "whisper":
            return torch.ones(self.num_frames(length), dtype=torch.bool)
        sizes = self._window_sizes(length) if options.windows else [length]
        numbers = torch.tensor([self.num_real_frames(size) for size in sizes])
        return (torch.arange(options.num_frames) < numbers[:, None]).flatten()

    @property
    def padding(self) -> float:
        """The value of padding: silence; with frontend=kaldi 0, as in AST."""
        return math.log(FLOOR) if self.options.frontend == "mel" else 0.0

    def num_real_frames(self, length: int) -> int:
        """Return the number of frames of a waveform, which num_frames truncates or pads."""
        options = self.options
        if options.frontend == "kaldi":
            return max(length - self.n_fft, 0) // self.hop_length + 1
        # Half a window, rounded down, is added on both sides.
        odd = self.n_fft % 2
        if options.frontend == "whisper" and not options.pad:
            return max(-(-length // self.hop_length), 1)
        if options.frontend == "whisper":  # it drops the last frame
            return (max(length, self.n_fft // 2 + 1) - odd) // self.hop_length
        return (length - odd) // self.hop_length + 1

    def _mel(self, raw: Tensor, gains: Tensor | None) -> Tensor:
        """Natural logarithm of torchaudio's mel power, 1 + T // hop_length frames."""
        power = self.mel(raw) if gains is None else self.mel(raw) * gains[:, None]
        if self.options.top_db is not None:
            # Relative to the maximum of the clip, so that quiet clips keep their dynamic range.
            power = power.clamp(min=float(power.max()) * 10 ** (-self.options.top_db / 10))
        return self._truncate_or_pad((power + FLOOR).log().T)

    def _kaldi(self, raw: Tensor) -> Tensor:
        """Kaldi's filter banks with a Hann window, as in AST (arXiv:2104.01778, section 2.1).

        The values are those of torchaudio.compliance.kaldi.fbank, which computes the filters and
        the window again for each clip.
        """
        # At least one window. The last samples that do not fill one are dropped.
        raw = F.pad(raw, (0, max(self.n_fft - len(raw), 0)))
        means = raw.unfold(0, self.n_fft, self.hop_length).mean(1)
        # Once for the clip and not for each window, as the windows overlap. The first sample of a
        # window has none before it, and the factor 0.
        emphasized = F.pad(raw[1:] - KALDI_PREEMPHASIS * raw[:-1], (1, 0))
        # The transform has one more than half of a power of two of frequencies.
        frames = raw.new_zeros(len(means), 2 * (len(self.filters) - 1))
        filled = frames[:, : self.n_fft]
        torch.mul(emphasized.unfold(0, self.n_fft, self.hop_length), self.window, out=filled)
        # The mean of a window, which is subtracted before the pre-emphasis.
        filled.addr_(means, (1 - KALDI_PREEMPHASIS) * self.window, alpha=-1)
        power = _power(torch.fft.rfft(frames))
        floor = torch.finfo(torch.float32).eps
        return self._truncate_or_pad((power @ self.filters).clamp(min=floor).log())

    def _whisper(self, raw: Tensor) -> Tensor:
        """Whisper's log-mel (arXiv:2212.04356, section 2.2).

        The logarithm has base 10. Values are clamped to 80 dB below the maximum and scaled to about
        -1 to 1. Padding is added to the waveform, not to the spectrogram, and the last frame is
        dropped, as in the official code.
        """
        num_frames = self.options.num_frames
        if num_frames is not None:
            length = num_frames * self.hop_length
            if not self.options.pad:
                # The frames that contain a part of the clip have the same values.
                length = min(length, len(raw) + 2 * self.n_fft)
                num_frames = min(self.num_real_frames(len(raw)), num_frames)
            raw = F.pad(raw[:length], (0, max(length - len(raw), 0)))
        # Reflection padding requires more than half a window of samples.
        raw = F.pad(raw, (0, max(self.n_fft // 2 + 1 - len(raw), 0)))
        log = self.mel(raw)[:, :-1].clamp(min=1e-10).log10()
        # 8 in log10 of the power is 80 dB.
        log = (log.clamp(min=float(log.max()) - 8) + 4) / 4
        return rearrange(log[:, :num_frames], "f t -> t f")

    def _truncate_or_pad(self, mel: Tensor) -> Tensor:
        """Truncate or pad mel (frames, F) to num_frames at the end."""
        num_frames = self.options.num_frames
        if num_frames is None:
            return mel
        missing = max(num_frames - len(mel), 0) if self.options.pad else 0
        return F.pad(mel[:num_frames], (0, 0, 0, missing), value=self.padding)


def _power(spectrum: Tensor) -> Tensor:
    """Return the squares of the absolute values, and overwrite the spectrum.

    This takes less time than abs, than a complex product, and than squares in new memory.
    """
    parts = torch.view_as_real(spectrum).square_()
    return parts[..., 0] + parts[..., 1]


def htk_filters(
    num_freqs: int, n_mels: int, sample_rate: int, f_min: float, f_max: float
) -> Tensor:
    """Return triangular filters (frequencies, F) on the mel scale of HTK.

    They are those of torchaudio.functional.melscale_fbanks, whose import takes longer than the
    statistics of hundreds of clips.
    """
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (f_min, f_max))
    edges = 700 * (10 ** (torch.linspace(low, high, n_mels + 2) / 2595) - 1)  # in hertz
    distances = edges - torch.linspace(0, sample_rate // 2, num_freqs)[:, None]
    widths = edges.diff()
    rising, falling = -distances[:, :-2] / widths[:-1], distances[:, 2:] / widths[1:]
    return torch.minimum(rising, falling).clamp(min=0)


def hop_samples(options: SpectrogramOptions, sample_rate: int) -> int:
    """Return hop_length in samples. Default: 10 ms."""
    return options.hop_length or sample_rate // 100
