"""Log-mel spectrograms as computed by torchaudio, Kaldi and Whisper."""

from __future__ import annotations

from functools import cached_property

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.tokenize.audio_options import SpectrogramOptions

# Added to the mel power before the logarithm, so that silence gives a finite number. It is about
# 60 dB below the power of a full-scale sine, which is below the noise of usual recordings.
FLOOR = 1e-6


class Spectrogram:
    """Computes the log-mel spectrogram (frames, F) of a waveform (T,). It can be pickled.

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

    @cached_property
    def mel(self) -> nn.Module:
        """Module that computes the mel power (F, frames). Kaldi's is a function without state."""
        import torchaudio  # it takes time to import, which commands without audio save

        options = self.options
        whisper = options.frontend == "whisper"
        return torchaudio.transforms.MelSpectrogram(
            self.sample_rate,
            n_fft=self.n_fft,
            hop_length=self.hop_length,
            n_mels=options.n_mels,
            f_min=options.f_min,
            f_max=options.f_max,
            pad_mode="reflect" if whisper else "constant",
            norm="slaney" if whisper else None,
            mel_scale="slaney" if whisper else "htk",
        )

    def __call__(self, raw: Tensor, gains: Tensor | None = None) -> Tensor:
        """Compute the spectrogram (frames, F).

        Args:
            raw: Waveform (T,).
            gains: Factors (F,) of the mel power. Only frontend=mel applies them.
        """
        if self.options.frontend == "mel":
            return self._log_mel(raw, gains)
        return self._kaldi(raw) if self.options.frontend == "kaldi" else self._whisper(raw)

    def _log_mel(self, raw: Tensor, gains: Tensor | None) -> Tensor:
        """Natural logarithm of torchaudio's mel power, 1 + T // hop_length frames."""
        power = self.mel(raw) if gains is None else self.mel(raw) * gains[:, None]
        if self.options.top_db is not None:
            # Relative to the maximum of the clip, so that quiet clips keep their dynamic range.
            power = power.clamp(min=float(power.max()) * 10 ** (-self.options.top_db / 10))
        return self._truncate_or_pad(rearrange((power + FLOOR).log(), "f t -> t f"))

    def _kaldi(self, raw: Tensor) -> Tensor:
        """Kaldi's filter banks with a Hann window, as in AST (arXiv:2104.01778, section 2.1)."""
        import torchaudio

        bank = torchaudio.compliance.kaldi.fbank(
            # fbank returns no frame for less than one window.
            F.pad(raw, (0, max(self.n_fft - len(raw), 0)))[None],
            sample_frequency=self.sample_rate,
            window_type="hanning",
            frame_length=self.n_fft / self.sample_rate * 1000,  # milliseconds
            frame_shift=self.hop_length / self.sample_rate * 1000,
            num_mel_bins=self.options.n_mels,
        )
        return self._truncate_or_pad(bank)

    def _whisper(self, raw: Tensor) -> Tensor:
        """Whisper's log-mel (arXiv:2212.04356, section 2.2).

        The logarithm has base 10. Values are clamped to 80 dB below the maximum and scaled to about
        -1 to 1. Padding is added to the waveform, not to the spectrogram, and the last frame is
        dropped, as in the official code.
        """
        num_frames = self.options.num_frames
        if num_frames is not None:
            length = num_frames * self.hop_length
            raw = F.pad(raw[:length], (0, max(length - len(raw), 0)))
        # Reflection padding requires more than half a window of samples.
        raw = F.pad(raw, (0, max(self.n_fft // 2 + 1 - len(raw), 0)))
        log = self.mel(raw)[:, :-1].clamp(min=1e-10).log10()
        # 8 in log10 of the power is 80 dB.
        return rearrange((log.clamp(min=float(log.max()) - 8) + 4) / 4, "f t -> t f")

    def _truncate_or_pad(self, mel: Tensor) -> Tensor:
        """Truncate or pad mel (frames, F) to num_frames with zeros at the end."""
        num_frames = self.options.num_frames
        if num_frames is None:
            return mel
        return F.pad(mel[:num_frames], (0, 0, 0, max(num_frames - len(mel), 0)))


def hop_samples(options: SpectrogramOptions, sample_rate: int) -> int:
    """Return hop_length in samples. Default: 10 ms."""
    return options.hop_length or sample_rate // 100
