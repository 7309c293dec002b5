"""The embedding of a vocabulary, and the layer from output vectors to its logits."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor, nn

from dxn.core.schema import options
from dxn.models.inference import PackedLinear
from dxn.models.losses import linear_cross_entropy, softcapped


def set_unregistered(user: nn.Module, name: str, part: Any) -> None:
    """Set an attribute of a module without making its value a submodule.

    A normal assignment would register a part that another module owns: its weights would also be
    parameters of `user`, and would be saved twice.
    """
    user.__dict__[name] = part


def make_token_embedding(vocab_size: int, dim: int) -> nn.Embedding:
    """Create the embedding of a decoder, which is also its output layer."""
    embedding = nn.Embedding(vocab_size, dim)
    # With this standard deviation, the initial logits have a standard deviation of about 1. The
    # input is multiplied by sqrt(dim) to compensate (arXiv:1706.03762, section 3.4).
    nn.init.normal_(embedding.weight, std=dim**-0.5)
    return embedding


class VectorEmbedding(nn.Module):
    """A table plus a linear function of vectors that are known, such as those of codes.

    What is learned about a code also changes the codes with similar vectors, so that it needs fewer
    examples than a table alone.

    Args:
        table: Embedding (V, D).
        vectors: (V, d). Zeros for tokens without a vector.
    """

    vectors: Tensor

    def __init__(self, table: nn.Embedding, vectors: Tensor):
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.project = nn.Linear(vectors.shape[1], table.embedding_dim, bias=False)
        nn.init.normal_(self.project.weight, std=table.embedding_dim**-0.5)
        # They are those of the codec, which is saved with the model.
        self.register_buffer("vectors", vectors, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The embedding (V, D) of all tokens."""
        return self.table.weight + self.project(self.vectors)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings (..., D) of token ids (...)."""
        return self.table(ids) + self.project(self.vectors[ids])


TokenEmbedding = nn.Embedding | VectorEmbedding


@options
class OutputOptions:
    """Options of the layer that computes the logits of a vocabulary.

    Args:
        tie_embeddings: Use the embedding of the tokens as the weights (arXiv:1608.05859).
        bias: Add a bias to the logits.
        scale: Factor of the logits, before the bias is added.
        softcap: Limit c of the logits z, which become c tanh(z / c) (arXiv:2408.00118, section 2).
            Default: no limit.
    """

    tie_embeddings: bool = True
    bias: bool = False
    scale: Annotated[float, Gt(0)] = 1.0
    softcap: Annotated[float, Gt(0)] | None = None


class OutputLayer(nn.Module):
    """Computes the logits of a vocabulary.

    Args:
        embedding: Embedding (V, D) of the tokens. Its owner saves and moves it.
        options: Options of the layer.
    """

    embedding: TokenEmbedding

    def __init__(self, embedding: TokenEmbedding, options: OutputOptions = OutputOptions()):
        super().__init__()
        self.tie(embedding)
        self.scale = options.scale
        self.softcap = options.softcap
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        rows, dim = embedding.num_embeddings, embedding.embedding_dim
        if not options.tie_embeddings:
            self.weight = nn.Parameter(torch.empty(rows, dim))
            # The initial logits of normalized vectors have a standard deviation of about 1.
            nn.init.normal_(self.weight, std=dim**-0.5 / options.scale)
        if options.bias:
            self.bias = nn.Parameter(torch.zeros(rows))

    def tie(self, embedding: TokenEmbedding) -> None:
        """Use another embedding of the same size."""
        set_unregistered(self, "embedding", embedding)

    @property
    def matrix(self) -> Tensor:
        """The weights (V, D): those of the embedding, or its own."""
        return self.embedding.weight if self.weight is None else self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits (..., V) of output vectors (..., D)."""
        return softcapped(F.linear(self._scaled(x), self.matrix, self.bias), self.softcap)

    def loss(
        self, x: Tensor, targets: Tensor, *, label_smoothing: float, ignore_index: int
    ) -> Tensor:
        """Compute the sum () of the cross-entropies of output vectors (M, D).

        It does not compute all logits at once. The arguments are those of `linear_cross_entropy`.
        """
        return linear_cross_entropy(
            self._scaled(x),
            self.matrix,
            targets,
            bias=self.bias,
            softcap=self.softcap,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
        )

    def packed(self) -> nn.Module:
        """Create a layer with the same logits, which is faster with few vectors.

        The layer is one of the largest, and packing it takes only as long as a few tokens.
        """
        rows, dim = self.matrix.shape
        linear = nn.Linear(dim, rows, bias=self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self.matrix.detach(), requires_grad=False)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach(), requires_grad=False)
        layer = PackedLinear(linear) if PackedLinear.supports(linear) else linear
        if self.scale == 1 and self.softcap is None:
            return layer
        return _Packed(layer, self.scale, self.softcap)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale


def output_layer_of(head: nn.Module, embedding: TokenEmbedding) -> OutputLayer:
    """Return the output layer of a head that writes, or one whose weights are the embedding."""
    output = getattr(head, "output", None)
    return output if isinstance(output, OutputLayer) else OutputLayer(embedding)


class _Packed(nn.Module):
    """The layer of `OutputLayer.packed` with a scale or a limit of the logits."""

    def __init__(self, linear: nn.Module, scale: float, softcap: float | None):
        super().__init__()
        self.linear, self.scale, self.softcap = linear, scale, softcap

    def forward(self, x: Tensor) -> Tensor:
        return softcapped(self.linear(x * self.scale), self.softcap)
