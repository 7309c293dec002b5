"""What is hidden of words, pictures and sounds, for a model to guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from dxn.errors import UserError


@dataclass(frozen=True)
class Hidden:
    """What a modality's b rows are shown, and what of it is to be guessed.

    shown: the collated batch without what is hidden. columns (b, N) bool, True at the M columns to guess; the adapter
    may make further ones. content: what stood there, subwords' ids (M,) or numbers (M, K). real (M, K) bool: which
    of the numbers are part of the picture or the sound, and no filling; none for ids.
    """

    shown: Mapping[str, Tensor]
    columns: Tensor
    content: Tensor
    real: Tensor | None = None


@dataclass(frozen=True)
class Hiding:
    """How much is hidden of each modality; 0 hides nothing of it.

    Args:
        text: probability that a subword is to be guessed.
        image: share of each picture's patches.
        audio: share of each sound's columns.
        span: columns of a sound that are hidden in a run, less in a sound so short that its share is less.
    """

    text: float = 0.15
    image: float = 0.6
    audio: float = 0.4
    span: int = 5

    def __post_init__(self):
        for name, value in (("text", self.text), ("image", self.image), ("audio", self.audio)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and under 1, got {value}")
        if self.span < 1:
            raise ValueError(f"span must be at least 1, got {self.span}")

    def check(self, adapters: Mapping[str, Any], *, key: str) -> None:
        """UserError where nothing would be hidden of what these adapters take, or could not be."""
        if not any(self.share(name) for name in adapters):
            names = ", ".join(adapters)
            raise UserError(f"{key}.hiding: nothing is hidden of {names}; raise its share, or leave {key} out")
        if "text" in adapters and self.text and adapters["text"].prepare.mask_id is None:
            raise UserError(f"{key}.hiding.text: the text's tokenizer has no [MASK] to hide words with; set it to 0")

    def share(self, modality: str) -> float:
        """Of one modality."""
        return {"text": self.text, "image": self.image, "audio": self.audio}[modality]

    def hiders(self, adapters: Mapping[str, Any]) -> dict[str, HideWords | HidePatches | HideRuns]:
        """What hides each modality of which anything is hidden."""
        made = {
            "text": lambda adapter: HideWords(adapter, share=self.text),
            "image": lambda adapter: HidePatches(adapter, share=self.image),
            "audio": lambda adapter: HideRuns(adapter, share=self.audio, span=self.span),
        }
        return {name: made[name](adapter) for name, adapter in adapters.items() if self.share(name)}


class HideWords:
    """Of a text adapter's batch, subwords."""

    def __init__(self, adapter: Any, *, share: float):
        self.adapter, self.share = adapter, share

    def __call__(self, batch: Mapping[str, Tensor], draw: torch.Generator) -> Hidden:
        """A collated batch to what is hidden of it: ids (M,)."""
        prepare = self.adapter.prepare
        assert prepare.mask_id is not None
        chosen, shown = hide(
            batch["ids"],
            batch["mask"],
            self.share,
            draw,
            vocab_size=len(self.adapter.table.weight),
            special_ids=prepare.special_ids,
            mask_id=prepare.mask_id,
        )
        return Hidden({"ids": shown}, chosen, batch["ids"][chosen])


def hide(
    ids: Tensor,
    mask: Tensor,
    share: float,
    draw: torch.Generator,
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    mask_id: int,
) -> tuple[Tensor, Tensor]:
    """Which of ids (B, N) are to be guessed (B, N) bool, never padding or a special one; and the ids to show."""
    luck = torch.rand(ids.shape, generator=draw, device=ids.device)
    special = torch.tensor(list(special_ids), device=ids.device)
    chosen = mask & ~torch.isin(ids, special) & (luck < share)
    other = torch.randint(vocab_size, ids.shape, generator=draw, device=ids.device)
    other = torch.where(torch.isin(other, special), ids, other)
    shown = torch.where(chosen & (luck < 0.8 * share), mask_id, ids)
    return chosen, torch.where(chosen & (luck >= 0.8 * share) & (luck < 0.9 * share), other, shown)


