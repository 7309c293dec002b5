"""Public weights to recommend for a small data set."""

from __future__ import annotations

from collections.abc import Collection

# By modality: weights, and the number of training rows from which training from scratch can be as
# good. A few thousand photos are far too few to learn what edges and objects look like.
RECOMMENDED = {"image": ("google/vit-base-patch16-224", 5000)}


def recommended_weights(modalities: Collection[str], rows: int) -> str | None:
    """Return a sentence that recommends public weights, or None.

    Args:
        modalities: Modality of each input of the model.
        rows: Number of training rows.
    """
    # For several modalities there is no single checkpoint.
    if len(set(modalities)) != 1:
        return None
    modality = next(iter(modalities))
    source, enough = RECOMMENDED.get(modality, ("", 0))
    if rows >= enough:
        return None
    return f"few {modality}s: public weights usually help, but need a GPU: weights={source}"
