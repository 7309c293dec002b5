"""The data source of grids over time: arrays of frames, whose next frames are predicted."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.columns.choose import Readers
from dxn.data.formats import ARRAYS, SPLITS, require_path
from dxn.data.rows import TARGET, VALUES, InputSpec, Origins, Rows, Source
from dxn.data.series.steps import series_modality
from dxn.data.series.timeline import MAX_WINDOWS, split_bounds
from dxn.data.series.windows import Windows, running_scales
from dxn.data.splits.split import FRACTIONS, UNDIVIDED, check_fractions
from dxn.tasks.forecast.futures import Future
from dxn.tokenize.base import BadMedia
from dxn.tokenize.series.reader import read_npy

# Without an option, a sequence has at least so many horizons, and a horizon at most MAX_HORIZON. A
# single one contains all parts and the context, and a training needs several windows.
MIN_HORIZONS = 4
MIN_HORIZONS_OF_ONE = 8
MAX_HORIZON = 10
CONTEXT_HORIZONS = 2
MAX_CELLS = 100_000  # of a frame, each of which is a channel
MAX_BYTES = 4_000_000_000  # of an array in an archive, which can be smaller than its content
FRAMES = "frames"  # name of the target


def grid(
    path: str,
    *,
    readers: Readers,
    horizon: int | None = None,
    context: int | None = None,
    stride: int = 1,
    fractions: Sequence[float] | None = FRACTIONS,
    seed: int = 0,
) -> Source:
    """Read frames of cells, such as maps of rain, and cut them into windows to forecast.

    The input of a sample is a window of `context` frames, and its target the next `horizon` ones.
    One long sequence is split by time: its last frames are the test part. The target of a window
    never overlaps another part. Of several sequences, each one is in one split.

    Args:
        path: .npy or .npz file with one array of numbers: (time steps, rows, columns), or
            (sequences, time steps, rows, columns). NaN is a missing cell.
        readers: Readers in use, by modality. The caller sets this argument.
        horizon: Number of future frames to predict. Default: a quarter of the time steps, of one
            sequence an eighth, at most 10.
        context: Number of past frames that the model reads. Default: twice the horizon. Of
            sequences, the frames before the horizon if they are fewer.
        stride: Number of frames between the starts of training windows.
        fractions: Fractions of the training, validation and test part. Null: the data is not
            divided.
        seed: Random seed of the split of several sequences.

    Raises:
        UserError: If the file cannot be read, has no such array, or is too short.
    """
    sequences = read_grid(Path(path))
    steps = sequences.shape[1]
    reasons: list[str] = []
    if horizon is None:
        least = MIN_HORIZONS_OF_ONE if len(sequences) == 1 else MIN_HORIZONS
        horizon = max(1, min(steps // least, MAX_HORIZON))
        reasons.append(
            f"the horizon is 1/{least} of {count(steps, 'time step')}, from 1 to {MAX_HORIZON}"
        )
    if context is None:
        context = min(CONTEXT_HORIZONS * horizon, max(steps - horizon, 1))
        reasons.append(
            "the context is twice the horizon, or the frames before it if they are fewer"
        )
    for name, value in (("horizon", horizon), ("context", context), ("stride", stride)):
        if value < 1:
            raise UserError(f"data.{name}: must be at least 1, got {value}")
    if fractions is not None:
        check_fractions(fractions)
    windows = Windows([FRAMES], horizon=horizon, context=context)
    parts: dict[str, list[tuple[int, int]]] = {}
    if len(sequences) == 1:
        bounds = split_bounds(steps, windows, fractions)
        for name, (begin, end) in (bounds or {}).items():
            parts[name] = [(0, start) for start in windows.starts(begin, end)]
    elif steps > horizon:
        for name, rows in _divided(len(sequences), fractions, seed).items():
            parts[name] = [(row, start) for row in rows for start in windows.starts(0, steps)]
    if len(sequences) > 1 and not parts:
        advice = "set a smaller data.horizon, or " if steps > 1 else ""
        raise UserError(
            f"{path}: its sequences have {count(steps, 'time step')}, too few for a history and a "
            f"horizon of {horizon}; {advice}use longer sequences"
        )
    if len(sequences) == 1 and (not parts or len(parts.get(SPLITS[0], ())[::stride]) == 1):
        options = {"horizon": horizon, "context": context, "stride": stride}
        smaller = [f"data.{name}" for name, value in options.items() if value > 1]
        advice = f"set a smaller {' or '.join(smaller)}, or " if smaller else ""
        raise UserError(
            f"{path}: has {count(steps, 'time step')}, too few for two training windows with a "
            f"context of {context}, and a horizon of {horizon} in each split; {advice}use more "
            "frames"
        )
    about = f" ({'; '.join(reasons)})" if reasons else ""
    notes = [f"horizon: {count(horizon, 'frame')}, context: {context}{about}"]
    for name, chosen in parts.items():
        every = stride if name in (SPLITS[0], UNDIVIDED) else -(-len(chosen) // MAX_WINDOWS)
        parts[name] = chosen[::-every][::-1]
        if every > 1:
            notes.append(f"{name}: one of {every} windows is used, of {len(chosen):,}")
    splits = {
        name: grid_rows(sequences, chosen, windows, Path(path)) for name, chosen in parts.items()
    }
    # A split without any value has no rows.
    splits = {name: rows for name, rows in splits.items() if len(rows)}
    if not splits:
        raise UserError(
            f"{path}: no window of {context} frames and the next {horizon} has values in both "
            "parts, all its cells are NaN; use another file, or set a longer data.context"
        )
    counts = ", ".join(f"{name} {len(rows):,}" for name, rows in splits.items())
    notes.append(f"splits: by {'time' if len(sequences) == 1 else 'sequence'}; windows: {counts}")
    return grid_source(splits, readers, name=Path(path).stem, notes=notes)


def grid_source(
    splits: Mapping[str, Rows], readers: Readers, *, name: str, notes: Sequence[str]
) -> Source:
    """Return a data set of windows of frames.

    Raises:
        UserError: If no reader in use reads series.
    """
    modality = series_modality(readers)
    inputs = {modality: InputSpec(VALUES, modality)}
    renamed = {
        split: Rows({modality: rows.cells[VALUES], TARGET: rows.cells[TARGET]}, rows.origin)
        for split, rows in splits.items()
    }
    return Source(renamed, inputs, target=FRAMES, task="forecast", name=name, notes=notes)


def grid_rows(
    sequences: Tensor, starts: Sequence[tuple[int, int]], windows: Windows, path: Path
) -> Rows:
    """Cut windows of a history and its future.

    Args:
        sequences: Frames (N, T, H, W). NaN is a missing cell.
        starts: Sequence and first future frame of each window. Those without any value are left
            out.
        windows: Numbers of frames.
        path: File of the frames, for messages.
    """
    frame = (sequences.shape[2], sequences.shape[3])
    names = [f"{i + 1},{j + 1}" for i in range(frame[0]) for j in range(frame[1])]
    histories: list[Tensor] = []
    futures: list[Future] = []
    lines: list[int] = []
    scales: dict[int, Tensor] = {}
    for row, start in starts:
        if row not in scales:  # those of one sequence follow each other
            scales = {row: running_scales(sequences[row].flatten(1), 1)}
        history = sequences[row, max(0, start - windows.context) : start]
        values = sequences[row, start : start + windows.horizon].flatten(1)
        if bool(history.isnan().all()) or bool(values.isnan().all()):
            continue
        histories.append(history)
        scale = scales[row][start]
        futures.append(
            Future(
                values,
                season=1,
                scale=scale,
                names=names,
                frame=frame,
                time=start,
                end=start + windows.horizon - 1,
                series=row,
            )
        )
        lines.append(row + 1 if len(sequences) > 1 else start)
    return Rows({VALUES: histories, TARGET: futures}, Origins([path], lines))


def read_grid(path: Path) -> Tensor:
    """Read the frames of a .npy or .npz file as float32 (N, T, H, W). NaN is a missing cell.

    Raises:
        UserError: If the file cannot be read, or has no array of this kind.
    """
    require_path(path, "data.path")
    try:
        array = _read_npz(path) if path.suffix.lower() == ARRAYS[1] else read_npy(str(path))
    except BadMedia as error:
        raise UserError(f"{path}: {error}") from error
    if array.dtype.kind not in "iufb" or array.ndim not in (3, 4) or not array.size:
        raise UserError(
            f"{path}: must be an array of numbers with the axes (time steps, rows, columns) or "
            f"(sequences, time steps, rows, columns), got {array.dtype} {array.shape}"
        )
    height, width = array.shape[-2:]
    if height * width > MAX_CELLS:
        raise UserError(
            f"{path}: must have at most {MAX_CELLS:,} cells per frame, got {height}×{width}; use "
            "means of several cells"
        )
    with np.errstate(over="ignore"):
        frames = torch.from_numpy(np.array(array, dtype=np.float32))
    if bool(frames.isinf().any()):
        raise UserError(f"{path}: has infinite numbers, or numbers beyond 3e38; use NaN instead")
    if bool(frames.isnan().all()):
        raise UserError(f"{path}: has no value, all cells are NaN; use another file")
    return frames if frames.ndim == 4 else frames[None]


def _read_npz(path: Path) -> Any:
    """Read the only array of an archive.

    Raises:
        BadMedia: If it is no archive, or has several arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise BadMedia(f"must have one array, got {len(names)}: {', '.join(names[:5])}")
            if archive.getinfo(names[0]).file_size > MAX_BYTES:
                raise BadMedia(f"must have at most {MAX_BYTES:,} bytes; use a .npy file")
            with archive.open(names[0]) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
    except BadMedia:
        raise
    # A damaged archive raises, among others, zlib.error, RuntimeError or MemoryError.
    except Exception as error:
        raise BadMedia(f"not a .npz file of numbers ({str(error)[:100]})") from None


def _divided(
    num_rows: int, fractions: Sequence[float] | None, seed: int
) -> dict[str, Sequence[int]]:
    """Return the rows of each split, drawn at random."""
    if fractions is None:
        return {UNDIVIDED: range(num_rows)}
    order = np.random.default_rng(seed).permutation(num_rows)
    # Each part that is wanted has a row, and the training part has the rest.
    sizes = [0 if f == 0 else max(1, round(f * num_rows)) for f in fractions[1:]]
    for i in reversed(range(len(sizes))):  # the training part comes first
        sizes[i] = 0 if sum(sizes) >= num_rows else sizes[i]
    ends = np.cumsum([num_rows - sum(sizes), *sizes])
    parts = np.split(order, ends[:-1])
    return {
        name: sorted(part.tolist()) for name, part in zip(SPLITS, parts, strict=False) if len(part)
    }
