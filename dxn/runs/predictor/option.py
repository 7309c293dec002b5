"""The option `input` of a command: one sample, or a table, a folder or a pattern of files."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.data.formats import SHARD, table_format
from dxn.data.sources.detect import MASK_FOLDERS, annotations_of, in_folder, is_coco, tables_in
from dxn.data.tables.files import read_text
from dxn.tokenize.base import Reader

TEXT_SUFFIX = ".txt"
WILDCARDS = "*?["


def has_many_samples(value: Any) -> bool:
    """Whether the option is a table, a folder, or a pattern that matches files."""
    # input.NAME=... describes one sample.
    if isinstance(value, Mapping):
        return False
    path = str(value)
    return _is_folder(path) or _is_table(path) or _is_pattern(path)


def is_table(value: Any) -> bool:
    """Whether the option is a table, or a folder that contains a table."""
    return not isinstance(value, Mapping) and bool(tables_of(str(value)))


def tables_of(path: str, *, confine: bool = False) -> list[str]:
    """Return a table, the tables in a folder, or those of a pattern; none for any other files.

    Tar files whose files of a row have the same name are tables, too.

    Raises:
        UserError: If a link in a folder leads out of it, and `confine` is set.
    """
    if _is_folder(path):
        if annotations_of(Path(path)) is not None:
            return []  # such as a file of COCO beside the pictures
        tables = list(map(str, tables_in(Path(path)) or sorted(Path(path).glob(f"*{SHARD}"))))
        if confine:
            from dxn.data.cell_paths import require_inside

            for table in tables:
                require_inside(table, Path(path), "confine")
        return tables
    files = _matches(path) if _is_pattern(path) else [path]
    is_used = all(map(_is_table, files)) and not is_coco(Path(path))
    return files if is_used else []


def files_of(path: str) -> tuple[list[str], Path]:
    """Return the files of a folder or a pattern, and the folder that contains them.

    Those of a file of annotations in the format of COCO are its pictures.

    Raises:
        UserError: If no file matches the pattern.
    """
    if _is_pattern(path):
        files = _matches(path)
        if not files:
            raise UserError(f"input: no file matches {path} (current directory: {Path.cwd()})")
        # The folder in front of the first wildcard.
        first = min(path.index(wildcard) for wildcard in WILDCARDS if wildcard in path)
        return files, Path(f"{path[:first]}x").parent
    if Path(path).is_file():  # annotations in the format of COCO
        from dxn.data.sources.coco import coco_ids

        paths = sorted(coco_ids(Path(path))[0])
        return list(map(str, paths)), Path(path).parent.parent
    root = Path(path)
    # Sorted: the file system returns files in any order.
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    if annotations_of(root) is not None:
        paths = [path for path in paths if not in_folder(path, root, MASK_FOLDERS)]
    is_hidden = [any(part.startswith(".") for part in f.relative_to(root).parts) for f in paths]
    return [str(path) for path, hidden in zip(paths, is_hidden, strict=True) if not hidden], root


def read_sample(
    value: Any,
    readers: Mapping[str, Reader],
    columns: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the inputs of one sample by name, from input.NAME=... or from a single input=...

    A single value is assigned to the input whose reader scores it best. The name of an existing
    .txt file is replaced by its content, if the input is a text.

    Args:
        value: Values by input name, or a single value.
        readers: Reader of each input, by input name.
        columns: Column of the training table that each input was read from, by input name. A single
            value is also assigned to the other inputs of its column. Default: unknown.

    Raises:
        UserError: If an input is unknown, a single value fits no input or several, it names several
            samples, such as a table, or a text file cannot be read.
    """
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in readers]:
            raise UserError(
                f"input.{unknown[0]}: there is no such input; the inputs are {', '.join(readers)}"
            )
        sample: dict[str, Any] = {}
        for name, item in value.items():
            # A reader that reads files receives the path. A text that only ends in .txt is kept.
            is_text = isinstance(item, str) and not readers[name].files
            if is_text and item.lower().endswith(TEXT_SUFFIX) and Path(item).is_file():
                sample[name] = read_text(Path(item))
            elif item is not None:
                sample[name] = item
        return sample
    if has_many_samples(value):
        raise UserError(
            f"input: must be one sample, got a table, a folder or several files: {value}; set "
            f"{_choices(readers)} to one of them"
        )
    from dxn.tokenize.column_profile import by_modality, modality_of, profile_of

    is_text_file = str(value).lower().endswith(TEXT_SUFFIX)
    text = read_text(Path(value)) if is_text_file else str(value)
    modality = modality_of(profile_of([text]), by_modality(readers))
    modality = modality or _modality_of_text(text, readers)
    names = [name for name, reader in readers.items() if reader.modality == modality]
    # The name of a file such as README could also be a text.
    if not is_text_file and _exists(text) and not any(readers[name].files for name in names):
        raise UserError(
            f"input: no input of this model reads files such as {text}; set "
            f"{_choices(names or readers)} (the content of a .txt file is read as a text)"
        )
    if len(names) == 1:
        return dict.fromkeys(inputs_beside(names[0], [text], readers, columns or {}), text)
    reason = "fits several inputs" if names else "fits no input"
    raise UserError(
        f"input: {shortened(str(value))} {reason}; name the input: {_choices(names or readers)}"
    )


