"""Chronos-Bolt: a T5 over patches of a series that predicts quantiles of its next values.

The first Chronos (arXiv:2403.07815) and Chronos-2 have the same key in their config.json.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import linears
from dxn.weights.families import t5
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource

CONFIG = "chronos_config"
CLASS = "ChronosBoltModelForForecasting"
# Layers of a residual block, by their names in the adapter and in the head.
STEM = {"hidden": "hidden_layer", "out": "output_layer", "skip": "residual_layer"}
HEAD = {"mlp.dense": "hidden_layer", "out": "output_layer", "skip": "residual_layer"}
END_TOKEN = 1  # row of the embedding, after that of the start token of the decoder
CONSTANT_STD = 1e-5  # a constant in the library


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) == "t5" and CONFIG in checkpoint.config


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    series = check(checkpoint)
    depth = config["num_layers"]
    steps, patch_size = series["prediction_length"], series["input_patch_size"]
    dim = config["d_model"]
    return Architecture(
        dim=dim,
        adapters={
            "series": {
                "channels": "separate",
                "patch_size": patch_size,
                "stem": "residual",
                "patch": {
                    "hidden_dim": config["d_ff"],
                    "end_token": series.get("use_reg_token", False),
                    "fill_start": True,
                    "constant_std": CONSTANT_STD,
                },
                "normalize": "sample",
                "pos_embed": "none",
                "max_len": series["context_length"] // patch_size,
            }
        },
        backbone=with_gaps(t5.backbone(checkpoint, depth)),
        head={
            "quantiles": series["quantiles"],
            "steps": steps,
            "hidden": "relu",
            "hidden_dim": config["d_ff"],
        },
        decoder={
            "max_len": 1,
            "pos_embed": "none",
            "scale_embedding": False,
            "backbone": t5.backbone(checkpoint, config.get("num_decoder_layers") or depth),
        },
        task="forecast",
        state={
            "horizon": steps,
            "season": 1,
            "residual": "none",
            "context": series["context_length"],
            "num_channels": 1,
            "channels": [],
        },
    )


def check(checkpoint: Checkpoint) -> Options:
    """Return the options of the series.

    Raises:
        UserError: If dxn does not support them.
    """
    config = checkpoint.settings
    names = config.get("architectures") or [CLASS]
    if names[0] != CLASS:
        hf.unsupported(
            checkpoint,
            f"the Chronos model {names[0]}, only Chronos-Bolt ({CLASS}); the first Chronos predicts"
            " one quantized value after another, and Chronos-2 attends to groups of series",
        )
    if config["feed_forward_proj"] != "relu":
        hf.unsupported(checkpoint, f"the activation function {config['feed_forward_proj']!r}")
    series = config[CONFIG]
    size, stride = series["input_patch_size"], series["input_patch_stride"]
    if stride != size:
        hf.unsupported(
            checkpoint,
            f"overlapping patches: input_patch_stride must be {size}, as input_patch_size, got "
            f"{stride}",
        )
    if series["context_length"] % size:
        hf.unsupported(
            checkpoint,
            f"a context_length that is no multiple of {size}, as input_patch_size, got "
            f"{series['context_length']}",
        )
    return series


def with_gaps(backbone: Options) -> Options:
    """Return the options of an encoder in which patches without values have a position, too."""
    return {**backbone, "position": {**backbone["position"], "gaps": True}}


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    start = checkpoint.config.get("decoder_start_token_id") or 0
    steps = architecture.head["steps"]

    def by_step(tensor: Tensor) -> Tensor:
        return rearrange(tensor, "(q h) ... -> (h q) ...", h=steps)

    stem, head = "input_patch_embedding", "output_patch_embedding"
    result = {
        **t5.stacks(checkpoint, architecture),
        "adapters.series.end_token": row("shared.weight", END_TOKEN),
        "head.decoder.embedding.weight": TensorSource(
            ("shared.weight",), lambda t: t[start : start + 1], moves=True
        ),
        **linears({f"adapters.series.stem.{k}": f"{stem}.{name}" for k, name in STEM.items()}),
        **linears({f"head.{k}": f"{head}.{name}" for k, name in HEAD.items()}),
    }
    for name in ("head.out", "head.skip"):
        for kind in ("weight", "bias"):
            source = result[f"{name}.{kind}"]
            result[f"{name}.{kind}"] = TensorSource(source.names, by_step, moves=True)
    return result


def row(name: str, index: int) -> TensorSource:
    """Use a row of an embedding."""
    return TensorSource((name,), lambda t: t[index], moves=True)


CHRONOS_BOLT = Family(
    "Chronos-Bolt",
    matches,
    architecture,
    tensor_map,
    ignored=(*t5.T5.ignored, "quantiles"),
)
