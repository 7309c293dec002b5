"""The reader of series: lists, arrays, texts of numbers, and files."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.files import atomic_file
from dxn.tokenize.base import BadMedia, Reader
from dxn.tokenize.media import bytes_or_path
from dxn.tokenize.series.values import (
    NPY,
    SUFFIXES,
    check_count,
    find_decimal,
    from_list,
    parse_series,
    read_steps,
    shortened,
    to_steps,
    without_end,
)

if TYPE_CHECKING:
    import pyarrow

PARQUET = b"PAR1"  # the first bytes of a file
MAX_BYTES = 200_000_000  # size of a .csv or .parquet file


class SeriesReader(Reader):
    """Reads series, see `read_series`.

    Attributes:
        num_channels: Number of channels C of every series. 0: not known yet.
        grid_size: Height and width of every frame, if the channels are its cells, row by row. None:
            series have no frames, or it is not known yet.
        ahead: Number of steps after the history, in which only known channels have values.
        num_known: Number of known channels, which are the last ones.
        decimal: Decimal mark of texts, a point or a comma. "": no text of the training shows it.
    """

    modality = "series"
    formats = (".csv", ".npy")
    files = True
    steps = True
    axes = 1

    def __init__(self) -> None:
        self.num_channels = 0
        self.grid_size: tuple[int, int] | None = None
        self.ahead = 0
        self.num_known = 0
        self.decimal = ""

    def is_path(self, cell: Any) -> bool:
        """Whether a cell is the path of a file, and not a text of numbers."""
        return isinstance(cell, str) and cell.lower().endswith(SUFFIXES)

    def learn(self, cells: Sequence[Any]) -> str:
        """Set the decimal mark, and the shape of a step to that of the first series.

        Rows are read by several threads, so `read` alone would let any of them decide.
        """
        if self.num_channels:
            return ""
        self.decimal = find_decimal(cell for cell in cells if not self.is_path(cell))
        shape = self.layout(cells)
        if shape is not None:
            self._set_shape(shape)
        if self.decimal != ",":
            return ""
        example = next(cell for cell in cells if isinstance(cell, str) and "," in cell)
        return f"read with decimal commas, such as {shortened(example)}"

    def extent(self, cell: Any) -> tuple[float]:
        """Return the number of time steps."""
        raw = read_series(cell, self.decimal)
        return (math.inf if raw is None else float(len(raw)),)

    def layout(self, cells: Sequence[Any]) -> tuple[int, ...] | None:
        """Return (C,) or (H, W) of the first series that can be read. None: there is none.

        Inputs with different numbers of channels cannot share an adapter.
        """
        for cell in cells:
            with suppress(BadMedia):
                raw = read_series(cell, self.decimal)
                if raw is not None:
                    return tuple(raw.shape[1:])
        return None

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        self.num_channels = math.prod(shape)
        self.grid_size = (shape[0], shape[1]) if len(shape) == 2 else None

    def read(self, cell: Any) -> Tensor | None:
        """Read a series as float32 (T, C), see `read_series`. None: it has no values.

        Raises:
            BadMedia: If it cannot be read, or has another number of channels, or another size of
                the frames, than other series.
        """
        raw = read_series(cell, self.decimal)
        if raw is None:
            return None
        shape = tuple(raw.shape[1:])
        if not self.num_channels:  # a series without a data set
            self._set_shape(shape)
        if self.grid_size is not None and shape not in (self.grid_size, (self.num_channels,)):
            height, width = self.grid_size
            raise BadMedia(
                f"must be frames of {height}×{width} cells (time steps, {height}, {width}), "
                f"got {tuple(raw.shape)}"
            )
        if len(shape) == 2 and self.grid_size is None:
            raise BadMedia(
                f"must have the axes (time steps, {self.num_channels} channels), got "
                f"{tuple(raw.shape)}"
            )
        raw = raw.flatten(1)
        channels = raw.shape[1]
        if channels != self.num_channels:
            raise BadMedia(
                f"every series must have the same number of channels, got {channels} instead of "
                f"{self.num_channels}"
            )
        if self.ahead and not raw[-self.ahead :, : channels - self.num_known].isnan().all():
            raise BadMedia(
                f"the last {self.ahead} steps are those of the forecast: only the last "
                f"{self.num_known} channels, whose future is known, can have values there; append "
                f"{self.ahead} steps, with null for the other channels"
            )
        return raw

    def write(self, raw: Tensor, path: Path) -> None:
        """Write a series (T, C) to a file with one row per step, or to an array."""
        with atomic_file(path) as partial:
            if path.suffix.lower() == ".npy":
                with partial.open("wb") as file:
                    np.save(file, raw.numpy())
            else:
                np.savetxt(partial, raw.numpy(), fmt="%.6g", delimiter=",")

    def describe(self, raws: Sequence[Tensor], cells: Sequence[Any]) -> str:
        """Describe the lengths, the number of channels and the missing values of series."""
        if not raws:
            return ""
        lengths: list[int] = []
        num_values = num_missing = channels = 0
        for raw in raws:
            lengths.append(len(raw))
            channels = raw.shape[1]
            num_values += raw.numel()
            num_missing += int(raw.isnan().sum())
        low, high, median = min(lengths), max(lengths), statistics.median(lengths)
        size = f"{low:,}" if low == high else f"{low:,} to {high:,}, median {median:,.0f}"
        missing = f"; {num_missing / num_values:.1%} missing" if num_missing else ""
        plural = "s" if channels > 1 else ""
        if self.grid_size is not None:
            return f"{size} time steps of {self.grid_size[0]}×{self.grid_size[1]} cells{missing}"
        return f"{size} time steps of {channels} channel{plural}{missing}"


def read_series(source: Any, decimal: str = "") -> Tensor | None:
    """Read a series as float32 (T, C) or (T, H, W). NaN is a missing value. None: it has no value.

    Args:
        source: Numbers (T,), (T, C) or (T, H, W) as an array, or (T,) or (T, C) as a list or a
            list of lists; a text of numbers such as "1.5 2 nan"; or the path of a .npy, .csv or
            .parquet file with one row per time step.
        decimal: Decimal mark of texts, a point or a comma. "": each text must show it itself.

    Raises:
        BadMedia: If the cell is not a series, or exceeds a limit.
    """
    try:
        if isinstance(source, Tensor):
            # The end of a tensor has a meaning: it is the time at which a forecast starts.
            # NumPy has no bfloat16.
            steps = to_steps(source.float().numpy(force=True))
            return None if np.isnan(steps).all() else torch.from_numpy(steps)
        if isinstance(source, str | Path):
            text = str(source)
            is_file = text.lower().endswith(SUFFIXES)
            source = _read_file(text) if is_file else parse_series(text, decimal)
        elif isinstance(source, bytes):
            source = _read_bytes(source)
        steps = without_end(to_steps(source))
    except ValueError as error:
        raise BadMedia(str(error)) from None
    return None if steps is None else torch.from_numpy(np.ascontiguousarray(steps))


def _read_file(path: str) -> Any:
    suffix = Path(path).suffix.lower()
    opened = bytes_or_path(path)
    if suffix == ".npy":
        return read_npy(opened)
    size = Path(path).stat().st_size
    if size > MAX_BYTES:
        raise BadMedia(f"{size:,} bytes, more than {MAX_BYTES:,}")
    if suffix != ".csv":
        return _read_parquet_steps(path)
    try:
        return read_steps(Path(path).read_bytes())
    except OSError as error:
        raise BadMedia(f"not a .csv file of numbers ({error})") from None


def _read_bytes(content: bytes) -> Any:
    """Read the content of a file, whose kind its first bytes tell."""
    if content.startswith(NPY):
        return read_npy(io.BytesIO(content))
    if len(content) > MAX_BYTES:
        raise BadMedia(f"{len(content):,} bytes, more than {MAX_BYTES:,}")
    if content.startswith(PARQUET):
        return _read_parquet_steps(io.BytesIO(content))
    return read_steps(content, ".npy, .csv or .parquet")


def _read_parquet_steps(path: str | io.BytesIO) -> np.ndarray:
    import pyarrow.parquet  # it takes time to import, and few data sets need it

    rows: list[tuple] = []
    num_values = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            # pandas does not read an index as a column either.
            index = (schema.pandas_metadata or {}).get("index_columns", [])
            names = [name for name in schema.names if name not in index]
            for name in names:
                _check_type(schema.field(name))
            # In batches, because a small file can contain many values, and its header can be wrong.
            for batch in file.iter_batches(columns=names):
                num_values += batch.num_rows * batch.num_columns
                check_count(num_values)
                columns = [column.to_pylist() for column in batch.columns]
                rows += zip(*columns, strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadMedia(f"not a .parquet file ({str(error).partition(chr(10))[0]})") from None
    return from_list(rows)


def _check_type(field: pyarrow.Field) -> None:
    """Raise BadMedia for a column without numbers, whose cells can be of any size."""
    import pyarrow

    kinds = pyarrow.types
    is_numeric = kinds.is_integer(field.type) or kinds.is_floating(field.type)
    if not is_numeric and not kinds.is_null(field.type):
        name = shortened(field.name)
        raise BadMedia(f"must contain only numbers, got column {name} with values of {field.type}")


MAX_SHOWN = 100  # characters of an error


def read_npy(file: io.BytesIO | str) -> np.ndarray:
    """Read an array. That of a file is mapped, so that one that is too large is never read.

    Raises:
        BadMedia: If the file is damaged, or contains Python objects.
    """
    # Not np.load: it also opens .npz archives, whose content is not an array.
    try:
        if isinstance(file, str):
            return np.lib.format.open_memmap(file, mode="r")
        return np.lib.format.read_array(file, allow_pickle=False)
    # NumPy parses the header as Python code. A damaged one raises, among others, TokenError,
    # RecursionError, OverflowError or TypeError.
    except Exception as error:
        reason = str(error).partition("\n")[0][:MAX_SHOWN]
        raise BadMedia(f"not a .npy file of numbers ({reason})") from None
