"""AST (arXiv:2104.01778), wav2vec 2.0 (arXiv:2006.11477) and HuBERT (arXiv:2106.07447).

AST, the audio spectrogram transformer, classifies sounds. The others transcribe or classify speech.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint, read_json
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    leading_tokens,
    linears,
    patch_matrix,
)
from dxn.weights.family import (
    Architecture,
    Classifier,
    Family,
    Options,
    TensorMap,
    TensorSource,
)
from dxn.weights.feature_extractor import read_feature_extractor

# A tensor of the bare model, and its name as a part of a model with a head.
AST_BASE = ("embeddings.cls_token", "audio_spectrogram_transformer")
WAV2VEC2_BLOCK: LayerNames = {
    "attn.qkv": tuple(f"attention.{name}_proj" for name in ("q", "k", "v")),
    "attn.proj": "attention.out_proj",
    "attn_norm": "layer_norm",
    "mlp.up": "feed_forward.intermediate_dense",
    "mlp.down": "feed_forward.output_dense",
    "mlp_norm": "final_layer_norm",
}
# Values of settings that the stem has.
REQUIRED = {"layer_norm_eps": 1e-5, "feat_extract_activation": "gelu"}
UNSUPPORTED = {
    "add_adapter": "layers that shorten the output (add_adapter)",
    "adapter_attn_dim": "layers of single languages (adapter_attn_dim)",
    "conv_pos_batch_norm": "a batch norm before the positions (conv_pos_batch_norm)",
    "use_weighted_layer_sum": "a weighted sum of the blocks (use_weighted_layer_sum)",
}


def ast_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    classifier = hf.classifier_options(checkpoint, "classifier.dense")
    return Architecture(
        dim=config["hidden_size"],
        adapters={"audio": ast_audio(checkpoint)},
        backbone=hf.backbone_options(checkpoint, config),
        # AST averages the class token and the distillation token. In dxn the latter is a register.
        fusion={"pool": "leading", "registers": 1},
        head={"norm": True, "norm_eps": config["layer_norm_eps"]} if classifier else {},
        **classifier,
    )


def ast_audio(checkpoint: Checkpoint) -> Options:
    config = checkpoint.settings
    sizes = {key: config[key] for key in ("num_mel_bins", "max_length")}
    settings = read_feature_extractor(checkpoint, "AST", **sizes)
    sample_rate = settings["sampling_rate"]
    normalize = {"kind": "dataset", "mean": 0.0, "std": 1.0}
    if settings["do_normalize"]:
        # AST divides by twice the standard deviation.
        normalize |= {"mean": settings["mean"], "std": 2 * settings["std"]}
    return {
        "tokens": "patches",
        "sample_rate": sample_rate,
        "spectrogram": {
            "frontend": "kaldi",  # as in the original implementation (section 2.1)
            "n_fft": sample_rate // 40,  # 25 ms
            "hop_length": sample_rate // 100,  # 10 ms
            "n_mels": settings["num_mel_bins"],
            "num_frames": settings["max_length"],
        },
        "patch": {
            "size": config["patch_size"],
            "stride": [config["frequency_stride"], config["time_stride"]],
            "pad_end": False,  # a strided convolution ignores an incomplete patch at the end
        },
        "normalize": normalize,
        "pos_embed": "learned",
        "max_len": grid_of(checkpoint)[1],
    }


def ast_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*AST_BASE)
    patch_size = checkpoint.settings["patch_size"]
    bands, steps = grid_of(checkpoint)
    positions = f"{p}embeddings.position_embeddings"

    def time_first(t: Tensor) -> Tensor:
        # Patches are ordered by frequency, then by time in AST; by time, then by frequency in dxn.
        # The first two positions belong to the class token and the distillation token.
        return rearrange(t[0, 2:], "(f t) d -> t f d", f=bands, t=steps)

    return {
        "adapters.audio.proj.weight": patch_matrix(
            f"{p}embeddings.patch_embeddings.projection.weight",
            channels=1,
            height=patch_size,
            width=patch_size,
        ),
        "adapters.audio.proj.bias": copied(f"{p}embeddings.patch_embeddings.projection.bias"),
        "adapters.audio.pos_embed.weight": TensorSource((positions,), time_first),
        "fusion.pool.tokens": leading_tokens(
            (f"{p}embeddings.cls_token", f"{p}embeddings.distillation_token"),
            positions,
            num_patches=bands * steps,
        ),
        **blocks(
            hf.VIT_BLOCK, prefix=p + "encoder.layer.{i}", depth=architecture.backbone["depth"]
        ),
        **linears(
            {
                "backbone.norm": f"{p}layernorm",
                "head.pre.norm": "classifier.layernorm",
                "head.out": "classifier.dense",
            }
        ),
    }


def ast_classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.pre.norm": "classifier.layernorm", "head.out": "classifier.dense"}
    prefix = "audio_spectrogram_transformer."
    return hf.classifier("ASTForAudioClassification", labels, layers, prefix=prefix)


def ast_to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings.

    dxn stores the sum of a leading token and its position embedding. The sum becomes the token, and
    the position embedding becomes zero.
    """
    p = checkpoint.prefix(*AST_BASE)
    tokens = state["fusion.pool.tokens"]
    patches = rearrange(state["adapters.audio.pos_embed.weight"], "t f d -> (f t) d")
    positions = torch.cat([torch.zeros_like(tokens), patches])
    return {
        f"{p}embeddings.cls_token": tokens[None, :1],
        f"{p}embeddings.distillation_token": tokens[None, 1:],
        f"{p}embeddings.position_embeddings": positions[None],
    }


