"""The encoder of Whisper (arXiv:2212.04356); its decoder is left aside."""

from __future__ import annotations

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Family, Parts, Table, both, layers, same

BLOCK: dict[str, str | tuple[str, ...]] = {
    "attn_norm": "self_attn_layer_norm",
    "attn.qkv": hf.QKV,
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}


def knows(found: Checkpoint) -> bool:
    return hf.model_type(found) == "whisper"


def parts(found: Checkpoint) -> Parts:
    c, wave, places = found.config, found.preprocessor, num_places(found)
    return Parts(
        dim=c["d_model"],
        adapters={
            "audio": {
                "tokens": "frames",
                "frontend": "whisper",
                "sample_rate": wave.get("sampling_rate", 16000),
                "n_fft": wave.get("n_fft", 400),
                "hop_length": wave.get("hop_length", 160),
                "n_mels": c["num_mel_bins"],
                "num_frames": 2 * places,
                "frame_size": 2,
                "stem": "whisper",
                "normalize": "none",
                "position": "learned",
                "max_len": places,
            }
        },
        backbone={
            "depth": c["encoder_layers"],
            "num_heads": c["encoder_attention_heads"],
            "mlp_ratio": c["encoder_ffn_dim"] / c["d_model"],
            "mlp": hf.mlp(found, c, "activation_function"),
            "norm_eps": 1e-5,
        },
        fusion={"pool": "mean"},
    )


def table(found: Checkpoint, parts: Parts) -> Table:
    p = base(found)
    return {
        "adapters.audio.position.table": same(f"{p}embed_positions.weight"),
        **layers(BLOCK, ours="backbone.blocks.{i}", theirs=p + "layers.{i}", depth=parts.backbone["depth"]),
        **both(
            {
                "adapters.audio.stem.conv1": f"{p}conv1",
                "adapters.audio.stem.conv2": f"{p}conv2",
                "backbone.norm": f"{p}layer_norm",
            }
        ),
    }


def num_places(found: Checkpoint) -> int:
    """Tokens of thirty seconds."""
    return len(found.tensors[f"{base(found)}embed_positions.weight"])


def base(found: Checkpoint) -> str:
    """Where the encoder stands."""
    return "model.encoder." if "model.encoder.conv1.weight" in found else "encoder."


WHISPER = Family(
    "the encoder of Whisper",
    knows,
    parts,
    table,
    ignored=(r"(model\.)?decoder\.", r"proj_out\.", r"projector\.", r"classifier\."),
    no_bias=("k_proj.bias",),
)
