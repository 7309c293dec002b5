"""How each kind of position carries over to lengths beyond those of training: python benchmarks/positions.py TEXT

TEXT is a file of at least a million characters, such as Tiny Shakespeare. Small causal transformers read LENGTH
tokens in training and up to REACH times as many in the test. Two tasks: the token SHIFT places before, of random ones
(where a token stands, and nothing else), and the next character of TEXT (what stands near counts most). Prints a table
of each and draws both into docs/images/positions.png. Without TEXT the first task alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.axes import Axes
from torch import Tensor, nn

from dxn.explain.plots import new_figure, save
from dxn.models import Backbone
from dxn.models.attention import BackbonePosition
from dxn.tokenize.positions import PositionKind, Positions1d
from dxn.tokens import Tokens
from dxn.train.optim import adamw, cosine
from dxn.weights.public import fitted

LENGTH, REACH, BIN = 64, 4, 32  # tokens in training, times as many in the test, tokens that a figure is the mean of
MULTIPLES = (1.0, 1.5, 2.0, 3.0, 4.0)
SHIFT, LETTERS = 2, 16
BATCH, RATE = 32, 3e-3
TESTED = 24_000  # characters
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "positions.png"


@dataclass(frozen=True)
class Kind:
    """Where a token's place comes from: its column, the backbone, or only what it may read."""

    name: str
    column: PositionKind = "none"
    backbone: BackbonePosition = "none"
    window: int | None = None
    colour: str = "black"
    dashes: str = "-"


# Colours of Okabe and Ito, that the colour-blind tell apart.
KINDS = (
    Kind("learned", column="learned", colour="#D55E00"),
    Kind("sinusoidal", column="sinusoidal", colour="#E69F00"),
    Kind("rotary", backbone="rotary", colour="#0072B2"),
    Kind("rotary, window", backbone="rotary", window=16, colour="#56B4E9"),
    Kind("alibi", backbone="alibi", colour="#009E73"),
    Kind("none", colour="#000000"),
)
STRETCHED = Kind("learned, stretched", column="learned", colour="#CC79A7", dashes="--")  # trained as learned
SHOWN = (KINDS[0], STRETCHED, *KINDS[1:])


class Guesser(nn.Module):
    """A causal transformer over ids, with an answer at each token."""

    def __init__(self, kind: Kind, *, vocab_size: int, dim: int, depth: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.table.weight, std=0.02)  # as the text adapter's
        self.places = Positions1d(kind.column, dim=dim, max_len=REACH * LENGTH)
        self.backbone = Backbone(dim, depth=depth, num_heads=4, position=kind.backbone, window=kind.window, causal=True)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, N) to logits (B, N, V)."""
        x = self.table(ids) + self.places(ids.shape[1], ids.device)
        return self.head(self.backbone(Tokens(x, torch.ones_like(ids, dtype=torch.bool))).x)

    def stretch(self, length: int) -> None:
        """Learned places of the training's lengths, interpolated to this one as a longer sound's are when public
        weights are read."""
        table = fitted(
            "adapters.audio.position.table", self.places.table.detach()[:LENGTH], (length, self.backbone.dim)
        )
        self.places = Positions1d("learned", dim=self.backbone.dim, max_len=length)
        self.places.table.data.copy_(table)


@dataclass(frozen=True)
class Task:
    """What is learned: batches to train on, windows (ids and answers, -1 for none) to test on, and what counts."""

    name: str
    unit: str
    digits: int
    vocab_size: int
    dim: int
    depth: int
    steps: int
    draw: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    wrong: Callable[[Tensor, Tensor], Tensor]


def shifted(count: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random letters (count, length), and for each the one SHIFT places before; -1 where there is none."""
    ids = torch.randint(LETTERS, (count, length), generator=draw)
    return ids, F.pad(ids, (SHIFT, 0), value=-1)[:, :length]


def copying() -> Task:
    """The token SHIFT places before: random ones, so that what it is tells nothing of where it stands."""
    return Task(
        f"the letter {SHIFT} places before",
        "error, %",
        1,
        LETTERS,
        dim=64,
        depth=2,
        steps=400,
        draw=lambda draw: shifted(BATCH, LENGTH, draw),
        test=shifted(256, REACH * LENGTH, torch.Generator().manual_seed(1)),
        wrong=lambda logits, answers: 100.0 * (logits.argmax(-1) != answers),
    )


def language(text: str) -> Task:
    """The next character of a text, of which the last tenth is the test."""
    letters = sorted(set(text))
    index = {letter: i for i, letter in enumerate(letters)}
    ids = torch.tensor([index[letter] for letter in text])
    train, test = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH, 1), generator=generator)
        windows = train[starts + torch.arange(LENGTH + 1)]
        return windows[:, :-1], windows[:, 1:]

    # A step of BIN: at each distance from the beginning stands the same text, so that only the distance differs.
    windows = test[:TESTED].unfold(0, REACH * LENGTH + 1, BIN)
    return Task(
        "the next character",
        "loss, nats a character",
        2,
        len(letters),
        dim=96,
        depth=3,
        steps=300,
        draw=draw,
        test=(windows[:, :-1], windows[:, 1:]),
        wrong=lambda logits, answers: F.cross_entropy(logits.transpose(1, 2), answers, reduction="none"),
    )


