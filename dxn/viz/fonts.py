"""Fonts: which installed fonts have the characters of a text, and how wide a text is."""

from __future__ import annotations

import functools
import unicodedata

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import text_to_path

# matplotlib includes this font. It has Latin, Cyrillic, Greek, Arabic and Hebrew.
DEFAULT_FONT = "DejaVu Sans"
# Fonts that are tried first for other scripts, because the first font that has a character may be
# an ornamental one.
PREFERRED = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "Noto Sans KR",
    "Noto Sans Devanagari",
    "Noto Sans Symbols2",
    "Noto Emoji",
    "Noto Sans",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Kohinoor Devanagari",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Segoe UI Emoji",
    "Segoe UI Symbol",
    "Arial Unicode MS",
)
# Fonts whose glyphs are boxes, bitmaps in color, or formula signs at the code points of letters.
UNUSABLE = ("Last", "Adobe Blank", "Apple Color Emoji", "Noto Color Emoji", "STIXN", "STIXS", "cm")


def families(text: str) -> list[str]:
    """Return the names of the fonts to draw a text with; matplotlib uses the first that fits.

    Only fonts that are needed are listed, the default font first.
    """
    chosen = [DEFAULT_FONT]
    for character in dict.fromkeys(text):
        name = font_of(character)
        if name is not None and name not in chosen:
            chosen.append(name)
    return chosen


@functools.cache
def font_of(character: str) -> str | None:
    """Return the first installed font that has a character; None if there is no such font."""
    if character.isspace():
        return DEFAULT_FONT
    return next((name for name in _files() if ord(character) in _code_points(name)), None)


def legible(text: str) -> str:
    """Replace what cannot be drawn.

    Unprintable characters become a space. Characters that no installed font has become their code
    point, such as [U+0928], and several of them in a row the first code point: [U+0928…].
    """
    parts: list[str] = []
    missing = ""
    for character in f"{text}\0":  # the end is an unprintable character, which ends a run
        if character.isprintable() and font_of(character) is None:
            missing += character
            continue
        if missing:
            parts.append(f"[U+{ord(missing[0]):04X}{'…' if len(missing) > 1 else ''}]")
            missing = ""
        # Format characters, such as a zero-width joiner, take no space.
        if character.isprintable():
            parts.append(character)
        elif unicodedata.category(character) != "Cf":
            parts.append(" ")
    return "".join(parts)[:-1]


@functools.lru_cache(maxsize=20_000)
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text in points."""
    properties = FontProperties(family=families(text), size=size)
    return float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0])


@functools.cache
def _files() -> dict[str, str]:
    """Return the file of each usable installed font, the default font and PREFERRED first."""
    # matplotlib logs a warning about a font that has no regular style, so these are left out.
    regular = {
        font.name: font.fname
        for font in fontManager.ttflist
        if (font.style, font.stretch, font.weight) == ("normal", "normal", 400)
    }
    others = sorted(name for name in regular if not name.startswith(UNUSABLE))
    order = dict.fromkeys([DEFAULT_FONT, *PREFERRED, *others])
    return {name: regular[name] for name in order if name in regular}


@functools.cache
def _code_points(name: str) -> frozenset[int]:
    """Return the code points of the characters of an installed font."""
    try:
        return frozenset(get_font(_files()[name]).get_charmap())
    # A font file can be damaged, or contain only bitmaps.
    except (OSError, RuntimeError, ValueError):
        return frozenset()
