"""Text that comes from data or a stranger's folder, made safe for a terminal or a spreadsheet.

A class name or a cell can contain escape codes, which would control the terminal, and formulas,
which a spreadsheet would execute. A value from an environment variable can be a secret.
"""

from __future__ import annotations

import re

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
# A shorter secret would also occur by chance in other words, which would become illegible.
MIN_SECRET = 4

# Values that must not be shown, and what is shown instead.
_secrets: dict[str, str] = {}


def hide(value: str, shown: str) -> None:
    """Never show a value again.

    Args:
        value: The secret.
        shown: Text that is shown in its place, such as ${oc.env:TOKEN}.
    """
    if len(value) >= MIN_SECRET:
        _secrets[value] = shown


def without_secrets(text: str) -> str:
    """Return a text in which hidden values are replaced, see `hide`."""
    # The longest first: a secret can be a part of another one.
    for value in sorted(_secrets, key=len, reverse=True):
        text = text.replace(value, _secrets[value])
    return text


def printable(text: str) -> str:
    r"""Return a text for a terminal or a log, with control characters as escapes such as \x1b."""
    return UNSAFE.sub(_escape, without_secrets(text))


def csv_cell(text: str) -> str:
    """Return a text for a cell of a CSV file, which no spreadsheet takes as a formula.

    A quotation mark is put in front of a formula, as the OWASP guide on CSV injection recommends.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    is_formula = FORMULA.match(text) is not None and NUMBER.fullmatch(text.strip()) is None
    return f"'{printable(lines)}" if is_formula else printable(lines)


def json_text(text: str) -> str:
    r"""Return JSON with control characters as escapes of JSON, so that the values are the same."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", without_secrets(text))


def valid_text(text: str) -> str:
    """Return a text without lone surrogates, which UTF-8 and tokenizers do not allow."""
    return SURROGATE.sub("\ufffd", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
