"""What the options and the data of a training decide, before any part of the model is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from dxn.config.instantiate import build, completed, resolve, signature_of
from dxn.config.model_plan import Input
from dxn.config.values import lookup
from dxn.config.words import USUAL_ADAPTERS
from dxn.core.display import list_names, print_line
from dxn.core.errors import UserError
from dxn.data.columns.choose import NO_TARGET
from dxn.data.rows import AUTO, TARGET, InputSpec, Source
from dxn.data.splits.split import without_unlabeled
from dxn.data.tables.read import as_list
from dxn.models.pooling import WITH_CLASS
from dxn.tasks import Auto, Task
from dxn.tasks.space import AnswerKind
from dxn.tasks.task import check_parts
from dxn.tokenize.base import ADAPTERS, Adapter, Reader
from dxn.tokenize.column_profile import LazyReaders, by_modality
from dxn.tokenize.text.chat import is_conversation

NUM_TRIED = 100  # cells in which conversations are looked for
Config = Mapping[str, Any]

# Parts of a training that need no data.
PARTS = ("finetune", "loader", "optimizer", "scheduler", "trainer")
# Options that depend on the metrics of the validation split, and how to turn them off.
NEED_VALIDATION = {"trainer.once_learning": "[]", "trainer.monitor": "null"}

# Options of data sources that name files, or a data set of the hub or its folder.
DATA_PATHS = ("path", "train", "validation", "test", "name")


def build_parts(config: Config, trust: Sequence[str] = (), *, ensemble: int = 1) -> dict[str, Any]:
    """Build the parts of a training that need no data, and check that they can be combined.

    So wrong options are reported before any data is read, which can take minutes.

    Args:
        config: The configuration.
        trust: Top-level packages besides dxn whose code may be used.
        ensemble: Number of models whose outputs will be combined.

    Returns:
        The parts of PARTS by name, `head`, which can be `Auto`, and the task `pretrain`, which is
        None without pretraining.

    Raises:
        UserError: If an option is out of range, or parts cannot be combined.
    """
    parts: dict[str, Any] = {"head": build(config["head"], key="head", trust=trust)}
    if isinstance(parts["head"], Task):
        check_parts(parts["head"])
    check_combinations(config, parts["head"], trust, ensemble=ensemble)
    parts["pretrain"] = read_pretraining(config, trust) if config["pretrain"] else None
    for name in PARTS:
        parts[name] = build(config[name], key=name, trust=trust)
    return parts


def readers_of(config: Config, trust: Sequence[str] = ()) -> LazyReaders:
    """Return a reader of every chosen adapter, by adapter key.

    The built-in modalities come first, in the order of ADAPTERS, then user-defined adapters. Data
    sources need the readers to infer the modality of each column, before it is known which adapters
    the model has. No adapter is built, and a reader of dxn only when it is needed.

    Raises:
        UserError: If a user-defined adapter has no reader.
    """
    built_in = {path: modality for modality, path in ADAPTERS.items()}
    chosen = {k: node for k, node in config["adapters"].items() if node and "_target_" in node}
    modalities: dict[str, str] = {}
    classes: dict[str, type[Reader]] = {}
    # The order must not depend on how the user lists the adapters: the fusion numbers the inputs
    # by it.
    for key in sorted(chosen, key=[*ADAPTERS, *chosen].index):
        node = chosen[key]
        # With an encoder, its adapter reads the input.
        while isinstance(inner := node.get("adapter"), Mapping):
            node = inner
        target = node["_target_"]
        if target in built_in:
            modalities[key] = built_in[target]
            continue
        adapter: Any = resolve(target, key=f"adapters.{key}", trust=trust)
        if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
            raise UserError(f"adapters.{key}: {target} must be a subclass of dxn.tokenize.Adapter")
        classes[key] = adapter.reader
        modalities[key] = adapter.reader.modality
    return LazyReaders(modalities, classes)


def with_written_inputs(config: dict[str, Any], trust: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration for a task whose target columns are inputs that it writes.

    Without data.target, all columns are inputs, also those that other tasks take as the target.
    """
    head, data = config["head"], config["data"]
    if "_target_" not in head:
        return config  # a later error says what is missing
    task: Any = resolve(head["_target_"], key="head", trust=trust)
    parameters = signature_of(data.get("_target_"), key="data", trust=trust).parameters
    is_task = isinstance(task, type) and issubclass(task, Task)
    if not (is_task and task.targets_are_inputs and "target" in parameters):
        return config
    if data.get("target") is not None:
        head = {**head, "names": as_list(data["target"])}
    return {**config, "head": head, "data": {**data, "target": []}}


