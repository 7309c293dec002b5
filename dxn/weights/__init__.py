"""Load public checkpoints as dxn models. There is one module per family of checkpoints."""

import importlib
from typing import Any

# The module that defines each name. They are imported on first use: few commands need the families.
_MODULES = {
    "Architecture": "family",
    "Checkpoint": "checkpoint",
    "Classifier": "family",
    "FAMILIES": "families",
    "Family": "family",
    "FillResult": "public",
    "PublicModel": "public",
    "TensorMap": "family",
    "TensorSource": "family",
    "all_families": "reading",
    "read_checkpoint": "checkpoint",
    "read_public": "reading",
    "required_options": "saving",
    "resize_tensor": "conversions",
    "to_original": "saving",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dxn.weights' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dxn.weights.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
