"""One split of a data set, whatever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Rows:
    """cells: "text", "image", "audio" or "target" to one value a row, None where it is missing.

    text is a str or a list of words; image and audio what tokenize.media reads; target a str (class, text), a list of
    str (labels, tags) or a float (number). origin says where each row came from: "train.csv row 17".
    """

    cells: Mapping[str, Sequence[Any]]
    origin: Sequence[str]

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, indices: Sequence[int]) -> Rows:
        """The rows of these indices, in their order."""
        cells = {name: [column[i] for i in indices] for name, column in self.cells.items()}
        return Rows(cells, [self.origin[i] for i in indices])


@dataclass(frozen=True)
class Source:
    """Splits by name ("train", "validation", "test"), what is to be predicted, and what to tell the user."""

    splits: Mapping[str, Rows]
    target_kind: str  # class, labels, number, tags, text or none
    columns: Mapping[str, str]  # what each cell was called: {"text": "title", "target": "colour"}
    notes: Sequence[str] = ()
    on_bad: Literal["error", "skip", "missing"] = "error"
