"""Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Burmese and Khmer."""

from __future__ import annotations

import re
import unicodedata

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
    (0xFF66, 0xFF9F),  # halfwidth katakana
    (0x20000, 0x3FFFF),  # rare Chinese characters
)
# A set of characters, for `re` and for the regular expressions of the tokenizers library.
UNSPACED = "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in RANGES) + "]"

_WORD = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})\S)+")


def is_unspaced(char: str) -> bool:
    """Whether a character is from a script that puts no spaces between words."""
    return any(first <= ord(char) <= last for first, last in RANGES)


def is_mark(char: str) -> bool:
    """Whether a character belongs to the one before it, such as a vowel sign or an accent."""
    return unicodedata.category(char) in ("Mn", "Mc")


def count_words(text: str) -> int:
    """Count words that are separated by spaces, and characters of scripts without spaces.

    A character and its marks count once.
    """
    return sum(not is_mark(word[0][0]) for word in _WORD.finditer(text))
