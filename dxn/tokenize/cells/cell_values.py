"""What the cells of tables say, as people write it: nothing, numbers and dates.

Such as 1,234.50, 3,5, $5, 12 %, (7), 2026-01-31, 31.1.2026, 9:30 PM and N/A. Exported models use
it without dxn.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import numpy as np

# In lower case. A value such as "none" or "unknown" is not here: it can be a category of its own,
# such as "none" in a column of garages.
NO_VALUE = {"na", "n/a", "n.a.", "nan", "null", "nil", "?", "-", "--", "—", "–", "#n/a"}
# Further cells that contain no number or date.
NO_NUMBER = NO_VALUE | {".", "none", "unknown", "missing", "tbd"}
NO_NUMBER |= {"not available", "not applicable", "#value!", "#div/0!", "#ref!"}  # Excel


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
# A decimal point that cannot separate thousands, because other than three digits follow.
DECIMAL_POINT = re.compile(r"\.(?!\d{3}(?!\d))")
POWERS = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}
# The unit of a column such as "1.2k", "3M" and "980": its letters are powers of ten.
SCALED = "k/M/B"
SURE_LETTERS = {"K", "M", "B"}  # powers of ten if they follow the digits immediately


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    Args:
        decimal: Decimal separator, a point or a comma. The other one separates thousands.
        unit: Unit or currency that some or all numbers have, such as "%". Empty: none. SCALED: the
            letters of numbers such as 1.2k and 3M are powers of ten.
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
        if match is None:
            return None
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


def find_format(values: Sequence[Any]) -> NumberFormat:
    """Return the number format of a column. It is decided by all cells together.

    A single "1,234" can be 1234 or 1.234. Another cell of the column, such as "3,5" or "1,234.50",
    shows which of them is meant. Without such a cell, the comma separates thousands.
    """
    matches = _matches(values)
    units = Counter(unit for match in matches if (unit := unit_of(match)))
    unit = units.most_common(1)[0][0] if units else ""
    if units.keys() <= POWERS.keys() and _are_powers([m for m in matches if m["unit"]]):
        unit = SCALED
    digits = [match["digits"] for match in matches]
    decimals = Counter(map(_decimal_of, digits))
    if decimals["."] or decimals[","]:
        return NumberFormat("," if decimals[","] > decimals["."] else ".", unit)
    # Only "1.234" and "950": numbers with three decimals would all have a point, and amounts of
    # money have no third decimal. So the point separates thousands.
    num_points = sum("." in written for written in digits)
    are_some = MIN_GROUPED <= num_points < len(digits)
    is_grouped = num_points and (are_some or _are_money(matches, unit))
    return NumberFormat("," if is_grouped else ".", unit)


def _are_money(matches: Sequence[re.Match[str]], unit: str) -> bool:
    return any(match["currency"] or CURRENCY_SIGN.fullmatch(unit) for match in matches)


def unclear_number(form: NumberFormat, values: Sequence[Any]) -> str:
    """Return how "1.234" is read if no cell of the column shows it; "" otherwise.

    Args:
        form: The format of the column, see `find_format`.
        values: Cells of the column.
    """
    matches = _matches(values)
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


def explain_units(form: NumberFormat, values: Sequence[Any]) -> str:
    """Return how numbers with letters, and those without a unit beside others, are read.

    Args:
        form: The format of the column, see `find_format`.
        values: Cells of the column.
    """
    matches = _matches(values)
    units = [match[0] for match in matches if unit_of(match)]
    if form.unit == SCALED:
        return f"{units[0]!r} is read as {form.parse(units[0]):,.10g}"
    plain: list[Any] = [value for value in values if isinstance(value, int | float)]
    plain += [match[0] for match in matches if not unit_of(match)]
    if not units or not plain:
        return ""
    return (
        f"{plain[0]!r} and {units[0]!r} are read in the same unit ({len(plain):,} of "
        f"{len(plain) + len(units):,} numbers have none)"
    )


def _matches(values: Sequence[Any]) -> list[re.Match[str]]:
    """Return the matches of the texts of a column that are numbers."""
    texts = [value for value in sample(values, MAX_FOR_FORMAT) if isinstance(value, str)]
    joined = "\n".join(texts)
    # Without the time of a match for each cell, for most columns.
    if PLAIN_COLUMN.fullmatch(joined) and ("." not in joined or DECIMAL_POINT.search(joined)):
        return []
    return [match for text in texts if (match := _match(text)) is not None]


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


def sample(values: Sequence[Any], count: int = SAMPLE) -> Sequence[Any]:
    """Return evenly spaced cells of a column, about `count` or all of them."""
    return values[:: max(1, len(values) // count)]


def unit_of(match: re.Match[str]) -> str:
    """Return the currency or unit of a match of `WRITTEN`, in lower case."""
    parts = (match["currency"], match["unit"])
    return " ".join(part.strip().lower() for part in parts if part)


def _factor_of(match: re.Match[str]) -> float:
    """Return the power of ten of a word such as Mio, or of a letter beside a currency."""
    word = (match["power"] or "").lower().rstrip(".")
    return WORD_POWERS.get(word, 1.0) * POWERS.get((match["letter"] or "").lower(), 1.0)


def _are_powers(matches: Sequence[re.Match[str]]) -> bool:
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


# Fraction of the cells of a column that must match.
MOST = 0.95
# Number of cells that are inspected first, and the fraction of them that must match. It is lower,
# because a few cells can have more than their share of those that do not match.
NUM_IN_SAMPLE = 20
MIN_IN_SAMPLE = 0.5
# A date of eight digits, such as 20260131.
COMPACT = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
DATE = re.compile(
    r"(?:"
    r"(?:(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
    r"|(?P<first>\d{1,2})(?P<mark2>[-/.])(?P<second>\d{1,2})(?P=mark2)(?P<year2>\d{2,4})"
    # 31 January 2026, 31.Jan 2026, 31-JAN-26 as in Oracle, and 31JAN2026 as in SAS.
    r"|(?P<day3>\d{1,2})(?:\.? ?|[-/])(?P<name3>[^\W\d_]{3,10})(?:\.?,? ?|[-/])"
    r"(?P<year3>\d{4}|(?<=[-/])\d{2})"
    r"|(?P<name4>[^\W\d_]{3,10})\.? (?P<day4>\d{1,2}),? (?P<year4>\d{4})"
    r"|(?P<year5>\d{4})[- ](?P<name5>[^\W\d_]{3,10})[- ](?P<day5>\d{1,2})"
    # The first day of a month, which has no number.
    r"|(?P<name6>[^\W\d_]{3,10})\.?[- ](?P<year6>\d{4})(?P<day6>))"
    r"(?:[T ]+(?P<time>\d{1,2}:\d{2}.*))?"
    r"|(?P<only_time>\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?))"
)
NAMED_DATES = (3, 4, 5, 6)  # numbers of the groups of dates with the name of a month
TIME = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d+)?))?\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?:\(?(?P<zone>Z|[A-Z]{2,5})\)?|(?P<sign>[-+])(?P<hours>\d{2}):?(?P<minutes>\d{2})?)?"
)
# Hours by which the clock of a zone is ahead of UTC. Others have several meanings, or are rare. CST
# is one of them, so CDT, which the same clocks show in summer, is left out too.
ZONES = {"Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3}
ZONES |= {"EST": -5, "EDT": -4, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
# Names of the months in English, German, French, Spanish, Italian, Portuguese and Dutch, and
# abbreviations of other than three letters.
MONTHS = (
    "january januar jänner janvier janv enero gennaio janeiro januari",
    "february februar feber février févr febrero febbraio fevereiro februari",
    "march märz maerz mrz mars marzo março maart mrt",
    "april avril abril aprile",
    "may mai mayo maggio maio mei",
    "june juni juin junio giugno junho",
    "july juli juillet juil julio luglio julho",
    "august août agosto augustus",
    "september sept septembre septiembre setiembre settembre sett setembro",
    "october oktober octobre octubre ottobre outubro",
    "november novembre noviembre novembro",
    "december dezember décembre diciembre dicembre dezembro",
)
ABBREVIATED = 3  # letters of an abbreviation
# Two digits of a year are 1969 to 2068, as in Python and POSIX.
CENTURY_START = 69
SECONDS_PER_DAY = 86400


@dataclass(frozen=True)
class Moment:
    """A date, a time of day, or both.

    Args:
        day: Number of the day, 1 is January 1 of year 1. None: there is no date.
        second: Seconds since midnight on the clock of the place. None: there is no time.
        offset: Seconds by which this clock is ahead of UTC. None: it is not known.
    """

    day: int | None
    second: float | None
    offset: float | None = None

    @property
    def days(self) -> float:
        """The date and the time as a number of days."""
        return (self.day or 0) + (self.second or 0.0) / SECONDS_PER_DAY

    @property
    def date(self) -> Moment:
        """The date without the time. A time of day without a date is unchanged."""
        return self if self.day is None else Moment(self.day, None)

    def __str__(self) -> str:
        parts = []
        if self.day is not None:
            parts.append(datetime.date.fromordinal(self.day).isoformat())
        if self.second is not None:
            minutes = int(self.second) // 60
            parts.append(f"{minutes // 60:02}:{minutes % 60:02}")
        return " ".join(parts)


def parse_date(value: Any, *, day_first: bool) -> Moment | None:
    """Return the date or time of a cell; None if it is none.

    Args:
        value: The cell.
        day_first: Whether 1/2/2026 is the first of February instead of the second of January.
    """
    if isinstance(value, datetime.datetime):
        zone = value.utcoffset()
        offset = None if zone is None else zone.total_seconds()
        return Moment(value.toordinal(), _seconds(value.time()), offset)
    if isinstance(value, datetime.date):
        return Moment(value.toordinal(), None)
    if isinstance(value, datetime.time):
        return Moment(None, _seconds(value))
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if COMPACT.fullmatch(text):
        return _moment(int(text[:4]), int(text[4:6]), int(text[6:]), None)
    match = DATE.fullmatch(text)
    if match is None:
        return None
    written = match["only_time"] or match["time"]
    time = _time_of(written) if written else None
    if written and time is None:
        return None
    if match["only_time"]:
        return time and replace(time, second=(time.second or 0.0) % SECONDS_PER_DAY)
    return _moment(*_date_of(match, day_first=day_first), time)


def has_time(value: Any) -> bool:
    """Return whether a cell is a date with a time other than midnight, or a time of day."""
    # Most dates have none, and are not parsed.
    if isinstance(value, str) and ":" not in value:
        return False
    moment = parse_date(value, day_first=True) or parse_date(value, day_first=False)
    return moment is not None and bool(moment.second or moment.day is None)


def find_day_first(values: Sequence[Any]) -> bool:
    """Return whether days come before months in a column. It is decided by all cells together.

    A single 1/2/2026 can be in January or in February. Another cell, such as 25/2/2026, shows which
    of them is meant. Without such a cell, a date with slashes starts with the month.
    """
    matches = _days_and_months(values)
    shown = _shown_order(matches)
    if shown is not None:
        return shown
    num_slashes = sum(match["mark2"] == "/" for match in matches)
    return 2 * num_slashes <= len(matches)


def unclear_date(values: Sequence[Any]) -> str | None:
    """Return a date such as 1/2/2026 if no cell of the column shows whether its day comes first."""
    matches = _days_and_months(values)
    if _shown_order(matches) is not None:
        return None
    # Points are only used where the day comes first.
    unclear = (m for m in matches if m["mark2"] != "." and int(m["first"]) != int(m["second"]))
    return next((match[0] for match in unclear), None)


def _days_and_months(values: Sequence[Any]) -> list[re.Match[str]]:
    """Return the matches of dates that start with a day or a month in digits."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    return [match for text in texts if (match := DATE.fullmatch(text)) and match["first"]]


