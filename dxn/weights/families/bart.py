"""BART, mBART and Marian: an encoder and a decoder with absolute positions.

BART (arXiv:1910.13461) has norms after the residual branches, and learned positions. mBART
(arXiv:2001.08210) has norms before them, and codes of languages in its texts. Marian is BART
without norms of the embedded tokens and with sinusoidal positions, trained to translate.
"""

from __future__ import annotations

from dxn.core.files import TARGET_TOKENIZER
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, flattened, linears, without_leading_rows
from dxn.weights.families import hf
from dxn.weights.family import Architecture, Family, Options, TensorMap

UNUSED_POSITIONS = 2  # leading rows of learned positions, which the library never reads
BIAS = "final_logits_bias"
DECODER = "head.decoder"


def matches(checkpoint: Checkpoint) -> bool:
    return hf.model_type(checkpoint) in ("bart", "mbart", "marian")


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    if any(name.startswith(("classification_head.", "qa_outputs.")) for name in checkpoint.tensors):
        hf.unsupported(checkpoint, "a BART with a classifier; use one that generates texts")
    is_marian = hf.model_type(checkpoint) == "marian"
    is_scaled = bool(config["scale_embedding"])
    max_len = config["max_position_embeddings"]
    positions = {"max_len": max_len, "pos_embed": "sinusoidal" if is_marian else "learned"}
    return Architecture(
        dim=config["d_model"],
        adapters={
            "text": {
                **positions,
                "embedding": {"scale": is_scaled},
                "tokenizer": {"special_tokens": True},
                **({} if is_marian else {"norm": {}}),
            }
        },
        backbone=_backbone(checkpoint, "encoder"),
        head={**hf.writing_options(checkpoint, max_len), **_vocabulary(checkpoint)},
        decoder={
            **positions,
            "scale_embedding": is_scaled,
            "norm_embedding": not is_marian,
            "output": {
                "tie_embeddings": config["tie_word_embeddings"] is not False,
                # It is zero in BART.
                "bias": BIAS in checkpoint and bool(checkpoint.tensors[BIAS].any()),
            },
            "backbone": _backbone(checkpoint, "decoder"),
        },
        task="generate",
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = _prefix(checkpoint)
    result = {
        "adapters.text.embedding.weight": copied(_embedding(checkpoint, "encoder")),
        f"{DECODER}.embedding.weight": copied(_embedding(checkpoint, "decoder")),
        f"{DECODER}.output.weight": copied("lm_head.weight"),
        f"{DECODER}.output.bias": flattened(BIAS),
        **linears(
            {
                "adapters.text.norm": f"{p}encoder.layernorm_embedding",
                f"{DECODER}.norm": f"{p}decoder.layernorm_embedding",
                "backbone.norm": f"{p}encoder.layer_norm",
                f"{DECODER}.backbone.norm": f"{p}decoder.layer_norm",
            }
        ),
        **blocks(
            hf.BART_BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]
        ),
        **blocks(
            {**hf.BART_BLOCK, **hf.BART_CROSS},
            prefix=p + "decoder.layers.{i}",
            depth=architecture.decoder["backbone"]["depth"],
            to=f"{DECODER}.backbone.blocks",
        ),
    }
    if architecture.decoder["pos_embed"] == "learned":
        for name, stack in (
            ("adapters.text.pos_embed.weight", "encoder"),
            (f"{DECODER}.pos_embed", "decoder"),
        ):
            source = f"{p}{stack}.embed_positions.weight"
            result[name] = without_leading_rows(source, UNUSED_POSITIONS)
    return result


def _backbone(checkpoint: Checkpoint, stack: str) -> Options:
    config = checkpoint.settings
    return {
        "depth": config[f"{stack}_layers"],
        "num_heads": config[f"{stack}_attention_heads"],
        "block": {
            "mlp": hf.activation(checkpoint, config, "activation_function"),
            "hidden_dim": config[f"{stack}_ffn_dim"],
        },
        "norm": {"place": "pre" if hf.model_type(checkpoint) == "mbart" else "post"},
    }


def _vocabulary(checkpoint: Checkpoint) -> Options:
    """Return options for separate vocabularies, which some models of Marian have."""
    if checkpoint.settings["share_encoder_decoder_embeddings"]:
        return {}
    path = None if checkpoint.folder is None else checkpoint.folder / TARGET_TOKENIZER
    if path is None or not path.exists():
        hf.unsupported(
            checkpoint,
            f"a vocabulary of the translations that is not in {TARGET_TOKENIZER}; add this file",
        )
    return {"share_tokenizer": False, "tokenizer": {"path": str(path)}}


def _prefix(checkpoint: Checkpoint) -> str:
    return hf.prefix(checkpoint, "model", "encoder.layers.0.fc1.weight")


def _embedding(checkpoint: Checkpoint, stack: str) -> str:
    p = _prefix(checkpoint)
    return hf.first_of(checkpoint, f"{p}shared.weight", f"{p}{stack}.embed_tokens.weight")


BART = Family(
    "BART, mBART or Marian",
    matches,
    architecture,
    tensor_map,
    ignored=(
        r"(model\.)?(shared|(en|de)coder\.embed_tokens|(en|de)coder\.embed_positions)\.weight",
        r"lm_head\.weight",
        BIAS,
    ),
)
