"""A model made of parts, for a training loop of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from dxn.config.model_plan import Input, ModelPlan
from dxn.core.errors import UserError
from dxn.core.parts import node_of_part
from dxn.data.dataset import Samples
from dxn.data.rows import TARGET, Rows
from dxn.models import model as models
from dxn.models.fusion import EarlyFusion
from dxn.models.late_fusion import SeparateBackbones
from dxn.runs.predictor.predictor import Predictor, Values
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card
from dxn.tasks import Task
from dxn.tokenize.base import Adapter
from dxn.training.device import to_device
from dxn.training.predict import task_results


class Model(models.MultimodalModel):
    """A model made of parts, together with its task, which you train in a loop of your own.

    `dxn.load`, `dxn serve`, `dxn export`, `dxn attend` and the other commands work on the folder
    that `save` writes.

    Args:
        inputs: Adapter of each input, by the name of the input. They must be fitted. Several inputs
            can share one adapter.
        backbone: Backbone that processes the tokens of all inputs.
        head: The task, such as `dxn.tasks.Classify()`. It creates the head of the model.
        fusion: How the inputs are combined. Default: `EarlyFusion`.
        targets: Targets of the training, from which the task learns its classes, for example. None:
            the task is fitted, or needs no targets.

    Raises:
        UserError: If the parts cannot be combined.

    Example:
        >>> inputs = {"text": TextAdapter(dim=32).fit(texts)}
        >>> model = dxn.Model(inputs, backbone=Backbone(32), head=Classify(), targets=labels)
        >>> batch = model.collate([{"text": "a fine film", "target": "good"}])
        >>> model.loss(model(batch), batch).backward()
    """

    def __init__(
        self,
        inputs: Mapping[str, Adapter],
        *,
        backbone: Any,
        head: Task,
        fusion: Any = None,
        targets: Sequence[Any] | None = None,
    ):
        if not inputs:
            raise UserError("inputs: a model needs at least one input, got none")
        dim: int = _first(backbone).dim
        widths = {name: adapter.dim for name, adapter in inputs.items()}
        if {*widths.values()} != {dim}:
            listed = ", ".join(f"{name} {dim}" for name, dim in widths.items())
            raise UserError(
                f"dim: all adapters and the backbone must have the same width, got {listed} and "
                f"backbone {dim}"
            )
        fusion = fusion or EarlyFusion(dim, inputs=list(inputs))
        adapters = dict(inputs)
        head.target.bind(adapters)
        if targets is not None:
            origins = [f"target {i + 1}" for i in range(len(targets))]
            head.target.find_format(targets, origins)
            pairs = zip(targets, origins, strict=True)
            head.target.fit([head.target.read(cell, origin, {}) for cell, origin in pairs])
        # Several inputs with the same adapter have the key of the first one.
        keys: dict[int, str] = {}
        shared = {name: keys.setdefault(id(adapter), name) for name, adapter in inputs.items()}
        super().__init__(
            {key: inputs[key] for key in keys.values()},
            inputs=shared,
            fusion=fusion,
            backbone=backbone,
            head=head.make_head(dim, fusion.width, adapters),
        )
        self.task = head

    @property
    def predictor(self) -> Predictor:
        """The model in evaluation mode, with the methods of a trained model, such as `predict`."""
        return Predictor(self.eval(), self.task, target=TARGET)

    def forward(self, batch: Mapping[str, Any], mixing: Any = None) -> Any:
        """Compute the output of the head for a batch of `collate`, on the device of the model."""
        return super().forward(self._on_device(batch), mixing)

    def collate(self, rows: Sequence[Values]) -> dict[str, Any]:
        """Return a batch of rows, as the `collate_fn` of a DataLoader.

        Args:
            rows: Values of the inputs by name: texts, paths, pictures, arrays, and numbers. An
                input can be left out or None. The key "target" is the target.

        Raises:
            UserError: If a value cannot be read, or a row has no input.
        """
        samples = self._samples(rows)
        return samples.collate([samples[0, i] for i in range(len(samples))])

    def loss(self, output: Any, batch: Mapping[str, Any]) -> Tensor:
        """Return the mean loss () of the output of the model for a batch with targets."""
        return self.task.loss(output, self._on_device(batch)).mean

    def save(self, folder: str | PathLike[str], *, title: str = "") -> None:
        """Write the model folder, which `dxn.load` and the commands read.

        Args:
            folder: Folder to write. It is replaced if it exists.
            title: Title of the model card. Default: the name of the folder.

        Raises:
            UserError: If an argument of a part is neither plain data nor a part of dxn, or a weight
                is not finite.
        """
        folder = Path(folder)
        keys = dict.fromkeys(self.inputs.values())
        plan = ModelPlan(
            inputs={
                name: Input(modality=self.adapter(name).modality, column=name, adapter=key)
                for name, key in self.inputs.items()
            },
            target=TARGET if self.task.is_supervised else None,
            adapters={key: node_of_part(self.adapter(key), f"inputs.{key}") for key in keys},
            fusion=node_of_part(self.fusion, "fusion"),
            share_backbone=not isinstance(self.backbone, SeparateBackbones),
            backbone=node_of_part(_first(self.backbone), "backbone"),
            head=node_of_part(self.task, "head"),
        )
        results = task_results(self.task, "test", {}, parameters=models.count_parameters(self))
        card = Card(title or folder.name, plan, self.task).markdown(results)
        model_folder.save(folder, model=self, plan=plan, task=self.task, card=card)

    def _on_device(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return to_device(dict(batch), next(self.parameters()).device)

    def _samples(self, rows: Sequence[Values]) -> Samples:
        predictor = Predictor(self, self.task, target=TARGET)
        if not (self.task.is_supervised and any(row.get(TARGET) is not None for row in rows)):
            inputs = [{n: value for n, value in row.items() if n != TARGET} for row in rows]
            return predictor.samples(inputs)
        unknown = {name for row in rows for name in row} - {*self.inputs, TARGET}
        if unknown:
            raise UserError(
                f"this model has the inputs {', '.join(self.inputs)}, "
                f"got {', '.join(sorted(unknown))}"
            )
        cells: dict[str, list[Any]] = {
            name: [predictor.model_inputs.cell(name, row.get(name)) for row in rows]
            for name in self.inputs
        }
        cells[TARGET] = [row.get(TARGET) for row in rows]
        origins = [f"sample {i + 1}" for i in range(len(rows))]
        opened = predictor.model_inputs.survey(Rows(cells, origins), with_target=True)
        if opened.bad:
            first = min(opened.bad, key=lambda fault: fault.row)
            raise UserError(f"{first.origin}: {first}")
        # An evaluation counts an unknown class as an error. A training would ignore it.
        if unknown := self.task.target.unknown(opened.targets or ()):
            raise UserError(f"{unknown[0]!r}: not a target from which the task has learned")
        return predictor.task_samples(opened)


def _first(backbone: Any) -> Any:
    return backbone.towers[0] if isinstance(backbone, SeparateBackbones) else backbone
