"""The family of models that were trained with dxn, whose config.yaml describes all parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from dxn.errors import UserError
from dxn.targets import MODEL_PACKAGES, check_targets, load_plain
from dxn.tokenize.target import FILE as TOKENIZER_FILE
from dxn.tokenize.text_tokenizer import load_tokenizer
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import copied
from dxn.weights.family import Architecture, Family, Options, TensorMap

CONFIG_FILE = "config.yaml"
LABELS_FILE = "labels.json"
SUMS_FILE = "SHA256SUMS"
CARD_FILE = "README.md"
# Tensors that depend on the order of the inputs. The embedding has one row per input, and the names
# of the layers contain the index of the input: fusion.mix.0.weight.
INPUT_EMBEDDING = "fusion.input_embedding.weight"
INPUT_LAYERS = ("fusion.mix.", "backbone.towers.", "head.pre.layers.")
# Keys of config.yaml whose value is a node, a mapping with the key _target_.
PARTS = ("fusion", "backbone", "head")


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether the folder of the weights contains a config.yaml of dxn."""
    if checkpoint.folder is None or not (checkpoint.folder / CONFIG_FILE).exists():
        return False
    # Other programs also write a config.yaml, but not together with a labels.json.
    if (checkpoint.folder / LABELS_FILE).exists():
        return True
    return {"adapters", *PARTS} <= load_plain(checkpoint.folder / CONFIG_FILE).keys()


