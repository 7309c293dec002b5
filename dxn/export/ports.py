"""The inputs of an exported graph: their names, types and sizes, found from random examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.export.examples import examples
from dxn.stacking.features import Features, features_of
from dxn.tokenize.base import Tokenizer

BATCH = "batch"
PRESENT = "present"  # key of the tensor that tells which samples have an input
COUNTED = "counted"  # key of counted features, followed by their number
NONE = -1  # code that pads counted features
# Sizes of the example batches. Different ones, because equal sizes become constants of the graph.
SIZES = (5, 3, 7, 4, 6, 2)

# Samples that show which sizes of an input can vary, and attempts to draw a batch in which they do.
DRAWS = 24
MAX_DRAWS = 200

# Collated tensors by the name of a port, such as "text.ids".
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Args:
        name: Name, such as "text.ids": that of the input and of the tensor of its tokenizer.
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


def make_examples(
    model: Any, seed: int, sizes: Sequence[int] = SIZES, *, counted: Collection[str] = ()
) -> list[Example]:
    """Return batches of random samples for a model.

    Args:
        model: The model.
        seed: Random seed.
        sizes: Number of samples of each batch.
        counted: Names of the inputs whose counted features a baseline reads.

    Raises:
        UserError: If a preprocessor cannot create random values.
    """
    rand = random.Random(seed)
    names = list(model.inputs)
    rows = [_rows(names, size, rand) for size in sizes]
    inputs = {
        name: _varied(
            _drawing(model, name, rand, name in counted), [len(each[name]) for each in rows]
        )
        for name in names
    }
    return [
        _example(size, rows[i], {name: batches[i] for name, batches in inputs.items()})
        for i, size in enumerate(sizes)
    ]


def find_ports(all_tensors: Sequence[Tensors]) -> list[Port]:
    """Return the ports of several batches. Sizes that differ between the batches can vary."""
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    ports: list[Port] = []
    for name, first in all_tensors[0].items():
        owner = name.rpartition(".")[0]
        shape: list[int | str] = []
        for axis in range(first.ndim):
            sizes = tuple(tensors[name].shape[axis] for tensors in all_tensors)
            varies = len(set(sizes)) > 1
            shape.append(_size_name(names, owner, sizes) if varies else sizes[0])
        ports.append(Port(name, str(first.dtype).removeprefix("torch."), tuple(shape)))
    return ports


def _size_name(
    names: dict[tuple[str, tuple[int, ...]], str], owner: str, sizes: tuple[int, ...]
) -> str:
    """Return the name of a size that varies, and add it to the names of all of them.

    Axes of the same input with equal sizes in all batches share a name, but not those of different
    inputs, whose sizes are equal by chance. An output can share a name with any input.
    """
    if not names:  # the first size that varies is that of the batch
        names["", sizes] = BATCH
    shared = [name for (_, each), name in names.items() if each == sizes] if not owner else []
    found = names.get(("", sizes)) or names.get((owner, sizes)) or next(iter(shared), None)
    if found is None:
        count = sum(each == owner for each, _ in names)
        found = names[owner, sizes] = f"{owner}_{count + 1}" if owner else f"length_{count}"
    return found


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


@dataclass(frozen=True)
class _Drawn:
    """Random samples of one input.

    Args:
        collated: The batch of the model.
        features: Further inputs of the graph: counted features.
    """

    collated: dict[str, Any]
    features: Tensors

    @property
    def tensors(self) -> Tensors:
        """The inputs of the graph, without the texts, which are counted before."""
        kept = {key: value for key, value in self.collated.items() if isinstance(value, Tensor)}
        return {**kept, **self.features}

    def sizes(self) -> dict[tuple[str, int], int]:
        """Return the size of each axis but that of the samples."""
        tensors = self.tensors
        return {
            (k, axis): tensors[k].shape[axis] for k in tensors for axis in range(1, tensors[k].ndim)
        }


def _drawing(
    model: Any, name: str, rand: random.Random, is_counted: bool
) -> Callable[[int], _Drawn]:
    """Return the function that draws a number of random samples of an input."""
    adapter = model.adapter(name)
    tokenizer: Tokenizer = adapter.tokenizer

    def draw(count: int) -> _Drawn:
        raws = examples(name, tokenizer, count, rand)
        collated = tokenizer.collate([tokenizer(raw) for raw in raws])
        if not is_counted:
            return _Drawn(collated, {})
        return _Drawn(collated, counted_features(features_of(adapter, collated), count))

    return draw


def _varied(draw: Callable[[int], _Drawn], counts: Sequence[int]) -> list[_Drawn]:
    """Draw batches in which every size that can vary does.

    Otherwise, sizes that are equal by chance would become constants of the graph. In the first
    batch, with which the graph is traced, these sizes are above 1: torch.export takes 0 and 1 for
    constants.
    """
    singles = [draw(1).sizes() for _ in range(DRAWS)]
    free = [key for key, size in singles[0].items() if any(s[key] != size for s in singles)]

    def draw_until(count: int, is_good: Callable[[dict[tuple[str, int], int]], bool]) -> _Drawn:
        drawn = draw(count)
        for _ in range(MAX_DRAWS):
            if is_good(drawn.sizes()):
                break
            drawn = draw(count)
        return drawn

    first = draw_until(counts[0], lambda sizes: all(sizes[key] > 1 for key in free))
    traced = first.sizes()
    others = [
        draw_until(count, lambda sizes: all(sizes[key] != traced[key] for key in free))
        for count in counts[1:2]
    ]
    return [first, *others, *(draw(count) for count in counts[2:])]


def _example(size: int, rows: Mapping[str, list[int]], inputs: Mapping[str, _Drawn]) -> Example:
    """Return samples from the values of each input and the samples that have it."""
    batch: dict[str, Any] = {"#size": size, "#index": list(range(size))}
    tensors: Tensors = {}
    for name, drawn in inputs.items():
        index = torch.tensor(rows[name])
        batch[name] = {**drawn.collated, "rows": index}
        # A sample without the input has the values of another one, which the graph must ignore.
        source = torch.zeros(size, dtype=torch.long).index_copy(0, index, torch.arange(len(index)))
        for key, value in drawn.tensors.items():
            tensors[f"{name}.{key}"] = value[source]
        if len(inputs) > 1:
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


def counted_features(summary: Features | None, size: int) -> dict[str, Tensor]:
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
