"""BART, mBART, Marian, M2M100 and NLLB: an encoder and a decoder with absolute positions.

BART (arXiv:1910.13461) has norms after the residual branches, and learned positions. mBART
(arXiv:2001.08210) has norms before them, and codes of languages in its texts. Marian is BART
without norms of the embedded tokens and with sinusoidal positions, trained to translate. M2M100
(arXiv:2010.11125) and NLLB (arXiv:2207.04672) are mBART with these two changes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dxn.core.files import TARGET_TOKENIZER
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, flattened, linears, without_leading_rows
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource

# Whether the embedded tokens have a norm, and the place of the norms of the blocks.
NORMS = {
    "bart": (True, "post"),
    "mbart": (True, "pre"),
    "marian": (False, "post"),
    "m2m_100": (False, "pre"),
}
# A tensor of the bare model, and its name as a part of a model with a head.
BASE = ("encoder.layers.0.fc1.weight", "model")
UNUSED_POSITIONS = 2  # leading rows of learned positions, which the library never reads
TARGET_PIECES = "target.spm"  # those of the translations, in a folder without tokenizer.json
BIAS = "final_logits_bias"
DECODER = "head.decoder"


def architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
    if any(name.startswith(("classification_head.", "qa_outputs.")) for name in checkpoint.tensors):
        hf.unsupported(checkpoint, "a BART with a classifier; use one that generates texts")
    kind = hf.model_type(checkpoint)
    has_norm, place = NORMS[kind]
    is_scaled = bool(config["scale_embedding"])
    max_len = config["max_position_embeddings"]
    words = _embedding(checkpoint, "decoder")
    positions = {"max_len": max_len, "pos_embed": "sinusoidal" if kind == "marian" else "learned"}
    return Architecture(
        dim=config["d_model"],
        adapters={
            "text": {
                **positions,
                "embedding": {"scale": is_scaled},
                "tokenizer": {"special_tokens": True},
                **({"norm": {}} if has_norm else {}),
            }
        },
        backbone=hf.stack_options(checkpoint, "encoder", {"place": place}),
        head={**hf.writing_options(checkpoint, max_len), **_vocabulary(checkpoint)},
        decoder={
            **positions,
            "scale_embedding": is_scaled,
            "norm_embedding": has_norm,
            "output": {
                "tie_embeddings": hf.is_tied(checkpoint, words, "lm_head.weight"),
                # It is zero in BART.
                "bias": BIAS in checkpoint and bool(checkpoint.tensors[BIAS].any()),
            },
            "backbone": hf.stack_options(checkpoint, "decoder", {"place": place}),
        },
        task="generate",
    )


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BASE)
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
            result[name] = _positions(checkpoint, f"{p}{stack}.embed_positions.weight")
    return result


def _positions(checkpoint: Checkpoint, name: str) -> TensorSource:
    """Return the position embeddings. The library computes those of M2M100."""
    if hf.model_type(checkpoint) != "m2m_100":
        return without_leading_rows(name, UNUSED_POSITIONS)
    config = checkpoint.settings
    dim = config["d_model"]
    first = config["pad_token_id"] + 1  # as in RoBERTa
    positions = torch.arange(first, first + config["max_position_embeddings"])
    frequencies = 1e4 ** -torch.linspace(0, 1, dim // 2, dtype=torch.float64)
    angles = positions[:, None] * frequencies
    table = F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, dim % 2))
    return TensorSource((), lambda: table)


def _vocabulary(checkpoint: Checkpoint) -> Options:
    """Return options for separate vocabularies or pieces, which models of Marian can have."""
    is_shared = checkpoint.settings["share_encoder_decoder_embeddings"]
    folder = checkpoint.folder
    if folder is not None:
        names = [] if is_shared else [TARGET_TOKENIZER]
        if not (folder / "tokenizer.json").exists():
            names.append(TARGET_PIECES)
        for name in names:
            if (folder / name).exists():
                return {"share_tokenizer": False, "tokenizer": {"path": str(folder / name)}}
    if not is_shared:
        hf.unsupported(
            checkpoint,
            f"a vocabulary of the translations that is neither in {TARGET_TOKENIZER} nor in "
            f"{TARGET_PIECES}; add one of these files",
        )
    return {}


def _embedding(checkpoint: Checkpoint, stack: str) -> str:
    p = checkpoint.prefix(*BASE)
    return hf.first_of(checkpoint, f"{p}shared.weight", f"{p}{stack}.embed_tokens.weight")


BART = Family(
    "BART, mBART, Marian, M2M100 or NLLB",
    hf.is_type(*NORMS),
    architecture,
    tensor_map,
    ignored=(
        r"(model\.)?(shared|(en|de)coder\.embed_tokens|(en|de)coder\.embed_positions)\.weight",
        r"lm_head\.weight",
        BIAS,
    ),
)
