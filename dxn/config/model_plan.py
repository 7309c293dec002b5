"""The configurations that a run saves: that of its model (`ModelPlan`), and its own (`RunConfig`).

A training makes the plan of the model from its settings and its data. `dxn.load` reads it, and
checks the model folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dxn.config.instantiate import MODEL_PACKAGES, check_targets, complete
from dxn.core.errors import UserError
from dxn.core.files import CARD, CONFIG, SUMS, check_sums
from dxn.core.schema import Strict, not_valid, validated
from dxn.core.untrusted import check_file, load_yaml, shortened

# Suffixes of the files that dxn reads from a model folder.
SUFFIXES = (".json", ".yaml", ".safetensors")
MAX_FILES = 10_000
MAX_INPUTS = 10_000
MAX_MEMBERS = 1_000
MAX_TARGET = 300  # characters of the name of a class
# Limits of integers anywhere in the file. Most of them are sizes, and a size of billions fills the
# memory, or takes hours, before the model can be compared with its weights.
MAX_INTEGER = 100_000_000
# Lower limits of options that determine how many layers are built, or how large a sample becomes.
LIMITS = {
    "dim": 65_536,
    "depth": 1_000,
    "num_heads": 4_096,
    "head_dim": 4_096,
    "hidden_dim": 262_144,
    "registers": 4_096,
    "image_size": 4_096,
    "rope_theta": 10**15,  # no size
    "window_rope_theta": 10**15,
}
# Options that name a file. A model folder contains its files under fixed names.
FILE_OPTION = "path"
NESTED_ADAPTERS = frozenset({"adapter", "codec"})  # options of an adapter that contain adapters

Name = Annotated[str, Field(min_length=1, max_length=1_000)]
Node = dict[str, Any]  # a part of a model: its class (_target_) and the options of the class


class Input(Strict):
    """An input of a model.

    Args:
        modality: Its modality.
        column: Column of the data that contains its values.
        adapter: Key of its adapter. Several inputs may share one adapter.
    """

    modality: Name
    column: Name
    adapter: Name


class ModelPlan(Strict):
    """What determines the parts of a model.

    A node is a mapping with the class of a part (`_target_`) and its options.

    Args:
        inputs: The inputs by name, in the order of the model.
        target: Target column. None: the task needs none, or the column is unknown.
        layout: How tables were rearranged, see `dxn.data.rows.Source`.
        adapters: Node of each adapter.
        fusion: Node of the fusion.
        share_backbone: Whether all inputs have the same backbone.
        backbone: Node of the backbone.
        head: Node of the task.
        members: Number of models of an ensemble. None: one model.
    """

    inputs: Annotated[dict[Name, Input], Field(min_length=1, max_length=MAX_INPUTS)]
    target: str | None = None
    layout: dict[str, Any] | None = None
    adapters: Annotated[dict[Name, Node], Field(min_length=1, max_length=MAX_INPUTS)]
    fusion: Node
    share_backbone: bool = True
    backbone: Node
    head: Node
    members: Annotated[int, Field(ge=2, le=MAX_MEMBERS)] | None = None

    @property
    def keys(self) -> dict[str, str]:
        """Key of the adapter of each input, by input name."""
        return {name: spec.adapter for name, spec in self.inputs.items()}

    @property
    def columns(self) -> dict[str, str]:
        """Column of each input, by input name."""
        return {name: spec.column for name, spec in self.inputs.items()}

    def with_defaults(self, trust: Sequence[str] = (), *, where: str = "") -> ModelPlan:
        """Return the plan with all options of its nodes, from which `build` makes the parts.

        Args:
            trust: Top-level packages besides dxn whose code may be used.
            where: What contains the nodes, such as "config.yaml: ", for messages.

        Raises:
            UserError: If an option does not exist or its value has a wrong type.
        """
        names = ("adapters", "fusion", "backbone", "head")
        problems: list[str] = []
        nodes = {name: getattr(self, name) for name in names}
        nodes = complete(nodes, trust, problems=problems)
        if problems:
            raise UserError("\n".join(f"{where}{line}" for line in problems))
        return self.model_copy(update=nodes)

    def check_limits(self) -> None:
        """Check that the model can be loaded later, before it is trained or saved.

        Raises:
            UserError: If a size is too large. The message has one line per problem.
        """
        if problems := _problems(ModelPlan(**self.content())):
            raise UserError("\n".join(problems))

    def content(self) -> dict[str, Any]:
        """Return the content of config.yaml.

        Options that have no meaning on another machine are left out: paths of files, which the
        model folder contains under fixed names, and augmentation, which only a training uses.
        """
        result = self.model_dump()
        if self.members is None:
            del result["members"]
        parts = [*result["adapters"].values(), result["head"]]
        for part in parts:
            for name, group in part.items():
                if isinstance(group, dict) and FILE_OPTION in group:
                    group[FILE_OPTION] = None
                if name in NESTED_ADAPTERS and isinstance(group, dict):
                    parts.append(group)
            part.pop("augment", None)
        return result


def read_model_plan(folder: Path, *, trust: Sequence[str] = ()) -> ModelPlan:
    """Read config.yaml of a model folder from an untrusted source.

    Args:
        folder: The model folder.
        trust: Top-level packages, in addition to dxn, whose classes the file may refer to.

    Raises:
        UserError: If the file is not the configuration of a model, or refers to classes that are
            not trusted.
    """
    path = folder / CONFIG
    content = load_yaml(path)
    plan = validated(ModelPlan, content, path)
    if problems := _problems(plan):
        raise not_valid(path, problems)
    # Only the packages of models are allowed: a model has no data source or trainer.
    check_targets(content, tuple(trust), packages=MODEL_PACKAGES, key=str(path))
    return plan


def _problems(plan: ModelPlan) -> list[str]:
    """Return what a file from an untrusted source must not contain."""
    dim = plan.backbone.get("dim")
    problems: list[str] = []
    if not isinstance(dim, int) or dim < 1:
        problems.append(f"backbone.dim must be a positive integer, got {shortened(dim)}")
    for name, spec in plan.inputs.items():
        if spec.adapter not in plan.adapters:
            keys = ", ".join(list(plan.adapters)[:5])
            problems.append(
                f"inputs.{name}.adapter must be one of {keys}, got {shortened(spec.adapter)}"
            )
    nodes = {f"adapters.{key}": node for key, node in plan.adapters.items()}
    nodes |= {"fusion": plan.fusion, "backbone": plan.backbone, "head": plan.head}
    return problems + [f"{key}.{text}" for key, node in nodes.items() for text in _wrong(node)]


def _wrong(node: Node) -> Iterator[str]:
    """Yield the wrong options of a part. The signature of its class checks their types."""
    target = node.get("_target_")
    if not isinstance(target, str) or len(target) > MAX_TARGET:
        yield f"_target_ must be a text, got {shortened(target)}"
    for name, value in _leaves(node):
        last = name.rpartition(".")[2]
        # Only a part of a part, such as the decoder of a head, is built later.
        special = ("_target_",) if name == last else ("_target_", "_partial_")
        if last.startswith("_") and last not in special:
            yield f"{name} is not an option of a model folder"
        if last == FILE_OPTION and value is not None:
            yield f"{name} must be null in a model folder, got {shortened(value)}"
        limit = LIMITS.get(last, MAX_INTEGER)
        if isinstance(value, int | float) and not -limit <= value <= limit:
            yield f"{name} must be at most {limit:,}, got {shortened(value)}"


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each option at any depth."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value, name)
    else:
        yield name, node


def check_files(folder: Path) -> None:
    """Check the files of an untrusted model folder before reading them.

    Raises:
        UserError: If a file is missing, has changed since it was saved, is not listed in
            SHA256SUMS, or is a link to another place.
    """
    paths = sorted(folder.iterdir())
    if len(paths) > MAX_FILES:
        raise UserError(f"{folder}: must have at most {MAX_FILES:,} files, got {len(paths):,}")
    read = [path for path in paths if path.suffix in SUFFIXES]
    for path in read:
        check_file(path)
    if (folder / SUMS).exists():
        check_file(folder / SUMS)
    # Users may edit the model card, which has no effect on the model.
    listed = check_sums(folder, may_differ=[CARD])
    # A damaged file could otherwise be hidden by removing its line, or the whole list.
    unlisted = [path.name for path in read if path.name not in listed]
    if unlisted:
        problem = f"must list {unlisted[0]}" if (folder / SUMS).exists() else "file not found"
        raise UserError(
            f"{folder / SUMS}: {problem}; copy the whole folder again, or run "
            f"`sha256sum *.* > {SUMS}` in this folder if you trust its files"
        )


# A run folder


class Part(Strict):
    """A part of a training: the class, and its arguments, which its signature checks."""

    model_config = ConfigDict(extra="allow")

    target: str = Field(alias="_target_", max_length=300)


class Resume(Strict):
    """The keys of a resume."""

    run: str | None
    force: bool


class Pretrain(Strict):
    """The keys of pretraining."""

    epochs: int
    lr: float
    warmup: float
    task: Part


class RunConfig(Strict):
    """The keys that a resumed training reads. The types of numbers are checked when it resumes."""

    baseline: Any
    ensemble: Any
    dim: Any
    seed: Any
    batch_size: Any
    name: Any
    output: Any
    run: Any
    share_adapters: Any
    share_backbone: Any
    resume: Resume
    weights: dict[str, Any]
    trust: list[str]
    adapters: dict[str, Part]
    fusion: Part
    head: Part
    backbone: Part
    optimizer: Part
    scheduler: Part
    trainer: Part
    loader: Part
    finetune: Part
    data: Part
    pretrain: Pretrain | None = None
