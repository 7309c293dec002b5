"""Text that comes from data or an untrusted folder, made safe for a terminal or another program.

A class name or a cell can contain escape codes, which would control the terminal, and formulas,
which a spreadsheet would execute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

# Control characters except for newline and tab; the marks that reverse the direction of writing,
# with which a text can look like another one; and surrogates, which stand for bytes of a file name
# that are not UTF-8 and cannot be written.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
# Spreadsheets take a cell that starts with one of these characters as a formula. The full-width
# forms count too, because some programs convert them.
FORMULA = re.compile(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]|[\t\r]")
# A signed number contains no reference and no function, so it is left as it is.
NUMBER = re.compile(r"[-+]?(?:inf|nan|[\d.,\s%]*(?:[eE][-+]?\d+)?)")
# Texts that mean the same without quotes in Hydra's grammar, such as names and numbers.
PLAIN_TEXT = re.compile(r"(?!(?:true|false|null|inf|nan)$)[\w.+/%@~-]+", re.IGNORECASE)


def printable(text: str) -> str:
    r"""Return a text for a terminal or a log, with control characters as escapes such as \x1b."""
    return UNSAFE.sub(_escape, text)


def csv_cell(text: str) -> str:
    """Return a text for a cell of a CSV file, which no spreadsheet takes as a formula.

    A quotation mark is put in front of a formula, as the OWASP guide on CSV injection recommends.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    is_formula = FORMULA.match(text) is not None and NUMBER.fullmatch(text.strip()) is None
    return f"'{printable(lines)}" if is_formula else printable(lines)


def json_text(content: Any, *, indent: int | None = None) -> str:
    r"""Return plain data as JSON. Control characters are escapes of JSON, such as \u001b.

    Args:
        content: The data. Values that JSON does not have, such as dates, become texts.
        indent: Number of spaces per level. Default: everything in one line.
    """
    text = json.dumps(content, indent=indent, ensure_ascii=False, default=str)
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def valid_text(text: str) -> str:
    """Return a text without lone surrogates, which UTF-8 and tokenizers do not allow."""
    return SURROGATE.sub("\ufffd", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def quoted(value: str) -> str:
    """Return a text in the quotes of Hydra's grammar."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def plain_or_quoted(value: str) -> str:
    """Return a text in Hydra's grammar, in quotes only if it needs them."""
    return value if PLAIN_TEXT.fullmatch(value) else quoted(value)


def override_value(value: Any, text: Callable[[str], str] = quoted) -> str:
    """Return a value in Hydra's grammar, in which a list or a mapping is a single value.

    Args:
        value: Plain data, an array or a path.
        text: Function that writes a text. The texts of a list need quotes.
    """
    if hasattr(value, "tolist"):  # of NumPy, pandas and torch
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return text(str(value))
    if isinstance(value, Mapping):
        items = [f"{key}:{override_value(item, text)}" for key, item in value.items()]
        return f"{{{','.join(items)}}}"
    if isinstance(value, Sequence | Iterator | Set):
        return f"[{','.join(override_value(item, text) for item in value)}]"
    return str(value)
