"""The number adapter: one token per number."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.tokenize.base import raws_of, to_tokens
from dxn.tokenize.cells.cell import (
    MASK_RATIO,
    CellMasking,
    cell_tokens,
    collate_values,
    is_finite_number,
    load_state,
    require_state,
    save_state,
    shortened,
)
from dxn.tokenize.cells.date_format import are_dates
from dxn.tokenize.cells.missing import has_no_number
from dxn.tokenize.cells.number_format import NumberFormat, are_codes, are_numbers, find_format
from dxn.tokenize.grid import MASKED
from dxn.tokenize.masking import check_ratio
from dxn.tokenize.media import BadMedia

NumberEmbedding = Literal["piecewise", "periodic", "linear"]
# Standardized numbers approach this limit smoothly (arXiv:2407.04491, section 3), so that an
# outlier does not dominate all other values.
MAX_VALUE = 3.0
# Larger numbers count as this one: their squares would overflow.
MAX_NUMBER = 1e100
# The interquartile range of a normal distribution with standard deviation 1.
NORMAL_IQR = 1.349


@dataclass(frozen=True)
class PeriodicOptions:
    """Options of the periodic embedding (arXiv:2203.05556, section 3.3).

    Args:
        num_frequencies: Number of learned frequencies.
        sigma: Standard deviation of the initial frequencies. Larger values let the model
            distinguish closer numbers.
    """

    num_frequencies: int = 24
    sigma: float = 0.1

    def __post_init__(self) -> None:
        if self.num_frequencies < 1:
            raise ValueError(f"num_frequencies must be at least 1, got {self.num_frequencies}")
        if not self.sigma > 0:
            raise ValueError(f"sigma must be above 0, got {self.sigma}")


class NumberPreprocessor:
    """Read a number, and standardize it.

    Args:
        decimal: Decimal separator, a point or a comma. None: it is found in the training table.
    """

    modality = "number"
    shareable = False

    def __init__(self, decimal: str | None = None):
        self.decimal = decimal
        self.format = NumberFormat(decimal or ".")
        self.center = 0.0
        self.scale = 1.0
        self.fitted = False

    def find_format(self, cells: Sequence[Any]) -> None:
        """Find the decimal separator and the unit of a column, unless they are known."""
        if not self.fitted:
            found = find_format([cell for cell in cells if not has_no_number(cell)])
            self.format = NumberFormat(self.decimal or found.decimal, found.unit)

    def read(self, source: Any) -> float | None:
        """Return a number; None if the cell says that there is none, such as "N/A".

        Raises:
            BadMedia: If it is not a finite number in the format of the column.
        """
        if has_no_number(source):
            return None
        number = self.format.parse(source)
        if number is None:
            mark = "a decimal comma" if self.format.decimal == "," else "a decimal point"
            unit = f" and an optional unit {self.format.unit!r}" if self.format.unit else ""
            raise BadMedia(f"must be a number with {mark}{unit}, got {shortened(source)}")
        return number

    def __call__(self, raw: float, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Return value (1, 1), the standardized number."""
        return {"value": torch.tensor([[self.standardize(raw)]])}

    def standardize(self, number: float) -> float:
        """Return a number in robust standard deviations from the median, below MAX_VALUE."""
        # In double precision: a time in seconds since 1970 has more digits than float32.
        number = min(max(number, -MAX_NUMBER), MAX_NUMBER)
        value = (number - self.center) / self.scale
        return MAX_VALUE * value / math.hypot(MAX_VALUE, value)

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate value (B, 1, 1)."""
        return collate_values(samples)

    def examples(self, count: int, rand: random.Random) -> list[float]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        return [rand.gauss(self.center, 2 * self.scale) for _ in range(count)]

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        state = {
            "center": self.center,
            "scale": self.scale,
            "max_value": MAX_VALUE,
            "max_number": MAX_NUMBER,
        }
        return {"prepare": "number", "format": asdict(self.format), **state}

    def accepts(self, values: Sequence[Any]) -> float:
        """Return 1 for a column of numbers, but not for booleans, dates and codes."""
        if any(isinstance(value, bool) for value in values):
            return 0.0
        is_number = are_numbers(values) and not are_codes(values) and not are_dates(values)
        return float(is_number)

    def summarize(self, raws: Sequence[float], sources: Sequence[Any]) -> str:
        """Summarize the range."""
        if not raws:
            return ""
        middle = float(np.median(np.array(raws)))
        return f"{min(raws):,g} to {max(raws):,g}, median {middle:,g}"


class NumberAdapter(nn.Module):
    """Convert a number to one token.

    Args:
        dim: Width D of a token.
        embedding: Embedding of the number: piecewise (piecewise linear over quantile bins,
            arXiv:2203.05556, section 3.2), periodic (sines and cosines, section 3.3) or linear
            (arXiv:2106.11959, section 3.3).
        num_bins: Maximum number of quantile bins of the piecewise linear embedding.
        periodic: Options of the periodic embedding.
        decimal: Decimal separator: a point or a comma. Default: found in the training table.
    """

    modality = "number"
    edges: Tensor

    def __init__(
        self,
        dim: int = 128,
        *,
        embedding: NumberEmbedding = "piecewise",
        num_bins: int = 16,
        periodic: PeriodicOptions = PeriodicOptions(),
        decimal: Literal[".", ","] | None = None,
    ):
        super().__init__()
        if embedding not in get_args(NumberEmbedding):
            names = ", ".join(get_args(NumberEmbedding))
            raise ValueError(f"embedding must be one of {names}, got {embedding!r}")
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        if decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be a point or a comma, got {decimal!r}")
        self.dim = dim
        self.num_bins = num_bins
        self.prepare = NumberPreprocessor(decimal)
        # A bias per column: it tells the model which column a token belongs to.
        self.proj = nn.Linear(1, dim)
        nn.init.uniform_(self.proj.weight, -(dim**-0.5), dim**-0.5)
        nn.init.uniform_(self.proj.bias, -(dim**-0.5), dim**-0.5)
        self.bin_proj = self.periodic_proj = None
        if embedding == "piecewise":
            self.register_buffer("edges", torch.linspace(-MAX_VALUE, MAX_VALUE, num_bins + 1))
            self.bin_proj = nn.Linear(num_bins, dim, bias=False)
            # Zeros: the embedding starts as a linear one, and learns the deviations from it.
            nn.init.zeros_(self.bin_proj.weight)
        elif embedding == "periodic":
            count = periodic.num_frequencies
            self.frequencies = nn.Parameter(periodic.sigma * torch.randn(count))
            self.periodic_proj = nn.Linear(2 * count, dim)
        # Zeros, as in the adapter of images: other parameters do not depend on it.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Iterable[float]) -> NumberAdapter:
        """Compute the median, the scale and the quantile bins of the training split."""
        prepare = self.prepare
        if prepare.fitted:
            return self
        numbers = np.array(list(raws_of(prepare, raws, float)), dtype=np.float64)
        numbers = numbers.clip(-MAX_NUMBER, MAX_NUMBER)
        low, prepare.center, high = np.quantile(numbers, (0.25, 0.5, 0.75)).tolist()
        # If half of the numbers are equal, the interquartile range is 0.
        scale = (high - low) / NORMAL_IQR or float(numbers.std())
        # If all numbers are equal, or nearly so, any scale will do.
        prepare.scale = scale if scale > 1 / MAX_NUMBER else 1.0
        prepare.fitted = True
        if self.bin_proj is not None:
            values = np.array([prepare.standardize(number) for number in numbers.tolist()])
            self.edges.copy_(quantile_edges(values, self.num_bins))
        return self

    def masking(self, *, ratio: float | None = None, span: int = 5) -> CellMasking | None:
        """Create a masking that predicts the standardized number. None if ratio is 0.

        Args:
            ratio: Probability that the number is masked. Default: 0.3.
            span: Ignored.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        return CellMasking(ratio, num_outputs=1) if ratio else None

    def save(self, folder: Path, name: str) -> None:
        """Save the format and the statistics of the column."""
        p = self.prepare
        written = {"decimal": p.format.decimal, "unit": p.format.unit}
        save_state(folder, name, {**written, "center": p.center, "scale": p.scale})

    def load(self, folder: Path, name: str) -> None:
        """Load what `save` wrote."""
        state = load_state(folder, name)
        are_finite = all(is_finite_number(state.get(key)) for key in ("center", "scale"))
        is_valid = are_finite and state["scale"] > 0
        require_state(folder, name, is_valid, "center and scale must be numbers, scale positive")
        decimal, unit = state.get("decimal"), state.get("unit")
        is_valid = decimal in (".", ",") and isinstance(unit, str)
        require_state(folder, name, is_valid, "decimal must be a point or a comma, and unit a text")
        self.prepare.format = NumberFormat(str(decimal), str(unit))
        self.prepare.center, self.prepare.scale = map(float, (state["center"], state["scale"]))
        self.prepare.fitted = True

    def tokens(self, raws: Sequence[Any]) -> Tokens:
        """Convert numbers to Tokens."""
        return to_tokens(self, raws)

    def describe(self, raw: float) -> str:
        """Return the number and its standardized value."""
        return f"{raw:,g} (standardized: {self.prepare.standardize(raw):.2f})"

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a collated batch as Tokens (B, 1, D)."""
        value = batch["value"]  # (B, 1, 1)
        x = self.proj(value)
        if self.bin_proj is not None:
            x = x + self.bin_proj(self._bins(value))
        elif self.periodic_proj is not None:
            angle = 2 * math.pi * self.frequencies * value
            waves = torch.cat([angle.sin(), angle.cos()], -1)
            # The bias of proj stays outside of the ReLU, so that it always tells the column.
            x = self.proj.bias + torch.relu(self.periodic_proj(waves))
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if MASKED in batch:
            masked = batch[MASKED][..., None]
            x = torch.where(masked, self.proj.bias + self.mask_embedding, x)
        return cell_tokens(x, mask, self.modality)

    def _bins(self, value: Tensor) -> Tensor:
        """Return the piecewise linear encoding (B, 1, T) of value (B, 1, 1)."""
        # Below its bin 0, above it 1, and in it the position from 0 to 1. Outside of the range of
        # the training, only the linear part of the embedding continues.
        low, high = self.edges[:-1], self.edges[1:]
        return ((value - low) / (high - low)).clamp(0, 1)


def quantile_edges(values: np.ndarray, num_bins: int) -> Tensor:
    """Return the edges (num_bins + 1,) of quantile bins, which ascend strictly.

    A column with few distinct values has one bin between each two of them. Unused bins are beyond
    the range of standardized numbers, so that they are always 0.
    """
    # Distinct in float32, in which the bins are computed: an empty bin would divide by 0.
    distinct = np.unique(values.astype(np.float32))
    if len(distinct) > num_bins + 1:
        quantiles = np.quantile(values, np.linspace(0, 1, num_bins + 1))
        distinct = np.unique(quantiles.astype(np.float32))
    unused = num_bins + 1 - len(distinct)
    beyond = max(MAX_VALUE, float(distinct[-1])) + np.arange(1, unused + 1)
    return torch.tensor(np.concatenate([distinct, beyond]), dtype=torch.float32)
