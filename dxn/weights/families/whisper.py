"""Whisper (arXiv:2212.04356): an encoder of speech, and a decoder that writes its text.

A checkpoint without a decoder or without its tokenizer.json is only an encoder.
"""

from __future__ import annotations

from dataclasses import replace

from dxn.weights import hf
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.conversions import blocks, copied, linears
from dxn.weights.family import Architecture, Family, Options, TensorMap

# A tensor of the bare model, and its name as a part of a model with a head.
BASE = ("encoder.conv1.weight", "model")
DECODER = "head.decoder"
TOKENIZER = "tokenizer.json"
LANGUAGE, TASK, NO_TIMES = "<|{language}|>", "<|{task}|>", "<|notimestamps|>"  # before a text
ENGLISH_ROWS = 51864  # tokens of the models that know only English, which have no such tokens
NORM = {"eps": 1e-5}  # a constant in transformers, which config.json does not contain
MAX_SECONDS = 7200.0  # a longer file would need much memory
FRAMES_PER_TOKEN = 2  # spectrogram frames per token: the second convolution has stride 2


def architecture(checkpoint: Checkpoint) -> Architecture:
    encoder = Architecture(
        dim=checkpoint.settings["d_model"],
        adapters={"audio": audio_options(checkpoint)},
        backbone=hf.stack_options(checkpoint, "encoder", NORM),
        fusion={"pool": "mean"},  # as in WhisperForAudioClassification of transformers
    )
    folder = checkpoint.folder
    if not writes(checkpoint) or folder is None or not (folder / TOKENIZER).exists():
        return encoder
    max_len = len(checkpoint.tensors[f"{checkpoint.prefix(*BASE)}decoder.embed_positions.weight"])
    return replace(
        encoder,
        head={
            **text_options(checkpoint, max_len),
            "tokenizer": {"path": str(folder / TOKENIZER)},
        },
        decoder={
            "max_len": max_len,
            "pos_embed": "learned",
            # transformers ignores scale_embedding, too.
            "scale_embedding": False,
            "backbone": hf.stack_options(checkpoint, "decoder", NORM),
        },
        task="generate",
    )


def text_options(checkpoint: Checkpoint, max_len: int) -> Options:
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
    task = "" if is_english else "transcribe"
    return {
        **options,
        "share_tokenizer": False,
        "marks": {**options["marks"], "begin": begin, "task": task},
        # The library counts only the tokens after these in the length of a score.
        "rules": {**hf.rules(checkpoint, len(begin)), "length_offset": 0},
        "label_smoothing": 0.0,
    }


def audio_options(checkpoint: Checkpoint) -> Options:
    settings = checkpoint.preprocessor
    # Whisper pads or truncates every clip to 30 seconds, which are this number of tokens.
    max_len = len(checkpoint.tensors[f"{checkpoint.prefix(*BASE)}encoder.embed_positions.weight"])
    return {
        "tokens": "frames",
        "sample_rate": settings.get("sampling_rate", 16000),
        "spectrogram": {
            "frontend": "whisper",
            "n_fft": settings.get("n_fft", 400),
            "hop_length": settings.get("hop_length", 160),
            "n_mels": checkpoint.settings["num_mel_bins"],
            "num_frames": FRAMES_PER_TOKEN * max_len,
            # A classifier of transformers sees only the first window.
            "windows": writes(checkpoint),
            "max_seconds": MAX_SECONDS,
        },
        "frame_size": FRAMES_PER_TOKEN,
        "stem": "whisper",
        "normalize": {"kind": "none"},  # the front end already scales values to about -1 to 1
        "pos_embed": "learned",
        "max_len": max_len,
    }


def tensor_map(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    p = f"{checkpoint.prefix(*BASE)}encoder."
    result = {
        "adapters.audio.pos_embed.weight": copied(f"{p}embed_positions.weight"),
        **blocks(hf.BART_BLOCK, prefix=p + "layers.{i}", depth=architecture.backbone["depth"]),
        **linears(
            {
                "adapters.audio.stem.conv1": f"{p}conv1",
                "adapters.audio.stem.conv2": f"{p}conv2",
                "backbone.norm": f"{p}layer_norm",
            }
        ),
    }
    if not architecture.decoder:
        return result
    p = f"{checkpoint.prefix(*BASE)}decoder."
    depth = architecture.decoder["backbone"]["depth"]
    return {
        **result,
        f"{DECODER}.embedding.weight": copied(f"{p}embed_tokens.weight"),
        f"{DECODER}.pos_embed": copied(f"{p}embed_positions.weight"),
        **blocks(
            {**hf.BART_BLOCK, **hf.BART_CROSS},
            prefix=p + "layers.{i}",
            depth=depth,
            to=f"{DECODER}.backbone.blocks",
        ),
        **linears({f"{DECODER}.backbone.norm": f"{p}layer_norm"}),
    }


def writes(checkpoint: Checkpoint) -> bool:
    """Whether there is a decoder."""
    return f"{checkpoint.prefix(*BASE)}decoder.embed_tokens.weight" in checkpoint


WHISPER = Family(
    "Whisper",
    hf.is_type("whisper"),
    architecture,
    tensor_map,
    ignored=(r"(model\.)?decoder\.", r"proj_out\.", r"projector\.", r"classifier\."),
    optional_biases=("k_proj.bias",),  # missing, because softmax is invariant to it
)
