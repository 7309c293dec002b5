"""A data source of .ts files, the format of the UEA and UCR archives of series (arXiv:1811.00075).

Lines that start with # are comments, and lines that start with @ are headers. After @data, each
line is one row: its channels, separated by colons, and then the label. The values of a channel are
separated by commas, and a question mark is a missing value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dxn.core.errors import UserError
from dxn.data import InputSpec, Rows, Source, complete_splits
from dxn.data.rows import TARGET, VALUES, Origins
from dxn.data.tables.files import read_text
from dxn.tokenize.series.values import MAX_VALUES, from_list

LABEL = "label"
FILE = re.compile(r"(.+)_(train|test)\.ts(?:\.gz)?", re.IGNORECASE)
TRUE, FALSE = "true", "false"
MAX_SHOWN = 40  # characters of a value in a message
MISSING = re.compile(r"\?|nan", re.IGNORECASE)


def ts(
    path: str,
    *,
    fractions: Sequence[float] | None = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Source:
    """Read a data set of series with labels from .ts files.

    Args:
        path: Folder with NAME_TRAIN.ts and NAME_TEST.ts, or a single file.
        fractions: Fractions of training, validation and test rows of a single file. Those of a
            folder get a validation split. Null: no split is drawn.
        seed: Seed of the drawn splits.

    Raises:
        UserError: If there are no such files, or one of them is wrong.
    """
    notes: list[str] = []
    splits: dict[str, Rows] = {}
    for split, file in _files(Path(path)).items():
        columns, lines = read_ts(file, read_text(file))
        missing = [None] * len(lines)
        cells = {"series": columns[VALUES], TARGET: columns.get(LABEL, missing)}
        splits[split] = Rows(cells, Origins([file], lines))
    splits = complete_splits(splits, fractions, seed=seed, notes=notes)
    inputs = {"series": InputSpec(VALUES, "series")}
    return Source(splits, inputs, target=LABEL, notes=notes)


def _files(path: Path) -> dict[str, Path]:
    """Return the files of a data set by split; a single file has the key "all"."""
    if path.is_file():
        return {"all": path}
    if not path.is_dir():
        raise UserError(f"data.path: file or folder not found: {path}")
    files = {}
    names = set()
    for file in sorted(path.iterdir()):
        if match := FILE.fullmatch(file.name):
            names.add(match[1])
            files[match[2].lower()] = file
    if len(names) != 1 or "train" not in files:
        listed = ", ".join(sorted(names)) or "no such file"
        raise UserError(
            f"data.path: {path} must contain one data set, NAME_TRAIN.ts and NAME_TEST.ts, "
            f"got {listed}; set data.path to one file"
        )
    return files


def read_ts(path: Path, text: str) -> tuple[dict[str, list], list[int]]:
    """Read a .ts file.

    Channels of a row that are shorter than others are filled with missing values at the end.

    Args:
        path: The file, for error messages.
        text: Its content.

    Returns:
        The columns values, float32 arrays (T, C), and label, if the rows have one; and the line of
        each row. Values are None where all of them are missing.

    Raises:
        UserError: If the file has another format, or its series have time stamps.
    """
    headers: dict[str, str] = {}
    series: list[np.ndarray | None] = []
    labels: list[str | None] = []
    lines: list[int] = []
    in_data = False
    num_channels = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if not in_data and line.startswith("@"):
            name, _, value = line[1:].partition(" ")
            in_data = name.lower() == "data"
            headers[name.lower()] = value.strip()
            if in_data:
                num_channels = _check_headers(path, headers)
            continue
        if not in_data:
            raise UserError(
                f"{path} line {number}: must be a header such as @classLabel, or a comment that "
                f"starts with #, before the line @data, got {_short(line)}; use a file in the "
                "format of the UEA and UCR archives"
            )
        where = f"{path} line {number}"
        channels = line.split(":")
        if _has_label(headers):
            label = channels.pop().strip()
            labels.append(None if label in ("", "?") else label)
        num_channels = num_channels or len(channels)
        if len(channels) != num_channels or not channels:
            raise UserError(
                f"{where}: must have {num_channels or 1} channels separated by colons"
                f"{', and a label' * _has_label(headers)}, got {len(channels)} channels"
            )
        series.append(_values(channels, where))
        lines.append(number)
    if not in_data:
        raise UserError(
            f"{path}: has no line @data; use a file in the format of the UEA and UCR archives"
        )
    columns: dict[str, list] = {VALUES: series}
    if _has_label(headers):
        columns[LABEL] = labels
    return columns, lines


def _check_headers(path: Path, headers: Mapping[str, str]) -> int:
    """Return the number of channels that the headers state; 0 if they do not."""
    if headers.get("timestamps", FALSE).lower() == TRUE:
        raise UserError(
            f"{path}: @timeStamps true is not supported; write the table as a CSV file with one "
            "row per time step, and set data.long.id, data.long.time and data.long.values"
        )
    dimensions = headers.get("dimensions", headers.get("dimension"))
    if dimensions is None:
        return 1 if headers.get("univariate", FALSE).lower() == TRUE else 0
    if not dimensions.isdecimal() or int(dimensions) < 1:
        raise UserError(f"{path}: @dimensions must be a whole number above 0, got {dimensions!r}")
    return int(dimensions)


def _has_label(headers: Mapping[str, str]) -> bool:
    # @classLabel true A B C, or @targetLabel true for numbers.
    values = [headers.get(name, "") for name in ("classlabel", "targetlabel")]
    return any(value.lower().split()[:1] == [TRUE] for value in values)


def _values(channels: list[str], where: str) -> np.ndarray | None:
    """Return the values (T, C) of the channels of one row. None: all of them are missing."""
    parsed = []
    for channel in channels:
        cells = channel.split(",") if channel.strip() else []
        if any("(" in cell for cell in cells[:1]):
            raise UserError(
                f"{where}: contains pairs of a time stamp and a value, which are not supported; "
                "write the table as a CSV file with one row per time step, and set data.long.id, "
                "data.long.time and data.long.values"
            )
        try:
            # All values at once, which is faster than `from_list`.
            values = np.array(MISSING.sub("nan", channel).split(","), np.float64) if cells else None
        except ValueError:
            values = None
        # NumPy also reads 1_000 and inf.
        if values is None or "_" in channel or np.isinf(values).any():
            try:
                values = from_list([cell.strip() for cell in cells])
            except ValueError as error:
                raise UserError(f"{where}: {error}; write ? for a missing value") from None
        parsed.append(values)
    length = max(map(len, parsed))
    if length * len(parsed) > MAX_VALUES:
        raise UserError(
            f"{where}: a series must have at most {MAX_VALUES:,} values, got "
            f"{len(parsed):,} channels of up to {length:,} values"
        )
    values = np.full((length, len(parsed)), np.nan, dtype=np.float64)
    for i, channel in enumerate(parsed):
        values[: len(channel), i] = channel
    return None if np.isnan(values).all() else values


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")
