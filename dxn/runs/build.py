"""Build the parts of a training from its plan: adapters, data, fusion, backbone and head."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dxn.config.instantiate import build
from dxn.core.errors import UserError
from dxn.core.randomness import named_draws
from dxn.models.model import Model
from dxn.runs.record import Input
from dxn.tasks import Task
from dxn.tokenize.base import Adapter, Tokenizer

if TYPE_CHECKING:
    from dxn.data.dataset import Opened
    from dxn.data.loader import LoaderOptions
    from dxn.data.rows import Source

Config = Mapping[str, Any]


def build_adapters(
    nodes: Mapping[str, Config], trust: Sequence[str] = (), *, seed: int = 0
) -> dict[str, Adapter]:
    """Build adapters by their key in the model. They are not fitted yet."""
    adapters: dict[str, Adapter] = {}
    for key, node in nodes.items():
        with named_draws(seed, f"adapters.{key}"):
            adapters[key] = build(node, key=f"adapters.{key}", trust=trust)
    return adapters


def find_formats(
    adapters: Mapping[str, Adapter], inputs: Mapping[str, Input], source: Source
) -> list[str]:
    """Let every adapter find out how the cells of its inputs are written, before they are read.

    Returns:
        A sentence for each column with cells that are read differently than they look.
    """
    notes: list[str] = []
    for key, adapter in adapters.items():
        names = [name for name, each in inputs.items() if each.adapter == key]
        cells = [cell for name in names for cell in source.column(name) if cell is not None]
        if note := adapter.tokenizer.reader.learn(cells):
            notes.append(f"{', '.join(names)}: {note}")
    return notes


def open_splits(
    source: Source,
    tokenizers: Mapping[str, Tokenizer],
    task: Task,
    *,
    loader: LoaderOptions | None = None,
) -> dict[str, Opened]:
    """Read every file of every split, and parse the targets.

    Args:
        source: The data set.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that parses the targets.
        loader: How files are kept in memory, and how samples are loaded. Default: its defaults.

    Raises:
        UserError: If there are no rows to train on, all targets are equal, or rows are bad and
            data.on_bad=error.
    """
    # A prediction needs none of these modules.
    from dxn.data.inspect.quality import check_learnable
    from dxn.data.loader import LoaderOptions
    from dxn.data.raws import CacheBudget
    from dxn.data.reading import open_rows

    loader = loader or LoaderOptions()
    budget = CacheBudget(loader.cache_gb)
    plain = {name: tokenizer.plain() for name, tokenizer in tokenizers.items()}
    splits: dict[str, Opened] = {}
    for name, rows in source.splits.items():
        if len(rows):
            opened = open_rows(
                rows,
                tokenizers if name == "train" else plain,
                task=task,
                on_bad=source.on_bad,
                budget=budget,
            )
            splits[name] = replace(opened, num_workers=loader.num_workers, timeout=loader.timeout)
    if not source.splits.get("train"):
        raise UserError("data: the training split has no rows; check data.path and the splits")
    if task.is_supervised:
        check_learnable(splits["train"], source.target, task)
    return splits


def fit_adapters(
    adapters: Mapping[str, Adapter],
    inputs: Mapping[str, Input],
    train: Opened,
    texts: Sequence[str],
    *,
    seed: int = 0,
) -> None:
    """Fit every adapter on the values of all its inputs in the training split.

    Args:
        adapters: Adapters by adapter key.
        inputs: The inputs of the model.
        train: The opened training split.
        texts: Target texts that a vocabulary must also cover.
        seed: Seed of the weights that fitting draws, such as the embedding of a new vocabulary.

    Raises:
        UserError: If no row has any of the inputs of an adapter.
    """
    from dxn.data.raws import PresentValues

    for key, adapter in adapters.items():
        names = [name for name, each in inputs.items() if each.adapter == key]
        raws = PresentValues([(train.raws[name], train.present[name]) for name in names])
        if not raws:
            raise UserError(
                f"adapters.{key}: no row of the training split has a value of "
                f"{' or '.join(names)}; remove {key} from adapters=[...]"
            )
        # Only a vocabulary can be shared with the targets; other adapters cannot read texts.
        with named_draws(seed, f"fit of adapters.{key}"):
            adapter.fit([*raws, *texts] if adapter.has_vocabulary and texts else raws)


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


def fitted_files(adapters: Mapping[str, Any], task: Task) -> dict[str, bytes]:
    """Return the files of `save_fitted`, by name."""
    with tempfile.TemporaryDirectory() as name:
        save_fitted(Path(name), adapters, task)
        return {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}


def build_model(
    nodes: Config,
    task: Task,
    adapters: Mapping[str, Any],
    inputs: Mapping[str, str],
    *,
    trust: Sequence[str] = (),
    seed: int = 0,
) -> Model:
    """Build the fusion, the backbone and the head, and return the model.

    Args:
        nodes: Configuration with the nodes fusion and backbone.
        task: The fitted task, which creates the head.
        adapters: The fitted adapters, by adapter key.
        inputs: Adapter key of each input, by input name.
        trust: Top-level packages besides dxn whose code the nodes may use.
        seed: Seed of the initial weights. Each part draws its own, by its name.
    """
    with named_draws(seed, "fusion"):
        fusion = build(nodes["fusion"], key="fusion", trust=trust, inputs=list(inputs))
    # Public checkpoints have no such key: each of them has a single backbone.
    names = ["backbone"]
    if not nodes.get("share_backbone", True):
        names = [f"backbone of {name}" for name in inputs]
    backbones: list[Any] = []
    for name in names:
        with named_draws(seed, name):
            backbones.append(build(nodes["backbone"], key="backbone", trust=trust))
    backbone = backbones[0]
    if names != ["backbone"]:
        from dxn.models.late_fusion import SeparateBackbones

        backbone = SeparateBackbones(backbones, inputs=list(inputs))
    with named_draws(seed, "head"):
        head = make_head(task, adapters, inputs, fusion)
    return Model(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)


def make_head(
    task: Task, adapters: Mapping[str, Any], inputs: Mapping[str, str], fusion: Any
) -> nn.Module:
    """Create the head of a task for these adapters and this fusion."""
    # Every adapter has the width of the backbone, so any of them tells the width of a token.
    dim = next(iter(adapters.values())).dim
    return task.make_head(dim, fusion.width, {name: adapters[key] for name, key in inputs.items()})


def adapters_of(model: Model) -> dict[str, Any]:
    """Return the adapters of a model, by adapter key."""
    # Not model.adapters, whose keys `module_key` has changed to names that nn.ModuleDict accepts.
    return {key: model.adapter(name) for name, key in model.inputs.items()}