def _shown_order(matches: Sequence[re.Match[str]]) -> bool | None:
    """Return whether the day comes first; None if as many dates say so as say the opposite."""
    first = sum(int(match["first"]) > 12 for match in matches)
    second = sum(int(match["second"]) > 12 for match in matches)
    return None if first == second else first > second


def are_dates(values: Sequence[Any]) -> bool:
    """Return whether nearly all values that are not missing are dates or times."""
    # Most columns are recognized by a few cells, which is faster.
    few = [value for value in sample(values, NUM_IN_SAMPLE) if not has_no_number(value)]
    if sum(map(looks_like_date, few)) < MIN_IN_SAMPLE * len(few):
        return False
    present = [value for value in values if not has_no_number(value)]
    return bool(present) and sum(map(looks_like_date, present)) >= MOST * len(present)


def looks_like_date(value: Any) -> bool:
    """Whether a cell looks like a date or a time. The day need not exist, such as February 30."""
    if isinstance(value, datetime.date | datetime.time):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return False
    text = value.strip()
    match = DATE.fullmatch(text)
    if match is None:
        return COMPACT.fullmatch(text) is not None
    if match["only_time"]:  # not a duration of more than 24 minutes, such as 45:10
        return _time_of(match["only_time"]) is not None
    name = match[f"name{_kind_of(match)}"]
    return name is None or _month_of(name) > 0


