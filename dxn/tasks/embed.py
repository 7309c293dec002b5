"""The task of a public checkpoint without a head: it returns embeddings and predicts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.tasks.heads import Hidden, LinearHead, PreHead
from dxn.tasks.metric import Metric
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import Target
from dxn.tasks.task import Task

NO_ANSWER = (
    "this checkpoint has no head to predict with; train one (dxn train weights=...), or use its "
    "embeddings (dxn embed)"
)


class NoTarget(Target):
    """No target."""

    source = "inputs"

    def describe(self, values: Sequence[Any]) -> str:
        """Return a placeholder."""
        return "none"

    def encode(self, value: Any, sample: dict[str, Any], rand: Any = None) -> None:
        """Return nothing."""


class Embed(Task[NoTarget]):
    """Return the embedding of each sample. This task has no targets, loss or predictions.

    Args:
        hidden: Layer applied to the pooled vector: none, linear, tanh, relu or gelu.
        hidden_dim: Output width of the hidden layer. Default: the width of the pooled vector.
        norm: Whether to apply a layer norm after the hidden layer.
        norm_eps: Epsilon of the layer norm after the hidden layer.
        normalize: Whether to scale the embedding to length 1.
    """

    name = "embed"

    def __init__(
        self,
        *,
        hidden: Hidden = "none",
        hidden_dim: int | None = None,
        norm: bool = False,
        norm_eps: float = 1e-5,
        normalize: bool = False,
    ):
        self.pre_options = {
            "hidden": hidden,
            "hidden_dim": hidden_dim,
            "norm": norm,
            "norm_eps": norm_eps,
            "normalize": normalize,
        }
        self.target = NoTarget()
        self.metric = Metric()

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that returns the embedding."""
        return LinearHead(PreHead(pooled_dim, **self.pre_options), None)

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Raise UserError, because this task has no loss."""
        raise UserError(NO_ANSWER)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Any]:
        """Raise UserError, because this task has no predictions."""
        raise UserError(NO_ANSWER)
