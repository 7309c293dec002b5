"""Translation by the transformer and its recurrent peers: quality by the length of the source, and training speed.

python benchmarks/translation.py DIR transformer=RUN rnn=RUN rnn_attention=RUN
python benchmarks/translation.py DIR

DIR holds Multi30k's train.csv and test.csv (en, de); a RUN is what dxn train experiment=translate, translate_rnn and
translate_rnn_attention leave. Without runs only the speed is measured.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesTokenizer

from dxn.config import build, compose
from dxn.data.samples import BatchOrder, Samples, make_loader
from dxn.explain.plots import new_figure, save
from dxn.train.pipeline import build_adapters, build_model, open_source

EXPERIMENTS = {"transformer": "translate", "rnn": "translate_rnn", "rnn_attention": "translate_rnn_attention"}
COLOURS = {"transformer": "#2b6cb0", "rnn": "#718096", "rnn_attention": "#dd6b20"}
LENGTHS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 20), (21, 50))  # words of the source
BATCHES, ROUNDS = 6, 5


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def moses(texts: Sequence[str]) -> list[str]:
    """In lower case, cut into words as Moses cuts German."""
    tokenizer = MosesTokenizer(lang="de")
    return [" ".join(tokenizer.tokenize(text.lower(), escape=False)) for text in texts]


def quality(name: str, rows: Sequence[Mapping[str, str]], sources: Sequence[str]) -> list[float]:
    """Print the figures of a run's predictions.csv; BLEU by length of the source."""
    said, true = moses([r["predicted"] for r in rows]), moses([r["true"] for r in rows])
    words, cased = BLEU(tokenize="none", force=True), BLEU(lowercase=True)
    chrf = CHRF(lowercase=True)
    print(f"{name}: BLEU {words.corpus_score(said, [true]).score:.2f} (lower case, Moses words)")
    raw, truth = [r["predicted"] for r in rows], [r["true"] for r in rows]
    print(f"  sacrebleu {cased.corpus_score(raw, [truth]).score:.2f}  {cased.get_signature()}")
    print(f"  chrF {chrf.corpus_score(raw, [truth]).score:.2f}  {chrf.get_signature()}")
    found = []
    for shortest, longest in LENGTHS:
        kept = [i for i, s in enumerate(sources) if shortest <= len(s.split()) <= longest]
        found.append(words.corpus_score([said[i] for i in kept], [[true[i] for i in kept]]).score)
        print(f"  {shortest}-{longest} words ({len(kept)} sentences): {found[-1]:.1f}")
    return found


def draw(found: Mapping[str, Sequence[float]], path: Path) -> None:
    """BLEU by length, a line a model."""
    figure = new_figure(7, 4)
    axis = figure.subplots()
    ticks = [f"{a} to {b}" for a, b in LENGTHS]
    for name, values in found.items():
        axis.plot(ticks, values, marker="o", color=COLOURS[name], label=name.replace("_", " with "))
    axis.set(xlabel="words of the source", ylabel="BLEU", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    save(figure, path)


def training(experiment: str, folder: str):
    """A function that trains on one of a few batches and says how many target tokens that one has; the model's
    parameters; the samples and how many of them make a batch."""
    c = compose("train", [f"experiment={experiment}", f"data.train={folder}/train.csv", "data.path=null"]).plain()
    source = build(c["data"], key="data")
    adapters = build_adapters(c, source.columns)
    data = open_source(source, adapters, build(c["target_text"], key="target_text"), "text")
    torch.manual_seed(0)
    model, _ = build_model(c, data, adapters, balance=False)
    prepares = {name: adapter.prepare for name, adapter in adapters.items()}
    samples = Samples(data.splits["train"], prepares, target=data.target, augment=True)
    loader = iter(make_loader(BatchOrder(samples, c["batch_size"], shuffle=True)))
    batches = [next(loader) for _ in range(BATCHES)]
    optimizer = build(c["optimizer"], key="optimizer", model=model.train())

    def step(i: int) -> int:
        batch = batches[i % BATCHES]
        with torch.autocast("cpu", torch.bfloat16):
            total = model(batch)
        model.head.loss(total.float(), batch["target"]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int((batch["target"][:, 1:] >= 0).sum())

    size = sum(p.numel() for p in model.parameters())
    return step, size, (samples, c["batch_size"])


def padding(samples: Samples, batch_size: int) -> str:
    """What of a batch's tokens, read and written, is padding: in our batches, and in batches of random pairs."""
    shares = []
    for sorted_by_length in (True, False):
        order = BatchOrder(samples, batch_size, shuffle=True)
        if not sorted_by_length:
            order.sizes = []
        real = room = 0
        for batch in make_loader(order):
            for mask in (batch["text"]["mask"], batch["target"][:, 1:] >= 0):
                real, room = real + int(mask.sum()), room + mask.numel()
        shares.append(1 - real / room)
    return f"padding: {shares[0]:.1%} of the tokens; {shares[1]:.1%} in random batches"


def speed(folder: str) -> None:
    """Target tokens a second in training, in bf16; the models take turns, the median of the rounds."""
    steps = {name: training(experiment, folder) for name, experiment in EXPERIMENTS.items()}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(ROUNDS + 1):
        for name, (step, *_) in steps.items():
            start = time.perf_counter()
            tokens = sum(step(j) for j in range(BATCHES))
            if i:  # the first round warms up
                rates[name].append(tokens / (time.perf_counter() - start))
    for name, (_, size, _) in steps.items():
        print(f"{name}: {size:,} parameters, {statistics.median(rates[name]):,.0f} target tokens/s in training")
    print(padding(*next(iter(steps.values()))[2]))


def main() -> None:
    """See the top of the file."""
    folder, *runs = sys.argv[1:]
    if runs:
        sources = [row["en"] for row in read(Path(folder) / "test.csv")]
        given = dict(run.split("=", 1) for run in runs)
        draw(
            {name: quality(name, read(Path(run) / "predictions.csv"), sources) for name, run in given.items()},
            Path("docs/images/translation.png"),
        )
    speed(folder)


if __name__ == "__main__":
    main()