class HideCells:
    """What pictures and sounds share: columns that each stand for a rectangle of a grid (C, H, W), row by row.

    Hidden are whole tiles of the grid, and a column is guessed where all that it stands for is: so nothing of it is
    seen in columns that overlap it, nor by a convolution whose reach is wider than its column.

    Args:
        cut: height and width of what a column stands for.
        stride: from one column to the next.
        channels: C.
        pad_end: whether the last column along each side is filled up, or what is over left out.
        conv: whether a convolution makes the columns: it makes one of what is over too, which the adapter masks.
    """

    def __init__(
        self, *, cut: tuple[int, int], stride: tuple[int, int], channels: int, conv: bool, pad_end: bool = True
    ):
        self.cut, self.stride, self.pad_end, self.conv = cut, stride, pad_end, conv
        self.size = channels * cut[0] * cut[1]

    def found(self, x: Tensor, sizes: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns to guess (B, N), their contents (M, K) and which of these are real (M, K).

        x (B, C, H, W); sizes (B, 2): each grid's own height and width; hidden (B, H, W).
        """
        height, width = self._grid(x)
        own = inside(self._steps(sizes, pad_end=self.pad_end), height, width).flatten(1)
        real = self._columns(inside(sizes, *x.shape[2:])[:, None].expand_as(x))
        columns = own & ~(real & ~self._columns(hidden[:, None].expand_as(x))).any(-1)
        return columns, self._columns(x)[columns], real[columns]

    def _columns(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) to what its columns stand for (B, N, C h w), filled up with zeros."""
        need = [(n - 1) * s + c for n, s, c in zip(self._grid(x), self.stride, self.cut, strict=True)]
        x = F.pad(x, (0, need[1] - x.shape[3], 0, need[0] - x.shape[2]))
        x = x.unfold(2, self.cut[0], self.stride[0]).unfold(3, self.cut[1], self.stride[1])
        return rearrange(x, "b c h w p q -> b (h w) (c p q)")

    def _grid(self, x: Tensor) -> list[int]:
        """Columns along height and width of x (B, C, H, W), padding included."""
        return self._steps(torch.tensor(x.shape[2:]), pad_end=self.pad_end or self.conv).tolist()

    def _steps(self, sizes: Tensor, *, pad_end: bool) -> Tensor:
        """Heights and widths (..., 2) in columns, as the adapters count them."""
        cut, stride = sizes.new_tensor(self.cut), sizes.new_tensor(self.stride)
        over = (sizes - cut).clamp(min=0)
        return (over + (stride - 1 if pad_end else 0)) // stride + 1


class HidePatches(HideCells):
    """Of an image adapter's batch, patches."""

    def __init__(self, adapter: Any, *, share: float):
        sides = (adapter.patch_size, adapter.stride)
        channels = adapter.prepare.in_channels
        conv = adapter.stem is not None
        super().__init__(cut=(sides[0], sides[0]), stride=(sides[1], sides[1]), channels=channels, conv=conv)
        self.adapter, self.share = adapter, share

    def __call__(self, batch: Mapping[str, Tensor], draw: torch.Generator) -> Hidden:
        """A collated batch to what is hidden of it: pixels (M, C P P), each patch of mean 0 and deviation 1."""
        mean, std = (rearrange(v, "c -> c 1 1") for v in (self.adapter.mean, self.adapter.std))
        pixels, sizes = batch["pixels"].to(mean.dtype), batch["sizes"]
        run = -(-self.cut[0] // self.stride[0])  # patches from one to the next that it shares no pixel with
        runs = torch.full_like(sizes, run)
        hidden = hide_tiles(sizes, pixels.shape[2:], self.stride, runs, self.share, draw)
        columns, content, real = self.found((pixels / 255 - mean) / std, sizes, hidden)
        shown = torch.where(hidden[:, None], mean * 255, pixels)  # 0 once the adapter normalises
        return Hidden({"pixels": shown}, columns, standardised(content, real), real)


class HideRuns(HideCells):
    """Of an audio adapter's batch, runs of columns; of a spectrogram's patches, all of the same time."""

    def __init__(self, adapter: Any, *, share: float, span: int):
        (bins, frames), (up, on) = adapter.cut, adapter.stride
        conv = adapter.stem is not None
        super().__init__(cut=(frames, bins), stride=(on, up), channels=1, conv=conv, pad_end=adapter.pad_end)
        self.adapter, self.share, self.span = adapter, share, span

    def __call__(self, batch: Mapping[str, Tensor], draw: torch.Generator) -> Hidden:
        """A collated batch to what is hidden of it: numbers (M, frames bins), as the adapter normalises them."""
        mean, features, lengths = self.adapter.mean, batch["features"], batch["lengths"]
        sizes = torch.stack([lengths, torch.full_like(lengths, features.shape[2])], 1)
        steps = (lengths + self.stride[0] - 1) // self.stride[0]
        run = (self.share * steps).round().long().clamp(max=self.span).clamp(min=-(-self.cut[0] // self.stride[0]))
        runs, stride = torch.stack([run, torch.ones_like(run)], 1), (self.stride[0], features.shape[2])
        hidden = hide_tiles(sizes, features.shape[1:], stride, runs, self.share, draw)
        columns, content, real = self.found(((features - mean) / self.adapter.std)[:, None], sizes, hidden)
        return Hidden({"features": torch.where(hidden, mean, features)}, columns, content, real)


def hide_tiles(
    sizes: Tensor,
    shape: Sequence[int],
    stride: tuple[int, int],
    runs: Tensor,
    share: float,
    draw: torch.Generator,
) -> Tensor:
    """Which places of grids (B, H, W), shape H and W, are hidden: tiles at random, the same share of each grid's.

    sizes (B, 2): each grid's own height and width; nothing is hidden beyond. A tile is runs (B, 2) times stride high
    and wide, and the first begins anywhere up to a tile before the grid. Where share is no whole number of tiles,
    chance rounds it.
    """
    device = sizes.device
    offsets = (torch.rand(runs.shape, generator=draw, device=device) * runs).long()
    rows, columns = (
        (torch.arange(length, device=device) // step + offset[:, None]) // run[:, None]
        for length, step, offset, run in zip(shape, stride, offsets.T, runs.T, strict=True)
    )
    counts = torch.cat([rows.gather(1, sizes[:, :1] - 1), columns.gather(1, sizes[:, 1:] - 1)], 1) + 1
    real = inside(counts, int(rows.max()) + 1, int(columns.max()) + 1)
    luck = torch.rand(real.shape, generator=draw, device=device).masked_fill(~real, 2).flatten(1)
    number = share * counts.prod(1) + torch.rand(len(sizes), generator=draw, device=device)
    chosen = (luck.argsort(1).argsort(1) < number.floor()[:, None]).view_as(real)
    each = torch.arange(len(sizes), device=device)[:, None, None]
    return chosen[each, rows[:, :, None], columns[:, None]] & inside(sizes, shape[0], shape[1])


def standardised(x: Tensor, real: Tensor) -> Tensor:
    """Each row of x (M, K) to mean 0 and deviation 1 over its real numbers (arXiv:2111.06377, 4)."""
    count = real.sum(1, keepdim=True)
    x = x - (x * real).sum(1, keepdim=True) / count
    return x / ((x**2 * real).sum(1, keepdim=True) / count + 1e-6).sqrt()


def inside(sizes: Tensor, height: int, width: int) -> Tensor:
    """sizes (B, 2) to (B, height, width) bool, True inside each sample's own grid."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]
