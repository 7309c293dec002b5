"""Build the parts of a model, and fit them on the training split."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.config.instantiate import build
from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced, named_draws, spaced_rows
from dxn.data.inspect.quality import check_learnable
from dxn.data.raws import CacheBudget, present_values
from dxn.data.reading import open_rows
from dxn.data.rows import FIT_ROWS
from dxn.models.model import MultimodalModel

if TYPE_CHECKING:
    from dxn.config.model_plan import Input, ModelPlan
    from dxn.data.dataset import Opened
    from dxn.data.loader import LoaderOptions
    from dxn.data.rows import Source
    from dxn.tasks import Task
    from dxn.tokenize.base import Adapter, Tokenizer

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


def find_formats(
    adapters: Mapping[str, Adapter], inputs: Mapping[str, Input], source: Source
) -> list[str]:
    """Let every adapter find out how the cells of its inputs are written, before they are read.

    Returns:
        A sentence for each column with cells that are read differently than they look.
    """
    notes: list[str] = []
    for key, adapter in adapters.items():
        names = [name for name, spec in inputs.items() if spec.adapter == key]
        cells = [cell for name in names for cell in source.column(name) if cell is not None]
        if note := adapter.tokenizer.reader.learn(cells):
            notes.append(f"{', '.join(names)}: {note}")
    return notes


def open_splits(
    source: Source,
    tokenizers: Mapping[str, Tokenizer],
    task: Task,
    *,
    loader: LoaderOptions,
    batch_tokens: int | None = None,
) -> dict[str, Opened]:
    """Read every file of every split, and parse the targets.

    Args:
        source: The data set.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that parses the targets.
        loader: How files are kept in memory, and how samples are loaded.
        batch_tokens: Maximum number of tokens of a training batch. Those of an evaluation, which
            needs no gradients, have at most twice as many. None: no limit.

    Raises:
        UserError: If there are no rows to train on, all targets are equal, or rows are bad and
            data.on_bad=error.
    """
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
                only_headers=True,
            )
            splits[name] = replace(
                opened,
                num_workers=loader.num_workers,
                timeout=loader.timeout,
                batch_tokens=batch_tokens and 2 * batch_tokens,
            )
    if not source.splits.get("train"):
        raise UserError(
            "data: the training split has no rows; check the data and its splits, or set "
            "data.fractions=[0.8,0.1,0.1] to divide the rows"
        )
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
    raws_of, present = train.raws, train.present
    if len(train) > FIT_ROWS:
        rows = spaced_rows(len(train), FIT_ROWS)
        raws_of = {name: column.take(rows) for name, column in train.raws.items()}
        present = {name: mask[rows] for name, mask in present.items()}
        texts = list(evenly_spaced(texts, FIT_ROWS))
        print_line(f"adapters: fitted on {FIT_ROWS:,} of {count(len(train), 'row')}")
    for key, adapter in adapters.items():
        names = [name for name, spec in inputs.items() if spec.adapter == key]
        raws = present_values([(raws_of[name], present[name]) for name in names])
        if not raws:
            raise UserError(
                f"adapters.{key}: no row of the training split has a value of "
                f"{' or '.join(names)}; remove {key} from adapters=[...]"
            )
        # Only a vocabulary can be shared with the targets; other adapters cannot read texts.
        with named_draws(seed, f"fit of adapters.{key}"):
            adapter.fit([*raws, *texts] if adapter.has_vocabulary and texts else raws)


def fitted_files(adapters: Mapping[str, Any], task: Task) -> dict[str, bytes]:
    """Return the files of `save_fitted`, by name."""
    with tempfile.TemporaryDirectory() as name:
        save_fitted(Path(name), adapters, task)
        return {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}


def read_fitted(folder: Path, adapters: Mapping[str, Any], task: Task, seed: int) -> None:
    """Do the same as `load_fitted` for a folder that may be damaged.

    Raises:
        UserError: If a file is missing or damaged, or does not fit the configuration.
    """
    try:
        load_fitted(folder, adapters, task, seed=seed)
    except (UserError, MemoryError):
        raise
    # Everything comes from the files, so any other failure means that they contradict each other.
    except Exception as error:
        raise UserError(
            f"{folder}: its files do not fit the configuration ({type(error).__name__}: {error}); "
            "copy the whole run folder again"
        ) from error


def use_files(
    files: Mapping[str, bytes], adapters: Mapping[str, Any], task: Task, seed: int
) -> None:
    """Use the fitted adapters and the fitted task of the first process."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        load_fitted(Path(name), adapters, task, seed=seed)


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
