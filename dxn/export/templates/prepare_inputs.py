"""Prepare one sample for the graphs of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np


def prepare_sample(
    sample: Mapping[str, Any], about: Mapping[str, Any], ports: list[dict[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the inputs of a graph.

    Args:
        sample: Raw values by the name of the input, such as {"text": "a fine film"}.
        about: Content of preprocess.json.
        ports: Inputs of the graph, from preprocess.json.

    Raises:
        SystemExit: If an input is unknown, or can only be prepared with dxn.
    """
    arrays: dict[str, np.ndarray] = {}
    unknown = sample.keys() - about["inputs"].keys()
    if unknown:
        raise SystemExit(f"the inputs are {', '.join(about['inputs'])}, got {', '.join(unknown)}")
    for name, value in sample.items():
        options = about["inputs"][name]
        if "prepare" not in options:
            raise SystemExit(f"{name}: prepare this input with dxn, see preprocess.json")
        module = import_module(f"prepare_{options['prepare']}")
        own = module.prepare([value], options)
        if "counted" in options:
            count = import_module(f"prepare_{options['counted']}").counted
            own |= {f"counted{i}": codes for i, codes in enumerate(count(own, options))}
        arrays |= {f"{name}.{key}": array for key, array in own.items()}
        arrays[f"{name}.present"] = np.array([True])
    for port in ports:
        # The graph ignores the values of an input that the sample does not have.
        shape = [size if isinstance(size, int) else 1 for size in port["shape"]]
        arrays.setdefault(port["name"], np.zeros(shape, port["dtype"]))
    return {port["name"]: arrays[port["name"]].astype(port["dtype"]) for port in ports}
