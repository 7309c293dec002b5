"""The choice between float32 and bf16, by measuring how fast this machine multiplies in each."""

import time
from typing import Literal

import torch
from torch import Tensor

from dxn.core.runtime import threads

Precision = Literal["auto", "float32", "bf16"]

# Minimum speedup of matrix products alone. A smaller one is lost again in the conversions between
# float32 and bf16 that autocast inserts.
MIN_SPEEDUP = 1.5
# Matrix products per timing. They take about a millisecond on one core, and on a GPU, both much
# longer than the resolution of the clock.
PRODUCTS = 4
# Sizes m, k and n of a product (m, k) x (k, n). On a GPU, starting a small one would take longer
# than computing it.
CPU_SIZES = 1024, 256, 1024
GPU_SIZES = 4096, 2048, 4096
# A product with so few rows and columns is measured first: without instructions for bf16, the large
# ones take half a minute. Below this speedup, they are not measured.
SMALL, SMALL_REPEATS = 128, 5
HOPELESS = 0.25
# Timings per precision. The minimum of 15 hardly changes when other processes load the machine.
REPEATS = 15


def choose(precision: Precision, device: torch.device) -> tuple[bool, str]:
    """Decide whether to use bf16.

    Args:
        precision: Configured precision. auto: measure both, and use bf16 if it is clearly faster.
        device: Device of the training.

    Returns:
        Whether to use bf16, and a note that says why.
    """
    if precision != "auto":
        return precision == "bf16", f"{precision}, as configured"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return False, "float32: this GPU does not support bf16"
    speedup = measure(device)
    bf16 = speedup >= MIN_SPEEDUP
    name = "bf16" if bf16 else "float32"
    note = f"{name}: bf16 matrix products measured {speedup:.2g} times as fast as float32"
    return bf16, note


def measure(device: torch.device, *, repeats: int = REPEATS) -> float:
    """Measure how many times faster a matrix product is in bf16 than in float32.

    Other processes must not change the result. They can only slow a product down, so the minimum
    over the repeats is the best estimate for an idle machine. A mean or a median would vary with
    the load. Both precisions alternate, so that a short load affects both. On a CPU, the products
    run on one thread, and its CPU time is measured, which excludes the time of other processes.

    Args:
        device: Device to measure.
        repeats: Number of timings per precision.

    Returns:
        Time in float32 divided by time in bf16.
    """
    # These draws do not affect a run: `dxn train` sets the seed after it has created the trainer.
    m, k, n = CPU_SIZES if device.type == "cpu" else GPU_SIZES
    a = torch.randn(m, k, device=device)
    b = torch.randn(k, n, device=device)
    with threads(1):
        ratio = _ratio(a[:SMALL], b[:, :SMALL].contiguous(), SMALL_REPEATS)
        return ratio if ratio < HOPELESS else _ratio(a, b, repeats)


def _ratio(a: Tensor, b: Tensor, repeats: int) -> float:
    """Return the smallest time of products in float32, divided by the smallest one in bf16."""
    a_bf16, b_bf16 = a.bfloat16(), b.bfloat16()
    # The first product of each precision also loads its kernel, so it is not timed.
    _seconds(a, b)
    _seconds(a_bf16, b_bf16)
    float32_times: list[float] = []
    bf16_times: list[float] = []
    for _ in range(repeats):
        float32_times.append(_seconds(a, b))
        bf16_times.append(_seconds(a_bf16, b_bf16))
    return min(float32_times) / min(bf16_times)


def _seconds(a: Tensor, b: Tensor) -> float:
    """Return the duration of `PRODUCTS` matrix products."""
    on_cpu = a.device.type == "cpu"
    clock = time.thread_time if on_cpu else time.perf_counter
    start = clock()
    for _ in range(PRODUCTS):
        torch.mm(a, b)
    if not on_cpu:
        # A GPU computes asynchronously: torch.mm returns before the product is finished.
        torch.accelerator.synchronize(a.device)
    return clock() - start
