"""Prepare one sample for the graphs of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dxn.tokenize.cells.cell_values import is_null, plain_value

HERE = Path(__file__).resolve().parent


def parse_sample(arguments: Sequence[str]) -> dict[str, str]:
    """Return the raw values by the name of the input from arguments NAME=VALUE.

    Raises:
        SystemExit: If an argument is not of this form.
    """
    sample: dict[str, str] = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or not value.strip():
            raise SystemExit(f"{argument!r}: write each input as NAME=VALUE")
        sample[name] = value
    return sample


def prepare_sample(
    sample: Mapping[str, Any], about: Mapping[str, Any], ports: list[dict[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the inputs of a graph.

    Args:
        sample: Raw values by the name of the input, such as {"text": "a fine film"}. Inputs can be
            left out, or None, NaN, or a cell such as "N/A" that says that there is no value.
        about: Content of preprocess.json.
        ports: Inputs of the graph, from preprocess.json.

    Raises:
        SystemExit: If an input is unknown, cannot be read, or can only be prepared with dxn, or if
            all inputs are missing, or one that the model needs for each answer.
    """
    arrays: dict[str, np.ndarray] = {}
    unknown = sample.keys() - about["inputs"].keys()
    if unknown:
        raise SystemExit(f"the inputs are {', '.join(about['inputs'])}, got {', '.join(unknown)}")
    for name, cell in sample.items():
        value = plain_value(cell)
        if is_null(value):
            continue
        options = about["inputs"][name]
        if "prepare" not in options:
            raise SystemExit(f"{name}: prepare this input with dxn, see preprocess.json")
        module = import_module(f"prepare_{options['prepare'].rpartition('.')[2]}")
        # RuntimeError: that of libraries which decode sounds. TypeError: a value of a wrong type.
        try:
            raw = module.read(value, options)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise SystemExit(f"{name}: cannot read {str(value)[:60]!r}: {error}") from None
        if raw is None:
            continue
        prepared = module.prepare([raw], options)
        arrays |= {f"{name}.{key}": array for key, array in prepared.items()}
        arrays[f"{name}.present"] = np.array([True])
    if not arrays:
        raise SystemExit(
            f"all inputs are missing; give at least one of {', '.join(about['inputs'])}"
        )
    for name, options in about["inputs"].items():
        if options["required"] and f"{name}.present" not in arrays:
            raise SystemExit(f"{name}: missing; this model needs it for each answer")
    # The graph ignores an input that the sample does not have, but its values and sizes must be
    # valid: they are those of an example.
    with np.load(HERE / "example.npz") as file:
        for port in ports:
            name = port["name"]
            if name not in arrays:
                arrays[name] = np.array([False]) if name.endswith(".present") else file[name][:1]
    return {port["name"]: arrays[port["name"]].astype(port["dtype"]) for port in ports}
