"""Load the model that a command names: a trained run, or a public checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.runs.saved.dtypes import Dtype
from dxn.runs.saved.public import from_public

if TYPE_CHECKING:
    from dxn.commands.options import Weights


def load_predictor(
    run: str | None,
    weights: Weights | None = None,
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    labels: Sequence[str] = (),
    template: str = "{}",
    trust: Sequence[str] = (),
    head: Mapping[str, Any] | None = None,
) -> Predictor:
    """Load a trained model, or a public checkpoint, for a command.

    Args:
        run: Run folder or model folder.
        weights: The public checkpoint.
        device: auto, cpu, cuda or mps.
        dtype: Data type of the weights, which is printed if it is not float32.
        labels: Names of classes, of which the model becomes a classifier.
        template: Text of a class.
        trust: Top-level packages besides dxn whose code the folder may use.
        head: Options of the head of the public checkpoint.

    Raises:
        UserError: If not exactly one of `run` and `weights` is set, or it cannot be loaded.
    """
    source = None if weights is None else weights.source
    if (run is None) == (source is None):
        raise UserError(
            "run: set run=RUN to use a trained model, or weights=... to use a public checkpoint"
        )
    if head and run is not None:
        raise UserError(
            f"head: a run has its own options, got {', '.join(head)}; use it only with weights=..."
        )
    if device == "auto":
        # Only CUDA is chosen automatically: some operations do not exist on mps.
        device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = None
    scale = 1.0
    if run is not None:
        predictor = model_folder.load(run, device=device, dtype=dtype, trust=trust)
    else:
        assert weights is not None and source is not None
        load = partial(
            from_public,
            source,
            revision=weights.revision,
            strict=weights.strict,
            device=device,
            dtype=dtype,
            trust=trust,
            head=head,
        )
        part = weights.part
        if labels:
            if part is not None:
                raise UserError(
                    "weights.part: cannot be combined with labels, which use both towers, got "
                    f"{part}; leave one of them out"
                )
            from dxn.weights.public import find_towers

            part, texts_part, scale = find_towers(source, revision=weights.revision)
            texts = load(part=texts_part)
        predictor = load(part=part)
    if predictor.dtype != "float32":
        line = f"dtype: {predictor.dtype} (set dtype=float32 for exact results)"
        print_line(line, stderr=True)
    if not labels:
        return predictor
    from dxn.runs.predictor import zero_shot

    if texts is not None:
        return zero_shot.tower_classifier(predictor, texts, labels, template, scale=scale)
    return zero_shot.classifier(predictor, labels, template)
