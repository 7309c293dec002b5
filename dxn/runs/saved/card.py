"""The model card: the README.md of a model folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import dxn
from dxn.core.printable import without_secrets
from dxn.models.model import MultimodalModel, count_parameters
from dxn.tasks import Task
from dxn.tasks.metric import defined

if TYPE_CHECKING:
    from dxn.config.model_plan import Input, ModelPlan
    from dxn.runs.prepare import Training


@dataclass(frozen=True)
class Card:
    """What the card of a model says besides its metrics.

    Args:
        title: Title of the card.
        plan: What determines the model.
        task: The fitted task.
        parameters: Number of parameters.
        about_target: Description of the target values. Empty for a task without targets.
        data: Name of the data set. Empty for a model that dxn did not train.
        sizes: Number of rows of each split.
        overrides: Options of the training as the user typed them.
    """

    title: str
    plan: ModelPlan
    task: Task
    parameters: int
    about_target: str = ""
    data: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    def markdown(
        self,
        figures: Mapping[str, Mapping[str, float]] | None = None,
        *,
        epochs: str = "",
        others: Mapping[str, Mapping[str, float]] | None = None,
        answers: str = "",
    ) -> str:
        """Return the card in Markdown.

        Args:
            figures: Metrics by the name of the split.
            epochs: The epoch that was saved, such as "epoch 3 of 8".
            others: Metrics of parts of the model and of simple rules on the last split of
                `figures`, by their name, such as "transformer alone" and "always ham".
            answers: How the output is computed from the transformer and the baseline. "": the
                transformer answers.
        """
        versions = f"dxn {dxn.__version__} and torch {torch.__version__} on {date.today()}"
        trained = "Trained" if self.data else "Made of parts of dxn, and saved"
        saved = f", those of {epochs}" if epochs else ""
        lines = [f"# {self.title}", "", f"{trained} with {versions}.", ""]
        lines.append(f"- task: {self.task.name}")
        if self.about_target:
            lines.append(f"- target: {self.plan.target}: {self.about_target}")
        lines.append(f"- inputs: {_inputs(self.plan.inputs)}")
        if self.data:
            lines.append(f"- data: {self.data}; rows: {_rows(self.sizes)}")
        lines.append(f"- weights: {self.parameters:,} parameters{saved}")
        if answers:
            lines.append(f"- answers: the mixture {answers}")
        lines += ["- license: not set", ""]
        if self.data:
            shown = {split: self._shown(metrics) for split, metrics in (figures or {}).items()}
            lines += ["## Metrics", "", *_figure_lines(shown, others or {}), ""]
            lines += ["## Training", "", "```bash", self.command(), "```", ""]
        call = "predict" if self.task.is_supervised else "embed"
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
        return without_secrets("\n".join(lines))

    def _shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that tables show, too."""
        return {name: metrics[name] for name in self.task.metric.shown(defined(metrics))}

    def command(self) -> str:
        """Return the command line of the training."""
        # Only what the user typed: the full configuration has paths of this machine.
        return shlex.join(["dxn", "train", *self.overrides])


def card_of(run: Training, model: MultimodalModel, task: Task) -> Card:
    """Return the model card of a training, which also contains the configuration of the model.

    Args:
        run: The training.
        model: The model to save: that of the run, or that of its pretraining.
        task: The task of its head.
    """
    plan, config = run.plan, run.plan.config
    is_main = task is run.task
    return Card(
        title=plan.name if is_main else f"{plan.name}, pretraining",
        plan=plan.model
        if is_main
        else plan.model.model_copy(update={"head": config["pretrain"]["task"], "target": None}),
        task=task,
        about_target=task.target.describe(run.splits["train"].targets or ())
        if task.is_supervised
        else "",
        data=data_name(config["data"], run.source.name),
        sizes=run.sizes,
        overrides=run.overrides,
        parameters=count_parameters(model),
    )


def data_name(node: Mapping[str, Any], name: str | None) -> str:
    """Return what a card calls the data set: its path, its name, or the class that generates it.

    Args:
        node: Configuration node `data`.
        name: Name of the data source.
    """
    path = node.get("path") or node.get("train")
    if isinstance(path, str):
        # The home folder is nobody else's concern, and `~` may have been expanded.
        home = str(Path.home())
        return path.replace(home, "~", 1) if path.startswith(home) else path
    return name or str(node["_target_"]).rpartition(".")[2]


def _inputs(specs: Mapping[str, Input]) -> str:
    parts = []
    for name, spec in specs.items():
        modality = "" if spec.modality == name else f"{spec.modality}, "
        parts.append(f"{name} ({modality}column {spec.column})")
    return ", ".join(parts)


def _rows(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in sizes.items())


def _figure_lines(
    figures: Mapping[str, Mapping[str, float]], others: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Return one list item per split and metric, with the metrics of `others` to compare."""
    lines = []
    for split, metrics in figures.items():
        for metric, value in metrics.items():
            parts = [
                f"{name}: {other[metric]:.4f}"
                for name, other in others.items()
                # A constant answer has no probabilities, and then its loss is NaN.
                if not math.isnan(other.get(metric, math.nan))
            ]
            # The others were evaluated on the last split only.
            is_compared = parts and split == list(figures)[-1]
            comparison = f" ({', '.join(parts)})" if is_compared else ""
            lines.append(f"- {split} {metric}: {value:.4f}{comparison}")
    return lines


def _example(names: Iterable[str]) -> str:
    """Return the keyword arguments of the example call."""
    # The name of a column need not be a Python identifier, such as "my text".
    names = list(names)
    if all(name.isidentifier() for name in names):
        return ", ".join(f"{name}=..." for name in names)
    return "**{" + ", ".join(f'"{name}": ...' for name in names) + "}"