def print_paths(node: Mapping[str, Any]) -> None:
    """Print the data that a run folder from an untrusted source names, before it is read.

    Args:
        node: The saved data source.
    """
    paths = [str(path) for key in DATA_PATHS if node.get(key) for path in as_list(node[key])]
    if paths:
        print_line(f"data of the run: {', '.join(paths)}")


def open_source(
    config: Config,
    readers: Mapping[str, Reader],
    task: Task | Auto,
    trust: Sequence[str] = (),
) -> Source:
    """Build the data source `data`, which infers the modalities of its columns if necessary.

    A validation or test split without targets is left out, if the task needs them. Otherwise, no
    note says that there is no target.

    Args:
        config: Configuration with the node `data`.
        readers: Readers by any key, such as the adapter key or the input name.
        task: The task, which need not be fitted.
        trust: Top-level packages besides dxn whose code the node may use.
    """
    node = config["data"]
    # A stream of texts can also consist of conversations, whose columns have usual names.
    is_stream = not isinstance(task, Auto) and task.target.source == "stream"
    options = signature_of(node.get("_target_"), key="data", trust=trust).parameters
    if is_stream and "chat" in options and node.get("chat") is None:
        node = {**node, "chat": AUTO}
    finds_objects = isinstance(task, Auto) or task.answer_kind is AnswerKind.OBJECTS
    if finds_objects and "objects" in options and node.get("objects") is None:
        node = {**node, "objects": AUTO}
    source = build(node, key="data", trust=trust, readers=by_modality(readers))
    if task.is_supervised:
        return without_unlabeled(source, node)
    notes = [note for note in source.notes if not note.startswith(NO_TARGET)]
    source = replace(source, notes=notes)
    compares = not isinstance(task, Auto) and task.separates_inputs
    return _without_cells(source, config, readers) if compares else source


def _without_cells(source: Source, config: Config, readers: Mapping[str, Reader]) -> Source:
    """Leave out the cells of a table for a task that compares the inputs of a row.

    A number or a category describes many rows, so that it finds none of them. They are used if the
    user chose them or the adapters, or if the rows have fewer than two other inputs.
    """
    used = by_modality(readers)
    cells = {
        name: spec
        for name, spec in source.inputs.items()
        if used[spec.modality].tabular and config["data"].get(spec.modality) is None
    }
    inputs = {name: spec for name, spec in source.inputs.items() if name not in cells}
    is_usual = set(USUAL_ADAPTERS) <= set(config.get("adapters", ()))
    if not cells or not is_usual or len(inputs) < 2:
        return source
    first = next(iter(cells.values()))
    note = (
        f"not used: {list_names(list(cells))} (many rows have the same value; "
        f"data.{first.modality}=[{first.column}] adds it)"
    )
    return replace(source, inputs=inputs, notes=[*source.notes, note])


def decide_task(
    head: Task | Auto,
    config: Config,
    source: Source,
    readers: LazyReaders,
    trust: Sequence[str] = (),
) -> tuple[Task, Config, list[str]]:
    """Return the task, its configuration node, and why the targets chose it.

    A run saves the node, so that resuming never infers the task again.

    Args:
        head: The head as it is configured. `Auto` is resolved by the target values.
        config: The configuration.
        source: The data source.
        readers: Readers by adapter key.
        trust: Top-level packages besides dxn whose code may be used.

    Raises:
        UserError: If a target is needed but not chosen, or no task fits the targets.
    """
    if head.is_supervised and not any(TARGET in rows.cells for rows in source.splits.values()):
        columns = ", ".join(source.candidates)
        example = next(iter(source.candidates), "COLUMN")
        listed = f"; the columns are {columns}" if columns else ""
        words, purpose = options_without_target(source, config)
        advice = f"for example data.target={example} (or {' '.join(words)} to {purpose})"
        if "head=language" in words:  # a column of conversations is rarely a target
            advice = f"set {' '.join(words)} to {purpose}, or data.target={example}"
        raise UserError(f"data.target: needs a value{listed}; {advice}")
    if not isinstance(head, Auto):
        return head, config["head"], []
    # Targets that are lists are tags if the input has as many words, and labels otherwise.
    targets, words, _ = source.targets()
    in_use = by_modality(readers)
    modalities = {spec.modality for spec in source.inputs.values()} & in_use.keys()
    has_text = any(in_use[modality].words for modality in modalities)
    task, node, reason = head.resolve(targets, words, source.task, has_text=has_text)
    # With all defaults, as the preset returns it.
    node = completed(node, trust, key="head")
    return task, node, [f"target {source.target}: {reason}"] if reason else []


