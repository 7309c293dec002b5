"""The model card: the README.md of a model folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import torch

import dxn
from dxn.core.display import number
from dxn.core.results import ALL, Results
from dxn.tasks import Task

if TYPE_CHECKING:
    from dxn.config.model_plan import Input, ModelPlan
    from dxn.runs.prepare import Training


@dataclass(frozen=True)
class Card:
    """What the card of a model says besides its results.

    Args:
        title: Title of the card.
        plan: What determines the model.
        task: The fitted task.
        overrides: Options of the training as the user typed them.
    """

    title: str
    plan: ModelPlan
    task: Task
    overrides: tuple[str, ...] = ()

    def markdown(self, results: Results) -> str:
        """Return the card in Markdown.

        Args:
            results: The results. Without the name of the data, dxn has not trained the model.
        """
        versions = f"dxn {dxn.__version__} and torch {torch.__version__} on {date.today()}"
        data = results.data
        trained = "Trained" if data.name else "Made of parts of dxn, and saved"
        lines = [f"# {self.title}", "", f"{trained} with {versions}.", ""]
        lines.append(f"- task: {self.task.name}")
        if self.task.is_supervised and "train" in data.targets:
            lines.append(f"- target: {self.plan.target}: {data.targets['train']}")
        lines.append(f"- inputs: {_inputs(self.plan.inputs)}")
        saved = ""
        if data.name:
            lines.append(f"- data: {data.name}; rows: {_rows(data.rows)}")
            saved = f", those of {_epochs(results)}"
        lines.append(f"- weights: {results.parameters:,} parameters{saved}")
        lines += [f"- initial weights: {line}" for line in results.start]
        if results.formula:
            lines.append(f"- answers: the mixture {results.formula}")
        lines += ["- license: not set", ""]
        if data.name:
            lines += ["## Metrics", "", *_figure_lines(results)]
            lines += [f"- {remark}" for remark in results.remarks]
            lines.append("")
            lines += ["## Training", "", "```bash", self.command(), "```", ""]
        call = "predict" if self.task.has_answers else "embed"
        lines += [
            "## Use",
            "",
            "```python",
            "import dxn",
            "",
            'model = dxn.load("model")',
            f"model.{call}({_example(self.plan.inputs)})",
            "```",
            "",
        ]
        return "\n".join(lines)

    def command(self) -> str:
        """Return the command line of the training."""
        # Only what the user typed: the full configuration has paths of this machine.
        return shlex.join(["dxn", "train", *self.overrides])


def card_of(run: Training, task: Task) -> Card:
    """Return the model card of a training, which also contains the configuration of the model.

    Args:
        run: The training.
        task: The task of the model's head: that of the run, or that of its pretraining.
    """
    plan, config = run.plan, run.plan.config
    is_main = task is run.task
    return Card(
        title=plan.name if is_main else f"{plan.name}, pretraining",
        plan=plan.model
        if is_main
        else plan.model.model_copy(update={"head": config["pretrain"]["task"], "target": None}),
        task=task,
        overrides=run.overrides,
    )


def _inputs(specs: Mapping[str, Input]) -> str:
    parts = []
    for name, spec in specs.items():
        modality = "" if spec.modality == name else f"{spec.modality}, "
        parts.append(f"{name} ({modality}column {spec.column})")
    return ", ".join(parts)


def _rows(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in sizes.items())


def _epochs(results: Results) -> str:
    if results.seeds:
        return f"the best epoch of each of {len(results.seeds)} members"
    if results.epochs is None:
        return "the best epoch so far"
    return f"epoch {results.best_epoch} of {results.epochs}"


def _figure_lines(results: Results) -> list[str]:
    """Return one list item per split and metric, with the metrics of other rows to compare."""
    lines = []
    for split in dict.fromkeys(("validation", results.split)):
        figures = results.figures(split)
        model_figures = figures.get(ALL, {})
        for metric in results.shown:
            if metric not in model_figures:
                continue
            # A constant answer has no probabilities, and then no loss.
            parts = [
                f"{name}: {number(figures[name][metric])}"
                for name in results.references
                if not math.isnan(figures[name].get(metric, math.nan))
            ]
            comparison = f" ({', '.join(parts)})" if parts else ""
            lines.append(f"- {split} {metric}: {number(model_figures[metric])}{comparison}")
    return lines


def _example(names: Iterable[str]) -> str:
    """Return the keyword arguments of the example call."""
    # The name of a column need not be a Python identifier, such as "my text".
    names = list(names)
    if all(name.isidentifier() for name in names):
        return ", ".join(f"{name}=..." for name in names)
    return "**{" + ", ".join(f'"{name}": ...' for name in names) + "}"
