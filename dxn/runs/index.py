"""The index of `dxn index`, and its search: the rows whose embeddings are most similar to a query.

The folder of an index contains embeddings, what their rows contain, and which model they are from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.files import WEIGHTS
from dxn.data.dataset import Opened, Samples
from dxn.runs.folder import model_folder
from dxn.runs.predictor.output import write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import identify, own_name
from dxn.tokenize.base import BadMedia
from dxn.tokenize.series.reader import read_npy
from dxn.weights.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from dxn.commands.options import Weights

META = "index.json"
VECTORS = "vectors.npy"
ROWS = "rows.jsonl"
MODEL_OPTIONS = ("run", "weights")  # options that name the model
WEIGHT_SWITCHES = ("strict", "pad")  # those that are true or false
WEIGHT_NAMES = ("source", "revision", "part", "prompt")  # options of `weights` that are texts
# Files of a public checkpoint that its embeddings depend on: the weights, and these ends of names.
# Its folder can contain other files, such as the index.
WEIGHTS_ENDS = (".safetensors", ".bin")
SETTINGS_ENDS = (
    *("config.json", "config.yaml", "tokenizer.json", ".spm"),
    *("vocab.json", "vocab.txt", "merges.txt"),
)
CHUNK = 2**24  # similarities that are computed at once: 64 MB
# Columns of the results. A column of the index with such a name gets the prefix "table_".
RESULT_COLUMNS = ("rank", "score")


@dataclass(frozen=True)
class Index:
    """An index that was read from its folder.

    Args:
        folder: The folder.
        model: Options `run` and `weights` of the command that wrote it.
        digest: Hash of the weights of the model.
        inputs: Names of the inputs that were embedded.
        vectors: (N, E) float32. Unit vectors.
        rows: File, row number, ids and inputs of each of the N rows.
    """

    folder: Path
    model: Mapping[str, Any]
    digest: str
    inputs: Sequence[str]
    vectors: np.ndarray
    rows: Sequence[Mapping[str, Any]]


def write_index(
    folder: Path,
    predictor: Predictor,
    opened: Opened,
    *,
    model: Mapping[str, Any],
    only: Sequence[str] | None,
    batch_size: int,
) -> list[str]:
    """Embed rows, and write the index folder.

    Args:
        folder: Folder to write.
        predictor: The model.
        opened: The rows.
        model: The options that name the model, see `model_options`.
        only: Inputs to embed. Default: all.
        batch_size: Number of samples per batch.

    Returns:
        Lines to print.

    Raises:
        UserError: If no row has any of the inputs, of the model.
    """
    samples = Samples(opened, predictor.tokenizers, only=only)
    names = samples.inputs
    if not len(samples):
        raise UserError(f"input: no row has any of the inputs {', '.join(only or names)}")
    rows, vectors = predictor.vectors(samples, batch_size=batch_size)
    folder.mkdir(parents=True, exist_ok=True)
    # Of an earlier index. META is written last, so that an interrupted index is not read.
    (folder / META).unlink(missing_ok=True)
    units = unit_vectors(vectors)
    np.save(folder / VECTORS, units)
    write_records(folder / ROWS, [row_record(opened, row) for row in rows])
    meta = {
        "inputs": names,
        "rows": len(rows),
        "dim": units.shape[1],
        "digest": weights_digest(model["run"], model["weights"]),
        **model,
    }
    (folder / META).write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf-8")
    files = [META, VECTORS, ROWS]
    missing = len(opened) - len(rows)
    lines = [f"{count(missing, 'row')} without {' and '.join(names)} left out"] if missing else []
    about = f"{count(len(rows), 'row')}, {' and '.join(names)}, {units.shape[1]} numbers each"
    return [*lines, f"written: {folder}: {', '.join(files)} ({about})"]


def read_index(path: str) -> Index:
    """Read an index folder, which may come from an untrusted source.

    Raises:
        UserError: If a file is missing or damaged.
    """
    folder = Path(path)
    if not (folder / META).is_file():
        raise UserError(
            f"index: {path}: not an index folder, it has no {META}; write one with dxn index"
        )
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        # Not splitlines: JSON does not escape the line separators of Unicode.
        lines = (folder / ROWS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        rows = [json.loads(line) for line in lines]
    # A deeply nested file raises a RecursionError.
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"index: {path}: cannot be read: {error}; write it again") from error
    try:
        vectors = read_npy(str(folder / VECTORS))
    except BadMedia as error:
        raise UserError(
            f"index: {path}: {VECTORS} cannot be read: {error}; write it again"
        ) from error
    problem = _problem(meta, vectors, rows)
    if problem:
        raise UserError(f"index: {path}: {problem}; write it again with dxn index")
    model = {key: meta.get(key) for key in MODEL_OPTIONS}
    return Index(folder, model, meta["digest"], meta["inputs"], vectors, rows)


def unit_vectors(vectors: Tensor) -> np.ndarray:
    """Return vectors (N, E) scaled to length 1, so that their products are cosines."""
    return F.normalize(vectors, dim=-1).numpy()


def row_record(opened: Opened, row: int) -> dict[str, Any]:
    """Return the file, the row number, the ids and the printable inputs of a row."""
    record = identify(opened, row)
    for name, cells in opened.cells.items():
        # A file that is its own row is already in the column file.
        if cells[row] is not None and cells[row] != record["file"]:
            record[own_name(name)] = cells[row]
    return record


def check_only(only: Sequence[str] | None, predictor: Predictor) -> Sequence[str] | None:
    """Return the option `only`.

    Raises:
        UserError: If it names something else than inputs of the model.
    """
    if only is not None and (not only or set(only) - set(predictor.inputs)):
        raise UserError(
            f"only: must be inputs of the model ({', '.join(predictor.inputs)}), "
            f"got {', '.join(only) or 'none'}"
        )
    return only


def weights_digest(run: str | None, weights: Mapping[str, Any] | None) -> str:
    """Return a hash of the weights of a run, or of the files of a public checkpoint.

    Raises:
        UserError: If they cannot be read.
    """
    if run is not None:
        paths = [model_folder(Path(run)) / WEIGHTS]
    else:
        assert weights is not None
        checkpoint = read_checkpoint(weights["source"], revision=weights["revision"])
        folder = checkpoint.folder
        assert folder is not None  # only a checkpoint in memory has none
        source = Path(weights["source"]).expanduser()
        # A file that the user names can have any ending.
        ends = SETTINGS_ENDS if source.is_file() else (*WEIGHTS_ENDS, *SETTINGS_ENDS)
        files = [path for path in folder.iterdir() if path.name.endswith(ends)]
        if checkpoint.sentence is not None:
            files += checkpoint.sentence.files()
        paths = sorted({*files, *filter(Path.is_file, [source])})
    option = "weights" if run is None else "run"
    digests: list[str] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise UserError(
                f"{option}: {path}: cannot be read ({error.strerror}); replace or remove this file"
            ) from error
    return digests[0] if run is not None else hashlib.sha256("".join(digests).encode()).hexdigest()


def model_options(run: str | None, weights: Weights) -> dict[str, Any]:
    """Return the options that name a model, for another command in any folder."""
    path = None if run is None else str(Path(run).resolve())
    return {"run": path, "weights": asdict(weights)}


def _problem(meta: Any, vectors: np.ndarray, rows: Sequence[Any]) -> str:
    """Return what is wrong with the content of an index, or ""."""
    if not isinstance(meta, dict) or not isinstance(meta.get("digest"), str):
        return f"{META} is not the description of an index"
    names, run, weights = meta.get("inputs"), meta.get("run"), meta.get("weights")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return f"{META}: inputs must be a list of names"
    if not isinstance(run, str | None) or not _are_weights(weights):
        return f"{META}: run must be a path, and weights the options of a public checkpoint"
    if run is None and not (weights or {}).get("source"):
        return f"{META}: must name a run or a public checkpoint"
    if vectors.ndim != 2 or vectors.dtype != np.float32 or not len(vectors):
        return f"{VECTORS} must contain float32 numbers of the shape (rows, size)"
    if len(vectors) != len(rows) or not all(isinstance(row, dict) for row in rows):
        return f"{ROWS} must contain one object for each of the {len(vectors):,} vectors"
    return ""


def _are_weights(weights: Any) -> bool:
    """Whether a value consists of the options that load a public checkpoint."""
    if not isinstance(weights, dict) or weights.keys() != {*WEIGHT_NAMES, *WEIGHT_SWITCHES}:
        return weights is None
    are_names = all(isinstance(weights[key], str | None) for key in WEIGHT_NAMES)
    return are_names and all(isinstance(weights[key], bool) for key in WEIGHT_SWITCHES)


def model_of(index: Index, run: str | None) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the options run and weights of the model of an index.

    Args:
        index: The index.
        run: Its folder, if the command names it.

    Raises:
        UserError: If the folder of the model does not exist any more, or has other weights.
    """
    weights = None
    if run is None:
        run, weights = index.model["run"], index.model["weights"]
        if run is not None and not Path(run).is_dir():
            raise UserError(
                f"index: the model of this index is not at {run} any more; set run=RUN to its new "
                "folder"
            )
    if weights_digest(run, weights) != index.digest:
        name = run if weights is None else weights["source"]
        raise UserError(
            f"index: {index.folder} was written with other weights than those of {name}; "
            "write it again with dxn index, or set run to the model that wrote it"
        )
    return run, weights


