"""A finished training, as `dxn.train` returns it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.runs.evaluation.printing import ALL, Figures, format_number, name_answers
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.viz.notebook import render

METRICS = "metrics.json"
REPORT = "report.html"
# Such as "test/accuracy[text+image]": the split, the metric, and the inputs or the simple rule.
FIGURE = re.compile(r"(?P<split>test|validation)/(?P<name>[^\[]+)(\[(?P<rows>.*)\])?", re.DOTALL)
SELECTED = "validation/best"  # the figure that selected the best epoch


class Run:
    """A finished training: its model, its metrics and its files.

    Args:
        folder: The run folder.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If the folder contains no finished training.

    Example:
        >>> run = dxn.train("reviews.csv", target="label")
        >>> run.metrics["test/accuracy"]
        >>> run.model.predict(text="a fine film")
    """

    def __init__(self, folder: str | PathLike[str], *, trust: Sequence[str] = ()):
        self.folder = Path(folder)
        self.trust = tuple(trust)
        if not (self.folder / METRICS).is_file():
            raise UserError(
                f"{self.folder}: not the folder of a finished training, it has no {METRICS}; "
                "choose another folder, or continue the training with dxn train resume="
            )

    @cached_property
    def model(self) -> Predictor:
        """The model with the weights of the best epoch, on the CPU. It is loaded on first use."""
        return model_folder.load(self.folder / "model", trust=self.trust)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of metrics.json, such as {"test/accuracy": 0.9, ...}."""
        return json.loads((self.folder / METRICS).read_text(encoding="utf-8"))

    @property
    def report(self) -> Path | None:
        """The file report.html, or None if the run has none."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    def __repr__(self) -> str:
        split, table = self._table()
        rows = list(table)
        # Without the rows of single inputs, which come before that of all inputs.
        kept = {row: table[row] for row in rows[rows.index(ALL) :]} if ALL in table else {}
        shown = [str(self.folder)]
        for row, figures in self._named(kept).items():
            values = [f"{name} {format_number(value)}" for name, value in figures.items()]
            shown.append(f"{split}, {row}: {', '.join(values)}")
        return f"Run({'; '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the metrics by subset of the inputs."""
        split, figures = self._table()
        table = self._named(figures)
        names = list(dict.fromkeys(name for figures in table.values() for name in figures))
        rows = [
            {"name": row, "cells": [_cell(figures.get(name)) for name in names]}
            for row, figures in table.items()
        ]
        sizes = self.metrics.get("rows", {})
        return render(
            "run",
            folder=str(self.folder),
            rows=", ".join(f"{name} {count(n, 'row')}" for name, n in sizes.items()),
            names=names,
            split=split,
            table=rows,
            report=str(self.report or ""),
        )

    def _table(self) -> tuple[str, dict[str, dict[str, float]]]:
        """Return the split of the evaluation, and its metrics by row of the final table."""
        split = ""
        table: dict[str, dict[str, float]] = {}
        for key, value in self.metrics.items():
            match = FIGURE.fullmatch(key)
            if match is None or key == SELECTED or not isinstance(value, int | float):
                continue
            if match["name"] not in self.metrics["shown"]:
                continue
            split = match["split"]
            table.setdefault(match["rows"] or ALL, {})[match["name"]] = value
        return split, table

    def _named(self, table: Figures) -> Figures:
        return name_answers(table, self.metrics.get("answers"))


def _cell(value: float | None) -> str:
    return "" if value is None else format_number(value)
