"""Build the parts of a training from its configuration: adapters, data, task and model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dxn.config.instantiate import build
from dxn.config.targets import resolve
from dxn.core.errors import UserError
from dxn.core.randomness import named_draws
from dxn.data.inspect.quality import check_learnable
from dxn.data.raws import CACHE_GB, CacheBudget, present_values
from dxn.data.reading import Opened, open_rows
from dxn.data.rows import TARGET, InputSpec, Source
from dxn.data.splits.unlabeled import without_unlabeled
from dxn.models import Model, SeparateBackbones
from dxn.models.pooling import WITH_CLASS
from dxn.tasks import Auto, Task
from dxn.tokenize.base import (
    ADAPTERS,
    Adapter,
    Preprocessor,
    VocabularyAdapter,
    find_format,
    fit_adapter,
    is_shareable,
    layout_of,
    without_augment,
)

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model, in order, and the adapter of each.

    Args:
        specs: Column and modality of each input, by input name.
        adapters: Adapter key of each input, by input name. Several inputs may share one adapter.
        nodes: Configuration of each adapter, by adapter key.
        chosen: Key in the configuration of the adapter of each input, by input name. Inputs with
            equal keys can have separate adapters of the same configuration.
    """

    specs: Mapping[str, InputSpec]
    adapters: Mapping[str, str]
    nodes: Mapping[str, Config]
    chosen: Mapping[str, str]

    def by_adapter(self) -> dict[str, list[str]]:
        """Return the names of the inputs of each adapter, by adapter key."""
        names: dict[str, list[str]] = {key: [] for key in self.nodes}
        for name, key in self.adapters.items():
            names[key].append(name)
        return names


@dataclass(frozen=True)
class Data:
    """A data source and its splits, with all files read and all targets parsed."""

    source: Source
    splits: Mapping[str, Opened]


def adapter_nodes(config: Config) -> dict[str, Config]:
    """Return the nodes of the chosen adapters, by adapter key.

    The built-in modalities come first, in the order of ADAPTERS, then user-defined adapters.
    """
    # The order must not depend on how the user lists the adapters: the fusion numbers the inputs
    # by it.
    chosen = {k: node for k, node in config["adapters"].items() if node and "_target_" in node}
    order = [*ADAPTERS, *chosen]
    return {key: chosen[key] for key in sorted(chosen, key=order.index)}


def preprocessors_of(config: Config, trust: Sequence[str] = ()) -> dict[str, Preprocessor]:
    """Return the preprocessor of every chosen adapter, by adapter key.

    Data sources need them to infer the modality of each column, before it is known which adapters
    the model has.
    """
    return {
        key: build(node, key=f"adapters.{key}", trust=trust).prepare
        for key, node in adapter_nodes(config).items()
    }


def by_modality(preprocessors: Mapping[str, Preprocessor]) -> dict[str, Preprocessor]:
    """Return one preprocessor per modality: that of the first adapter of this modality."""
    result: dict[str, Preprocessor] = {}
    for prepare in preprocessors.values():
        result.setdefault(prepare.modality, prepare)
    return result


def open_source(
    config: Config,
    preprocessors: Mapping[str, Preprocessor],
    trust: Sequence[str] = (),
    *,
    needs_target: bool = True,
) -> Source:
    """Build the data source `data`, which infers the modalities of its columns if necessary.

    Args:
        config: Configuration with the node `data`.
        preprocessors: Preprocessors by any key, such as the adapter key or the input name.
        trust: Top-level packages besides dxn whose code the node may use.
        needs_target: Whether a validation or test split without targets is left out.
    """
    node = config["data"]
    source = build(node, key="data", trust=trust, preprocessors=by_modality(preprocessors))
    return without_unlabeled(source, node) if needs_target else source


