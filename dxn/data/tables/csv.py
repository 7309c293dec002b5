"""Parse CSV files, whose separator is detected, and CoNLL files."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dxn.core.errors import UserError
from dxn.data.rows import CHUNK_ROWS, Column, as_column, blank_to_none, join_columns
from dxn.data.tables.files import check_num_columns

# Common separators, in the order of preference.
SEPARATORS = (",", ";", "\t", "|")
NAMES = {"\t": "tab"}
# Maximum number of characters of a CSV cell. The default of the csv module, 131,072, is too low for
# long texts. A larger value than this overflows the C long on Windows.
MAX_CELL = 2**31 - 1


def read_csv(
    path: Path, text: str, sep: str | None, default: str, key: str, notes: list[str]
) -> tuple[dict[str, Column], list[int]]:
    """Parse the text of a CSV file.

    Args:
        path: The file, for messages.
        text: Content of the file.
        sep: Separator of the cells. None: detect it.
        default: Separator that files with this suffix usually have.
        key: Option that sets the separator, for messages.
        notes: A sentence is appended if the separator is not the default.

    Returns:
        The values by column name, and the number of each row.

    Raises:
        UserError: If the file is not valid CSV.
    """
    # Excel writes this line before the header, and does not show it.
    named = re.match(r'"?sep=(.)"?\n', text, re.IGNORECASE)
    if named:
        text = text[named.end() :]
        sep = sep or named[1]
    if sep is not None:
        if len(sep) != 1:
            raise UserError(f"{key}: must be one character, got {sep!r}")
        return _parse(path, text, sep, key)
    fitting = _detect(path, text, default, key)
    detected = fitting[0]
    if detected != default or len(fitting) > 1:
        name, *others = (NAMES.get(sep, repr(sep)) for sep in fitting)
        more = f"; {' and '.join(others)} would fit too" if others else ""
        notes.append(
            f"separator of {path.name}: {name}, detected from its header ({key} sets it){more}"
        )
    return _parse(path, text, detected, key)


def _detect(path: Path, text: str, default: str, key: str) -> list[str]:
    """Return the separators that fit a CSV file, the most likely one first."""
    first_line = text[: text.find("\n")] if "\n" in text else text
    others = [sep for sep in SEPARATORS if sep != default and sep in first_line]
    if default not in first_line:
        # The header of a table with a single column contains no separator.
        return [max(others, key=first_line.count, default=default)]
    if not others:
        return [default]
    # A name such as "price, EUR" contains the usual separator. The rows rarely fit it, but numbers
    # such as 1,5 in each of them do.
    widths: dict[str, int] = {}
    for sep in [default, *others]:
        with suppress(UserError):
            widths[sep] = len(_parse(path, text, sep, key)[0])
    # Without any, the error of the usual separator is the most helpful one.
    # With equally many columns, the one with a blank behind it is a comma of a text.
    return sorted(widths, key=lambda sep: (-widths[sep], f"{sep} " in first_line)) or [default]


def _parse(path: Path, text: str, sep: str, key: str) -> tuple[dict[str, Column], list[int]]:
    # Before the names are cut out, which takes long if there are millions.
    check_num_columns(path, text.count(sep, 0, text.find("\n")) + 1)
    csv.field_size_limit(MAX_CELL)
    # strict=True raises an error for broken quotes, which the csv module would otherwise silently
    # interpret in some way.
    reader = csv.reader(_lines(text), delimiter=sep, strict=True)
    number = 1
    rows: list[list[str]] = []  # those that are not in `parts` yet
    parts: list[list[Column]] = []
    lines: list[int] = []
    blank: list[int] = []
    try:
        header = next(reader, [])
        _check_header(path, header, sep, key)
        for number, row in enumerate(reader, 2):
            if not row:
                # A line without characters is an empty cell of a table of one column, apart from
                # those at the end, and is not a row of other tables.
                if len(header) == 1:
                    blank.append(number)
                continue
            for line in blank:
                rows.append([""])
                lines.append(line)
            blank.clear()
            if len(row) != len(header):
                hint = "add the missing cells"
                if len(row) > len(header):
                    hint = "put cells that contain the separator in quotes"
                raise UserError(
                    f"{path} row {number}: must have {len(header)} cells, as the header has, got "
                    f"{len(row)}; {hint}"
                )
            rows.append(row)
            lines.append(number)
            if len(rows) >= CHUNK_ROWS:
                parts.append(_columns(rows, len(header)))
                rows.clear()
    except csv.Error as error:
        raise UserError(f"{path}: invalid CSV after row {number} ({error})") from error
    # Cells are not converted to numbers, because a zip code such as 01234 must not become 1234.
    parts.append(_columns(rows, len(header)))
    columns = [join_columns([part[i] for part in parts]) for i in range(len(header))]
    return named_columns(path, header, columns), lines


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text. StringIO would need four bytes per character."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _columns(rows: Sequence[Sequence[str]], width: int) -> list[Column]:
    return [as_column([blank_to_none(row[i]) for row in rows]) for i in range(width)]


def _check_header(path: Path, header: list[str], sep: str, key: str) -> None:
    if not any(header):
        raise UserError(f"{path}: no column names; the first row must contain them")
    if len(header) == 1:
        # A single column name that contains another common separator: sep is probably wrong.
        other = next((s for s in SEPARATORS if s != sep and s in header[0]), None)
        if other is not None:
            raise UserError(
                f"{path} row 1: column names must be separated by {sep!r}, got {header[0]!r}; "
                f"try {key}={other!r}"
            )
    check_names(path, [name for name in header if name.strip()])


def named_columns(
    path: Path, header: Sequence[str], columns: Sequence[Column]
) -> dict[str, Column]:
    """Return the columns of a table by name, see `filled_names`.

    Spreadsheets write separators for empty columns, too. These are left out.

    Raises:
        UserError: If most columns have no name, because the first row is not the header.
    """
    is_used = [
        bool(name.strip()) or any(cell is not None for cell in column)
        for name, column in zip(header, columns, strict=True)
    ]
    # The first one is often the index, to which pandas gives no name. A title in the first row,
    # and names that are merged cells, leave other cells blank.
    num_blank = sum(used and not name.strip() for name, used in zip(header, is_used, strict=True))
    num_others = num_blank - (is_used[0] and not header[0].strip())
    if 2 * num_others >= sum(is_used):
        raise UserError(
            f"{path} row 1: {num_blank} of {sum(is_used)} columns have no name; row 1 must contain "
            "the name of each column"
        )
    named = zip(filled_names(header), columns, is_used, strict=True)
    return {name: column for name, column, used in named if used}


def filled_names(names: Iterable[str]) -> list[str]:
    """Return column names, in which the second one is "Unnamed: 1" if it is blank, as in pandas."""
    names = list(names)
    taken = set(names)
    for i, name in enumerate(names):
        if not name.strip():
            names[i] = f"Unnamed: {i}"
            while names[i] in taken:
                names[i] += "_"
            taken.add(names[i])
    return names


def check_names(path: Path, header: list[str]) -> None:
    """Check that the column names of a table are distinct.

    Raises:
        UserError: If a name occurs twice.
    """
    # A dict of columns would silently keep only the last of several columns with the same name.
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise UserError(
            f"{path} row 1: column names must be unique, got {repeated[0]!r} more than once; "
            "rename a column"
        )


WORDS, TAGS = "words", "tags"  # names of the columns
DOCUMENT = "-DOCSTART-"  # word of a line between documents
WITHOUT_NUMBER = re.compile(r"\d+[-.]\d+")  # such as 3-4 and 8.1 in the format CoNLL-U


def read_conll(path: Path, text: str, notes: list[str]) -> tuple[dict[str, list], list[int]]:
    """Parse the text of a CoNLL file. The first column has the words, and the last one the tags.

    If the first column numbers the words, the second one has the words.

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
    word, tag = 0, width - 1
    if width > 2 and sentences and all(map(_are_numbered, sentences)):
        word = 1
        # In the format CoNLL-U, the last column is empty, and the fourth one has parts of speech.
        is_empty = all(row[tag] == "_" for rows in sentences for row in rows)
        tag = 3 if is_empty and width > 4 else tag
        # Others than whole numbers are those of words that are written together or left out.
        sentences = [[row for row in rows if row[0].isdigit()] for rows in sentences]
    columns: dict[str, list] = {WORDS: [[row[word] for row in rows] for rows in sentences]}
    about_tags = ""
    if width > 1:
        columns[TAGS] = [[row[tag] for row in rows] for rows in sentences]
        about_tags = f", the tags from column {tag + 1} of {width}"
    notes.append(
        f"{path.name}: {len(sentences):,} sentences between blank lines; the words are from column "
        f"{word + 1}{about_tags}"
    )
    return columns, first


def _are_numbered(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first column has the numbers of the words of a sentence, from 1."""
    numbers = [row[0] for row in rows if not WITHOUT_NUMBER.fullmatch(row[0])]
    return numbers == [str(i) for i in range(1, len(numbers) + 1)]
