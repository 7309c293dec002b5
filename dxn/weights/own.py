"""Models that dxn itself trained: the parts are as their config.yaml says, and the tensors have our own names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

from dxn.errors import UserError
from dxn.tokenize.target import FILE
from dxn.tokenize.text import load_tokenizer
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Arguments, Family, Parts, Table, same

PARTS = ("adapters", "fusion", "backbone", "head")
OF_DATA = ("head.class_weights",)  # each training split has its own


def knows(checkpoint: Checkpoint) -> bool:
    """Whether there is a config.yaml of our parts beside the weights."""
    return set(PARTS) <= set(_nodes(checkpoint))


def parts(checkpoint: Checkpoint) -> Parts:
    """The nodes of config.yaml, each with its _target_; UserError where a file changed since it was saved."""
    assert checkpoint.folder is not None
    check_sums(checkpoint.folder)
    labels = checkpoint.folder / "labels.json"
    if not labels.exists():
        raise UserError(f"weights: {checkpoint.folder}: not a model folder, it has no {labels.name}")
    nodes, target = _nodes(checkpoint), json.loads(labels.read_text(encoding="utf-8"))
    writing = target_tokenizer(checkpoint)
    return Parts(
        dim=nodes["backbone"]["dim"],
        adapters={name: _without(node, "_target_", "dim") for name, node in nodes["adapters"].items()},
        backbone=_without(nodes["backbone"], "dim"),
        fusion=_without(nodes["fusion"], "dim", "modalities"),
        head=_without(nodes["head"], "dim", "class_weights"),
        labels=list(target["names"]) if writing is None else pieces(writing),
        kind=target["kind"],
    )


def table(checkpoint: Checkpoint, parts: Parts) -> Table:
    """Every tensor by its own name."""
    return {name: same(name) for name in checkpoint.tensors if name not in OF_DATA}


def target_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """What the model writes with; None where it does not."""
    path = (checkpoint.folder or Path()) / FILE
    return load_tokenizer(path) if checkpoint.folder is not None and path.exists() else None


def pieces(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary, in the order of its ids."""
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=lambda piece: vocab[piece])


def check_sums(folder: Path) -> None:
    """UserError where a file of a model folder is missing, or not the one whose SHA-256 was written down."""
    sums = folder / "SHA256SUMS"
    if not sums.exists():
        return
    for line in sums.read_text().splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.exists():
            raise UserError(f"{path}: missing, though SHA256SUMS lists it")
        if name != "README.md" and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise UserError(f"{path}: changed since it was saved (its SHA-256 is not the one in SHA256SUMS)")


def _nodes(checkpoint: Checkpoint) -> dict[str, Any]:
    path = (checkpoint.folder or Path()) / "config.yaml"
    if checkpoint.folder is None or not path.exists():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"weights: {path}: not YAML ({' '.join(str(error).split())})") from error
    return found if isinstance(found, dict) else {}


def _without(node: Arguments, *names: str) -> Arguments:
    return {key: value for key, value in node.items() if key not in names}


OWN = Family("a model of dxn's own", knows, parts, table, own=True)
