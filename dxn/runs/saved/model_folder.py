"""The model folder: how a trained model is saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dxn.config.instantiate import build
from dxn.config.settings import dump_yaml
from dxn.core.errors import UserError
from dxn.core.files import (
    CARD,
    CONFIG,
    STACK,
    SUMS,
    WEIGHTS,
    link,
    replace_folder,
    sha256,
    write_sums,
    write_text,
)
from dxn.core.tensors import (
    TensorFiles,
    check_after_loading,
    check_before_saving,
    set_tensor,
    without_values,
    write_tensors,
)
from dxn.models.model import MultimodalModel, Network, module_key
from dxn.runs.build import adapters_of, build_adapters, build_model, load_fitted, save_fitted
from dxn.runs.folder import model_folder
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved.dtypes import Dtype, dtype_of_weights, set_dtype
from dxn.tasks import Task

if TYPE_CHECKING:
    from dxn.config.model_plan import ModelPlan

MAX_REASON = 300  # characters; load_state_dict lists every tensor that does not match


def save(folder: Path, *, model: MultimodalModel, plan: ModelPlan, task: Task, card: str) -> None:
    """Write the model folder: weights, config.yaml, tokenizers, labels.json, card and checksums.

    Args:
        folder: Folder to write.
        model: The trained model. LoRA weights are merged into the matrices that they change.
        plan: What determines the model, for config.yaml.
        task: The fitted task.
        card: Model card in Markdown, for README.md.
    """
    from dxn.training.finetune import merged

    tensors = {name: t.detach().cpu() for name, t in merged(model).items()}
    check_before_saving(tensors)
    # The old folder stays complete until the new one takes its place.
    with replace_folder(folder) as new:
        write_tensors(new / WEIGHTS, tensors)
        (new / CONFIG).write_text(dump_yaml(plan.content()), encoding="utf-8")
        (new / CARD).write_text(card, encoding="utf-8")
        save_fitted(new, adapters_of(model), task)
        write_sums(new)


def write_card(folder: Path, card: str) -> None:
    """Replace the card of a model folder, and its line in the checksums."""
    with replace_folder(folder) as new:
        for path in folder.iterdir():
            if path.name != CARD and path.is_file():
                link(path, new / path.name)
        (new / CARD).write_text(card, encoding="utf-8")
        # The other checksums are kept: calculated again, they would hide a damaged file.
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        card_sum = f"{sha256(new / CARD)}  {CARD}"
        sums = [card_sum if line.endswith(f"  {CARD}") else line for line in lines]
        write_text(new / SUMS, "\n".join(sums) + "\n")


def load(
    folder: str | PathLike[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    trust: Sequence[str] = (),
) -> Predictor:
    """Load a trained model from its model folder, or from the run folder that contains it.

    Args:
        folder: MultimodalModel folder or run folder.
        device: Device that the model is moved to, such as "cuda".
        dtype: Data type of the weights, see `dxn.runs.saved.dtypes.dtype_of_weights`.
        trust: Top-level packages besides dxn whose code config.yaml may use.

    Raises:
        UserError: If a file is missing, changed or damaged, or config.yaml names a class that
            belongs neither to dxn nor to a trusted package.
    """
    # A training writes a model folder, and reads none.
    from dxn.config.model_plan import check_files, read_model_plan

    folder = model_folder(Path(folder))
    # Before anything else is read: a damaged file would cause an error that hides the reason.
    check_files(folder)
    plan = read_model_plan(folder, trust=trust)
    tensors = TensorFiles([folder / WEIGHTS])
    check_after_loading(tensors, folder / WEIGHTS)
    try:
        plan = plan.with_defaults(trust, where=f"{CONFIG}: ")
        with without_values():
            network, task, used = _build_network(folder, plan, tensors, trust, dtype, device)
        layout = None
        if plan.layout is not None:
            from dxn.data.series.layouts import layout_of

            layout = layout_of(plan.layout)
    except UserError as error:
        if str(folder) in str(error):
            raise
        # The key of an option would not tell that the problem is in this folder.
        lines = [f"{folder}: {line}" for line in str(error).splitlines()]
        raise UserError("\n".join(lines)) from error
    except MemoryError as error:
        raise UserError(
            f"{folder}: out of memory while the model was built; close other programs"
        ) from error
    # Everything comes from the files, so any other failure means that they contradict each other.
    except Exception as error:
        raise UserError(
            f"{folder}: its files do not describe a model ({type(error).__name__}: "
            f"{shorten(str(error), MAX_REASON)}); copy the whole folder again"
        ) from error
    network = network.to(device).eval()
    predictor = Predictor(
        network,
        task,
        columns=plan.columns,
        target=plan.target,
        layout=layout,
        dtype=set_dtype(network, dtype, used),
    )
    return predictor.optimized()


def _build_network(
    folder: Path,
    plan: ModelPlan,
    tensors: Mapping[str, Tensor],
    trust: Sequence[str],
    dtype: Dtype,
    device: str,
) -> tuple[Network, Task, torch.dtype | None]:
    """Build the model or the ensemble of a model folder, and load its weights.

    Returns:
        The network, its task, and the dtype of its weights, see `dtype_of_weights`.
    """
    parts = [tensors]
    if plan.members:
        from dxn.models.model import split_tensors

        parts = split_tensors(tensors, plan.members)
    built = [_build(folder, plan, part, trust, dtype, device) for part in parts]
    models = [model for model, _, _ in built]
    _, task, weights_dtype = built[0]
    networks: Sequence[Network] = models
    if (folder / STACK).exists():
        from dxn.stacking.stacked import load_stacks

        networks = load_stacks(folder, models)
    if not plan.members:
        return networks[0], task, weights_dtype
    if task.space is None:
        raise UserError(f"{folder / CONFIG}: {task.name} models cannot be combined")
    from dxn.models.model import Ensemble

    return Ensemble(networks, task.space.mean), task, weights_dtype


def _build(
    folder: Path,
    plan: ModelPlan,
    tensors: Mapping[str, Tensor],
    trust: Sequence[str],
    dtype: Dtype,
    device: str,
) -> tuple[MultimodalModel, Task, torch.dtype | None]:
    """Build one model of a model folder, and load its weights and states."""
    adapters = build_adapters(plan.adapters, trust, where=f"{CONFIG}: ")
    task = build(plan.head, key=f"{CONFIG}: head", trust=trust)
    load_fitted(folder, adapters, task)
    # `Target.bind` may read statistics of the adapters, such as the mean of the pixels, so their
    # weights are loaded before the model exists.
    for key, adapter in adapters.items():
        prefix = f"adapters.{module_key(key)}."
        adapter_tensors = {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }
        _load_weights(adapter, adapter_tensors, folder)
    task.target.bind({name: adapters[key] for name, key in plan.keys.items()})
    model = build_model(plan, task, adapters, trust=trust)
    weights_dtype = dtype_of_weights(model, dtype, device)
    if weights_dtype is not None:
        from dxn.models.inference import cast

        cast(model, weights_dtype)  # first, so that the weights are loaded in their dtype
    _load_weights(model, tensors, folder)
    return model, task, weights_dtype


def _load_weights(module: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Load a state dict that may come from an untrusted source's folder.

    Raises:
        UserError: If the tensors do not match the modules that config.yaml describes.
    """
    state = module.state_dict()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {name: tensor.shape for name, tensor in state.items()}:
        try:
            module.load_state_dict(tensors)  # for its message
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:MAX_REASON]
            raise UserError(f"{folder / WEIGHTS}: does not match {CONFIG}: {reason}") from error
    # One tensor at a time: load_state_dict would keep all of the file in memory.
    with torch.no_grad():
        for name in state:
            set_tensor(module, name, tensors[name])
