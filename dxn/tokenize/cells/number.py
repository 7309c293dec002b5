"""The number adapter: one token per number."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.core.untrusted import shortened
from dxn.tokenize.base import MASKED, Adapter, BadMedia, Reader, Sample, Tokenizer, raws_of
from dxn.tokenize.cells.cell import MASK_RATIO, cell_tokens, center_and_scale
from dxn.tokenize.cells.cell_values import (
    DURATION,
    NumberFormat,
    explain_format,
    find_format,
    has_no_number,
)
from dxn.tokenize.masking import CellMasking, check_ratio


class NumberReader(Reader):
    """Reads numbers.

    Args:
        decimal: Decimal separator, a point or a comma. None: it is found in the training table.

    Attributes:
        format: How the numbers of the column are written.
        fixed: Whether the format is known, because it has been loaded.
    """

    modality = "number"
    tabular = True

    def __init__(self, decimal: str | None = None):
        self.decimal = decimal
        self.format = NumberFormat(decimal or ".")
        self.fixed = False

    def learn(self, cells: Sequence[Any]) -> str:
        """Find the decimal separator and the unit of a column, unless they are known."""
        if self.fixed:
            return ""
        present = [cell for cell in cells if not has_no_number(cell)]
        form = find_format(present)
        self.format = NumberFormat(self.decimal or form.decimal, form.unit)
        advice = "; adapters.number.decimal sets the decimal separator"
        return explain_format(form, present, advice if self.decimal is None else None)

    def read(self, cell: Any) -> float | None:
        """Return a number; None if the cell says that there is none, such as "N/A".

        Raises:
            BadMedia: If it is not a finite number in the format of the column.
        """
        if has_no_number(cell):
            return None
        number = self.format.parse(cell)
        if number is None:
            mark = "a decimal comma" if self.format.decimal == "," else "a decimal point"
            unit = f" and an optional unit {self.format.unit!r}" if self.format.unit else ""
            if self.format.unit == DURATION:
                raise BadMedia(f"must be a duration such as 45:10, got {shortened(cell)}")
            raise BadMedia(f"must be a number with {mark}{unit}, got {shortened(cell)}")
        return number

    def describe(self, raws: Sequence[float], cells: Sequence[Any]) -> str:
        """Describe the range."""
        if not raws:
            return ""
        middle = float(np.median(np.array(raws)))
        return f"{min(raws):,g} to {max(raws):,g}, median {middle:,g}"


NumberEmbedding = Literal["piecewise", "linear"]
# Standardized numbers approach this limit smoothly (arXiv:2407.04491, section 3), so that an
# outlier does not dominate all other values.
MAX_VALUE = 3.0
# Larger numbers count as this one: their squares would overflow.
MAX_NUMBER = 1e100
# The interquartile range of a normal distribution with standard deviation 1.
NORMAL_IQR = 1.349


class NumberTokenizer(Tokenizer):
    """Standardizes a number.

    Args:
        decimal: Decimal separator, see `NumberReader`.
    """

    reader: NumberReader

    def __init__(self, decimal: str | None = None):
        self.reader = NumberReader(decimal)
        self.center = 0.0
        self.scale = 1.0

    def __call__(self, raw: float, rand: random.Random | None = None) -> Sample:
        """Return value (1, 1), the standardized number."""
        return {"value": torch.tensor([[self.standardize(raw)]])}

    def standardize(self, number: float) -> float:
        """Return a number in robust standard deviations from the median, below MAX_VALUE."""
        # In double precision: a time in seconds since 1970 has more digits than float32.
        number = min(max(number, -MAX_NUMBER), MAX_NUMBER)
        value = (number - self.center) / self.scale
        return MAX_VALUE * value / math.hypot(MAX_VALUE, value)


class NumberAdapter(Adapter):
    """Convert a number to one token.

    Args:
        dim: Width D of a token.
        embedding: Embedding of the number: piecewise (piecewise linear over quantile bins,
            arXiv:2203.05556, section 3.2) or linear (arXiv:2106.11959, section 3.3).
        num_bins: Maximum number of quantile bins of the piecewise linear embedding.
        decimal: Decimal separator: a point or a comma. Default: found in the training table.
    """

    reader = NumberReader
    tokenizer: NumberTokenizer
    edges: Tensor

    def __init__(
        self,
        dim: int = 128,
        *,
        embedding: NumberEmbedding = "piecewise",
        num_bins: Annotated[int, Ge(1)] = 16,
        decimal: Literal[".", ","] | None = None,
    ):
        super().__init__()
        self.dim = dim
        self.num_bins = num_bins
        self.tokenizer = NumberTokenizer(decimal)
        self.fitted = False
        # A bias per column: it tells the model which column a token belongs to.
        self.proj = nn.Linear(1, dim)
        nn.init.uniform_(self.proj.weight, -(dim**-0.5), dim**-0.5)
        nn.init.uniform_(self.proj.bias, -(dim**-0.5), dim**-0.5)
        self.bin_proj = None
        if embedding == "piecewise":
            self.register_buffer("edges", torch.linspace(-MAX_VALUE, MAX_VALUE, num_bins + 1))
            self.bin_proj = nn.Linear(num_bins, dim, bias=False)
            # Zeros: the embedding starts as a linear one, and learns the deviations from it.
            nn.init.zeros_(self.bin_proj.weight)
        # Zeros, as in the adapter of images: other parameters do not depend on it.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Iterable[float]) -> Self:
        """Compute the median, the scale and the quantile bins of the training split."""
        if self.fitted:
            return self
        tokenizer = self.tokenizer
        numbers = np.array(list(raws_of(tokenizer.reader, raws, float)), dtype=np.float64)
        numbers = numbers.clip(-MAX_NUMBER, MAX_NUMBER)
        low, tokenizer.center, high = np.quantile(numbers, (0.25, 0.5, 0.75)).tolist()
        # If half of the numbers are equal, the interquartile range is 0.
        scale = (high - low) / NORMAL_IQR or float(numbers.std())
        # If all numbers are equal, or nearly so, any scale will do.
        tokenizer.scale = scale if scale > 1 / MAX_NUMBER else 1.0
        self.fitted = True
        if self.bin_proj is not None:
            values = np.array([tokenizer.standardize(number) for number in numbers.tolist()])
            self.edges.copy_(quantile_edges(values, self.num_bins))
        return self

    def masking(self, *, ratio: float | None = None) -> CellMasking | None:
        """Create a masking that predicts the standardized number. None if ratio is 0.

        Args:
            ratio: Probability that the number is masked. Default: 0.3.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        return CellMasking(ratio, num_outputs=1) if ratio else None

    def state(self) -> dict[str, Any]:
        """Return the format and the statistics of the column."""
        written = asdict(self.tokenizer.reader.format)
        return {**written, "center": self.tokenizer.center, "scale": self.tokenizer.scale}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Use what `state` returned."""
        self.tokenizer.center, self.tokenizer.scale = center_and_scale(state)
        decimal, unit = state["decimal"], state["unit"]
        if decimal not in (".", ",") or not isinstance(unit, str):
            raise ValueError("decimal must be a point or a comma, and unit a text")
        self.tokenizer.reader.format = NumberFormat(decimal, unit)
        self.tokenizer.reader.fixed = True
        self.fitted = True

    def describe(self, raw: float) -> str:
        """Return the number and its standardized value."""
        return f"{raw:,g} (standardized: {self.tokenizer.standardize(raw):.2f})"

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a collated batch as Tokens (B, 1, D)."""
        value = batch["value"]  # (B, 1, 1)
        x = self.proj(value)
        if self.bin_proj is not None:
            x = x + self.bin_proj(self._bins(value))
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if MASKED in batch:
            masked = batch[MASKED][..., None]
            x = torch.where(masked, self.proj.bias + self.mask_embedding, x)
        return cell_tokens(x, mask, self.modality, mask.numel())

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
