"""T5, T5 1.1, Flan-T5 and mT5 (arXiv:1910.10683), and Chronos-Bolt.

They are encoder-decoders with relative positions. Chronos-Bolt is a T5 over patches of a series
that predicts quantiles of its next values. The first Chronos (arXiv:2403.07815) and Chronos-2 are
refused, although their config.json has the key chronos_config, too.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource

ATTENTION: LayerNames = {
    "attn_norm": "layer.0.layer_norm",
    "attn.qkv": tuple(f"layer.0.SelfAttention.{name}" for name in "qkv"),
    "attn.proj": "layer.0.SelfAttention.o",
}
CROSS: LayerNames = {
    "cross_norm": "layer.1.layer_norm",
    "cross.query": "layer.1.EncDecAttention.q",
    "cross.memory": ("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "cross.proj": "layer.1.EncDecAttention.o",
}
GATED = "gated-"  # start of feed_forward_proj for an MLP with a gate
GATED_MLPS = {"gelu": "geglu_tanh", "gelu_new": "geglu_tanh", "silu": "swiglu"}
POSITION_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # that of all blocks
DECODER = "head.decoder.backbone"
CHRONOS_CONFIG = "chronos_config"
CHRONOS_CLASS = "ChronosBoltModelForForecasting"
# Layers of a residual block, by their names in the adapter and in the head.
CHRONOS_STEM = {"hidden": "hidden_layer", "out": "output_layer", "skip": "residual_layer"}
CHRONOS_HEAD = {"mlp.dense": "hidden_layer", "out": "output_layer", "skip": "residual_layer"}
END_TOKEN = 1  # row of the embedding, after that of the start token of the decoder
CONSTANT_STD = 1e-5  # a constant in the library


def t5_matches(checkpoint: Checkpoint) -> bool:
    is_series = CHRONOS_CONFIG in checkpoint.config
    return hf.model_type(checkpoint) in ("t5", "mt5") and not is_series


def t5_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    max_len = config["n_positions"]
    depth = config["num_layers"]
    adapters: dict[str, Options] = {
        "text": {"max_len": max_len, "pos_embed": "none", "tokenizer": {"special_tokens": True}}
    }
    if not checkpoint.num_layers(f"decoder.block.{{i}}.{CROSS['cross.query']}.weight"):
        return Architecture(config["d_model"], adapters, t5_backbone(checkpoint, depth))
    decoder = t5_backbone(checkpoint, config.get("num_decoder_layers") or depth)
    return Architecture(
        dim=config["d_model"],
        adapters=adapters,
        backbone=t5_backbone(checkpoint, depth),
        head=hf.writing_options(checkpoint, max_len),
        decoder={
            "max_len": max_len,
            "pos_embed": "none",
            "scale_embedding": False,
            "output": _output(checkpoint),
            "backbone": decoder,
        },
        task="generate",
    )


def t5_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    return {
        **stacks(checkpoint, architecture),
        "adapters.text.embedding.weight": copied(embedding(checkpoint)),
        "head.decoder.output.weight": copied("lm_head.weight"),
    }


def stacks(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    """Return the tensors of the encoder, and of the decoder if there is one."""
    result = {
        "backbone.bias.weight": copied(f"encoder.{POSITION_BIAS}"),
        **linears({"backbone.norm": "encoder.final_layer_norm"}),
        **_blocks(checkpoint, "encoder", architecture.backbone["depth"], "backbone"),
    }
    if architecture.decoder:
        depth = architecture.decoder["backbone"]["depth"]
        result |= {
            f"{DECODER}.bias.weight": copied(f"decoder.{POSITION_BIAS}"),
            f"{DECODER}.norm.weight": copied("decoder.final_layer_norm.weight"),
            **_blocks(checkpoint, "decoder", depth, DECODER),
        }
    return result


def t5_backbone(checkpoint: Checkpoint, depth: int) -> Options:
    """Return the options of the backbone of a stack."""
    config = checkpoint.settings
    name = str(config["feed_forward_proj"])
    gate = name.removeprefix(GATED)
    if name.startswith(GATED) and gate not in GATED_MLPS:
        hf.unsupported(checkpoint, f"the activation function {name!r}")
    is_gated = name.startswith(GATED)
    return {
        "depth": depth,
        "num_heads": config["num_heads"],
        "block": {
            "mlp": GATED_MLPS[gate]
            if is_gated
            else hf.activation(checkpoint, {"hidden_act": name}),
            "hidden_dim": config["d_ff"],
            "head_dim": config["d_kv"],
            "bias": False,
            "score": "dot",
        },
        "norm": {"kind": "rms", "eps": config["layer_norm_epsilon"]},
        "position": {
            "kind": "buckets",
            "num_buckets": config["relative_attention_num_buckets"],
            "max_distance": config["relative_attention_max_distance"],
        },
    }


def _blocks(checkpoint: Checkpoint, stack: str, depth: int, to: str) -> TensorMap:
    """Return the tensors of the blocks of a stack: "encoder" or "decoder"."""
    cross = CROSS if stack == "decoder" else {}
    mlp = f"layer.{2 if cross else 1}"
    is_gated = str(checkpoint.settings["feed_forward_proj"]).startswith(GATED)
    up = ("wi_1", "wi_0") if is_gated else ("wi",)  # the value, then the gate
    names = {
        **ATTENTION,
        **cross,
        "mlp_norm": f"{mlp}.layer_norm",
        "mlp.up": tuple(f"{mlp}.DenseReluDense.{name}" for name in up),
        "mlp.down": f"{mlp}.DenseReluDense.wo",
    }
    return blocks(names, prefix=f"{stack}.block.{{i}}", depth=depth, to=f"{to}.blocks")


def _output(checkpoint: Checkpoint) -> Options:
    """Return options of the output layer: that of T5 1.0 is tied and scaled."""
    config = checkpoint.settings
    is_old = config.get("scale_decoder_outputs", config["tie_word_embeddings"] is not False)
    is_tied = hf.is_tied(checkpoint, embedding(checkpoint), "lm_head.weight")
    scale = {"scale": config["d_model"] ** -0.5} if is_old else {}
    return {**scale, "tie_embeddings": is_tied}


def embedding(checkpoint: Checkpoint) -> str:
    """Return the name of the embedding of the tokens."""
    return hf.first_of(checkpoint, "shared.weight", "encoder.embed_tokens.weight")


T5 = Family(
    "T5",
    t5_matches,
    t5_architecture,
    t5_tensor_map,
    heads=("ConditionalGeneration",),
    ignored=(
        r"(shared|(en|de)coder\.embed_tokens|lm_head)\.weight",
        # Old files have a bias of the cross-attention, which the library does not use.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)


def chronos_matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) == "t5" and CHRONOS_CONFIG in checkpoint.config


def chronos_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    series = check_chronos(checkpoint)
    depth = config["num_layers"]
    steps, patch_size = series["prediction_length"], series["input_patch_size"]
    encoder = t5_backbone(checkpoint, depth)
    return Architecture(
        dim=config["d_model"],
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
        # Patches without values have a position, too.
        backbone={**encoder, "position": {**encoder["position"], "gaps": True}},
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
            "backbone": t5_backbone(checkpoint, config.get("num_decoder_layers") or depth),
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


def check_chronos(checkpoint: Checkpoint) -> Options:
    """Return the options of the series.

    Raises:
        UserError: If dxn does not support them.
    """
    config = checkpoint.settings
    names = config.get("architectures") or [CHRONOS_CLASS]
    if names[0] != CHRONOS_CLASS:
        hf.unsupported(
            checkpoint,
            f"the Chronos model {names[0]}, only Chronos-Bolt ({CHRONOS_CLASS}); the first Chronos "
            "predicts one quantized value after another, and Chronos-2 attends to groups of series",
        )
    if config["feed_forward_proj"] != "relu":
        hf.unsupported(checkpoint, f"the activation function {config['feed_forward_proj']!r}")
    series = config[CHRONOS_CONFIG]
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


def chronos_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    start = checkpoint.config.get("decoder_start_token_id") or 0
    steps = architecture.head["steps"]

    def by_step(tensor: Tensor) -> Tensor:
        return rearrange(tensor, "(q h) ... -> (h q) ...", h=steps)

    stem, head = "input_patch_embedding", "output_patch_embedding"
    result = {
        **stacks(checkpoint, architecture),
        "adapters.series.end_token": TensorSource(
            ("shared.weight",), lambda t: t[END_TOKEN], moves=True
        ),
        "head.decoder.embedding.weight": TensorSource(
            ("shared.weight",), lambda t: t[start : start + 1], moves=True
        ),
        **linears(
            {f"adapters.series.stem.{k}": f"{stem}.{name}" for k, name in CHRONOS_STEM.items()}
        ),
        **linears({f"head.{k}": f"{head}.{name}" for k, name in CHRONOS_HEAD.items()}),
    }
    for name in ("head.out", "head.skip"):
        for kind in ("weight", "bias"):
            source = result[f"{name}.{kind}"]
            result[f"{name}.{kind}"] = TensorSource(source.names, by_step, moves=True)
    return result


CHRONOS_BOLT = Family(
    "Chronos-Bolt",
    chronos_matches,
    chronos_architecture,
    chronos_tensor_map,
    ignored=(*T5.ignored, "quantiles"),
)
