from collections.abc import Mapping
from pathlib import Path

from dxn.core.errors import UserError
from dxn.data import InputSpec, Rows, Source, complete_splits


def logbook(path: str, *, inputs: Mapping[str, str], target: str, seed: int = 0) -> Source:
    """Read a logbook.

    Args:
        path: Text file in UTF-8.
        inputs: Modality of each key that becomes an input.
        target: Key to predict.
        seed: Seed of the drawn splits.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"data.path: file not found: {path}")
    blocks = file.read_text(encoding="utf-8").strip().split("\n\n")
    lines = [block.splitlines() for block in blocks]
    records = [dict(line.split(": ", 1) for line in record) for record in lines]
    # A key that a record lacks is a missing input: None.
    cells = {key: [record.get(key) for record in records] for key in inputs}
    cells["target"] = [record.get(target) for record in records]
    rows = Rows(cells, [f"{file.name} record {i + 1}" for i in range(len(records))])
    notes: list[str] = []
    splits = complete_splits({"all": rows}, (0.8, 0.1, 0.1), seed=seed, notes=notes)
    specs = {key: InputSpec(key, modality) for key, modality in inputs.items()}
    return Source(splits, specs, target=target, notes=notes)
