"""Load the model that a command names: a trained run, or a public checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dxn.core.display import prints
from dxn.core.errors import UserError
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.runs.saved.dtypes import Dtype
from dxn.runs.settings import Settings


def load_predictor(settings: Settings, *, dtype: Dtype | None = None) -> Predictor:
    """Load the trained model `run`, or the public checkpoint `weights`.

    With the option `labels`, the model becomes a classifier of these labels.

    Args:
        settings: Settings of the command.
        dtype: Data type of the weights. Default: that of the settings, or float32.

    Raises:
        UserError: If not exactly one of them is set, or it cannot be loaded.
    """
    values = settings.values
    # Not every command has the key weights.
    weights: Mapping[str, Any] = values.get("weights") or {"source": None}
    if (values["run"] is None) == (weights["source"] is None):
        raise UserError(
            "run: set run=RUN to use a trained model, or weights=... to use a public checkpoint"
        )
    device = values.get("device", "cpu")
    if device == "auto":
        # Only CUDA is chosen automatically: some operations do not exist on mps.
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Commands that show what happens inside of a model have no key dtype.
    chosen: Dtype = dtype or values.get("dtype", "float32")
    if values["run"] is not None:
        predictor = model_folder.load(
            values["run"], device=device, dtype=chosen, trust=settings.folder_trust
        )
    else:
        predictor = model_folder.from_public(
            weights["source"],
            revision=weights["revision"],
            part=weights["part"],
            strict=weights["strict"],
            device=device,
            dtype=chosen,
            trust=settings.folder_trust,
        )
    if dtype is None:
        if predictor.dtype != "float32":
            _tell(f"dtype: {predictor.dtype} (set dtype=float32 for exact results)")
        if values.get("compile"):
            _compile(predictor)
    if labels := values.get("labels"):
        from dxn.runs.predictor.zero_shot import classifier

        return classifier(predictor, labels, values["template"])
    return predictor


def _tell(line: str) -> None:
    """Print a line to stderr, because stdout may be a generated text."""
    from rich.console import Console

    Console(stderr=True, highlight=False, quiet=not prints()).print(line, markup=False)


def _compile(predictor: Predictor) -> None:
    """Use torch.compile, which is off by default.

    On a CPU, compiled blocks took 933 ms where the layers of dxn.models.inference took 778 ms
    (BERT-base, 64 sentences, bf16).
    """
    from dxn.models import compiling
    from dxn.models.blocks import set_compiled
    from dxn.models.inference import restore

    # torch.compile does not know the layout of packed weights.
    restore(predictor.model)
    compiling.on_failure = lambda reason: _tell(f"note: torch.compile is off: {reason}")
    set_compiled(predictor.model, True)
