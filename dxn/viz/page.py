"""Write the attention of a sample as a single interactive HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.files import write_text
from dxn.core.printable import valid_text
from dxn.core.tokens import Span, Tokens
from dxn.viz.attention import rollout
from dxn.viz.drawers import Shown, get_drawer

# One byte each, and a third more in base64. Browsers open larger pages slowly.
MAX_WEIGHTS = 4_000_000
TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Heading:
    """The text at the top of the page.

    Args:
        answer: The answer of the model in one line. "": the model gives no answer.
        probabilities: The most probable classes and their probabilities.
        sample: Description of the sample.
        model: Name of the model.
        note: What also decides about the answer, and has no attention.
    """

    answer: str = ""
    probabilities: Sequence[tuple[str, float]] = ()
    sample: str = ""
    model: str = ""
    note: str = ""


def write_page(
    maps: Sequence[Tensor],
    tokens: Tokens,
    names: Sequence[str],
    inputs: Mapping[str, Shown],
    path: Path,
    *,
    shares: np.ndarray,
    heading: Heading = Heading(),
    written: tuple[Sequence[str], Tensor] | None = None,
) -> list[str]:
    """Write the attention of the first sample as an HTML page.

    If there are more than MAX_WEIGHTS weights, the page contains only the mean over the heads of
    each block. If these are still too many, it contains only the rollout. For the cross-attention
    of a generated text, the page then contains only the mean over all blocks and heads.

    Args:
        maps: One tensor (B, H, N, N) per block. Empty if only the decoder has attention.
        tokens: Encoded tokens.
        names: Names of the N columns, see `dxn.viz.attention.token_names`.
        inputs: The inputs by name.
        path: File to write.
        shares: (N,). Share of each column in the answer, see `token_shares`. The page shows them
            first.
        heading: The text at the top of the page.
        written: The T tokens of a generated text, and their cross-attention weights (L, H, T, N)
            for the L blocks and H heads of the decoder.

    Returns:
        Notes about the weights that were left out.
    """
    is_real = tokens.mask[0].cpu()
    notes: list[str] = []
    data = {
        **_encoder_weights(maps, is_real, notes),
        "heading": asdict(heading),
        **shares_data(tokens, names, inputs, shares),
        "written": None if written is None else _answer_weights(*written, is_real, notes),
        "notes": notes,
    }
    # A script element ends at "</script", which a text could contain. In JSON, \u003c is the same
    # character.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = TEMPLATE.read_text(encoding="utf-8")
    # The data last, because a text in it can contain {{digest}}.
    page = template.replace("{{digest}}", _digest(template)).replace("{{data}}", text)
    write_text(path, valid_text(page))
    return notes


def _digest(template: str) -> str:
    """Return the hash of the page's script. With it, the browser runs no other script.

    A text from data that became an element by a mistake could therefore not run code.
    """
    (script,) = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def shares_data(
    tokens: Tokens, names: Sequence[str], inputs: Mapping[str, Shown], shares: np.ndarray
) -> dict[str, Any]:
    """Return share, name and position of each real column, and the inputs, as JSON data.

    The arguments are those of `write_page`.
    """
    is_real = tokens.mask[0].cpu().numpy()
    return {
        "shares": [float(f"{share:.4g}") for share in shares[is_real]],
        "tokens": _columns(tokens, names, inputs),
        "inputs": _inputs(tokens, inputs),
    }


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
    kept = weights.float().cpu()[..., is_real]
    if kept.numel() > MAX_WEIGHTS:
        kept = kept.mean((0, 1), keepdim=True)
        notes.append(
            f"attention.html: the answer has more than {MAX_WEIGHTS:,} weights; "
            "only their mean is kept"
        )
    return {
        "names": list(words),
        "depth": kept.shape[0],
        "heads": kept.shape[1],
        "maps": [_packed(head) for head in kept.flatten(0, 1).numpy()],
    }


def _columns(
    tokens: Tokens, names: Sequence[str], inputs: Mapping[str, Shown]
) -> list[dict[str, Any]]:
    """Return the name, the input and the position of each real column.

    The position is that of `Drawer.boxes`. It is None for a token that has none.
    """
    columns: list[dict[str, Any]] = []
    for span in tokens.spans:
        boxes = _boxes(span, inputs)
        for i in range(len(span)):
            if tokens.mask[0, span.start + i]:
                box = [] if boxes is None else boxes[i].tolist()
                is_placed = bool(box) and not any(np.isnan(box))
                columns.append(
                    {
                        "name": names[span.start + i] or f"{span.name} {i + 1}",
                        "input": span.name,
                        # Three digits: a thousandth of a pixel, or a millisecond.
                        "coords": [round(value, 3) for value in box] if is_placed else None,
                    }
                )
    return columns


def _boxes(span: Span, inputs: Mapping[str, Shown]) -> np.ndarray | None:
    """Return the positions of the columns of a span in the page. None: it is no input."""
    if span.name not in inputs:
        return None
    shown = inputs[span.name]
    return get_drawer(shown.modality).boxes(shown, span.coords[0].cpu().numpy())


def _inputs(tokens: Tokens, inputs: Mapping[str, Shown]) -> list[dict[str, Any]]:
    """Return the data of the raw inputs, in the order of the columns."""
    pages: list[dict[str, Any]] = []
    for span in tokens.spans:
        shown = inputs.get(span.name)
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
