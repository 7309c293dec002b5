"""The encoder of Whisper (arXiv:2212.04356). The decoder is not supported."""

from __future__ import annotations

from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import LayerNames, blocks, copied, linears
from dxn.weights.families import hf
from dxn.weights.family import Architecture, Family, Options, TensorMap

BLOCK: LayerNames = {
    "attn_norm": "self_attn_layer_norm",
    "attn.qkv": hf.QKV,
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
NORM_EPS = 1e-5  # a constant in transformers, which config.json does not contain
FRAMES_PER_TOKEN = 2  # spectrogram frames per token: the second convolution has stride 2


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) == "whisper"


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.config
    return Architecture(
        dim=config["d_model"],
        adapters={"audio": audio_options(checkpoint)},
        backbone={
            "depth": config["encoder_layers"],
            "num_heads": config["encoder_attention_heads"],
            "block": {
                "mlp": hf.activation(checkpoint, config, "activation_function"),
                "hidden_dim": config["encoder_ffn_dim"],
            },
            "norm": {"eps": NORM_EPS},
        },
        fusion={"pool": "mean"},  # as in WhisperForAudioClassification of transformers
    )


def audio_options(checkpoint: Checkpoint) -> Options:
    settings = checkpoint.preprocessor
    # Whisper pads or truncates every clip to 30 seconds, which are this number of tokens.
    max_len = len(checkpoint.tensors[f"{encoder_prefix(checkpoint)}embed_positions.weight"])
    return {
        "tokens": "frames",
        "sample_rate": settings.get("sampling_rate", 16000),
        "spectrogram": {
            "frontend": "whisper",
            "n_fft": settings.get("n_fft", 400),
            "hop_length": settings.get("hop_length", 160),
            "n_mels": checkpoint.config["num_mel_bins"],
            "num_frames": FRAMES_PER_TOKEN * max_len,
        },
        "frame_size": FRAMES_PER_TOKEN,
        "stem": "whisper",
        "normalize": {"kind": "none"},  # the front end already scales values to about -1 to 1
        "pos_embed": "learned",
        "max_len": max_len,
    }


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = encoder_prefix(checkpoint)
    return {
        "adapters.audio.pos_embed.weight": copied(f"{p}embed_positions.weight"),
        **blocks(BLOCK, prefix=p + "layers.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.audio.stem.conv1": f"{p}conv1",
                "adapters.audio.stem.conv2": f"{p}conv2",
                "backbone.norm": f"{p}layer_norm",
            }
        ),
    }


def encoder_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of the encoder's tensors, which depends on the class of the model."""
    return "model.encoder." if "model.encoder.conv1.weight" in checkpoint else "encoder."


WHISPER = Family(
    "the encoder of Whisper",
    matches,
    architecture,
    tensor_map,
    ignored=(r"(model\.)?decoder\.", r"proj_out\.", r"projector\.", r"classifier\."),
    optional_biases=("k_proj.bias",),  # missing, because softmax is invariant to it
)
