"""Labels of pictures: fonts for most scripts, shortened text, font sizes and file names."""

import functools
import re
from collections.abc import Sequence

from matplotlib.font_manager import get_font_names

# matplotlib uses the first font that has a character. DejaVu Sans, which matplotlib includes, has
# Latin, Cyrillic, Greek, Arabic and Hebrew. The others are used if they are installed.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
    "Malgun Gothic",
)
MAX_LENGTH = 24  # characters of a label; longer labels would take most of the picture


@functools.cache
def fonts() -> tuple[str, ...]:
    """Return the names of those FONTS that are installed."""
    # matplotlib warns about each missing font, so fonts that are not installed are left out.
    installed = set(get_font_names())
    return tuple(font for font in FONTS if font in installed)


def shortened(words: Sequence[str]) -> list[str]:
    """Convert words to labels: replace unprintable characters by spaces and cut long words."""
    labels: list[str] = []
    for word in words:
        clean = "".join(c if c.isprintable() else " " for c in word)
        labels.append(clean if len(clean) <= MAX_LENGTH else clean[: MAX_LENGTH - 1] + "…")
    return labels


def font_size(inches: float) -> float:
    """Return the size in points, 3 to 9, of labels in rows of this height."""
    # One inch is 72 points. 45 of them leave space between the lines.
    return max(min(9.0, 45 * inches), 3.0)


def file_names(names: Sequence[str], file: str) -> dict[str, str]:
    """Return a file name for each input: `file` for a single input, otherwise INPUT_`file`."""
    if len(names) == 1:
        return {names[0]: file}
    result: dict[str, str] = {}
    for i, name in enumerate(names, 1):
        # The name of an input can be a column of a table, such as "price / unit".
        safe = re.sub(r"[^\w.-]+", "_", name)
        candidate = f"{safe}_{file}"
        # Two names can become equal, such as "a b" and "a/b".
        result[name] = f"{safe}_{i}_{file}" if candidate in result.values() else candidate
    return result