@lru_cache(maxsize=1_000)
def _month_of(name: str) -> int:
    """Return the number of a month; 0 if it is no name of one, nor the start of one name."""
    written = _plain_letters(name)
    numbers: set[int] = set()
    for number, names in enumerate(MONTHS, 1):
        full = _plain_letters(names).split()
        # Longer starts are other words, such as Jane, apart from the usual ones among the names.
        if written in full or any(month[:ABBREVIATED] == written for month in full):
            numbers.add(number)
    return numbers.pop() if len(numbers) == 1 else 0  # "jui" is June or July in French


def _plain_letters(name: str) -> str:
    """Return a name in lower case without accents, which are often left out."""
    letters = unicodedata.normalize("NFD", name.lower())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _date_of(match: re.Match[str], *, day_first: bool) -> tuple[int, int, int]:
    """Return year, month and day; 0 for a month with an unknown name."""
    if match["year"]:
        return int(match["year"]), int(match["month"]), int(match["day"])
    if match["year2"]:
        first, second = int(match["first"]), int(match["second"])
        day, month = (first, second) if day_first else (second, first)
        return _full_year(match["year2"]), month, day
    kind = _kind_of(match)
    year, day = _full_year(match[f"year{kind}"]), int(match[f"day{kind}"] or 1)
    return year, _month_of(match[f"name{kind}"]), day


