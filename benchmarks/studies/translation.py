"""Compare translation with a transformer and with recurrent models: quality and training speed.

    python benchmarks/studies/translation.py DIR transformer=RUN rnn=RUN rnn_attention=RUN
    python benchmarks/studies/translation.py DIR

DIR contains train.csv and test.csv of Multi30k (en, de). The runs are those of `dxn train` with
experiment=translate, translate_rnn and translate_rnn_attention. The benchmark prints the quality by
length of the source, and draws it in docs/images/translation.png. Without runs, it measures only
the training speed.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dxn.commands.train import Train
from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import torch  # noqa: E402
from sacrebleu.metrics.bleu import BLEU  # noqa: E402
from sacrebleu.metrics.chrf import CHRF  # noqa: E402
from sacremoses import MosesTokenizer  # noqa: E402

from dxn.config.compose import compose  # noqa: E402
from dxn.config.instantiate import build  # noqa: E402
from dxn.data.dataset import Samples  # noqa: E402
from dxn.data.loader import BatchOrder, Loader  # noqa: E402
from dxn.models import count_parameters  # noqa: E402
from dxn.runs.prepare import prepare  # noqa: E402
from dxn.training.parallel import connect  # noqa: E402
from dxn.viz.figure import BLUE, GREY, ORANGE, new_figure, save  # noqa: E402

EXPERIMENTS = {
    "transformer": "translate",
    "rnn": "translate_rnn",
    "rnn_attention": "translate_rnn_attention",
}
COLORS = {"transformer": BLUE, "rnn": GREY, "rnn_attention": ORANGE}
# Ranges of the number of words of the source, both ends included. They become wider where there are
# fewer sentences.
LENGTHS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 20), (21, 50))
BATCHES = 6  # training batches per round
ROUNDS = 5
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "translation.png"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tokenize(texts: Sequence[str]) -> list[str]:
    """Convert texts to lower case, and tokenize them with the German tokenizer of Moses."""
    tokenizer = MosesTokenizer(lang="de")
    return [" ".join(tokenizer.tokenize(text.lower(), escape=False)) for text in texts]


def quality(name: str, rows: Sequence[Mapping[str, str]], sources: Sequence[str]) -> list[float]:
    """Print the scores of predictions, and return BLEU by length of the source.

    Args:
        name: Name of the model.
        rows: Rows of the predictions.csv of a run.
        sources: The source sentences of these rows.
    """
    raw = [row["predicted"] for row in rows]
    raw_true = [row["true"] for row in rows]
    predicted = tokenize(raw)
    true = tokenize(raw_true)
    # Published scores on Multi30k use lower case and the tokenization of Moses. `force` turns off
    # the warning that the input is already tokenized.
    bleu = BLEU(tokenize="none", force=True)
    sacrebleu = BLEU(lowercase=True)
    chrf = CHRF(lowercase=True)
    score = bleu.corpus_score(predicted, [true]).score
    print(f"{name}: BLEU {score:.2f} (lower case, Moses words)")
    for label, metric in (("sacrebleu", sacrebleu), ("chrF", chrf)):
        score = metric.corpus_score(raw, [raw_true]).score
        print(f"  {label} {score:.2f}  {metric.get_signature()}")
    scores: list[float] = []
    for shortest, longest in LENGTHS:
        # Sentences with this number of words in the source.
        kept = [i for i, text in enumerate(sources) if shortest <= len(text.split()) <= longest]
        references = [[true[i] for i in kept]]
        scores.append(bleu.corpus_score([predicted[i] for i in kept], references).score)
        print(f"  {shortest}-{longest} words ({len(kept)} sentences): {scores[-1]:.1f}")
    return scores


def draw(scores: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot BLEU by length of the source, with one line per model."""
    figure = new_figure(7, 4)
    axis = figure.subplots()
    ticks = [f"{shortest} to {longest}" for shortest, longest in LENGTHS]
    for name, values in scores.items():
        label = name.replace("_", " with ")
        axis.plot(ticks, values, marker="o", color=COLORS[name], label=label)
    axis.set(xlabel="words of the source", ylabel="BLEU", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    save(figure, path)


@dataclass(frozen=True)
class Training:
    """The training of one experiment.

    Args:
        step: Trains on batch i, and returns the number of its target tokens.
        num_parameters: Number of parameters of the model.
        samples: The training samples.
        batch_size: Number of samples per batch.
    """

    step: Callable[[int], int]
    num_parameters: int
    samples: Samples
    batch_size: int


def make_training(experiment: str, folder: str) -> Training:
    """Build the model, the optimizer and a few batches of an experiment."""
    with tempfile.TemporaryDirectory() as output, ExitStack() as stack:
        data = [f"data.train={folder}/train.csv", "data.path=null", f"output={output}"]
        settings = compose(Train, [f"experiment={experiment}", *data])
        run = prepare(settings, connect(settings.values["trainer"]["device"]), stack)
    task, model = run.task, run.model
    samples = run.training_samples(task)
    batch_size = settings.values["batch_size"]
    loader = iter(Loader(BatchOrder(samples, batch_size, shuffle=True)))
    batches = [next(loader) for _ in range(BATCHES)]
    optimizer = build(settings.values["optimizer"], key="optimizer")(model.train())

    def step(i: int) -> int:
        batch = batches[i % BATCHES]
        with torch.autocast("cpu", torch.bfloat16):
            output = model(batch)
            loss = task.loss(output, batch)
        loss.mean.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int(loss.weight)

    return Training(step, count_parameters(model), samples, batch_size)


def padding(samples: Samples, batch_size: int) -> str:
    """Describe the share of padding in batches of similar lengths, and in random batches."""
    shares: list[float] = []
    for by_length in (True, False):
        order = BatchOrder(samples, batch_size, shuffle=True)
        if not by_length:
            order.lengths = None  # without lengths, BatchOrder does not sort
        real = total = 0
        for batch in Loader(order):
            # The first target is the begin-of-sequence token, which is not predicted.
            for mask in (batch["text"]["mask"], batch["target"]["ids"][:, 1:] >= 0):
                real += int(mask.sum())
                total += mask.numel()
        shares.append(1 - real / total)
    return f"padding: {shares[0]:.1%} of the tokens; {shares[1]:.1%} in random batches"


def speed(folder: str) -> None:
    """Print the median training speed in bf16, in target tokens per second."""
    trainings = {name: make_training(e, folder) for name, e in EXPERIMENTS.items()}
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    # The models alternate, so that other load on the machine affects all of them.
    for i in range(ROUNDS + 1):
        for name, training in trainings.items():
            start = time.perf_counter()
            tokens = sum(training.step(j) for j in range(BATCHES))
            if i:  # the first round is a warm-up
                rates[name].append(tokens / (time.perf_counter() - start))
    for name, training in trainings.items():
        rate = statistics.median(rates[name])
        print(
            f"{name}: {training.num_parameters:,} parameters, "
            f"{rate:,.0f} target tokens/s in training"
        )
    first = next(iter(trainings.values()))
    print(padding(first.samples, first.batch_size))


def main() -> None:
    """Print the quality of the runs, and the training speed of the experiments."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, *runs = sys.argv[1:]
    if runs:
        sources = [row["en"] for row in read_rows(Path(folder) / "test.csv")]
        scores: dict[str, list[float]] = {}
        for run in runs:
            name, _, path = run.partition("=")
            scores[name] = quality(name, read_rows(Path(path) / "predictions.csv"), sources)
        draw(scores, IMAGE)
    speed(folder)


if __name__ == "__main__":
    main()
