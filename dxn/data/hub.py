"""Data sets of the Hugging Face hub, or a local folder in their layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dxn.data.read import Table, blank
from dxn.data.rows import Source
from dxn.data.samples import OnBad
from dxn.data.splits import NAMES
from dxn.data.tables import Kind, from_tables
from dxn.errors import UserError


def hub(
    name: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    audio: str | None = None,
    target: str | Sequence[str] | None = None,
    kind: Kind | None = None,
    on_bad: OnBad = "error",
    seed: int = 0,
) -> Source:
    """A Source from `datasets.load_dataset`; pictures and sounds stay encoded and are read by dxn, with its caps.

    Args:
        name: of the data set, or of a local folder.
        config: configuration of the data set, where it has several.
        revision: branch, tag or commit; pin it to get the same rows again.
        fractions: shares of training, validation and test where the data set has no such splits.
        text: column or columns of text; inferred unless a column is given.
        image: column of pictures.
        audio: column of sounds.
        target: column to predict.
        kind: class, labels, number, tags or text, which is to be written; inferred unless given.
        on_bad: error, skip the row, or use the rest of it (missing).
        seed: of the drawn splits.
    """
    import datasets  # takes seconds to import
    from datasets.exceptions import DatasetGenerationError, DatasetsError

    try:
        found = datasets.load_dataset(name, config, revision=revision)
    except (ValueError, OSError, DatasetsError) as error:
        # A DatasetGenerationError itself only says that there was an error.
        reason = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        raise UserError(f"data.name: {name} cannot be loaded ({' '.join(str(reason).split())[:300]})") from error
    known = {str(split): NAMES[str(split).lower()] for split in found if str(split).lower() in NAMES}
    if "train" not in known.values():
        raise UserError(f"data.name: {name} has no training split, only {', '.join(map(str, found))}")
    tables = {known[split]: _table(found[split], Path(name, split), datasets) for split in known}
    if list(tables) == ["train"]:
        tables = {"all": tables["train"]}
    given = {"text": text, "image": image, "audio": audio}
    source = from_tables(tables, given, target=target, kind=kind, fractions=fractions, on_bad=on_bad, seed=seed)
    other = [str(split) for split in found if str(split) not in known]
    notes = [f"not used: split {', '.join(other)}"] if other else []
    return replace(source, notes=[*source.notes, *notes])


def _table(rows, origin: Path, datasets) -> Table:
    columns = {}
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            plain = rows.cast_column(name, type(feature)(decode=False))
            columns[name] = [v and (v["bytes"] or v["path"]) for v in plain[name]]
        elif isinstance(feature, datasets.ClassLabel):
            columns[name] = [None if v is None or v < 0 else feature.int2str(v) for v in rows[name]]
        elif isinstance(getattr(feature, "feature", None), datasets.ClassLabel):
            columns[name] = [v and [feature.feature.int2str(x) for x in v] for v in rows[name]]
        else:
            columns[name] = list(rows[name])
    columns = {name: [blank(v) for v in values] for name, values in columns.items()}
    count = len(rows)
    return Table(columns, [origin] * count, list(range(1, count + 1)))
