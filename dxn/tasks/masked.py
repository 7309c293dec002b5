"""Masked pretraining: predict the masked parts of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.models.decoding.output_layer import set_unregistered
from dxn.tasks.heads import PreHead
from dxn.tasks.per_input import InputMetric, PerInput, PredictedInputs
from dxn.tasks.space import Batch
from dxn.tokenize.masking import SPAN, Masking, PatchMasking


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
        set_unregistered(self, "embeddings", embeddings)  # those of the adapters

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


class MaskedInputs(PredictedInputs):
    """The masked columns of the inputs. Each masked input contains its own targets.

    Args:
        mask_ratio: Fraction of columns to mask, by input name or modality.
        span: Number of adjacent columns that are masked together.

    Attributes:
        maskings: Masking of each masked input. `bind` sets it.
    """

    def __init__(self, mask_ratio: Mapping[str, float], span: int):
        super().__init__()
        self.mask_ratio = dict(mask_ratio)
        self.span = span
        self.maskings: dict[str, Masking] = {}

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Create the masking of each input.

        Raises:
            UserError: If mask_ratio contains an unknown input or one that cannot be masked, or if
                no input is masked.
        """
        names_or_modalities = {*adapters, *(adapter.modality for adapter in adapters.values())}
        unknown = self.mask_ratio.keys() - names_or_modalities
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
        self.kinds = {name: masking.num_outputs is None for name, masking in self.maskings.items()}

    def count(self, sample: Mapping[str, Any], name: str) -> int:
        """Return the number of values or tokens that are masked."""
        part = sample.get(name)
        if part is None or "masked" not in part:
            return 0
        return int(part["masked_valid" if "masked_valid" in part else "masked"].sum())

    def describe(self, values: Sequence[Any]) -> str:
        """Return the names of the masked inputs."""
        return f"the masked columns of {', '.join(self.maskings)}"

    def encode(self, value: Any, sample: dict[str, Any], rand: Random | None = None) -> None:
        """Mask the inputs of a sample."""
        assert rand is not None, "masks are also random in validation, see Target.random"
        for name, masking in self.maskings.items():
            if name in sample:
                sample[name] = masking(sample[name], rand)


class Masked(PerInput[MaskedInputs]):
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

    def __init__(
        self,
        *,
        mask_ratio: Mapping[str, Rate] = MappingProxyType({}),
        span: Annotated[int, Ge(1)] = SPAN,
    ):
        self.target = MaskedInputs(mask_ratio, span)
        self.metric = InputMetric(self.target)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head with one predictor for each masked input."""
        return MaskedHead(dim, self.target.maskings, adapters)
