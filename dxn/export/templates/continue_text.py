"""Continue a text with this model without dxn: python example.py "Once upon a time"."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
MAX_NEW = 50  # tokens to generate


def main(prompt: str) -> None:
    """Print the prompt and its most probable continuation."""
    about = json.loads((HERE / "preprocess.json").read_text(encoding="utf-8"))
    (part,) = about["parts"]
    run = import_module("run_graph").load(HERE / part["file"])
    (options,) = about["inputs"].values()
    tokenizers = import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(options["tokenizer"]))
    encoding = tokenizer.encode(prompt, add_special_tokens=options["special_tokens"])
    ids = encoding.ids
    # A special token at the end would end the text before it is continued.
    while options["special_tokens"] and len(ids) > 1 and encoding.special_tokens_mask[len(ids) - 1]:
        ids = ids[:-1]
    print(tokenizer.decode(generate(run, part, ids, options["max_len"], about["outputs"]["end"])))


def generate(run: Any, part: Any, ids: list[int], max_len: int, end: list[int]) -> list[int]:
    """Return the ids of a prompt and of the new tokens, up to one of the end tokens."""
    shapes = {port["name"]: port["shape"] for port in part["inputs"]}
    blocks, _, heads, _, width = shapes["keys"]
    keys = values = np.zeros((blocks, 1, heads, 0, width), np.float32)
    new = ids
    for _ in range(min(MAX_NEW, max_len - len(ids))):
        result = run(
            {
                "ids": np.array([new], np.int64),
                "mask": np.ones((1, len(ids)), bool),
                "keys": keys,
                "values": values,
            }
        )
        keys, values = result["new_keys"], result["new_values"]
        new = [int(result["logits"][0, -1].argmax())]
        if new[0] in end:
            break
        ids = ids + new
    return ids


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(" ".join(sys.argv[1:]) or "a")
