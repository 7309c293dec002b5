"""dxn trains one transformer on text, images, audio and other inputs, as D×N token matrices.

import dxn

run = dxn.train("reviews.csv", target="label")
run.model.predict(text="a fine film")
model = dxn.load("outputs/label/2026-01-31_12-00-00.00")
model = dxn.from_public("google/vit-base-patch16-224")
model.predict(image="photo.jpg")
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from dxn.core.runtime import configure

if TYPE_CHECKING:
    from dxn.core.tokens import Tokens
    from dxn.python.run import Run
    from dxn.runs.predictor.predictor import Predictor
    from dxn.runs.saved.dtypes import Dtype

__version__ = "0.1.0"
__all__ = ["Predictor", "Run", "Tokens", "from_public", "load", "train"]

# These modules import torch, which takes seconds. They are imported on first use, so that
# `dxn --help` is fast.
_LAZY = {
    "Predictor": "dxn.runs.predictor.predictor",
    "Run": "dxn.python.run",
    "Tokens": "dxn.core.tokens",
}

# Before any import of torch, which reads the environment variables that it sets.
configure()


def load(
    folder: str | PathLike[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "auto",
    trust: Sequence[str] = (),
) -> Predictor:
    """Load a trained model from its run folder or model folder, or from the Hugging Face hub.

    Args:
        folder: Path of the folder, or hf://OWNER/NAME, optionally with a branch, tag or commit:
            hf://OWNER/NAME@REVISION.
        device: Device to run on, such as "cuda".
        dtype: Data type of the weights: float32, bf16, int8, or auto, which is bf16 if the model is
            large and bf16 is measured faster.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If a file is missing, changed or damaged, or the folder names code that is not
            trusted.
    """
    from dxn.runs.saved import hub, model_folder

    # str, because a Path would turn hf:// into hf:/.
    if isinstance(folder, str) and hub.is_hub(folder):
        folder = hub.download(folder, "load")
    return model_folder.load(folder, device=device, dtype=dtype, trust=trust)


def from_public(
    source: str,
    *,
    revision: str | None = None,
    part: str | None = None,
    strict: bool = True,
    device: str = "cpu",
    dtype: Dtype = "auto",
    trust: Sequence[str] = (),
) -> Predictor:
    """Load a public checkpoint, such as ViT, BERT or AST, with the interface of a trained model.

    Args:
        source: Path of a file or folder, or OWNER/NAME on the Hugging Face hub.
        revision: Branch, tag or commit on the hub.
        part: Modality to use, for a checkpoint with one tower per modality, such as CLIP.
        strict: Whether missing and unexpected tensors are an error.
        device: Device to run on, such as "cuda".
        dtype: Data type of the weights: float32, bf16, int8, or auto, which is bf16 if the model is
            large and bf16 is measured faster.
        trust: Top-level packages besides dxn whose code the family of the checkpoint may use.

    Raises:
        UserError: If the checkpoint cannot be read, or dxn does not support its architecture.
    """
    from dxn.runs.saved import model_folder

    return model_folder.from_public(
        source,
        revision=revision,
        part=part,
        strict=strict,
        device=device,
        dtype=dtype,
        trust=trust,
    )


def train(data: Any = None, *words: str, target: Any = None, **options: Any) -> Run:
    """Train a model, evaluate it, and write its run folder, see `dxn.python.training.train`."""
    from dxn.python import training

    return training.train(data, *words, target=target, **options)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dxn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
