"""The category adapter: one token per value of a column with few different values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Self

import torch
from annotated_types import Ge, MinLen
from torch import nn

from dxn.core.dropout import Rate
from dxn.core.tokens import Tokens
from dxn.core.untrusted import shortened
from dxn.tokenize.base import NUM_REAL, Adapter, BadMedia, Reader, Sample, Tokenizer, raws_of
from dxn.tokenize.cells.cell import MASK_RATIO, cell_tokens
from dxn.tokenize.cells.cell_values import find_codes, has_no_value
from dxn.tokenize.cells.joined import LISTS, SEVERAL, cell_values, find_separator, one_value
from dxn.tokenize.masking import TokenMasking, check_ratio

RawCategory = tuple[str, ...]


class CategoryReader(Reader):
    """Reads a value, or a list of values.

    Args:
        separator: Separator of several values in a text. None: it is found in the training table.

    Attributes:
        codes: Words that are codes in this column, although elsewhere they say that there is no
            value.
        fixed: Whether both are known, because they have been loaded.
    """

    modality = "category"
    tabular = True

    def __init__(self, separator: str | None = None):
        self.separator = separator
        self.codes: frozenset[str] = frozenset()
        self.fixed = False

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out whether cells have several values, and whether "NA" is a code, as of Namibia."""
        if self.fixed:
            return ""
        words = Counter(str(cell).strip() for cell in cells if has_no_value(cell))
        others = [str(cell).strip() for cell in cells if not has_no_value(cell)]
        self.codes = find_codes(cells)
        if self.codes:
            return f"{', '.join(sorted(self.codes))}: read as a code, like the other values"
        if self.separator is None:
            scalars = [str(cell) for cell in cells if isinstance(cell, str | int | float)]
            self.separator = find_separator(c for c in scalars if not has_no_value(c))
            if self.separator == LISTS:
                return f"read as lists of values, such as {max(others, key=len)}"
            if self.separator is not None:
                example = next(value for value in others if self.separator in value)
                return (
                    f"read as several values separated by {self.separator!r}, such as {example!r}"
                )
            if any(isinstance(cell, SEVERAL) and len(cell) > 1 for cell in cells):
                self.separator = LISTS
        if words:
            word, _ = words.most_common(1)[0]
            return f"{words.total():,} cells such as {word!r} are read as missing" if word else ""
        return ""

    def read(self, cell: Any) -> RawCategory | None:
        """Return the values of a cell; None if it says that there is none, such as "N/A".

        Raises:
            BadMedia: If it is not a short text, a number, a boolean or a list of these, or has
                several values in a column of single ones.
        """
        try:
            values = cell_values(cell, self.separator, self.codes)
            return one_value(values) if self.fixed and self.separator is None else values
        except ValueError as error:
            raise BadMedia(f"{error}, got {shortened(cell)}") from None

    def describe(self, raws: Sequence[RawCategory], cells: Sequence[Any]) -> str:
        """Describe the number of values, and name the most frequent ones."""
        counts = Counter(value for raw in raws for value in raw)
        most = ", ".join(f"{value} {count:,}" for value, count in counts.most_common(MAX_LISTED))
        more = ", ..." if len(counts) > MAX_LISTED else ""
        return f"{len(counts):,} different: {most}{more}" if counts else ""


UNKNOWN = 0  # id of rare and of new values
MASK = 1  # id of a hidden value, in masked pretraining
NUM_SPECIAL = 2  # the first value of the column has this id
MAX_LISTED = 3  # values in a summary


class CategoryTokenizer(Tokenizer):
    """Converts values to ids.

    Args:
        separator: Separator of several values in a text, see `CategoryReader`.
        unknown_rate: Probability of replacing a value by the unknown value in training.

    Attributes:
        choices: The known values of the column.
    """

    reader: CategoryReader

    def __init__(self, *, separator: str | None = None, unknown_rate: float = 0.0):
        self.reader = CategoryReader(separator)
        self.unknown_rate = unknown_rate
        self.use_values(())

    def use_values(self, values: Sequence[str]) -> None:
        """Use these values, whose ids start at NUM_SPECIAL."""
        self.choices = tuple(values)
        self.ids = {value: i for i, value in enumerate(self.choices, start=NUM_SPECIAL)}
        # "Red" is found as "red", unless the column contains another spelling, too, such as "RED".
        self.folded: dict[str, int] = {}
        for value, i in self.ids.items():
            key = value.casefold()
            self.folded[key] = UNKNOWN if key in self.folded else i

    def id_of(self, value: str) -> int:
        """Return the id of a value, which is UNKNOWN for a rare or a new one."""
        return self.ids.get(value, self.folded.get(value.casefold(), UNKNOWN))

    def remark(self, raws: Sequence[RawCategory | None]) -> str:
        """Return a sentence about the values that are not known; "" if all are."""
        values = [value for raw in raws if raw is not None for value in raw]
        unknown = [value for value in values if self.id_of(value) == UNKNOWN]
        if not unknown or not self.choices:
            return ""
        names = ", ".join(self.choices[:MAX_LISTED]) + ", ..." * (len(self.choices) > MAX_LISTED)
        known = f"the {len(self.choices):,} known values ({names})"
        if len(values) == 1:
            return f"{unknown[0]!r} is not one of {known}, so it counts as unknown"
        if len(unknown) == 1:
            return (
                f"1 of {len(values):,} values, {unknown[0]!r}, is not one of {known}, so it counts "
                "as unknown"
            )
        return (
            f"{len(unknown):,} of {len(values):,} values, such as {unknown[0]!r}, are not one of "
            f"{known}, so they count as unknown"
        )

    def __call__(self, raw: RawCategory, rand: random.Random | None = None) -> Sample:
        """Return ids (n,), one per value, and mask (n,).

        In training, some values are replaced by UNKNOWN.
        """
        ids = [self.id_of(value) for value in raw]
        if rand is not None and self.unknown_rate:
            ids = [UNKNOWN if rand.random() < self.unknown_rate else i for i in ids]
        return {"ids": torch.tensor(ids), "mask": torch.ones(len(ids), dtype=torch.bool)}

    def length(self, raw: RawCategory) -> float:
        """Return the number of values."""
        return float(len(raw))