def options_without_target(source: Source, config: Config) -> tuple[list[str], str]:
    """Return the options of a training without a target, and what it is for.

    Args:
        source: The data source.
        config: The configuration.
    """
    is_causal = bool(config["backbone"].get("causal"))
    language = ["head=language"] + ["backbone.causal=true"] * (not is_causal)
    cells = [cell for name in source.inputs for cell in islice(source.column(name), NUM_TRIED)]
    if any(map(is_conversation, cells)):
        return language, "learn the answers of conversations"
    # Masked tokens are predicted from both sides.
    return (language if is_causal else ["head=masked"]), "train without a target"


def without_target(source: Source) -> Source:
    """Return the data source without its target column, for a task that needs no targets."""
    splits = {}
    for split, rows in source.splits.items():
        cells = {name: values for name, values in rows.cells.items() if name != TARGET}
        splits[split] = replace(rows, cells=cells)
    return replace(source, splits=splits, target=None)


def assign_inputs(
    config: Config,
    specs: Mapping[str, InputSpec],
    readers: LazyReaders,
    column: Callable[[str], Sequence[Any]],
) -> tuple[dict[str, Input], dict[str, str]]:
    """Choose the adapter of each input, and sort the inputs by the order of their adapters.

    An input uses the adapter of the same name if there is one, otherwise the first adapter of its
    modality. With share_adapters=false, each input gets its own copy of that adapter, and so does
    an input whose adapter cannot be shared, or whose values have another layout than those of the
    first input. An input whose modality has no adapter is left out.

    Args:
        config: Configuration of the training.
        specs: Modality and column of each input.
        readers: Readers by adapter key.
        column: Function that returns the cells of an input.

    Returns:
        The inputs by name, and the key of the options of each adapter, by its key in the model.

    Raises:
        UserError: If no input has an adapter.
    """
    nodes: dict[str, str] = {}
    for name, spec in specs.items():
        candidates = [key for key in readers if readers.modalities[key] == spec.modality]
        if candidates:
            nodes[name] = name if name in candidates else candidates[0]
    if not nodes:
        data = ", ".join(f"{name} ({spec.modality})" for name, spec in specs.items()) or "none"
        chosen = ", ".join(readers)
        raise UserError(
            f"adapters: none fits the inputs of the data: {data}; got adapters=[{chosen}]"
        )
    order = list(readers)
    names = sorted(nodes, key=lambda name: order.index(nodes[name]))
    # Inputs that share the adapter of this key. It is known first, because an adapter of an input
    # must not get the key of a shared one.
    shared: dict[str, str] = {}
    first: dict[str, Hashable] = {}
    for name in names:
        node, reader = nodes[name], readers[nodes[name]]
        if not config.get("share_adapters", True) or reader.tabular:
            continue
        layout = reader.layout([cell for cell in column(name) if cell is not None])
        if layout is None or first.setdefault(node, layout) == layout:
            shared[name] = node
    inputs: dict[str, Input] = {}
    options: dict[str, str] = {}
    taken = set(shared.values())
    for name in names:
        key = shared.get(name)
        if key is None:
            # A column can have the name of an adapter that other inputs share.
            key = name
            while key in taken:
                key = f"{nodes[name]}_{key}"
            taken.add(key)
        spec = specs[name]
        inputs[name] = Input(column=spec.column, modality=spec.modality, adapter=key)
        options[key] = nodes[name]
    return inputs, options


def read_pretraining(config: Config, trust: Sequence[str] = ()) -> Task:
    """Build the task of the node `pretrain`.

    Raises:
        UserError: If an option of `pretrain` is out of range, or the task cannot be combined with
            the rest of the configuration.
    """
    node = config["pretrain"]
    for name, least, below in (("epochs", 1, math.inf), ("warmup", 0, 1), ("lr", 0, math.inf)):
        value = node[name]
        is_real = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_real or not least <= value < below:
            limit = "" if below == math.inf else f" and less than {below}"
            limit = " and finite" if value == math.inf else limit
            raise UserError(f"pretrain.{name}: must be at least {least}{limit}, got {value}")
    if not isinstance(node["epochs"], int):
        raise UserError(f"pretrain.epochs: must be a whole number, got {node['epochs']}")
    task = build(node["task"], key="pretrain.task", trust=trust)
    if task.is_supervised:
        raise UserError(
            f"pretrain.task: must be a task that needs no targets, such as masked, got {task.name}"
        )
    # Pretraining does not use mixup, see MAIN_TASK_ONLY in train.py. With it, the check of a task
    # that does not support it would fail, but the main task may support it.
    trainer = {**config["trainer"], "mixup": 0.0}
    check_combinations({**config, "head": node["task"], "trainer": trainer}, task, trust)
    return task


