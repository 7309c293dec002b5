"""What a family of public models is: how it is known, what parts it needs, and whose tensor becomes whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights.checkpoint import Checkpoint

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Take:
    """How one of our tensors is made of theirs, and, where that can be undone, theirs of ours."""

    names: tuple[str, ...]
    make: Callable[..., Tensor]
    undo: Callable[[Tensor], Sequence[Tensor]] | None = None


Table = dict[str, Take]


@dataclass(frozen=True)
class Parts:
    """Arguments of our parts that a checkpoint decides, and the names of its classes where it has a head.

    kind: of the target that its head answers to.
    """

    dim: int
    adapters: dict[str, Arguments]
    backbone: Arguments
    fusion: Arguments = field(default_factory=dict)
    head: Arguments = field(default_factory=dict)
    labels: list[str] | None = None
    kind: str = "class"


@dataclass(frozen=True)
class Family:
    """One file of this folder.

    knows: whether a checkpoint is of this family. parts: what to build for it. table: our tensors, each with what
    it is made of. ignored: regular expressions of tensors that we have no use for. no_bias: ends of the names of
    biases that may be missing, which are then zero. antialias: whether the peer smooths places before it makes their
    grid smaller. back: their tensors that the table cannot give back by itself. own: whether dxn itself trained it.
    """

    name: str
    knows: Callable[[Checkpoint], bool]
    parts: Callable[[Checkpoint], Parts]
    table: Callable[[Checkpoint, Parts], Table]
    ignored: tuple[str, ...] = ()
    no_bias: tuple[str, ...] = ()
    antialias: bool = True
    back: Callable[[Mapping[str, Tensor], Checkpoint, Parts], dict[str, Tensor]] | None = None
    own: bool = False


def same(name: str) -> Take:
    """The very tensor."""
    return Take((name,), lambda t: t, lambda t: (t,))


def flat(name: str) -> Take:
    """A vector, whatever leading dimensions of one it has there."""
    return Take((name,), lambda t: t.flatten())


def rows(*names: str) -> Take:
    """Several stacked: queries, keys and values in one."""
    return Take(names, lambda *ts: torch.cat(ts), lambda t: t.chunk(len(names)))


def turned(name: str) -> Take:
    """A matrix kept as (inputs, outputs)."""
    return Take((name,), lambda t: t.T, lambda t: (t.T,))


def swapped(name: str) -> Take:
    """The halves of a gated layer: ours are (value, gate), theirs (gate, value)."""
    return Take((name,), _swap, lambda t: (_swap(t),))


def patches(name: str, *, channels: int, height: int, width: int) -> Take:
    """A strided convolution's kernel (D, C, P, Q) as the matrix of flattened patches."""
    shape = {"c": channels, "p": height, "q": width}
    return Take(
        (name,),
        lambda t: rearrange(t, "d c p q -> d (c p q)"),
        lambda t: (rearrange(t, "d (c p q) -> d c p q", **shape),),
    )


def both(table: Mapping[str, str | tuple[str, ...]], *, bias: bool = True) -> Table:
    """Weight and bias of layers: ours by theirs, or by several of theirs stacked."""
    found: Table = {}
    for ours, theirs in table.items():
        names = (theirs,) if isinstance(theirs, str) else theirs
        for kind in ("weight", "bias") if bias else ("weight",):
            found[f"{ours}.{kind}"] = rows(*(f"{name}.{kind}" for name in names))
    return found


def layers(table: Mapping[str, str | tuple[str, ...]], *, ours: str, theirs: str, depth: int) -> Table:
    """`both` for each of depth blocks; {i} in the prefixes is its number."""
    found: Table = {}
    for i in range(depth):
        a, b = ours.format(i=i), theirs.format(i=i)
        one = {
            f"{a}.{mine}": f"{b}.{other}" if isinstance(other, str) else tuple(f"{b}.{name}" for name in other)
            for mine, other in table.items()
        }
        found |= both(one)
    return found


def _swap(t: Tensor) -> Tensor:
    first, second = t.chunk(2)
    return torch.cat([second, first])
