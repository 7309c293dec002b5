"""What the adapters of table cells have in common: their state, Tokens and masking.

The cells of a column have an adapter of their own, so its weights also tell which column it is.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.grid import MASKED, collate_grids

# One file for the columns of all modalities: a table can have thousands of columns, and the name of
# a column need not be a valid file name. It has one line per column, so that it can be appended to.
STATE_FILE = "columns.jsonl"
# As in BERT and in models of tables, where a row with half of its cells is still informative
# (arXiv:2207.03208 compares ratios).
MASK_RATIO = 0.3
MAX_SHOWN = 40  # characters of a cell in a message


@dataclass(frozen=True)
class CellMasking:
    """Hides the value of a cell, and predicts it.

    Args:
        ratio: Probability that a cell is hidden.
        num_outputs: Number of values to predict.
    """

    ratio: float
    num_outputs: int

    is_classification = False

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (1,), masked (1,), masked_target and masked_valid (m, K).

        m is 1 if the cell is hidden, otherwise 0.
        """
        value = sample["value"]  # (1, K)
        masked = torch.tensor([rand.random() < self.ratio])
        valid = sample.get("valid", torch.ones_like(value, dtype=torch.bool))
        return {
            **sample,
            "value": value.masked_fill(masked[:, None], 0.0),
            MASKED: masked,
            "masked_target": value[masked],
            "masked_valid": valid[masked],
        }


def collate_values(samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Collate value (B, 1, K) of samples with one token each, with the keys of a masking."""
    return {"value": torch.stack([sample["value"] for sample in samples]), **collate_grids(samples)}


def cell_tokens(x: Tensor, mask: Tensor, modality: str) -> Tokens:
    """Return Tokens of x (B, N, D), mask (B, N), with the index of each value as its position."""
    start = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    coords = torch.stack([start, start + 1], -1).expand(x.shape[0], -1, -1)
    coords = coords.where(mask[..., None], torch.nan)
    return Tokens(x, mask, (Span(modality, modality, 0, x.shape[1], coords),))


def save_state(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write what the adapter `name` has learned to columns.jsonl, which all columns share."""
    with (folder / STATE_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({name: state}, ensure_ascii=False) + "\n")


def load_state(folder: Path, name: str) -> dict[str, Any]:
    """Return what `save_state` wrote for the adapter `name`.

    Raises:
        UserError: If the file is missing or damaged. It may come from an untrusted source.
    """
    path = folder / STATE_FILE
    try:
        status = path.stat()
        state = _read_states(path, status.st_mtime_ns, status.st_size)[name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: has no valid state of the input {name!r}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: {name}: must be a mapping, got {type(state).__name__}")
    return state


# Each of thousands of columns asks for its own line.
@functools.lru_cache(maxsize=1)
def _read_states(path: Path, modified: int, size: int) -> dict[str, Any]:
    states: dict[str, Any] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            states.update(json.loads(line))
    return states


def require_state(folder: Path, name: str, is_valid: bool, rule: str) -> None:
    """Raise a UserError that names the state file, unless a loaded state is valid."""
    if not is_valid:
        raise UserError(f"{folder / STATE_FILE}: {name}: {rule}")


def is_finite_number(value: Any) -> bool:
    """Whether a value of a state file is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def shortened(value: Any) -> str:
    """Return the repr of a cell for an error message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
