"""Tracing: a module with named tensors as inputs and outputs becomes a graph of torch.export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.export.graph import EMBEDDING, Graph, padded
from dxn.export.ports import Example, Port, Tensors, constants, find_ports

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
    tensors = [example.tensors for example in examples]
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
        batch: Mapping[str, Any] = examples[number].batch
        output = network(batch)
        outputs = {} if task.space is None else task.space.decode(output, batch)
        return {**outputs, EMBEDDING: network.vectors(batch).float()}

    return compute
