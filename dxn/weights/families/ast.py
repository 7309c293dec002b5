"""AST, the audio spectrogram transformer (arXiv:2104.01778)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, leading_tokens, linears, patch_matrix
from dxn.weights.family import (
    Architecture,
    Classifier,
    Family,
    Options,
    TensorMap,
    TensorSource,
)

# A tensor of the bare model, and its name as a part of a model with a head.
BASE = ("embeddings.cls_token", "audio_spectrogram_transformer")
# Mean and standard deviation of the log-mel spectrograms of AudioSet.
MEAN = -4.2677393
STD = 4.5689974


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    labels = hf.class_names(checkpoint, "classifier.dense")
    return Architecture(
        dim=config["hidden_size"],
        adapters={"audio": audio_options(checkpoint)},
        backbone=hf.backbone_options(checkpoint, config),
        # AST averages the class token and the distillation token. In dxn the latter is a register.
        fusion={"pool": "leading", "registers": 1},
        head={"norm": True, "norm_eps": config["layer_norm_eps"]} if labels else {},
        labels=labels,
    )


def audio_options(checkpoint: Checkpoint) -> Options:
    config = checkpoint.settings
    settings = checkpoint.preprocessor
    sample_rate = settings.get("sampling_rate", 16000)
    normalize = {
        "kind": "dataset",
        "mean": settings.get("mean", MEAN),
        # AST divides by twice the standard deviation.
        "std": 2 * settings.get("std", STD),
    }
    if not settings.get("do_normalize", True):
        normalize = {"kind": "dataset", "mean": 0.0, "std": 1.0}
    return {
        "tokens": "patches",
        "sample_rate": sample_rate,
        "spectrogram": {
            "frontend": "kaldi",  # as in the original implementation (section 2.1)
            "n_fft": sample_rate // 40,  # 25 ms
            "hop_length": sample_rate // 100,  # 10 ms
            "n_mels": config["num_mel_bins"],
            "num_frames": config["max_length"],
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


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
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


def classifier(checkpoint: Checkpoint, labels: Sequence[str]) -> Classifier:
    layers = {"head.pre.norm": "classifier.layernorm", "head.out": "classifier.dense"}
    prefix = "audio_spectrogram_transformer."
    return hf.classifier("ASTForAudioClassification", labels, layers, prefix=prefix)


def to_checkpoint(
    state: Mapping[str, Tensor], checkpoint: Checkpoint, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the leading tokens and the position embeddings.

    dxn stores the sum of a leading token and its position embedding. The sum becomes the token, and
    the position embedding becomes zero.
    """
    p = checkpoint.prefix(*BASE)
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
    architecture,
    tensor_map,
    optional_biases=hf.VIT_BIASES,
    classifier=classifier,
    to_checkpoint=to_checkpoint,
)
