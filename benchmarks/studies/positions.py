"""Measure how each kind of positional embedding generalizes to longer sequences.

    python benchmarks/studies/positions.py TEXT

TEXT is a text file of at least a million characters, such as Tiny Shakespeare. Small causal
transformers are trained on sequences of LENGTH tokens and tested on sequences that are up to REACH
times as long. There are two tasks. In the first one, tokens are random, and the model predicts the
token SHIFT positions before: only positions matter. In the second one, it predicts the next
character of TEXT: nearby characters matter most. Without TEXT, only the first task runs.

The benchmark prints one table per task, and draws both results in docs/images/positions.png.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from einops import rearrange  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from dxn.core.tokens import Tokens  # noqa: E402
from dxn.models import Backbone, PositionOptions  # noqa: E402
from dxn.models.blocks import BackbonePosition  # noqa: E402
from dxn.tokenize.positions import PosEmbed1d, PosEmbedKind  # noqa: E402
from dxn.training.optim import adamw, cosine  # noqa: E402
from dxn.viz.figure import new_figure, save  # noqa: E402
from dxn.weights.conversions import resize_tensor  # noqa: E402

LENGTH = 64  # tokens in training
REACH = 4  # length in the test, as a multiple of LENGTH
BIN = 32  # positions per value: each value is the mean error over this number of positions
MULTIPLES = (1.0, 1.5, 2.0, 3.0, 4.0)  # columns of the tables, as multiples of LENGTH
SHIFT = 2  # distance of the token to predict in the first task
LETTERS = 16  # vocabulary of the first task
BATCH_SIZE = 32
LEARNING_RATE = 3e-3
TEST_LENGTH = 24_000  # characters of the test text that are used
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "positions.png"


@dataclass(frozen=True)
class Kind:
    """A kind of positional embedding, and the style of its line.

    Args:
        name: Name in the tables and the picture.
        added: Kind of positional embedding that is added to the tokens.
        backbone: Kind of position in the attention of the backbone.
        window: Maximum distance between a token and the tokens that it attends to.
        color: Color of the line.
        linestyle: Style of the line.
    """

    name: str
    added: PosEmbedKind = "none"
    backbone: BackbonePosition = "none"
    window: int | None = None
    color: str = "black"
    linestyle: str = "-"


# The palette of Okabe and Ito, which color-blind readers can distinguish.
KINDS = (
    Kind("learned", added="learned", color="#D55E00"),
    Kind("sinusoidal", added="sinusoidal", color="#E69F00"),
    Kind("rotary", backbone="rotary", color="#0072B2"),
    Kind("rotary, window", backbone="rotary", window=16, color="#56B4E9"),
    Kind("alibi", backbone="alibi", color="#009E73"),
    Kind("none", color="#000000"),
)
# The model with learned positions, whose embedding is interpolated for the test.
STRETCHED = Kind("learned, stretched", added="learned", color="#CC79A7", linestyle="--")
SHOWN = (KINDS[0], STRETCHED, *KINDS[1:])


class Predictor(nn.Module):
    """A causal transformer that predicts one class per token."""

    def __init__(self, kind: Kind, *, vocab_size: int, dim: int, depth: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=0.02)  # as in the text adapter
        self.pos_embed = PosEmbed1d(kind.added, dim=dim, max_len=REACH * LENGTH)
        position = PositionOptions(kind=kind.backbone, windows=[kind.window])
        self.backbone = Backbone(dim, depth=depth, num_heads=4, position=position, causal=True)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute logits (B, N, V) from token ids (B, N)."""
        x = self.embedding(ids) + self.pos_embed(ids.shape[1], ids.device)
        return self.head(self.backbone(Tokens(x, torch.ones_like(ids, dtype=torch.bool))).x)

    def stretch(self, length: int) -> None:
        """Interpolate the learned positional embedding to this length.

        The interpolation is the one that dxn applies to the positional embeddings of checkpoints.
        """
        trained = self.pos_embed.weight.detach()[:LENGTH]
        shape = (length, self.backbone.dim)
        # The name selects the rule: one-dimensional positions, which the audio adapter has.
        weight = resize_tensor("adapters.audio.pos_embed.weight", trained, shape)
        self.pos_embed = PosEmbed1d("learned", dim=self.backbone.dim, max_len=length)
        self.pos_embed.weight.data.copy_(weight)