def grid_of(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the number of patches along the mel axis and along the time axis."""
    config = checkpoint.settings
    patch_size = config["patch_size"]
    bands = (config["num_mel_bins"] - patch_size) // config["frequency_stride"] + 1
    steps = (config["max_length"] - patch_size) // config["time_stride"] + 1
    return bands, steps


AST = Family(
    "AST",
    hf.is_type("audio-spectrogram-transformer"),
    ast_architecture,
    ast_tensor_map,
    heads=("AudioClassification",),
    optional_biases=hf.VIT_BIASES,
    classifier=ast_classifier,
    to_checkpoint=ast_to_checkpoint,
)


def wav2vec2_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    for key, feature in UNSUPPORTED.items():
        if config.get(key):
            hf.unsupported(checkpoint, feature)
    for key, value in REQUIRED.items():
        if config[key] != value:
            hf.unsupported(checkpoint, f"{key}={config[key]}, only {value}")
    place = "pre" if config.get("do_stable_layer_norm") else "post"
    backbone = hf.backbone_options(checkpoint, config)
    transcribes = "lm_head.weight" in checkpoint
    return Architecture(
        dim=config["hidden_size"],
        adapters={"audio": wav2vec2_audio(checkpoint, config, post_norm=place == "post")},
        backbone={**backbone, "norm": {**backbone["norm"], "place": place}},
        fusion={"pool": "mean"},  # as in the models for classification
        **(
            {"task": "ctc", "labels": vocabulary(checkpoint)}
            if transcribes
            else hf.classifier_options(checkpoint, "classifier")
        ),
    )


def wav2vec2_audio(
    checkpoint: Checkpoint, config: Mapping[str, Any], *, post_norm: bool
) -> Options:
    settings = read_feature_extractor(checkpoint, "Wav2Vec2", feature_size=1)
    return {
        "tokens": "waveform",
        "sample_rate": settings["sampling_rate"],
        "stem": "wav2vec",
        "patch": {
            "wav2vec": {
                "widths": config["conv_dim"],
                "kernels": config["conv_kernel"],
                "strides": config["conv_stride"],
                "bias": config["conv_bias"],
                "norm": config["feat_extract_norm"],
                "proj_norm": config["feat_proj_layer_norm"],
                "pos_kernel": config["num_conv_pos_embeddings"],
                "pos_groups": config["num_conv_pos_embedding_groups"],
                "output_norm": post_norm,
            }
        },
        "normalize": {"kind": "clip" if settings["do_normalize"] else "none"},
        "pos_embed": "none",  # the stem has positions
    }


def wav2vec2_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix("feature_projection.projection.weight", hf.model_type(checkpoint))
    stem = "adapters.audio.stem"
    layers: LayerNames = {
        f"{stem}.proj_norm": f"{p}feature_projection.layer_norm",
        f"{stem}.proj": f"{p}feature_projection.projection",
        # The same norm is before the blocks of a post-norm model, and after those of a pre-norm
        # model. The model has one of both.
        f"{stem}.norm": f"{p}encoder.layer_norm",
        "backbone.norm": f"{p}encoder.layer_norm",
    }
    for i in range(len(architecture.adapters["audio"]["patch"]["wav2vec"]["widths"])):
        conv = f"{p}feature_extractor.conv_layers.{i}"
        layers = {
            **layers,
            f"{stem}.convs.{i}": f"{conv}.conv",
            f"{stem}.norms.{i}": f"{conv}.layer_norm",
        }
    position = f"{p}encoder.pos_conv_embed.conv"
    names = (f"{position}.weight_g", f"{position}.weight_v")
    if names[0] not in checkpoint:
        parametrized = f"{position}.parametrizations.weight.original"
        names = (f"{parametrized}0", f"{parametrized}1")
    head = {"head.out": "lm_head"} if "lm_head.weight" in checkpoint else {}
    return {
        f"{stem}.pos_conv.weight": TensorSource(names, without_weight_norm, with_weight_norm),
        f"{stem}.pos_conv.bias": copied(f"{position}.bias"),
        **linears({**layers, **head}),
        **blocks(
            WAV2VEC2_BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]
        ),
        **({} if head else folded_classifier()),
    }


def without_weight_norm(scale: Tensor, weight: Tensor) -> Tensor:
    """Return the weight (D, D / groups, K) of a convolution with weight norm (arXiv:1602.07868)."""
    return weight * (scale / torch.linalg.vector_norm(weight, dim=(0, 1), keepdim=True))


def with_weight_norm(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the weight of a convolution with weight norm."""
    return torch.linalg.vector_norm(weight, dim=(0, 1), keepdim=True), weight


def folded_classifier() -> TensorMap:
    """Return one layer instead of the projection of all tokens and the classifier of their mean."""
    layers = ("classifier.weight", "projector.weight")
    return {
        "head.out.weight": TensorSource(layers, lambda outer, inner: outer @ inner),
        "head.out.bias": TensorSource(
            ("classifier.weight", "projector.bias", "classifier.bias"),
            lambda outer, inner, bias: outer @ inner + bias,
        ),
    }


def vocabulary(checkpoint: Checkpoint) -> list[str]:
    """Return the text of each output: "" for the blank, and " " between words.

    A checkpoint without vocab.json has the names of the outputs instead.
    """
    count = checkpoint.num_rows("lm_head.weight")
    folder = checkpoint.folder
    ids = {} if folder is None else read_json(folder / "vocab.json")
    settings = {} if folder is None else read_json(folder / "tokenizer_config.json")
    if any(isinstance(value, dict) for value in ids.values()):
        hf.unsupported(checkpoint, "vocabularies of several languages in vocab.json")
    if settings.get("tokenizer_class") == "Wav2Vec2PhonemeCTCTokenizer":
        hf.unsupported(checkpoint, "vocabularies of phonemes")
    labels = [f"[{i}]" for i in range(count)]
    for token, index in ids.items():
        if isinstance(index, int) and 0 <= index < count:
            labels[index] = str(token).lower() if settings.get("do_lower_case") else str(token)
    blank = checkpoint.settings.get("pad_token_id") or 0
    token = settings.get("word_delimiter_token", "|")
    # Old files have an object with the text and its properties.
    delimiter = ids.get(str(token.get("content") if isinstance(token, dict) else token))
    if isinstance(delimiter, int) and 0 <= delimiter < count:
        labels[delimiter] = " "
    if blank >= count or blank < 0:
        hf.unsupported(checkpoint, f"pad_token_id={blank} of {count} outputs, which is the blank")
    labels[blank] = ""
    return labels


WAV2VEC2 = Family(
    "wav2vec 2.0 and HuBERT",
    hf.is_type("wav2vec2", "hubert"),
    wav2vec2_architecture,
    wav2vec2_tensor_map,
    heads=("CTC", "SequenceClassification", "PreTraining"),
    ignored=(
        r"(\w+\.)?masked_spec_embed",
        # Heads of pretraining.
        r"(quantizer|project_q|project_hid|final_proj|label_embs)\b",
    ),
)
