"""The files of `dxn generate` for a model that creates pictures, sounds, series and clips."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.runs.predictor.option import has_many_samples, is_table, read_sample
from dxn.runs.predictor.output import SUFFIXES, write_records
from dxn.runs.predictor.prompts import read_rows, write_texts
from dxn.tokenize.base import Reader

if TYPE_CHECKING:
    from dxn.commands.generate import Generate
    from dxn.runs.predictor.predictor import Predictor

TABLE = "created.csv"  # in a folder: the row and the file of each value


def create_files(predictor: Predictor, options: Generate) -> None:
    """Create the values of an input, and print or write them.

    Raises:
        UserError: If the options do not fit the model or each other.
    """
    for name in ("prompt", "prompts", "system", "chat", "max_new"):
        value = getattr(options, name)
        if value != getattr(type(options), name):
            raise UserError(
                f"{name}: this model creates an input from others, got {value!r}; leave it "
                "out and set input.NAME"
            )
    if options.input is None:
        names = " or ".join(f"input.{name}=..." for name in predictor.inputs)
        raise UserError(f"input: needs a value; for example {names}")
    rows: list[dict[str, Any]] = []
    if has_many_samples(options.input):
        # A table has columns of all inputs that are not left out.
        if options.create is not None or is_table(options.input):
            created_input(predictor, options.create, predictor.inputs)
        inputs, rows = read_rows(
            predictor, options.input, options.create or "", **options.table_options()
        )
        name = created_input(predictor, options.create, inputs.opened.raws)
        if not rows:
            raise UserError(f"input: needs rows with another input than {name}, got none")
    else:
        inputs = read_sample(options.input, predictor.model_inputs.readers, predictor.columns)
        name = created_input(predictor, options.create, inputs)
    reader = predictor.tokenizers[name].reader
    output = None if options.output is None else Path(options.output)
    formats = reader.formats or SUFFIXES
    is_many = bool(rows) or options.count > 1
    endings = " or ".join(formats)
    if output is None and reader.formats:
        raise UserError(f"output: needs a file that ends in {endings}")
    is_file = output is not None and output.suffix.lower() in formats
    if reader.formats and is_many and output is not None and (is_file or output.is_file()):
        raise UserError(f"output: must be a folder for several values of {name}, got {output}")
    if output is not None and not is_file and not (reader.formats and is_many):
        raise UserError(f"output: {name} is written to a file that ends in {endings}, got {output}")
    values = predictor.create(
        name,
        inputs,
        count=options.count,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        guidance=options.guidance,
        seed=options.seed,
        batch_size=options.batch_size,
    )
    if output is None:
        for value in values:
            print_line(value)
        return
    if not reader.formats:
        write_texts(output, "", values, rows, name)
        return
    if not is_many:
        reader.write(values[0], output)
        print_line(f"written: {output}")
        return
    records = [dict(rows[i * len(rows) // len(values)]) if rows else {} for i in range(len(values))]
    for row, path in zip(records, write_values(reader, values, output), strict=True):
        row[name] = path.name
    write_records(output / TABLE, records)
    print_line(f"written: {output} ({count(len(records), 'file')}, {TABLE})")


def write_values(reader: Reader, values: Sequence[Any], folder: Path) -> list[Path]:
    """Write each of several raw values to a file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06}{reader.formats[0]}" for i in range(len(values))]
    for value, path in zip(values, paths, strict=True):
        reader.write(value, path)
    return paths


def created_input(predictor: Predictor, chosen: str | None, present: Container[str]) -> str:
    """Return the input that is created.

    Args:
        predictor: The model.
        chosen: The input that the user has chosen. None: the only one that is not given.
        given: Names of the inputs with a value.

    Raises:
        UserError: If the model does not create it, or there are several.
    """
    possible = predictor.task.creates
    if chosen is None:
        possible = [name for name in possible if name not in present]
        if len(possible) == 1:
            return possible[0]
        choices = " or ".join(f"create={name}" for name in possible or predictor.task.creates)
        raise UserError(f"create: must be the input that is created; set {choices}")
    predictor.check_created(chosen)
    return chosen
