"""The prompts of `dxn generate`, and the file of the texts that continue them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.tables.files import read_text
from dxn.data.tables.read import read_table
from dxn.runs.predictor.output import write_records
from dxn.runs.predictor.table import identify

if TYPE_CHECKING:
    from dxn.runs.predictor.predictor import Predictor

TEXT_SUFFIX = ".txt"
COLUMN = "prompt"


def read_prompts(prompt: str, prompts: str | None) -> str | list[str]:
    """Return the option `prompt`, or the prompts of the file `prompts`.

    The file contains one prompt per line, where blank lines are skipped, or it is a table with the
    column `prompt`.

    Raises:
        UserError: If both options are set, the file cannot be read, a table lacks the column or has
            an empty prompt, or there are no prompts.
    """
    if prompts is None:
        return prompt
    if prompt:
        raise UserError("prompt, prompts: set only one of them")
    path = Path(prompts)
    if path.suffix.lower() == TEXT_SUFFIX:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    else:
        lines = _column(path)
    if not lines:
        raise UserError(f"prompts: {path} contains no prompts; write one per line or row")
    return lines


def read_rows(
    predictor: Predictor, value: Any, without: str, **options: Any
) -> tuple[Samples, list[dict[str, Any]]]:
    """Return the samples of a table, a folder or a pattern, and the file and row of each.

    Args:
        predictor: The model.
        value: The option `input`.
        without: Input that is not read, such as the text of a language model, which reads a prompt
            in its place.
        **options: Options of a table, see `dxn.runs.predictor.inputs.ModelInputs.option`.
    """
    names = [name for name in predictor.inputs if name != without]
    opened = predictor.model_inputs.option(value, only=names, **options)
    samples = Samples(opened, predictor.tokenizers, only=names)
    if options["on_bad"] != "error" and samples.reads_files:
        # A header does not tell that the rest of a file is bad. Each text belongs to a row.
        usable = [not samples[0, i].keys().isdisjoint(names) for i in range(len(samples))]
        samples.rows = samples.rows[usable]
    if skipped := len(opened) + opened.skipped - len(samples):
        print_line(f"{count(skipped, 'row')} skipped")
    return samples, [identify(opened, row, 0) for row in samples.rows.tolist()]


def write_texts(
    path: Path,
    prompts: str | Sequence[str],
    texts: Sequence[str],
    rows: Sequence[dict[str, Any]] = (),
    column: str = "generated",
) -> None:
    """Write a column of texts with the row and the prompt that each of them continues, if any."""
    prompts = [prompts] if isinstance(prompts, str) else prompts
    records: list[dict[str, Any]] = []
    for i, text in enumerate(texts):
        prompt = prompts[i * len(prompts) // len(texts)]
        row = rows[i * len(rows) // len(texts)] if rows else {}
        prompt_cell = {COLUMN: prompt} if prompt else {}
        records.append({**row, **prompt_cell, column: text})
    write_records(path, records)
    print_line(f"written: {path} ({count(len(records), 'row')})")


def _column(path: Path) -> list[str]:
    """Return the column `prompt` of a table."""
    table = read_table(path, prefix="")
    cells = table.column(COLUMN, "prompts")
    for i, cell in enumerate(cells):
        if cell is None:
            raise UserError(f"prompts: {table.origin(i)}: the prompt is empty; remove the row")
    return [str(cell) for cell in cells]
