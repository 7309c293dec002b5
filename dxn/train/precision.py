"""bf16 where the hardware multiplies it faster: measured, not guessed."""

import statistics
import time
from typing import Literal

import torch

Precision = Literal["auto", "float32", "bf16"]
WORTH = 1.5  # bf16 must be this much faster on the products alone to pay for its conversions


def measure(device: torch.device, *, repeats: int = 7) -> float:
    """How many times faster a (1024, 256) x (256, 1024) product is in bf16 than in float32."""
    ratios = []
    a, b = torch.randn(1024, 256, device=device), torch.randn(256, 1024, device=device)
    ah, bh = a.bfloat16(), b.bfloat16()
    for _ in range(repeats + 1):
        ratios.append(_seconds(a, b) / _seconds(ah, bh))
    return statistics.median(ratios[1:])  # the first is warming up


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(4):
        torch.mm(a, b)
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - start


def choose(precision: Precision, device: torch.device) -> tuple[bool, str]:
    """Whether to use bf16, and the sentence that says why."""
    if precision != "auto":
        return precision == "bf16", f"{precision} as asked"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return False, "float32: this GPU has no bf16"
    ratio = measure(device)
    name = "bf16" if ratio >= WORTH else "float32"
    return ratio >= WORTH, f"{name}: bf16 products measured {ratio:.1f} times as fast as float32 here"
