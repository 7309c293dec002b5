"""Use a checkpoint of a whole model as the encoder of one input of another model."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from dxn.config.instantiate import build, completed
from dxn.config.values import assign
from dxn.core.errors import UserError
from dxn.models.model import MultimodalModel, module_key
from dxn.models.pooling import WITH_CLASS
from dxn.tokenize.base import ADAPTERS
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.weights.family import Architecture, Options
from dxn.weights.public import BACKBONE, FUSION, PublicModel, read_public

ENCODED = "dxn.tokenize.EncodedAdapter"


def load_encoder(
    source: str, dim: int | None = None, *, revision: str | None = None, part: str | None = None
) -> EncodedAdapter:
    """Return an adapter whose tokens are the output vectors of a published encoder.

    Args:
        source: A file, a folder, or a hub id OWNER/NAME.
        dim: Width D of the tokens. Default: that of the encoder.
        revision: Branch, tag or commit on the hub.
        part: Tower of a checkpoint with several ones, such as image or text of CLIP.

    Raises:
        UserError: If the checkpoint cannot be read, or has several inputs.
    """
    public = as_encoder(unpadded(read_public(source, revision=revision, part=part)), dim)
    ((key, node),) = public.architecture.adapters.items()
    adapter = build(completed(node), key="adapters")
    public.prepare({key: adapter})
    # A model of this adapter alone, because weights are loaded into models.
    parts = {"fusion": nn.Identity(), "backbone": nn.Identity(), "head": nn.Identity()}
    model = MultimodalModel({key: adapter}, inputs={key: key}, **parts)
    public.fill(model, only=(f"adapters.{key}.",))
    return adapter


def unpadded(public: PublicModel) -> PublicModel:
    """Return a checkpoint whose inputs are not filled up, such as clips of Whisper with silence.

    Trainings start from it, because the encoder needs no such padding.
    """
    arch = public.architecture
    adapters = copy.deepcopy(dict(arch.adapters))
    for key, options in arch.encoder.items():
        for name, value in options.items():
            assign(adapters[key], name, value)
    return replace(public, architecture=replace(arch, adapters=adapters))


def as_encoder(
    public: PublicModel, dim: int | None = None, *, max_columns: int | None = None
) -> PublicModel:
    """Return a checkpoint as that of an adapter with an encoder, whose output vectors are tokens.

    The adapter, the fusion and the backbone of the checkpoint become parts of a
    `dxn.tokenize.EncodedAdapter`, and its head is not used. The layer from the width of the encoder
    to D is new. Class tokens and registers are tokens, too.

    Args:
        public: The checkpoint.
        dim: Width D of the tokens. Default: that of the checkpoint.
        max_columns: Maximum number of columns of an input, see `dxn.tokenize.EncodedAdapter`.

    Raises:
        UserError: If the checkpoint has several inputs.
    """
    arch = public.architecture
    # A model that answers questions has two inputs only because of its head.
    is_joint = public.family.is_dxn and len(arch.inputs) > 1
    if len(arch.adapters) != 1 or is_joint:
        names = ", ".join(arch.inputs if is_joint else arch.adapters)
        raise UserError(
            f"weights: {public.checkpoint.source}: an encoder of one input must have one input, "
            f"got {names}; use another checkpoint"
        )
    ((key, options),) = arch.adapters.items()
    target = options.get("_target_") or ADAPTERS[key]
    modality = next((name for name, path in ADAPTERS.items() if path == target), key)
    own = {"dim": arch.dim}
    # Another pooling would have weights without any effect.
    pool = "cls" if arch.fusion.get("pool") in WITH_CLASS else "mean"
    node: Options = {
        "_target_": ENCODED,
        "adapter": {**own, **options, "_target_": target},
        "fusion": {"_target_": FUSION, **own, **arch.fusion, "pool": pool},
        "backbone": {"_target_": BACKBONE, **own, **arch.backbone},
        "leading": True,
        "max_columns": max_columns,
        "projector": "linear",
    }
    width = arch.dim if dim is None else dim
    architecture = Architecture(
        width,
        adapters={modality: {**node, "dim": width}},
        backbone={},
        encoder={modality: arch.encoder.get(key, {})},
    )
    # Those of the head keep their names, so that they count as known.
    adapter, prefix = f"adapters.{module_key(key)}.", f"adapters.{modality}."
    tensor_map = {}
    for name, source in public.tensor_map.items():
        if name.startswith(adapter):
            name = f"{prefix}adapter.{name.removeprefix(adapter)}"
        elif name.startswith(("fusion.", "backbone.")):
            name = prefix + name
        tensor_map[name] = source
    return PublicModel(public.checkpoint, public.family, architecture, tensor_map)
