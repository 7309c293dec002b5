"""The module that is traced: from prepared inputs to the outputs of the task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.export.examples import PRESENT, Tensors
from dxn.models.backbone import Backbone
from dxn.models.model import Ensemble, MultimodalModel, Network
from dxn.stacking.features import NOT_IN_GRAPHS, Features, features_of
from dxn.stacking.stacked import Stacked, stacks_of
from dxn.tasks import Task

EMBEDDING = "embeddings"


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
            part = model.first_part(batch)
            encoded, pooled = encode(model, part)
            output = model.head(encoded, pooled, part)
            if isinstance(member, Stacked):
                output = member.mixed(output, features_in_graph(member, batch))
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
        part = batch[name]
        present = part.get(PRESENT)
        features = features_of(stack.model.adapter(name), part)
        assert features is not None  # the baseline was trained with them
        if present is not None:
            dense = features.dense.masked_fill(~present[:, None], torch.nan)
            features = replace(features, dense=dense)
        result[name] = features
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
    present = batch[part.spans[-1].name].get(PRESENT)
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
