"""The features of each modality, from which a classical model learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from dxn.stacking.features import audio, cells, image, text
from dxn.stacking.features.base import COLUMNS, Features

__all__ = ["COLUMNS", "FEATURES", "NOT_IN_GRAPHS", "Features", "features_of", "model_features"]

# From an adapter and a collated batch.
Compute = Callable[[Any, Mapping[str, Tensor]], Features | None]
# By modality: the function that computes the features, and a key that the batch needs, which the
# adapter of a user can lack. Other modalities can be added.
FEATURES: dict[str, tuple[Compute, str]] = {
    "text": (text.text_features, "text"),
    "image": (image.image_features, "pixels"),
    "audio": (audio.audio_features, "features"),
    "video": (image.video_features, "pixels"),
    "series": (cells.series_features, "values"),
    "number": (cells.number_features, "value"),
    "category": (cells.category_features, "ids"),
    "date": (cells.date_features, "valid"),
}
# Modalities whose features are not computed by operations of torch alone, or by a loop whose length
# depends on the values. An exported graph cannot contain them.
NOT_IN_GRAPHS = ("text", "image", "video")


def features_of(adapter: Any, batch: Mapping[str, Tensor]) -> Features | None:
    """Return the features of the samples of a collated batch. None: the modality has none."""
    compute, key = FEATURES.get(adapter.modality, (None, ""))
    return None if compute is None or key not in batch else compute(adapter, batch)


def model_features(model: Any, batch: Mapping[str, Any]) -> dict[str, Features]:
    """Return the features of each input of a model that has some, by input name.

    Args:
        model: A `dxn.models.MultimodalModel`.
        batch: Batch of the model. Samples that lack an input have NaN.
    """
    result: dict[str, Features] = {}
    for name in model.inputs:
        features = features_of(model.adapter(name), batch[name]) if name in batch else None
        if features is not None:
            result[name] = features.spread(batch[name]["rows"], batch["#size"])
    return result
