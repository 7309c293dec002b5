"""GPT-2: a causal language model, whose weights are stored as (in_features, out_features)."""

from __future__ import annotations

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, linears, transposed
from dxn.weights.family import Architecture, Family, TensorMap

# A tensor of the bare model, and its name as a part of a model with a head.
BASE = ("wte.weight", "transformer")
NORMS = {"attn_norm": "ln_1", "mlp_norm": "ln_2"}
LINEARS = {
    "attn.qkv": "attn.c_attn",
    "attn.proj": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    dim = config["n_embd"]
    if config.get("scale_attn_by_inverse_layer_idx"):
        hf.unsupported(checkpoint, "attention scores that are scaled by the index of the block")
    if not config["scale_attn_weights"]:
        hf.unsupported(checkpoint, "attention scores that are not scaled")
    labels = hf.class_names(checkpoint, "score")
    # The bare model is a language model too, because its embedding is the output layer.
    p = checkpoint.prefix(*BASE)
    words, output = f"{p}wte.weight", "lm_head.weight"
    is_tied = config["tie_word_embeddings"] and hf.is_tied(checkpoint, words, output)
    if labels is None and not is_tied and output not in checkpoint:
        raise KeyError(output)
    return Architecture(
        dim=dim,
        adapters={
            "text": {
                "max_len": len(checkpoint.tensors[f"{p}wpe.weight"]),
                "pos_embed": "learned",
            }
        },
        backbone={
            "depth": config["n_layer"],
            "num_heads": config["n_head"],
            "causal": True,
            "block": {
                "mlp": hf.activation(checkpoint, config, "activation_function"),
                "hidden_dim": config.get("n_inner") or 4 * dim,
            },
            "norm": {"eps": config["layer_norm_epsilon"]},
        },
        fusion={"pool": "last"},  # in a causal model, only the last token attends to all tokens
        head={} if labels or is_tied else {"output": {"tie_embeddings": False}},
        labels=labels,
        task="language" if labels is None else "classify",
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
    depth = architecture.backbone["depth"]
    result = {
        "adapters.text.embedding.weight": copied(f"{p}wte.weight"),
        "adapters.text.pos_embed.weight": copied(f"{p}wpe.weight"),
        **blocks(NORMS, prefix=p + "h.{i}", depth=depth),
        "head.output.weight": copied("lm_head.weight"),
        **linears({"backbone.norm": f"{p}ln_f", "head.out": "score"}),
    }
    # The library's Conv1D is a linear layer with a transposed weight.
    for i in range(depth):
        for name, layer in LINEARS.items():
            source = f"{p}h.{i}.{layer}"
            result[f"backbone.blocks.{i}.{name}.weight"] = transposed(f"{source}.weight")
            result[f"backbone.blocks.{i}.{name}.bias"] = copied(f"{source}.bias")
    return result


GPT2 = Family(
    "GPT-2",
    hf.is_type("gpt2"),
    architecture,
    tensor_map,
    # attn.bias and attn.masked_bias are constant buffers for the causal mask, not parameters.
    ignored=(r"lm_head\.", r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"),
    optional_biases=("score.bias",),  # the classifier of transformers has no bias
)
