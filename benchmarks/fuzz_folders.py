"""The kind "folders" of benchmarks/fuzz.py: model folders and public checkpoints of a stranger."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import yaml
from fuzz_pool import canary

import dxn
from dxn.files import SUMS, write_sums
from dxn.run.model_folder import load
from dxn.weights import read_public

SMALL = (
    *("dim=16", "backbone.depth=1", "trainer.epochs=1", "trainer.device=cpu"),
    *("trainer.precision=float32", "batch_size=16", "adapters.text.vocab_size=300"),
)
# Tables for the trained models: columns, a function that writes row i, options, and a sample.
TABLES: dict[str, tuple[str, Callable[[int], str], list[str], dict[str, Any]]] = {
    "classes": (
        "text,size,day,color,label",
        lambda i: (
            f"a {i % 7} film,{i / 7:.3f},2026-01-{i % 28 + 1:02},{'rgb'[i % 3]},{'xy'[i % 2]}"
        ),
        ["data.target=label", "adapters=[text,number,date,category]"],
        {"text": "a fine film"},
    ),
    "amounts": (
        "text,price",
        lambda i: f"{i % 5} rooms and {i % 3} gardens,{i % 5 * 10 + i / 100}",
        ["data.target=price", "adapters=[text]"],
        {"text": "3 rooms"},
    ),
    "writes": (
        "text,answer",
        lambda i: f"say {'ab'[i % 2]} {i % 4} times,{' '.join('ab'[i % 2] * (i % 4 + 1))}",
        ["data.target=answer", "head=generate", "adapters=[text]"],
        {"text": "say a 2 times"},
    ),
}
# Public checkpoints: their names in benchmarks/parity_cases.py, and samples.
PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BERT", {"text": "a fine film"}),
    "vit": ("ViT (transformers)", {"image": np.full((40, 40, 3), 99, np.uint8)}),
}
HUGE = (10**4, 10**5, 10**6, 10**7, 10**9, 2**31, 2**63, 10**30)
PATTERNS = ("(a+)+$", "(a|a)*b", "x*", "(", "\\1", "a*a*a*a*b", "[", "(?=", "\\p{L}+", ".*.*x")


class Folders:
    """Mutated model folders and public checkpoints, which are loaded and used."""

    name = "folders"

    def prepare(self, folder: Path) -> None:
        """Train a small model of each kind, and save small public models."""
        self.base = folder / "base"
        for name, (header, row, options, _) in TABLES.items():
            table = folder / f"{name}.csv"
            lines = [header, *(row(i) for i in range(60))]
            table.write_text("\n".join(lines) + "\n")
            run = folder / name
            chosen = ["data=table", f"data.path={table}", *options, *SMALL, f"run={run}"]
            _run(["-m", "dxn", "train", *chosen])
            shutil.copytree(run / "model", self.base / name)
        script = (
            "import sys; from pathlib import Path; import parity_cases as cases; "
            "sizes = cases.Sizes(dim=12, depth=2, heads=2, batch=2, side=40, length=11); "
            "case = next(c for c in cases.CASES if c.name == sys.argv[1]); "
            "cases.save(case, case.make(sizes), Path(sys.argv[2]), heads=2)"
        )
        for name, (case, _) in PUBLIC.items():
            (self.base / name).mkdir()
            _run(["-c", script, case, str(self.base / name)])
        for copy in self.base.iterdir():
            _use(copy)

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Copy a valid folder, and change one to three things."""
        name = rand.choice([*TABLES, *TABLES, *PUBLIC])
        copy = folder / name
        shutil.copytree(self.base / name, copy)
        changes = [_change(copy, rand) for _ in range(rand.choice((1, 1, 2, 3)))]
        # A stranger can write the checksums again. A broken disk cannot.
        if rand.random() < 0.9 and (copy / SUMS).is_file() and not (copy / SUMS).is_symlink():
            write_sums(copy)
        return f"{name}: {'; '.join(changes)}"

    def use(self, folder: Path) -> Any:
        """Load the model and predict."""
        (copy,) = folder.iterdir()
        return _use(copy)


def make_kind() -> Folders:
    """Return the kind, for benchmarks/fuzz.py."""
    return Folders()


def _run(arguments: list[str]) -> None:
    """Run a Python program without its output."""
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _use(folder: Path) -> Any:
    if folder.name in PUBLIC:
        model = dxn.from_public(str(folder))
        return _check_numbers(model.embed(**PUBLIC[folder.name][1]).tolist())
    if sum(folder.name.encode()) % 2 and (folder / "README.md").exists():
        read_public(str(folder))
    sample = TABLES[folder.name][3]
    model = load(folder)
    answer = model.predict(**sample)
    probabilities = answer.get("probabilities")
    if probabilities is not None:
        assert abs(sum(probabilities.values()) - 1) < 1e-3, answer
    _check_numbers(model.embed(**sample).tolist())
    return _check_numbers(answer)


def _check_numbers(value: Any) -> Any:
    """Return a value, and fail if it contains a number that is not finite."""
    if isinstance(value, dict):
        for inner in value.values():
            _check_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner)
    assert not isinstance(value, float) or math.isfinite(value), value
    return value


def _change(folder: Path, rand: random.Random) -> str:
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
    if "tokenizer" in path.name:
        changes += [_change_tokenizer] * 6
    if path.suffix == ".safetensors":
        changes += [_change_tensors] * 4
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


def _change_tokenizer(path: Path, rand: random.Random) -> str:
    try:
        tree = json.loads(path.read_text())
        vocab = tree["model"]["vocab"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "nothing"
    if not isinstance(vocab, dict) or not vocab:
        return "nothing"
    regex = {"Regex": rand.choice(PATTERNS)}
    content = rand.choice(("", "y", "yy" * 20, "y" * 100_000))
    replace = {"type": "Replace", "pattern": regex, "content": content}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    match rand.randrange(6):
        case 0:
            tree["pre_tokenizer"] = split
        case 1:
            tree["normalizer"] = replace
        case 2:
            doubled = {**replace, "pattern": {"String": "a"}, "content": "aa"}
            tree["normalizer"] = {"type": "Sequence", "normalizers": [doubled] * 40}
        case 3:
            vocab[rand.choice(list(vocab))] = rand.choice((-1, 10**6, 2**32 - 1, 2**40))
        case 4:
            tree["padding"] = {
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "[PAD]",
                "pad_to_multiple_of": None,
            }
        case 5:
            tree["model"]["type"] = rand.choice(("BPE", "WordPiece", "WordLevel", "Unigram", "x"))
    path.write_text(json.dumps(tree))
    return f"tokenizer {regex} {content[:5]}"


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
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return f"{kind} {name}"
