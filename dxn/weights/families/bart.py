"""BART, mBART, Marian, M2M100, NLLB and Whisper: an encoder and a decoder with absolute positions.

BART (arXiv:1910.13461) has norms after the residual branches, and learned positions. mBART
(arXiv:2001.08210) has norms before them, and codes of languages in its texts. Marian is BART
without norms of the embedded tokens and with sinusoidal positions, trained to translate. M2M100
(arXiv:2010.11125) and NLLB (arXiv:2207.04672) are mBART with these two changes.

Whisper (arXiv:2212.04356) has an encoder of speech, and the layers of BART. A checkpoint without a
decoder or without its tokenizer.json is only an encoder.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
import torch.nn.functional as F

from dxn.core.files import TARGET_TOKENIZER
from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint, option_of
from dxn.weights.conversions import (
    LayerNames,
    blocks,
    copied,
    flattened,
    linears,
    without_leading_rows,
)
from dxn.weights.families.sounds import folded_classifier
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.feature_extractor import read_feature_extractor
from dxn.weights.preprocessor import refuse
from dxn.weights.tokenizers import read_tokenizer

# Names of the layers of a block in BART and Whisper, and of those of a decoder besides.
BART_BLOCK: LayerNames = {
    "attn_norm": "self_attn_layer_norm",
    "attn.qkv": hf.QKV,
    "attn.proj": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
BART_CROSS: LayerNames = {
    "cross_norm": "encoder_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj",
    "cross.memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.proj": "encoder_attn.out_proj",
}
# Whether the embedded tokens have a norm, and the place of the norms of the blocks.
NORMS = {
    "bart": (True, "post"),
    "mbart": (True, "pre"),
    "marian": (False, "post"),
    "m2m_100": (False, "pre"),
}
# A tensor of the bare model, and its name as a part of a model with a head.
BART_BASE = ("encoder.layers.0.fc1.weight", "model")
UNUSED_POSITIONS = 2  # leading rows of learned positions, which the library never reads
TARGET_PIECES = "target.spm"  # those of the translations, in a folder without tokenizer.json
LOGITS_BIAS = "final_logits_bias"
DECODER = "head.decoder"
# A tensor of the bare model, and its name as a part of a model with a head.
WHISPER_BASE = ("encoder.conv1.weight", "model")
TOKENIZER = "tokenizer.json"
LANGUAGE, TASK, NO_TIMES = "<|{language}|>", "<|{task}|>", "<|notimestamps|>"  # before a text
TASKS = ("transcribe", "translate")
CODE = "[a-z]{2,3}"  # of a language
ENGLISH_ROWS = 51864  # tokens of the models that know only English, which have no such tokens
WHISPER_NORM = {"eps": 1e-5}  # a constant in transformers, which config.json does not contain
MAX_SECONDS = 7200.0  # a longer file would need much memory
FRAMES_PER_TOKEN = 2  # spectrogram frames per token: the second convolution has stride 2


def stack_options(checkpoint: Checkpoint, stack: str, norm: Options) -> Options:
    """Return the options of the backbone of a stack of BART or Whisper, "encoder" or "decoder".

    Args:
        checkpoint: The checkpoint.
        stack: The stack.
        norm: Options of its norms.
    """
    config = checkpoint.settings
    return {
        "depth": config[f"{stack}_layers"],
        "num_heads": config[f"{stack}_attention_heads"],
        "block": {
            "mlp": hf.activation(checkpoint, config, "activation_function"),
            "hidden_dim": config[f"{stack}_ffn_dim"],
        },
        "norm": norm,
    }


def bart_architecture(checkpoint: Checkpoint) -> Architecture:
    config = checkpoint.settings
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
        backbone=stack_options(checkpoint, "encoder", {"place": place}),
        head={**hf.writing_options(checkpoint, max_len), **_vocabulary(checkpoint)},
        decoder={
            **positions,
            "scale_embedding": is_scaled,
            "norm_embedding": has_norm,
            "output": {
                "tie_embeddings": hf.is_tied(checkpoint, words, "lm_head.weight"),
                # It is zero in BART.
                "bias": LOGITS_BIAS in checkpoint and bool(checkpoint.tensors[LOGITS_BIAS].any()),
            },
            "backbone": stack_options(checkpoint, "decoder", {"place": place}),
        },
        task="generate",
    )


def bart_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = checkpoint.prefix(*BART_BASE)
    result = {
        "adapters.text.embedding.weight": copied(_embedding(checkpoint, "encoder")),
        f"{DECODER}.embedding.weight": copied(_embedding(checkpoint, "decoder")),
        f"{DECODER}.output.weight": copied("lm_head.weight"),
        f"{DECODER}.output.bias": flattened(LOGITS_BIAS),
        **linears(
            {
                "adapters.text.norm": f"{p}encoder.layernorm_embedding",
                f"{DECODER}.norm": f"{p}decoder.layernorm_embedding",
                "backbone.norm": f"{p}encoder.layer_norm",
                f"{DECODER}.backbone.norm": f"{p}decoder.layer_norm",
            }
        ),
        **blocks(BART_BLOCK, prefix=p + "encoder.layers.{i}", depth=architecture.backbone["depth"]),
        **blocks(
            {**BART_BLOCK, **BART_CROSS},
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
        if not (folder / TOKENIZER).exists():
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
    p = checkpoint.prefix(*BART_BASE)
    return hf.first_of(checkpoint, f"{p}shared.weight", f"{p}{stack}.embed_tokens.weight")


BART = Family(
    "BART, mBART, Marian, M2M100 or NLLB",
    hf.is_type(*NORMS),
    bart_architecture,
    bart_tensor_map,
    heads=("ConditionalGeneration",),
    ignored=(
        r"(model\.)?(shared|(en|de)coder\.embed_tokens|(en|de)coder\.embed_positions)\.weight",
        r"lm_head\.weight",
        LOGITS_BIAS,
    ),
)


def whisper_architecture(checkpoint: Checkpoint) -> Architecture:
    encoder = Architecture(
        dim=checkpoint.settings["d_model"],
        adapters={"audio": whisper_audio(checkpoint)},
        backbone=stack_options(checkpoint, "encoder", WHISPER_NORM),
        fusion={"pool": "mean"},  # as in WhisperForAudioClassification of transformers
        **hf.classifier_options(checkpoint, "classifier"),
        # The encoder needs no silence after a clip, which takes most of the time and memory.
        encoder={"audio": {"spectrogram.pad": False, "spectrogram.windows": True}},
    )
    folder = checkpoint.folder
    if not has_decoder(checkpoint) or folder is None or not (folder / TOKENIZER).exists():
        return encoder
    max_len = len(
        checkpoint.tensors[f"{checkpoint.prefix(*WHISPER_BASE)}decoder.embed_positions.weight"]
    )
    return replace(
        encoder,
        head={
            **whisper_text(checkpoint, max_len),
            "tokenizer": {"path": str(folder / TOKENIZER)},
        },
        decoder={
            "max_len": max_len,
            "pos_embed": "learned",
            # transformers ignores scale_embedding, too.
            "scale_embedding": False,
            "backbone": stack_options(checkpoint, "decoder", WHISPER_NORM),
        },
        task="generate",
    )


def whisper_text(checkpoint: Checkpoint, max_len: int) -> Options:
    """Return options of the head: the tokens before a text, and how a text is generated."""
    generation = checkpoint.generation
    options = hf.writing_options(checkpoint, max_len)
    start = options["marks"]["begin"][0]
    is_english = generation.lang_to_id is None and checkpoint.settings["vocab_size"] == ENGLISH_ROWS
    no_times = generation.no_timestamps_token_id
    begin = [
        start,
        *([] if is_english else [LANGUAGE, TASK]),
        NO_TIMES if no_times is None else no_times,
    ]
    language, task = whisper_language(checkpoint)
    if is_english and (language or task):
        hf.unsupported(checkpoint, f"language={language!r} and task={task!r} of an English model")
    if not is_english:
        task = task or "transcribe"
    return {
        **options,
        "language": language,
        "share_tokenizer": False,
        "marks": {**options["marks"], "begin": begin, "task": task},
        # The library counts only the tokens after these in the length of a score.
        "rules": {**hf.rules(checkpoint, len(begin)), "length_offset": 0},
        "label_smoothing": 0.0,
    }


def whisper_language(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the language and the task that generation_config.json sets for all texts, or ""."""
    generation = checkpoint.generation
    language, task = (generation.language or "").strip("<|>"), generation.task or ""
    # Older files have the ids of tokens, which the library ignores if there are names.
    ids = [] if language or task else [i for _, i in generation.forced_decoder_ids or []]
    ids = [i for i in ids if i not in (None, generation.no_timestamps_token_id)]
    tokenizer = read_tokenizer(checkpoint.folder) if ids and checkpoint.folder else None
    for index in ids:
        token = (tokenizer and tokenizer.id_to_token(index)) or ""
        name = token.strip("<|>")
        if name in TASKS:
            task = name
        elif re.fullmatch(CODE, name) and token != name:
            language = name
        elif token != NO_TIMES:
            hf.unsupported(checkpoint, option_of("forced_decoder_ids", ids))
    return language, task


