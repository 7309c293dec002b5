"""Numbers, dates, categories and series of a table, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.stacking.features.base import COLUMNS, Features, time_statistics

# Values of a category that have a feature each. More would be 0 in nearly all rows.
MAX_DENSE = 64


def number_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the standardized number of each sample of a batch."""
    return Features(COLUMNS, batch["value"][:, 0])


def date_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return the features of each date of a batch, NaN where it lacks them."""
    return Features(COLUMNS, batch["value"].masked_fill(~batch["valid"], torch.nan)[:, 0])


def category_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return how often each value occurs in each sample of a batch.

    The most frequent values, which have the first ids, have a dense feature each. If there are more
    values, all of them are counted as well.
    """
    ids, mask = batch["ids"], batch["mask"]
    size = adapter.embedding.num_embeddings
    dense = torch.zeros(ids.shape[0], min(size, MAX_DENSE), device=ids.device)
    known = mask & (ids < dense.shape[1])
    dense = dense.scatter_add_(1, ids.masked_fill(~known, 0), known.float())
    if size <= MAX_DENSE:
        return Features(COLUMNS, dense)
    return Features(COLUMNS, dense, (torch.stack([mask.nonzero()[:, 0], ids[mask]]),))


def series_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return statistics over time of each channel, NaN for a channel without values."""
    x, observed = batch["values"], batch["observed"]
    # The padding of a batch counts as not observed.
    low = x.masked_fill(~observed, torch.inf).amin(1)
    high = x.masked_fill(~observed, -torch.inf).amax(1)
    dense = torch.cat([time_statistics(x, observed), low, high], 1)
    dense = dense.masked_fill(dense.isinf(), torch.nan)
    tokenizer = adapter.tokenizer
    if not tokenizer.history_steps:
        return Features("statistics", dense)
    known = None
    if tokenizer.num_known:
        known = x.masked_fill(~observed, torch.nan)[..., -tokenizer.num_known :]
    level = batch["loc"] / batch["scale"]
    return Features("statistics", dense, (), tokenizer.history(batch), known, level)
