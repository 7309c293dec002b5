"""Read numbers as people write them in tables: 1,234.50, 3,5, $5, 12 %, (7)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dxn.tokenize.cells.cell_values import has_no_number, has_no_value

# A column is numeric if at most this share of its cells, besides those such as "N/A", is not a
# number.
MAX_OTHERS = 0.05
# At least this share of its cells must be numbers.
MIN_NUMBERS = 0.5
# Numbers of cells that show whether a column is numeric, and how its numbers are written.
SAMPLE = 200
MAX_FOR_FORMAT = 10_000
CURRENCY = r"[$€£¥₹₽₩₺₴₫฿₦]|[A-Z]{1,3}\$|(?:USD|EUR|GBP|JPY|CHF|CAD|AUD|CNY|INR|SEK|NOK|DKK|PLN|BRL"
CURRENCY += r"|KRW|MXN|ZAR|TRY|CZK|HUF|RUB|kr|Rs\.?)(?=\s|\d)"
CURRENCY_SIGN = re.compile(r"[$€£¥₹₽₩₺₴₫฿₦]|[a-z]{3}")
# Minimum number of cells such as "1.234" beside "950" that show that the point separates thousands.
MIN_GROUPED = 3
MAX_CHARS = 400  # of a number; float64 has up to 309 digits before the decimal point
SPACES = " \u00a0\u202f\u2009"
GROUPS = f"{SPACES}'’,."
# Sign, currency, digits with separators, exponent, and a unit of at most 12 characters. A number in
# brackets is negative, as accountants write it. Spaces are matched possessively, because otherwise
# many of them would take a time that grows with the cube of their number.
WRITTEN = re.compile(
    rf"(?P<open>\(\s*+)?(?P<sign>[-+−]?)\s*+(?P<currency>{CURRENCY})?\s*+(?P<inner>[-+−]?)"
    rf"(?P<digits>\d+(?:[{GROUPS}]\d+)*[.,]?|[.,]\d+)(?P<exponent>[eE][-+]?\d+)?"
    # "$0.12M": a letter is a power of ten only beside a currency, because "5 m" are meters.
    r"(?(currency)\s*+(?P<power>(?:[kKmMbBtT]|[mM]n|[bB]n)(?![^\W\d_]))?)"
    r"\s*+(?P<unit>[^\d\s.,()][^\d()]{0,11})?(?(open)\))"
)
# Cells that all have plain digits, joined by line feeds, which is most columns of numbers.
PLAIN_COLUMN = re.compile(r"[+-]?\d+(?:\.\d+)?(?:\n[+-]?\d+(?:\.\d+)?)*")
# A decimal point that cannot separate thousands, because other than three digits follow.
DECIMAL_POINT = re.compile(r"\.(?!\d{3}(?!\d))")
POWERS = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    Args:
        decimal: Decimal separator, a point or a comma. The other one separates thousands.
        unit: Unit or currency that some or all numbers have, such as "%". Empty: none.
    """

    decimal: str = "."
    unit: str = ""

    def parse(self, value: Any) -> float | None:
        """Return a cell as a finite number; None if it is not a number in this format."""
        is_text = isinstance(value, str)
        # The usual case first, because a regular expression is slower.
        if not is_text or self.decimal == ".":
            number = plain_number(value)
            if number is not None or not is_text:
                return number
        match = _match(value)
        if match is None or unit_of(match) not in ("", self.unit):
            return None
        digits = self._plain(match["digits"])
        if digits is None:
            return None
        number = float(digits + (match["exponent"] or ""))
        number *= POWERS.get((match["power"] or "").lower(), 1.0)
        if math.isinf(number):  # such as 1e400
            return None
        signs = match["sign"] + match["inner"]
        return -number if signs in ("-", "−") or match["open"] else number

    def _plain(self, digits: str) -> str | None:
        """Return digits without separators of thousands, and with a decimal point."""
        whole, _, fraction = digits.partition(self.decimal)
        if fraction and not fraction.isdigit():
            return None
        separators = {c for c in whole if not c.isdigit()}
        # 1,234,567, and in India 12,34,567; the same separator throughout.
        if separators:
            mark = re.escape(next(iter(separators)))
            grouped = rf"\d{{1,3}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}"
            if len(separators) > 1 or re.fullmatch(grouped, whole) is None:
                return None
        return "".join(c for c in whole if c.isdigit()) + f".{fraction or 0}"


