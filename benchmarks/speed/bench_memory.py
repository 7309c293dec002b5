"""Rows of bench.py: memory of attention by the number of tokens, and beside other libraries."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench_row import OURS, Goal, Options, Row, Work

LENGTHS = (1024, 2048, 4096, 8192, 16384)
# Prints the bytes that a process needs in addition while it runs a backbone on N tokens.
CHILD = """
import sys
from dxn.core.runtime import configure
configure()
import torch
from dxn.models import Backbone
N, train, dtype = int(sys.argv[1]), sys.argv[2] == "training", getattr(torch, sys.argv[3])
model = Backbone(64, depth=2, num_heads=2)
mask = torch.ones(2, N, dtype=torch.bool)
mask[1, N // 2 :] = False
x = torch.randn(2, N, 64)
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
def run():
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = model.run(x[:, :n], mask[:, :n])
    if train:
        out.float().sum().backward()
model.train(train)
n = 64
torch.set_grad_enabled(train)
run()  # loads the kernels
n = N
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = status("VmRSS")
run()
print(status("VmHWM") - before)
"""

# Prints the bytes that a process needs in addition while it runs one side of a row of bench.py.
SIDE = """
import sys
from dxn.core.runtime import configure, release_memory
configure()
import tempfile
from pathlib import Path
import bench
import torch
from bench_row import Options
name, side, dtype, size = sys.argv[1:]
row = next(row for row in bench.ROWS if row.name == name)
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
with tempfile.TemporaryDirectory() as folder:
    options = Options(Path(folder), dtype=getattr(torch, dtype), tiny=size == "tiny")
    call = row.build(options).calls[side]
    release_memory()
    open("/proc/self/clear_refs", "w").write("5")  # resets the peak
    before = status("VmRSS")
    for _ in range(3):
        call()
    print(status("VmHWM") - before)
"""


def beside(options: Options, *, row: str, peer: str) -> Work:
    """The peak memory of the calls of a row beside the weights, each side in its own process.

    That of a training contains gradients, activations and the state of the optimizer.
    """

    def megabytes(side: str) -> float:
        dtype = str(options.dtype).removeprefix("torch.")
        command = [sys.executable, "-c", SIDE, row, side, dtype, "tiny" if options.tiny else "full"]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
        return int(ended.stdout.splitlines()[-1]) / 1e6

    return Work({name: partial(megabytes, name) for name in (OURS, peer)})


def slope(options: Options, *, mode: str, dtype: str) -> Work:
    """The slope of peak memory over the number of tokens, both as logarithms."""
    work = Work({})

    def ours() -> float:
        for N in LENGTHS:
            command = [sys.executable, "-c", CHILD, str(N), mode, dtype]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            work.facts[f"MB at N = {N}"] = int(ended.stdout) / 1e6
        x = [math.log(N) for N in LENGTHS]
        y = [math.log(work.facts[f"MB at N = {N}"]) for N in LENGTHS]
        center, middle = sum(x) / len(x), sum(y) / len(y)
        covariance = sum((a - center) * (b - middle) for a, b in zip(x, y, strict=True))
        return covariance / sum((a - center) ** 2 for a in x)

    work.calls = {OURS: ours}
    return work


BESIDE = (
    ("vit_b16_batch16", "timm", "inference of ViT-B/16, 16 images"),
    ("bert_texts", "transformers", "inference of BERT-base, 64 texts of different lengths"),
    ("train_vit_s16", "timm", "training of ViT-S/16, 32 images"),
    ("train_bert", "transformers", "training of BERT, 64 texts of different lengths"),
    ("train_lora", "peft", "LoRA of GPT-2, width 512, depth 6"),
)
ROWS = (
    *(
        Row(
            f"memory_{row}",
            f"peak memory beside the weights, {title}",
            "memory",
            partial(beside, row=row, peer=peer),
            unit="MB",
            rounds=1,
            package=peer,
        )
        for row, peer, title in BESIDE
    ),
    *(
        Row(
            f"attention_{mode}_{name}",
            f"slope of the peak memory in {mode}, {name}, 1,024 to 16,384 tokens",
            "memory",
            partial(slope, mode=mode, dtype=dtype),
            (Goal(at_most=1.1),),
            unit="",
            rounds=1,
        )
        for mode in ("inference", "training")
        for name, dtype in (("float32", "float32"), ("bf16", "bfloat16"))
    ),
)
