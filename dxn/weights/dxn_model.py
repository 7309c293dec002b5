"""The family of models that were trained with dxn, whose config.yaml describes all parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dxn.config.model_plan import check_files, read_model_plan
from dxn.core.errors import UserError
from dxn.core.files import CONFIG, LABELS, TARGET_TOKENIZER
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json, load_yaml
from dxn.models.model import module_key
from dxn.tokenize.text.vocabulary import load_tokenizer
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import copied
from dxn.weights.family import Architecture, Family, Options, TensorMap

# Tensors that depend on the order of the inputs. The embedding has one row per input, and the names
# of the layers contain the index of the input: fusion.mix.0.weight.
INPUT_EMBEDDING = "fusion.input_embedding.weight"
INPUT_LAYERS = ("fusion.mix.", "backbone.towers.", "head.pre.layers.")
# Keys of config.yaml whose value is a node, a mapping with the key _target_.
NODE_KEYS = ("fusion", "backbone", "head")


class SavedTask(Strict):
    """What labels.json of every task has: the name of the task, and the names of its classes."""

    task: str
    labels: list[str] | None = None


def matches(checkpoint: Checkpoint) -> bool:
    """Return whether the folder of the weights contains a config.yaml of dxn."""
    if checkpoint.folder is None or not (checkpoint.folder / CONFIG).exists():
        return False
    # Other programs also write a config.yaml, but not together with a labels.json.
    if (checkpoint.folder / LABELS).exists():
        return True
    return {"adapters", *NODE_KEYS} <= load_yaml(checkpoint.folder / CONFIG).keys()


def architecture(checkpoint: Checkpoint) -> Architecture:
    """Return the options in config.yaml. The options of each part include its _target_.

    Raises:
        UserError: If a file is missing or invalid, has changed since it was saved, or refers to
            classes that are not trusted.
    """
    folder = checkpoint.folder
    assert folder is not None
    check_files(folder)  # before reading them
    labels = folder / LABELS
    if not labels.exists():
        raise UserError(
            f"weights: {folder}: not a complete model folder, because {labels.name} is missing; "
            "copy the whole folder `model` of a run"
        )
    plan = read_model_plan(folder, trust=checkpoint.trust)
    if plan.members:
        raise UserError(
            f"weights: {folder}: is an ensemble, and a training starts from one model; set weights "
            "to the run folder of one of its members, such as members/0"
        )
    state = validated(SavedTask, load_json(labels), labels)
    path = folder / TARGET_TOKENIZER  # of the generated texts
    ids = load_tokenizer(path).get_vocab() if path.exists() else None
    backbone = dict(plan.backbone)
    adapters = {key: _without(node, "dim") for key, node in plan.adapters.items()}
    for key, node in adapters.items():
        positions = checkpoint.tensors.get(f"adapters.{module_key(key)}.pos_embed.weight")
        if "pos_grid" in node.get("resize", {}) and positions is not None:
            # Otherwise images without a fixed size would have positions that were resized twice.
            node["resize"] = {**node["resize"], "pos_grid": list(positions.shape[:2])}
    return Architecture(
        dim=backbone.pop("dim"),
        adapters=adapters,
        backbone=backbone,
        # A new model may have other inputs and another width, so these options are not copied.
        fusion=_without(plan.fusion, "dim", "inputs"),
        head=dict(plan.head),
        inputs=tuple(plan.inputs),
        labels=state.labels if ids is None else sorted(ids, key=ids.__getitem__),
        task=state.task,
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    """Return a tensor map that copies each tensor, because the names are the same."""
    return {name: copied(name) for name in checkpoint.tensors}


def reorder_inputs(
    tensors: Mapping[str, Tensor], old: Sequence[str], new: Sequence[str]
) -> dict[str, Tensor]:
    """Reorder tensors for a model with other inputs, or with the same inputs in another order.

    The fusion identifies inputs by their index. If a model for (text, image) were loaded into a
    model for (image, text) without reordering, the image would get the layer of the text.

    Args:
        tensors: Tensors of the saved model.
        old: Names of the inputs of the saved model, in order.
        new: Names of the inputs of the new model, in order.

    Returns:
        The tensors, without those of inputs that the new model does not have.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name == INPUT_EMBEDDING:
            # This tensor has the embeddings of all inputs. If one of them is missing in the saved
            # model, the new model keeps its random initialization.
            if set(new) <= set(old):
                result[name] = tensor[[old.index(input_name) for input_name in new]]
        elif name.startswith(INPUT_LAYERS):
            prefix = next(prefix for prefix in INPUT_LAYERS if name.startswith(prefix))
            index, _, rest = name.removeprefix(prefix).partition(".")
            input_name = old[int(index)]
            if input_name in new:
                result[f"{prefix}{new.index(input_name)}.{rest}"] = tensor
        else:
            result[name] = tensor
    return result


def _without(node: Options, *names: str) -> Options:
    return {key: value for key, value in node.items() if key not in names}


DXN_MODEL = Family("a model trained by dxn", matches, architecture, tensor_map, is_dxn=True)
