"""Read how the feature extractors of transformers prepare sounds: preprocessor_config.json."""

from __future__ import annotations

from typing import Any

from dxn.core.untrusted import shortened
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.hf import unsupported
from dxn.weights.preprocessor import Settings, check_keys, class_name, refuse

# The settings that each feature extractor reads, with their default values, by its name.
EXTRACTORS: dict[str, Settings] = {
    "Whisper": {
        "feature_size": 80,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "padding_value": 0.0,
        "padding_side": "right",
        "dither": 0.0,
    },
    "AST": {
        "sampling_rate": 16000,
        "num_mel_bins": 128,
        "max_length": 1024,
        "do_normalize": True,
        # Those of the log-mel spectrograms of AudioSet.
        "mean": -4.2677393,
        "std": 4.5689974,
    },
    "Wav2Vec2": {"feature_size": 1, "sampling_rate": 16000, "do_normalize": True},
}
# Keys that the extractor of a family does not read, that it computes from the others, or that only
# change the padding of a batch, which dxn's models ignore.
IGNORED = {
    "Whisper": {"do_normalize", "mel_filters", "n_samples", "nb_max_frames"},
    "AST": {"feature_size", "padding_side", "padding_value"},
    "Wav2Vec2": {"padding_side", "padding_value"},
}
MASK = "return_attention_mask"  # one sound has none


def read_feature_extractor(checkpoint: Checkpoint, name: str, **required: Any) -> Settings:
    """Read preprocessor_config.json.

    Args:
        checkpoint: The checkpoint.
        name: Key in `EXTRACTORS` of the family's feature extractor.
        required: The only values that the model or dxn can use. They are those of a checkpoint
            without the file. The others have the default values of the feature extractor.

    Raises:
        UserError: If dxn does not support a setting, or another feature extractor.
    """
    content = checkpoint.preprocessor
    written = class_name(checkpoint)
    if written not in (None, f"{name}FeatureExtractor"):
        unsupported(checkpoint, f"the feature extractor {shortened(written)} of {name}")
    defaults = EXTRACTORS[name]
    check_keys(checkpoint, {*defaults, *IGNORED[name], MASK})
    if not content:
        return {**defaults, **required}
    settings = {key: content.get(key, default) for key, default in defaults.items()}
    for key, value in settings.items():
        if not _has_type_of(value, defaults[key]):
            refuse(checkpoint, key, value)
        if value != required.get(key, value):
            refuse(checkpoint, key, value, str(required[key]))
    return settings


def _has_type_of(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default value. An int must be a size or a rate."""
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(default) and (type(value) is not int or value > 0)
