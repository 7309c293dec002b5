"""Sounds prepared as a checkpoint's own library prepares them, value by value."""

import json

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import adapter_of, assert_refused

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
RATE = 16000
# Largest difference allowed. AST's extractor calls torchaudio's Kaldi filters, which subtract the
# mean of a window before the pre-emphasis, and dxn after it: up to 8e-6 was seen, and 4e-4 in bins
# of a tone that have hardly any energy. Whisper's computes its mel filters in float64, dxn in
# float32: up to 3e-6 was seen with 80 bins, and 1.6e-5 with 128.
AST_TOLERANCE = 5e-4
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


def normalized(adapter, sound, rate=RATE):
    """The spectrogram as the model sees it: `forward` normalizes it."""
    features = adapter.tokenizer(adapter.tokenizer.reader.read((sound, rate)))["features"]
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
    [
        {},
        {"mean": -6.7, "std": 5.3},
        {"do_normalize": False, "padding_value": 1.5, "return_attention_mask": True},
        {"sampling_rate": 22050, "padding_side": "left"},
    ],
    ids=["AudioSet", "its own", "none", "another rate"],
)
def test_spectrograms_are_those_of_the_extractor_of_ast(options, tmp_path):
    extractor = save_ast(tmp_path, **options)
    adapter = adapter_of(tmp_path, "audio")
    rate = extractor.sampling_rate
    for length in LENGTHS:
        if length < rate // 40:  # a window
            continue
        for name, sound in sounds(length).items():
            output = extractor(sound, sampling_rate=rate, return_tensors="pt")
            expected = output["input_values"][0]
            assert expected.shape == (61, 43)
            torch.testing.assert_close(
                normalized(adapter, sound, rate),
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


def save_whisper(folder, *, bins=80, frames=100, **options):
    """Save a small Whisper, and return its feature extractor."""
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
        max_source_positions=frames // 2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    transformers.WhisperModel(config).save_pretrained(folder)
    options = {"feature_size": bins, "chunk_length": 1, **options}
    extractor = transformers.WhisperFeatureExtractor(**options)
    extractor.save_pretrained(folder)
    return extractor


@pytest.mark.parametrize(
    ("bins", "frames", "options"),
    [(80, 100, {}), (128, 100, {}), (41, 80, {"hop_length": 200, "n_fft": 512})],
)
def test_spectrograms_are_those_of_the_extractor_of_whisper(bins, frames, options, tmp_path):
    extractor = save_whisper(tmp_path, bins=bins, frames=frames, **options)
    adapter = adapter_of(tmp_path, "audio")
    for length in [1, 211, 399, *LENGTHS]:
        for name, sound in sounds(length).items():
            output = extractor(sound, sampling_rate=RATE, return_tensors="pt")
            expected = output["input_features"][0].T
            assert expected.shape == (frames, bins)
            torch.testing.assert_close(
                normalized(adapter, sound)[:frames],  # the first window
                expected,
                atol=WHISPER_TOLERANCE,
                rtol=0,
                msg=f"{name} of {length}",
            )


def save_wav2vec2(folder, **options):
    """Save a small wav2vec 2.0, and return its feature extractor."""
    sizes = {"conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = transformers.Wav2Vec2Config(**SIZES, **sizes, **positions)
    transformers.Wav2Vec2Model(config).save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(**options)
    extractor.save_pretrained(folder)
    return extractor


@pytest.mark.parametrize("options", [{}, {"do_normalize": False, "padding_value": 2.5}])
def test_waveforms_are_those_of_the_extractor_of_wav2vec2(options, tmp_path):
    rate = 8000
    extractor = save_wav2vec2(tmp_path, sampling_rate=rate, return_attention_mask=True, **options)
    adapter = adapter_of(tmp_path, "audio")
    for length in LENGTHS:
        for sound in sounds(length).values():
            output = extractor(sound, sampling_rate=rate, return_tensors="pt")
            ours = normalized(adapter, sound, rate)[:, 0]
            torch.testing.assert_close(ours, output["input_values"][0], atol=1e-5, rtol=1e-5)


SAVE = {"Whisper": save_whisper, "AST": save_ast, "Wav2Vec2": save_wav2vec2}
REFUSED = [
    ("Whisper", {"dither": 0.5}, "dither=0.5 in preprocessor_config.json, only 0"),
    ("Whisper", {"padding_value": -1.0}, "padding_value=-1.0 in preprocessor_config.json, only 0"),
    ("Whisper", {"padding_side": "left"}, "padding_side='left' in preprocessor_config.json"),
    ("Whisper", {"sampling_rate": 8000}, "sampling_rate=8000 in preprocessor_config.json"),
    ("Whisper", {"feature_size": 81}, "feature_size=81 in preprocessor_config.json, only 80"),
    ("Whisper", {"chunk_length": 2}, "chunk_length=2 in preprocessor_config.json, only one of 100"),
    ("Whisper", {"n_fft": 0}, "n_fft=0 in preprocessor_config.json"),
    ("AST", {"max_length": 62}, "max_length=62 in preprocessor_config.json, only 61"),
    ("AST", {"num_mel_bins": 44}, "num_mel_bins=44 in preprocessor_config.json, only 43"),
    ("AST", {"mean": None}, "mean=None in preprocessor_config.json"),
    ("AST", {"window": "hamming"}, "window='hamming' in preprocessor_config.json"),
    ("Wav2Vec2", {"feature_size": 2}, "feature_size=2 in preprocessor_config.json, only 1"),
    ("Wav2Vec2", {"do_normalize": "no"}, "do_normalize='no' in preprocessor_config.json"),
    (
        "Wav2Vec2",
        {"feature_extractor_type": "ASTFeatureExtractor"},
        "the feature extractor 'ASTFeatureExtractor' of Wav2Vec2",
    ),
]


@pytest.mark.parametrize(("name", "setting", "message"), REFUSED)
def test_settings_that_dxn_does_not_follow_are_refused(name, setting, message, tmp_path):
    SAVE[name](tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **setting}))
    assert_refused(tmp_path, f"{tmp_path}: dxn does not support {message}")
