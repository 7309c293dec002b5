"""The measurement of a row of bench.py: interleaved rounds, medians and the limit."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from bench_row import OURS, Call, Goal, Options, Row, Work

# A call that takes less is repeated, because the clock and the first call after a pause would
# distort its time.
MIN_SECONDS = 0.05
# A row whose rounds have taken so many seconds ends after at least so many rounds.
MAX_SECONDS, MIN_ROUNDS = 20.0, 3
# Calls before the measurement on a GPU: dxn and torch.compile record graphs in some of the first
# ones, and dxn compares their answers with those of the model in the next ones. Long calls do so
# once, so they need no more than the first number.
GPU_WARM_UPS = 3, 6
MAX_WARM_UP = 2.0  # seconds
# Side of the matrix product that measures the limit. On a GPU, a small one would not reach it.
MATRIX, GPU_MATRIX = 2048, 8192
# Fraction of the limit that useful operations must reach on a machine with AMX or AVX512-BF16.
LIMIT_GOALS = {"inference": 0.65, "training": 0.40}


@dataclass
class Result:
    """The measurement of a row.

    Args:
        name: Name of the row.
        title: Description of the work.
        kind: Group of the row.
        unit: Unit of the values.
        values: Median of dxn and of each peer.
        ratios: Median over the rounds of the value of each peer divided by that of dxn.
        limit: Rate of a matrix product in operations per second. None: not compared.
        fraction: Useful operations per second of dxn, divided by the limit.
        goals: Description of each goal, and whether it was reached.
        rounds: Number of rounds.
        load: Mean number of running processes of the machine in the last minute.
        facts: Further metrics of the row.
    """

    name: str
    title: str
    kind: str
    unit: str
    values: dict[str, float]
    ratios: dict[str, float]
    limit: float | None
    fraction: float | None
    goals: dict[str, bool]
    rounds: int
    load: float
    facts: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)


def measure(row: Row, options: Options, rounds: int) -> Result:
    """Build the work of a row, which checks that the outputs are equal, and measure it."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        options = replace(options, folder=Path(folder))
        work = row.build(options)
        rounds = min(rounds, row.rounds or rounds)
        values, rates = run_rounds(work, options, rounds)
    ours = values[OURS]
    rounds = len(ours)
    medians = {name: statistics.median(times) for name, times in values.items()}
    ratios = {
        name: statistics.median(peer / own for peer, own in zip(times, ours, strict=True))
        for name, times in values.items()
        if name != OURS
    }
    limit = statistics.median(rates) if rates else None
    fraction = None
    if work.flop is not None and rates:
        # Round by round, because the rate of a shared machine varies.
        fraction = statistics.median(
            work.flop / seconds / rate for seconds, rate in zip(ours, rates, strict=True)
        )
    # The goals are for CPUs.
    on_cpu = options.device.type == "cpu"
    chosen = row.goals if on_cpu else ()
    goals = dict(judge(goal, medians[OURS], ratios, row.unit) for goal in chosen)
    # In float32, no processor has the units for which these goals were chosen.
    if (
        on_cpu
        and fraction is not None
        and row.kind in LIMIT_GOALS
        and options.dtype == torch.bfloat16
    ):
        least = LIMIT_GOALS[row.kind]
        goals[f"at least {least:.2f} of the limit"] = fraction >= least
    return Result(
        row.name, row.title, row.kind, row.unit, medians, ratios, limit, fraction, goals, rounds,
        load, work.facts,
    )  # fmt: skip


def run_rounds(
    work: Work, options: Options, rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Call dxn and the peers in turn.

    Returns:
        The value of each call in each round, and the rate of a matrix product in each round.
    """
    device = options.device
    names = list(work.calls)
    repeats = {}
    for name in names:
        # The first call is a warm-up. A long one needs no second warm-up.
        first = value_of(work.calls[name], device, 1) if rounds > 1 else MIN_SECONDS
        if device.type != "cpu" and rounds > 1:
            first = _warmed_up(work.calls[name], device)
        elif first < 1 and rounds > 1:
            first = value_of(work.calls[name], device, 1)
        repeats[name] = max(math.ceil(MIN_SECONDS / max(first, 1e-6)), 1)
    product = make_product(options.dtype, device) if work.flop is not None else None
    values: dict[str, list[float]] = {name: [] for name in names}
    rates: list[float] = []
    start = time.perf_counter()
    for i in range(rounds):
        if i >= MIN_ROUNDS and time.perf_counter() - start > MAX_SECONDS:
            break
        # Another one begins in each round, so that none always follows the same one.
        for name in names[i % len(names) :] + names[: i % len(names)]:
            values[name].append(value_of(work.calls[name], device, repeats[name]))
        if product is not None:
            rates.append(2 * side(device) ** 3 / value_of(product, device, 2))
    return values, rates


def _warmed_up(call: Call, device: torch.device) -> float:
    """Repeat a call on a GPU, and return the seconds of the last call."""
    least, most = GPU_WARM_UPS
    start, number, last = time.perf_counter(), 0, 0.0
    while number < least or (number < most and time.perf_counter() - start < MAX_WARM_UP):
        last = value_of(call, device, 1)
        number += 1
    return last


def value_of(call: Call, device: torch.device, repeats: int) -> float:
    """Return the mean seconds of a call, or the number that it returns."""
    _synchronize(device)
    start = time.perf_counter()
    value = None
    for _ in range(repeats):
        value = call()
    _synchronize(device)
    return (time.perf_counter() - start) / repeats if value is None else value


def side(device: torch.device) -> int:
    """Return the number of rows and columns of the matrices whose product is the limit."""
    return MATRIX if device.type == "cpu" else GPU_MATRIX


def make_product(dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    """Return a call that multiplies two square matrices."""
    a, b = torch.randn(2, side(device), side(device)).to(device, dtype)
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, b, out=out)

    product()  # the first one loads its kernel
    return product


def judge(goal: Goal, ours: float, ratios: dict[str, float], unit: str) -> tuple[str, bool]:
    """Return the description of a goal, and whether it was reached."""
    peer = goal.peer or min(ratios, key=ratios.__getitem__, default=None)
    if goal.at_least is not None:
        if peer is None:
            return f"{goal.at_least:g} times a peer (none was measured)", False
        return f"{goal.at_least:g} times {peer}", ratios[peer] >= goal.at_least
    assert goal.at_most is not None
    if peer is None:
        return f"at most {goal.at_most:g}{f' {unit}' if unit else ''}", ours <= goal.at_most
    return f"at most {goal.at_most:g} of {peer}", 1 / ratios[peer] <= goal.at_most


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # a GPU computes asynchronously
