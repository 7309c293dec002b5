"""Build the parts of a training from its plan: adapters, data, fusion, backbone and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.core.randomness import named_draws
from dxn.models.model import MultimodalModel

if TYPE_CHECKING:
    from dxn.config.model_plan import ModelPlan
    from dxn.tasks import Task
    from dxn.tokenize.base import Adapter

Config = Mapping[str, Any]


def build_adapters(
    nodes: Mapping[str, Config],
    trust: Sequence[str] = (),
    *,
    seed: int = 0,
    where: str = "",
) -> dict[str, Adapter]:
    """Build adapters by their key in the model. They are not fitted yet.

    Args:
        nodes: Node of each adapter.
        trust: Top-level packages besides dxn whose code the nodes may use.
        seed: Seed of the initial weights. Each adapter draws its own, by its key.
        where: What contains the nodes, such as "config.yaml: ", for messages.
    """
    adapters: dict[str, Adapter] = {}
    for key, node in nodes.items():
        with named_draws(seed, f"adapters.{key}"):
            adapters[key] = build(node, key=f"{where}adapters.{key}", trust=trust)
    return adapters


def save_fitted(folder: Path, adapters: Mapping[str, Any], task: Task) -> None:
    """Write what adapters and task learned from the training split, such as vocabularies."""
    for key, adapter in adapters.items():
        adapter.save(folder, key)
    task.save(folder)


def load_fitted(folder: Path, adapters: Mapping[str, Any], task: Task, *, seed: int = 0) -> None:
    """Read the files of `save_fitted` into adapters and task that are not fitted yet."""
    for key, adapter in adapters.items():
        with named_draws(seed, f"fit of adapters.{key}"):
            adapter.load(folder, key)
    task.load(folder)


def build_model(
    plan: ModelPlan,
    task: Task,
    adapters: Mapping[str, Any],
    *,
    trust: Sequence[str] = (),
    seed: int = 0,
) -> MultimodalModel:
    """Build the fusion, the backbone and the head, and return the model.

    Args:
        plan: What determines the model.
        task: The fitted task, which creates the head.
        adapters: The fitted adapters, by adapter key.
        trust: Top-level packages besides dxn whose code the plan may use.
        seed: Seed of the initial weights. Each part draws its own, by its name.

    Raises:
        UserError: If an adapter cannot be combined with the other inputs.
    """
    inputs = dict(plan.keys)
    separate = [key for key, adapter in adapters.items() if adapter.is_separate]
    if separate and len(inputs) > 1:
        raise UserError(
            f"adapters.{separate[0]}.channels: separate cannot be combined with other inputs, got "
            f"{', '.join(inputs)}; choose joint or independent, or remove the other inputs"
        )
    if last := task.target.last:
        inputs[last] = inputs.pop(last)
    with named_draws(seed, "fusion"):
        fusion = build(plan.fusion, key="fusion", trust=trust, inputs=list(inputs))
    names = ["backbone"]
    if not plan.share_backbone:
        names = [f"backbone of {name}" for name in inputs]
    backbones: list[Any] = []
    for name in names:
        with named_draws(seed, name):
            backbones.append(build(plan.backbone, key="backbone", trust=trust))
    backbone = backbones[0]
    if names != ["backbone"]:
        from dxn.models.late_fusion import SeparateBackbones

        backbone = SeparateBackbones(backbones, inputs=list(inputs))
    with named_draws(seed, "head"):
        by_input = {name: adapters[key] for name, key in inputs.items()}
        # Every adapter has the width of the backbone, so any of them tells the width of a token.
        dim = next(iter(by_input.values())).dim
        head = task.make_head(dim, fusion.width, by_input)
    return MultimodalModel(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)


def adapters_of(model: MultimodalModel) -> dict[str, Any]:
    """Return the adapters of a model, by adapter key."""
    # Not model.adapters, whose keys `module_key` has changed to names that nn.ModuleDict accepts.
    return {key: model.adapter(name) for name, key in model.inputs.items()}