def search(
    index: Index,
    predictor: Predictor,
    samples: Samples,
    *,
    is_single: bool,
    k: int,
    batch_size: int,
) -> list[dict[str, Any]]:
    """Embed queries, and find the most similar rows of each.

    Args:
        index: The index.
        predictor: The model of the index.
        samples: The queries.
        is_single: Whether there is only one, so that the results need not tell which it is.
        k: Number of results per query.
        batch_size: Number of samples per batch.

    Returns:
        One record per result, sorted by query and rank: the file, the row number and the inputs of
        the query, the rank, the cosine similarity, and the row of the index.

    Raises:
        UserError: If the queries do not fit the index.
    """
    rows, vectors = predictor.vectors(samples, batch_size=batch_size)
    queries = unit_vectors(vectors)
    if queries.shape[1] != index.vectors.shape[1]:
        raise UserError(
            f"index: its vectors have {index.vectors.shape[1]} numbers, but those of the model "
            f"have {queries.shape[1]}; write the index again with dxn index"
        )
    neighbors, scores = nearest(index.vectors, queries, min(k, len(index.rows)))
    records: list[dict[str, Any]] = []
    for query_row, similar_rows, similarities in zip(rows, neighbors, scores, strict=True):
        query = {} if is_single else row_record(samples.opened, query_row)
        query = {f"query_{name}": value for name, value in query.items()}
        for rank, (row, score) in enumerate(zip(similar_rows, similarities, strict=True), 1):
            columns = {
                f"table_{name}" if name in RESULT_COLUMNS else name: value
                for name, value in index.rows[row].items()
            }
            records.append({**query, "rank": rank, "score": round(float(score), 6), **columns})
    return records


def nearest(vectors: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest of all vectors, by comparing each with each.

    Args:
        vectors: (N, E) float32. Unit vectors, possibly in a file.
        queries: (Q, E) float32. Unit vectors.
        count: Number of results K per query, at most N.

    Returns:
        Row (Q, K) and cosine (Q, K) of each result, the most similar one first. Rows with equal
        similarity are in the order of the index.
    """
    rows = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    size = max(count, CHUNK // len(queries))
    # The best rows so far are compared with those of the next chunk, so that an index that is
    # larger than the memory can be searched too.
    for start in range(0, len(vectors), size):
        chunk = queries @ np.asarray(vectors[start : start + size]).T
        numbers = np.broadcast_to(np.arange(start, start + chunk.shape[1]), chunk.shape)
        scores = np.concatenate([scores, chunk], 1)
        rows = np.concatenate([rows, numbers], 1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores = np.take_along_axis(scores, best, 1)
        rows = np.take_along_axis(rows, best, 1)
    return rows, scores