class CategoryAdapter(Adapter):
    """Convert a category to one token: a learned embedding per value.

    Args:
        dim: Width D of a token.
        min_count: Minimum number of training rows of a value. Rarer values share one token with
            values that do not occur in the training.
        max_values: Maximum number of values with an embedding of their own. The most frequent ones
            are kept.
        unknown_rate: Probability of replacing a training value by the token of rare values, so that
            it is learned even if no value is rare.
        separator: Separator of several values in a cell, such as "|". Each value becomes a token.
            Default: it is found in the training table if many different cells consist of few
            different values.
    """

    reader = CategoryReader
    tokenizer: CategoryTokenizer

    def __init__(
        self,
        dim: int = 128,
        *,
        min_count: Annotated[int, Ge(1)] = 3,
        max_values: Annotated[int, Ge(1)] = 1000,
        unknown_rate: Rate = 0.02,
        separator: Annotated[str, MinLen(1)] | None = None,
    ):
        super().__init__()
        self.dim = dim
        self.min_count = min_count
        self.max_values = max_values
        self.tokenizer = CategoryTokenizer(separator=separator, unknown_rate=unknown_rate)
        self.fitted = False

    def fit(self, raws: Iterable[RawCategory]) -> Self:
        """Collect the values of the training split, unless they are loaded already."""
        if self.fitted:
            return self
        counts = Counter(chain.from_iterable(raws_of(self.tokenizer.reader, raws, tuple)))
        # Sorted by name where counts are equal, so that ids do not depend on the order of the rows.
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        frequent = [value for value in ordered if counts[value] >= self.min_count]
        # In a tiny table, all values can be rare.
        self.use_values((frequent or ordered)[: self.max_values])
        return self

    def use_values(self, values: Sequence[str]) -> None:
        """Use these values, and create their embeddings."""
        self.tokenizer.use_values(values)
        self.embedding = nn.Embedding(NUM_SPECIAL + len(values), self.dim)
        nn.init.uniform_(self.embedding.weight, -(self.dim**-0.5), self.dim**-0.5)
        self.fitted = True

    def masking(self, *, ratio: float | None = None) -> TokenMasking | None:
        """Create a masking that predicts the value. None if ratio is 0.

        Args:
            ratio: Probability that a value is masked. Default: 0.3.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        # A cell has few values, so all of them are replaced by the mask.
        size = self.embedding.num_embeddings
        return TokenMasking(ratio, MASK, size, replaced=1.0, randomized=0.0) if ratio else None

    def state(self) -> dict[str, Any]:
        """Return the values of the column, and how its cells are written."""
        reader = self.tokenizer.reader
        cells = {"separator": reader.separator, "codes": sorted(reader.codes)}
        return {"values": list(self.tokenizer.choices), **cells}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Use what `state` returned."""
        for key in ("values", "codes"):
            items = state[key]
            is_valid = isinstance(items, list) and all(isinstance(item, str) for item in items)
            if not is_valid or len(set(items)) < len(items):
                raise ValueError(f"{key} must be a list of different texts")
        separator = state["separator"]
        if separator is not None and (not isinstance(separator, str) or separator == ""):
            raise ValueError("separator must be null or a text")
        reader = self.tokenizer.reader
        reader.separator, reader.codes = separator, frozenset(state["codes"])
        reader.fixed = True
        self.use_values(state["values"])

    def describe(self, raw: RawCategory) -> str:
        """Return the values, and which of them are not known."""
        are_known = [self.tokenizer.id_of(value) != UNKNOWN for value in raw]
        pairs = zip(raw, are_known, strict=True)
        return ", ".join(value if is_known else f"{value} (unknown)" for value, is_known in pairs)

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D), one per value."""
        if not self.fitted:
            raise ValueError("the category adapter has no values yet: call fit(raws)")
        x, mask = self.embedding(batch["ids"]), batch["mask"]
        return cell_tokens(x, mask, self.modality, batch.get(NUM_REAL))
