"""Task heads: from the encoded tokens to an answer, and the loss that teaches it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.tokens import Tokens


class Classify(nn.Module):
    """One of num_classes for a sample.

    Args:
        dim: width D of a token.
        num_classes: classes, from the data.
        label_smoothing: share of the target spread over all classes (arXiv:1512.00567, 7).
        class_weights: weight of each class in the loss, from the data where the trainer is asked to balance.
        dropout: of the pooled vector, in training.
    """

    kind = "class"

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
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, num_classes))
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to logits (B, K)."""
        return self.out(pooled)

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
        dropout: of the pooled vector, in training.
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
        dropout: float = 0.0,
        threshold: float = 0.5,
    ):
        super().__init__()
        self.label_smoothing, self.threshold = label_smoothing, threshold
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, num_classes))
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to logits (B, K)."""
        return self.out(pooled)

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
        dropout: of the pooled vector, in training.
    """

    kind = "number"

    def __init__(self, dim: int = 128, *, mean: float = 0.0, std: float = 1.0, dropout: float = 0.0):
        super().__init__()
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, 1))
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """pooled (B, D) to (B,), in units of the training numbers' deviation from their mean."""
        return self.out(pooled).squeeze(-1)

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
        self.out = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, num_classes))
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", _tensor(class_weights))

    def forward(self, tokens: Tokens, pooled: Tensor) -> Tensor:
        """The text's encoded columns to logits (B, N, K)."""
        return self.out(tokens.select("text").x)

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


HEADS = {head.kind: head for head in (Classify, Multilabel, Regress, Tag)}


def default_head(
    dim: int = 128, *, kind: str, label_smoothing: float = 0.0, dropout: float = 0.0, **found
) -> nn.Module:
    """The head that fits a target of this kind; found: what the data decides (num_classes, mean ...).

    Args:
        dim: width D of a token.
        label_smoothing: share of the target spread over all classes; nothing to a number.
        dropout: before the last linear, in training.
    """
    if kind != "number":
        found["label_smoothing"] = label_smoothing
    return HEADS[kind](dim, dropout=dropout, **found)


def _tensor(weights: Sequence[float] | None) -> Tensor | None:
    return None if weights is None else torch.tensor(weights, dtype=torch.float32)
