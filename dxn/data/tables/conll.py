"""Parse CoNLL files: one word and its tag per line, and a blank line between sentences."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dxn.core.errors import UserError

WORDS, TAGS = "words", "tags"  # names of the columns
DOCUMENT = "-DOCSTART-"  # word of a line between documents


def read_conll(path: Path, text: str, notes: list[str]) -> tuple[dict[str, list], list[int]]:
    """Parse the text of a CoNLL file. The first column has the words, and the last one the tags.

    Args:
        path: The file, for messages.
        text: Content of the file.
        notes: A sentence about the columns is appended.

    Returns:
        The words and the tags of each sentence, and the number of its first line. A file with a
        single column has no tags.

    Raises:
        UserError: If the lines have different numbers of columns.
    """
    separator = "\t" if "\t" in text else None
    # Not str.splitlines, which would also split at separators such as U+2028 within a word.
    lines = [line.strip("\r").rstrip() for line in text.split("\n")]
    cells = [line.split(separator) for line in lines]
    counts = Counter(len(row) for row, line in zip(cells, lines, strict=True) if line)
    width = counts.most_common(1)[0][0] if counts else 1
    sentences: list[list[list[str]]] = []
    first: list[int] = []
    is_new = True
    for number, (row, line) in enumerate(zip(cells, lines, strict=True), 1):
        is_comment = line.startswith("#") and len(row) != width
        if not line or is_comment or row[0] == DOCUMENT:
            is_new = True
            continue
        if len(row) != width:
            raise UserError(
                f"{path} row {number}: must have {width} columns, as most lines have, got "
                f"{len(row)}: {line[:40]}"
            )
        if is_new:
            sentences.append([])
            first.append(number)
            is_new = False
        sentences[-1].append(row)
    columns: dict[str, list] = {WORDS: [[row[0] for row in rows] for rows in sentences]}
    about_tags = ""
    if width > 1:
        columns[TAGS] = [[row[-1] for row in rows] for rows in sentences]
        about_tags = f", the tags from column {width} of {width}"
    notes.append(
        f"{path.name}: {len(sentences):,} sentences between blank lines; the words are from column "
        f"1{about_tags}"
    )
    return columns, first
