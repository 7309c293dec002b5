"""Read preprocessor_config.json: what all classes of transformers that prepare inputs share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from dxn.core.untrusted import shortened
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.hf import unsupported

Settings = Mapping[str, Any]

# The keys that name the class.
TYPES = ("image_processor_type", "video_processor_type", "feature_extractor_type")
# Keys that no class reads when it prepares an input.
HARMLESS = frozenset({*TYPES, "_processor_class", "auto_map", "processor_class", "return_tensors"})


def class_name(checkpoint: Checkpoint) -> str | None:
    """Return the name of the class in preprocessor_config.json. None: it has none."""
    content = checkpoint.preprocessor
    return next((str(content[key]) for key in TYPES if content.get(key)), None)


def check_keys(checkpoint: Checkpoint, known: Collection[str]) -> None:
    """Check that preprocessor_config.json has no other settings than `known` and `HARMLESS`.

    Raises:
        UserError: If it has another one, which may change what the model reads.
    """
    for key, value in checkpoint.preprocessor.items():
        if key not in known and key not in HARMLESS and value not in (None, False):
            refuse(checkpoint, key, value)


def refuse(checkpoint: Checkpoint, key: str, value: Any, instead: str = "") -> NoReturn:
    """Raise an error for a setting; `instead` says which values are possible.

    Raises:
        UserError: Always.
    """
    setting = f"{key:.60}={shortened(value)} in preprocessor_config.json"
    unsupported(checkpoint, f"{setting}{instead and ', only '}{instead}")
