"""The model folder: how a trained model is saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dxn.config.instantiate import build, merge_options
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
from dxn.runs.saved.dtypes import Dtype, cast_early, set_dtype
from dxn.tasks import Task

if TYPE_CHECKING:
    from dxn.config.model_plan import ModelPlan
    from dxn.weights import PublicModel

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
        own = f"{sha256(new / CARD)}  {CARD}"
        sums = [own if line.endswith(f"  {CARD}") else line for line in lines]
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
        dtype: Data type of the weights, see `dxn.runs.saved.dtypes.set_dtype`.
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
    cast = partial(cast_early, dtype=dtype, device=device)
    try:
        plan = plan.with_defaults(trust, where=f"{CONFIG}: ")
        with without_values():
            network, task = _build_any(folder, plan, tensors, trust, cast)
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
    used = [set_dtype(model, dtype) for model in network.models]
    predictor = Predictor(
        network, task, columns=plan.columns, target=plan.target, layout=layout, dtype=used[0]
    )
    return predictor.captured()


def _build_any(
    folder: Path,
    plan: ModelPlan,
    tensors: Mapping[str, Tensor],
    trust: Sequence[str],
    cast: Callable[[MultimodalModel], None],
) -> tuple[Network, Task]:
    """Build the model or the ensemble of a model folder, and its task."""
    count = plan.members
    parts = [tensors]
    if count:
        from dxn.models.ensemble import split_tensors

        parts = split_tensors(tensors, count)
    built = [_build(folder, plan, part, trust, cast) for part in parts]
    networks: list[Network] = [model for model, _ in built]
    task = built[0][1]
    if (folder / STACK).exists():
        from dxn.stacking.stacked import load_stacks

        networks = load_stacks(folder, [model for model, _ in built])
    if not count:
        return networks[0], task
    if task.space is None:
        raise UserError(f"{folder / CONFIG}: {task.name} models cannot be combined")
    from dxn.models.ensemble import Ensemble

    return Ensemble(networks, task.space.mean), task


def _build(
    folder: Path,
    plan: ModelPlan,
    tensors: Mapping[str, Tensor],
    trust: Sequence[str],
    cast: Callable[[MultimodalModel], None],
) -> tuple[MultimodalModel, Task]:
    """Build the model and the task of a model folder, and load their weights and states.

    `cast` converts the model to the dtype in which its weights are loaded.
    """
    adapters = build_adapters(plan.adapters, trust, where=f"{CONFIG}: ")
    task = build(plan.head, key=f"{CONFIG}: head", trust=trust)
    load_fitted(folder, adapters, task)
    # `Target.bind` may read statistics of the adapters, such as the mean of the pixels, so their
    # weights are loaded before the model exists.
    for key, adapter in adapters.items():
        prefix = f"adapters.{module_key(key)}."
        own = {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }
        _load_weights(adapter, own, folder)
    task.target.bind({name: adapters[key] for name, key in plan.keys.items()})
    model = build_model(plan, task, adapters, trust=trust)
    cast(model)
    _load_weights(model, tensors, folder)
    return model, task


def from_public(
    source: str,
    *,
    revision: str | None = None,
    part: str | None = None,
    strict: bool = True,
    device: str = "cpu",
    dtype: Dtype = "auto",
    trust: Sequence[str] = (),
    head: Mapping[str, Any] | None = None,
) -> Predictor:
    """Load a public checkpoint, such as ViT, BERT or AST, with the interface of a trained model.

    It can predict if the checkpoint contains a classifier.

    Args:
        source: Path of a file or folder, or OWNER/NAME on the Hugging Face hub.
        revision: Branch, tag or commit on the hub.
        part: Modality to use, for a checkpoint with one tower per modality, such as CLIP.
        strict: Whether missing and unexpected tensors are an error.
        device: Device to run on, such as "cuda".
        dtype: Data type of the weights: float32, bf16, int8, or auto, which is bf16 if the model is
            large and the device has instructions for bf16.
        trust: Top-level packages besides dxn whose code the family of the checkpoint may use.
        head: Options of the head in place of those of the checkpoint, such as {"language": "de"}.

    Raises:
        UserError: If the checkpoint cannot be read, or dxn does not support its architecture.
    """
    from dxn.weights import read_public

    public = read_public(source, revision=revision, part=part, trust=tuple(trust))
    # Without values, so that only the weights of the checkpoint are in memory, in their dtype.
    with without_values():
        model, task = _build_public(public, trust, head or {})
    cast_early(model, dtype, device)
    public.fill(model, strict=strict)
    if any(parameter.is_meta for parameter in model.parameters()):
        # The checkpoint lacks some of the large ones, such as with strict=false.
        model, task = _build_public(public, trust, head or {})
        public.fill(model, strict=strict)
    model = model.to(device).eval()
    return Predictor(model, task, dtype=set_dtype(model, dtype)).captured()


def _build_public(
    public: PublicModel, trust: Sequence[str], head: Mapping[str, Any]
) -> tuple[MultimodalModel, Task]:
    """Build the model and the task of a public checkpoint."""
    plan = public.plan()
    plan = plan.model_copy(update={"head": merge_options(plan.head, head)})
    try:
        plan = plan.with_defaults(trust, where="" if head else "weights: ")
        adapters = build_adapters(plan.adapters, trust, where="weights: ")
        # The tokenizer first: its size is the number of rows of the embedding.
        public.prepare(adapters)
        task = build(plan.head, key="head" if head else "weights: head", trust=trust)
        if state := public.task_state():
            task.target.load(state)
        task.target.bind({name: adapters[key] for name, key in plan.keys.items()})
        return build_model(plan, task, adapters, trust=trust), task
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"weights: {public.checkpoint.source}: its config.json does not describe a model "
            f"({type(error).__name__}: {shorten(str(error), MAX_REASON)}); download it again"
        ) from error


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
