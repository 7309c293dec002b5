"""What notebooks show of results: HTML fragments, and a line of progress that is updated."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, number
from dxn.viz.html import TEMPLATES, data_url, render

# numpy and Pillow are imported when the first matrix is drawn.
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Blue for negative and red for positive numbers, which most color-blind people can tell apart.
NEGATIVE = (33, 102, 172)
POSITIVE = (178, 24, 43)
MAX_COLUMNS = 512  # a picture of more columns is larger than a screen
QUANTILE = 0.99  # a few extreme numbers do not make all others white
# The picture of a matrix, in pixels.
MIN_HEIGHT = 96
TOKEN_WIDTH = 12
MAX_WIDTH = 768
MAX_BARS = 10  # classes of an answer
MAX_LABELS = 5  # class names of a model


def html_of(value: Any) -> str:
    """Return what a notebook shows of a value of one of the classes of `SHOWN`."""
    # By name: this package is below the ones that define these classes.
    show = next(SHOWN[base.__name__] for base in type(value).__mro__ if base.__name__ in SHOWN)
    return show(value)


class LiveLine:
    """Shows how far a piece of work is in the output of a notebook cell."""

    def __init__(self):
        self.handle: Any = None

    def update(self, title: str, done: int, total: int, status: str) -> None:
        """Show the progress, in place of what was shown before."""
        content = {"title": title, "done": done, "total": total, "status": status}
        html = render(TEMPLATES / "progress.html", **content)
        if self.handle is None:
            display: Any = importlib.import_module("IPython.display").display
            self.handle = display(_fragment(html), display_id=True, raw=True)
        else:
            self.handle.update(_fragment(html), raw=True)

    def close(self) -> None:
        """Remove the progress."""
        if self.handle is not None:
            self.handle.update(_fragment(""), raw=True)


def _fragment(html: str) -> dict[str, str]:
    """Return an HTML fragment; frontends without HTML show an empty text."""
    return {"text/html": html, "text/plain": ""}


def heatmap(matrix: ArrayLike) -> str:
    """Return a picture of a matrix (D, N), one pixel per number, as a data URL.

    White is zero. Only the first columns of a wide matrix are drawn.
    """
    import numpy as np
    from PIL import Image

    numbers = np.nan_to_num(np.asarray(matrix, dtype=np.float32)[:, :MAX_COLUMNS])
    largest = float(np.quantile(np.abs(numbers), QUANTILE)) if numbers.size else 0.0
    scaled = np.clip(numbers / (largest or 1.0), -1, 1)[..., None]
    color = np.where(scaled < 0, np.array(NEGATIVE), np.array(POSITIVE))
    # Between white and the color, by magnitude.
    pixels = 255 + np.abs(scaled) * (color - 255)
    file = BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(file, "PNG")
    return data_url("image/png", file.getvalue())


def _tokens(tokens: Any) -> str:
    """Return the inputs of tokens, and the matrix of the first sample."""
    length = int(tokens.mask[:1].sum())
    spans = [
        {
            "name": span.name,
            "modality": span.modality,
            "columns": len(span),
            "tokens": int(tokens.mask[:1, span.start : span.stop].sum()),
        }
        for span in tokens.spans
    ]
    height = max(MIN_HEIGHT, tokens.x.shape[2])
    return render(
        TEMPLATES / "tokens.html",
        samples=count(len(tokens), "sample"),
        dim=tokens.x.shape[2],
        columns=tokens.x.shape[1],
        spans=spans,
        tokens=length,
        picture=heatmap(tokens[0].detach().float().cpu()) if length else "",
        height=height,
        # Wide enough to tell the columns apart.
        width=min(max(TOKEN_WIDTH * length, height), MAX_WIDTH),
    )


def _answer(answer: Any) -> str:
    """Return the prediction and its probabilities as a table."""
    probabilities: dict[str, float] = answer.get("probabilities", {})
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    return render(
        TEMPLATES / "answer.html",
        prediction=str(answer.get("prediction", "")),
        bars=[{"name": name, "value": number(p)} for name, p in ranked[:MAX_BARS]],
        more=max(len(ranked) - MAX_BARS, 0),
    )


def _predictor(predictor: Any) -> str:
    """Return the inputs of a model with their columns, and the labels."""
    inputs = [
        {"name": name, "modality": prepare.modality, "column": predictor.columns.get(name, "")}
        for name, prepare in predictor.tokenizers.items()
    ]
    labels = predictor.labels or ()
    more = f", … ({len(labels):,} in all)" if len(labels) > MAX_LABELS else ""
    return render(
        TEMPLATES / "predictor.html",
        task=predictor.task.name,
        target=predictor.target or "",
        parameters=f"{sum(p.numel() for p in predictor.network.parameters()):,}",
        inputs=inputs,
        labels=", ".join(map(str, labels[:MAX_LABELS])) + more,
    )


def _run(run: Any) -> str:
    """Return the metrics of a run by subset of the inputs."""
    split, table = run.table
    names = list(dict.fromkeys(name for metrics in table.values() for name in metrics))
    rows = [
        {"name": row, "cells": [metrics.get(name, "") for name in names]}
        for row, metrics in table.items()
    ]
    sizes = run.metrics.get("rows", {})
    return render(
        TEMPLATES / "run.html",
        folder=str(run.folder),
        rows=", ".join(f"{name} {count(n, 'row')}" for name, n in sizes.items()),
        names=names,
        split=split,
        table=rows,
        report=str(run.report or ""),
    )


SHOWN: dict[str, Callable[[Any], str]] = {
    "Tokens": _tokens,
    "Answer": _answer,
    "Predictor": _predictor,
    "Run": _run,
}
