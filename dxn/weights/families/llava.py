"""LLaVA 1.5 (arXiv:2310.03744): images, encoded by CLIP or SigLIP, in the text of a Llama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dxn.core.untrusted import shortened
from dxn.tokenize.base import ADAPTERS
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import linears
from dxn.weights.families import clip, language_models
from dxn.weights.family import Architecture, Family, Options, TensorMap
from dxn.weights.tokenizers import read_tokenizer

# The names of the tensors of both models, as if they were alone. Those of old versions of
# transformers come first.
VISION = {
    f"{first}vision_tower.{second}": "vision_model."
    for first in ("", "model.")
    for second in ("vision_model.", "")
}
TEXT = {
    "language_model.": "",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
PROJECTOR = ("multi_modal_projector", "model.multi_modal_projector")
# The encoders of pictures.
TOWERS = {"clip_vision_model": clip.CLIP_IMAGE, "siglip_vision_model": clip.SIGLIP_IMAGE}
WRITERS = ("llama", "mistral", "qwen2")


def vision_part(checkpoint: Checkpoint) -> Checkpoint:
    part = checkpoint.part("vision_config", VISION)
    if hf.model_type(part) not in TOWERS:
        hf.unsupported(checkpoint, f"a LLaVA with the encoder {shortened(hf.model_type(part))}")
    return part


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    part = checkpoint.part("text_config", TEXT)
    kind = hf.model_type(part)
    if kind not in WRITERS:
        hf.unsupported(checkpoint, f"a LLaVA with the language model {shortened(kind)}")
    # Without a layer of their own, the logits are computed with the embedding.
    tied = {"tie_word_embeddings": "lm_head.weight" not in part}
    return replace(part, config={**part.config, **tied})


def architecture(checkpoint: Checkpoint) -> Architecture:
    settings = checkpoint.settings
    if settings["projector_hidden_act"] != "gelu":
        hf.unsupported(
            checkpoint, f"projector_hidden_act={shortened(settings['projector_hidden_act'])}"
        )
    vision = vision_part(checkpoint)
    encoder = TOWERS[hf.model_type(vision)].architecture(vision)
    text = language_models.llama_architecture(text_part(checkpoint))
    dim = {"dim": encoder.dim}
    has_class = encoder.fusion.get("pool") == "cls"
    image: Options = {
        "_target_": "dxn.tokenize.EncodedAdapter",
        "adapter": {"_target_": ADAPTERS["image"], **dim, **encoder.adapters["image"]},
        "fusion": {
            "_target_": "dxn.models.EarlyFusion",
            **dim,
            "pool": "cls" if has_class else "mean",
        },
        "backbone": {
            "_target_": "dxn.models.Backbone",
            **dim,
            **encoder.backbone,
            "depth": num_blocks(checkpoint, settings, encoder.backbone["depth"]),
            # The output of an inner block has no norm.
            "norm": {**encoder.backbone["norm"], "final_norm": False},
        },
        "leading": keeps_first(checkpoint, settings, has_class=has_class),
        "bias": settings["multimodal_projector_bias"],
    }
    words = text.adapters["text"]
    tokenizer = {**words["tokenizer"], "marker": image_token(checkpoint, settings)}
    return replace(
        text,
        adapters={"image": image, "text": {**words, "tokenizer": tokenizer}},
        fusion={**text.fusion, "input_embedding": False},
    )


def num_blocks(checkpoint: Checkpoint, settings: Mapping[str, Any], depth: int) -> int:
    """Return the number of blocks before the layer whose outputs the projector reads."""
    layer = settings["vision_feature_layer"]
    count = layer + depth + 1 if isinstance(layer, int) and layer < 0 else layer
    # Libraries differ in whether the output of the last block is normalized.
    if not isinstance(count, int) or not 0 <= count < depth:
        hf.unsupported(checkpoint, f"vision_feature_layer={shortened(layer)} of {depth} blocks")
    return count


def keeps_first(checkpoint: Checkpoint, settings: Mapping[str, Any], *, has_class: bool) -> bool:
    """Return whether the class token is a token of an image."""
    strategy = settings["vision_feature_select_strategy"]
    if strategy == "full":
        return has_class
    if strategy != "default" or not has_class:
        hf.unsupported(
            checkpoint,
            f"vision_feature_select_strategy={shortened(strategy)}"
            + (" without a class token" if strategy == "default" else ""),
        )
    return False


def image_token(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> str | None:
    """Return the token that stands for an image. None: there is no tokenizer."""
    index = settings.get("image_token_id", settings["image_token_index"])
    tokenizer = None if checkpoint.folder is None else read_tokenizer(checkpoint.folder)
    if tokenizer is None:
        return None
    token = tokenizer.id_to_token(index)
    if token is None:
        hf.unsupported(checkpoint, f"a tokenizer without the token {index} of an image")
    return token


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    image = architecture.adapters["image"]
    vision, text = vision_part(checkpoint), text_part(checkpoint)
    encoder = Architecture(
        dim=image["backbone"]["dim"],
        adapters={"image": image["adapter"]},
        backbone=image["backbone"],
        fusion=image["fusion"],
    )
    tower = TOWERS[hf.model_type(vision)].tensor_map(vision, encoder)
    projector = next(
        (name for name in PROJECTOR if f"{name}.linear_1.weight" in checkpoint), PROJECTOR[0]
    )
    maps = [
        (text, language_models.llama_tensor_map(text, architecture), ""),
        (vision, tower, "adapters.image."),
    ]
    result = linears(
        {
            "adapters.image.up": f"{projector}.linear_1",
            "adapters.image.down": f"{projector}.linear_2",
        }
    )
    for part, sources, prefix in maps:
        for name, source in sources.items():
            # The adapter of an encoder is a part of it.
            ours = name.replace("adapters.image.", "adapter.") if prefix else name
            names = tuple(map(part.original, source.names))
            result[prefix + ours] = replace(source, names=names)
    return result


LLAVA = Family(
    "LLaVA",
    hf.is_type("llava"),
    architecture,
    tensor_map,
    heads=("ConditionalGeneration",),
    # The blocks and the norm after the layer of the features, and its pooling.
    ignored=(
        r"(model\.)?vision_tower\.(vision_model\.)?(post_layernorm|head|embeddings\.position_ids)",
        r"(model\.)?vision_tower\.(vision_model\.)?encoder\.layers\.\d+\.",
        r"(.*\.)?lm_head\.",
        r"(.*\.)?rotary_emb\.inv_freq",
    ),
    optional_biases=("patch_embedding.bias",),
)