def whisper_audio(checkpoint: Checkpoint) -> Options:
    # Whisper pads or truncates every clip to 30 seconds, which are this number of tokens.
    max_len = len(
        checkpoint.tensors[f"{checkpoint.prefix(*WHISPER_BASE)}encoder.embed_positions.weight"]
    )
    num_frames = FRAMES_PER_TOKEN * max_len
    settings = read_feature_extractor(
        checkpoint,
        "Whisper",
        feature_size=checkpoint.settings["num_mel_bins"],
        sampling_rate=16000,  # the mel bins end at 8,000 hertz for any rate
        padding_value=0,
        padding_side="right",
        dither=0,
    )
    seconds, hop_length = settings["chunk_length"], settings["hop_length"]
    frames = seconds * settings["sampling_rate"] // hop_length
    if checkpoint.preprocessor and frames != num_frames:
        refuse(checkpoint, "chunk_length", seconds, f"one of {num_frames} frames")
    return {
        "tokens": "frames",
        "sample_rate": settings["sampling_rate"],
        "spectrogram": {
            "frontend": "whisper",
            "n_fft": settings["n_fft"],
            "hop_length": hop_length,
            "n_mels": settings["feature_size"],
            "num_frames": num_frames,
            # A classifier of transformers sees only the first window.
            "windows": has_decoder(checkpoint),
            "max_seconds": MAX_SECONDS,
        },
        "frame_size": FRAMES_PER_TOKEN,
        "stem": "whisper",
        "normalize": {"kind": "none"},  # the front end already scales values to about -1 to 1
        "pos_embed": "learned",
        "max_len": max_len,
    }


