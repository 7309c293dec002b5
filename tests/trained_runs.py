"""Tiny runs that tests of several modules share; each is trained at its first use.

The fixture `trained_run` of conftest.py returns their folders. The data of a run lies beside its
folder. No test changes these files.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.runs import PLAIN, SMALL, TEXT, TINY_DIGITS, table_of, train

ONCE = [*PLAIN, "trainer.epochs=1", "report=false"]
WORDS = ["apple", "pear", "plum", "cherry"]


def texts(folder: Path) -> list[str]:
    """table.csv: a text and one of the classes a and b."""
    (folder / "table.csv").write_text(table_of(40))
    return [*SMALL, *TEXT, f"{folder / 'table.csv'}", "target=label"]


def digits(folder: Path) -> list[str]:
    """The built-in data: a text, a picture and a sound per row."""
    return TINY_DIGITS


def pairs(folder: Path) -> list[str]:
    """pairs.csv: a text, and the text that the model writes. It is hardly trained."""
    rows = [f"{WORDS[i % 4]} number {i},{WORDS[i // 4 % 4]} no {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["text,written", *rows]))
    return [*SMALL, *TEXT, "head=generate", f"{folder / 'pairs.csv'}", "target=written"]


def lines(folder: Path) -> list[str]:
    """lines.txt: texts of a language model whose tokens are bytes. It is hardly trained."""
    content = [f"{WORDS[i % 4]} größe {WORDS[i // 4 % 4]} 東京" for i in range(60)]
    (folder / "lines.txt").write_text("\n".join(content), encoding="utf-8")
    options = ["adapters=[text]", "adapters.text.vocab_size=270", "backbone.causal=true"]
    return [*SMALL, *options, "head=language", f"data.path={folder / 'lines.txt'}"]


def boxes(folder: Path) -> list[str]:
    """Generated pictures with objects, which the model finds with few registers."""
    data = ["data=objects", "data.num_train=20", "data.num_validation=4", "data.num_test=4"]
    options = ["adapters=[image]", "adapters.image.image_size=32", "head=detect"]
    return [*SMALL, *data, *options, "head.threshold=0.001", "head.max_objects=5"]


RUNS = (texts, digits, pairs, lines, boxes)


class TrainedRuns:
    """The folder of the run of a name, which is trained at the first call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, dict[Path, tuple[int, int]]] = {}

    def __call__(self, name: str) -> Path:
        folder = self.root / name
        if name not in self.files:
            options: Callable[[Path], list[str]] = {f.__name__: f for f in RUNS}[name]
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                # Whatever the first module that uses the run says, see conftest.py.
                patch.setattr("dxn.runs.evaluation.evaluate.draw_tokens", lambda *_, **__: None)
                train(folder / "run", *options(folder), *ONCE)
            self.files[name] = files_of(folder)
        return folder / "run"

    def check_unchanged(self) -> None:
        for name, files in self.files.items():
            assert files_of(self.root / name) == files, f"a test changed the shared run {name}"


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file of a folder."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
