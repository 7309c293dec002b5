"""Load the model that a command names: a trained run, or a public checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dxn.errors import UserError
from dxn.run import model_folder
from dxn.run.dtypes import Dtype
from dxn.run.predictor import Predictor
from dxn.run.settings import Settings
from dxn.run.zero_shot import classifier


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
    labels = values.get("labels")
    return classifier(predictor, labels, values["template"]) if labels else predictor
