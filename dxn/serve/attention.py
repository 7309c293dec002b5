"""The attention of a model on one sample, as the page draws it on the inputs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from dxn.errors import UserError
from dxn.explain.attention import recorded, token_names
from dxn.explain.page import shares_data
from dxn.run.attention import answer_of, backbone_of, obstacle_of, shares_of, shown_inputs
from dxn.run.predictor import Predictor
from dxn.serve.prepare import Prepared
from dxn.serve.texts import GENERATED
from dxn.tasks import Writes
from dxn.train.evaluate import to_device

# All attention weights of a sample, 4 bytes each. dxn attend has no such limit, but a request must
# not fill the memory.
MAX_WEIGHTS = 50_000_000


@torch.inference_mode()
def attention_data(predictor: Predictor, prepared: Prepared) -> dict[str, Any]:
    """Return the share of each token of a sample in the answer, and where to draw it.

    Raises:
        UserError: If the model has no attention that can be drawn, or the sample is too long.
    """
    model = predictor.model
    sample = prepared.cells[0]
    generates_text = isinstance(predictor.task, Writes)
    backbone = backbone_of(model, sample)
    obstacle = obstacle_of(predictor, backbone, sample)
    if obstacle and not generates_text:
        raise UserError(f"attention: {obstacle}")
    embedded = model.embed(to_device(prepared.collate(prepared.items[:1]), predictor.device))
    if not obstacle:
        _check_size(backbone, sum(tokens.x.shape[1] for tokens in embedded))
    # `recorded` needs the blocks of a transformer: without them, the list of maps stays empty.
    with nullcontext([]) if obstacle else recorded(backbone) as maps:
        encoded, _ = model.encode(embedded)
    maps = [block.float() for block in maps]
    written = answer_of(predictor, encoded) if generates_text else None
    shares = shares_of(maps, encoded, written, model.fusion.pool.kind).cpu().numpy()
    # Without sources: a drawer may open a source that looks like a path.
    shown = shown_inputs(predictor.adapters, prepared.raws(0))
    names = token_names(encoded, shown)
    data = shares_data(encoded, names, shown, shares)
    return {**data, GENERATED: None if written is None else written.text}


def _check_size(backbone: Any, num_tokens: int) -> None:
    blocks = list(backbone.blocks)
    heads = getattr(blocks[0].attn, "num_heads", 1)
    if len(blocks) * heads * num_tokens**2 > MAX_WEIGHTS:
        raise UserError(
            f"attention: {num_tokens:,} tokens are too many to draw their attention; send a "
            "shorter input, or use dxn attend"
        )
