"""The kind "sounds" of benchmarks/fuzz.py: audio files and sound tracks of a stranger."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import torch
from fuzz_bytes import mutate

from dxn.tokenize import AudioAdapter
from dxn.tokenize.audio_file import audio_rate
from dxn.tokenize.audio_options import SpectrogramOptions

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


class Sounds:
    """Mutated audio files, which are read and prepared as samples."""

    name = "sounds"

    def prepare(self, folder: Path) -> None:
        """Create valid files of all formats."""
        self.files = {**_sounds(), **_tracks()}
        spectrogram = SpectrogramOptions(n_mels=16, max_seconds=SECONDS)
        self.adapter = AudioAdapter(dim=8, sample_rate=RATE, spectrogram=spectrogram).prepare
        for name, content in self.files.items():
            path = folder / name
            path.write_bytes(content)
            self._use(path)

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Write a mutated file."""
        name = rand.choice(sorted(self.files))
        content, description = mutate(self.files[name], rand, list(self.files.values()))
        wrong = rand.choice(sorted(self.files)) if rand.random() < 0.02 else name
        (folder / wrong).write_bytes(content)
        return f"{name} as {wrong}: {description}"

    def use(self, folder: Path) -> Any:
        """Read the file as a path, which is how a data set names it."""
        (path,) = folder.iterdir()
        return self._use(path)

    def _use(self, path: Path) -> Any:
        raw = self.adapter.read(str(path))
        if raw is None:  # a video without a sound track
            return None
        assert raw.dtype == torch.float32 and raw.ndim == 1, raw
        assert bool(raw.isfinite().all()) and 0 < len(raw) <= SECONDS * RATE + RATE, raw.shape
        features = self.adapter(raw)["features"]
        assert bool(features.isfinite().all()), features
        assert audio_rate(str(path)) > 0
        return tuple(features.shape)


def make_kind() -> Sounds:
    """Return the kind, for benchmarks/fuzz.py."""
    return Sounds()


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
