"""What `dxn generate` reads and writes: prompts and inputs, generated texts and created files."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.tables.files import read_text
from dxn.data.tables.read import read_table
from dxn.runs.predictor.option import TEXT_SUFFIX, has_many_samples, is_table, read_sample
from dxn.runs.predictor.output import SUFFIXES, write_records
from dxn.runs.predictor.table import identify, own_name, shown_inputs
from dxn.runs.predictor.writing import MAX_SCALE, Text, Writer
from dxn.tokenize.base import Reader

if TYPE_CHECKING:
    from dxn.commands.predict import Generate
    from dxn.runs.predictor.predictor import Predictor, Values

GENERATED = "generated"  # column of the texts
TABLE = "created.csv"  # in a folder: the row and the file of each value
PROMPT = "prompt"  # column of a table of prompts, and of the texts that continue them


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
        # Not `splitlines`, which also divides lines at characters within a text.
        lines = [line for line in read_text(path).split("\n") if line.strip()]
    else:
        table = read_table(path, prefix="")
        cells = table.column(PROMPT, "prompts")
        for i, cell in enumerate(cells):
            if cell is None:
                raise UserError(f"prompts: {table.origin(i)}: the prompt is empty; remove the row")
        lines = [str(cell) for cell in cells]
    if not lines:
        raise UserError(f"prompts: {path} contains no prompts; write one per line or row")
    return lines


def read_rows(
    predictor: Predictor, value: Any, without: str, **options: Any
) -> tuple[Samples, list[dict[str, Any]]]:
    """Return the samples of a table, a folder or a pattern, and the file, row and inputs of each.

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
    columns = {own_name(n, (PROMPT, GENERATED)): c for n, c in shown_inputs(opened).items()}
    return samples, [
        identify(opened, row, 0) | {name: cells[row] for name, cells in columns.items()}
        for row in samples.rows.tolist()
    ]


def texts_to_write(
    predictor: Predictor,
    writer: Writer,
    *,
    prompt: str | Sequence[str],
    system: str,
    chat: bool | None,
    inputs: Values | Sequence[Values] | Samples | None,
    count: int,
) -> list[Text]:
    """Return the texts that `Predictor.write` generates, see there."""
    task = predictor.task
    if task.writes:
        if system or chat:
            name, value = ("system", system) if system else ("chat", chat)
            raise UserError(
                f"{name}: this model generates a text for its inputs, got {value}; remove "
                "the option"
            )
        if not inputs or prompt:
            names = " or ".join(f"input.{name}=..." for name in predictor.inputs)
            got = "a prompt" if prompt else "no input"
            raise UserError(f"input: this model generates a text for {names}; got {got}")
        samples, items = _read_items(predictor, inputs)
        return [Text(item=item, samples=samples) for item in items for _ in range(count)]
    if task.is_supervised:
        raise UserError(f"this model generates no text (its task is {task.name}); use dxn predict")
    if writer.obstacle:
        raise UserError(f"generate: {writer.obstacle}")
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    samples, items = _read_items(predictor, inputs, before=task.target.last)
    if len(prompts) != len(items):
        if 1 not in (len(prompts), len(items)):
            raise UserError(
                f"input: needs one sample, or one per prompt, got {len(items)} samples and "
                f"{len(prompts)} prompts"
            )
        prompts, items = prompts * len(items), items * len(prompts)
    texts: list[Text] = []
    for text_prompt, item in zip(prompts, items, strict=True):
        for _ in range(count):
            text = writer.text_of(text_prompt, system=system, chat=chat, sample=item)
            text.item, text.samples = item, samples
            texts.append(text)
    return texts


def values_to_create(
    predictor: Predictor,
    name: str,
    inputs: Values | Sequence[Values] | Samples,
    *,
    count: int,
    guidance: float | None,
) -> list[Text]:
    """Return the values that `Predictor.create` creates, see there."""
    predictor.check_created(name)
    if guidance is not None and not 0 <= guidance <= MAX_SCALE:
        raise UserError(f"guidance: must be from 0 to {MAX_SCALE:g}, got {guidance}")
    samples, items = _read_items(predictor, inputs)
    others = [
        {key: value for key, value in item.items() if key != name}
        for item in items
        if item is not None
        for _ in range(count)
    ]
    if samples is None or not all(item.keys() & set(predictor.inputs) for item in others):
        raise UserError(f"input: needs another input than {name} in each sample")
    return [Text(item=item, samples=samples, create=name, guidance=guidance) for item in others]


def _read_items(
    predictor: Predictor,
    inputs: Values | Sequence[Values] | Samples | None,
    *,
    before: str = "",
) -> tuple[Samples | None, list[Mapping[str, Any] | None]]:
    """Return samples to write a text for, and the item of each of them; None without inputs.

    Args:
        predictor: The model.
        inputs: One sample, or several.
        before: Name of the text of a language model, which the prompt starts.
    """
    if isinstance(inputs, Samples):
        return inputs, [inputs[0, i] for i in range(len(inputs))]
    if not inputs:
        return None, [None]
    samples = [inputs] if isinstance(inputs, Mapping) else inputs
    others = [name for name in predictor.inputs if name != before]
    if any(before in sample for sample in samples) or not others:
        advice = f", or input.{others[0]}=... for what is before it" if others else ""
        raise UserError(f"input: a language model continues a text; set prompt=...{advice}")
    opened = predictor.samples(samples)
    return opened, [opened[0, i] for i in range(len(opened))]


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


def created_input(predictor: Predictor, chosen: str | None, present: Container[str]) -> str:
    """Return the input that is created.

    Args:
        predictor: The model.
        chosen: The input that the user has chosen. None: the only one without a value.
        present: Names of the inputs with a value.

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


def write_values(reader: Reader, values: Sequence[Any], folder: Path) -> list[Path]:
    """Write each of several raw values to a file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06}{reader.formats[0]}" for i in range(len(values))]
    for value, path in zip(values, paths, strict=True):
        reader.write(value, path)
    return paths


def write_texts(
    path: Path,
    prompts: str | Sequence[str],
    texts: Sequence[str],
    rows: Sequence[dict[str, Any]] = (),
    column: str = GENERATED,
) -> None:
    """Write a column of texts with the row and the prompt that each of them continues, if any."""
    prompts = [prompts] if isinstance(prompts, str) else prompts
    records: list[dict[str, Any]] = []
    for i, text in enumerate(texts):
        prompt = prompts[i * len(prompts) // len(texts)]
        row = rows[i * len(rows) // len(texts)] if rows else {}
        prompt_cell = {PROMPT: prompt} if prompt else {}
        records.append({**row, **prompt_cell, column: text})
    write_records(path, records)
    print_line(f"written: {path} ({count(len(records), 'row')})")