@dataclass(frozen=True)
class Task:
    """A task of the benchmark.

    Args:
        name: Name in the tables.
        unit: Unit of the errors.
        digits: Number of decimals of the errors.
        vocab_size: Number of tokens in the vocabulary.
        dim: Width of the model.
        depth: Number of blocks.
        steps: Number of training steps.
        draw: Draws a random training batch: token ids (B, N) and targets (B, N). Targets of -1 are
            ignored.
        test: Token ids and targets of the test.
        errors: Computes the errors (B, N) from logits (B, N, V) and targets (B, N).
    """

    name: str
    unit: str
    digits: int
    vocab_size: int
    dim: int
    depth: int
    steps: int
    draw: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    errors: Callable[[Tensor, Tensor], Tensor]


def shifted(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random token ids (count, length), and targets: the ids SHIFT positions before, or -1."""
    ids = torch.randint(LETTERS, (count, length), generator=generator)
    return ids, F.pad(ids, (SHIFT, 0), value=-1)[:, :length]


def copying() -> Task:
    """Create the first task: predict the token SHIFT positions before, among random tokens."""
    return Task(
        f"the letter {SHIFT} positions before",
        "error, %",
        1,
        LETTERS,
        dim=64,
        depth=2,
        steps=400,
        draw=lambda generator: shifted(BATCH_SIZE, LENGTH, generator),
        test=shifted(256, REACH * LENGTH, torch.Generator().manual_seed(1)),
        errors=lambda logits, targets: 100.0 * (logits.argmax(-1) != targets),
    )


def language(text: str) -> Task:
    """Create the second task: predict the next character of a text. The last tenth is the test."""
    letters = sorted(set(text))
    index = {letter: i for i, letter in enumerate(letters)}
    ids = torch.tensor([index[letter] for letter in text])
    train, test = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH_SIZE, 1), generator=generator)
        windows = train[starts + torch.arange(LENGTH + 1)]
        return windows[:, :-1], windows[:, 1:]

    # Test windows start every BIN characters, so the same text occurs at each position of a window.
    # Differences between positions then come from the positions only, not from the text.
    windows = test[:TEST_LENGTH].unfold(0, REACH * LENGTH + 1, BIN)
    return Task(
        "the next character",
        "loss, nats per character",
        2,
        len(letters),
        dim=96,
        depth=3,
        steps=300,
        draw=draw,
        test=(windows[:, :-1], windows[:, 1:]),
        errors=lambda logits, targets: F.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none"
        ),
    )


def train(kind: Kind, task: Task, seed: int) -> Predictor:
    """Train a model of this kind on windows of LENGTH tokens."""
    torch.manual_seed(seed)
    model = Predictor(kind, vocab_size=task.vocab_size, dim=task.dim, depth=task.depth).train()
    optimizer = adamw(lr=LEARNING_RATE)(model)
    schedule = cosine()
    generator = torch.Generator().manual_seed(seed)
    for step in range(task.steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * schedule(step / task.steps)
        ids, targets = task.draw(generator)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        optimizer.zero_grad()
        F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def errors_by_position(model: Predictor, task: Task, length: int) -> Tensor:
    """Return the mean errors (length / BIN,) of each BIN positions, in windows of this length."""
    logits = []
    for ids in task.test[0][:, :length].split(128):  # 128 windows fit in memory
        with torch.autocast("cpu", torch.bfloat16):
            logits.append(model(ids).float())
    targets = task.test[1][:, :length]
    # -1 is not a class, so these targets become 0, and their errors become NaN.
    errors = task.errors(torch.cat(logits), targets.clamp(min=0))
    errors = errors.masked_fill(targets < 0, torch.nan)
    return rearrange(errors, "b (n bin) -> n (b bin)", bin=BIN).nanmean(1)


def measure(task: Task, seeds: int) -> dict[str, Tensor]:
    """Train and test all kinds.

    Returns:
        Errors (seeds, REACH * LENGTH / BIN) by name of the kind. Interpolated models have NaN
        except at MULTIPLES.
    """
    errors: dict[str, list[Tensor]] = {kind.name: [] for kind in SHOWN}
    for seed in range(seeds):
        for kind in KINDS:
            start = time.perf_counter()
            model = train(kind, task, seed)
            errors[kind.name].append(errors_by_position(model, task, REACH * LENGTH))
            if kind.added == "learned":
                errors[STRETCHED.name].append(_stretched(model, task))
            seconds = time.perf_counter() - start
            line = f"{task.name}, {kind.name}, seed {seed}: {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
    return {name: torch.stack(rows) for name, rows in errors.items()}


def _stretched(model: Predictor, task: Task) -> Tensor:
    """Test a model with interpolated positions.

    For each of MULTIPLES, the positions are interpolated to windows of this length, and the error
    is that at the end of these windows.
    """
    row = torch.full((REACH * LENGTH // BIN,), torch.nan)
    trained = model.pos_embed  # each interpolation starts from the trained embedding
    for i in _bins():
        model.pos_embed = trained
        model.stretch((i + 1) * BIN)
        row[i] = errors_by_position(model, task, (i + 1) * BIN)[-1]
    return row


def _bins() -> list[int]:
    """Return the index of the last bin before each of MULTIPLES."""
    return [round(multiple * LENGTH) // BIN - 1 for multiple in MULTIPLES]


def table(task: Task, errors: Mapping[str, Tensor]) -> str:
    """Format the errors as Markdown: one row per kind, mean ± half of the range over the seeds."""
    header = " | ".join(f"{m:g}×" for m in MULTIPLES)
    lines = [f"| {task.name}: {task.unit} | {header} |"]
    lines.append("|---|" + "--:|" * len(MULTIPLES))
    for name, rows in errors.items():
        cells: list[str] = []
        for i in _bins():
            mean = f"{rows[:, i].mean():.{task.digits}f}"
            cells.append(f"{mean} ± {_half_range(rows[:, i]):.{task.digits}f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _half_range(values: Tensor) -> float:
    return float(values.max() - values.min()) / 2


def draw(results: Sequence[tuple[Task, Mapping[str, Tensor]]], path: Path) -> None:
    """Draw one panel per task with one line per kind. A dot is the mean over BIN positions."""
    figure = new_figure(5.4 * len(results), 4.0)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, (task, errors) in zip(panels, results, strict=True):
        ends = {}
        for kind in SHOWN:
            line = errors[kind.name].mean(0)
            known = ~line.isnan()  # interpolated positions have few values
            x = (torch.arange(len(line)) + 1) * BIN / LENGTH
            axes.plot(
                x[known],
                line[known],
                marker="o",
                markersize=3,
                linewidth=1.6,
                color=kind.color,
                linestyle=kind.linestyle,
            )
            ends[kind] = float(line[known][-1])
        # The lengths of the training are grey.
        axes.axvspan(0, 1, color="#f0f0f0", zorder=0)
        axes.set(title=task.name, ylabel=task.unit, xlim=(0, REACH), xticks=range(REACH + 1))
        axes.set_xlabel("position, as a multiple of the length in training (grey)")
        axes.spines[["top", "right"]].set_visible(False)
        _name_ends(axes, ends)
    save(figure, path)


def _name_ends(axes: Axes, ends: Mapping[Kind, float]) -> None:
    """Write the names at the right ends of the lines, instead of a legend."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.055  # minimum distance between names; 0.055 is about the font size
    last = -float("inf")
    order = sorted(ends, key=lambda kind: ends[kind])
    for kind in order:
        last = max(ends[kind], last + gap)
        axes.annotate(
            kind.name,
            (REACH, ends[kind]),
            xytext=(REACH * 1.03, last),
            color=kind.color,
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": kind.color, "linewidth": 0.5},
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Train and test all kinds, print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, help="a text file for the next character")
    parser.add_argument("--seeds", type=int, default=2, help="number of models per kind")
    parser.add_argument("--image", type=Path, default=IMAGE, help="the PNG to write")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # more threads do not speed up models of this size
    tasks = [copying()]
    if args.text:
        tasks.append(language(args.text.read_text(encoding="utf-8")))
    results = [(task, measure(task, args.seeds)) for task in tasks]
    for task, errors in results:
        print(table(task, errors), end="\n\n")
    draw(results, args.image)


if __name__ == "__main__":
    main()
