"""Options of the audio adapter that suit the data (preset=auto)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dxn.presets.advice import Advice, Facts
from dxn.tokenize.base import BadMedia

MAX_RATE = 22_050  # hertz; higher frequencies rarely distinguish classes
MIN_RATE = 4_000
# Fraction of the seconds of all sounds that keep all of their frequencies. The others, of a higher
# rate, would make all sounds longer.
KEPT = 0.9
# From this median duration on, too few epochs of whole clips fit into the time.
LONG = 10.0  # seconds
CROP = 5.0
MANY_ROWS = 1_000  # training rows from which residual convolutions generalize better


def advise_audio(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for classifying sounds without a pretrained model.

    Args:
        cells: Paths, bytes or (array, sample_rate) pairs.
        facts: What is known about the training.
    """
    from dxn.tokenize.audio.reader import audio_rate, audio_seconds

    rates: list[int] = []
    seconds: list[float | None] = []
    for cell in cells:
        try:
            rates.append(audio_rate(cell))
            seconds.append(audio_seconds(cell))
        except (BadMedia, ValueError):  # reported when the rows are read
            continue
    if not rates:
        return []
    rate = min(max(_usual_rate(rates, seconds), MIN_RATE), MAX_RATE)
    low, high = min(rates), max(rates)
    about = f"sounds of {low:,} Hz" if low == high else f"sounds of {low:,} to {high:,} Hz"
    is_alone = facts.num_files == 1
    has_residual = is_alone and facts.rows >= MANY_ROWS
    options: dict[str, Any] = {
        "sample_rate": rate,
        "tokens": "frames",
        "frame_size": 4 if is_alone else 8,
        "spectrogram.n_mels": 40 if rate <= 8_000 else 64,
    }
    if facts.is_codec:
        return [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
    options |= {
        "stem": "residual" if has_residual else "conv",
        "normalize.kind": "clip",
        "augment.speed": 0.1,
        "augment.freq_mask": 8 if is_alone else 5,
        "augment.time_mask": 0.15 if is_alone else 0.1,
    }
    median = statistics.median([s for s in seconds if s is not None] or [0.0])
    if is_alone and median >= LONG:
        options["augment.crop"] = CROP
        about += f" and {median:.0f} s"
    # Strong noise hides how several inputs belong together for most of the training.
    if is_alone:
        options |= {
            "spectrogram.top_db": 40,
            "dropout": 0.1,
            "augment.noise": 0.1,
            "augment.equalize": 6,
        }
    advice = [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
    if is_alone:
        advice.append(Advice("trainer.mixup", 1.0, about))
    if has_residual:
        advice.append(Advice("backbone.depth", 2, f"{facts.rows:,} {about}"))
    return advice


def _usual_rate(rates: Sequence[int], seconds: Sequence[float | None]) -> int:
    """Return the lowest sample rate that is not below that of most sounds, by their duration."""
    # The duration of some formats is unknown.
    durations = [duration for duration in seconds if duration is not None]
    usual = statistics.median(durations) if durations else 1.0
    weights = [usual if duration is None else duration for duration in seconds]
    reached = 0.0
    for rate, weight in sorted(zip(rates, weights, strict=True)):
        reached += weight
        if reached >= KEPT * sum(weights):
            return rate
    return max(rates)
