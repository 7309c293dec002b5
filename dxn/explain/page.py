"""Attention as one HTML page, complete in itself: choose a block and a head, point at a token, see what it reads."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from dxn.explain.alignment import colours, spectrogram
from dxn.explain.attention import rollout
from dxn.tokens import Tokens

MAX_WEIGHTS = 4_000_000  # written, a byte each
SIDE = 512  # pixels of a picture's longer side
TEMPLATE = Path(__file__).with_name("page.html")


def write_page(
    maps: Sequence[Tensor],
    tokens: Tokens,
    names: Sequence[str],
    raw: Mapping[str, Any],
    path: Path,
    *,
    said: tuple[Sequence[str], Tensor] | None = None,
) -> list[str]:
    """Write the first sample's attention as a page; returns notes of what it leaves out.

    maps: (B, H, N, N) a block; names: of the N columns (see `token_names`); raw: as token_picture takes it. Weights
    are written in 255 steps of their row's largest. Beyond 4 million of them only the heads' means are kept, and
    where these are too many the rollout alone. said: of a model that writes its answer's tokens (T,), and how much
    each read of each column, by block and head of the decoder (L, H, T, N), beyond 4 million the mean of all; with it
    there may be no maps.
    """
    real = tokens.mask[0].cpu()
    whole = rollout([one[:1].float() for one in maps])[0].cpu()[real][:, real].numpy() if maps else None
    each = [one[0].float().cpu()[:, real][..., real].numpy() for one in maps]
    depth, heads, n = len(each), len(each[0]) if each else 0, int(real.sum())
    notes = []
    if depth * heads * n * n > MAX_WEIGHTS:
        each, heads = [one.mean(0, keepdims=True) for one in each], 0
        notes.append(f"attention.html: beyond {MAX_WEIGHTS:,} weights, so only the mean of each block's heads")
    if depth * n * n > MAX_WEIGHTS:
        each, depth = [], 0
        notes = [f"attention.html: the means alone are beyond {MAX_WEIGHTS:,} weights, so only the rollout"]
    answer = None
    if said is not None:
        looks = said[1].float().cpu()[..., real]
        if looks.numel() > MAX_WEIGHTS:
            looks = looks.mean((0, 1), keepdim=True)
            notes.append(f"attention.html: of what the answer read, beyond {MAX_WEIGHTS:,} weights, only the mean")
        answer = {
            "names": list(said[0]),
            "depth": looks.shape[0],
            "heads": looks.shape[1],
            "maps": [_packed(one) for one in looks.flatten(0, 1).numpy()],
        }
    data = {
        "depth": depth,
        "heads": heads,  # 0 where only their mean is there
        "tokens": _columns(tokens, names),
        "maps": [_packed(one) for block in each for one in block],
        "rollout": None if whole is None else _packed(whole),
        "said": answer,
        "notes": notes,
        **_inputs(raw),
    }
    # In a script element "<" is the only character that could end it; as \u003c it means the same.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text(encoding="utf-8").replace("{{data}}", text)
    path.write_text(page, encoding="utf-8", errors="replace")
    return notes


def _columns(tokens: Tokens, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each real column: its name, its modality and its place, None where it has none."""
    found = []
    for span in tokens.spans:
        for i in range(len(span)):
            if tokens.mask[0, span.start + i]:
                place = span.places[0, i].tolist()
                known = not any(value != value for value in place)
                name = names[span.start + i] or f"{span.modality} {i + 1}"
                where = [round(value, 3) for value in place] if known else None
                found.append({"name": name, "modality": span.modality, "place": where})
    return found


def _packed(weights: np.ndarray) -> dict[str, str]:
    """(T, N) as bytes, 255 at each row's largest, and that largest as float32; both base64."""
    largest = weights.max(1, keepdims=True)
    steps = np.rint(weights / np.maximum(largest, 1e-30) * 255).astype(np.uint8)
    return {"steps": _base64(steps.tobytes()), "largest": _base64(largest.astype("<f4").tobytes())}


def _inputs(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of the raw inputs; sizes in the units of their places."""
    shown: dict[str, Any] = {}
    if "text" in raw:
        shown["text"] = raw["text"] if isinstance(raw["text"], str) else " ".join(raw["text"])
    if "image" in raw:
        pixels = colours(raw["image"].permute(1, 2, 0).cpu().numpy())
        height, width = pixels.shape[:2]
        picture = Image.fromarray(pixels)
        picture.thumbnail((SIDE, SIDE))
        shown["image"] = {"source": _png(picture), "width": width, "height": height}
    if "audio" in raw:
        samples, rate = raw["audio"]
        levels = spectrogram(samples.cpu().numpy(), rate)[::-1]
        shown["audio"] = {
            "source": _png(Image.fromarray(np.ascontiguousarray(255 - levels))),
            "seconds": len(samples) / rate,
            "kilohertz": rate / 2000,
        }
    return shown


def _png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{_base64(file.getvalue())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
