"""Use this model without dxn: python example.py NAME=VALUE ...

Without arguments, the inputs in example.npz are used.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> None:
    """Print the outputs of the model for one sample."""
    about = json.loads((HERE / "preprocess.json").read_text(encoding="utf-8"))
    part = about["parts"][0]
    sample: dict[str, str] = {}
    if arguments:
        prepare = import_module("prepare_inputs")
        sample = prepare.parse_sample(arguments)
        arrays = prepare.prepare_sample(sample, about, part["inputs"])
    else:
        with np.load(HERE / "example.npz") as file:
            arrays = {port["name"]: file[port["name"]] for port in part["inputs"]}
    run = import_module("run_graph").load(HERE / part["file"])
    if "decode" in about["outputs"]:
        decode = import_module(f"decode_{about['outputs']['decode']}")
        print("\n".join(decode.lines(run, arrays, about, sample)))
        return
    outputs = run(arrays)
    labels = about["outputs"].get("labels")
    for name, array in outputs.items():
        print(f"{name}: {array.dtype} {array.shape}")
        if name == "probabilities" and labels and array.ndim == 2:
            for probability, label in sorted(zip(array[0].tolist(), labels, strict=True))[::-1]:
                print(f"  {probability:.4f}  {label}")
        elif name != "embeddings":
            print(np.array2string(array[0], precision=4, threshold=20))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(sys.argv[1:])
