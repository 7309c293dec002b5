"""Rows to batches: opened once, prepared per epoch, padded together with others of like length."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from dxn.data.rows import Rows
from dxn.data.targets import IGNORED, Target
from dxn.errors import UserError
from dxn.tokenize import BadMedia

OnBad = Literal["error", "skip", "missing"]
POOL = 50  # batches that are sorted by length together


@dataclass(frozen=True)
class Opened:
    """One split with its files read: raws[modality][i] is None where row i has none of it."""

    raws: Mapping[str, Sequence[Any]]
    targets: Sequence[Any] | None
    origin: Sequence[str]
    missing: Counter = field(default_factory=Counter)
    skipped: int = 0
    bad: Sequence[tuple[str, str]] = ()

    def __len__(self) -> int:
        return len(self.origin)


def open_rows(rows: Rows, prepares: Mapping[str, Any], *, on_bad: OnBad = "error", need_target: bool = True) -> Opened:
    """Read every file of a split, each once, however many rows share it.

    A file that cannot be read, a row with nothing in it and (need_target) a row without a target stop with
    UserError, or are left out (skip), or count as a missing modality where another is left (missing).
    """
    raws: dict[str, list] = {}
    bad: list[tuple[int, str]] = []
    for name, prepare in prepares.items():
        if name in rows.cells:
            raws[name], faults = _read_column(name, rows.cells[name], prepare)
            bad += [(i, f"{name}: {reason}") for i, reason in faults]
    targets = rows.cells.get("target")
    broken = {i for i, _ in bad}
    for i in range(len(rows)):
        if need_target and (targets is None or targets[i] is None):
            bad.append((i, "no target"))
        elif i not in broken and all(column[i] is None for column in raws.values()):
            bad.append((i, f"nothing to learn from: no {', no '.join(raws) or 'input column'}"))
    if bad and on_bad == "error":
        raise _bad_error(bad, rows, key="data.on_bad" if need_target else "on_bad")
    dropped = _dropped(bad, raws, targets, need_target, on_bad)
    kept = [i for i in range(len(rows)) if i not in dropped]
    if not kept:
        raise UserError(
            f"no row is left of {len(rows)}: the first is {rows.origin[0]}, {min(bad)[1]}" if len(rows) else "no rows"
        )
    return Opened(
        raws={name: [column[i] for i in kept] for name, column in raws.items()},
        targets=None if targets is None else [targets[i] for i in kept],
        origin=[rows.origin[i] for i in kept],
        missing=Counter({n: sum(c[i] is None for i in kept) for n, c in raws.items()}),
        skipped=len(dropped),
        bad=[(rows.origin[i], reason) for i, reason in bad],
    )


def _read_column(name: str, cells: Sequence, prepare) -> tuple[list, list[tuple[int, str]]]:
    """Raw values, None where missing or bad, and (row, reason) of the bad ones."""
    keys = [cell if isinstance(cell, str | bytes) else i for i, cell in enumerate(cells)]
    sources = {key: cell for key, cell in zip(keys, cells, strict=True) if cell is not None}

    def read(source):
        try:
            return prepare.read(source)
        except BadMedia as error:
            where = f"{source} " if name != "text" and isinstance(source, str) and len(source) < 500 else ""
            return BadMedia(f"{where}{error}")

    with ThreadPoolExecutor(2) as pool:
        values = dict(zip(sources, pool.map(read, sources.values()), strict=True))
    column = [values[key] if cell is not None else None for key, cell in zip(keys, cells, strict=True)]
    faults = [(i, str(value)) for i, value in enumerate(column) if isinstance(value, BadMedia)]
    return [None if isinstance(value, BadMedia) else value for value in column], faults


def _bad_error(bad: Sequence[tuple[int, str]], rows: Rows, *, key: str) -> UserError:
    first, reason = min(bad)
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return UserError(
        f"{rows.origin[first]}: {reason}{more}; mend it, or set {key}=skip or {key}=missing"
        " (dxn check lists all that is bad)"
    )


def _dropped(bad, raws: Mapping[str, Sequence], targets, need_target: bool, on_bad: OnBad) -> set[int]:
    if on_bad == "skip":
        return {i for i, _ in bad}
    return {
        i
        for i, _ in bad
        if (need_target and (targets is None or targets[i] is None))
        or all(column[i] is None for column in raws.values())
    }


class Samples(Dataset):
    """Item (epoch, i) is sample i prepared for that epoch: a pure function of (seed, epoch, i).

    With augment, what the adapters draw at random is drawn; modality_dropout withholds each modality with
    that probability, never the last. only: the modalities shown, all unless given.
    """

    def __init__(
        self,
        opened: Opened,
        prepares: Mapping[str, Any],
        *,
        target: Target | None = None,
        seed: int = 0,
        augment: bool = False,
        modality_dropout: float = 0.0,
        only: Sequence[str] | None = None,
    ):
        self.opened, self.prepares, self.target = opened, prepares, target
        self.seed, self.augment, self.modality_dropout = seed, augment, modality_dropout
        self.modalities = [m for m in prepares if m in opened.raws and (only is None or m in only)]
        # Tags belong to words: without its text, a row has nothing to tag.
        self.needed = ("text",) if target is not None and target.kind == "tags" else ()
        self.rows = [i for i in range(len(opened)) if self._usable(i)]

    def __len__(self) -> int:
        return len(self.rows)

    def _usable(self, row: int) -> bool:
        present = [m for m in self.modalities if self.opened.raws[m][row] is not None]
        return bool(present) and all(m in present for m in self.needed)

    def size(self, i: int) -> float:
        """Roughly how many tokens are read of sample i, or are written where these are more: what pads its batch."""
        raws, row = self.opened.raws, self.rows[i]
        read = sum(self.prepares[m].size(raw) for m in self.modalities if (raw := raws[m][row]) is not None)
        if self.target is None or self.target.kind != "text" or self.opened.targets is None:
            return read
        return max(read, len(self.target.encode(self.opened.targets[row])) - 1)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """index, target where there is one, and for each modality it has what `prepare` made of it."""
        epoch, i = key
        row = self.rows[i]
        rng = random.Random(f"{self.seed}/{epoch}/{row}") if self.augment else None
        present = [m for m in self.modalities if self.opened.raws[m][row] is not None]
        if rng is not None and self.modality_dropout:
            kept = withhold(present, self.modality_dropout, rng)
            present = [m for m in present if m in kept or m in self.needed]
        sample: dict[str, Any] = {m: self.prepares[m](self.opened.raws[m][row], rng) for m in present}
        sample["index"] = row
        if self.target is not None and self.target.kind == "masked":  # what decides which places are hidden
            when = epoch if self.augment else "always"
            sample["target"] = torch.tensor(random.Random(f"{self.seed}/{when}/{row}/hidden").getrandbits(32))
        elif self.target is not None and self.opened.targets is not None:
            target = self.target.encode(self.opened.targets[row], rng)
            sample["target"] = target if self.target.kind != "tags" else _spread_tags(target, sample["text"]["words"])
        return sample

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch as Model takes it, with index (a list of rows) and target."""
        batch: dict[str, Any] = {"size": len(samples), "index": [s["index"] for s in samples]}
        for name in self.modalities:
            having = [i for i, s in enumerate(samples) if name in s]
            if having:
                batch[name] = self.prepares[name].collate([samples[i][name] for i in having])
                batch[name]["rows"] = torch.tensor(having)
        if "target" in samples[0]:
            targets = [s["target"] for s in samples]
            pad = torch.nn.utils.rnn.pad_sequence
            many = self.target is not None and self.target.kind in ("tags", "text", "next")
            batch["target"] = pad(targets, True, IGNORED) if many else torch.stack(targets)
        return batch


