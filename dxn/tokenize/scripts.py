"""Scripts that put no spaces between words, such as Chinese, Japanese and Thai."""

from __future__ import annotations

import re

# First and last code point of each range.
RANGES = (
    (0x0E01, 0x0EFF),  # Thai and Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # repetition mark and zero of Chinese characters
    (0x3041, 0x30FA),  # hiragana and katakana
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),  # more katakana
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # katakana of half the width
    (0x20000, 0x3FFFF),  # rare Chinese characters
)
# A set of characters, for `re` and for the regular expressions of the tokenizers library.
UNSPACED = "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in RANGES) + "]"

_WORD = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})\S)+")


def is_unspaced(char: str) -> bool:
    """Whether a character is from a script that puts no spaces between words."""
    return any(first <= ord(char) <= last for first, last in RANGES)


def count_words(text: str) -> int:
    """Count words that are separated by spaces, and characters of scripts without spaces."""
    return sum(1 for _ in _WORD.finditer(text))
