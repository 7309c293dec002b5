"""Draw audio: the spectrogram that its tokens are made of, or the waveform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dxn.tokenize.audio.adapter import AudioAdapter
from dxn.tokenize.audio.tokenizer import AudioTokenizer
from dxn.viz.drawers.drawer import Shown
from dxn.viz.drawers.panel import COLUMNS, Panel, PanelDrawer, Ticks, round_steps
from dxn.viz.html import data_url
from dxn.viz.media import flac, player

WINDOW = 0.032  # seconds; a usual window length for speech
DYNAMIC_RANGE = 70.0  # decibels; points that are quieter than this below the loudest are white
MIN_RANGE = 10.0  # decibels; digital silence has no range
QUIET_PERCENTILE = 2
WAVE_ROWS = 160  # pixels of the height of a drawn waveform
# Values of a log-mel spectrogram per decibel: natural and decimal logarithms of the power.
PER_DECIBEL = {"mel": math.log(10) / 10, "kaldi": math.log(10) / 10, "whisper": 1 / 40}
HERTZ = (100, 200, 500, 1000, 2000, 4000, 8000, 16000)  # labels of a mel axis, where there is room


class AudioDrawer(PanelDrawer):
    """Draws a waveform (T,). Coordinates are (start, stop) in seconds."""

    max_marks = 120

    def size(self, shown: Shown) -> tuple[float, float]:
        return 4.7, 2.6

    def panel(self, shown: Shown) -> Panel:
        return sound_panel(shown)

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        starts = np.unique(coords[:, 0])
        bands = len(coords) // max(len(starts), 1)
        return f", {len(starts)} frames × {bands} bands" if bands > 1 else ""

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        starts = np.unique(coords[~np.isnan(coords).any(1), 0])
        # Frames that start within the same hundredth of a second need a third decimal.
        digits = 3 if len(starts) > 1 and np.diff(starts).min() < 0.0095 else 2
        bands = _bands(coords)
        has_bands = bands.max(initial=0) > 0
        names: list[str | None] = []
        for start, band in zip(coords[:, 0].tolist(), bands.tolist(), strict=True):
            # Codes and padding have no time.
            where = f", band {band + 1}" if has_bands else ""
            names.append(None if math.isnan(start) else f"{start:.{digits}f} s{where}")
        return names

    def page(self, shown: Shown) -> dict[str, Any]:
        return {**super().page(shown), "sound": data_url("audio/flac", self.file(shown))}

    def file(self, shown: Shown) -> bytes:
        """Return the sound as the content of a FLAC file."""
        return flac(*waveform(shown))

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) in seconds and frequency bins from the top."""
        height = sound_panel(shown).height
        bands = _bands(coords)
        if not isinstance(shown.adapter, AudioAdapter) or bands.max(initial=0) == 0:
            low, high = np.zeros(len(coords)), np.full(len(coords), height)
        else:
            grid = shown.adapter.grid
            low = bands * grid.stride[1]
            high = np.minimum(low + grid.size[1], height)
        # Bins rise from the bottom, and boxes are counted from the top.
        return np.stack([height - high, coords[:, 0], height - low, coords[:, 1]], 1)

    def describe(self, shown: Shown) -> str:
        seconds = sound_panel(shown).width
        return f"spectrogram of {shown.name or 'audio'}, {seconds:.1f} seconds"

    def fragment(self, shown: Shown) -> str:
        """Return a player with the spectrogram as HTML."""
        sound = player(*waveform(shown), shown.name or "audio", max_bytes=shown.max_sound)
        return f'<div class="sound">{super().fragment(shown)}{sound}</div>'


def sound_panel(shown: Shown) -> Panel:
    """Return the log-mel spectrogram that the tokens are made of, as a panel.

    Tokens of a waveform have the waveform instead. If the preprocessor is not known, the panel is a
    power spectrogram. The horizontal axis is in seconds. Loud points are dark.
    """
    prepare = shown.preprocessor
    if not isinstance(prepare, AudioTokenizer):
        return _power_panel(*waveform(shown))
    if prepare.spectrogram is None:
        return _waveform_panel(*waveform(shown), [other.cpu().numpy() for other in shown.like])
    options = prepare.spectrogram.options
    values, *others = (
        prepare.features(raw).cpu().numpy().T / PER_DECIBEL[options.frontend]  # (F, frames)
        for raw in (shown.raw, *shown.like)
    )
    levels = _levels(values, others)
    bins, frames = levels.shape
    seconds = frames * prepare.seconds
    hertz = _mel_bins(options, prepare.sample_rate, bins)
    y_ticks = [
        (bins - float(np.interp(value, hertz, np.arange(bins) + 0.5)), _hertz(value))
        for value in HERTZ
        if hertz[0] <= value <= hertz[-1]
    ]
    return _panel(levels, seconds, y_ticks, "Hz (mel), dark: loud")


def waveform(shown: Shown) -> tuple[np.ndarray, int]:
    """Return the samples (S,) and the sampling rate in Hz."""
    return shown.raw.cpu().numpy(), shown.preprocessor.sample_rate


def spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Compute the power spectrogram of a waveform (S,) in decibels.

    Returns:
        uint8 (F, T), lowest frequency first. 255 is the loudest point.
    """
    # n_fft must be even and at least 2, also for very low sampling rates.
    n_fft = max(2 * round(WINDOW * rate / 2), 2)
    # Long recordings have a larger hop, so that the picture has at most about COLUMNS frames.
    hop_length = max(n_fft // 4, -(-len(samples) // COLUMNS))
    spectrum = torch.stft(
        torch.as_tensor(samples, dtype=torch.float32),
        n_fft,
        hop_length,
        window=torch.hann_window(n_fft),
        pad_mode="constant",  # reflection fails for waveforms that are shorter than the window
        return_complex=True,
    )
    # 1e-10: silence has a power of 0, whose logarithm is not finite.
    return _levels(10 * (spectrum.abs() ** 2).clamp(min=1e-10).log10().numpy())


def _levels(decibels: np.ndarray, others: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Convert decibels to 0 to 255, where 255 is the loudest point of this and other recordings.

    0 is DYNAMIC_RANGE below it, or less if they have no quieter points, such as noise.
    """
    all_values = np.concatenate([values.ravel() for values in (decibels, *others)])
    loudest = float(all_values.max())
    quietest = max(loudest - DYNAMIC_RANGE, float(np.percentile(all_values, QUIET_PERCENTILE)))
    relative = (decibels - quietest) / max(loudest - quietest, MIN_RANGE)
    return np.clip(relative * 255, 0, 255).astype(np.uint8)


def _panel(levels: np.ndarray, seconds: float, y_ticks: Ticks, y_label: str) -> Panel:
    """Return a panel of levels (F, T): loud points are dark, low frequencies are at the bottom."""
    return Panel(
        np.repeat((255 - levels[::-1])[..., None], 3, 2),
        seconds,
        len(levels),
        x_ticks=[(value, f"{value:g}") for value in round_steps(seconds, count=6)],
        y_ticks=y_ticks,
        x_label="seconds",
        y_label=y_label,
    )


def _power_panel(samples: np.ndarray, rate: int) -> Panel:
    levels = spectrogram(samples, rate)
    y_ticks = [
        (len(levels) * (1 - 2 * value / rate), _hertz(value))
        for value in round_steps(rate / 2, count=4)
    ]
    return _panel(levels, len(samples) / rate, y_ticks, "Hz, dark: loud")


def _waveform_panel(samples: np.ndarray, rate: int, others: Sequence[np.ndarray]) -> Panel:
    """Return a panel of the waveform: each column spans its smallest to its largest sample.

    The height is that of the loudest sample of this and other recordings.
    """
    columns = min(COLUMNS, len(samples))
    largest = max(float(np.abs(sound).max(initial=0)) for sound in (samples, *others)) or 1.0
    levels = np.zeros((WAVE_ROWS, columns), dtype=np.uint8)
    for i, part in enumerate(np.array_split(samples / largest, columns)):
        low, high = ((1 + np.array([part.min(), part.max()])) / 2 * (WAVE_ROWS - 1)).astype(int)
        levels[low : high + 1, i] = 255
    y_ticks = [
        (WAVE_ROWS * (1 - share) / 2, f"{share * largest:.2g}") for share in (-0.75, 0, 0.75)
    ]
    return _panel(levels, len(samples) / rate, y_ticks, "amplitude")


def _mel_bins(options: Any, sample_rate: int, bins: int) -> np.ndarray:
    """Return the center frequencies (F,) in hertz of the bins of a log-mel spectrogram."""
    to_mel, to_hertz = _slaney() if options.frontend == "whisper" else _htk()
    # Kaldi has its own lower limit of 20 Hz.
    low = 20.0 if options.frontend == "kaldi" else options.f_min
    high = sample_rate / 2 if options.frontend == "kaldi" else options.f_max or sample_rate / 2
    edges = np.linspace(to_mel(low), to_mel(high), bins + 2)
    return np.array([to_hertz(mel) for mel in edges[1:-1]])


def _htk() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return the mel scale of HTK and Kaldi, and its inverse."""
    return (
        lambda hertz: 2595 * math.log10(1 + hertz / 700),
        lambda mel: 700 * (10 ** (mel / 2595) - 1),
    )


def _slaney() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return the mel scale of Slaney's Auditory Toolbox, and its inverse.

    It is linear up to 1,000 Hz (15 mel) and logarithmic above.
    """
    step = math.log(6.4) / 27
    return (
        lambda hertz: hertz * 3 / 200 if hertz < 1000 else 15 + math.log(hertz / 1000) / step,
        lambda mel: mel * 200 / 3 if mel < 15 else 1000 * math.exp(step * (mel - 15)),
    )


def _hertz(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _bands(coords: np.ndarray) -> np.ndarray:
    """Return the index (N,) of the frequency band of each token: 0 is the lowest.

    The columns are ordered by time, and at the same time from low to high bands.
    """
    bands = np.zeros(len(coords), dtype=int)
    for i in range(1, len(coords)):
        if coords[i, 0] == coords[i - 1, 0]:
            bands[i] = bands[i - 1] + 1
    return bands