@dataclass(frozen=True)
class ParsedNumbers:
    """The numbers of a column.

    Args:
        format: How they are written.
        values: The numbers, without the cells that are none.
        others: Cells that are not numbers.
    """

    format: NumberFormat
    values: Sequence[float]
    others: Sequence[Any]

    @property
    def are_whole(self) -> bool:
        """Whether all numbers are integers."""
        return all(value.is_integer() for value in self.values)


def plain_number(value: Any) -> float | None:
    """Return a finite number, or one that is written like 1.5 or 2e3; None if it is neither."""
    # float() also accepts "1_000", and "nan" and "inf", which would make the loss NaN.
    if isinstance(value, str) and "_" in value:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_numbers(values: Sequence[Any]) -> ParsedNumbers | None:
    """Return the numbers of a column; None if it is not a column of numbers.

    A few cells may be something else, such as a typing error, and more of them may say that there
    is no number, such as "unknown". Cells such as "N/A" do not count.

    Args:
        values: Cells of the column, never None.
    """
    # Most columns of texts are recognized by a few cells, which is faster.
    few = [value for value in sample(values) if not has_no_value(value)]
    form = find_format(few)
    if sum(form.parse(value) is not None for value in few) < MIN_NUMBERS / 2 * len(few):
        return None
    form = find_format(values)
    numbers: list[float] = []
    others: list[Any] = []
    for value in values:
        number = form.parse(value)
        if number is None:
            others.append(value)
        else:
            numbers.append(number)
    num_wrong = sum(not has_no_number(value) for value in others)
    num_missing = sum(map(has_no_value, others))
    if not numbers or num_wrong > MAX_OTHERS * (len(numbers) + num_wrong):
        return None
    is_numeric = len(numbers) >= MIN_NUMBERS * (len(values) - num_missing)
    return ParsedNumbers(form, numbers, others) if is_numeric else None


def find_format(values: Sequence[Any]) -> NumberFormat:
    """Return the number format of a column. It is decided by all cells together.

    A single "1,234" can be 1234 or 1.234. Another cell of the column, such as "3,5" or "1,234.50",
    shows which of them is meant. Without such a cell, the comma separates thousands.
    """
    few = sample(values, MAX_FOR_FORMAT)
    texts = [value for value in few if isinstance(value, str)]
    # One match of all cells takes a fraction of the time of a match for each cell.
    joined = "\n".join(texts)
    if PLAIN_COLUMN.fullmatch(joined) and ("." not in joined or DECIMAL_POINT.search(joined)):
        return NumberFormat()
    matches = [match for text in texts if (match := _match(text)) is not None]
    units = Counter(unit for match in matches if (unit := unit_of(match)))
    unit = units.most_common(1)[0][0] if units else ""
    digits = [match["digits"] for match in matches]
    decimals = Counter(map(_decimal_of, digits))
    if decimals["."] or decimals[","]:
        return NumberFormat("," if decimals[","] > decimals["."] else ".", unit)
    # Only "1.234" and "950": numbers with three decimals would all have a point, and amounts of
    # money have no third decimal. So the point separates thousands.
    num_points = sum("." in written for written in digits)
    is_money = any(match["currency"] or CURRENCY_SIGN.fullmatch(unit) for match in matches)
    is_grouped = num_points and (is_money or MIN_GROUPED <= num_points < len(digits))
    return NumberFormat("," if is_grouped else ".", unit)


def sample(values: Sequence[Any], count: int = SAMPLE) -> Sequence[Any]:
    """Return evenly spaced cells of a column, about `count` or all of them."""
    return values[:: max(1, len(values) // count)]


def unit_of(match: re.Match[str]) -> str:
    """Return the currency or unit of a match of `WRITTEN`, in lower case."""
    parts = (match["currency"], match["unit"])
    return " ".join(part.strip().lower() for part in parts if part)


def _match(text: str) -> re.Match[str] | None:
    """Match a text with `WRITTEN`; None if it is not a number."""
    stripped = text.strip()
    return WRITTEN.fullmatch(stripped) if len(stripped) <= MAX_CHARS else None


def _decimal_of(digits: str) -> str:
    """Return the decimal separator that a number must have; "" if it can be either."""
    last = max(digits.rfind("."), digits.rfind(","))
    if last < 0:
        return ""
    mark = digits[last]
    other = "," if mark == "." else "."
    if digits.count(mark) > 1:
        return other  # 1.234.567: this mark separates thousands
    if other in digits:
        return mark  # 1,234.50
    # Thousands are groups of three digits after one to three digits.
    is_group = len(digits) - last == 4 and 1 <= last <= 3 and digits[0] != "0"
    return "" if is_group else mark
