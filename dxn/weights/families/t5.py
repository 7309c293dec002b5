"""T5, T5 1.1, Flan-T5 and mT5 (arXiv:1910.10683): encoder-decoders with relative positions."""

from __future__ import annotations

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.family import Architecture, Family, Options, TensorMap

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
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # that of all blocks
DECODER = "head.decoder.backbone"


def matches(checkpoint: Checkpoint) -> bool:
    is_series = "chronos_config" in checkpoint.config  # see chronos_bolt.py
    return hf.model_type(checkpoint) in ("t5", "mt5") and not is_series


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    max_len = config["n_positions"]
    depth = config["num_layers"]
    adapters: dict[str, Options] = {
        "text": {"max_len": max_len, "pos_embed": "none", "tokenizer": {"special_tokens": True}}
    }
    if not checkpoint.num_layers(f"decoder.block.{{i}}.{CROSS['cross.query']}.weight"):
        return Architecture(config["d_model"], adapters, backbone(checkpoint, depth))
    decoder = backbone(checkpoint, config.get("num_decoder_layers") or depth)
    return Architecture(
        dim=config["d_model"],
        adapters=adapters,
        backbone=backbone(checkpoint, depth),
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


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    return {
        **stacks(checkpoint, architecture),
        "adapters.text.embedding.weight": copied(embedding(checkpoint)),
        "head.decoder.output.weight": copied("lm_head.weight"),
    }


def stacks(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    """Return the tensors of the encoder, and of the decoder if there is one."""
    result = {
        "backbone.bias.weight": copied(f"encoder.{BIAS}"),
        **linears({"backbone.norm": "encoder.final_layer_norm"}),
        **_blocks(checkpoint, "encoder", architecture.backbone["depth"], "backbone"),
    }
    if architecture.decoder:
        depth = architecture.decoder["backbone"]["depth"]
        result |= {
            f"{DECODER}.bias.weight": copied(f"decoder.{BIAS}"),
            f"{DECODER}.norm.weight": copied("decoder.final_layer_norm.weight"),
            **_blocks(checkpoint, "decoder", depth, DECODER),
        }
    return result


def backbone(checkpoint: Checkpoint, depth: int) -> Options:
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
    matches,
    architecture,
    tensor_map,
    ignored=(
        r"(shared|(en|de)coder\.embed_tokens|lm_head)\.weight",
        # Old files have a bias of the cross-attention, which the library does not use.
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)
