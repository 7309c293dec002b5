"""What a run leaves beside its weights: figures, predictions, plots, and what the user reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from dxn.data.samples import Opened, Samples
from dxn.data.targets import Target
from dxn.explain import plots
from dxn.train.evaluate import Predictions
from dxn.train.metrics import confusion, monitored
from dxn.train.pipeline import Data

console = Console(highlight=False, soft_wrap=True)


def describe(data: Data) -> None:
    """Say what is about to be learned from what."""
    source = data.source
    for name, column in source.columns.items():
        kind = f" ({data.target.kind})" if name == "target" else ""
        console.print(f"{name}: {column}{kind}", markup=False)
    for note in source.notes:
        console.print(f"note: {note}", markup=False)
    for name, split in data.splits.items():
        console.print(f"{name}: {len(split):,} rows{_defects(split)}", markup=False)
        unknown = data.target.unknown(split.targets or ())
        if unknown:
            console.print(f"note: {unknown} rows of {name} have a target that training never saw: counted as wrong")
    if data.target.names:
        names = data.target.names
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        console.print(f"{len(names)} {data.target.kind}: {shown}", markup=False)


def _defects(split: Opened) -> str:
    parts = [f"{count} without {name}" for name, count in split.missing.items() if count]
    if split.skipped:
        parts.append(f"{split.skipped} skipped")
    return f" ({', '.join(parts)})" if parts else ""


def figures_table(results: Mapping[str, Mapping[str, float]], target: Target, title: str) -> None:
    """A row a set of modalities, a column a metric."""
    table = Table(title=title)
    metrics = list(dict.fromkeys(m for found in results.values() for m in found if m != "rows"))
    table.add_column("shown")
    for metric in metrics:
        table.add_column(metric, justify="right", style="bold" if metric == monitored(target) else None)
    for name, found in results.items():
        table.add_row(name, *(f"{found.get(metric, float('nan')):.4f}" for metric in metrics))
    console.print(table)


def write_metrics(path: Path, results: Mapping[str, Mapping[str, float]], extra: Mapping[str, object]) -> None:
    """metrics.json: test/accuracy, test/accuracy[image] ... ; results by split, then by what was shown."""
    flat: dict[str, object] = {}
    for name, found in results.items():
        split, _, shown = name.partition("/")
        for metric, value in found.items():
            flat[f"{split}/{metric}[{shown}]" if shown else f"{split}/{metric}"] = value
    path.write_text(json.dumps({**flat, **extra}, indent=1))


def write_predictions(
    path: Path, predictions: Predictions, samples: Samples, target: Target, answers: Sequence[Mapping]
) -> None:
    """predictions.csv: where each row came from, what is true, what was predicted, and the probabilities."""
    opened = samples.opened
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = target.names if target.kind in ("class", "labels") else ()
        writer.writerow(
            [
                "row",
                *(["true"] if opened.targets is not None else []),
                "predicted",
                *(f"p({n})" for n in names),
            ]
        )
        for i, answer in zip(predictions.rows, answers, strict=True):
            true = [_cell(opened.targets[i])] if opened.targets is not None else []
            shares = [f"{p:.6f}" for p in answer.get("probabilities", {}).values()]
            writer.writerow([opened.origin[i], *true, _cell(answer["prediction"]), *shares])


def write_vectors(path: Path, origin: Sequence[str], vectors: Tensor) -> None:
    """A vector a row: .npy, float32 (rows, E), or .csv with where each row came from before its numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, vectors.numpy())
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *map(str, range(vectors.shape[1]))])
        writer.writerows([name, *(f"{v:.7g}" for v in row)] for name, row in zip(origin, vectors.tolist(), strict=True))


def plain(text: str) -> Text:
    """Any text as it is: brackets are no markup, and a space at an end is shown as ·."""
    return Text(f"{'·' * (len(text) - len(text.lstrip()))}{text.strip()}" if text.strip() else repr(text))


def _cell(value) -> str:
    if isinstance(value, list | tuple):
        return " ".join(value) if all(" " not in v for v in value) else "|".join(value)
    return str(value)


def draw(
    folder: Path,
    predictions: Predictions,
    samples: Samples,
    target: Target,
    results: Mapping[str, Mapping[str, float]],
) -> None:
    """plots/: curves, confusion or predicted against true, and what each modality adds."""
    folder.mkdir(exist_ok=True)
    lines = folder.parent / "metrics.jsonl"
    if lines.exists():
        plots.curves([json.loads(line) for line in lines.read_text().splitlines()], folder / "curves.png")
    targets = samples.opened.targets
    if targets is None:
        return
    truths = [targets[i] for i in predictions.rows]
    if target.kind == "class":
        counts = confusion(target, predictions.predicted, truths)
        plots.confusion(counts.numpy(), list(target.names), folder / "confusion.png")
    if target.kind == "number":
        plots.predicted_vs_true([float(p) for p in predictions.predicted], truths, folder / "predicted_vs_true.png")
    shown = {name: found[monitored(target)] for name, found in results.items()}
    if len(shown) > 1:
        plots.modality_bars(shown, monitored(target), folder / "modalities.png")


def card(
    *,
    name: str,
    parts: Mapping,
    target: Target,
    sizes: Mapping[str, int],
    figures: Mapping[str, float],
    parameters: int,
) -> str:
    """A model card in Markdown."""
    lines = [
        f"# {name}",
        "",
        f"Made with dxn. {parameters:,} parameters; takes {', '.join(parts['adapters'])}; predicts: {target.kind}.",
    ]
    if target.names:
        lines += ["", f"Classes: {', '.join(target.names)}."]
    lines += ["", "Rows: " + ", ".join(f"{split} {count:,}" for split, count in sizes.items()) + ".", ""]
    lines += [f"- validation {metric}: {value:.4f}" for metric, value in figures.items()]
    lines += [
        "",
        "```python",
        "import dxn",
        "",
        'model = dxn.load("model")',
        f"model.predict({_example(parts)})",
        "```",
        "",
    ]
    return "\n".join(lines)


def _example(parts: Mapping) -> str:
    examples = {"text": 'text="..."', "image": 'image="photo.jpg"', "audio": 'audio="sound.wav"'}
    return ", ".join(examples[m] for m in parts["adapters"])


def now() -> str:
    """For the name of a folder: 2026-01-31_12-00-00.00."""
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-4]
