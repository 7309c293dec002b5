"""The columns of several Parquet files, of which `datasets` would know only those of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError

EMPTY, TEXT = "null", "string"  # types of a column without any value, and of texts


def with_rows(data_files: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the files of each split that have rows, because `datasets` cannot read others."""
    import pyarrow
    import pyarrow.parquet

    left: dict[str, list[str]] = {}
    for split, files in data_files.items():
        left[split] = []
        for file in files:
            try:
                num_rows = pyarrow.parquet.read_metadata(file).num_rows
            except (pyarrow.ArrowException, OSError) as error:
                raise UserError(f"{file}: cannot be read ({error}); replace the file") from error
            left[split] += [file] if num_rows else []
        if not left[split]:
            raise UserError(f"{files[0]}: there are no rows in the split {split}; choose others")
    return left


def common_features(files: Sequence[str]) -> Any:
    """Return the features of all columns. A file can lack columns, or have no value in one.

    Args:
        files: Local Parquet files.

    Raises:
        UserError: If a column has different types that cannot be converted, or different classes.
    """
    import datasets
    import pyarrow.parquet

    features: dict[str, Any] = {}
    file_of: dict[str, str] = {}  # the first file with a column
    for file in files:
        new = datasets.Features.from_arrow_schema(pyarrow.parquet.read_schema(file))
        for name, feature in new.items():
            first = file_of.setdefault(name, file)
            joined = _joined(features.setdefault(name, feature), feature)
            if joined is None:
                one, other = _described(features[name]), _described(feature)
                raise UserError(
                    f"column {name!r} has {one} in {Path(first).name} and {other} in "
                    f"{Path(file).name}; write the files with the same type of this column"
                )
            features[name] = joined
    return datasets.Features(features)


def _joined(first: Any, second: Any) -> Any:
    """Return a feature whose values those of two features can become; None: there is none."""
    import datasets
    import pyarrow

    if first == second or getattr(second, "dtype", None) == EMPTY:
        return first
    if getattr(first, "dtype", None) == EMPTY:
        return second
    if isinstance(first, datasets.ClassLabel) or isinstance(second, datasets.ClassLabel):
        return None  # the same number would be another class
    schemas = [datasets.Features({"x": feature}).arrow_schema for feature in (first, second)]
    with suppress(pyarrow.ArrowException):
        whole = pyarrow.unify_schemas(schemas, promote_options="permissive")
        return datasets.Features.from_arrow_schema(whole.remove_metadata())["x"]
    are_values = isinstance(first, datasets.Value) and isinstance(second, datasets.Value)
    return datasets.Value(TEXT) if are_values and TEXT in (first.dtype, second.dtype) else None


def _described(feature: Any) -> str:
    names = getattr(feature, "names", None)
    if names is not None:
        return f"the classes {', '.join(names[:5])}"
    return f"the type {getattr(feature, 'dtype', None) or type(feature).__name__}"
