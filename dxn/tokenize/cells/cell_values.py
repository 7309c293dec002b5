"""What the cells of tables say, as people write it: nothing, and numbers.

Such as 1,234.50, 3,5, $5, 12 %, (7) and N/A. Exported models use it without dxn.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np

# In lower case. A value such as "none" or "unknown" is not here: it can be a category of its own,
# such as "none" in a column of garages.
NO_VALUE = {"na", "n/a", "n.a.", "nan", "null", "nil", "?", "-", "--", "—", "–", "#n/a"}
# Further cells that contain no number or date.
NO_NUMBER = NO_VALUE | {".", "none", "unknown", "missing", "tbd"}
NO_NUMBER |= {"not available", "not applicable", "#value!", "#div/0!", "#ref!"}  # Excel
NO_NUMBER |= {"0000-00-00", "0000-00-00 00:00:00"}  # MySQL


def has_no_value(value: Any, texts: Set[str] = NO_VALUE) -> bool:
    """Whether a cell says that there is no value: null, a blank text, or such as "N/A"."""
    # Texts first: this is called several times for each cell of a table.
    if not isinstance(value, str):
        return is_null(value)
    text = value.strip().lower()
    return not text or text in texts


# Whether a cell says that there is no number or date, such as "N/A" or "unknown".
has_no_number = partial(has_no_value, texts=NO_NUMBER)


def is_null(value: Any) -> bool:
    """Whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(value, float):
        return value != value  # only NaN is not equal to itself
    # pandas need not be installed. Its NaT is an instance of datetime.
    return value is None or type(value).__name__ in ("NAType", "NaTType")


# Codes that are also words for nothing: "NA" is Namibia in a column of countries, and "-" is
# negative in a column of plus and minus signs.
CODES = (re.compile(r"[A-Z]{2}"), re.compile(r"[-–—+±]+(?:/-)?"))
SURE = 0.95  # share of the other values of such a column that are codes


def find_codes(cells: Iterable[Any]) -> frozenset[str]:
    """Return the words of a column that are codes, although elsewhere they mean no value."""
    words: set[str] = set()
    others: list[str] = []
    for cell in cells:
        text = str(cell).strip() if isinstance(cell, str | int | float) else ""
        if has_no_value(cell):
            words.add(text)
        else:
            others.append(text)
    for pattern in CODES if words - {""} and others else ():
        codes = frozenset(word for word in words if pattern.fullmatch(word))
        if codes and sum(map(bool, map(pattern.fullmatch, others))) >= SURE * len(others):
            return codes
    return frozenset()