def train(kind: Kind, task: Task, seed: int) -> Guesser:
    """A model of this kind, trained on windows of LENGTH tokens."""
    torch.manual_seed(seed)
    model = Guesser(kind, vocab_size=task.vocab_size, dim=task.dim, depth=task.depth).train()
    optimizer = adamw(model, lr=RATE)
    schedule, generator = cosine(), torch.Generator().manual_seed(seed)
    for step in range(task.steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * schedule(step / task.steps)
        ids, answers = task.draw(generator)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        optimizer.zero_grad()
        F.cross_entropy(logits.float().flatten(0, 1), answers.flatten(), ignore_index=-1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def by_place(model: Guesser, task: Task, length: int) -> Tensor:
    """(length / BIN,): what goes wrong in windows of this length, each number the mean of BIN places."""
    logits = []
    for ids in task.test[0][:, :length].split(128):
        with torch.autocast("cpu", torch.bfloat16):
            logits.append(model(ids).float())
    answers = task.test[1][:, :length]
    wrong = task.wrong(torch.cat(logits), answers.clamp(min=0)).masked_fill(answers < 0, torch.nan)
    return rearrange(wrong, "b (n bin) -> n (b bin)", bin=BIN).nanmean(1)


def measure(task: Task, seeds: int) -> dict[str, Tensor]:
    """By kind, (seeds, REACH * LENGTH / BIN) as of `by_place`; NaN where a stretched model was not measured."""
    found: dict[str, list[Tensor]] = {kind.name: [] for kind in SHOWN}
    for seed in range(seeds):
        for kind in KINDS:
            start = time.perf_counter()
            model = train(kind, task, seed)
            found[kind.name].append(by_place(model, task, REACH * LENGTH))
            if kind.column == "learned":
                found[STRETCHED.name].append(_stretched(model, task))
            seconds = time.perf_counter() - start
            print(f"{task.name}, {kind.name}, seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return {name: torch.stack(rows) for name, rows in found.items()}


def _stretched(model: Guesser, task: Task) -> Tensor:
    """The last BIN places of windows of each of MULTIPLES, each with the places stretched to it."""
    row = torch.full((REACH * LENGTH // BIN,), torch.nan)
    trained = model.places
    for at in _bins():
        model.places = trained
        model.stretch((at + 1) * BIN)
        row[at] = by_place(model, task, (at + 1) * BIN)[-1]
    return row


def _bins() -> list[int]:
    """The last BIN places before each of MULTIPLES."""
    return [round(multiple * LENGTH) // BIN - 1 for multiple in MULTIPLES]


def table(task: Task, found: Mapping[str, Tensor]) -> str:
    """Markdown: a row a kind, means over seeds, and half the range between them."""
    lines = [f"| {task.name}: {task.unit} | " + " | ".join(f"{m:g}×" for m in MULTIPLES) + " |"]
    lines.append("|---|" + "--:|" * len(MULTIPLES))
    for name, rows in found.items():
        cells = [f"{rows[:, at].mean():.{task.digits}f} ± {_half_range(rows[:, at]):.{task.digits}f}" for at in _bins()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _half_range(values: Tensor) -> float:
    return float(values.max() - values.min()) / 2


def draw(results: Sequence[tuple[Task, Mapping[str, Tensor]]], path: Path) -> None:
    """A panel a task, a line a kind, named at its end; a dot is the mean of BIN places, over seeds."""
    figure = new_figure(5.4 * len(results), 4.0)
    for axes, (task, found) in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        ends = {}
        for kind in SHOWN:
            line = found[kind.name].mean(0)
            there = ~line.isnan()
            x = (torch.arange(len(line)) + 1) * BIN / LENGTH
            style = {"color": kind.colour, "linestyle": kind.dashes, "linewidth": 1.6, "markersize": 3}
            axes.plot(x[there], line[there], marker="o", **style)
            ends[kind] = float(line[there][-1])
        axes.axvspan(0, 1, color="#f0f0f0", zorder=0)
        axes.set(title=f"{task.name}", ylabel=task.unit, xlim=(0, REACH), xticks=range(REACH + 1))
        axes.set_xlabel("place in the text, in lengths of the training (grey)")
        axes.spines[["top", "right"]].set_visible(False)
        _name_ends(axes, ends)
    save(figure, path)


def _name_ends(axes: Axes, ends: Mapping[Kind, float]) -> None:
    """Names at the right end of their lines, moved apart where they would touch."""
    low, high = axes.get_ylim()
    gap, last = (high - low) * 0.055, -float("inf")
    order = sorted(ends, key=lambda kind: ends[kind])
    for kind in order:
        last = max(ends[kind], last + gap)
        axes.annotate(
            kind.name,
            (REACH, ends[kind]),
            xytext=(REACH * 1.03, last),
            color=kind.colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": kind.colour, "linewidth": 0.5},
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Train, test, print and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, help="a text file for the next character")
    parser.add_argument("--seeds", type=int, default=2, help="models of each kind")
    parser.add_argument("--image", type=Path, default=IMAGE, help="the PNG to write")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    tasks = [copying()] + ([language(args.text.read_text(encoding="utf-8"))] if args.text else [])
    results = [(task, measure(task, args.seeds)) for task in tasks]
    for task, found in results:
        print(table(task, found), end="\n\n")
    draw(results, args.image)


if __name__ == "__main__":
    main()