def check_combinations(
    config: Config, task: Task | Auto, trust: Sequence[str] = (), *, ensemble: int = 1
) -> None:
    """Check that the parts can be combined, before any data is read.

    Args:
        config: The configuration.
        task: The task.
        trust: Top-level packages besides dxn whose code may be used.
        ensemble: Number of models whose outputs will be combined.

    Raises:
        UserError: If the task cannot use the settings, class tokens or bottleneck tokens are in
            front of the inputs of a causal backbone, the first block with bottleneck tokens does
            not exist, parts have different widths, or inputs with separate backbones would be
            encoded together.
    """
    # With head=auto, the task is checked after it has been inferred from the targets.
    if not isinstance(task, Auto):
        task.check({**config, "ensemble": ensemble})
    fusion = config["fusion"]
    leading = fusion.get("pool") in WITH_CLASS or "num_tokens" in fusion
    if leading and config["backbone"].get("causal"):
        raise UserError(
            "backbone.causal: class tokens and bottleneck tokens are in front of the inputs, so "
            "with a causal backbone they cannot attend to them; set backbone.causal=false, or "
            "fusion=early fusion.pool=mean"
        )
    start, depth = fusion.get("start"), config["backbone"].get("depth")
    if start is not None and depth is not None and start >= depth:
        raise UserError(
            f"fusion.start: must be below the number of blocks (backbone.depth={depth}), got "
            f"{start}; lower it, or set backbone.depth={start + 1} or more"
        )
    # `dim` of a part of another package can be something else.
    parts = {"backbone": config["backbone"], "fusion": fusion}
    parts |= {f"adapters.{key}": node for key, node in config["adapters"].items() if node}
    targets = {key: node.get("_target_", "") for key, node in parts.items()}
    dims = {k: v["dim"] for k, v in parts.items() if "dim" in v and targets[k].startswith("dxn.")}
    width = dims.get("backbone")
    other = next((key for key, dim in dims.items() if width is not None and dim != width), None)
    if other is not None:
        raise UserError(
            f"backbone.dim: all parts of a model have the same width, got {width}, and "
            f"{other}.dim={dims[other]}; set dim={width} instead"
        )
    is_separate = not isinstance(task, Auto) and task.separates_inputs
    if not config.get("share_backbone", True) and not is_separate:
        fusion_class = resolve(fusion.get("_target_"), key="fusion", trust=trust)
        if getattr(fusion_class, "joins_inputs", True):
            raise UserError(
                "share_backbone: must be true, because this fusion encodes all inputs together; "
                "set fusion=late or fusion=bottleneck to use one backbone per input"
            )
    if config["data"].get("streaming"):
        _check_stream(config, task)


def _check_stream(config: Config, task: Task | Auto) -> None:
    """Refuse options that need all rows of a data set in memory."""
    loader = config["loader"]
    for key, default in (("repeats", 1), ("overfit", 0)):
        if loader[key] != default:
            raise UserError(
                f"loader.{key}: cannot be combined with data.streaming=true, got {loader[key]}; "
                f"set loader.{key}={default}, or data.streaming=false"
            )
    if (batch_tokens := config["trainer"].get("batch_tokens")) is not None:
        raise UserError(
            "trainer.batch_tokens: cannot be combined with data.streaming=true, whose rows have "
            f"unknown lengths before they are read, got {batch_tokens}; set batch_size instead"
        )
    if not isinstance(task, Auto) and task.target.source == "stream":
        raise UserError(
            f"data.streaming: cannot be combined with head={task.name}, which joins the texts of "
            "all rows; set data.streaming=false"
        )


def check_unvalidated(config: Config) -> None:
    """Refuse options that would have no effect without a validation split."""
    for key, off in NEED_VALIDATION.items():
        _, value = lookup(config, key)
        if value:
            raise UserError(
                f"{key}: got {value}, but there is no validation split, whose metrics this option "
                f"needs; add one, or set {key}={off}"
            )
