"""Sounds prepared as a checkpoint's own library prepares them, value by value."""

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import adapter_of

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
RATE = 16000
# Largest difference allowed. AST's extractor calls torchaudio's Kaldi filters, as dxn does: the
# results are equal. Whisper's computes its mel filters in float64, dxn in float32: up to 3e-6 was
# seen with 80 bins, and 1.6e-5 with 128.
AST_TOLERANCE = 1e-6
WHISPER_TOLERANCE = 5e-5
# Samples: one window, odd numbers, one second and one sample more or less, and more than either
# model takes.
LENGTHS = [400, 401, 4999, 15999, 16000, 16001, 27011]


def sounds(length):
    """Sounds of so many samples, by name."""
    rand = np.random.default_rng(length)
    seconds = np.arange(length) / RATE
    noise = rand.normal(scale=0.1, size=length)
    cases = {
        "noise": noise,
        "tone": 0.5 * np.sin(2 * np.pi * 440 * seconds),
        "silence": np.zeros(length),
        "noise, then silence": np.where(seconds < 0.2, rand.uniform(-1, 1, length), 0),
    }
    return {name: sound.astype(np.float32) for name, sound in cases.items()}


def normalized(adapter, sound):
    """The spectrogram as the model sees it: `forward` normalizes it."""
    features = adapter.tokenizer(adapter.tokenizer.reader.read((sound, RATE)))["features"]
    return (features - adapter.mean) / adapter.std


def save_ast(folder, **options):
    """Save a small AST, and return its feature extractor."""
    config = transformers.ASTConfig(**SIZES, max_length=61, num_mel_bins=43)
    transformers.ASTModel(config).save_pretrained(folder)
    extractor = transformers.ASTFeatureExtractor(max_length=61, num_mel_bins=43, **options)
    extractor.save_pretrained(folder)
    return extractor


@pytest.mark.parametrize(
    "options",
    [{}, {"mean": -6.7, "std": 5.3}, {"do_normalize": False}],
    ids=["AudioSet", "its own", "none"],
)
def test_spectrograms_are_those_of_the_extractor_of_ast(options, tmp_path):
    extractor = save_ast(tmp_path, **options)
    adapter = adapter_of(tmp_path, "audio")
    for length in LENGTHS:
        for name, sound in sounds(length).items():
            output = extractor(sound, sampling_rate=RATE, return_tensors="pt")
            expected = output["input_values"][0]
            assert expected.shape == (61, 43)
            torch.testing.assert_close(
                normalized(adapter, sound),
                expected,
                atol=AST_TOLERANCE,
                rtol=0,
                msg=f"{name} of {length}",
            )


@pytest.mark.parametrize("length", [1, 211, 399])
def test_a_sound_shorter_than_a_window_which_ast_refuses_is_padded_with_silence(length, tmp_path):
    extractor = save_ast(tmp_path)
    adapter = adapter_of(tmp_path, "audio")
    sound = np.random.default_rng(length).normal(size=length).astype(np.float32)
    with pytest.raises(AssertionError, match="choose a window size"):
        extractor(sound, sampling_rate=RATE)
    padded = np.pad(sound, (0, 400 - length))
    expected = extractor(padded, sampling_rate=RATE, return_tensors="pt")["input_values"][0]
    torch.testing.assert_close(normalized(adapter, sound), expected, atol=AST_TOLERANCE, rtol=0)


@pytest.mark.parametrize("bins", [80, 128])
def test_spectrograms_are_those_of_the_extractor_of_whisper(bins, tmp_path):
    config = transformers.WhisperConfig(
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        vocab_size=5,
        num_mel_bins=bins,
        max_source_positions=50,  # 20 ms each: one second
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    transformers.WhisperModel(config).save_pretrained(tmp_path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=1)
    extractor.save_pretrained(tmp_path)
    adapter = adapter_of(tmp_path, "audio")
    for length in [1, 211, 399, *LENGTHS]:
        for name, sound in sounds(length).items():
            output = extractor(sound, sampling_rate=RATE, return_tensors="pt")
            expected = output["input_features"][0].T
            assert expected.shape == (100, bins)
            torch.testing.assert_close(
                normalized(adapter, sound)[:100],  # the first window
                expected,
                atol=WHISPER_TOLERANCE,
                rtol=0,
                msg=f"{name} of {length}",
            )
