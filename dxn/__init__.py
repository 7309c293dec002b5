"""dxn trains one transformer on text, images, audio and other inputs, as D×N token matrices.

import dxn

run = dxn.train("reviews.csv", target="label")
run.model.predict(text="a fine film")
model = dxn.load("outputs/label/2026-01-31_12-00-00.00")
model = dxn.from_public("google/vit-base-patch16-224")
model.predict(image="photo.jpg")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxn.api import Run, load, train
    from dxn.core.errors import UserError
    from dxn.core.tokens import Tokens, join
    from dxn.parts import Model
    from dxn.runs.predictor.predictor import Predictor
    from dxn.runs.saved.loading import from_public

__version__ = "0.2.0"
__all__ = [
    "Model",
    "Predictor",
    "Run",
    "Tokens",
    "UserError",
    "from_public",
    "join",
    "load",
    "train",
]

# These modules import torch, which takes seconds. They are imported on first use, so that
# `dxn --help` is fast, and `import dxn` changes nothing in the process.
_MODULES = {
    "Model": "dxn.parts",
    "Predictor": "dxn.runs.predictor.predictor",
    "Run": "dxn.api",
    "Tokens": "dxn.core.tokens",
    "UserError": "dxn.core.errors",
    "from_public": "dxn.runs.saved.loading",
    "join": "dxn.core.tokens",
    "load": "dxn.api",
    "train": "dxn.api",
}


def __getattr__(name: str) -> object:
    import warnings

    from dxn.core.parts import imported

    if name not in _MODULES:
        raise AttributeError(f"module 'dxn' has no attribute {name!r}")
    with warnings.catch_warnings():
        # In a notebook, tqdm warns that ipywidgets is missing. dxn shows its progress without it.
        warnings.filterwarnings("ignore", message="IProgress not found")
        value = imported(f"{_MODULES[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
