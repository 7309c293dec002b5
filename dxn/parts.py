"""A model made of parts, for a training loop of your own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dxn.config.instantiate import complete
from dxn.config.model_plan import Input, ModelPlan
from dxn.core.dropout import MAX_SEED
from dxn.core.errors import UserError
from dxn.core.parts import Recorded, arguments_of, node_of_part
from dxn.core.schema import validated
from dxn.core.untrusted import shortened
from dxn.data.dataset import Samples
from dxn.data.rows import TARGET
from dxn.data.token_windows import make_samples
from dxn.models import model as models
from dxn.models.fusion import EarlyFusion
from dxn.models.late_fusion import SeparateBackbones
from dxn.runs.decide import check_combinations
from dxn.runs.predictor.predictor import Predictor, Values
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card
from dxn.tasks import Task
from dxn.tokenize.base import Adapter
from dxn.tokenize.cells.cell_values import has_no_value, plain_value
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
        targets: Targets of the training, from which the task learns its classes, for example. Those
            that are None, NaN or an empty text are left out. None: the task is fitted, or needs no
            targets.

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
        targets: Iterable[Any] | None = None,
    ):
        if not inputs:
            raise UserError("inputs: a model needs at least one input, got none")
        if not isinstance(head, Task):
            raise UserError(
                "head: must be a task, such as dxn.tasks.Classify(), got "
                f"{type(head).__name__}; `make_head` of a task of your own can return this module"
            )
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
        # A copy: another model with the same task would change the classes of this one.
        head = copy.deepcopy(head)
        for key, part in (("fusion", fusion), ("backbone", backbone)):
            _check_inputs(key, part, list(inputs))
        check_combinations(_options(adapters, backbone, fusion), head)
        head.target.bind(adapters)
        if targets is not None:
            self._fit(head, targets)
        elif head.is_supervised:
            _check_fitted(head)
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

    @staticmethod
    def _fit(head: Task, targets: Iterable[Any]) -> None:
        """Let a task learn from the targets of the training."""
        cells = {
            f"target {i + 1}": _cell(cell)
            for i, cell in enumerate(targets)
            if head.target.reads_missing or not _is_missing(cell)
        }
        if not cells:
            raise UserError("targets: a training needs some, got none")
        head.target.find_format([*cells.values()], [*cells])
        head.target.fit([head.target.read(cell, origin, {}) for origin, cell in cells.items()])

    @property
    def predictor(self) -> Predictor:
        """The model in evaluation mode, with the methods of a trained model, such as `predict`."""
        return Predictor(self.eval(), self.task, target=TARGET)

    def forward(self, batch: Mapping[str, Any], mixing: Any = None) -> Any:
        """Compute the output of the head for a batch of `collate`, on the device of the model."""
        if not isinstance(batch, Mapping):
            raise UserError(
                f"batch: must be what model.collate(rows) returns, got {shortened(batch)}"
            )
        return super().forward(self._on_device(batch), mixing)

    def collate(self, rows: Sequence[Values]) -> dict[str, Any]:
        """Return a batch of rows, as the `collate_fn` of a DataLoader.

        In training mode, inputs are augmented if the options of their adapters say so. A task that
        masks inputs draws other masks in each call.

        Args:
            rows: Values of the inputs by name: texts, paths, pictures, arrays, and numbers. An
                input can be left out or None. The key "target" is the target.

        Raises:
            UserError: If a value cannot be read, or a row has no input.
        """
        samples = self._samples(rows)
        return samples.collate([samples[0, i] for i in range(len(samples))])

    def loss(self, output: Any, batch: Mapping[str, Any]) -> Tensor:
        """Return the mean loss () of the output of the model for a batch with targets.

        Raises:
            UserError: If the batch has none.
        """
        if self.task.is_supervised and TARGET not in batch:
            raise UserError(f"{TARGET}: the rows of the batch have no targets; add them")
        return self.task.loss(output, self._on_device(batch)).mean

    def save(self, folder: str | PathLike[str], *, title: str = "") -> None:
        """Write the model folder, which `dxn.load` and the commands read.

        Args:
            folder: Folder to write. It is replaced if it exists.
            title: Title of the model card. Default: the name of the folder.

        Raises:
            UserError: If an argument of a part is neither plain data nor a part of dxn, the
                backbones of several inputs have different arguments, or a weight is not finite.
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
            backbone=_backbone_node(self.backbone),
            head=node_of_part(self.task, "head"),
        )
        plan.check_limits()
        results = task_results(self.task, "test", {}, parameters=models.count_parameters(self))
        card = Card(title or folder.name, plan, self.task).markdown(results)
        model_folder.save(folder, model=self, plan=plan, task=self.task, card=card)

    def _on_device(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return to_device(dict(batch), next(self.parameters()).device)

    def _samples(self, rows: Sequence[Values]) -> Samples:
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UserError(
                    f"sample {i + 1}: must be a dict with a value per input, got {shortened(row)}"
                )
        predictor = Predictor(self, self.task, target=TARGET)
        # Seeded by the generator of torch, so that the masks and augmentations of each call differ.
        seed = int(torch.randint(MAX_SEED, ()))
        options: dict[str, Any] = {"seed": seed, "augment": self.training}
        inputs = [{n: value for n, value in row.items() if n != TARGET} for row in rows]
        cells = [row.get(TARGET) for row in rows]
        targets = [None if _is_missing(cell) else _cell(cell) for cell in cells]
        has_targets = self.task.is_supervised and any(target is not None for target in targets)
        if self.task.is_supervised and not has_targets:
            return predictor.samples(inputs)
        opened = predictor.model_inputs.samples(inputs, targets if has_targets else None)
        # An evaluation counts an unknown class as an error. A training would ignore it.
        if unknown := self.task.target.unknown(opened.targets or ()):
            raise UserError(f"{unknown[0]!r}: not a target from which the task has learned")
        return make_samples(self.task, opened, predictor.tokenizers, **options)


def _first(backbone: Any) -> Any:
    return backbone.towers[0] if isinstance(backbone, SeparateBackbones) else backbone


def _check_fitted(head: Task) -> None:
    """Check that a task has learned from targets before, as that of a trained model has."""
    try:
        validated(head.target.State, head.target.state(), "targets")
    except UserError as error:
        raise UserError(
            f"targets: head={head.name} has to learn from the targets of the training; pass them"
        ) from error


def _is_missing(cell: Any) -> bool:
    """Whether a cell has no value: None, NaN of Python, NumPy or pandas, or an empty text."""
    return has_no_value(plain_value(cell), texts=frozenset())


def _cell(target: Any) -> Any:
    """Return a target, a single number of a tensor as a number: its text would name a class."""
    return target.item() if isinstance(target, Tensor) and not target.ndim else target


def _check_inputs(key: str, part: Any, names: list[str]) -> None:
    """Check that a part has the inputs of the model, whose order that of its weights is.

    Raises:
        UserError: If it has other ones.
    """
    if isinstance(part, SeparateBackbones):
        received = part.inputs
    elif isinstance(part, Recorded) and "inputs" in inspect.signature(type(part)).parameters:
        received = arguments_of(part).get("inputs", ())
    else:
        return
    # A single input has no weights of its own in this fusion.
    has_none = isinstance(part, EarlyFusion) and len(names) == 1 and not received
    if list(received) != names and not has_none:
        raise UserError(
            f"{key}: must have the inputs of the model in the same order, inputs={names}, got "
            f"{list(received)}"
        )


def _options(adapters: Mapping[str, Any], backbone: Any, fusion: Any) -> dict[str, Any]:
    """Return the options of parts as in the configuration of a training."""
    first = _first(backbone)
    known = {
        "causal": getattr(first, "causal", False),
        "depth": len(getattr(first, "blocks", ())),
    }
    return {
        "adapters": {name: _node(adapter) for name, adapter in adapters.items()},
        "backbone": {**_node(first), **known},
        "share_backbone": first is backbone,
        "fusion": _node(fusion),
        "data": {},
    }


def _node(part: Any) -> dict[str, Any]:
    """Return the node of a part, with all defaults if it is a part of dxn; {} if it has none."""
    try:
        node = node_of_part(part, "")
    except UserError:  # a part of the user, which cannot be saved
        return {}
    # Wrong types are reported by the part itself.
    return complete(node, problems=[]) if node["_target_"].startswith("dxn.") else node


def _backbone_node(backbone: Any) -> dict[str, Any]:
    """Return the node of a backbone, which the backbones of all inputs must have."""
    node = node_of_part(_first(backbone), "backbone")
    if isinstance(backbone, SeparateBackbones):
        for name, tower in zip(backbone.inputs, backbone.towers, strict=True):
            if node_of_part(tower, "backbone") != node:
                raise UserError(
                    f"backbone: those of all inputs must have the same arguments in a saved model, "
                    f"but that of {name} has others than that of {backbone.inputs[0]}"
                )
    return node
