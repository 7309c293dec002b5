"""What a model looked at: attention by block and head, its rollout, words against words and against the rest."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from torch import Tensor, nn

from dxn.explain.alignment import colours, draw_cells, draw_sound, fonts, shortened, timeline
from dxn.explain.pictures import draw_raw, raw_height
from dxn.explain.plots import BLUE, new_figure, save
from dxn.models import Backbone
from dxn.tokens import Tokens

LABELLED = 24  # tokens up to which each has room for its name
ARCED = 40  # words up to which a line of them with arcs can be read
COLOURED = 8  # heads up to which each has a colour of its own
FAINTEST = 0.1  # of a block's largest weight that an arc needs to be drawn
ARCS = 4  # a word and block, in the mean, of the largest weights
ACROSS = 16  # words up to which each has its copy of the input


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
        put(range(len(names)), shortened(names), fontsize=6, family=fonts(), parse_math=False, **style)
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


def arcs_picture(maps: Sequence[Tensor], words: Sequence[str], path: Path) -> None:
    """Draw words against words as a PNG: a line of the first sample's words a block, an arc from each to what it reads.

    maps: (B, H, N, N) a block, of these N words. Arcs to earlier words are above the line and those to later ones
    below, thicker for a larger weight, a colour a head (of more than 8 the mean, in one); the boxes behind the words
    are darker where one reads itself. A block has its largest weights, four times as many as words, none of them
    below a tenth of the largest.
    """
    heads = maps[0].shape[1]
    names = shortened(words)
    widths = np.array([max(len(name), 2) + 1.5 for name in names])
    middles = np.cumsum(widths) - widths / 2
    kinds: list[str] = [f"C{head}" for head in range(heads)] if heads <= COLOURED else [BLUE]
    figure = new_figure(max(0.095 * widths.sum() + 0.6, 5), 2.3 * len(maps) + 0.7)
    axes = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
    for block, (axis, one) in enumerate(zip(axes, maps, strict=True), 1):
        weights = one[0].float().cpu().numpy()
        _arcs(axis, weights if heads <= COLOURED else weights.mean(0, keepdims=True), middles, kinds)
        itself = np.diagonal(weights.mean(0))
        for name, middle, share in zip(names, middles, itself, strict=True):
            box = {"boxstyle": "round,pad=0.2", "facecolor": to_rgba(BLUE, 0.45 * float(share)), "edgecolor": "none"}
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "family": fonts()}
            axis.text(middle, 0, name, bbox=box, parse_math=False, **style)
        axis.set_title(f"block {block}", loc="left", fontsize=9)
        axis.set(xlim=(0, widths.sum()), ylim=(-1.25, 1.25))
        axis.set_axis_off()
    if heads <= COLOURED:
        shown = [axes[0].plot([], color=kind, label=f"head {head}")[0] for head, kind in enumerate(kinds, 1)]
        figure.legend(handles=shown, ncols=4, loc="outside lower left", frameon=False, fontsize=8)
    else:
        figure.supxlabel(f"mean of {heads} heads", fontsize=8, x=0.02, ha="left")
    figure.suptitle(
        "the largest weights; above: reads earlier words, below: later ones, box: itself", fontsize=9, x=0.02, ha="left"
    )
    save(figure, path)


def _arcs(axis: Axes, weights: np.ndarray, middles: np.ndarray, kinds: Sequence[str]) -> None:
    """Half ellipses for weights (H, N, N) between words at `middles`, the strongest on top."""
    others = weights * (1 - np.eye(len(middles)))
    largest = others.max() or 1.0
    found = np.argwhere(others >= FAINTEST * largest)
    found = found[np.argsort(others[tuple(found.T)])][-ARCS * len(middles) :]
    turn = np.linspace(0, np.pi, 33)
    longest = np.ptp(middles) or 1.0
    lines, shades, widths = [], [], []
    for head, reader, read in found:
        start, stop = middles[reader], middles[read]
        side = 1.0 if stop < start else -1.0
        nudge = 0.35 * (head - (len(weights) - 1) / 2)  # so that heads are not one on the other
        x = (start + stop) / 2 + (start - stop) / 2 * np.cos(turn) + nudge
        lines.append(np.stack([x, side * (0.2 + np.sin(turn) * (abs(stop - start) / longest) ** 0.6)], 1))
        share = float(others[head, reader, read] / largest)
        shades.append(to_rgba(str(kinds[head]), 0.15 + 0.75 * share))
        widths.append(0.4 + 2.6 * share)
    axis.add_collection(LineCollection(lines, colors=shades, linewidths=widths, capstyle="round"))


def across_picture(
    weights: np.ndarray, words: Sequence[str], parts: Mapping[str, tuple[Any, np.ndarray, np.ndarray]], path: Path
) -> None:
    """Draw where each word looks in another modality as a PNG: the input once for each word, brighter where it reads.

    weights (T, N): a row a word; parts: of image and audio the raw input as token_picture takes it, the columns (k,)
    that are its own, and their places (k, 4) or (k, 2). Each copy is on its own scale, its title says what the word
    reads of the modality in all.
    """
    tallest = {name: 1.4 if name == "audio" else 1.7 for name in parts}
    wide = {name: min(4 if name == "audio" else 8, len(words)) for name in parts}
    lines = {name: -(-len(words) // wide[name]) for name in parts}
    heights = [tallest[name] * lines[name] + 0.3 for name in parts]
    figure = new_figure(max(wide[name] * (2.6 if name == "audio" else 1.5) for name in parts), sum(heights) + 0.3)
    figure.suptitle("last block, mean of its heads: what each word reads", fontsize=10, x=0.02, ha="left")
    panels = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for panel, (name, (raw, columns, places)) in zip(panels, parts.items(), strict=True):
        grid = list(panel.subplots(lines[name], wide[name], squeeze=False).flat)
        for axis in grid[len(words) :]:
            axis.set_axis_off()
        for axis, word, row in zip(grid, shortened(words), weights[:, columns], strict=False):
            if name == "image":
                draw_cells(axis, colours(raw.permute(1, 2, 0).cpu().numpy()), places, row)
            else:
                samples, rate = raw[0].cpu().numpy(), raw[1]
                line = timeline(row[None], places, len(samples) / rate)[0]
                draw_sound(axis, samples, rate, line / (line.max() or 1.0))
                axis.tick_params(labelsize=6, length=2)
            axis.set_title(f"{word}: {row.sum():.0%}", fontsize=8, family=fonts(), parse_math=False)
        if name == "audio":
            panel.supxlabel("seconds, kHz", fontsize=7)
    save(figure, path)


def word_pictures(
    maps: Sequence[Tensor], tokens: Tokens, pieces: Sequence[str], raw: Mapping[str, Any], folder: Path
) -> tuple[list[Path], list[str]]:
    """arcs.png and across.png of the first sample, where it has text, and a note where one of them leaves words out.

    maps: (B, H, N, N) a block, of all columns; pieces: names of the text's subwords; raw: as token_picture takes it.
    """
    text = next((span for span in tokens.spans if span.modality == "text" and pieces), None)
    if text is None:
        return [], []
    written, notes = [], []
    columns = text.start + torch.arange(len(pieces))
    if len(pieces) <= ARCED:
        arcs_picture([one[:1, :, columns][..., columns] for one in maps], pieces, folder / "arcs.png")
        written.append(folder / "arcs.png")
    else:
        notes.append(f"no arcs.png: it has room for {ARCED} subwords, the text has {len(pieces)}")
    parts = {}
    for span in tokens.spans:
        own = span.start + tokens.mask[0, span.start : span.stop].cpu().nonzero().flatten()
        if span.modality in ("image", "audio") and span.modality in raw and len(own):
            places = span.places[0].cpu().numpy()[own.numpy() - span.start]
            parts[span.modality] = raw[span.modality], own.numpy(), places
    if parts:
        columns = columns[~text.places[0, : len(pieces)].cpu().isnan().any(1)]
        weights = maps[-1][0].float().mean(0).cpu().numpy()[columns[:ACROSS].numpy()]
        words = [str(pieces[i - text.start]) for i in columns[:ACROSS].tolist()]
        across_picture(weights, words, parts, folder / "across.png")
        written.append(folder / "across.png")
        if len(columns) > ACROSS:
            notes.append(f"across.png: the first {ACROSS} of {len(columns)} subwords")
    return written, notes


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
