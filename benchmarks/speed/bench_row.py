"""A row of bench.py: what it measures, and what it must reach.

A new row needs three things in one of the modules bench_*.py:

1. A function `build(options) -> Work`, which prepares the same work for dxn and its peers, checks
   with `check_equal` that both compute the same, and returns their calls.
2. A `Row` with its name, title, goals and this function.
3. The row in the tuple ROWS of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

# Takes part in a measurement. A call that returns a number measured itself; otherwise the seconds
# of the call are its value.
Call = Callable[[], float | None]
Kind = Literal["inference", "generation", "training", "input", "memory", "run", "path"]

OURS = "dxn"  # key of our call


@dataclass(frozen=True)
class Goal:
    """What a row must reach. One of at_least and at_most is set.

    Args:
        at_least: Minimum speed relative to the peer: its time divided by that of dxn.
        at_most: Maximum value of dxn divided by that of the peer, or the value itself if the row
            has no peer.
        peer: Key of the peer. Default: the fastest one.
    """

    at_least: float | None = None
    at_most: float | None = None
    peer: str | None = None


@dataclass(frozen=True)
class Options:
    """Options of a measurement.

    Args:
        folder: Empty folder for files, which is deleted afterwards.
        device: Device of the models.
        dtype: Data type of matrix products, on both sides: bf16 only where it is faster.
        data: Folder of public data sets, one folder per set.
        tiny: Use small models and batches, to see that a row works. The times mean nothing.
    """

    folder: Path
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    dtype: torch.dtype = torch.float32
    data: Path | None = None
    tiny: bool = False


@dataclass
class Work:
    """The prepared work of a row.

    Args:
        calls: The call of dxn, with the key "dxn", and those of the peers.
        flop: Useful floating-point operations of a call, without those for padding. None: the row
            is not compared with the limit.
        facts: Further metrics. Calls can add to them while they are measured.
    """

    calls: Mapping[str, Call]
    flop: float | None = None
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: Name for --only.
        title: Description of the work in the table.
        kind: Group of the row. It determines the goal relative to the limit.
        build: Prepares the work. It raises `Unequal` if the outputs differ.
        goals: What the row must reach.
        unit: Unit of the values: "s", "MB", or "" for a plain number.
        rounds: Maximum number of rounds. Default: those of the command line.
        data: Name of the data set in `Options.data` that the row needs.
        gpu: The batch fills a GPU, and would take minutes on a CPU, or the work needs a GPU.
        package: Python package of the peer, if it is no dependency of the tests.
    """

    name: str
    title: str
    kind: Kind
    build: Callable[[Options], Work]
    goals: tuple[Goal, ...] = ()
    unit: str = "s"
    rounds: int | None = None
    data: str | None = None
    gpu: bool = False
    package: str | None = None


class Unequal(Exception):
    """dxn and a peer compute different outputs, so their times cannot be compared."""


def check_equal(ours: Tensor, peer: Tensor, *, tolerance: float, name: str = "outputs") -> float:
    """Check that two outputs are equal, and return their largest difference.

    Args:
        ours: Output of dxn.
        peer: Output of the peer, of the same shape.
        tolerance: Maximum difference, relative to the largest absolute value of the peer.
        name: What is compared, for the message.
    """
    if ours.shape != peer.shape:
        raise Unequal(f"{name}: shapes {tuple(ours.shape)} and {tuple(peer.shape)} differ")
    gap = float((ours.double() - peer.double()).abs().max())
    scale = max(float(peer.double().abs().max()), 1e-9)
    if not gap <= tolerance * scale:  # also if the gap is NaN
        raise Unequal(f"{name}: the largest difference is {gap:.2e}, of values up to {scale:.2e}")
    return gap


def transformer_flop(
    lengths: Sequence[int], *, dim: int, depth: int, mlp_ratio: float = 4
) -> float:
    """Return the floating-point operations of the blocks of a transformer for these sequences.

    Args:
        lengths: Number of tokens of each sequence, without padding.
        dim: Width D of a token.
        depth: Number of blocks.
        mlp_ratio: Width of the hidden layer of the MLP divided by D.
    """
    total = 0.0
    for N in lengths:
        # qkv and projection: 4 D² products per token; MLP: 2 · mlp_ratio · D²; scores and
        # values: N D each. A product counts as two operations, the multiplication and the addition.
        total += 2 * N * (4 + 2 * mlp_ratio) * dim**2 + 2 * 2 * N**2 * dim
    return depth * total
