"""Checkpoints: everything that a bit-exact resume needs, in safetensors instead of pickle.

A checkpoint is a folder with a file of tensors and its SHA-256 sum. The last two are kept. If the
newest one is damaged, the one before it is used. The sum shows damage, but anybody can write a
file with a valid sum, so the content is checked too.

Frozen weights are in a file of their own, which is written once: the other checkpoints have a
second name (a hard link) of the same file.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from dxn.core.errors import UserError
from dxn.core.files import MODEL, SUMS, check_sums, link, read_sums, replace_folder, write_sums
from dxn.core.schema import validated
from dxn.core.tensors import (
    check_after_loading,
    check_before_saving,
    check_weights,
    kind,
    write_tensors,
)
from dxn.core.untrusted import check_file
from dxn.training.average import Average
from dxn.training.state import State

FILE = "training.safetensors"
FROZEN = "frozen.safetensors"
PREFIX = "step-"
DAMAGED = "damaged-"
NUM_CHECKPOINTS = 2


def unchanged(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return a tensor that is not divided over the processes, see `dxn.training.parallel`."""
    return tensor


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    scaler: GradScaler,
    state: State,
    generators: Mapping[str, Tensor],
    order: Mapping[str, Tensor],
    log: Mapping[str, Tensor],
    main: bool = True,
    whole: Callable[[Tensor], Tensor] = unchanged,
) -> None:
    """Write a checkpoint, and remove all but the last two.

    Args:
        folder: Folder of all checkpoints of the training.
        model: Model whose weights are saved.
        optimizer: Optimizer whose state is saved.
        average: Moving average of the weights, or None.
        scaler: Factor of the loss in fp16.
        state: Position of the training.
        generators: States of the random generators (P, bytes) of all P processes.
        order: Positions in the data (P, ...) of all P processes, see `BatchOrder.position`.
        log: Losses of the epoch, see `Log.pending`.
        main: Whether this process writes. The others only take part in `whole`.
        whole: Function that returns the whole tensor of one that is divided over the processes.

    Raises:
        UserError: If a weight is not finite, or there is no space left.
    """
    tensors: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}

    def take(name: str, tensor: Tensor, group: dict[str, Tensor] = tensors) -> Tensor:
        result = whole(tensor)
        if main:
            # All whole tensors together may not fit into the device.
            group[name] = result if result is tensor else result.cpu()
        return result

    fixed = {n for n, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, tensor in model.state_dict().items():
        group = frozen if name in fixed else tensors
        check_before_saving({name: take(f"model/{name}", tensor, group)})
    for name, tensor in ({} if average is None else average.tensors).items():
        check_before_saving({name: take(f"ema/{name}", tensor)})
    # The state dict of an optimizer numbers the parameters in the order of its groups. safetensors
    # stores only tensors, so scalars such as the step become tensors.
    for i, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            take(f"optimizer/{i}/{name}", torch.as_tensor(value))
    if not main:
        return
    factors = {name: torch.tensor(value) for name, value in scaler.state_dict().items()}
    groups = {"generators": generators, "order": order, "log": log, "scaler": factors}
    for group, values in groups.items():
        tensors |= {f"{group}/{name}": tensor for name, tensor in values.items()}
    target = folder / f"{PREFIX}{state.step:09}"
    before = next(iter(all_checkpoints(folder)), target)
    with replace_folder(target) as new:
        write_tensors(new / FILE, tensors, {"state": json.dumps(state.model_dump())})
        digests = _digest_of_frozen(before, frozen.keys())
        if digests:
            link(before / FROZEN, new / FROZEN)
        elif frozen:
            write_tensors(new / FROZEN, frozen)
        write_sums(new, digests)
    for path in all_checkpoints(folder)[NUM_CHECKPOINTS:]:
        shutil.rmtree(path)


def _digest_of_frozen(folder: Path, names: Collection[str]) -> dict[str, str]:
    """Return the digest of the frozen weights of a checkpoint by the name of their file.

    Empty if these are not all of them, or the file cannot be read.
    """
    try:
        with safe_open(folder / FROZEN, "pt") as file:
            if set(file.keys()) == set(names):
                return {FROZEN: read_sums(folder / SUMS)[FROZEN]}
    except (SafetensorError, OSError, UserError, KeyError):
        pass
    return {}


def load(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    scaler: GradScaler,
    process: int = 0,
    say: Callable[[str], None] = print,
    divided: Callable[[Tensor, Tensor], Tensor] = unchanged,
) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """Restore the weights, the optimizer, the moving average and the random generators in place.

    Args:
        folder: Folder that `save` wrote to.
        model: Model with the same architecture as the saved one.
        optimizer: Optimizer with the same parameter groups as the saved one.
        average: Moving average of the weights, or None.
        scaler: Factor of the loss in fp16.
        process: Index (rank) of this process in distributed training. The first one renames
            damaged checkpoints.
        say: Function that prints a line about a damaged checkpoint.
        divided: Function that divides a whole tensor over the processes as another one is divided.

    Returns:
        The position of the training, the tensors of `Log.pending`, and the positions in the data.

    Raises:
        UserError: If there is no checkpoint, none is intact, or the newest one that is intact does
            not fit the model and the optimizer.
    """
    path, tensors, content = _read_newest(folder, process, say)
    file = path / FILE
    # Everything is checked before anything is changed.
    state = validated(State, content, file)
    for name in State.model_fields.keys() - state.model_fields_set:
        raise UserError(f"{file}: not valid: {name} is missing")
    if state.parts > state.batch_size:
        raise UserError(f"{file}: parts: must be at most batch_size, got {state.parts}")
    weights = _without_prefix("model", tensors)
    expected = model.state_dict()
    check_weights(weights, expected, file)
    averaged = _without_prefix("ema", tensors)
    if average is not None and averaged:
        check_weights(averaged, average.tensors, file)
    entries = _optimizer_state(_without_prefix("optimizer", tensors), optimizer, file)
    generators = _without_prefix("generators", tensors)
    device = next(model.parameters()).device
    _check_generators(generators, generator_states(device), file)
    log = _without_prefix("log", tensors)
    check_log(log, file)
    factors = _scaler_state(_without_prefix("scaler", tensors), scaler, file)
    model.load_state_dict({name: divided(t, expected[name]) for name, t in weights.items()})
    # A run may turn averaging on or off when it resumes.
    if average is not None and averaged:
        for name, tensor in average.tensors.items():
            tensor.copy_(divided(averaged[name], tensor))
    elif average is not None:
        average.restart()
    # The groups keep the options of the resumed run, such as a new weight decay.
    parameters = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    for i, values in entries.items():
        entries[i] = {name: divided(t, parameters[i]) for name, t in values.items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    if factors:
        scaler.load_state_dict(factors)
    # If the resumed run has more processes than the saved one, the additional processes use the
    # states of the first process.
    row = process if process < len(generators["cpu"]) else 0
    try:
        # set_rng_state ignores the storage offset of a view and would read row 0, so clone the row.
        set_generator_states({name: rows[row].clone() for name, rows in generators.items()}, device)
    except RuntimeError as error:
        raise UserError(f"{file}: generators: not a state of a generator") from error
    return state, log, _without_prefix("order", tensors)


def load_frozen(folder: Path, model: nn.Module) -> bool:
    """Load the frozen weights of the newest checkpoint, which all checkpoints of a training share.

    Args:
        folder: Folder that `save` wrote to.
        model: Model with the same weights, of which the same ones are frozen.

    Returns:
        Whether all of them could be loaded.
    """
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    try:
        newest = all_checkpoints(folder)[0]
        check_file(newest / FROZEN)
        saved = _without_prefix("model", load_file(newest / FROZEN))
    except (IndexError, OSError, SafetensorError, UserError):
        return False  # the training itself says what is wrong
    if any(n not in saved or saved[n].shape != p.shape for n, p in frozen.items()):
        return False
    with torch.no_grad():
        for name, parameter in frozen.items():
            parameter.copy_(saved[name])
    return bool(frozen)


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints, the newest one first."""
    # By number of steps, because a copy of the folder can have other times.
    return sorted((path for path in folder.glob(f"{PREFIX}*") if path.is_dir()), reverse=True)


def read(folder: Path) -> tuple[dict[str, Tensor], Any]:
    """Read one checkpoint, and verify its SHA-256 sum.

    Returns:
        Its tensors by name, and the fields of the training's State, which are not checked yet.

    Raises:
        UserError: If it is damaged.
    """
    path = folder / FILE
    has_frozen = (folder / FROZEN).exists()
    names = (FILE, FROZEN) if has_frozen else (FILE,)
    for name in (SUMS, *names):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing")
        check_file(folder / name)
    # A cut or empty list would otherwise hide damage.
    listed = check_sums(folder)
    for name in names:
        if name not in listed:
            raise UserError(f"{folder / SUMS}: must list {name}")
    try:
        tensors = load_file(folder / FROZEN) if has_frozen else {}
        tensors |= load_file(path)
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return tensors, state


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators of this process, (bytes,) each."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states of `generator_states`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def check_log(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Check the losses of the epoch in a checkpoint, see `Log.pending`.

    Raises:
        UserError: If one is missing or has another shape or type.
    """
    for name, is_float, ndim in (("losses", True, 1), ("sizes", False, 1), ("logged", False, 0)):
        values = tensors.get(name)
        if values is None or values.is_floating_point() != is_float or values.ndim != ndim:
            raise UserError(f"{path}: log/{name}: must be a list of numbers, or one for logged")
    count = len(tensors["losses"])
    if len(tensors["sizes"]) != count or not 0 <= int(tensors["logged"]) <= count:
        raise UserError(f"{path}: log/sizes: must have one number per loss")


def _read_newest(
    folder: Path, process: int, say: Callable[[str], None]
) -> tuple[Path, dict[str, Tensor], Any]:
    """Read the newest checkpoint that is intact, and put those aside that are damaged."""
    paths = all_checkpoints(folder)
    reasons: list[str] = []
    for path in paths:
        try:
            tensors, state = read(path)
        except UserError as error:
            reasons.append(str(error))
            continue
        for damaged, reason in zip(paths, reasons, strict=False):
            say(f"warning: damaged checkpoint, the one before it is used: {reason}")
            if process == 0:
                # Otherwise it would be taken for the newest one again.
                damaged.replace(damaged.with_name(DAMAGED + damaged.name))
        return path, tensors, state
    if reasons:
        listed = "\n".join(reasons)
        raise UserError(f"resume: all checkpoints in {folder} are damaged:\n{listed}")
    run = folder.parent
    if (run / MODEL).exists():  # of a finished run, whose checkpoints were deleted
        raise UserError(
            f"resume: {run} has a model, but no checkpoint to continue from; start a new training "
            f"from its model with weights={run}"
        )
    raise UserError(
        f"resume: {run} has no checkpoint yet, because it stopped before the first one was saved; "
        "start the training again"
    )


def _optimizer_state(
    tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, path: Path
) -> dict[int, dict[str, Tensor]]:
    """Return the state of an optimizer by the index of the parameter.

    Args:
        tensors: The tensors of the state. Each name has the index of a parameter, such as
            3/exp_avg.
        optimizer: Optimizer that receives the state.
        path: File of the tensors, for messages.

    Raises:
        UserError: If the state does not belong to this optimizer and its parameters.
    """
    check_after_loading({f"optimizer/{name}": t for name, t in tensors.items()}, path)
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        if not (index.isascii() and index.isdigit() and len(index) < 10):
            raise UserError(f"{path}: optimizer/{name}: must start with the index of a parameter")
        entries.setdefault(int(index), {})[key] = tensor
    expected = _kinds_of_state(optimizer) if entries else []
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in entries.items():
        shapes = {value.shape for value in values.values() if value.ndim}
        fits = i < len(parameters) and shapes <= {parameters[i].shape}
        kinds = {name: (value.dtype, not value.ndim) for name, value in values.items()}
        if not fits or kinds != expected[i]:
            raise UserError(
                f"{path}: the state of the optimizer does not fit the trained weights (parameter "
                f"{i} has {', '.join(sorted(values))}); resume with the options of the training, "
                "or start from its model with weights=RUN"
            )
    return entries


def _kinds_of_state(
    optimizer: torch.optim.Optimizer,
) -> list[dict[str, tuple[torch.dtype, bool]]]:
    """Return the type of each tensor of the state of each parameter, and whether it is a number.

    An optimizer has a state only after a step, so a copy takes one.
    """
    trial = copy.copy(optimizer)
    trial.state = type(trial.state)(dict)
    trial.param_groups = []
    tiny: list[Tensor] = []
    for group in optimizer.param_groups:
        # Small ones with the same number of dimensions. The first one keeps its size, because an
        # optimizer can divide it.
        parameters = [
            torch.zeros(p.shape[:1] + (1,) * (p.ndim - 1), dtype=p.dtype, device=p.device)
            for p in group["params"]
        ]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        trial.param_groups.append({**group, "params": parameters})
        tiny += parameters
    trial.step()
    states = [trial.state[parameter] for parameter in tiny]
    return [
        {name: (torch.as_tensor(v).dtype, not torch.as_tensor(v).ndim) for name, v in state.items()}
        for state in states
    ]


def _scaler_state(
    tensors: Mapping[str, Tensor], scaler: GradScaler, path: Path
) -> dict[str, float]:
    """Return the state of the factor of the loss. Empty if the training does not use fp16.

    Args:
        tensors: The numbers of the state, () each.
        scaler: The factor before it is restored.
        path: File of the tensors, for messages.

    Raises:
        UserError: If it is not the state of a factor.
    """
    expected = scaler.state_dict()
    if not (expected and tensors):
        return {}
    is_valid = tensors.keys() == expected.keys() and all(
        tensor.numel() == 1 and 0 <= tensor < math.inf for tensor in tensors.values()
    )
    if not is_valid or not tensors["scale"] > 0:
        raise UserError(f"{path}: scaler: not a state of the factor of the loss in fp16")
    return {name: tensor.item() for name, tensor in tensors.items()}


def _check_generators(
    tensors: Mapping[str, Tensor], current: Mapping[str, Tensor], path: Path
) -> None:
    """Check the states of the random generators.

    Args:
        tensors: The saved states by device, (P, bytes) each.
        current: The states of this process, (bytes,) each.
        path: File of the tensors, for messages.

    Raises:
        UserError: If one is missing or has another size.
    """
    for name, state in current.items():
        saved = tensors.get(name)
        # A training can move from a CPU to a GPU, whose generator then starts with its seed.
        if saved is None and name != "cpu":
            continue
        is_valid = saved is not None and saved.ndim == 2 and len(saved) > 0
        if saved is None or not is_valid or kind(saved[0]) != kind(state):
            raise UserError(f"{path}: generators/{name}: must have one state per row")


def _without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
