"""Head modules that several tasks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.schema import checked
from dxn.core.tokens import Tokens
from dxn.models.losses import unit
from dxn.tasks.space import Batch
from dxn.tasks.windows import Windows
from dxn.tokenize.base import ADDED

Hidden = Literal["none", "linear", "tanh", "relu", "gelu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "linear": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
}


@dataclass(kw_only=True, eq=False)
class HeadOptions:
    """Options of tasks whose head is a linear layer on the vector of a sample or of each token.

    Args:
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        norm: Whether to apply a layer norm before the output layer.
        norm_eps: Epsilon of the layer norm before the output layer.
        dropout: Dropout probability before the output layer.
    """

    hidden: Hidden = "none"
    norm: bool = False
    norm_eps: Annotated[float, Gt(0)] = 1e-5
    dropout: Rate = 0.1

    def linear_head(
        self,
        pooled_dim: int,
        num_outputs: int,
        *,
        input: str | None = None,
        windows: Windows | None = None,
    ) -> LinearHead:
        """Build a head with these options and `num_outputs` outputs.

        Args:
            pooled_dim: Width of its input.
            num_outputs: See `LinearHead`.
            input: See `LinearHead`.
            windows: How two texts become one sequence, see `PairHead`. Default: they do not.
        """
        options: dict[str, Any] = {
            "hidden": self.hidden,
            "norm": self.norm,
            "norm_eps": self.norm_eps,
            "dropout": self.dropout,
        }
        if windows is not None:
            return PairHead(PairPreHead(pooled_dim, **options), num_outputs, windows)
        return LinearHead(PreHead(pooled_dim, **options), num_outputs, input=input)


class PreHead(nn.Module):
    """Optional layers between the pooled vector and the output layer of a head.

    The output of this module is also the embedding that `dxn embed` returns for a sample.

    Args:
        dim: Width D of the pooled vector.
        hidden: Hidden layer: an activation function after a linear layer, "linear" for a linear
            layer without an activation function, or "none" for no hidden layer.
        hidden_dim: Output width of the hidden layer. Default: dim.
        norm: Whether to apply a layer norm after the hidden layer.
        norm_eps: Epsilon of the layer norm.
        normalize: Whether to scale the output to length 1.
        dropout: Dropout probability of the output.
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        hidden: Hidden = "none",
        hidden_dim: int | None = None,
        norm: bool = False,
        norm_eps: float = 1e-5,
        normalize: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        # A layer that is turned off is an nn.Identity, so that the parameter names of the other
        # layers do not depend on the options.
        has_layer = hidden != "none"
        self.width = (hidden_dim or dim) if has_layer else dim
        self.dense = nn.Linear(dim, self.width) if has_layer else nn.Identity()
        self.act = ACTIVATIONS[hidden]()
        self.norm = nn.LayerNorm(self.width, eps=norm_eps) if norm else nn.Identity()
        self.normalize = normalize
        # Dropout is the last layer: in evaluation mode the output is exactly the vector that the
        # output layer of the head receives.
        self.dropout = Dropout(dropout)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (B, D) to (B, width)."""
        x = self.dropout(self.norm(self.act(self.dense(pooled))))
        return unit(x) if self.normalize else x


class LinearHead(nn.Module):
    """An output layer on the pooled vector of a sample, or on each token of one input.

    Args:
        pre: Layers applied to the vectors before the output layer.
        num_outputs: Number of outputs K of the linear output layer. None: there is no such layer,
            and the output is the embedding.
        input: Name of the input whose encoded tokens are mapped. Default: the pooled vector is.
    """

    def __init__(self, pre: PreHead, num_outputs: int | None, *, input: str | None = None):
        super().__init__()
        self.pre = pre
        self.output_shape = (pre.width if num_outputs is None else num_outputs,)
        self.out = nn.Identity() if num_outputs is None else nn.Linear(pre.width, num_outputs)
        self.input = input

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Map pooled vectors (B, D) to (B, K), or encoded tokens (B, N, D) to (B, N, K)."""
        x = pooled if self.input is None else tokens.select(self.input).x
        return self.out(self.pre(x))


class PairPreHead(PreHead):
    """The layers before the output layer, and the segment embeddings of BERT.

    If two texts are in the same sequence, the text adapter adds one of the two embeddings to each
    token.

    Args:
        dim: Width D of a token.
        **options: See `PreHead`.
    """

    def __init__(self, dim: int, **options: Any):
        super().__init__(dim, **options)
        self.segments = nn.Embedding(2, dim)
        nn.init.zeros_(self.segments.weight)

    def add_segments(self, part: dict[str, Any]) -> None:
        """Add the embeddings to the batch of a sequence, unless it has them already."""
        if "segments" in part and ADDED not in part:
            part[ADDED] = self.segments(part["segments"])


class PairHead(LinearHead):
    """An output layer on the pooled vector of two texts that are in one sequence.

    Of texts that are too long together, the second one is cut, and the first one after half of the
    tokens.

    Args:
        pre: Layers applied to the vector before the output layer.
        num_outputs: See `LinearHead`.
        windows: How both texts are joined.
    """

    pre: PairPreHead

    def __init__(self, pre: PairPreHead, num_outputs: int, windows: Windows):
        super().__init__(pre, num_outputs)
        self.windows = windows

    def first_part(self, batch: Batch) -> Batch:
        """Return the batch with one sequence in place of both texts."""
        joined = self.windows.cut(batch)[0]
        self.pre.add_segments(joined[self.windows.context])
        return joined

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return the outputs (B, K)."""
        return output_of(self.first_part(batch))
