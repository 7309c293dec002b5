"""Compare dxn with gradient boosting on the small tables that scikit-learn contains.

    python benchmarks/studies/tables.py [OPTION=VALUE ...]

Each table is divided into five folds. For each fold, `dxn train experiment=small_table` trains on
the other four, with a tenth of their rows as the validation split, and predicts the fold. All
tables have the same options. The peers are GradientBoosting and HistGradientBoosting of
scikit-learn with their default options, on the same folds with all training rows.

The script prints the mean accuracy, or R² for a table with numbers as targets. Further options are
passed to `dxn train`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets, ensemble
from sklearn.model_selection import KFold, StratifiedKFold

FOLDS = 5
SEED = 0
TARGET = "target"


class Problem(NamedTuple):
    """A table: its columns, its targets, and whether they are numbers."""

    columns: list[str]
    x: np.ndarray
    y: np.ndarray
    is_numeric: bool


def load(name: str) -> Problem:
    """Return one of the tables of scikit-learn."""
    data: Any = getattr(datasets, f"load_{name}")()
    is_numeric = not hasattr(data, "target_names")
    y = data.target if is_numeric else np.array(data.target_names)[data.target]
    return Problem(list(data.feature_names), data.data, y, is_numeric)


TABLES = ("breast_cancer", "wine", "diabetes")


def folds(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows to train on, and those of the fold."""
    kind = KFold if problem.is_numeric else StratifiedKFold
    yield from kind(FOLDS, shuffle=True, random_state=SEED).split(problem.x, problem.y)


def peers(problem: Problem) -> dict[str, list[float]]:
    """Return the accuracy or R² of gradient boosting, by fold."""
    kind = "Regressor" if problem.is_numeric else "Classifier"
    scores: dict[str, list[float]] = {}
    for name in ("GradientBoosting", "HistGradientBoosting"):
        scores[name] = []
        for train, test in folds(problem):
            model = getattr(ensemble, f"{name}{kind}")(random_state=SEED)
            model.fit(problem.x[train], problem.y[train])
            scores[name].append(model.score(problem.x[test], problem.y[test]))
    return scores


def ours(problem: Problem, folder: Path, options: Sequence[str]) -> tuple[list[float], float]:
    """Return the accuracy or R² of dxn by fold, and the mean seconds of a training."""
    scores: list[float] = []
    seconds: list[float] = []
    for i, (train, test) in enumerate(folds(problem)):
        paths = {"train": folder / f"train{i}.csv", "test": folder / f"test{i}.csv"}
        for name, rows in (("train", train), ("test", test)):
            write(paths[name], problem, rows)
        run = folder / f"run{i}"
        command = [
            *(sys.executable, "-c", "import sys; from dxn.cli import main; sys.exit(main())"),
            *("train", "experiment=small_table", "data=table"),
            *(f"data.{name}={path}" for name, path in paths.items()),
            *(f"data.target={TARGET}", f"run={run}", *options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"failed: {' '.join(command)}\n{done.stderr}")
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        scores.append(metrics["test/r2" if problem.is_numeric else "test/accuracy"])
        seconds.append(metrics["train_seconds"])
    return scores, statistics.mean(seconds)


def write(path: Path, problem: Problem, rows: np.ndarray) -> None:
    """Write some rows of a table as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*problem.columns, TARGET])
        for row in rows.tolist():
            writer.writerow([*problem.x[row].tolist(), problem.y[row].item()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("options", nargs="*", help="further options of dxn train")
    parser.add_argument("--tables", nargs="*", default=TABLES, choices=TABLES)
    arguments = parser.parse_intermixed_args()
    for name in arguments.tables:
        problem = load(name)
        metric = "R²" if problem.is_numeric else "accuracy"
        rows, columns = problem.x.shape
        with tempfile.TemporaryDirectory() as folder:
            scores, seconds = ours(problem, Path(folder), arguments.options)
        results = {f"dxn ({seconds:.0f} s per fold)": scores, **peers(problem)}
        print(f"{name}: {rows} rows, {columns} columns, {metric} of {FOLDS} folds", flush=True)
        for label, values in results.items():
            listed = ", ".join(f"{value:.3f}" for value in values)
            print(f"  {label}: {statistics.mean(values):.4f} ({listed})", flush=True)


if __name__ == "__main__":
    main()