def architecture(checkpoint: Checkpoint) -> Architecture:
    """Return the options in config.yaml. The options of each part include its _target_.

    Raises:
        UserError: If a file is missing or invalid, has changed since it was saved, or refers to
            classes that are not trusted.
    """
    folder = _folder(checkpoint)
    check_sums(folder)  # verify the files before reading them
    labels = folder / LABELS_FILE
    if not labels.exists():
        raise UserError(
            f"weights: {folder}: not a complete model folder, because {labels.name} is missing; "
            "copy the whole folder `model` of a run"
        )
    config = read_config(folder, trust=checkpoint.trust)
    state = _read_labels(labels)
    tokenizer = target_tokenizer(checkpoint)
    backbone = dict(config["backbone"])
    return Architecture(
        dim=backbone.pop("dim"),
        adapters={key: _without(node, "dim") for key, node in config["adapters"].items()},
        backbone=backbone,
        # A new model may have other inputs and another width, so these options are not copied.
        fusion=_without(config["fusion"], "dim", "inputs"),
        head=dict(config["head"]),
        inputs=tuple(config["inputs"]),
        labels=vocabulary(tokenizer) if tokenizer is not None else state.get("labels"),
        task=state["task"],
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    """Return a tensor map that copies each tensor, because the names are the same."""
    return {name: copied(name) for name in checkpoint.tensors}


def reorder_inputs(
    tensors: Mapping[str, Tensor], old: Sequence[str], new: Sequence[str]
) -> dict[str, Tensor]:
    """Reorder tensors for a model with other inputs, or with the same inputs in another order.

    The fusion identifies inputs by their index. If a model for (text, image) were loaded into a
    model for (image, text) without reordering, the image would get the layer of the text.

    Args:
        tensors: Tensors of the saved model.
        old: Names of the inputs of the saved model, in order.
        new: Names of the inputs of the new model, in order.

    Returns:
        The tensors, without those of inputs that the new model does not have.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name == INPUT_EMBEDDING:
            # This tensor has the embeddings of all inputs. If one of them is missing in the saved
            # model, the new model keeps its random initialization.
            if set(new) <= set(old):
                result[name] = tensor[[old.index(input_name) for input_name in new]]
        elif name.startswith(INPUT_LAYERS):
            prefix = next(prefix for prefix in INPUT_LAYERS if name.startswith(prefix))
            index, _, rest = name.removeprefix(prefix).partition(".")
            input_name = old[int(index)]
            if input_name in new:
                result[f"{prefix}{new.index(input_name)}.{rest}"] = tensor
        else:
            result[name] = tensor
    return result


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
    config = load_plain(path)
    # Report all problems together, instead of failing at the first one when the model is built.
    problems = _structure_problems(config)
    if problems:
        raise UserError(f"{path}: not the configuration of a model: {'; '.join(problems)}")
    # Only the packages of models are allowed: a model has no data source or trainer.
    check_targets(config, trust, packages=MODEL_PACKAGES, key=str(path))
    return config


def check_sums(folder: Path) -> None:
    """Compare the files of a model folder with the saved SHA-256 checksums, if there are any.

    Raises:
        UserError: If a file is missing or has changed.
    """
    sums = folder / SUMS_FILE
    if not sums.exists():
        return
    try:
        lines = sums.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{sums}: cannot be read as UTF-8 text: {error}") from error
    # The format of the program sha256sum: the digest, two spaces, and the file name.
    for line in lines:
        expected, _, name = line.partition("  ")
        path = folder / name
        # An untrusted folder must not make dxn read files outside of it.
        if Path(name).name != name:
            raise UserError(f"{sums}: must contain file names without a folder, got {name!r}")
        if not path.is_file():
            raise UserError(
                f"{path}: file not found, although {SUMS_FILE} lists it; copy the whole folder"
            )
        # Users may edit the model card, which has no effect on the model.
        if name != CARD_FILE and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise UserError(
                f"{path}: the file changed after it was saved (its SHA-256 checksum differs from "
                f"{SUMS_FILE}); copy it again, or delete {SUMS_FILE} if you trust the change"
            )


def target_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """Return the tokenizer of the generated texts, or None if the model does not generate text."""
    path = _folder(checkpoint) / TOKENIZER_FILE
    return load_tokenizer(path) if path.exists() else None


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a tokenizer, sorted by id."""
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _structure_problems(config: Mapping[str, Any]) -> list[str]:
    """Return descriptions of missing or invalid keys of config.yaml."""
    problems = [f"{key} must have a _target_" for key in PARTS if not _is_node(config.get(key))]
    adapters = config.get("adapters")
    if not isinstance(adapters, Mapping) or not adapters:
        return [*problems, "adapters must have at least one adapter"]
    problems += [
        f"adapters.{key} must have a _target_"
        for key, node in adapters.items()
        if not _is_node(node)
    ]
    dim = config["backbone"].get("dim") if not problems else None
    # bool is a subclass of int in Python.
    if not problems and (not isinstance(dim, int) or isinstance(dim, bool)):
        problems.append(f"backbone.dim must be an integer, got {dim!r}")
    return problems + _input_problems(config.get("inputs"), adapters)


def _input_problems(inputs: Any, adapters: Mapping[str, Any]) -> list[str]:
    if not isinstance(inputs, Mapping) or not inputs:
        return ["inputs must have at least one input"]
    problems: list[str] = []
    for name, spec in inputs.items():
        if not isinstance(spec, Mapping) or not isinstance(spec.get("modality"), str):
            problems.append(f"inputs.{name}.modality must be a string")
        elif spec.get("adapter") not in adapters:
            problems.append(f"inputs.{name}.adapter must be one of {', '.join(adapters)}")
    return problems


def _is_node(node: Any) -> bool:
    return isinstance(node, Mapping) and isinstance(node.get("_target_"), str)


def _read_labels(path: Path) -> dict[str, Any]:
    """Read labels.json, which contains the name of the task and the result of `Task.state`."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"weights: {path}: invalid JSON ({error})") from error
    if not isinstance(state, dict) or not isinstance(state.get("task"), str):
        raise UserError(f'weights: {path}: must be a JSON object with the key "task"')
    names = state.get("labels", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"weights: {path}: labels must be a list of strings")
    return state


def _folder(checkpoint: Checkpoint) -> Path:
    assert checkpoint.folder is not None
    return checkpoint.folder


def _without(node: Options, *names: str) -> Options:
    return {key: value for key, value in node.items() if key not in names}


OWN = Family("a model trained by dxn", matches, architecture, tensor_map, own=True)