def assign_inputs(
    config: Config,
    specs: Mapping[str, InputSpec],
    preprocessors: Mapping[str, Preprocessor],
    column: Callable[[str], Sequence[Any]],
) -> Inputs:
    """Choose the adapter of each input, and sort the inputs by the order of their adapters.

    An input uses the adapter of the same name if there is one, otherwise the first adapter of its
    modality. With share_adapters=false, each input gets its own copy of that adapter, and so does
    an input whose adapter cannot be shared, or whose values have another layout than those of the
    first input. An input whose modality has no adapter is left out.

    Args:
        config: Configuration of the training.
        specs: Modality and column of each input.
        preprocessors: Preprocessors by adapter key.
        column: Function that returns the cells of an input.

    Raises:
        UserError: If no input has an adapter.
    """
    nodes = adapter_nodes(config)
    readers = {}
    for name, spec in specs.items():
        candidates = [key for key, p in preprocessors.items() if p.modality == spec.modality]
        if candidates:
            readers[name] = name if name in candidates else candidates[0]
    if not readers:
        data = ", ".join(f"{name} ({spec.modality})" for name, spec in specs.items()) or "none"
        raise UserError(
            f"adapters: none fits the inputs of the data: {data}; got adapters=[{', '.join(nodes)}]"
        )
    order = list(nodes)
    names = sorted(readers, key=lambda name: order.index(readers[name]))
    share = config.get("share_adapters", True)
    shared = {name for name in names if share and is_shareable(preprocessors[readers[name]])}
    first: dict[str, Hashable] = {}
    for name in [name for name in names if name in shared]:
        layout = layout_of(preprocessors[readers[name]], column(name))
        if layout is not None and first.setdefault(readers[name], layout) != layout:
            shared.remove(name)
    adapters = {name: readers[name] for name in shared}
    for name in names:
        if name not in shared:
            # A column can have the name of an adapter that other inputs share.
            key = name
            while key in adapters.values():
                key = f"{readers[name]}_{key}"
            adapters[name] = key
    adapters = {name: adapters[name] for name in names}
    used = {key: nodes[readers[name]] for name, key in adapters.items()}
    chosen = {name: readers[name] for name in names}
    return Inputs({name: specs[name] for name in names}, adapters, used, chosen)


def build_adapters(
    inputs: Inputs, trust: Sequence[str] = (), *, seed: int = 0
) -> dict[str, Adapter]:
    """Build the adapters of the inputs, by adapter key. They are not fitted yet."""
    adapters: dict[str, Adapter] = {}
    for key, node in inputs.nodes.items():
        with named_draws(seed, f"adapters.{key}"):
            adapters[key] = build(node, key=f"adapters.{key}", trust=trust)
    return adapters


