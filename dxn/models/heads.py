"""Task heads: from the encoded tokens to an answer, and the loss that teaches it."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.models.masked import Masked
from dxn.models.writing import Generate, Language
from dxn.tokens import Tokens

Hidden = Literal["none", "linear", "tanh", "relu", "gelu"]
HIDDEN = {"linear": nn.Identity(), "tanh": nn.Tanh(), "relu": nn.ReLU(), "gelu": nn.GELU()}


class Neck(nn.Module):
    """What may stand between the pooled vector and the head's last linear: a layer, a norm, dropout."""

    def __init__(
        self,
        dim: int,
        *,
        hidden: Hidden = "none",
        hidden_dim: int | None = None,
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__()
        if hidden != "none" and hidden not in HIDDEN:
            raise ValueError(f"hidden must be none or one of {', '.join(HIDDEN)}, got {hidden!r}")
        self.width = dim if hidden == "none" else hidden_dim or dim
        self.dense = nn.Linear(dim, self.width) if hidden != "none" else nn.Identity()
        self.act = HIDDEN.get(hidden, nn.Identity())
        self.norm = nn.LayerNorm(self.width, eps=norm_eps) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, D) to (B, width)."""
        return self.dropout(self.norm(self.act(self.dense(pooled))))


class Classify(nn.Module):
    """One of num_classes for a sample.

    Args:
        dim: width D of a token.
        num_classes: classes, from the data.
        label_smoothing: share of the target spread over all classes (arXiv:1512.00567, 7).
        class_weights: weight of each class in the loss, from the data where the trainer is asked to balance.
        hidden: none, or a layer before the last: linear, tanh, relu or gelu.
        norm: a layer norm before the last linear.
        norm_eps: added to the variance in that norm.
        dropout: of what the last linear gets, in training.
    """

    kind = "class"

    def __init__(
        self,
        dim: int = 128,
        *,
        num_classes: int,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.neck = Neck(dim, hidden=hidden, norm=norm, norm_eps=norm_eps, dropout=dropout)
        self.out = nn.Linear(dim, num_classes)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to logits (B, K)."""
        return self.out(self.neck(pooled))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, K) and targets: classes (B,), or their shares (B, K)."""
        return F.cross_entropy(logits, targets, weight=self.class_weights, label_smoothing=self.label_smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities (B, K)."""
        return logits.softmax(-1)


class Multilabel(nn.Module):
    """Any number of num_classes for a sample.

    Args:
        dim: width D of a token.
        num_classes: labels, from the data.
        label_smoothing: moves the targets 0 and 1 this far towards one half.
        class_weights: weight of each label's positive samples in the loss.
        hidden: none, or a layer before the last: linear, tanh, relu or gelu.
        norm: a layer norm before the last linear.
        norm_eps: added to the variance in that norm.
        dropout: of what the last linear gets, in training.
        threshold: a label is predicted at this probability or above.
    """

    kind = "labels"

    def __init__(
        self,
        dim: int = 128,
        *,
        num_classes: int,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        threshold: float = 0.5,
    ):
        super().__init__()
        self.label_smoothing, self.threshold = label_smoothing, threshold
        self.neck = Neck(dim, hidden=hidden, norm=norm, norm_eps=norm_eps, dropout=dropout)
        self.out = nn.Linear(dim, num_classes)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to logits (B, K)."""
        return self.out(self.neck(pooled))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross-entropy of logits and targets 0 to 1, both (B, K)."""
        targets = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.class_weights)

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities (B, K), each label's own."""
        return logits.sigmoid()


class Regress(nn.Module):
    """A number for a sample.

    Args:
        dim: width D of a token.
        mean: of the training split's numbers, from the data.
        std: of the training split's numbers, from the data.
        hidden: none, or a layer before the last: linear, tanh, relu or gelu.
        norm: a layer norm before the last linear.
        norm_eps: added to the variance in that norm.
        dropout: of what the last linear gets, in training.
    """

    kind = "number"

    def __init__(
        self,
        dim: int = 128,
        *,
        mean: float = 0.0,
        std: float = 1.0,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.neck = Neck(dim, hidden=hidden, norm=norm, norm_eps=norm_eps, dropout=dropout)
        self.out = nn.Linear(dim, 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to (B,), in units of the training numbers' deviation from their mean."""
        return self.out(self.neck(pooled)).squeeze(-1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error in those units; targets (B,) in their own."""
        return F.mse_loss(logits, (targets - self.mean) / self.std)

    def predict(self, logits: Tensor) -> Tensor:
        """The number itself (B,)."""
        return logits * self.std + self.mean


class Tag(nn.Module):
    """One of num_classes for each word of the text.

    Args:
        dim: width D of a token.
        num_classes: tags, from the data.
        label_smoothing: share of the target spread over all tags.
        class_weights: weight of each tag in the loss.
        dropout: of the encoded tokens, in training.
    """

    kind = "tags"

    def __init__(
        self,
        dim: int = 128,
        *,
        num_classes: int,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.neck = Neck(dim, dropout=dropout)
        self.out = nn.Linear(dim, num_classes)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """The text's encoded columns to logits (B, N, K)."""
        return self.out(self.neck(tokens.select("text").x))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over targets (B, N) that are not -100: each word's first subword."""
        logits = logits[:, : targets.shape[1]]
        return F.cross_entropy(
            rearrange(logits, "b n k -> (b n) k"),
            rearrange(targets, "b n -> (b n)"),
            weight=self.class_weights,
            label_smoothing=self.label_smoothing,
        )

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities (B, N, K)."""
        return logits.softmax(-1)


class Embed(nn.Module):
    """No answer, only the vector that stands for a sample.

    Args:
        dim: width D of a token.
        hidden: none, or a layer: linear, tanh, relu or gelu.
        hidden_dim: numbers that the layer leaves, dim unless given.
        norm: a layer norm at the end.
        norm_eps: added to the variance in that norm.
    """

    kind = "vector"

    def __init__(
        self,
        dim: int = 128,
        *,
        hidden: Hidden = "none",
        hidden_dim: int | None = None,
        norm: bool = False,
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        self.neck = Neck(dim, hidden=hidden, hidden_dim=hidden_dim, norm=norm, norm_eps=norm_eps)

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to (B, E)."""
        return self.neck(pooled)


BY_KIND = {head.kind: head for head in (Classify, Multilabel, Regress, Tag)}  # those that a target alone decides
HEADS = {**BY_KIND, Generate.kind: Generate, Language.kind: Language, Masked.kind: Masked}


def default_head(
    dim: int = 128,
    *,
    kind: str,
    label_smoothing: float = 0.0,
    hidden: Hidden = "none",
    norm: bool = False,
    norm_eps: float = 1e-5,
    dropout: float = 0.0,
    **found,
) -> nn.Module:
    """The head that fits a target of this kind; found: what the data decides (num_classes, mean ...).

    Args:
        dim: width D of a token.
        label_smoothing: share of the target spread over all classes; nothing to a number.
        hidden: none, or a layer before the last: linear, tanh, relu or gelu; nothing to tags.
        norm: a layer norm before the last linear; nothing to tags.
        norm_eps: added to the variance in that norm.
        dropout: before the last linear, in training.
    """
    if kind != "number":
        found["label_smoothing"] = label_smoothing
    if kind != "tags":
        found |= {"hidden": hidden, "norm": norm, "norm_eps": norm_eps}
    return BY_KIND[kind](dim, dropout=dropout, **found)


def _tensor(weights: Sequence[float] | None) -> Tensor | None:
    return None if weights is None else torch.tensor(weights, dtype=torch.float32)
