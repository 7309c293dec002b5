"""A trained model and a classical model beside it, whose outputs are mixed (stacking).

A model folder contains stack.json and stack.safetensors of a stacked model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import STACK, SUMS, link, replace_folder, write_sums, write_text
from dxn.core.schema import Strict, validated
from dxn.core.tensors import (
    check_after_loading,
    check_before_saving,
    read_tensors,
    write_tensors,
)
from dxn.core.untrusted import load_json
from dxn.models.model import Batch, MultimodalModel, Network
from dxn.stacking.features import Features, model_features
from dxn.stacking.modules import Baseline, FeatureBaseline
from dxn.tokenize.base import ENCODED, NUM_REAL, VALUES

TENSORS = "stack.safetensors"
MAX_COUNT = 100_000_000
MAX_REASON = 300  # characters; load_state_dict lists every tensor that does not match

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Field(min_length=1, max_length=1_000)]


class Stacked(Network):
    """A model whose output is mixed with that of a baseline.

    The output is mix[0] x output of the model + mix[1] x output of the baseline.

    Args:
        model: The trained model, which stays as it is.
        baseline: The classical model. None: only the output of the model is scaled.
        mix: Factors of the outputs of the model and of the baseline.
    """

    mix: Tensor

    def __init__(self, model: MultimodalModel, baseline: Baseline | None, mix: tuple[float, float]):
        super().__init__()
        self.model = model
        self.baseline = baseline
        self.register_buffer("mix", torch.tensor(mix))

    @property
    def models(self) -> list[MultimodalModel]:
        """The model without its baseline."""
        return [self.model]

    def forward(self, batch: Batch) -> Tensor:
        """Compute the mixed output (B, ...) for a batch, see `MultimodalModel.forward`."""
        batch = self.encode_once(batch)
        output = self.model(batch)
        return self.mixed(output, self._features(batch))

    def encode_once(self, batch: Batch) -> Batch:
        """Return a batch with the output vectors of encoders that model and baseline both read."""
        result = dict(batch)
        for name in () if self.baseline is None else self.baseline.encoded:
            part = batch.get(name)
            if part is not None and ENCODED not in part:
                tokens = self.model.adapter(name).columns(part)
                vectors = {ENCODED: tokens.x, "mask": tokens.mask, NUM_REAL: tokens.num_real}
                result[name] = {**vectors, "rows": part["rows"], VALUES: part}
        return result

    def _features(self, batch: Batch) -> dict[str, Features]:
        if self.baseline is None:
            return {}
        return model_features(self.model, batch, encoded=self.baseline.encoded)

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
        return self.baseline(self._features(batch), batch["#size"])

    def formula(self) -> str:
        """Return how the output is computed, such as "0.38 x transformer + 0.64 x baseline (...)".

        Empty if the baseline does not take part.
        """
        model_factor, baseline_factor = self.mix.tolist()
        if self.baseline is None or not baseline_factor:
            return ""
        return (
            f"{model_factor:.2f} x transformer + {baseline_factor:.2f} x baseline "
            f"({self.baseline.about})"
        )


def stacks_of(network: Network) -> list[Stacked]:
    """Return the stacked models of a network: several of an ensemble, none of a plain model."""
    return [module for module in network.modules() if isinstance(module, Stacked)]


def without_baseline(network: Network) -> None:
    """Leave out the baselines of a network. It then answers like its transformers alone."""
    for stack in stacks_of(network):
        if stack.baseline is not None:
            stack.baseline = None
            stack.mix.copy_(torch.tensor([1.0, 0.0]))


# The files


class FeatureSizes(Strict):
    """The arguments of `FeatureBaseline`."""

    about: Annotated[str, Field(max_length=1_000)]
    dense: dict[Name, Count]
    counted: dict[Name, Annotated[list[Count], Field(max_length=100)]]
    num_outputs: Count
    linear: dict[Name, Count]
    num_landmarks: CountOrNone
    num_trees: CountOrNone
    num_nodes: CountOrNone


class ForecastColumnSizes(Strict):
    """The arguments of `ForecastColumns`."""

    num_known: CountOrNone
    steps: CountOrNone
    static: dict[Name, Count]
    has_products: bool


class PastSizes(Strict):
    """The arguments of `PastRegression`."""

    about: Annotated[str, Field(max_length=1_000)]
    input: Name
    shape: Annotated[list[Count], Field(min_length=4, max_length=4)]
    columns: ForecastColumnSizes


class Entry(Strict):
    """A stacked model: the factors, and the sizes of its baseline, if it has one."""

    mix: Annotated[list[float], Field(min_length=2, max_length=2)]
    baseline: FeatureSizes | PastSizes | None


class Content(Strict):
    """The content of stack.json: an entry per member. None: the member is not stacked."""

    members: Annotated[list[Entry | None], Field(min_length=1, max_length=1_000)]


def write_stack(folder: Path, stack: Stacked | None) -> None:
    """Add a stacked model to the model folder of its model. None: remove that of before."""
    with replace_folder(folder) as new:
        for path in folder.iterdir():
            if path.name not in (STACK, TENSORS, SUMS) and path.is_file():
                link(path, new / path.name)
        if stack is not None:
            # One that does not take part would only cost time.
            baseline = stack.baseline if stack.mix[1] > 0 else None
            tensors = {} if baseline is None else baseline.state_dict()
            sizes = None if baseline is None else baseline.sizes()
            entry = {"mix": stack.mix.tolist(), "baseline": sizes}
            _write(new, [entry], {f"0.{name}": t.cpu() for name, t in tensors.items()})
        write_sums(new)


def join_stacks(new: Path, members: Sequence[Path]) -> None:
    """Write the files of an ensemble from those in the model folders of its members."""
    entries: list[Any] = []
    tensors: dict[str, Tensor] = {}
    for number, folder in enumerate(members):
        exists = (folder / STACK).exists()
        entries.append(load_json(folder / STACK)["members"][0] if exists else None)
        if exists:
            for name, tensor in read_tensors(folder / TENSORS).items():
                tensors[f"{number}.{name.partition('.')[2]}"] = tensor
    if any(entries):
        _write(new, entries, tensors)


def load_stacks(folder: Path, models: Sequence[MultimodalModel]) -> list[Network]:
    """Return the models of a model folder with a baseline, those that are stacked as `Stacked`.

    Raises:
        UserError: If the files do not fit the models.
    """
    path = folder / STACK
    entries = validated(Content, load_json(path), path).members
    if len(entries) != len(models):
        raise UserError(
            f"{path}: must have one entry per model ({len(models)}), got {len(entries)}; copy the "
            "model folder again"
        )
    tensors = read_tensors(folder / TENSORS)
    check_after_loading(tensors, folder / TENSORS)
    networks: list[Network] = []
    for number, (model, entry) in enumerate(zip(models, entries, strict=True)):
        if entry is None:
            networks.append(model)
            continue
        prefix = f"{number}."
        own_tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        baseline = None
        if entry.baseline is not None:
            baseline = _read_baseline(entry.baseline, own_tensors, model, folder)
        networks.append(Stacked(model, baseline, (entry.mix[0], entry.mix[1])))
    return networks


def _write(folder: Path, entries: Sequence[Any], tensors: dict[str, Tensor]) -> None:
    check_before_saving(tensors)
    write_tensors(folder / TENSORS, tensors)
    write_text(folder / STACK, json.dumps({"members": entries}, indent=1) + "\n")


def _read_baseline(
    sizes: FeatureSizes | PastSizes,
    tensors: dict[str, Tensor],
    model: MultimodalModel,
    folder: Path,
) -> Baseline:
    """Build a baseline, and check that its output can be mixed with that of a model."""
    kind: type[Baseline] = FeatureBaseline
    if isinstance(sizes, PastSizes):
        from dxn.stacking.past import PastRegression  # only forecasts have it

        kind = PastRegression
    baseline = kind(**sizes.model_dump())
    try:
        baseline.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise UserError(f"{folder / TENSORS}: does not match {STACK}: {reason}") from error
    unknown = [name for name in baseline.inputs if name not in model.inputs]
    # The head of a plug-in can lack it. `Stacked.mixed` compares the shapes of all outputs.
    shape = getattr(model.head, "output_shape", baseline.output_shape)
    if unknown:
        problem = f"names the input {unknown[0]!r}, which the model does not have"
    elif baseline.output_shape != shape:
        problem = f"must have the output shape {shape} of the head, got {baseline.output_shape}"
    else:
        problem = baseline.problem({name: model.adapter(name) for name in baseline.inputs})
    if problem:
        raise UserError(f"{folder / STACK}: baseline: {problem}; copy the model folder again")
    return baseline