def _kind_of(match: re.Match[str]) -> int:
    """Return the number of the groups of a date with the name of a month; 3 for other dates."""
    return next((kind for kind in NAMED_DATES if match[f"name{kind}"]), NAMED_DATES[0])


def _moment(year: int, month: int, day: int, time: Moment | None) -> Moment | None:
    try:
        ordinal = datetime.date(year, month, day).toordinal()
    except ValueError:  # such as February 30
        return None
    if time is None or time.second is None:
        return Moment(ordinal, None)
    days, second = divmod(time.second, SECONDS_PER_DAY)
    if ordinal + days > datetime.date.max.toordinal():
        return None
    return replace(time, day=ordinal + int(days), second=second)


def _time_of(text: str) -> Moment | None:
    """Return a time of day. 24:00 and a leap second can be the start of the next day."""
    match = TIME.fullmatch(text.strip())
    if match is None:
        return None
    hour, minute = int(match["hour"]), int(match["minute"])
    second = float((match["second"] or "0").replace(",", "."))
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    is_end = hour == 24 and minute == second == 0
    # A leap second is number 60.
    if (hour > 23 and not is_end) or minute > 59 or second >= 61:
        return None
    hours = ZONES.get(match["zone"] or "")
    offset = None if hours is None else 3600.0 * hours
    if match["sign"]:
        offset = 3600.0 * int(match["hours"]) + 60.0 * int(match["minutes"] or 0)
        if offset >= SECONDS_PER_DAY:
            return None
        offset = -offset if match["sign"] == "-" else offset
    return Moment(None, float(3600 * hour + 60 * minute + second), offset)


def _seconds(time: datetime.time) -> float:
    return 3600 * time.hour + 60 * time.minute + time.second + time.microsecond / 1e6


def _full_year(digits: str) -> int:
    year = int(digits)
    if len(digits) > 2:
        return year
    return year + (1900 if year >= CENTURY_START else 2000)
