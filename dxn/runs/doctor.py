"""`dxn doctor`: versions, devices and formats of this computer, and what is fast on it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import dxn
from dxn.core.runtime import choose_bf16, num_cores

# Packages whose versions matter in a report of a problem.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "tokenizers", "safetensors"),
    *("datasets", "pandas", "scikit-learn", "soundfile", "av", "pillow"),
)
# Packages of each extra, which the extra installs.
EXTRAS = {
    "serve": ("fastapi",),
    "export": ("onnxruntime",),
    "ray": ("ray",),
    "trackers": ("mlflow-skinny", "tensorboard"),
    "tune": ("optuna",),
}
# Decoders that the libraries may be built without, as PyAV and Pillow name them.
VIDEO = ("h264", "hevc", "vp9", "av1", "mpeg4", "gif")
SOUND = ("aac", "mp3", "opus", "vorbis", "flac")
PICTURES = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP"}
GIB = 2**30


def lines() -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"dxn: {dxn.__version__}"
    yield f"python: {platform.python_version()} ({sys.executable})"
    yield f"system: {platform.system()} {platform.release()} ({platform.machine()})"
    yield f"packages: {', '.join(f'{name} {_version(name)}' for name in PACKAGES)}"
    yield from _extras()
    yield from _devices()
    yield from _formats()
    device = torch.accelerator.current_accelerator() if _has_gpu() else None
    yield f"precision: {choose_bf16(device or torch.device('cpu'))[1]}"
    yield f"free disk space: {shutil.disk_usage(Path.cwd()).free / GIB:.1f} GiB in {Path.cwd()}"


def _extras() -> Iterator[str]:
    for extra, packages in EXTRAS.items():
        versions = [_version(package) for package in packages]
        installed = ", ".join(f"{n} {v}" for n, v in zip(packages, versions, strict=True) if v)
        advice = f"not installed (pip install 'dxn[{extra}]')"
        yield f"extra {extra}: {installed if all(versions) else advice}"


def _devices() -> Iterator[str]:
    memory = f", {_memory():.1f} GiB of memory" if _memory() else ""
    yield f"cpu: {num_cores()} cores, {torch.get_num_threads()} threads of torch{memory}"
    for i in range(torch.cuda.device_count()):
        used = torch.cuda.get_device_properties(i)
        yield f"cuda:{i}: {used.name}, {used.total_memory / GIB:.1f} GiB, CUDA {torch.version.cuda}"
    if torch.backends.mps.is_available():
        yield "mps: available (trainer.device=mps)"
    if not _has_gpu():
        yield "gpu: none that torch can use"


def _formats() -> Iterator[str]:
    import av.codec
    import soundfile
    from PIL import features

    pictures = [name for key, name in PICTURES.items() if features.check(key)]
    yield f"images: {', '.join([*pictures, 'BMP', 'GIF'])} (Pillow)"
    codecs = av.codec.codecs_available
    yield f"video: {', '.join(name for name in VIDEO if name in codecs)} (PyAV)"
    yield f"sound: {', '.join(name for name in SOUND if name in codecs)} (PyAV)"
    sounds = [
        name for name in ("WAV", "FLAC", "OGG", "MP3") if name in soundfile.available_formats()
    ]
    yield f"sound files: {', '.join(sounds)} (libsndfile {soundfile.__libsndfile_version__})"


def _has_gpu() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _memory() -> float:
    """Return the memory of the computer in GiB, 0 if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    except (AttributeError, ValueError, OSError):  # Windows
        return 0.0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
