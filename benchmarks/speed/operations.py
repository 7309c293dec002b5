"""Counts the operations of a training step, a prediction and a new token, of dxn and of its peers.

A GPU starts a kernel for each of them, so they limit the speed of small models and batches. Their
number depends neither on the width nor on the batch size, and it can be counted on a CPU. Here, the
CPU does what a GPU does with batches of this size: padding is kept, attention is one operation, and
no value is read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench_generation
import bench_inference
import bench_training
import torch
from bench_row import Options
from parity_cases import Sizes
from torch.utils._python_dispatch import TorchDispatchMode

from dxn.core.dropout import keyed

VIEWS = {
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal"),
    *("expand", "lift_fresh", "permute", "select", "slice", "split", "split_with_sizes", "squeeze"),
    *("t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}
READS = {"_local_scalar_dense", "nonzero"}  # the processor waits for their results
SIZES = Sizes(dim=64, depth=12, heads=4)
TEXTS = 64  # per batch of `ragged_texts`
ROWS = {
    "training, ViT": partial(bench_training.images, sizes=SIZES, batch=TEXTS),
    "training, BERT": partial(bench_training.ragged_texts, dropout=0.0, sizes=SIZES),
    "training, BERT, dropout 0.1": partial(bench_training.ragged_texts, dropout=0.1, sizes=SIZES),
    "prediction, ViT": partial(bench_inference.images, batch=1),
    "prediction, BERT": partial(bench_inference.ragged_texts, batch=8),
}
TOKENS = {
    "GPT-2": bench_generation.gpt2,
    "Llama, 30 blocks": bench_generation.llama,
    "T5-small, 6 blocks": partial(bench_generation.t5, size=1),
    "Whisper-tiny, 4 blocks": partial(bench_generation.whisper, size=1),
}
# A generation of the larger number of tokens, without that of the smaller one.
NUM_NEW = (2, 10)


class Operations(TorchDispatchMode):
    """Counts the operations of its context that are neither views nor allocations."""

    def __init__(self):
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.count[name] += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Print a table with the operations of each training step."""
    print("| 12 blocks | model | operations | values read |\n|---|---|---|---|")
    for name, make in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            calls = make(Options(Path(folder))).calls
        for model, call in calls.items():
            with keyed(torch.arange(TEXTS), 0):  # the trainer has one per step too
                call()  # the first step creates the state of the optimizer
                show(name, model, counted(call))
    # No step is compiled, but all have the same shapes, as on a GPU.
    static = partial(bench_generation.generate, compile_step=lambda step: step)
    with (
        patch.object(bench_generation, "generate", static),
        patch("dxn.tasks.generate.head.generate", static),
    ):
        for name, make in TOKENS.items():
            with tempfile.TemporaryDirectory() as folder:
                calls = make(Options(Path(folder))).calls
            for model, call in calls.items():
                counts: list[Counter[str]] = []
                for num_new in NUM_NEW:
                    with patch.object(bench_generation, "NEW", num_new):
                        counts.append(counted(call))
                counts[1].subtract(counts[0])
                show(f"new token, {name}", model, counts[1], NUM_NEW[1] - NUM_NEW[0])


def counted(call: Callable[[], object]) -> Counter[str]:
    """Return the number of each operation of a call."""
    with Operations() as operations:
        call()
    return operations.count


def show(name: str, model: str, count: Counter[str], steps: int = 1) -> None:
    """Print a row of the table: the operations of one of several steps."""
    reads = sum(count[each] for each in READS)
    total = count.total() - reads
    print(f"| {name} | {model} | {total / steps:,.0f} | {reads / steps:g} |", flush=True)


if __name__ == "__main__":
    with (
        patch("dxn.models.attention.MAX_UNFUSED_FLOAT32", 0),
        patch("dxn.models.packing.GroupPacking.of", lambda mask: None),
        patch("dxn.core.tokens.can_read", lambda x: False),
    ):
        main()
