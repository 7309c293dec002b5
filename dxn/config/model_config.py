"""config.yaml of a model folder, its pydantic models, and the check of all files of the folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from dxn.config.instantiate import MODEL_PACKAGES, check_targets
from dxn.core.errors import UserError
from dxn.core.files import SUMS, check_sums
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import check_file, load_yaml, shortened

CONFIG_FILE = "config.yaml"
CARD_FILE = "README.md"
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
    "registers": 4_096,
    "image_size": 4_096,
}
# Options that name a file. A model folder contains its files under fixed names.
FILE_OPTION = "path"

Name = Annotated[str, Field(min_length=1, max_length=1_000)]


def _checked(node: dict[str, Any]) -> dict[str, Any]:
    """Check the options of a part of the model. The signature of its class checks their types."""
    target = node.get("_target_")
    if not isinstance(target, str) or len(target) > MAX_TARGET:
        raise ValueError(f"_target_ must be a text, got {shortened(target)}")
    for name, value in _leaves(node):
        last = name.rpartition(".")[2]
        # Only a part of a part, such as the decoder of a head, is built later.
        known = ("_target_",) if name == last else ("_target_", "_partial_")
        if last.startswith("_") and last not in known:
            raise ValueError(f"{name} is not an option of a model folder")
        if last == FILE_OPTION and value is not None:
            raise ValueError(f"{name} must be null in a model folder, got {shortened(value)}")
        limit = LIMITS.get(last, MAX_INTEGER)
        if isinstance(value, int | float) and not -limit <= value <= limit:
            raise ValueError(f"{name} must be at most {limit:,}, got {shortened(value)}")
    return node


# A part of the model: its class (_target_) and the options of the class.
Node = Annotated[dict[str, Any], AfterValidator(_checked)]


class Input(Strict):
    """An input of the model."""

    modality: Name
    column: Name | None = None
    adapter: Name


class ModelConfig(Strict):
    """The content of config.yaml."""

    inputs: Annotated[dict[Name, Input], Field(min_length=1, max_length=MAX_INPUTS)]
    adapters: Annotated[dict[Name, Node], Field(min_length=1, max_length=MAX_INPUTS)]
    fusion: Node
    backbone: Node
    head: Node
    share_backbone: bool = True
    members: Annotated[int, Field(ge=2, le=MAX_MEMBERS)] | None = None
    target: str | None = None
    layout: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> ModelConfig:
        dim = self.backbone.get("dim")
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"backbone.dim must be a positive integer, got {shortened(dim)}")
        for name, spec in self.inputs.items():
            if spec.adapter not in self.adapters:
                known = ", ".join(list(self.adapters)[:5])
                raise ValueError(
                    f"inputs.{name}.adapter must be one of {known}, got {shortened(spec.adapter)}"
                )
        return self


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


def read_config(folder: Path, *, trust: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read and validate config.yaml of a model folder.

    Args:
        folder: The model folder.
        trust: Top-level packages, in addition to dxn, whose classes the file may refer to.

    Raises:
        UserError: If the file is not the configuration of a model, or refers to classes that are
            not trusted.
    """
    path = folder / CONFIG_FILE
    config = load_yaml(path)
    validated(ModelConfig, config, path)
    # Only the packages of models are allowed: a model has no data source or trainer.
    check_targets(config, trust, packages=MODEL_PACKAGES, key=str(path))
    return config


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
    listed = check_sums(folder, may_differ=[CARD_FILE])
    # A damaged file could otherwise be hidden by removing its line, or the whole list.
    unlisted = [path.name for path in read if path.name not in listed]
    if unlisted:
        problem = f"must list {unlisted[0]}" if (folder / SUMS).exists() else "file not found"
        raise UserError(
            f"{folder / SUMS}: {problem}; copy the whole folder again, or run "
            f"`sha256sum *.* > {SUMS}` in this folder if you trust its files"
        )
