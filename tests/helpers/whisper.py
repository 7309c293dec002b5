"""A small Whisper with random weights in the public format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from helpers.reference import lively_writer

RATE = 16000
WORDS = 83
SPECIALS = [
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|haw|>"),
    *("<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
]
IDS = {name: WORDS + i for i, name in enumerate(SPECIALS)}
SUPPRESSED, NOT_FIRST = [3, 11, IDS["<|nospeech|>"], IDS["<|startofprev|>"]], [5, 17]
SECONDS = 2  # of a window


def save_whisper(folder: Path, *, english: bool = False, end: bool = True, **options: Any) -> Any:
    """Save a model with its tokenizer and its feature extractor, and return the model.

    Args:
        folder: Folder to write.
        english: Whether the model has no tokens of languages and tasks.
        end: Whether texts can end. Otherwise, all have the maximum length.
        **options: Options of the config.
    """
    torch.manual_seed(0)
    start, stop = IDS["<|startoftranscript|>"], IDS["<|endoftext|>"]
    sizes = {"d_model": 44, "encoder_ffn_dim": 53, "decoder_ffn_dim": 59, "num_mel_bins": 23}
    config = transformers.WhisperConfig(
        **{
            **sizes,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 4,
            "vocab_size": WORDS + len(SPECIALS),
            "max_source_positions": 50 * SECONDS,
            "max_target_positions": 68,
            "pad_token_id": stop,
            "bos_token_id": stop,
            "eos_token_id": stop,
            "decoder_start_token_id": start,
            "dropout": 0.0,
            **options,
        }
    )
    peer = lively_writer(transformers.WhisperForConditionalGeneration(config)).eval()
    with torch.no_grad():  # positions differ, so texts do not repeat one token
        peer.model.decoder.embed_positions.weight.normal_(std=1.5)
        peer.model.decoder.embed_tokens.weight[stop].mul_(3)  # texts of different lengths
    multilingual = {
        "is_multilingual": True,
        "lang_to_id": {name: IDS[name] for name in ("<|en|>", "<|de|>", "<|haw|>")},
        "task_to_id": {name: IDS[f"<|{name}|>"] for name in ("translate", "transcribe")},
    }
    peer.generation_config = transformers.GenerationConfig(
        **({"is_multilingual": False} if english else multilingual),
        no_timestamps_token_id=IDS["<|notimestamps|>"],
        decoder_start_token_id=start,
        bos_token_id=stop,
        eos_token_id=stop,
        pad_token_id=stop,
        suppress_tokens=[*SUPPRESSED, *([] if end else [stop])],
        begin_suppress_tokens=NOT_FIRST,
        max_length=68,
    )
    peer.save_pretrained(folder)
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=config.num_mel_bins, chunk_length=SECONDS
    )
    extractor.save_pretrained(folder)
    words = {f"w{i}": i for i in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel({**words, **IDS}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(folder / "tokenizer.json"))
    return peer


def noises(*seconds: float) -> list[np.ndarray]:
    """Return different sounds of these durations."""
    rand = np.random.default_rng(0)
    sounds = []
    for duration in seconds:
        time = np.arange(int(duration * RATE)) / RATE
        tone = np.sin(2 * np.pi * rand.uniform(100, 4000) * time * (1 + time))
        sounds.append((0.3 * tone + rand.normal(scale=0.1, size=len(time))).astype(np.float32))
    return sounds


def features(folder: Path, sounds: list[np.ndarray]) -> torch.Tensor:
    """Return the inputs (B, F, T) of the public model."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    return extractor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
