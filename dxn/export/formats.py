"""The file formats of an exported graph, and the comparison of a file with its model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._sympy.value_ranges import ValueRanges

from dxn.core.errors import UserError
from dxn.export.graph import MAX_REASON, ExportedGraph

Format = Literal["torch", "onnx"]
SUFFIXES: dict[str, str] = {"torch": ".pt2", "onnx": ".onnx"}
# The modules that only ONNX needs.
ONNX_MODULES = ("onnx", "onnxscript", "onnxruntime")
# The current version of the operators that onnxruntime 1.20 supports.
OPSET = 20
# A file of protobuf has at most 2 GB. Larger weights are written to a second file.
MAX_ONE_FILE = 1_500_000_000
# Largest difference in float32, relative to the largest value of an output, if that is above 1.
TOLERANCE = 1e-5

Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def check_format(format: str) -> None:
    """Check the name of a format, and whether its libraries are installed.

    Raises:
        UserError: If one of them is not the case.
    """
    if format not in get_args(Format):
        raise UserError(f"format: must be torch or onnx, got {format}")
    missing = [name for name in ONNX_MODULES if format == "onnx" and find_spec(name) is None]
    if missing:
        raise UserError(
            f"format: onnx needs the package {missing[0]}; run pip install 'dxn[export]', or set "
            "format=torch"
        )


def save(part: ExportedGraph, format: str, folder: Path) -> Path:
    """Write a graph to a folder, and return the path of its file."""
    path = folder / f"{part.name}{SUFFIXES[format]}"
    with quiet():
        if format == "torch":
            # The smallest sizes are a picture or a sound of a single patch. torch.export assumes
            # that the number of patches is above 1, although the graph computes it.
            ranges = part.program.range_constraints
            for size, allowed in ranges.items():
                ranges[size] = ValueRanges(1, allowed.upper)
            torch.export.save(part.program, path)
        else:
            _save_onnx(part, path)
    return path


def load(path: Path, outputs: Sequence[str]) -> Run:
    """Return a function that runs the graph in a file.

    Args:
        path: The file that `save` wrote.
        outputs: Names of the outputs.
    """
    return _load_torch(path) if path.suffix == SUFFIXES["torch"] else _load_onnx(path, outputs)


def _load_torch(path: Path) -> Run:
    with quiet():
        # Without guards: torch.export excludes sizes of 1 by its guards, but its graph allows them.
        module = torch.export.load(path).module(check_guards=False)

    def run(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return module(dict(sorted(tensors.items())))

    return run


def _save_onnx(part: ExportedGraph, path: Path) -> None:
    program: Any = torch.onnx.export(
        part.program,
        input_names=[port.name for port in part.inputs],
        output_names=[port.name for port in part.outputs],
        opset_version=OPSET,
        verbose=False,
    )
    size = sum(tensor.nbytes for tensor in part.program.state_dict.values())
    program.save(str(path), external_data=size > MAX_ONE_FILE)


def _load_onnx(path: Path, outputs: Sequence[str]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        feeds = {name: tensor.numpy() for name, tensor in tensors.items()}
        results = session.run(list(outputs), feeds)
        return {n: torch.as_tensor(r) for n, r in zip(outputs, results, strict=True)}

    return run


def compare(part: ExportedGraph, path: Path) -> float:
    """Load a file, compare its outputs with those of the model, and return the largest difference.

    Raises:
        UserError: If the file cannot be run, or they differ by more than `TOLERANCE`.
    """
    run = load(path, [port.name for port in part.outputs])
    largest = 0.0
    for number, case in enumerate(part.cases):
        with torch.no_grad():
            wanted = part.reference(number)
        try:
            computed = run(dict(case))
        except Exception as error:  # onnxruntime has errors of its own
            reason = shorten(str(error), MAX_REASON)
            raise UserError(
                f"export: {path.name} cannot be run ({type(error).__name__}: {reason}); the file "
                "was not kept. Please report this"
            ) from error
        for name, tensor in wanted.items():
            largest = max(largest, difference(computed[name], tensor))
    if not largest <= TOLERANCE:
        raise UserError(
            f"export: the outputs of {path.name} differ from those of the model by {largest:.1e}, "
            f"more than {TOLERANCE:.0e}; the file was not kept. Please report this"
        )
    return largest


def difference(computed: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that is above 1."""
    if computed.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    computed, wanted = computed.double(), wanted.double()
    # Infinite values, such as those of masked positions, must be equal; NaN is never right.
    is_finite = wanted.isfinite()
    if not torch.equal(computed[~is_finite], wanted[~is_finite]):
        return float("inf")
    if not computed[is_finite].isfinite().all():
        return float("inf")
    computed, wanted = computed[is_finite], wanted[is_finite]
    if not wanted.numel():
        return 0.0
    scale = max(float(wanted.abs().max()), 1.0)
    return float((computed - wanted).abs().max()) / scale


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the messages of torch about its own internals, which a user cannot act on."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
