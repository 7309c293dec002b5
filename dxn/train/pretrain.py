"""What a model can learn from the training split's inputs alone, before it learns the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.data.samples import BatchOrder, Samples, make_loader
from dxn.errors import UserError
from dxn.models import Model
from dxn.models.masked import Hidden, MaskedModel
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokenize.stem import grid_mask
from dxn.train.evaluate import to_device
from dxn.train.optim import adamw, cosine


@dataclass(frozen=True)
class Epoch:
    """One pass over the training split: its number, each modality's mean loss over what was hidden of it, and the
    share of hidden subwords guessed right, none without text."""

    number: int
    losses: Mapping[str, float]
    accuracy: float | None

    def __str__(self) -> str:
        shown = {name: f"{name} {loss:.4f}" for name, loss in self.losses.items()}
        if self.accuracy is not None:
            shown["text"] += f" (guessed {self.accuracy:.4f})"
        return "  ".join(shown.values())


class Masked:
    """Hides some of every modality and lets adapters, fusion and backbone guess it from all that is left.

    Of the chosen subwords 8 in 10 become [MASK], 1 in 10 another subword, 1 in 10 stay (arXiv:1810.04805, 3.1). Of
    pictures and sounds what is hidden is blanked before it is embedded, and a learned vector marks its columns
    (arXiv:2111.09886, 3): patches at random, whose pixels are guessed, normalised by patch (arXiv:2111.06377, 4); and
    runs of a spectrogram's or a waveform's columns, since neighbours are alike, guessed as the adapter normalises
    them. The loss is the mean over modalities of the cross-entropy or the squared error, over what is hidden only.

    Args:
        epochs: passes over the training split.
        share: probability that a subword is to be guessed; 0 hides none.
        image_share: of each picture's patches that are hidden.
        audio_share: of each sound's columns that are hidden.
        span: columns of a sound that are hidden in a run, less in a sound so short that its share is less.
        lr: highest learning rate; it rises, then falls like half a cosine.
        warmup: share of the steps in which the rate rises from 0.
    """

    def __init__(
        self,
        *,
        epochs: int = 10,
        share: float = 0.15,
        image_share: float = 0.6,
        audio_share: float = 0.4,
        span: int = 5,
        lr: float = 1e-3,
        warmup: float = 0.1,
    ):
        if epochs < 1 or span < 1:
            raise ValueError(f"epochs and span must be at least 1, got {epochs} and {span}")
        self.shares = {"text": share, "image": image_share, "audio": audio_share}
        for name, value in zip(("share", "image_share", "audio_share"), self.shares.values(), strict=True):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and under 1, got {value}")
        self.epochs, self.span, self.lr, self.schedule = epochs, span, lr, cosine(warmup=warmup)

    def check(self, adapters: Mapping[str, Any]) -> None:
        """UserError where nothing would be hidden of what these adapters take, or could not be."""
        if not any(self.shares[name] for name in adapters):
            raise UserError(f"pretrain: nothing is hidden of {', '.join(adapters)}; raise its share, or leave it out")
        if "text" in adapters and self.shares["text"] and adapters["text"].prepare.mask_id is None:
            raise UserError("pretrain.share: the text's tokenizer has no [MASK] to hide words with; set it to 0")

    def __call__(self, model: Model, samples: Samples, *, batch_size: int, bf16: bool) -> Iterator[Epoch]:
        """Train model in place on what samples have of its modalities, without their targets; each epoch's figures."""
        device = next(model.parameters()).device
        self.check(model.adapters)
        hiders = {name: self._hider(adapter) for name, adapter in model.adapters.items() if self.shares[name]}
        sizes = {name: hider.size for name, hider in hiders.items() if isinstance(hider, HideCells)}
        masked = MaskedModel(model, sizes=sizes).to(device)
        optimizer = adamw(masked, lr=self.lr)
        prepares = {name: adapter.prepare for name, adapter in model.adapters.items()}
        order = BatchOrder(
            Samples(samples.opened, prepares, seed=samples.seed, augment=True),
            batch_size,
            seed=samples.seed,
            shuffle=True,
        )
        loader, draw = make_loader(order), torch.Generator(device).manual_seed(samples.seed)
        masked.train()
        if "image" in model.adapters:
            model.adapters["image"].eval()  # its token_dropout would leave out patches that are asked for
        for epoch in range(self.epochs):
            order.epoch, sums = epoch, _Sums()
            for step, batch in enumerate(loader):
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * self.schedule((epoch * len(order) + step + 1) / (self.epochs * len(order)))
                batch = to_device(batch, device)
                hidden = {name: hider(batch[name], draw) for name, hider in hiders.items() if name in batch}
                hidden = {name: h for name, h in hidden.items() if len(h.content)}
                if not hidden:
                    continue
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    guesses = masked(batch, hidden)
                losses = {name: loss(guesses[name], h) for name, h in hidden.items()}
                torch.stack(list(losses.values())).mean().backward()
                nn.utils.clip_grad_norm_(masked.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                sums.add(losses, guesses, hidden)
            yield sums.epoch(epoch + 1)

    def _hider(self, adapter: nn.Module) -> Callable[[Mapping[str, Tensor], torch.Generator], Hidden]:
        if isinstance(adapter, TextAdapter):
            return HideWords(adapter, share=self.shares["text"])
        if isinstance(adapter, ImageAdapter):
            return HidePatches(adapter, share=self.shares["image"])
        assert isinstance(adapter, AudioAdapter)
        return HideRuns(adapter, share=self.shares["audio"], span=self.span)


class _Sums:
    """An epoch's losses and right guesses so far."""

    def __init__(self) -> None:
        self.losses, self.counts, self.right = {}, {}, 0

    def add(self, losses: Mapping[str, Tensor], guesses: Mapping[str, Tensor], hidden: Mapping[str, Hidden]) -> None:
        for name, found in losses.items():
            count = len(hidden[name].content)
            self.losses[name] = self.losses.get(name, 0.0) + float(found.detach()) * count
            self.counts[name] = self.counts.get(name, 0) + count
        if "text" in hidden:
            self.right += int((guesses["text"].argmax(-1) == hidden["text"].content).sum())

    def epoch(self, number: int) -> Epoch:
        accuracy = self.right / self.counts["text"] if "text" in self.counts else None
        return Epoch(number, {name: total / self.counts[name] for name, total in self.losses.items()}, accuracy)


def loss(guesses: Tensor, hidden: Hidden) -> Tensor:
    """Cross-entropy of logits (M, V), or the mean squared error of the real ones of the numbers (M, K)."""
    if hidden.real is None:
        return F.cross_entropy(guesses.float(), hidden.content)
    return F.mse_loss(guesses.float()[hidden.real], hidden.content[hidden.real])


class HideWords:
    """Of a text adapter's batch, subwords."""

    def __init__(self, adapter: TextAdapter, *, share: float):
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
        own = grid_mask(self._steps(sizes, pad_end=self.pad_end), height, width).flatten(1)
        real = self._columns(grid_mask(sizes, *x.shape[2:])[:, None].expand_as(x))
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

    def __init__(self, adapter: ImageAdapter, *, share: float):
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

    def __init__(self, adapter: AudioAdapter, *, share: float, span: int):
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
    real = grid_mask(counts, int(rows.max()) + 1, int(columns.max()) + 1)
    luck = torch.rand(real.shape, generator=draw, device=device).masked_fill(~real, 2).flatten(1)
    number = share * counts.prod(1) + torch.rand(len(sizes), generator=draw, device=device)
    chosen = (luck.argsort(1).argsort(1) < number.floor()[:, None]).view_as(real)
    each = torch.arange(len(sizes), device=device)[:, None, None]
    return chosen[each, rows[:, :, None], columns[:, None]] & grid_mask(sizes, shape[0], shape[1])


def standardised(x: Tensor, real: Tensor) -> Tensor:
    """Each row of x (M, K) to mean 0 and deviation 1 over its real numbers (arXiv:2111.06377, 4)."""
    count = real.sum(1, keepdim=True)
    x = x - (x * real).sum(1, keepdim=True) / count
    return x / ((x**2 * real).sum(1, keepdim=True) / count + 1e-6).sqrt()
