"""The kind "sounds" of fuzz.py: audio files and sound tracks of an untrusted source."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import torch
from fuzz_media import MediaFiles

from dxn.tokenize import AudioAdapter
from dxn.tokenize.audio.reader import audio_rate
from dxn.tokenize.audio.spectrogram import SpectrogramOptions

RATE = 8000
SECONDS = 5
# Format and subtype of libsndfile by file name.
FORMATS = {
    "pcm.wav": ("WAV", "PCM_16"),
    "float.wav": ("WAV", "FLOAT"),
    "bytes.wav": ("WAV", "PCM_U8"),
    "packed.wav": ("WAV", "IMA_ADPCM"),
    "law.wav": ("WAV", "ULAW"),
    "exact.flac": ("FLAC", "PCM_16"),
    "lossy.ogg": ("OGG", "VORBIS"),
    "lossy.opus": ("OGG", "OPUS"),
    "lossy.mp3": ("MP3", "MPEG_LAYER_III"),
}
CONTAINERS = {"m4a": ("mp4", "aac"), "aac": ("adts", "aac"), "mkv": ("matroska", "pcm_s16le")}


def make_kind() -> MediaFiles:
    """Return the kind, for fuzz.py."""
    spectrogram = SpectrogramOptions(n_mels=16, max_seconds=SECONDS)
    tokenizer = AudioAdapter(dim=8, sample_rate=RATE, spectrogram=spectrogram).tokenizer

    def read(path: Path) -> tuple[int, ...] | None:
        raw = tokenizer.reader.read(str(path))
        if raw is None:  # a video without a sound track
            return None
        assert raw.dtype == torch.float32 and raw.ndim == 1, raw
        assert bool(raw.isfinite().all()) and 0 < len(raw) <= SECONDS * RATE + RATE, raw.shape
        features = tokenizer(raw)["features"]
        assert bool(features.isfinite().all()), features
        assert audio_rate(str(path)) > 0
        return tuple(features.shape)

    return MediaFiles("sounds", {**_sounds(), **_tracks()}, read)


def _sounds() -> dict[str, bytes]:
    noise = np.random.default_rng(0).normal(0, 0.1, (RATE, 2))
    files = {}
    for name, (kind, subtype) in FORMATS.items():
        file = io.BytesIO()
        soundfile.write(file, noise, RATE, format=kind, subtype=subtype)
        files[name] = file.getvalue()
    return files


def _tracks() -> dict[str, bytes]:
    noise = np.random.default_rng(0).normal(0, 0.1, (1, RATE)).astype(np.float32)
    files = {}
    for suffix, (container_format, codec) in CONTAINERS.items():
        file = io.BytesIO()
        with av.open(file, "w", format=container_format) as container:
            stream: Any = container.add_stream(codec, rate=RATE, layout="mono")
            samples, kind = (noise, "fltp")
            if codec == "pcm_s16le":
                samples, kind = ((noise * 32767).astype(np.int16), "s16")
            frame = av.AudioFrame.from_ndarray(samples, format=kind, layout="mono")
            frame.sample_rate = RATE
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        files[f"track.{suffix}"] = file.getvalue()
    return files