def plain_value(value: Any) -> Any:
    """Return a cell of a program or a typed table as a text table has it.

    A scalar of NumPy becomes one of Python, a duration its seconds, a decimal or a fraction a
    float, an identifier or a member of an enumeration a text, and a set a sorted list. Other values
    are returned unchanged.
    """
    if isinstance(value, np.generic):
        # In nanoseconds, `item` of a time is a plain integer.
        kind = value.dtype.kind
        in_ns = kind in "mM" and isinstance(value.item(), int)
        value = (value.astype(f"{kind}8[us]") if in_ns else value).item()
    if isinstance(value, str | int | float):  # most of them
        return value
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | Fraction):
        return float(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    return sorted(value, key=str) if isinstance(value, set | frozenset) else value


# A column is numeric if at most this share of its cells, besides those such as "N/A", is not a
# number.
MAX_OTHERS = 0.05
# At least this share of its cells must be numbers.
MIN_NUMBERS = 0.5
# Numbers of cells that show whether a column is numeric, and how its numbers are written.
SAMPLE = 200
MAX_FOR_FORMAT = 10_000
HOURS = 24  # of a day
GOLDEN = 0.618034  # its multiples modulo 1 have no period
CURRENCY = r"[$€£¥₹₽₩₺₴₫฿₦]|[A-Z]{1,3}\$|(?:USD|EUR|GBP|JPY|CHF|CAD|AUD|CNY|INR|SEK|NOK|DKK|PLN|BRL"
CURRENCY += r"|KRW|MXN|ZAR|TRY|CZK|HUF|RUB|kr|Rs\.?)(?=\s|\d)"
CURRENCY_SIGN = re.compile(r"[$€£¥₹₽₩₺₴₫฿₦]|[a-z]{3}")
# Minimum number of cells such as "1.234" beside "950" that show that the point separates thousands.
MIN_GROUPED = 3
MAX_NUMBER_CHARS = 400  # of a number; float64 has up to 309 digits before the decimal point
SPACES = " \u00a0\u202f\u2009"
GROUPS = f"{SPACES}'’,."
WORD_POWERS = {
    **dict.fromkeys(("thousand", "tsd"), 1e3),
    **dict.fromkeys(("lakh", "lakhs"), 1e5),
    **dict.fromkeys(("million", "millions", "millionen", "mio", "mln"), 1e6),
    **dict.fromkeys(("crore", "crores"), 1e7),
    **dict.fromkeys(("billion", "billions", "milliarde", "milliarden", "mrd", "bn", "bln"), 1e9),
    **dict.fromkeys(("trillion", "trillions"), 1e12),
}
# Longer words first, because they start with shorter ones.
POWER_WORDS = rf"(?i:{'|'.join(sorted(WORD_POWERS, key=len, reverse=True))})"
# Sign, currency, digits with separators, exponent, and a unit of at most 12 characters. A number in
# brackets is negative, as accountants write it. Spaces are matched possessively, because otherwise
# many of them would take a time that grows with the cube of their number.
WRITTEN = re.compile(
    rf"(?P<open>\(\s*+)?(?P<sign>[-+−]?)\s*+(?P<currency>{CURRENCY})?\s*+(?P<inner>[-+−]?)"
    rf"(?P<digits>\d+(?:[{GROUPS}]\d+)*[.,]?|[.,]\d+)(?P<exponent>[eE][-+]?\d+)?"
    rf"\s*+(?P<power>(?:{POWER_WORDS})(?![^\W\d_])\.?)?"
    # "$0.12M": elsewhere, a letter is a power of ten only in some columns, see SCALED.
    r"(?(currency)\s*+(?P<letter>(?:[kKmMbBtT]|[mM]n|[bB]n)(?![^\W\d_]))?)"
    r"\s*+(?:(?P<unit>[^\d\s.,()−-][^\d()]{0,11})|(?P<after>[-−]))?(?(open)\))"
)
# Cells that all have plain digits, joined by line feeds, which is most columns of numbers.
PLAIN_COLUMN = re.compile(r"[+-]?\d+(?:\.\d+)?(?:\n[+-]?\d+(?:\.\d+)?)*")
# Phone numbers with groups of three digits are written like amounts.
PHONE = re.compile(rf"[+0]\d(?:[{SPACES}]?\d){{6,}}")
# It can also be a code: most programs write a sign or a decimal point into such a number.
EXPONENT = re.compile(r"\d+[eE]\d+")
# A decimal point that cannot separate thousands, because other than three digits follow.
DECIMAL_POINT = re.compile(r"\.(?!\d{3}(?!\d))")
POWERS = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}
# The unit of a column such as "1.2k", "3M" and "980": its letters are powers of ten.
SCALED = "k/M/B"
# The unit of a column of durations such as 45:10 and 1:02:30, which are read as seconds.
DURATION = "min:s"
TIMED = re.compile(
    r"(?P<sign>-?)(?:(?P<days>\d{1,5}) days?,? )?(?:(?P<hours>\d{1,5}):(?=[0-5]\d:))?"
    r"(?P<minutes>\d{1,5}):(?P<seconds>[0-5]\d(?:[.,]\d+)?)"
)
SURE_LETTERS = {"K", "M", "B"}  # powers of ten if they follow the digits immediately


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    Args:
        decimal: Decimal separator, a point or a comma. The other one separates thousands.
        unit: Unit or currency that some or all numbers have, such as "%". Empty: none. SCALED: the
            letters of numbers such as 1.2k and 3M are powers of ten. DURATION: cells are durations.
    """

    decimal: str = "."
    unit: str = ""

    def parse(self, value: Any) -> float | None:
        """Return a cell as a finite number; None if it is not a number in this format."""
        is_text = isinstance(value, str)
        if is_text and self.unit == DURATION:
            return _seconds_of(value)
        # The usual case first, because a regular expression is slower.
        if not is_text or self.decimal == ".":
            number = plain_number(value)
            if number is not None or not is_text:
                return number
        match = _match(value)
        return None if match is None else self.number_of(match)

    def number_of(self, match: re.Match[str]) -> float | None:
        """Return the number of a match of `WRITTEN`; None if it is not one in this format."""
        unit = unit_of(match)
        factor = _factor_of(match)
        if self.unit == SCALED and unit in POWERS:
            factor, unit = factor * POWERS[unit], ""
        if unit not in ("", self.unit):
            return None
        digits = self._plain(match["digits"])
        if digits is None:
            return None
        number = float(digits + (match["exponent"] or "")) * factor
        if math.isinf(number):  # such as 1e400
            return None
        signs = match["sign"] + match["inner"] + (match["after"] or "")  # 5- is written by SAP
        if len(signs) > 1:
            return None
        return -number if signs in ("-", "−") or match["open"] else number

    def _plain(self, digits: str) -> str | None:
        """Return digits without separators of thousands, and with a decimal point."""
        whole, _, fraction = digits.partition(self.decimal)
        if fraction and not fraction.isdigit():
            return None
        separators = {c for c in whole if not c.isdigit()}
        # 1,234,567, and in India 12,34,567; the same separator throughout. Phone numbers such as
        # 030 123 456, and addresses such as 192.168.10.120, are no numbers.
        if separators:
            mark = re.escape(next(iter(separators)))
            inner = r"\d{2,3}" if mark == "," else r"\d{3}"
            grouped = rf"[1-9]\d{{0,2}}(?:{mark}{inner})*{mark}\d{{3}}"
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
    # It also accepts booleans, also those of NumPy, whose texts "true" and "false" are no numbers.
    if type(value).__name__ in ("bool", "bool_"):
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
    if any(map(is_phone, few)):
        phones = [PHONE.fullmatch(str(v).strip()) for v in values if form.parse(v) is not None]
        if sum(phone is not None for phone in phones) >= SURE * len(phones):
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
    if num_wrong and _letters(others) and len(_letters(values)) > 1:
        return None  # 12, 12a and 12b are names, such as those of houses, and no amounts
    if not numbers or num_wrong > MAX_OTHERS * (len(numbers) + num_wrong):
        return None
    is_numeric = len(numbers) >= MIN_NUMBERS * (len(values) - num_missing)
    return ParsedNumbers(form, numbers, others) if is_numeric else None


def _letters(values: Sequence[Any]) -> set[str]:
    """Return the letters that follow whole numbers immediately, as in 12a."""
    return {
        value[-1].lower()
        for value in values
        if isinstance(value, str) and value[:-1].isdigit() and value[-1].isalpha()
    }


def is_phone(value: Any) -> bool:
    """Return whether a cell is a plus sign and at least seven digits, as a phone number."""
    text = value.strip() if isinstance(value, str) else ""
    return text.startswith("+") and PHONE.fullmatch(text) is not None


def find_format(values: Sequence[Any]) -> NumberFormat:
    """Return the number format of a column. It is decided by all cells together.

    A single "1,234" can be 1234 or 1.234. Another cell of the column, such as "3,5" or "1,234.50",
    shows which of them is meant. Without such a cell, the comma separates thousands.
    """
    if _are_durations(values):
        return NumberFormat(unit=DURATION)
    matches = _matches(values)
    units: Counter[str] = Counter()
    decimals: Counter[str] = Counter()
    for match, num_cells in matches.items():
        units[unit_of(match)] += num_cells
        decimals[_decimal_of(match["digits"])] += num_cells
    del units[""]
    unit = units.most_common(1)[0][0] if units else ""
    if units.keys() <= POWERS.keys() and _are_powers([m for m in matches if m["unit"]]):
        unit = SCALED
    if decimals["."] or decimals[","]:
        return NumberFormat("," if decimals[","] > decimals["."] else ".", unit)
    # Only "1.234" and "950": numbers with three decimals would all have a point, and amounts of
    # money have no third decimal. So the point separates thousands.
    num_points = sum(n for match, n in matches.items() if "." in match["digits"])
    are_some = MIN_GROUPED <= num_points < matches.total()
    is_grouped = num_points and (are_some or _are_money(matches, unit))
    return NumberFormat("," if is_grouped else ".", unit)


def _are_durations(values: Sequence[Any]) -> bool:
    """Return whether most texts are durations, and more than a few of them are no times of day."""
    texts = [value for value in sample(values, MAX_FOR_FORMAT) if isinstance(value, str)]
    matches = [TIMED.fullmatch(text.strip()) for text in texts if ":" in text]
    timed = [match for match in matches if match is not None]
    longer = sum(bool(m["days"]) or int(m["hours"] or m["minutes"]) >= HOURS for m in timed)
    return 2 * len(timed) > len(texts) and longer > MAX_OTHERS * len(timed)


def _seconds_of(text: str) -> float | None:
    """Return the seconds of a duration; None if it is none."""
    match = TIMED.fullmatch(text.strip())
    if match is None:
        return None
    hours = HOURS * int(match["days"] or 0) + int(match["hours"] or 0)
    seconds = float(match["seconds"].replace(",", "."))
    total = 3600 * hours + 60 * int(match["minutes"]) + seconds
    return -total if match["sign"] else total


def _are_money(matches: Iterable[re.Match[str]], unit: str) -> bool:
    return any(match["currency"] or CURRENCY_SIGN.fullmatch(unit) for match in matches)


def explain_format(form: NumberFormat, values: Sequence[Any], advice: str | None = "") -> str:
    """Return how numbers are read that could be read in another way; "" if there are none.

    Args:
        form: The format of the column, see `find_format`.
        values: Cells of the column.
        advice: What to do if no cell shows the decimal separator. None: the user set it.
    """
    if form.unit == DURATION:
        text = next(value for value in values if form.parse(value) is not None)
        return f"{text!r} is read as {form.parse(text):,.10g} seconds"
    matches = _matches(values)
    matches = Counter({m: n for m, n in matches.items() if form.number_of(m) is not None})
    unclear = "" if advice is None else _unclear_number(form, matches)
    return f"{unclear}{advice}" if unclear else _explain_units(form, matches, values)


def _unclear_number(form: NumberFormat, matches: Counter[re.Match[str]]) -> str:
    """Return how "1.234" is read if no cell of the column shows it; "" otherwise."""
    if any(_decimal_of(match["digits"]) for match in matches):
        return ""
    grouped = [match[0] for match in matches if {".", ","}.intersection(match["digits"])]
    if not grouped or form.decimal == ",":  # points beside 950, or in amounts of money
        return ""
    # A comma separates thousands beside 950. Beside 3, numbers such as 1.234 may lack zeros.
    if "," in grouped[0] and (len(grouped) < len(matches) or _are_money(matches, form.unit)):
        return ""
    # With a decimal comma, the point separates thousands.
    number, other = (f.parse(grouped[0]) for f in (form, NumberFormat(",", form.unit)))
    return (
        f"no cell shows whether {grouped[0]!r} is {number:.10g} or {other:.10g}, so it is read as "
        f"{number:.10g}"
    )


def _explain_units(
    form: NumberFormat, matches: Counter[re.Match[str]], values: Sequence[Any]
) -> str:
    """Return how numbers are read that have letters, an exponent, or no unit beside others."""
    units = {match[0]: n for match, n in matches.items() if unit_of(match)}
    unit = next(iter(units), "")
    if form.unit == SCALED and units:
        return f"{unit!r} is read as {form.parse(unit):,.10g}"
    plain: list[Any] = [value for value in values if isinstance(value, int | float)]
    plain += [match[0] for match in matches.elements() if not unit_of(match)]
    if not units or not plain:
        code = next((match[0] for match in matches if EXPONENT.fullmatch(match[0])), None)
        return f"{code!r} is read as {form.parse(code):,.10g}, no code" if code else ""
    return (
        f"{plain[0]!r} and {unit!r} are read in the same unit ({len(plain):,} of "
        f"{len(plain) + sum(units.values()):,} numbers have none)"
    )


def _matches(values: Sequence[Any]) -> Counter[re.Match[str]]:
    """Return the matches of the different texts that are numbers, and how often they occur."""
    texts = [value for value in values if isinstance(value, str)]
    joined = "\n".join(texts)
    # Without the time of a match for each cell, for most columns.
    if PLAIN_COLUMN.fullmatch(joined) and ("." not in joined or DECIMAL_POINT.search(joined)):
        return Counter()
    few = sample(texts, MAX_FOR_FORMAT)
    matches = _count_matches(few)
    if len(few) == len(texts) or any(_decimal_of(match["digits"]) for match in matches):
        return matches
    # A single cell can show the decimal mark.
    return _count_matches(texts)


def _count_matches(texts: Sequence[str]) -> Counter[re.Match[str]]:
    cells = Counter(texts)
    return Counter({m: n for text, n in cells.items() if (m := _match(text)) is not None})


def units_of(values: Sequence[Any]) -> list[str]:
    """Return the units of a column of texts, of which nearly all are numbers with some unit."""
    present = [value for value in values if not has_no_number(value)]
    # Most columns of texts are recognized by a few cells, which is faster.
    for cells in (sample(present), present):
        matches = [_match(cell) for cell in cells if isinstance(cell, str)]
        units = Counter(unit_of(match) for match in matches if match is not None)
        if not units or units.total() < (1 - MAX_OTHERS) * len(cells):
            return []
    names = [unit for unit, _ in units.most_common() if unit]
    # 12, 12a and 12b are names.
    return [] if len(names) > 1 and _letters(present) == set(names) else names


def mixed_decimals(values: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return a cell with a decimal point and one with a decimal comma, if nearly all are numbers.

    None: the cells are no numbers, or all of them can have the same decimal separator.
    """
    present = [value for value in values if not has_no_number(value)]
    # Most columns of texts are recognized by a few cells, which is faster.
    for cells in (sample(present), present):
        unit = find_format(cells).unit
        points, commas = NumberFormat(".", unit), NumberFormat(",", unit)
        only: dict[str, Any] = {}  # the first cell that can only have this separator
        num_others = 0
        for cell in cells:
            as_point, as_comma = points.parse(cell), commas.parse(cell)
            if as_point is None and as_comma is None:
                num_others += 1
            elif None in (as_point, as_comma):
                mark = "," if as_point is None else "."
                if mark in cell:  # unlike 1,234,567, which shows no decimal separator
                    only.setdefault(mark, cell)
        if num_others > MAX_OTHERS * len(cells):
            return None
    return (only["."], only[","]) if len(only) == 2 else None


