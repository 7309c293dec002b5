"""The module that is traced, from prepared inputs to the outputs of the task, and its tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.export.examples import PRESENT, Example, Tensors
from dxn.models.backbone import Backbone
from dxn.models.model import Ensemble, MultimodalModel, Network
from dxn.stacking.features import NOT_IN_GRAPHS, Features, input_features
from dxn.stacking.stacked import Stacked, stacks_of
from dxn.tasks import Task
from dxn.tokenize.base import VALUES

EMBEDDING = "embeddings"
BATCH = "batch"  # name of the size of a batch
MAX_REASON = 300  # characters; an error of torch.export lists every size


@dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Args:
        name: Name, such as "text.ids": that of the input and of the tensor of its tokenizer.
        dtype: Data type.
        shape: Size of each axis. A text is the name of a size that can vary.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def dynamic(self) -> dict[int, str]:
        """Return the names of the sizes that can vary, by axis."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}

    def about(self) -> dict[str, Any]:
        """Return the entry of preprocess.json."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": dtype, "shape": list(self.shape)}


class Graph(nn.Module):
    """A model whose inputs and outputs are plain tensors, and which keeps padding.

    Args:
        network: The model or ensemble, in evaluation mode.
        task: Its task.
        ports: All inputs that the model reads.
        used: Names of those that affect the outputs. They are the inputs of the graph.
        fixed: Values of inputs that are constant.
    """

    def __init__(
        self,
        network: Network,
        task: Task,
        ports: Sequence[Port],
        *,
        used: Sequence[str],
        fixed: Mapping[str, Sequence[int]],
    ):
        super().__init__()
        self.network = network
        self.task = task
        self.ports = list(ports)
        self.used = list(used)
        self.fixed = {name: list(values) for name, values in fixed.items()}

    @property
    def members(self) -> list[Network]:
        """The members of an ensemble, or the only model."""
        return list(self.network.members) if isinstance(self.network, Ensemble) else [self.network]

    def forward(self, inputs: Tensors) -> Tensors:
        """Compute the outputs of the task and the embedding (B, E) of each sample."""
        batch = self.batch(inputs)
        outputs: list[Any] = []
        embeddings: list[Tensor] = []
        for member in self.members:
            model = member.models[0]
            read = member.encode_once(batch) if isinstance(member, Stacked) else batch
            part = model.first_part(read)
            encoded, pooled = encode(model, part)
            output = model.head(encoded, pooled, part)
            if isinstance(member, Stacked):
                output = member.mixed(output, features_in_graph(member, read))
            outputs.append(output)
            embeddings.append(model.embedding(pooled).float())
        space = self.task.space
        results: Tensors = {}
        if space is not None:
            combined = space.mean(outputs) if len(outputs) > 1 else outputs[0]
            results = space.decode(combined, batch)
        return {**results, EMBEDDING: torch.cat(embeddings, -1)}

    def batch(self, inputs: Tensors) -> dict[str, Any]:
        """Return the batch of the model, in which every sample has every input."""
        sizes = self._sizes(inputs)
        first = inputs[self.used[0]]
        size = first.shape[0]
        rows = torch.arange(size, device=first.device)
        batch: dict[str, Any] = {"#size": size}
        for port in self.ports:
            name, _, key = port.name.rpartition(".")
            part = batch.setdefault(name, {"rows": rows})
            if port.name in self.used:
                part[key] = inputs[port.name]
                continue
            # Tensors that only explain a model, such as coordinates.
            shape = [sizes.get(size, 1) if isinstance(size, str) else size for size in port.shape]
            part[key] = torch.zeros(shape, dtype=port.dtype, device=first.device)
            if port.name in self.fixed:
                values = torch.tensor(self.fixed[port.name], device=first.device)
                part[key] = (part[key].reshape(shape[0], -1) + values).reshape(shape)
        return batch

    def _sizes(self, inputs: Tensors) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for port in self.ports:
            if port.name in self.used:
                for axis, name in port.dynamic().items():
                    sizes.setdefault(name, inputs[port.name].shape[axis])
        return sizes


def encode(model: MultimodalModel, batch: Mapping[str, Any]) -> tuple[Tokens, Any]:
    """Return the encoded tokens and the pooled vectors of a batch, see `MultimodalModel.encode`."""
    return model.encode([_without_absent(part, batch) for part in model.embed(batch)])


def features_in_graph(stack: Stacked, batch: Mapping[str, Any]) -> dict[str, Features]:
    """Return the features that a baseline reads, NaN for a sample that lacks an input."""
    baseline = stack.baseline
    if baseline is None:
        return {}
    result: dict[str, Features] = {}
    for name in baseline.inputs:
        present = batch[name].get(VALUES, batch[name]).get(PRESENT)
        of_input = input_features(stack.model, name, batch, encoded=baseline.encoded)
        for key, features in of_input.items():
            dense = features.dense
            if present is not None:
                dense = dense.masked_fill(~present[:, None], torch.nan)
            result[key] = replace(features, dense=dense)
    return result


def not_in_graph(network: Network) -> str:
    """Return the name of a baseline whose features cannot be computed in a graph. "": none."""
    for stack in stacks_of(network):
        baseline = stack.baseline
        if baseline is None:
            continue
        modalities = {stack.model.adapter(name).modality for name in baseline.inputs}
        if baseline.counted or modalities.intersection(NOT_IN_GRAPHS):
            return baseline.about
    return ""


def _without_absent(part: Tokens, batch: Mapping[str, Any]) -> Tokens:
    """Return the tokens of an input, with only padding for samples that lack it."""
    given = batch[part.spans[-1].name]
    present = given.get(VALUES, given).get(PRESENT)
    if present is None:
        return part
    return replace(part, mask=part.mask & present[:, None], num_real=None)


@contextmanager
def padded(network: nn.Module) -> Iterator[None]:
    """Keep padding in all backbones inside of the context: packing depends on the values."""
    with ExitStack() as stack:
        for module in network.modules():
            if isinstance(module, Backbone):
                stack.enter_context(module.unpacked())
        yield


@dataclass(frozen=True)
class ExportedGraph:
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
    tensors = [inputs for _, inputs in examples]
    ports = find_ports(tensors)
    fixed = constants(ports, tensors)
    names = [port.name for port in ports if port.name not in fixed]
    graph = Graph(network, task, ports, used=names, fixed=fixed).eval()
    with padded(network):
        from_autograd = connected(graph, tensors[0])
        with torch.no_grad():
            pairs = [(inputs, graph(inputs)) for inputs in tensors]
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
    network: nn.Module,
    reference: Callable[[int], Tensors] | None = None,
) -> ExportedGraph:
    """Trace a module that maps a dict of tensors to another one.

    Args:
        name: Name of the part.
        module: The module.
        cases: Inputs with different sizes. Sizes that are equal in all of them become constants.
        network: The model, whose padding is kept.
        reference: See `ExportedGraph`. Default: the module computes as the model does.

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
    reference = reference or (lambda number: module(dict(cases[number])))
    return ExportedGraph(name, program, inputs, outputs, cases, reference)


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
    shared = [name for (_, other), name in names.items() if other == sizes] if not owner else []
    name = names.get(("", sizes)) or names.get((owner, sizes)) or next(iter(shared), None)
    if name is None:
        count = sum(other == owner for other, _ in names)
        name = names[owner, sizes] = f"{owner}_{count + 1}" if owner else f"length_{count}"
    return name


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
