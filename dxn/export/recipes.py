"""What a program without dxn needs to prepare an input: the options of `export/programs/`.

The key "prepare" names the module there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dxn.tokenize.audio.spectrogram import FLOOR
from dxn.tokenize.audio.tokenizer import AudioTokenizer
from dxn.tokenize.cells import date, number
from dxn.tokenize.cells.category import NUM_SPECIAL, UNKNOWN, CategoryTokenizer
from dxn.tokenize.cells.date import DateTokenizer
from dxn.tokenize.cells.number import NumberTokenizer
from dxn.tokenize.image.tokenizer import ImageTokenizer
from dxn.tokenize.series.tokenizer import MIN_RELATIVE_STD, SeriesTokenizer
from dxn.tokenize.text.tokenizer import TextTokenizer
from dxn.tokenize.video.tokenizer import VideoTokenizer

# JSON-serializable options.
Recipe = dict[str, Any]


def text_recipe(tokenizer: TextTokenizer) -> Recipe:
    """Return the options of `programs/text.py`, which cannot read conversations."""
    can_prepare = tokenizer.reader.template is None
    return {
        **({"prepare": "text"} if can_prepare else {}),
        "special_tokens": tokenizer.options.special_tokens,
        "max_len": tokenizer.max_len if tokenizer.is_cut else None,
        "max_chars": tokenizer.reader.max_chars,
        "prompt": tokenizer.options.prompt,
        "pad_to": tokenizer.pad_to,
        "pad_id": tokenizer.pad_id,
        "tokenizer": json.loads(tokenizer.vocabulary.to_str()),
    }


def image_recipe(tokenizer: ImageTokenizer) -> Recipe:
    """Return the options of `programs/image.py`."""
    return {
        "prepare": "image",
        "channels": tokenizer.in_channels,
        "image_size": tokenizer.image_size,
        "mode": tokenizer.resize.mode,
        "crop_ratio": tokenizer.resize.crop_ratio,
        "interpolation": tokenizer.resize.interpolation,
        "max_pixels": tokenizer.resize.max_pixels,
    }


def audio_recipe(tokenizer: AudioTokenizer) -> Recipe:
    """Return the options of `programs/audio.py`."""
    limits = {"normalize": tokenizer.normalize, "max_seconds": tokenizer.reader.max_seconds}
    steps: dict[str, Any] = {"prepare": "audio", "sample_rate": tokenizer.sample_rate}
    spectrogram = tokenizer.spectrogram
    if spectrogram is None:
        return {**steps, "frontend": "waveform", **limits}
    options = spectrogram.options
    window = spectrogram.window_seconds
    if window is not None:
        limits["max_seconds"] = min(limits["max_seconds"], window)
    steps |= {
        "frontend": options.frontend,
        "n_fft": spectrogram.n_fft,
        "hop_length": spectrogram.hop_length,
        "num_frames": options.num_frames,
        "pad": options.pad,
        "filters": spectrogram.filters.tolist(),
    }
    if options.frontend == "mel":
        steps |= {"top_db": options.top_db, "floor": FLOOR}
    return {**steps, **limits}


def video_recipe(tokenizer: VideoTokenizer) -> Recipe:
    """Return the options of `programs/video.py`."""
    return {
        **image_recipe(tokenizer.image),
        "prepare": "video",
        "num_frames": tokenizer.sampling.num_frames,
        "fps": tokenizer.sampling.fps,
        "sampling": tokenizer.sampling.mode,
        "max_seconds": tokenizer.sampling.max_seconds,
        "max_frames": tokenizer.sampling.max_frames,
    }


def series_recipe(tokenizer: SeriesTokenizer) -> Recipe:
    """Return the options of `programs/series.py`."""
    return {
        "prepare": "series",
        "channels": tokenizer.reader.num_channels,
        "grid_size": None
        if tokenizer.reader.grid_size is None
        else list(tokenizer.reader.grid_size),
        "decimal": tokenizer.reader.decimal,
        "normalize": tokenizer.normalize,
        "mean": tokenizer.mean.tolist(),
        "std": tokenizer.std.tolist(),
        "num_steps": tokenizer.history_steps + tokenizer.ahead,
        "ahead": tokenizer.ahead,
        "num_known": tokenizer.num_known,
        "max_steps": tokenizer.max_steps,
        "min_relative_std": MIN_RELATIVE_STD,
        "constant_std": tokenizer.constant_std,
    }


def number_recipe(tokenizer: NumberTokenizer) -> Recipe:
    """Return the options of `programs/number.py`."""
    return {
        "prepare": "number",
        "format": asdict(tokenizer.reader.format),
        "center": tokenizer.center,
        "scale": tokenizer.scale,
        "max_value": number.MAX_VALUE,
        "max_number": number.MAX_NUMBER,
    }


def category_recipe(tokenizer: CategoryTokenizer) -> Recipe:
    """Return the options of `programs/category.py`."""
    return {
        "prepare": "category",
        "first_id": NUM_SPECIAL,
        "unknown_id": UNKNOWN,
        "separator": tokenizer.reader.separator,
        "codes": sorted(tokenizer.reader.codes),
        "values": list(tokenizer.choices),
    }


def date_recipe(tokenizer: DateTokenizer) -> Recipe:
    """Return the options of `programs/date.py`."""
    return {
        "prepare": "date",
        "day_first": tokenizer.reader.day_first,
        "has_times": tokenizer.reader.has_times is not False,
        "center": tokenizer.center,
        "scale": tokenizer.scale,
        "max_trend": date.MAX_TREND,
        "days_per_year": date.DAYS_PER_YEAR,
        "days_per_month": date.DAYS_PER_MONTH,
        "waves": {
            "weekday": date.WEEKDAY,
            "year": date.YEAR,
            "month": date.MONTH,
            "day": date.DAY,
        },
    }


# By modality. The inputs of other modalities can only be prepared with dxn.
INPUTS: dict[str, Callable[[Any], Recipe]] = {
    "text": text_recipe,
    "image": image_recipe,
    "audio": audio_recipe,
    "video": video_recipe,
    "series": series_recipe,
    "number": number_recipe,
    "category": category_recipe,
    "date": date_recipe,
}
