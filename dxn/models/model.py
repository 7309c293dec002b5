"""The complete model: adapters, fusion, backbone and head; and several models as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dxn.core.dropout import selected
from dxn.core.tokens import RESERVED, Tokens, can_read, join
from dxn.core.windows import encode_input

# A batch has the collated tensors of each input under the name of the input, "#size" (number of
# samples), "#index" (their row numbers in the data set), and the keys of the task, such as
# "target". An input has the name of a column, which hardly ever starts with "#".
Batch = Mapping[str, Any]


class Network(nn.Module):
    """A model that predicts, or several whose outputs are combined: their base class."""

    @property
    def models(self) -> list[MultimodalModel]:
        """The models, of which the first one represents all where only one can be shown."""
        raise NotImplementedError

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the embedding (B, E) of each sample of a batch."""
        raise NotImplementedError


class MultimodalModel(Network):
    """A complete model, composed of adapters, a fusion, a backbone and a head.

    Args:
        adapters: Adapters by key. An adapter converts an input to Tokens.
        inputs: Key of the adapter of each input, by the name of the input, in the order of the
            tokens. Several inputs can share one adapter.
        fusion: Module that applies the backbone to the Tokens of all inputs, and returns encoded
            Tokens and one vector (B, width) per sample.
        backbone: Transformer that processes all inputs.
        head: Module that computes the output of the task from the encoded Tokens, the vectors and
            the batch. It can have a module `pre`, which computes the embedding of a sample from its
            vector. With `separates_inputs = True`, each input is encoded alone, and the head
            receives `InputVectors` in place of the vectors. With a method `over_parts(batch,
            output_of)`, the output is that of this method, which calls `output_of` for parts of the
            batch, such as windows of a long text. With a method `first_part(batch)`, the embedding
            of a batch is that of its first part.

    Raises:
        ValueError: If an input has no adapter, an adapter has no input, or a name is reserved.
    """

    # Names of the weights that come from a checkpoint.
    loaded: frozenset[str] = frozenset()
    # Any, because the types of the parts are those of the user.
    adapters: Any
    fusion: Any
    backbone: Any
    head: Any

    def __init__(
        self,
        adapters: Mapping[str, nn.Module],
        *,
        inputs: Mapping[str, str],
        fusion: nn.Module,
        backbone: nn.Module,
        head: nn.Module,
    ):
        super().__init__()
        if not inputs:
            raise ValueError("a model needs at least one input, got none")
        reserved = [name for name in inputs if name in RESERVED]
        if reserved:
            raise ValueError(
                f"an input must not be named {' or '.join(RESERVED)}, got {', '.join(reserved)}: "
                "rename it"
            )
        missing = sorted(set(inputs.values()) - set(adapters))
        if missing:
            names = ", ".join(adapters) or "none"
            raise ValueError(f"unknown adapter {', '.join(missing)}: the adapters are {names}")
        unused = [key for key in adapters if key not in inputs.values()]
        if unused:
            raise ValueError(f"no input uses the adapter {', '.join(unused)}: remove it")
        self.inputs = dict(inputs)
        self._keys = {name: module_key(key) for name, key in inputs.items()}
        self.adapters = nn.ModuleDict({module_key(key): adapters[key] for key in adapters})
        self.fusion = fusion
        self.backbone = backbone
        self.head = head
        # Whether each input is encoded alone, because the head compares inputs with each other.
        self.separates_inputs: bool = getattr(head, "separates_inputs", False)
        # Whether the head computes its output from several passes through the model.
        self.has_parts = hasattr(head, "over_parts")
        # Whether the model never receives a whole batch.
        self.has_first_part = hasattr(head, "first_part")

    @property
    def models(self) -> list[MultimodalModel]:
        """The model itself."""
        return [self]

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks of the backbone; none if it does not consist of blocks."""
        return getattr(self.backbone, "blocks", nn.ModuleList())

    def adapter(self, name: str) -> Any:
        """Return the adapter of the input `name`."""
        return self.adapters[self._keys[name]]

    def first_part(self, batch: Batch) -> Batch:
        """Return the part of a batch that is embedded at once: the first window, or all of it."""
        return self.head.first_part(batch) if self.has_first_part else batch

    def embed(self, batch: Batch) -> list[Tokens]:
        """Embed each input of a batch. Inputs that no sample has are omitted.

        Of a batch with windows, only the first one is embedded.

        Args:
            batch: Batch whose item `batch[name]` is the collated batch of the input `name`, with
                an additional key `rows` (b,), the indices of the samples that have this input.

        Returns:
            The Tokens of each input, in the order of the inputs.
        """
        batch = self.first_part(batch)
        parts: list[Tokens] = []
        for number, name in enumerate(self.inputs):
            if name in batch:
                rows = batch[name]["rows"]
                with selected(rows, number):
                    tokens: Tokens = self.adapter(name)(batch[name])
                parts.append(tokens.spread(rows, batch["#size"]).renamed(name))
        return parts

    def encode(self, parts: Sequence[Tokens]) -> tuple[Tokens, Any]:
        """Return the encoded Tokens of all parts, and one vector per sample (B, width).

        If the head separates the inputs, the vectors are `InputVectors`.
        """
        if self.separates_inputs:
            return encode_alone(self, parts)
        if len(self.inputs) == 1:
            adapter = self.adapter(next(iter(self.inputs)))
            return encode_input(parts[0], adapter, self.fusion, self.backbone)
        return self.fusion(parts, self.backbone)

    def forward(self, batch: Batch, mixing: tuple[Tensor, float] | None = None) -> Any:
        """Compute the output of the head for a batch.

        Args:
            batch: See `embed`.
            mixing: Arguments `order` and `share` of `mix`. Default: no mixup.
        """
        output_of = partial(self._output, mixing=mixing)
        return self.head.over_parts(batch, output_of) if self.has_parts else output_of(batch)

    def _output(self, batch: Batch, mixing: tuple[Tensor, float] | None) -> Any:
        parts = self.embed(batch)
        if mixing is not None:
            parts = [mix(part, *mixing) for part in parts]
        return self.head(*self.encode(parts), batch)

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the embedding (B, E) of each sample of a batch."""
        _, pooled = self.encode(self.embed(batch))
        return self.embedding(pooled)

    def embedding(self, pooled: Any) -> Tensor:
        """Compute the embedding of each sample from the vectors that `encode` returns."""
        return getattr(self.head, "pre", nn.Identity())(pooled)


