"""A trained model and a classical model beside it, whose outputs are mixed (stacking)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.models.model import Batch, Model, Network
from dxn.stacking.features import Features, model_features
from dxn.stacking.modules import Baseline


class Stacked(Network):
    """A model whose output is mixed with that of a baseline.

    The output is mix[0] x output of the model + mix[1] x output of the baseline.

    Args:
        model: The trained model, which stays as it is.
        baseline: The classical model. None: only the output of the model is scaled.
        mix: Factors of the outputs of the model and of the baseline.
    """

    mix: Tensor

    def __init__(self, model: Model, baseline: Baseline | None, mix: tuple[float, float]):
        super().__init__()
        self.model = model
        self.baseline = baseline
        self.register_buffer("mix", torch.tensor(mix))

    def forward(self, batch: Batch) -> Tensor:
        """Compute the mixed output (B, ...) for a batch, see `Model.forward`."""
        output = self.model(batch)
        features = {} if self.baseline is None else model_features(self.model, batch)
        return self.mixed(output, features)

    def mixed(self, output: Any, features: Mapping[str, Features]) -> Tensor:
        """Return the weighted sum of the outputs of the model and the baseline.

        Args:
            output: (B, ...). Output of the model.
            features: Features of the inputs that the baseline reads, by input name.

        Raises:
            UserError: If the outputs of both do not fit together.
        """
        # The files of a model folder can be those of another model.
        if not isinstance(output, Tensor):
            raise UserError(
                "baseline: a model with this head has none; copy the model folder again"
            )
        scaled = self.mix[0] * output.float()
        if self.baseline is None:
            return scaled
        other = self.baseline(features, output.shape[0])
        if other.shape != output.shape:
            raise UserError(
                f"baseline: must have {output.shape[1:].numel()} outputs like the head, got "
                f"{other.shape[1:].numel()}; copy the model folder again"
            )
        return scaled + self.mix[1] * other

    def vectors(self, batch: Batch) -> Tensor:
        """Compute the embedding (B, E) of each sample of a batch: that of the model."""
        return self.model.vectors(batch)

    def baseline_output(self, batch: Batch) -> Tensor:
        """Compute the output (B, ...) of the baseline alone."""
        assert self.baseline is not None
        return self.baseline(model_features(self.model, batch), batch["#size"])

    def formula(self) -> str:
        """Return how the output is computed, such as "0.38 x transformer + 0.64 x baseline (...)".

        Empty if the baseline does not take part.
        """
        own, other = self.mix.tolist()
        if self.baseline is None or not other:
            return ""
        return f"{own:.2f} x transformer + {other:.2f} x baseline ({self.baseline.about})"


def stacks_of(network: Network) -> list[Stacked]:
    """Return the stacked models of a network: several of an ensemble, none of a plain model."""
    return [module for module in network.modules() if isinstance(module, Stacked)]


def formula_of(network: Network) -> str:
    """Return `Stacked.formula` of a network. Empty for an ensemble and for a plain model."""
    return network.formula() if isinstance(network, Stacked) else ""


def without_baseline(network: Network) -> None:
    """Leave out the baselines of a network. The outputs of its models stay scaled."""
    for stack in stacks_of(network):
        stack.baseline = None


def counted_inputs(network: Network) -> set[str]:
    """Return the names of the inputs whose counted features a baseline reads."""
    baselines: list[Any] = [stack.baseline for stack in stacks_of(network)]
    return {name for baseline in baselines if baseline is not None for name in baseline.counted}
