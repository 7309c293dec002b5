"""The blocks of public language models: a backbone with their options has their output."""

import pytest
import torch
import transformers
from helpers.reference import backbone_of

from dxn.core.tokens import Tokens
from dxn.models.blocks import RopeScaling

DIM, HIDDEN, DEPTH = 24, 44, 7
SIZES = {
    "vocab_size": 31,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "attn_implementation": "eager",
}
SHARED = {
    "depth": DEPTH,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "hidden_dim": HIDDEN,
    "mlp": "swiglu",
    "bias": False,
    "norm": "rms",
    "norm_eps": 1e-6,
    "position": "rotary",
    "causal": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 503.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GEMMA = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 503.0, "factor": 8.0},
}
MODELS = {
    "Llama": (
        {"rope_parameters": LLAMA3},
        {"rope_theta": 503.0, "rope_scaling": RopeScaling("llama3", 8.0, original_len=16)},
    ),
    "Mistral": ({"sliding_window": 4}, {"windows": [3]}),
    "Qwen2": ({}, {"qkv_bias": True}),
    "Qwen3": ({}, {"qk_norm": True}),
    "Gemma3Text": (
        {"rope_parameters": GEMMA, "sliding_window": 4, "query_pre_attn_scalar": 5},
        {
            "mlp": "geglu_tanh",
            "qk_norm": True,
            "norm_place": "both",
            "score_scale": 5**-0.5,
            "rope_theta": 503.0,
            "window_rope_theta": 7.0,
            "rope_scaling": RopeScaling("linear", 8.0),
            "windows": [3, 3, 3, 3, 3, None],
        },
    ),
}


def state_of(peer, is_gemma):
    """The weights of a model of transformers under the names of a backbone."""
    names = {
        "attn_norm": "input_layernorm",
        "attn.q_norm": "self_attn.q_norm",
        "attn.k_norm": "self_attn.k_norm",
        "attn.proj": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "mlp.down": "mlp.down_proj",
    }
    if is_gemma:
        names |= {
            "attn_out": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_out": "post_feedforward_layernorm",
        }
    tensors = peer.state_dict()

    def of(name):
        # Gemma multiplies by one plus the weight of a norm.
        return tensors[name] + (1 if is_gemma and "norm" in name else 0)

    state = {"norm.weight": of("norm.weight")}
    for i in range(DEPTH):
        ours, theirs = f"blocks.{i}", f"layers.{i}"
        for name, layer in names.items():
            if f"{theirs}.{layer}.weight" in tensors:
                state[f"{ours}.{name}.weight"] = of(f"{theirs}.{layer}.weight")
        for kind in ("weight", "bias"):
            parts = [f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            if parts[0] in tensors:
                state[f"{ours}.attn.qkv.{kind}"] = torch.cat([of(part) for part in parts])
        up = [of(f"{theirs}.mlp.{part}_proj.weight") for part in ("up", "gate")]
        state[f"{ours}.mlp.up.weight"] = torch.cat(up)
    return state


@pytest.mark.parametrize("name", MODELS)
def test_a_backbone_has_the_output_of_a_public_language_model(name):
    theirs, ours = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **theirs)
    peer = getattr(transformers, f"{name}Model")(config).eval()
    for parameter in peer.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    backbone = backbone_of(DIM, **{**SHARED, **ours}).eval()
    backbone.load_state_dict(state_of(peer, name.startswith("Gemma")))
    ids = torch.randint(31, (3, 23))
    mask = torch.arange(23) < torch.tensor([[23], [9], [14]])
    with torch.inference_mode():
        expected = peer(ids, mask.long()).last_hidden_state
        actual = backbone(Tokens(peer.embed_tokens(ids), mask)).x
    torch.testing.assert_close(actual[mask], expected[mask], rtol=0, atol=1e-4)
