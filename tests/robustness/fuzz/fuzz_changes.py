"""Mutations of the files of a folder, which the kinds of fuzz.py share."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import yaml
from fuzz_pool import canary

HUGE = (10**4, 10**5, 10**6, 10**7, 10**9, 2**31, 2**63, 10**30)


def change(folder: Path, rand: random.Random) -> str:
    """Change one file of a folder; return a description."""
    files = sorted(path for path in folder.iterdir() if path.name != "README.md")
    if not files:  # an earlier change moved the last one away
        return "nothing"
    path = rand.choice(files)
    if path.is_symlink() or not path.is_file():
        return "nothing"
    changes: list[Callable[[Path, random.Random], str]] = [_change_bytes]
    if path.suffix in (".json", ".yaml"):
        changes += [_change_tree] * 8
    if path.suffix == ".safetensors":
        changes += [_change_tensors] * 4 + [_change_metadata]
    if rand.random() < 0.05:
        changes = [_change_entry]
    return f"{path.name}: {rand.choice(changes)(path, rand)}"


def _change_entry(path: Path, rand: random.Random) -> str:
    """Replace a file by something else."""
    kind = rand.choice(("missing", "folder", "pipe", "link", "device", "loop"))
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/etc/passwd")
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
    return kind


def _change_bytes(path: Path, rand: random.Random) -> str:
    content = bytearray(path.read_bytes())
    kind = rand.choice(("flip", "truncate", "insert", "empty", "repeat"))
    if not content:
        return "nothing"
    place = rand.randrange(len(content) + 1)
    match kind:
        case "flip":
            for _ in range(rand.choice((1, 1, 5, 50))):
                content[rand.randrange(len(content))] ^= 1 << rand.randrange(8)
        case "truncate":
            del content[place:]
        case "insert":
            content[place:place] = rand.choice(
                (b"[" * 1000, b"\x00", b"\xff\xfe", b"&a *a", rand.randbytes(20), b"{" * 100_000)
            )
        case "empty":
            content = bytearray()
        case "repeat":
            content *= 3
    path.write_bytes(content)
    return f"{kind} at {place}"


def _change_tree(path: Path, rand: random.Random) -> str:
    """Replace, remove or add a value in a JSON or YAML file."""
    is_json = path.suffix == ".json"
    try:
        tree = json.loads(path.read_text()) if is_json else yaml.safe_load(path.read_text())
    except (ValueError, RecursionError, yaml.YAMLError):
        return "nothing"
    nodes = list(_containers(tree, ""))
    if not nodes:
        return "nothing"
    # Not in proportion to the number of values: a vocabulary has more than all other parts.
    nodes = sorted(nodes, key=lambda node: len(node[1]))
    name, node = rand.choice(nodes)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return "nothing"
    key = rand.choice(keys)
    value = _hostile(rand, node[key])
    match rand.choice(("replace", "replace", "replace", "replace", "remove", "add")):
        case "replace":
            node[key] = value
        case "remove":
            del node[key]
            value = "(removed)"
        case _ if isinstance(node, dict):
            node[rand.choice(("extra", "_target_", "../a", "", "path"))] = value
        case _:
            node.append(value)
    path.write_text(json.dumps(tree) if is_json else yaml.safe_dump(tree, sort_keys=False))
    return f"{name}.{key} = {str(value)[:60]}"


def _containers(node: Any, name: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(node, dict | list):
        found.append((name, node))
        items = node.items() if isinstance(node, dict) else enumerate(node[:100])
        for key, value in items:
            found += _containers(value, f"{name}.{key}")
    return found


def _hostile(rand: random.Random, value: Any) -> Any:
    """Return a hostile value; often one of the same type as the old value."""
    if isinstance(value, int) and rand.random() < 0.6:
        return rand.choice((-1, 0, 1, 2, 3, 7, value + 1, value * 2, *HUGE))
    if isinstance(value, float) and rand.random() < 0.6:
        return rand.choice((-1.0, 0.0, 1e-300, 1e300, math.inf, math.nan, value * 2))
    command = {"_target_": "os.system", "command": f"touch {canary()}"}
    return rand.choice(
        (
            *(None, True, False, -1, 0, 1, 10**9, 0.5, "", "x", "x" * 100_000, "0", "none"),
            *("../../../etc/passwd", "/dev/zero", "${oc.env:HOME}", "os.system", "\x00\x1b[2J"),
            *([], {}, [[]], [None], list(range(1000)), {"a": {"b": "c"}}, [value] * 3),
            *(command, [command], {"_target_": "dxn.models.Backbone", "dim": 16}),
            *({"_target_": "dxn.tokenize.TextAdapter"}, {"_partial_": True, **command}),
        )
    )


def _change_tensors(path: Path, rand: random.Random) -> str:
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError):
        return "nothing"
    if not tensors:
        return "nothing"
    name = rand.choice(sorted(tensors))
    tensor = tensors[name]
    kind = rand.choice(("nan", "inf", "large", "missing", "surplus", "shape", "type", "rename"))
    match kind:
        case "nan" | "inf":
            tensors[name] = torch.full_like(tensor.float(), float(kind))
        case "large":
            tensors[name] = tensor.float() * 1e30
        case "missing":
            del tensors[name]
        case "surplus":
            tensors[f"{name}.more"] = tensor.clone()
        case "shape":
            tensors[name] = torch.zeros(*tensor.shape, 2)
        case "type":
            types = (torch.int8, torch.float16, torch.bool, torch.float64, torch.complex64)
            tensors[name] = tensor.to(rand.choice(types))
        case "rename":
            tensors[f"{name}x"] = tensors.pop(name)
    safetensors.torch.save_file(tensors, path, _metadata(path))
    return f"{kind} {name}"


def _change_metadata(path: Path, rand: random.Random) -> str:
    """Change the state of a training, which is JSON in the metadata of a checkpoint."""
    try:
        tensors, metadata = safetensors.torch.load_file(path), _metadata(path)
        state = json.loads(metadata["state"])
    except (safetensors.SafetensorError, OSError, ValueError, KeyError):
        return "nothing"
    if not isinstance(state, dict) or not state:
        return "nothing"
    key = rand.choice(sorted(state))
    state[key] = _hostile(rand, state[key])
    content = json.dumps(rand.choice((state, state, state, state, list(state), key)))
    safetensors.torch.save_file(tensors, path, {**metadata, "state": content})
    return f"state {key} = {str(state[key])[:60]}"


def _metadata(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata() or {"format": "pt"}
