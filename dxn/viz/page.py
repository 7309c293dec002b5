"""The attention of a sample as JSON data, and as a page. attention.js draws both."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from dxn.viz.drawers import get_drawer
from dxn.viz.figure import HEAT_COLORS
from dxn.viz.html import TEMPLATES, json_script, write_page
from dxn.viz.rollout import rollout
from dxn.viz.sample import SampleView, coords_of

# One byte each, and a third more in base64. Browsers open larger pages slowly.
MAX_WEIGHTS = 4_000_000
SCRIPT = Path(__file__).with_name("attention.js")


def shares_data(view: SampleView, shares: np.ndarray) -> dict[str, Any]:
    """Return the attention of a sample as JSON data for the element <dxn-attention>.

    Args:
        view: The encoded sample.
        shares: (N,). Share of each column in the answer, see `token_shares`.

    Returns:
        The share, name and position of each real column, and the inputs. `attention_page` adds the
        weights of each block and head.
    """
    is_real = view.tokens.mask[0].cpu().numpy()
    return {
        "colors": HEAT_COLORS,
        "shares": [float(f"{share:.4g}") for share in shares[is_real]],
        "tokens": _columns(view),
        "inputs": _inputs(view),
    }


def attention_page(
    view: SampleView,
    shares: np.ndarray,
    maps: Sequence[Tensor],
    path: Path,
    *,
    heading: Mapping[str, Any],
    written: tuple[Sequence[str], Tensor] | None = None,
) -> list[str]:
    """Write the attention of a sample as an interactive HTML page.

    If there are more than MAX_WEIGHTS weights, the page contains only the mean over the heads of
    each block. If these are still too many, it contains only the rollout. For the cross-attention
    of a generated text, the page then contains only the mean over all blocks and heads.

    Args:
        view: The encoded sample.
        shares: (N,). Share of each column in the answer, which the page shows first.
        maps: One tensor (1, H, N, N) per block. Empty if only the decoder has attention.
        path: File to write.
        heading: The text at the top: "answer" in one line ("": none), "probabilities" of the most
            probable classes, "sample", "model", "note" about what has no attention, and "reader",
            whose attention it is (None: that of the answer).
        written: The T tokens of a generated text, and their cross-attention weights (L, H, T, N)
            for the L blocks and H heads of the decoder.

    Returns:
        Notes about the weights that were left out.
    """
    is_real = view.tokens.mask[0].cpu()
    notes: list[str] = []
    data = {
        **shares_data(view, shares),
        **_encoder_weights(maps, is_real, notes),
        "heading": heading,
        "written": None if written is None else _answer_weights(*written, is_real, notes),
        "notes": notes,
    }
    template = TEMPLATES / "attention.html"
    title = f"{heading['answer']}: attention" if heading["answer"] else "Attention"
    write_page(template, path, [SCRIPT], title=title, data=Markup(json_script(data)))
    return notes


def _encoder_weights(maps: Sequence[Tensor], is_real: Tensor, notes: list[str]) -> dict[str, Any]:
    """Return the weights between real columns by block and head, and their rollout."""
    blocks = [block[0].float().cpu()[:, is_real][..., is_real].numpy() for block in maps]
    # n real columns; padding is left out.
    depth = len(blocks)
    heads = len(blocks[0]) if blocks else 0
    n = int(is_real.sum())
    # Reduce in steps: first average over the heads, then keep only the rollout.
    if depth * heads * n * n > MAX_WEIGHTS:
        blocks = [block.mean(0, keepdims=True) for block in blocks]
        heads = 0
        notes.append(
            f"attention.html: more than {MAX_WEIGHTS:,} weights; only the mean of the heads is kept"
        )
    if depth * n * n > MAX_WEIGHTS:
        blocks = []
        depth = 0
        # This note replaces the one about the mean of the heads.
        notes.clear()
        notes.append(
            f"attention.html: more than {MAX_WEIGHTS:,} weights in the means of the heads; "
            "only the rollout is kept"
        )
    total = rollout([block[:1].float() for block in maps])[0].cpu() if maps else None
    return {
        "depth": depth,
        "heads": heads,  # 0: the maps are means over the heads
        "maps": [_packed(weights) for block in blocks for weights in block],
        "rollout": None if total is None else _packed(total[is_real][:, is_real].numpy()),
    }


def _answer_weights(
    words: Sequence[str], weights: Tensor, is_real: Tensor, notes: list[str]
) -> dict[str, Any]:
    """Return the cross-attention weights on real columns by block and head of the decoder."""
    real_weights = weights.float().cpu()[..., is_real]
    if real_weights.numel() > MAX_WEIGHTS:
        real_weights = real_weights.mean((0, 1), keepdim=True)
        notes.append(
            f"attention.html: the answer has more than {MAX_WEIGHTS:,} weights; "
            "only their mean is kept"
        )
    return {
        "names": list(words),
        "depth": real_weights.shape[0],
        "heads": real_weights.shape[1],
        "maps": [_packed(head) for head in real_weights.flatten(0, 1).numpy()],
    }


def _columns(view: SampleView) -> list[dict[str, Any]]:
    """Return the name, the input and the position of each real column.

    The position is that of `Drawer.boxes`. It is None for a token that has none.
    """
    columns: list[dict[str, Any]] = []
    for span in view.tokens.spans:
        boxes = np.zeros((len(span), 0))
        if span.name in view.inputs:
            shown = view.inputs[span.name]
            boxes = get_drawer(shown.modality).boxes(shown, coords_of(span))
        for i, box in enumerate(boxes):
            if view.tokens.mask[0, span.start + i]:
                is_placed = len(box) > 0 and not np.isnan(box).any()
                columns.append(
                    {
                        "name": view.names[span.start + i] or f"{span.name} {i + 1}",
                        "input": span.name,
                        # Three digits: a thousandth of a pixel, or a millisecond.
                        "coords": [round(v, 3) for v in box.tolist()] if is_placed else None,
                    }
                )
    return columns


def _inputs(view: SampleView) -> list[dict[str, Any]]:
    """Return the data of the raw inputs, in the order of the columns."""
    pages: list[dict[str, Any]] = []
    for span in view.tokens.spans:
        shown = view.inputs.get(span.name)
        if shown is not None:
            drawer = get_drawer(shown.modality)
            about = {"name": span.name, "modality": shown.modality, "unit": drawer.unit}
            pages.append({**about, **drawer.page(shown)})
    return pages


def _packed(weights: np.ndarray) -> dict[str, str]:
    """Quantize weights (T, N) to one byte each, and encode them in base64.

    Returns:
        "steps": uint8 (T, N), where 255 is the largest weight of the row. "largest": float32 (T,),
        the largest weight of each row.
    """
    largest = weights.max(1, keepdims=True)
    # 1e-30: a row of zeros stays zero.
    steps = np.rint(weights / np.maximum(largest, 1e-30) * 255).astype(np.uint8)
    # "<f4": the browser reads little-endian numbers, whatever the byte order of this machine.
    return {"steps": _base64(steps.tobytes()), "largest": _base64(largest.astype("<f4").tobytes())}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
