"""Masked pretraining: predict the masked parts of the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.tasks.heads import PreHead
from dxn.tasks.metric import Metric, defined
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import Target
from dxn.tasks.task import Task
from dxn.tokenize.masking import SPAN, Masking, PatchMasking

SMALLEST = 1e-9  # avoids a division by zero if nothing of an input is masked


class MaskedHead(nn.Module):
    """Predict the content of masked columns: token ids or numbers, depending on the input.

    Args:
        dim: Width D of a token.
        maskings: Masking of each masked input, by input name.
        adapters: Fitted adapters, by input name.
    """

    embeddings: Mapping[str, nn.Embedding]

    def __init__(self, dim: int, maskings: Mapping[str, Masking], adapters: Mapping[str, Any]):
        super().__init__()
        self.pre = nn.Identity()
        self.inputs = tuple(maskings)
        # A list in the order of `inputs`, not a ModuleDict: input names may contain dots, which are
        # not allowed in module names.
        self.predictors = nn.ModuleList()
        embeddings: dict[str, nn.Embedding] = {}
        for name, masking in maskings.items():
            if masking.num_outputs is None:
                # As in BERT (arXiv:1810.04805).
                self.predictors.append(PreHead(dim, hidden="gelu", norm=True))
                embeddings[name] = adapters[name].embedding
            else:
                self.predictors.append(nn.Linear(dim, masking.num_outputs))
        # Assigning to __dict__ bypasses nn.Module's registration. Otherwise the weights of the
        # adapters would also be parameters of the head, and would be saved twice.
        self.__dict__["embeddings"] = embeddings

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return statistics (B, I, 3) for each sample and each of the I masked inputs.

        The three numbers are the sum of the losses, the number of predictions, and the number of
        correct predictions.
        """
        statistics = [self._statistics(name, tokens, batch) for name in self.inputs]
        # The added zero connects the output to the model, so that backward() also works for a batch
        # in which nothing is masked.
        return torch.stack(statistics, 1) + 0 * pooled.float().sum()

    def predictions(self, name: str, x: Tensor) -> Tensor:
        """Predict the content of M masked columns of one input.

        Args:
            name: Name of the input.
            x: Encoded columns (M, D).

        Returns:
            Logits (M, V), or numbers (M, K) for an input without a vocabulary.
        """
        predicted = self.predictors[self.inputs.index(name)](x)
        if name in self.embeddings:
            return predicted @ self.embeddings[name].weight.T
        return predicted

    def _statistics(self, name: str, tokens: Tokens, batch: Batch) -> Tensor:
        """Return the statistics (B, 3) of one input. See `forward`."""
        statistics = torch.zeros(batch["#size"], 3, device=tokens.x.device)
        part = batch.get(name)
        if part is None or "masked" not in part:
            return statistics
        masked = part["masked"]
        target = part["masked_target"]
        # With their number, a GPU does not have to report how many columns are masked.
        index = torch.nonzero_static(masked, size=len(target))
        rows = part["rows"][index[:, 0]]
        predicted = self.predictions(name, tokens.select(name).x[rows, index[:, 1]]).float()
        if name in self.embeddings:
            # No reduction: losses are summed over samples and batches first, and `metrics` divides
            # by the number of predictions at the end.
            losses = F.cross_entropy(predicted, target, reduction="none")
            counts = torch.ones_like(losses)
            correct = (predicted.argmax(-1) == target).float()
        else:
            # A patch may extend beyond the edge of the image or clip. Its padding is not predicted.
            valid = part["masked_valid"]
            losses = ((predicted - target.float()).square() * valid).sum(-1)
            counts = valid.sum(-1).float()
            correct = torch.zeros_like(losses)
        return statistics.index_add(0, rows, torch.stack([losses, counts, correct], -1))


def _count(part: Mapping[str, Tensor] | None) -> int:
    """Return the number of predictions of an input of a sample."""
    if part is None or "masked" not in part:
        return 0
    return int(part["masked_valid" if "masked_valid" in part else "masked"].sum())