def by_input(adapters: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the adapter of each input, by input name.

    Args:
        adapters: Adapters by adapter key.
        inputs: Adapter key of each input, by input name.
    """
    return {name: adapters[key] for name, key in inputs.items()}


def find_formats(adapters: Mapping[str, Adapter], inputs: Inputs, source: Source) -> list[str]:
    """Let every adapter find out how the cells of its inputs are written, before they are read.

    Returns:
        A sentence for each column with cells that are read differently than they look.
    """
    notes: list[str] = []
    inputs_of = inputs.by_adapter()
    for key, adapter in adapters.items():
        names = inputs_of[key]
        cells = [cell for name in names for cell in source.column(name)]
        if note := find_format(adapter.prepare, cells):
            notes.append(f"{', '.join(names)}: {note}")
    return notes


def fit_adapters(
    adapters: Mapping[str, Adapter],
    inputs: Inputs,
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
    inputs_of = inputs.by_adapter()
    for key, adapter in adapters.items():
        names = inputs_of[key]
        raws = present_values([train.raws[name] for name in names])
        if not raws:
            raise UserError(
                f"adapters.{key}: no row of the training split has a value of "
                f"{' or '.join(names)}; remove {key} from adapters=[...]"
            )
        # Only a vocabulary can be shared with the targets; other adapters cannot read texts.
        has_vocabulary = isinstance(adapter, VocabularyAdapter)
        with named_draws(seed, f"fit of adapters.{key}"):
            fit_adapter(adapter, [*raws, *texts] if has_vocabulary and texts else raws)


def build_task(config: Config, trust: Sequence[str] = ()) -> Task | Auto:
    """Build the task of the node `head`, or `Auto`, which infers it from the targets."""
    return build(config["head"], key="head", trust=trust)


def decide_task(task: Task | Auto, config: Config, source: Source) -> tuple[Task, Config, Source]:
    """Return the task, its configuration node, and the source with notes about the targets.

    `Auto` is resolved by the target values. A run saves the node of the resolved task, so that
    resuming never infers it again.

    Raises:
        UserError: If a target is needed but not chosen, or no task fits the targets.
    """
    if task.needs_target and not any(TARGET in rows.cells for rows in source.splits.values()):
        columns = ", ".join(source.candidates)
        example = next(iter(source.candidates), "COLUMN")
        known = f"; the columns are {columns}" if columns else ""
        raise UserError(
            f"data.target: needs a value{known}; for example data.target={example} (or "
            "head=masked to train without a target)"
        )
    # Targets that are lists are tags if the input has as many words, and labels otherwise.
    targets, words = source.targets()
    node: Config = config["head"]
    notes: list[str] = []
    if isinstance(task, Auto):
        task, node, reason = task.resolve(targets, words, source.task)
        if reason:
            notes.append(f"target {source.target}: {reason}")
    if task.needs_target:
        notes += task.find_format(targets, source.target_origins())
    return task, node, replace(source, notes=[*source.notes, *notes])


def build_pretraining_task(config: Config, trust: Sequence[str] = ()) -> Task | None:
    """Build the task of the node `pretrain`; None without pretraining.

    Raises:
        UserError: If an option of `pretrain` is out of range, or the task cannot be combined with
            the rest of the configuration.
    """
    node = config.get("pretrain")
    if not node:
        return None
    if node["epochs"] < 1:
        raise UserError(f"pretrain.epochs: must be at least 1, got {node['epochs']}")
    if not 0 <= node["warmup"] < 1:
        raise UserError(
            f"pretrain.warmup: must be at least 0 and less than 1, got {node['warmup']}"
        )
    if not node["lr"] >= 0:
        raise UserError(f"pretrain.lr: must be at least 0, got {node['lr']}")
    task = build(node["task"], key="pretrain.task", trust=trust)
    if task.needs_target:
        raise UserError(
            f"pretrain.task: must be a task that needs no targets, such as masked, got {task.name}"
        )
    # Pretraining uses neither mixup nor R-Drop, see MAIN_TASK_ONLY in pretraining.py. With them,
    # the check of a task that does not support them would fail, but the main task may support them.
    trainer = {**config["trainer"], "mixup": 0.0, "r_drop": 0.0}
    task.check({**config, "head": node["task"], "trainer": trainer})
    _check_backbones(config, task, trust)
    return task


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
    backbone = _build_backbone(nodes, inputs, trust, seed)
    with named_draws(seed, "head"):
        head = make_head(task, adapters, inputs, fusion)
    return Model(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)


def _build_backbone(
    nodes: Config, inputs: Mapping[str, str], trust: Sequence[str], seed: int
) -> Any:
    """Build the backbone of all inputs, or one per input with share_backbone=false."""
    # Public checkpoints have no such key: each of them has a single backbone.
    if nodes.get("share_backbone", True):
        with named_draws(seed, "backbone"):
            return build(nodes["backbone"], key="backbone", trust=trust)
    backbones = []
    for name in inputs:
        with named_draws(seed, f"backbone of {name}"):
            backbones.append(build(nodes["backbone"], key="backbone", trust=trust))
    return SeparateBackbones(backbones, inputs=list(inputs))


def make_head(
    task: Task, adapters: Mapping[str, Any], inputs: Mapping[str, str], fusion: Any
) -> nn.Module:
    """Create the head of a task for these adapters and this fusion."""
    # Every adapter has the width of the backbone, so any of them tells the width of a token.
    dim = next(iter(adapters.values())).dim
    return task.make_head(dim, fusion.width, by_input(adapters, inputs))


def adapters_of(model: Model) -> dict[str, Any]:
    """Return the adapters of a model, by adapter key."""
    # Not model.adapters, whose keys `module_key` has changed to names that nn.ModuleDict accepts.
    return {key: model.adapter(name) for name, key in model.inputs.items()}


def model_nodes(
    config: Config,
    inputs: Inputs,
    head: Config,
    target: str | None,
    layout: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of config.yaml in the model folder, see `model_folder.load`."""
    named = {
        name: {"modality": spec.modality, "column": spec.column, "adapter": inputs.adapters[name]}
        for name, spec in inputs.specs.items()
    }
    return {
        "inputs": named,
        "target": target,
        "layout": layout,
        "adapters": dict(inputs.nodes),
        "fusion": config["fusion"],
        "share_backbone": config.get("share_backbone", True),
        "backbone": config["backbone"],
        "head": head,
    }


def check_combinations(config: Config, task: Task | Auto, trust: Sequence[str] = ()) -> None:
    """Check that the parts can be combined, before any data is read.

    Raises:
        UserError: If the task cannot use the settings, class tokens or bottleneck tokens are in
            front of the inputs of a causal backbone, or inputs with separate backbones would be
            encoded together.
    """
    # With head=auto, the task is checked after it has been inferred from the targets.
    if not isinstance(task, Auto):
        task.check(config)
    fusion = config["fusion"]
    leading = fusion.get("pool") in WITH_CLASS or "num_tokens" in fusion
    if leading and config["backbone"].get("causal"):
        raise UserError(
            "backbone.causal: class tokens and bottleneck tokens are in front of the inputs, so "
            "with a causal backbone they cannot attend to them; set backbone.causal=false, or "
            "fusion=early fusion.pool=mean"
        )
    _check_backbones(config, task, trust)


def _check_backbones(config: Config, task: Task | Auto, trust: Sequence[str]) -> None:
    """Refuse separate backbones for inputs that are encoded together."""
    if config.get("share_backbone", True) or getattr(task, "separates_inputs", False):
        return
    fusion = config["fusion"]
    fusion_class = resolve(fusion.get("_target_"), key="fusion", trust=trust)
    if getattr(fusion_class, "joins_inputs", True):
        raise UserError(
            "share_backbone: must be true, because this fusion encodes all inputs together; set "
            "fusion=late or fusion=bottleneck to use one backbone per input"
        )


def open_splits(
    source: Source,
    preprocessors: Mapping[str, Preprocessor],
    task: Task,
    *,
    cache_gb: float = CACHE_GB,
    num_workers: int | None = None,
) -> Data:
    """Read every file of every split, and parse the targets.

    Args:
        source: The data set.
        preprocessors: Preprocessor of each input, by input name.
        task: Task that parses the targets.
        cache_gb: Maximum number of gigabytes of decoded files that are kept in memory.
        num_workers: Number of processes that read the other files again, see `Opened`.

    Raises:
        UserError: If there are no rows to train on, all targets are equal, or rows are bad and
            data.on_bad=error.
    """
    budget = CacheBudget(cache_gb)
    plain = {name: without_augment(prepare) for name, prepare in preprocessors.items()}
    splits: dict[str, Opened] = {}
    for name, rows in source.splits.items():
        if len(rows):
            opened = open_rows(
                rows,
                preprocessors if name == "train" else plain,
                task=task,
                on_bad=source.on_bad,
                budget=budget,
            )
            splits[name] = replace(opened, num_workers=num_workers)
    if not source.splits.get("train"):
        raise UserError("data: the training split has no rows; check data.path and the splits")
    if task.needs_target:
        check_learnable(splits["train"], source.target, task)
    return Data(source, splits)


def without_target(source: Source) -> Source:
    """Return the data source without its target column, for a task that needs no targets."""
    splits = {}
    for split, rows in source.splits.items():
        cells = {name: values for name, values in rows.cells.items() if name != TARGET}
        splits[split] = replace(rows, cells=cells)
    return replace(source, splits=splits, target=None)
