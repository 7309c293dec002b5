"""Labels of pictures: shortened text, font sizes and file names."""

import re
from collections.abc import Sequence

from dxn.viz.fonts import legible

MAX_LENGTH = 24  # characters of a label; longer labels would take most of the picture


def shortened(words: Sequence[str], length: int = MAX_LENGTH) -> list[str]:
    """Convert words to labels that can be drawn, and cut long ones."""
    labels: list[str] = []
    for word in words:
        label = legible(word)
        labels.append(label if len(label) <= length else f"{label[: length - 1].rstrip()}…")
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
