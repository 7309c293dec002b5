"""The exported folder: graphs, preprocess.json, and programs that use them without dxn."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dxn
from dxn.core.errors import UserError
from dxn.core.files import SUMS, replace_folder, write_sums
from dxn.export.formats import SUFFIXES, compare, save
from dxn.export.graph import Port, not_in_graph
from dxn.export.parts import make_parts
from dxn.export.recipes import INPUTS
from dxn.export.trace import Part
from dxn.models.inference import restore
from dxn.runs.predictor.predictor import Predictor
from dxn.stacking.stacked import without_baseline

ABOUT = "preprocess.json"
EXAMPLE = "example.npz"
CACHE = "__pycache__"
# In a program that prepares inputs: the import of another module of dxn that is copied with it.
DXN_IMPORT = re.compile(r"^from dxn\.([\w.]+)\.(\w+) import", re.MULTILINE)
PACKAGE = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "templates"
PROGRAMS = Path(__file__).parent / "programs"


def write_export(
    predictor: Predictor, folder: Path, format: str, *, baseline: str = "auto"
) -> list[str]:
    """Export a model, and write its folder.

    Args:
        predictor: The model, in float32 on the CPU. It is changed, so that it can be traced.
        folder: Folder to write. It is replaced if it is an older export.
        format: torch or onnx.
        baseline: auto exports the baseline of the model if a graph can compute its features, none
            leaves it out.

    Returns:
        Lines about the files.

    Raises:
        UserError: If the model cannot be exported, the folder has other files, or the graphs do not
            agree with the model.
    """
    _check_folder(folder)
    if baseline not in ("auto", "none"):
        raise UserError(f"baseline: must be auto or none, got {baseline}")
    restore(predictor.network)
    lines: list[str] = []
    left_out = not_in_graph(predictor.network)
    if left_out:
        lines.append(
            f"note: the graph has no baseline ({left_out}), because its features need dxn, so it "
            "answers like the transformer alone in the report; dxn predict and dxn serve use both"
        )
    if left_out or baseline == "none":
        without_baseline(predictor.network)
    parts, example = make_parts(predictor)
    with replace_folder(folder) as new:
        for part in parts:
            path = save(part, format, new)
            lines.append(
                f"written: {folder / path.name} ({path.stat().st_size / 1e6:.1f} MB); largest "
                f"difference from the model in {len(part.cases)} batches: "
                f"{compare(part, path):.1e}"
            )
        recipes = _recipes(predictor)
        about = describe(predictor, parts, format, recipes)
        text = json.dumps(about, indent=1, ensure_ascii=False)
        (new / ABOUT).write_text(f"{text}\n", encoding="utf-8")
        _write_example(parts[0], new / EXAMPLE)
        _copy_programs(example, recipes, format, new)
        if "decode" in about["outputs"]:
            _copy_program(program_of(about["outputs"]["decode"]), new, "decode")
        write_sums(new)
    return lines


def describe(
    predictor: Predictor, parts: Sequence[Part], format: str, recipes: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of preprocess.json."""
    return {
        "made_by": f"dxn {dxn.__version__}, torch {torch.__version__}",
        "format": format,
        "task": predictor.task.name,
        "target": predictor.target,
        "inputs": {
            name: {"modality": predictor.tokenizers[name].modality, **recipe}
            for name, recipe in recipes.items()
        },
        "outputs": predictor.task.recipe(predictor.model.head),
        "parts": [
            {
                "name": part.name,
                "file": f"{part.name}{SUFFIXES[format]}",
                "inputs": _ports(part.inputs),
                "outputs": _ports(part.outputs),
            }
            for part in parts
        ],
    }


def _recipes(predictor: Predictor) -> dict[str, dict[str, Any]]:
    """Return how each input is prepared without dxn."""
    task = predictor.task
    recipes: dict[str, dict[str, Any]] = {}
    for name, adapter in predictor.adapters.items():
        make = INPUTS.get(adapter.modality)
        recipes[name] = {} if make is None else make(adapter.tokenizer)
        if task.target.words and adapter.reader.words:
            recipes[name]["words"] = task.target.words
    return recipes


def _ports(ports: Sequence[Port]) -> list[dict[str, Any]]:
    return [
        {"name": p.name, "dtype": str(p.dtype).removeprefix("torch."), "shape": list(p.shape)}
        for p in ports
    ]


def _write_example(part: Part, path: Path) -> None:
    """Write the inputs of one batch and the outputs of the model."""
    with torch.no_grad():
        outputs = part.reference(0)
    arrays: dict[str, Any] = {
        name: tensor.numpy() for name, tensor in {**part.cases[0], **outputs}.items()
    }
    np.savez(path, **arrays)


def _copy_programs(
    example: str, recipes: dict[str, dict[str, Any]], format: str, folder: Path
) -> None:
    shutil.copyfile(TEMPLATES / f"{example}.py", folder / "example.py")
    shutil.copyfile(TEMPLATES / f"run_{format}.py", folder / "run_graph.py")
    if example != "continue_text":
        shutil.copyfile(TEMPLATES / "prepare_inputs.py", folder / "prepare_inputs.py")
    for recipe in recipes.values():
        if "prepare" in recipe:
            _copy_program(program_of(recipe["prepare"]), folder)


def program_of(name: str) -> Path:
    """Return the file of a program of dxn, or of a package, such as weather.strips."""
    package = name.partition(".")[0]
    if package == name:
        return PROGRAMS / f"{name}.py"
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # of the package
        spec = None
    if spec is None or spec.origin is None:
        raise UserError(
            f"export: a recipe names the module {name}, which does not exist; install {package}, "
            "or correct the recipe"
        )
    return Path(spec.origin)


def _copy_program(path: Path, folder: Path, prefix: str = "prepare") -> None:
    """Copy a module of dxn as PREFIX_NAME.py, and those that it imports as prepare_NAME.py."""
    text = path.read_text(encoding="utf-8")
    (folder / f"{prefix}_{path.stem}.py").write_text(
        DXN_IMPORT.sub(r"from prepare_\2 import", text), encoding="utf-8"
    )
    for package, name in DXN_IMPORT.findall(text):
        if not (folder / f"prepare_{name}.py").exists():
            _copy_program(PACKAGE / package.replace(".", "/") / f"{name}.py", folder)


def _check_folder(folder: Path) -> None:
    """Check that nothing but an older export would be replaced."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output: must be a folder, got the file {folder}")
    extra = _other_files(folder) if folder.is_dir() else []
    if extra:
        raise UserError(
            f"output: {folder} has other files, which would be replaced, such as {extra[0]}; move "
            "them, or choose another folder"
        )


def _other_files(folder: Path) -> list[str]:
    """Return the names of what no export has written to a folder."""
    sums = folder / SUMS
    is_export = (folder / ABOUT).is_file() and sums.is_file()
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines() if is_export else []
    # Python writes __pycache__ when the example runs.
    exported = {line.partition("  ")[2] for line in lines} | ({SUMS, CACHE} if is_export else set())
    return sorted(path.name for path in folder.iterdir() if path.name not in exported)