class Ensemble(Network):
    """Models whose outputs are combined (deep ensembles, arXiv:1612.01474).

    Args:
        members: The models, with the same inputs and the same task.
        combine: Function that combines the output of each member, such as `Task.combine`.
    """

    def __init__(self, members: Sequence[Network], combine: Callable[[Sequence[Any]], Any]):
        super().__init__()
        # Any, because a ModuleList does not know the type of its modules.
        self.members: Any = nn.ModuleList(members)
        self.combine = combine

    @property
    def models(self) -> list[MultimodalModel]:
        """The models of all members."""
        return [model for member in self.members for model in member.models]

    def forward(self, batch: Batch) -> Any:
        """Return the combined outputs of the members for a batch."""
        # In float32, because members in bf16 would be averaged with three decimal places.
        outputs = [member(batch) for member in self.members]
        return self.combine([as_float(output) for output in outputs])

    def vectors(self, batch: Batch) -> Tensor:
        """Return the embeddings (B, E) of the members side by side.

        The members were trained independently, so a mean of their embeddings would have no meaning.
        """
        parts = [member.vectors(batch).float() for member in self.members]
        return torch.cat(parts, -1)


def split_tensors(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return the state dict of each member, from the state dict of an ensemble.

    Args:
        tensors: Tensors by name, such as "members.0.head.out.weight".
        count: Number of members.

    Raises:
        ValueError: If a tensor belongs to none of the members.
    """
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    prefixes = [f"members.{number}." for number in range(count)]
    for name, tensor in tensors.items():
        owners = [number for number, prefix in enumerate(prefixes) if name.startswith(prefix)]
        if not owners:
            raise ValueError(f"{name[:100]} belongs to none of the {count} members")
        parts[owners[0]][name.removeprefix(prefixes[owners[0]])] = tensor
    return parts


class InputVectors(NamedTuple):
    """The pooled vectors of inputs that were encoded alone.

    Attributes:
        x: (B, I, width). One vector for each of the I inputs of the model, zeros where a sample
            lacks the input.
        mask: (B, I) bool. True where the sample has the input.
    """

    x: Tensor
    mask: Tensor


def encode_alone(model: MultimodalModel, parts: Sequence[Tokens]) -> tuple[Tokens, InputVectors]:
    """Apply the fusion and the backbone of a model to each part alone."""
    encoded: list[Tokens] = []
    vectors: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        name, size = part.spans[-1].name, part.x.shape[0]
        mask = masks[name] = part.mask.any(1)
        rows = torch.arange(size, device=mask.device)
        if can_read(mask):  # otherwise all samples are computed, also those without the input
            rows = mask.nonzero().flatten()
            if not len(rows):  # every sample has an input, but this one is empty in all of them
                continue
        with selected(rows, number):
            tokens, pooled = model.fusion([part.take(rows)], model.backbone)
        tokens = tokens.spread(rows, size)
        encoded.append(replace(tokens, mask=tokens.mask & mask[:, None], num_real=None))
        pooled = pooled.new_zeros(size, pooled.shape[1]).index_copy(0, rows, pooled)
        vectors[name] = torch.where(mask[:, None], pooled, 0.0)
    some = next(iter(vectors.values()))
    absent = torch.zeros_like(some)
    x = torch.stack([vectors.get(name, absent) for name in model.inputs], 1)
    no_rows = some.new_zeros(len(some), dtype=torch.bool)
    mask = torch.stack([masks.get(name, no_rows) for name in model.inputs], 1)
    return join(encoded), InputVectors(x, mask)


def module_key(name: str) -> str:
    """Convert `name` to a key of an nn.ModuleDict. Different names have different keys.

    A ModuleDict rejects empty keys, keys with a dot, and the names of its own attributes.
    """
    # Percent-encoding is reversible, so different names cannot have the same key.
    key = name.replace("%", "%25").replace(".", "%2E")
    return f"%{key}" if not key or hasattr(nn.ModuleDict(), key) else key


def mix(tokens: Tokens, order: Tensor, share: float) -> Tokens:
    """Apply mixup to token matrices: share * sample i + (1 - share) * sample order[i].

    If a token is a linear function of its input, this equals mixup of the inputs
    (arXiv:1710.09412). For embedded symbols, see arXiv:1905.08941. A column is real if it is
    real in either sample.

    Args:
        tokens: Tokens of B samples.
        order: (B,). Permutation of the samples.
        share: Weight from 0 to 1 of the original sample.
    """
    # Padding of one sample can be a real column of the other one, so its values must be 0.
    x = tokens.x * tokens.mask[..., None]
    mixed = share * x + (1 - share) * x[order]
    # Without padding, there is none in the mixed samples either.
    num_real = tokens.num_real if tokens.num_real == tokens.mask.numel() else None
    return Tokens(mixed, tokens.mask | tokens.mask[order], tokens.spans, num_real)


def as_float(output: Any) -> Any:
    """Convert a tensor to float32. Any other type of output is returned unchanged."""
    return output.float() if isinstance(output, Tensor) else output


def count_parameters(module: nn.Module, *, trained: bool = False) -> int:
    """Return the number of parameters. With `trained`, only of those that require gradients."""
    # The scales of quantized weights are no weights.
    named = [(n, p) for n, p in module.named_parameters() if not n.endswith("weight_scale")]
    parameters = [p for _, p in named if p.requires_grad or not trained]
    # A byte has two frozen weights of 4 bits.
    return sum(p.numel() * (2 if p.dtype == torch.uint8 else 1) for p in parameters)