class MaskedInputs(Target):
    """The masked columns of the inputs. Each masked input contains its own targets.

    Args:
        mask_ratio: Fraction of columns to mask, by input name or modality.
        span: Number of adjacent columns that are masked together.

    Attributes:
        maskings: Masking of each masked input. `bind` sets it.
    """

    source = "inputs"
    random = True

    def __init__(self, mask_ratio: Mapping[str, float], span: int):
        self.mask_ratio = dict(mask_ratio)
        self.span = span
        self.maskings: dict[str, Masking] = {}

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Create the masking of each input.

        Raises:
            UserError: If mask_ratio contains an unknown input or one that cannot be masked, or if
                no input is masked.
        """
        known = {*adapters, *(adapter.modality for adapter in adapters.values())}
        unknown = self.mask_ratio.keys() - known
        if unknown:
            names = ", ".join(adapters)
            raise UserError(
                f"head.mask_ratio.{min(unknown)}: there is no such input; choose one of {names}"
            )
        # `bind` may be called again, for example after loading. Remove the previous maskings.
        self.maskings = {}
        for name, adapter in adapters.items():
            ratio = self.mask_ratio.get(name, self.mask_ratio.get(adapter.modality))
            masking = adapter.masking(ratio=ratio)
            if isinstance(masking, PatchMasking) and masking.span is not None:
                masking = replace(masking, span=self.span)
            if masking is None and ratio:
                raise UserError(
                    f"head.mask_ratio.{name}: must be 0, because this input cannot be masked (for "
                    f"example, its vocabulary has no mask token), got {ratio}"
                )
            if masking is not None:
                self.maskings[name] = masking
        if not self.maskings:
            names = ", ".join(adapters)
            raise UserError(
                f"head.mask_ratio: no input is masked, got the inputs {names}; set a ratio above 0 "
                "for one of them, or choose another head"
            )
        self.prepared_inputs = tuple(self.maskings)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the names of the masked inputs."""
        return f"the masked columns of {', '.join(self.maskings)}"

    def encode(self, value: Any, sample: dict[str, Any], rand: Random | None = None) -> None:
        """Mask the inputs of a sample."""
        assert rand is not None, "masks are also random in validation, see Target.random"
        for name, masking in self.maskings.items():
            if name in sample:
                sample[name] = masking(sample[name], rand)


class MaskedMetric(Metric):
    """The loss of each input, their mean, and the accuracy of the predicted token ids.

    Inputs without any masked column are left out.

    Args:
        target: The masked inputs.
    """

    def __init__(self, target: MaskedInputs):
        self.target = target

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> Tensor:
        """Return the statistics of the head as (n, 3 I)."""
        return torch.stack(list(predictions)).double().flatten(1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics."""
        # 0 / 0: the input was missing in all rows, or no column of it was masked by chance.
        total, counts, correct = sums.unflatten(-1, (-1, 3)).unbind(-1)
        losses = total / counts
        results = {"loss": losses.nanmean(-1)}
        results |= {f"loss_{name}": losses[..., i] for i, name in enumerate(self.target.maskings)}
        are_ids = [masking.num_outputs is None for masking in self.target.maskings.values()]
        if any(are_ids):
            results["accuracy"] = correct[..., are_ids].sum(-1) / counts[..., are_ids].sum(-1)
        return results

    def metrics(
        self, predictions: Sequence[Tensor], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the metrics of the inputs that have masked columns."""
        return defined(super().metrics(predictions, targets, loss))


class Masked(Task[MaskedInputs]):
    """Predict the masked columns of the inputs. The data needs no targets.

    The loss is the cross-entropy of token ids or the squared error of numbers, averaged over the
    masked columns. With several inputs, a column has a weight with which all inputs count equally
    in the training split, see `prepare_loss`.

    Args:
        mask_ratio: Fraction of columns to mask, by input name or modality. 0: the input is not
            masked. Default: the ratio of each adapter.
        span: Number of adjacent columns that are masked together, for inputs whose adjacent columns
            are similar, such as audio.
    """

    name = "masked"

    def __init__(self, *, mask_ratio: Mapping[str, float] = MappingProxyType({}), span: int = SPAN):
        for name, ratio in mask_ratio.items():
            if not 0 <= ratio < 1:
                raise ValueError(f"mask_ratio.{name} must be at least 0 and below 1, got {ratio}")
        if span < 1:
            raise ValueError(f"span must be at least 1, got {span}")
        self.target = MaskedInputs(mask_ratio, span)
        self.metric = MaskedMetric(self.target)
        self.usual: dict[str, float] = {}  # predictions per sample, by input, see `prepare_loss`

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head with one predictor for each masked input."""
        return MaskedHead(dim, self.target.maskings, adapters)

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Count the predictions of each input per sample.

        Without such constants, the weight of a column would depend on the other samples of a batch,
        and batches whose gradients are added up would not make the step of one large batch.
        """
        totals = dict.fromkeys(self.target.maskings, 0)
        size = 0
        for sample in samples:
            size += 1
            for name in totals:
                totals[name] += _count(sample.get(name))
        self.usual = {name: total / max(size, 1) for name, total in totals.items()}

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the weighted sum over the predictions of all inputs; output is (B, I, 3)."""
        sums, counts = output.sum(0)[:, :2].unbind(1)
        # An input with many columns has the same weight as an input with few.
        usual = counts.new_tensor([self.usual.get(name, 0.0) for name in self.target.maskings])
        usual = torch.where(usual > 0, usual, counts).clamp(min=SMALLEST)
        return LossSum((sums / usual).sum(), (counts / usual).sum())

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the statistics (I, 3) of each sample, for the metrics."""
        return list(output.detach().cpu().double())
