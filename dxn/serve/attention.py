"""The attention of a model on one sample, as the page draws it on the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dxn.runs.predictor.attention import MAX_WEIGHTS, Attention, attention_on
from dxn.runs.predictor.predictor import Predictor
from dxn.serve.prepare import Prepared
from dxn.serve.texts import GENERATED
from dxn.training.evaluate import to_device
from dxn.viz.page import shares_data
from dxn.viz.sample import SampleView


@torch.inference_mode()
def attention_of(predictor: Predictor, prepared: Prepared) -> Attention:
    """Return the attention of a model on a sample, without the maps of each block.

    Raises:
        UserError: If the model has no attention that can be drawn, or the sample is too long.
    """
    # dxn attend has no such limit, but a request must not fill the memory.
    batch = to_device(prepared.collate(prepared.items[:1]), predictor.device)
    found = attention_on(predictor, batch, list(prepared.cells[0]), max_weights=MAX_WEIGHTS)
    return replace(found, maps=[])


@torch.inference_mode()
def attention_data(predictor: Predictor, prepared: Prepared, found: Attention) -> dict[str, Any]:
    """Return the share of each token of a sample in the answer, and what to draw it on.

    To draw a picture or a sound takes longer than to compute its attention, so the model thread
    does not call this function.
    """
    # Without sources: a drawer may open a source that looks like a path.
    view = SampleView.of(found.encoded, predictor.adapters, prepared.raws(0))
    return {
        **shares_data(view, found.shares.cpu().numpy()),
        "note": found.limits,
        GENERATED: None if found.written is None else found.written.text,
    }
