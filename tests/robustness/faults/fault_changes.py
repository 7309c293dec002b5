"""Faults of faults.py: data and options that change between a start and its resume."""

from __future__ import annotations

import argparse
import csv
import random
import signal
from collections.abc import Callable
from pathlib import Path

from fault_process import Fault, Seen, kill_at, refused, resumed, run

WORDS = {"good": ("fine", "lovely", "great"), "bad": ("awful", "poor", "cold")}
SMALL = (
    *("data.target=label", "data.text=text", "dim=32", "backbone.depth=1", "batch_size=8"),
    *("trainer.precision=float32", "trainer.log_every=1", "trainer.epochs=3"),
    *("trainer.device=cpu", "adapters.text.vocab_size=300"),
)
Rows = list[list[str]]


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    changes: dict[str, tuple[Callable[[Rows], Rows], tuple[str, ...]]] = {
        "rows in another order": (
            lambda rows: rows[::-1],
            ("resume: the data changed", "split has"),
        ),
        "two rows exchanged": (lambda rows: [rows[1], rows[0], *rows[2:]], ("train split",)),
        "one row less": (lambda rows: rows[:-1], ("rows instead of",)),
        "one row more": (lambda rows: [*rows, ["new text", "good"]], ("rows instead of",)),
        "a row twice, another one removed": (lambda rows: [*rows[:-1], rows[0]], ("split",)),
        "labels swapped": (_swapped, ("resume: the data changed", "target")),
        "one label changed": (_one_label, ("resume: the data changed", "target")),
        "a third label": (lambda rows: [*rows[:-1], [rows[-1][0], "odd"]], ("target",)),
        "texts changed": (lambda rows: [["x " + t, n] for t, n in rows], ("values of text",)),
        "one letter changed": (_one_letter, ("other values of text",)),
        "a text deleted": (lambda rows: [["", rows[0][1]], *rows[1:]], ("t.csv row 2: no input",)),
    }
    rows = [
        Fault(f"data: {name}", "refused, says what changed", _data(change, words))
        for name, (change, words) in changes.items()
    ]
    rows += [
        Fault(f"{option} at the resume", "refused, names the key", _option(option, *words))
        for option, *words in (
            ("optimizer.lr=0.01", "resume:", "optimizer.lr was 0.001"),
            ("batch_size=4", "resume:", "batch_size: 8 samples"),
            ("dim=64", "dim: cannot be changed in a saved run"),
            ("seed=9", "seed: cannot be changed in a saved run"),
            ("trainer.grad_accum_steps=2", "resume:", "trainer.grad_accum_steps was 1"),
            ("trainer.precision=bf16", "resume:", "trainer.precision was 'float32'"),
            ("trainer.mixup=0.2", "resume:", "trainer.mixup was 1.0"),
            ("loader.input_dropout=0.1", "resume:", "loader.input_dropout was 0.0"),
            ("scheduler=linear", "the parts of a saved run cannot be changed"),
            ("data.on_bad=skip", "resume:", "data.on_bad was 'error'"),
        )
    ]
    return [
        *rows,
        Fault("table without a column", "refused", _no_column),
        Fault("table deleted", "refused", _no_table),
        Fault("changed data and resume.force=true", "continues", _forced),
        Fault("the table moved, with data.path=NEW", "continues", _moved),
        Fault("trainer.patience=1 trainer.log_every=2", "continues", _allowed),
    ]


def write_table(path: Path, rows: Rows) -> None:
    """Write a table of texts and labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])


def table_rows(count: int = 60) -> Rows:
    """Return rows of texts and labels that can be learned."""
    rand = random.Random(0)
    labels = [("good", "bad")[i % 2] for i in range(count)]
    return [[f"{i} {' '.join(rand.choices(WORDS[n], k=6))}", n] for i, n in enumerate(labels)]


def _cut_run(folder: Path) -> Path:
    """Train on a table, and kill the training in its second epoch."""
    write_table(folder / "t.csv", table_rows())
    path = folder / "run"
    ended = run("train", f"{folder}/t.csv", *SMALL, f"run={path}", before=lambda: kill_at(9))
    if ended.code != -signal.SIGKILL:
        raise RuntimeError(ended.output)
    return path


def _data(change: Callable[[Rows], Rows], words: tuple[str, ...]) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        path = _cut_run(folder)
        write_table(folder / "t.csv", change(table_rows()))
        return refused(resumed(path), *words)

    return inject


def _option(option: str, *words: str) -> Callable[[Path], Seen]:
    return lambda folder: refused(resumed(_cut_run(folder), option), *words)


def _swapped(rows: Rows) -> Rows:
    return [[text, {"good": "bad", "bad": "good"}[label]] for text, label in rows]


def _one_label(rows: Rows) -> Rows:
    return [[rows[0][0], "bad"], *rows[1:]]


def _one_letter(rows: Rows) -> Rows:
    return [[rows[0][0].replace("e", "o", 1) + "x", rows[0][1]], *rows[1:]]


def _no_column(folder: Path) -> Seen:
    path = _cut_run(folder)
    (folder / "t.csv").write_text("text\nhello\n")
    return refused(resumed(path), "label")


def _no_table(folder: Path) -> Seen:
    path = _cut_run(folder)
    (folder / "t.csv").unlink()
    return refused(resumed(path), "t.csv")


def _forced(folder: Path) -> Seen:
    path = _cut_run(folder)
    write_table(folder / "t.csv", table_rows()[::-1])
    ended = resumed(path, "resume.force=true")
    return Seen(ended.code == 0, f"exit code {ended.code}: {ended.said}")


def _moved(folder: Path) -> Seen:
    path = _cut_run(folder)
    (folder / "t.csv").rename(folder / "u.csv")
    ended = resumed(path, f"data.path={folder}/u.csv")
    return Seen(ended.code == 0, f"exit code {ended.code}: {ended.said}")


def _allowed(folder: Path) -> Seen:
    ended = resumed(_cut_run(folder), "trainer.patience=1", "trainer.log_every=2")
    return Seen(ended.code == 0, f"exit code {ended.code}: {ended.said}")
