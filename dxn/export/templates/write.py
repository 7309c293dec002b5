"""Generate a text with this model without dxn: python example.py NAME=VALUE ...

Without arguments, the first sample of example.npz is used.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> None:
    """Print the text that the model generates for one sample, by greedy decoding."""
    about = json.loads((HERE / "preprocess.json").read_text(encoding="utf-8"))
    encoder, decoder = about["parts"]
    load = import_module("run_graph").load
    if arguments:
        prepare = import_module("prepare_inputs")
        sample = prepare.parse_sample(arguments)
        arrays = prepare.prepare_sample(sample, about, encoder["inputs"])
    else:
        with np.load(HERE / "example.npz") as file:
            arrays = {port["name"]: file[port["name"]][:1] for port in encoder["inputs"]}
    memory = load(HERE / encoder["file"])(arrays)
    ids = generate(load(HERE / decoder["file"]), decoder, memory, about["outputs"])
    tokenizers = import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(about["outputs"]["tokenizer"]))
    print(tokenizer.decode(ids, skip_special_tokens=True).strip())


def generate(run: Any, part: Any, memory: dict[str, np.ndarray], options: Any) -> list[int]:
    """Return the ids of the tokens until the end token."""
    shapes = {port["name"]: port["shape"] for port in part["inputs"]}
    blocks, _, heads, _, width = shapes["keys"]
    keys = values = np.zeros((blocks, 1, heads, 0, width), np.float32)
    ids: list[int] = []
    new = np.array([options["begin"]], np.int64)
    for _ in range(options["max_len"]):
        result = run({"ids": new, "keys": keys, "values": values, **memory})
        keys, values = result["new_keys"], result["new_values"]
        logits = result["logits"][0, -1].copy()
        apply_rules(logits, [*options["begin"], *ids], len(ids), options)
        ids.append(int(logits.argmax()))
        if ids[-1] in options["end"]:
            break
        new = np.array([ids[-1:]], np.int64)
    return ids


def apply_rules(logits: np.ndarray, text: list[int], num_new: int, options: Any) -> None:
    """Change the logits of tokens that the text repeats, or that cannot follow it."""
    rules = options["rules"]
    seen = np.unique(text)
    penalty = rules["repetition_penalty"]
    logits[seen] = np.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
    logits[rules["forbidden"]] = -np.inf
    if num_new == 0:
        logits[rules["forbidden_first"]] = -np.inf
    if num_new < rules["min_new"]:
        logits[options["end"]] = -np.inf
    n = rules["no_repeat_ngram"]
    if n:
        last = text[len(text) - n + 1 :]
        for start in range(len(text) - n + 1):
            if text[start : start + n - 1] == last:
                logits[text[start + n - 1]] = -np.inf


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(sys.argv[1:])
