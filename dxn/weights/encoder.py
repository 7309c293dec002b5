"""Use a checkpoint of a whole model as the encoder of one input of another model."""

from __future__ import annotations

from dxn.core.errors import UserError
from dxn.models.model import module_key
from dxn.models.pooling import WITH_CLASS
from dxn.tokenize.base import ADAPTERS
from dxn.weights.family import Architecture, Options
from dxn.weights.public import BACKBONE, FUSION, PublicModel

ENCODED = "dxn.tokenize.EncodedAdapter"


def as_encoder(public: PublicModel, dim: int | None = None) -> PublicModel:
    """Return a checkpoint as that of an adapter with an encoder, whose output vectors are tokens.

    The adapter, the fusion and the backbone of the checkpoint become parts of a
    `dxn.tokenize.EncodedAdapter`, and its head is not used. The layer from the width of the encoder
    to D is new. Class tokens and registers are tokens, too.

    Args:
        public: The checkpoint.
        dim: Width D of the tokens. Default: that of the checkpoint.

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
