"""The files of stacked models in a model folder: stack.json and stack.safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import SUMS, link, replace_folder, write_sums, write_text
from dxn.core.schema import Strict, validated
from dxn.core.tensors import (
    check_after_loading,
    check_before_saving,
    read_tensors,
    write_tensors,
)
from dxn.core.untrusted import load_json
from dxn.models.model import Model, Network
from dxn.stacking.modules import Baseline, FeatureBaseline
from dxn.stacking.past import PastRegression
from dxn.stacking.stacked import Stacked

FILE = "stack.json"
TENSORS = "stack.safetensors"
MAX_COUNT = 100_000_000
MAX_REASON = 300  # characters; load_state_dict lists every tensor that does not match

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Field(min_length=1, max_length=1_000)]


class FeatureSizes(Strict):
    """The arguments of `FeatureBaseline`."""

    about: Annotated[str, Field(max_length=1_000)]
    dense: dict[Name, Count]
    counted: dict[Name, Annotated[list[Count], Field(max_length=100)]]
    num_outputs: Count
    num_landmarks: CountOrNone
    num_trees: CountOrNone
    num_nodes: CountOrNone


class PastSizes(Strict):
    """The arguments of `PastRegression`."""

    about: Annotated[str, Field(max_length=1_000)]
    input: Name
    shape: Annotated[list[Count], Field(min_length=4, max_length=4)]


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
            if path.name not in (FILE, TENSORS, SUMS) and path.is_file():
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
        exists = (folder / FILE).exists()
        entries.append(load_json(folder / FILE)["members"][0] if exists else None)
        if exists:
            for name, tensor in read_tensors(folder / TENSORS).items():
                tensors[f"{number}.{name.partition('.')[2]}"] = tensor
    if any(entries):
        _write(new, entries, tensors)


def load_stacks(folder: Path, models: Sequence[Model]) -> list[Network]:
    """Return the models of a model folder, those that are stacked as `Stacked`.

    Raises:
        UserError: If the files do not fit the models.
    """
    path = folder / FILE
    if not path.exists():
        return list(models)
    from dxn.core.build_limit import build_limit

    entries = validated(Content, load_json(path), path).members
    if len(entries) != len(models):
        raise UserError(
            f"{path}: must have one entry per model ({len(models)}), got {len(entries)}; copy the "
            "model folder again"
        )
    tensors = read_tensors(folder / TENSORS)
    check_after_loading(tensors, folder / TENSORS)
    networks: list[Network] = []
    with build_limit(tensors, path):
        for number, (model, entry) in enumerate(zip(models, entries, strict=True)):
            if entry is None:
                networks.append(model)
                continue
            prefix = f"{number}."
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            baseline = None if entry.baseline is None else _build(entry.baseline, own, folder)
            problem = "" if baseline is None else _problem(baseline, model)
            if problem:
                raise UserError(f"{path}: baseline: {problem}; copy the model folder again")
            networks.append(Stacked(model, baseline, (entry.mix[0], entry.mix[1])))
    return networks


def _write(folder: Path, entries: Sequence[Any], tensors: dict[str, Tensor]) -> None:
    check_before_saving(tensors)
    write_tensors(folder / TENSORS, tensors)
    write_text(folder / FILE, json.dumps({"members": entries}, indent=1) + "\n")


def _build(sizes: FeatureSizes | PastSizes, tensors: dict[str, Tensor], folder: Path) -> Baseline:
    arguments = sizes.model_dump()
    is_past = isinstance(sizes, PastSizes)
    baseline = PastRegression(**arguments) if is_past else FeatureBaseline(**arguments)
    try:
        baseline.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise UserError(f"{folder / TENSORS}: does not match {FILE}: {reason}") from error
    return baseline


def _problem(baseline: Baseline, model: Model) -> str:
    """Return why the mixed output cannot be computed. Empty: it can."""
    unknown = [name for name in baseline.inputs if name not in model.inputs]
    if unknown:
        return f"names the input {unknown[0]!r}, which the model does not have"
    # The head of a plug-in can lack it. `Stacked.mixed` compares the shapes of all outputs.
    shape = getattr(model.head, "output_shape", baseline.output_shape)
    if baseline.output_shape != shape:
        return f"must have the output shape {shape} of the head, got {baseline.output_shape}"
    return baseline.problem({name: model.adapter(name) for name in baseline.inputs})
