"""Tracing: a module with named tensors as inputs and outputs becomes a graph of torch.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.export.examples import Example, Tensors
from dxn.export.graph import EMBEDDING, Graph, Port, padded

BATCH = "batch"  # name of the size of a batch
MAX_REASON = 300  # characters; an error of torch.export lists every size


@dataclass(frozen=True)
class Part:
    """One graph of an exported model.

    Args:
        name: Name of its file without the suffix, such as "model" or "decoder".
        program: The graph.
        inputs: Its inputs.
        outputs: Its outputs.
        cases: Inputs to check the graph with.
        reference: Function that computes the outputs of one of the cases without the graph.
    """

    name: str
    program: torch.export.ExportedProgram
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    cases: Sequence[Tensors]
    reference: Callable[[int], Tensors]


def make_graph(network: Any, task: Any, examples: Sequence[Example]) -> Graph:
    """Return a graph module whose inputs are the tensors that affect its outputs."""
    tensors = [each for _, each in examples]
    ports = find_ports(tensors)
    fixed = constants(ports, tensors)
    names = [port.name for port in ports if port.name not in fixed]
    graph = Graph(network, task, ports, used=names, fixed=fixed).eval()
    with padded(network):
        from_autograd = connected(graph, tensors[0])
        with torch.no_grad():
            pairs = [(each, graph(each)) for each in tensors]
            used = [
                name
                for name in names
                if name in from_autograd or any(_has_effect(graph, name, *pair) for pair in pairs)
            ]
    return Graph(network, task, ports, used=used, fixed=fixed).eval()


def trace(
    name: str,
    module: nn.Module,
    cases: Sequence[Tensors],
    *,
    reference: Callable[[int], Tensors],
    network: nn.Module,
) -> Part:
    """Trace a module that maps a dict of tensors to another one.

    Args:
        name: Name of the part.
        module: The module.
        cases: Inputs with different sizes. Sizes that are equal in all of them become constants.
        reference: See `Part`.
        network: The model, whose padding is kept.

    Raises:
        UserError: If it cannot be traced, such as code of a user with branches that depend on
            values.
    """
    # torch.export expects the names of a dict in the order of the tracing: here in that of the
    # alphabet, so that its users can sort them.
    cases = [dict(sorted(case.items())) for case in cases]
    inputs = find_ports(cases)
    shapes = {port.name: dict.fromkeys(port.dynamic(), torch.export.Dim.DYNAMIC) for port in inputs}
    try:
        with padded(network), torch.no_grad():
            results = [module(dict(case)) for case in cases]
            # A case with sizes above 1, which torch.export would make constants.
            program = torch.export.export(
                module, (dict(cases[0]),), dynamic_shapes=(shapes,), strict=False
            )
    except Exception as error:  # code of a user can raise any exception
        reason = shorten(str(error), MAX_REASON)
        raise UserError(
            f"export: the {name} cannot be traced by torch.export "
            f"({type(error).__name__}: {reason})"
        ) from error
    both = [{**case, **result} for case, result in zip(cases, results, strict=True)]
    outputs = [port for port in find_ports(both) if port.name in results[0]]
    return Part(name, program, inputs, outputs, cases, reference)


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
        ports.append(Port(name, first.dtype, tuple(shape)))
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


def connected(graph: Graph, tensors: Tensors) -> set[str]:
    """Return the names of inputs that the outputs are computed from, as far as autograd knows.

    The random values of an example can have no effect although others have one: a kernel of the
    baseline is 0 for values that are far from those of the training.
    """
    leaves = {
        name: tensors[name].clone().requires_grad_()
        for name in graph.used
        if tensors[name].is_floating_point()
    }
    # Clones, because the model can change its inputs.
    copies = {name: leaf.clone() for name, leaf in leaves.items()}
    outputs = graph({**tensors, **copies}).values()
    total = sum(output.sum() for output in outputs if output.requires_grad)
    if not leaves or not isinstance(total, torch.Tensor):
        return set()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return {name for name, gradient in pairs if gradient is not None}


def _has_effect(graph: Graph, name: str, tensors: Tensors, outputs: Tensors) -> bool:
    """Return whether the outputs of these tensors change if one of them changes."""
    value = tensors[name]
    other = ~value if value.dtype == torch.bool else value.roll(1, 0)
    try:
        after = graph({**tensors, name: other})
    except (ValueError, RuntimeError, IndexError):  # the values do not match those of other tensors
        return True
    return any(not torch.equal(outputs[key], after[key]) for key in outputs)


def reference_of(network: Any, task: Any, examples: Sequence[Example]) -> Callable[[int], Tensors]:
    """Return the function that computes the outputs of examples as `dxn predict` does."""

    def compute(number: int) -> dict[str, Tensor]:
        batch, _ = examples[number]
        output = network(batch)
        outputs = {} if task.space is None else task.space.decode(output, batch)
        return {**outputs, EMBEDDING: network.vectors(batch).float()}

    return compute
