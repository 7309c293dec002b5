"""Formats of files by their names, and the names of splits. This module imports nothing large."""

from __future__ import annotations

from pathlib import Path

from dxn.core.errors import UserError, similar

# Formats of tables. A text format can also be compressed, as in reviews.csv.gz.
CONLL = (".conll", ".iob", ".bio")
TEXT_TABLES = (".csv", ".tsv", ".jsonl", ".json", *CONLL)
TABLES = (*TEXT_TABLES, ".xlsx", ".parquet")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
SHARD = ".tar"  # rows whose files have the same name, if the rows are predicted (WebDataset)
TEXT = ".txt"
ARRAYS = (".npy", ".npz")  # files of frames of cells
METADATA = "metadata.csv"  # usual name of a table of the files of a folder
SPLITS: tuple[str, ...] = ("train", "validation", "test")
# Common names of splits in file names, folder names and columns, and dxn's name for each.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
JSON = ".json"
CONFINE = "data.confine"  # option that refuses paths out of the folder of the data


def table_format(path: str | Path) -> str | None:
    """Return the format of a table by its name, such as ".csv" for reviews.csv.gz.

    None means that the path does not have the name of a table.
    """
    name = Path(path).name.lower()
    stem = name.removesuffix(".gz")
    formats = TABLES if stem == name else TEXT_TABLES
    return next((suffix for suffix in formats if stem.endswith(suffix)), None)


def require_path(path: Path, key: str = "") -> None:
    """Check that a file or folder exists.

    Args:
        path: The file or folder.
        key: Option that contains the path, for the error message.

    Raises:
        UserError: If it does not exist. The message suggests a similar name in the same folder.
    """
    if path.exists():
        return
    prefix = f"{key}: " if key else ""
    names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    match = similar(path.name, names)
    hint = f"; did you mean {path.parent / match}?" if match else ""
    raise UserError(
        f"{prefix}file or folder not found: {path} (current directory: {Path.cwd()}){hint}"
    )
