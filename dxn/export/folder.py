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
from dxn.export.examples import Example, Tensors, make_examples
from dxn.export.formats import SUFFIXES, compare, save
from dxn.export.graph import ExportedGraph, Graph, make_graph, not_in_graph, reference_of, trace
from dxn.export.recipes import INPUTS
from dxn.export.writing import (
    DecoderGraph,
    EncoderGraph,
    LanguageGraph,
    check_backbones,
    decoder_cases,
    language_cases,
    memory_of,
)
from dxn.models.decoding.decoder import Decoder, Memory
from dxn.models.inference import restore
from dxn.models.model import Ensemble
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Writer
from dxn.stacking.stacked import without_baseline
from dxn.tasks.segment.head import TiledHead
from dxn.tokenize.audio.tokenizer import AudioTokenizer

ABOUT = "preprocess.json"
EXAMPLE = "example.npz"
CACHE = "__pycache__"
# In a program that prepares inputs: the import of another module of dxn that is copied with it.
DXN_IMPORT = re.compile(r"^from dxn\.([\w.]+)\.(\w+) import", re.MULTILINE)
PACKAGE = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "templates"
PROGRAMS = Path(__file__).parent / "programs"
SEED = 0  # of the random examples


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
    for name, tokenizer in predictor.tokenizers.items():
        spectrogram = tokenizer.spectrogram if isinstance(tokenizer, AudioTokenizer) else None
        if spectrogram is not None and spectrogram.window_seconds is not None:
            lines.append(
                f"note: {name}: the graph reads clips of at most {spectrogram.window_seconds:g} "
                "seconds, and dxn divides longer ones"
            )
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
        with torch.no_grad():  # the inputs of one batch and the outputs of the model
            tensors = {**parts[0].cases[0], **parts[0].reference(0)}
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        np.savez(new / EXAMPLE, **arrays)
        shutil.copyfile(TEMPLATES / f"{example}.py", new / "example.py")
        shutil.copyfile(TEMPLATES / f"run_{format}.py", new / "run_graph.py")
        if example != "continue_text":
            _copy_program(TEMPLATES / "prepare_inputs.py", new, "")
        for recipe in recipes.values():
            if "prepare" in recipe:
                _copy_program(program_of(recipe["prepare"]), new)
        if "decode" in about["outputs"]:
            _copy_program(program_of(about["outputs"]["decode"]), new, "decode_")
        write_sums(new)
    return lines