def withhold(present: Sequence[str], probability: float, rng: random.Random) -> list[str]:
    """Drop each with this probability; where all would go, one of them stays."""
    kept = [m for m in present if rng.random() >= probability]
    return kept or [rng.choice(list(present))]


def _spread_tags(tags: Tensor, words: Tensor) -> Tensor:
    """A tag a word (W,) to the first subword of each (N,), IGNORED elsewhere."""
    return torch.where(first_subwords(words), tags[words.clamp(min=0)], IGNORED)


def first_subwords(words: Tensor) -> Tensor:
    """words (..., N), the word of each subword, to bool (..., N): True where a word begins."""
    before = torch.nn.functional.pad(words, (1, 0), value=-2)[..., :-1]
    return (words >= 0) & (words != before)


class BatchOrder(Sampler):
    """Batches of (epoch, i), a pure function of (seed, epoch): samples of like length go together.

    Shuffled: of each 50 batches' worth of random samples, the shorter go with the shorter, then the batches
    are shuffled. Otherwise: in order. skip leaves out the first batches, to go on in the middle of an epoch.
    shard (i, n): every n-th batch from the i-th on; each of n processes gets as many, the last few may go. n batches
    of like length come together, since none of the processes goes on before the slowest.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        shard: tuple[int, int] = (0, 1),
    ):
        self.shard = shard
        self.samples, self.batch_size, self.seed, self.shuffle = samples, batch_size, seed, shuffle
        self.epoch, self.skip = 0, 0
        sizes = [samples.size(i) for i in range(len(samples))] if shuffle else []
        self.sizes = sizes if len(set(sizes)) > 1 else []

    def __len__(self) -> int:
        total = -(-len(self.samples) // self.batch_size)
        return total // self.shard[1]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        mine = self._batches()[self.shard[0] :: self.shard[1]][: len(self)]
        for batch in mine[self.skip :]:
            yield [(self.epoch, i) for i in batch]

    def _batches(self) -> list[list[int]]:
        order = list(range(len(self.samples)))
        if not self.shuffle:
            return _cut(order, self.batch_size)
        rng = random.Random(f"{self.seed}/{self.epoch}")
        rng.shuffle(order)
        if not self.sizes:
            return _cut(order, self.batch_size)
        pools = [sorted(pool, key=lambda i: self.sizes[i]) for pool in _cut(order, POOL * self.batch_size)]
        batches = [batch for pool in pools for batch in _cut(pool, self.batch_size)]
        over = [batches.pop(rng.randrange(len(batches))) for _ in range(len(batches) % self.shard[1])]
        steps = [batches[at : at + self.shard[1]] for at in range(0, len(batches), self.shard[1])]
        rng.shuffle(steps)
        return [*(batch for step in steps for batch in step), *over]


def _cut(order: Sequence[int], size: int) -> list[list[int]]:
    return [list(order[at : at + size]) for at in range(0, len(order), size)]


def make_loader(order: BatchOrder, *, num_workers: int = 0) -> DataLoader:
    """A DataLoader of prepared batches; what they hold does not depend on num_workers."""
    return DataLoader(
        order.samples,
        batch_sampler=order,
        collate_fn=order.samples.collate,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        generator=torch.Generator(),  # of its own: drawing from the global one would shift a resumed run's dropout
    )