def whisper_tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = f"{checkpoint.prefix(*WHISPER_BASE)}encoder."
    result = {
        "adapters.audio.pos_embed.weight": copied(f"{p}embed_positions.weight"),
        **blocks(BART_BLOCK, prefix=p + "layers.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.audio.stem.conv1": f"{p}conv1",
                "adapters.audio.stem.conv2": f"{p}conv2",
                "backbone.norm": f"{p}layer_norm",
            }
        ),
    }
    if not architecture.decoder:
        return {**result, **folded_classifier()}
    p = f"{checkpoint.prefix(*WHISPER_BASE)}decoder."
    depth = architecture.decoder["backbone"]["depth"]
    return {
        **result,
        f"{DECODER}.embedding.weight": copied(f"{p}embed_tokens.weight"),
        f"{DECODER}.pos_embed": copied(f"{p}embed_positions.weight"),
        **blocks(
            {**BART_BLOCK, **BART_CROSS},
            prefix=p + "layers.{i}",
            depth=depth,
            to=f"{DECODER}.backbone.blocks",
        ),
        **linears({f"{DECODER}.backbone.norm": f"{p}layer_norm"}),
    }


def has_decoder(checkpoint: Checkpoint) -> bool:
    """Whether there is a decoder."""
    return f"{checkpoint.prefix(*WHISPER_BASE)}decoder.embed_tokens.weight" in checkpoint


WHISPER = Family(
    "Whisper",
    hf.is_type("whisper"),
    whisper_architecture,
    whisper_tensor_map,
    heads=("ConditionalGeneration", "AudioClassification"),
    ignored=(r"(model\.)?decoder\.", r"proj_out\."),
    optional_biases=("k_proj.bias",),  # missing, because softmax is invariant to it
)