def inputs_beside(
    name: str,
    values: Sequence[Any],
    readers: Mapping[str, Reader],
    columns: Mapping[str, str],
) -> list[str]:
    """Return an input, and the other inputs that read the same values.

    A model can read several inputs from one column, such as the pictures and the sound of a video.

    Args:
        name: Name of the input.
        values: Values of the input.
        readers: Reader of each input, by input name.
        columns: Column of the training table that each input was read from, by input name.
    """
    from dxn.tokenize.column_profile import modality_of, profile_of

    profile = profile_of(values)
    others = [
        other
        for other, reader in readers.items()
        if other != name
        and columns.get(other, other) == columns.get(name, name)
        and modality_of(profile, {reader.modality: reader}) is not None
    ]
    return [name, *others]


def _choices(names: Iterable[str]) -> str:
    return " or ".join(f"input.{name}=..." for name in names)


def _modality_of_text(text: str, readers: Mapping[str, Reader]) -> str | None:
    """Return the only modality that does not read files; None if there are several or none.

    A short text such as "42" is accepted by no reader, but can only be meant as a text.
    """
    modalities = {reader.modality for reader in readers.values() if not reader.files}
    # A mistyped path such as "foto.jpg" must be an error instead of a text.
    looks_like_file = Path(text).suffix != "" and " " not in text.strip()
    return modalities.pop() if len(modalities) == 1 and not looks_like_file else None


def _is_table(path: str) -> bool:
    return table_format(path) is not None or path.lower().endswith(SHARD)


def _exists(path: str) -> bool:
    """Whether a path is a file or a device. A text can be no path at all, see `_is_folder`."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _is_folder(path: str | Path) -> bool:
    """Whether a path is a folder. A text can be no path at all: too long, or with a NUL."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _is_pattern(path: str) -> bool:
    """Whether a value is a pattern such as photos/*.jpg, and not a text or the name of a file."""
    if not any(character in path for character in WILDCARDS) or Path(path).exists():
        return False
    # A text such as "who?" is a pattern only if it matches a file. A name without spaces but with a
    # suffix cannot be meant as a text, so that a wrong pattern is an error.
    looks_like_file = Path(path).suffix != "" and " " not in path
    return looks_like_file or bool(_matches(path))


def _matches(pattern: str) -> list[str]:
    # Not Path.glob: it accepts no absolute patterns, and raises errors for some texts.
    paths = glob.glob(pattern, recursive=True)  # noqa: PTH207
    return sorted(path for path in paths if Path(path).is_file())
