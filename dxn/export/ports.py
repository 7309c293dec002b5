"""The inputs of an exported graph: their names, types and sizes, found from random examples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.tokenize.adapter import Preprocessor
from dxn.tokenize.examples import examples
from dxn.tokens import Summary

BATCH = "batch"
PRESENT = "present"  # key of the tensor that tells which samples have an input
COUNTED = "counted"  # key of the counted features of a baseline, followed by their number
NONE = -1  # code that pads counted features
# Sizes of the example batches. Different ones, because equal sizes become constants of the graph.
SIZES = (5, 3, 7, 4, 6, 2)

# Collated tensors by the name of a port, such as "text.ids".
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Args:
        name: Name, such as "text.ids": that of the input and of the tensor of its preprocessor.
        dtype: Data type, such as "int64".
        shape: Size of each axis. A text is the name of a size that can vary.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def dynamic(self) -> dict[int, str]:
        """Return the names of the sizes that can vary, by axis."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}


@dataclass(frozen=True)
class Example:
    """Random samples in both forms.

    Args:
        batch: Batch of the model, in which a sample without an input is left out of that input.
        tensors: Inputs of the graph, in which every sample has a row.
    """

    batch: dict[str, Any]
    tensors: Tensors


def make_examples(model: Any, seed: int, sizes: Sequence[int] = SIZES) -> list[Example]:
    """Return batches of random samples for a model.

    Args:
        model: The model.
        seed: Random seed.
        sizes: Number of samples of each batch.

    Raises:
        UserError: If a preprocessor cannot create random values.
    """
    rand = random.Random(seed)
    return [_example(model, size, rand) for size in sizes]


def find_ports(all_tensors: Sequence[Tensors]) -> list[Port]:
    """Return the ports of several batches. Sizes that differ between the batches can vary."""
    names = _size_names(all_tensors)
    ports: list[Port] = []
    for name, first in all_tensors[0].items():
        shape: list[int | str] = []
        for axis in range(first.ndim):
            sizes = _sizes(all_tensors, name, axis)
            shape.append(names[sizes] if len(set(sizes)) > 1 else sizes[0])
        ports.append(Port(name, str(first.dtype).removeprefix("torch."), tuple(shape)))
    return ports


def constants(ports: Sequence[Port], all_tensors: Sequence[Tensors]) -> dict[str, list[int]]:
    """Return the values of tensors that contain only the fixed sizes of their own input.

    Such as the height and width of pictures that are all resized to the same size.
    """
    result: dict[str, list[int]] = {}
    for port in ports:
        first = all_tensors[0][port.name]
        if first.dtype != torch.int64 or port.dynamic() != {0: BATCH} or first.ndim not in (1, 2):
            continue
        rows = torch.cat(
            [tensors[port.name].reshape(len(tensors[port.name]), -1) for tensors in all_tensors]
        )
        owner = port.name.rpartition(".")[0]
        fixed = {s for p in ports if p.name.rpartition(".")[0] == owner for s in p.shape[1:]}
        values = rows[0].tolist()
        if bool((rows == rows[0]).all()) and set(values) <= fixed:
            result[port.name] = values
    return result


def _example(model: Any, size: int, rand: random.Random) -> Example:
    batch: dict[str, Any] = {"#size": size, "#index": list(range(size))}
    tensors: Tensors = {}
    names = list(model.inputs)
    rows = _rows(names, size, rand)
    for name in names:
        adapter = model.adapter(name)
        prepare: Preprocessor = adapter.prepare
        raws = examples(name, prepare, len(rows[name]), rand)
        collated = prepare.collate([prepare(raw) for raw in raws])
        index = torch.tensor(rows[name])
        batch[name] = {**collated, "rows": index}
        if model.baseline is not None:
            collated |= counted_features(adapter.summary(collated), len(raws))
        # A sample without the input has the values of another one, which the graph must ignore.
        source = torch.zeros(size, dtype=torch.long).index_copy(0, index, torch.arange(len(index)))
        for key, value in collated.items():
            tensors[f"{name}.{key}"] = value[source]
        if len(names) > 1:
            present = torch.zeros(size, dtype=torch.bool).index_fill(0, index, True)
            tensors[f"{name}.{PRESENT}"] = present
    return Example(batch, tensors)


def _rows(names: Sequence[str], size: int, rand: random.Random) -> dict[str, list[int]]:
    """Return the samples that have each input. Every sample has one, and every input a sample."""
    rows: dict[str, list[int]] = {name: [] for name in names}
    for sample in range(size):
        has = [name for name in names if rand.random() < 0.7] or [rand.choice(names)]
        for name in names if sample == 0 else has:
            rows[name].append(sample)
    return rows


def counted_features(summary: Summary | None, size: int) -> dict[str, Tensor]:
    """Return the counted features of a summary by key: padded codes and numbers (size, n, 2)."""
    blocks = () if summary is None else summary.counted
    result: dict[str, Tensor] = {}
    for number, block in enumerate(blocks):
        # Sorted by row.
        (rows, codes), occurrences = block.unique(dim=1, return_counts=True)
        counts = torch.bincount(rows, minlength=size)
        padded = torch.full((size, max(int(counts.max()), 1), 2), NONE)
        padded[torch.arange(padded.shape[1]) < counts[:, None]] = torch.stack(
            [codes, occurrences], 1
        )
        result[f"{COUNTED}{number}"] = padded
    return result


def _size_names(all_tensors: Sequence[Tensors]) -> dict[tuple[int, ...], str]:
    """Return a name for each size that varies. Axes with equal sizes in all batches share one."""
    names: dict[tuple[int, ...], str] = {}
    counts: dict[str, int] = {}
    for name, first in all_tensors[0].items():
        owner = name.rpartition(".")[0] or "length"
        for axis in range(first.ndim):
            sizes = _sizes(all_tensors, name, axis)
            if len(set(sizes)) > 1 and sizes not in names:
                # The first size that varies is that of the batch.
                counts[owner] = counts.get(owner, -1 if not names else 0) + 1
                names[sizes] = f"{owner}_{counts[owner]}" if names else BATCH
    return names


def _sizes(all_tensors: Sequence[Tensors], name: str, axis: int) -> tuple[int, ...]:
    return tuple(tensors[name].shape[axis] for tensors in all_tensors)
