"""What a model looked at: attention by block and head, its rollout, and both drawn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dxn.explain.pictures import draw_raw, raw_height
from dxn.explain.plots import new_figure, save
from dxn.models import Backbone
from dxn.tokens import Tokens

LABELLED = 24  # tokens up to which each has room for its name


@contextmanager
def recorded(backbone: Backbone) -> Iterator[list[Tensor]]:
    """A list that fills, while the context lasts, with the weights (B, H, N, N) of every block that is run."""
    maps: list[Tensor] = []

    def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
        given = dict(zip(("x", "bias", "rotation", "cache"), args, strict=False)) | kwargs
        maps.append(module.weights(given["x"], given.get("bias"), given.get("rotation")))  # pyright: ignore

    hooks = [block.attn.register_forward_pre_hook(record, with_kwargs=True) for block in backbone.blocks]  # pyright: ignore
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def rollout(maps: Sequence[Tensor]) -> Tensor:
    """(B, N, N): how much of each input token is in each output token (arXiv:2005.00928, 4.1).

    The heads' mean, half of it the residual, block after block. maps: (B, H, N, N) a block; rows sum to 1.
    """
    n = maps[0].shape[-1]
    whole = torch.eye(n, dtype=maps[0].dtype, device=maps[0].device)
    for one in maps:
        whole = (one.mean(1) + torch.eye(n, dtype=one.dtype, device=one.device)) / 2 @ whole
    return whole


def shares(maps: Sequence[Tensor], mask: Tensor, pool: str) -> Tensor:
    """(B, N): how much each token counts in the pooled vector, by rollout; sums to 1, padding has none.

    pool: first and last read that token's row, cls and leading the leading one's, all others the mean of the real.
    """
    whole = rollout(maps) * mask[:, None]
    if pool in ("cls", "leading", "leading_cat", "first"):
        rows = mask.int().argmax(1)
    elif pool == "last":
        rows = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    else:
        real = mask[..., None] / mask.sum(1)[:, None, None]
        found = (whole * real).sum(1)
        return found / found.sum(1, keepdim=True)
    found = whole[torch.arange(len(mask), device=mask.device), rows]
    return found / found.sum(1, keepdim=True)


def heads_picture(
    maps: Sequence[Tensor], names: Sequence[str], path: Path, *, parts: Mapping[str, int] | None = None
) -> None:
    """Draw the first sample's weights as a PNG: a row a block, a column a head; rows read, columns are read.

    names: of the tokens; parts: how many of them each modality has, in order. Each map is coloured on its own scale.
    """
    parts = dict(parts or {})
    edges = np.cumsum(list(parts.values()))
    middles = edges - np.array(list(parts.values())) / 2 - 0.5
    n, depth, heads = len(names), len(maps), maps[0].shape[1]
    side = 1.5 if n > LABELLED else max(1.5, 0.17 * n)
    figure = new_figure(side * heads + 1.6, side * depth + 0.9)
    grid = figure.subplots(depth, heads, squeeze=False)
    for block, row in enumerate(grid):
        for head, axis in enumerate(row):
            axis.imshow(maps[block][0, head, :n, :n].float().cpu().numpy(), cmap="Blues", vmin=0)
            axis.set_xticks([])
            axis.set_yticks([])
            for edge in edges[:-1]:
                axis.axhline(edge - 0.5, color="black", linewidth=0.4)
                axis.axvline(edge - 0.5, color="black", linewidth=0.4)
            if block == 0:
                axis.set_title(f"head {head + 1}", fontsize=8)
            if head == 0:
                axis.set_ylabel(f"block {block + 1}", fontsize=8)
                _ticks(axis.set_yticks, names, parts, middles)
            if block == depth - 1:
                _ticks(axis.set_xticks, names, parts, middles, rotation=90)
            axis.tick_params(length=0)
            axis.spines[:].set_linewidth(0.5)
    save(figure, path)


def _ticks(put, names: Sequence[str], parts: Mapping[str, int], middles: np.ndarray, **style) -> None:
    """Each token's name where there is room, or each modality's in the middle of its own."""
    if len(names) <= LABELLED:
        put(range(len(names)), names, fontsize=6, **style)
    else:
        put(middles, list(parts), fontsize=7, **style)


def shares_picture(raw: Mapping[str, Any], tokens: Tokens, share: np.ndarray, path: Path) -> None:
    """Draw the first sample's raw inputs as a PNG, darker where a token counts for more (share (N,), see `shares`).

    raw: as token_picture takes it; each modality is shaded on its own scale, its title says what it counts in all.
    """
    spans = [span for span in tokens.spans if span.modality in raw]
    heights = [raw_height(span.modality, raw[span.modality]) for span in spans]
    figure = new_figure(9, sum(heights) + 0.6)
    axes = figure.subplots(len(spans), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, span in zip(axes, spans, strict=True):
        real = tokens.mask[0, span.start : span.stop].cpu().numpy()
        places, mine = span.places[0].cpu().numpy()[real], share[span.start : span.stop][real]
        there = ~np.isnan(places).any(1)
        draw_raw(axis, span.modality, raw[span.modality], places[there], mine[there] / (float(mine.max()) or 1.0))
        axis.set_title(f"{span.modality}: {mine.sum():.0%} of what counted", loc="left", fontsize=10)
    save(figure, path)


def token_names(tokens: Tokens, pieces: Sequence[str]) -> list[str]:
    """A name for each column of the first sample, padding too: its subword, its patch's number, its second.

    pieces: of the text's columns, in order; further columns of text (runs of subwords) have no name.
    """
    names: list[str] = []
    for span in tokens.spans:
        for i in range(len(span)):
            place = span.places[0, i].tolist()
            if span.modality == "text":
                names.append(pieces[i] if i < len(pieces) else "")
            elif span.modality == "audio":
                names.append(f"{place[0]:.2f} s")
            else:
                names.append(f"{span.modality} {i + 1}")
    return names