def sample(values: Sequence[Any], count: int = SAMPLE) -> Sequence[Any]:
    """Return cells from everywhere in a column, about `count` or all of them."""
    if len(values) < 2 * count:
        return values
    # Not each n-th cell: a table can repeat its rows for several places or times.
    return [values[int((i + GOLDEN * i % 1) * len(values) / count)] for i in range(count)]


def unit_of(match: re.Match[str]) -> str:
    """Return the currency or unit of a match of `WRITTEN`, in lower case."""
    parts = (match["currency"], match["unit"])
    return " ".join(part.strip().lower() for part in parts if part)


def _factor_of(match: re.Match[str]) -> float:
    """Return the power of ten of a word such as Mio, or of a letter beside a currency."""
    word = (match["power"] or "").lower().rstrip(".")
    return WORD_POWERS.get(word, 1.0) * POWERS.get((match["letter"] or "").lower(), 1.0)


def _are_powers(matches: Iterable[re.Match[str]]) -> bool:
    """Return whether the letters of a column are powers of ten, and not units such as meters."""
    letters = {match["unit"].strip() for match in matches}
    if "k" in letters:
        return True
    are_close = all(match[0][match.start("unit") - 1].isdigit() for match in matches)
    return are_close and bool(letters) and (len(letters) > 1 or letters <= SURE_LETTERS)


def _match(text: str) -> re.Match[str] | None:
    """Match a text with `WRITTEN`; None if it is not a number."""
    stripped = text.strip()
    return WRITTEN.fullmatch(stripped) if len(stripped) <= MAX_NUMBER_CHARS else None


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