def describe(
    predictor: Predictor,
    parts: Sequence[ExportedGraph],
    format: str,
    recipes: dict[str, dict[str, Any]],
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
        "outputs": predictor.task.recipe(predictor.model.head) | _ends(predictor),
        "parts": [
            {
                "name": part.name,
                "file": f"{part.name}{SUFFIXES[format]}",
                "inputs": [port.about() for port in part.inputs],
                "outputs": [port.about() for port in part.outputs],
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
        recipes[name]["required"] = name in task.target.required
        if task.target.words and adapter.reader.words:
            recipes[name]["words"] = task.target.words
    return recipes


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


def _copy_program(path: Path, folder: Path, prefix: str = "prepare_") -> None:
    """Copy a module with a prefix before its name, and its imports of dxn as prepare_NAME.py."""
    text = path.read_text(encoding="utf-8")
    (folder / f"{prefix}{path.stem}.py").write_text(
        DXN_IMPORT.sub(r"from prepare_\2 import", text), encoding="utf-8"
    )
    for package, name in DXN_IMPORT.findall(text):
        if not (folder / f"prepare_{name}.py").exists():
            _copy_program(PACKAGE / package.replace(".", "/") / f"{name}.py", folder)


def _check_folder(folder: Path) -> None:
    """Check that nothing but an older export would be replaced."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output: must be a folder, got the file {folder}")
    if not folder.is_dir():
        return
    sums = folder / SUMS
    is_export = (folder / ABOUT).is_file() and sums.is_file()
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines() if is_export else []
    # Python writes __pycache__ when the example runs.
    exported = {line.partition("  ")[2] for line in lines} | ({SUMS, CACHE} if is_export else set())
    others = sorted(path.name for path in folder.iterdir() if path.name not in exported)
    if others:
        raise UserError(
            f"output: {folder} has other files, which would be replaced, such as {others[0]}; move "
            "them, or choose another folder"
        )


def check_exportable(predictor: Predictor) -> None:
    """Check what can be checked before tracing, which takes long.

    Raises:
        UserError: If the model cannot be exported.
    """
    check_backbones(predictor.network)
    if predictor.task.creates:
        raise UserError(
            "export: a model of head=any cannot be exported; use dxn generate or dxn serve, or "
            "dxn.load in Python"
        )
    writes = predictor.task.writes
    if writes:
        _decoder(predictor)
    if (writes or predictor.task.target.source == "stream") and isinstance(
        predictor.network, Ensemble
    ):
        raise UserError("export: an ensemble of models that write cannot be exported")
    if any(adapter.is_separate for adapter in predictor.adapters.values()):
        raise UserError(
            "export: a series with adapters.series.channels=separate, such as that of Chronos-Bolt,"
            " cannot be exported; use dxn predict or dxn serve"
        )
    modules = predictor.network.modules()
    if any(isinstance(module, TiledHead) and module.tile for module in modules):
        raise UserError(
            "export: a model with head.tile, which divides large pictures, cannot be exported; use "
            "dxn predict or dxn serve, or train with head.tile=0"
        )
    if predictor.task.target.source == "stream" and len(predictor.inputs) > 1:
        raise UserError(
            "export: a language model with other inputs than a text cannot be exported, got "
            f"{', '.join(predictor.inputs)}"
        )


def _ends(predictor: Predictor) -> dict[str, list[int]]:
    """Return the ids of the tokens that end a text of a language model."""
    writer = Writer(predictor.model, predictor.task)
    return {"end": writer.ends} if writer.takes_prompt else {}


def _decoder(predictor: Predictor) -> Decoder:
    """Return the decoder of a model that writes.

    Raises:
        UserError: If it is of another class.
    """
    decoder = predictor.model.head.decoder
    if not isinstance(decoder, Decoder):
        raise UserError(
            f"export: the decoder must be dxn.models.Decoder, got {type(decoder).__name__}"
        )
    return decoder


def make_parts(predictor: Predictor) -> tuple[list[ExportedGraph], str]:
    """Trace all graphs of a model.

    Returns:
        The graphs, and the name of the module in dxn/export/templates/ that shows how to use them.

    Raises:
        UserError: If the model cannot be exported.
    """
    check_exportable(predictor)
    if predictor.task.target.source == "stream":
        language = LanguageGraph(predictor.model).eval()
        cases = language_cases(predictor.model)
        return [trace("decoder", language, cases, network=predictor.network)], "continue_text"
    examples = make_examples(predictor.model, SEED, required=predictor.task.target.required)
    graph = make_graph(predictor.network, predictor.task, examples)
    cases = [{name: tensors[name] for name in graph.used} for _, tensors in examples]
    if predictor.task.writes:
        return _encoder_and_decoder(predictor, graph, examples, cases), "write"
    reference = reference_of(predictor.network, predictor.task, examples)
    part = trace("model", graph, cases, reference=reference, network=predictor.network)
    return [part], "predict"


def _encoder_and_decoder(
    predictor: Predictor, graph: Graph, examples: Sequence[Example], cases: Sequence[Tensors]
) -> list[ExportedGraph]:
    model = predictor.model
    decoder = _decoder(predictor)

    def encoded(number: int) -> Tensors:
        tokens, _ = model.encode(model.embed(examples[number][0]))
        return memory_of(Memory.from_tokens(tokens), decoder)

    network = predictor.network
    encoder = trace(
        "encoder", EncoderGraph(graph, decoder).eval(), cases, reference=encoded, network=network
    )
    with torch.no_grad():
        memories = [encoded(number) for number in range(len(examples))]
    step = DecoderGraph(decoder).eval()
    return [encoder, trace("decoder", step, decoder_cases(decoder, memories), network=network)]
