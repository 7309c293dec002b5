"""What a user passes to a model: files, tables, data frames and Python values, as opened rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dxn.core.display import count, list_names, print_line
from dxn.core.errors import UserError, warn
from dxn.data.dataset import Opened, Samples, printable
from dxn.data.rows import TARGET, Column
from dxn.tasks import Task
from dxn.tokenize.base import BadMedia, Reader, Tokenizer
from dxn.tokenize.cells.cell_values import is_null, plain_value

if TYPE_CHECKING:
    from dxn.data.rows import InputSpec, OnBad, Rows, Source
    from dxn.data.series.layouts import Layout
    from dxn.data.tables.read import Table

MAX_NAMES = 3  # files in a message
MAX_PRINTED_COLUMNS = 12
PREDICTED_GB = 0.1  # gigabytes of decoded files that are in memory before a prediction


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model, which are read as in its training.

    Args:
        tokenizers: Tokenizer of each input, by input name.
        task: The fitted task.
        columns: Column of the training table of each input, by input name. Empty: unknown, as for a
            public checkpoint.
        target: Column of the target in the training table.
        layout: How the training table was rearranged, which new tables need too.
    """

    tokenizers: Mapping[str, Tokenizer]
    task: Task
    columns: Mapping[str, str]
    target: str | None
    layout: Layout | None

    @property
    def readers(self) -> dict[str, Reader]:
        """The reader of each input, by input name."""
        return {name: tokenizer.reader for name, tokenizer in self.tokenizers.items()}

    @property
    def specs(self) -> dict[str, InputSpec]:
        """Column and modality of each input. Without a training table, it is that of its name."""
        from dxn.data.rows import InputSpec  # a single sample needs none

        return {
            name: InputSpec(self.columns.get(name, name), tokenizer.modality)
            for name, tokenizer in self.tokenizers.items()
        }

    @property
    def required(self) -> Sequence[str]:
        """Names of the inputs without which the model has no answer."""
        return self.task.target.required if self.task.is_supervised else ()

    # Rows that are opened

    def survey(self, rows: Rows, *, with_target: bool = False) -> Opened:
        """Read the inputs of rows, and collect their problems in `Opened.bad`.

        Args:
            rows: The rows. For a task that needs words, a text is split into words.
            with_target: Whether every row needs a target.
        """
        from dxn.data.reading import survey_rows

        return survey_rows(
            rows,
            self.tokenizers,
            task=self.task,
            need_target=with_target,
            required=self.required,
        )

    def open(
        self, rows: Rows, on_bad: OnBad, *, with_target: bool = False, key: str = "on_bad"
    ) -> Opened:
        """Read the files of rows for prediction or evaluation, see `dxn.data.reading.open_rows`.

        Args:
            rows: The rows.
            on_bad: What to do with rows that cannot be read: "error", "skip" or "missing".
            with_target: Whether every row needs a target.
            key: Name of the option on_bad in messages. Empty: a program has none.

        Raises:
            UserError: If a row cannot be read and on_bad is "error", or no row is left.
        """
        from dxn.data.raws import CacheBudget
        from dxn.data.reading import open_rows

        return open_rows(
            rows,
            self.tokenizers,
            task=self.task,
            on_bad=on_bad,
            need_target=with_target,
            key=key,
            # Each file is used once, so that there is no reason to keep many of them.
            budget=CacheBudget(PREDICTED_GB),
            only_headers=True,
            required=self.required,
        )

    def prepared(self, opened: Opened, only: Sequence[str] | None = None) -> Samples:
        """Return opened rows as samples. A target column in new data has no effect.

        The samples of a codec contain the values with which those that it decodes are compared.

        Raises:
            UserError: If the rows have no column of an input that the model needs.
        """
        for name in self.required if only is None else ():
            if name not in opened.raws:
                raise UserError(f"input: no value of {name}, which this model needs; add it")
        task = self.task if self.task.has_answers and not self.task.is_supervised else None
        return Samples(opened, self.tokenizers, task=task, only=only)

    # The options of a command

    def option(
        self,
        path: Any,
        *,
        on_bad: OnBad = "error",
        confine: bool = True,
        only: Sequence[str] | None = None,
        **options: Any,
    ) -> Opened:
        """Open all samples of the option `input`: a table, a folder or a pattern of files.

        Args:
            path: The table, the folder or the pattern.
            on_bad: What to do with rows that cannot be read: "error", "skip" or "missing".
            confine: Whether files that lead out of the folder are refused.
            only: Names of the inputs that are used. A table may lack the others. Default: all.
            **options: Further options of a table, see `table`.

        Raises:
            UserError: If there are no such files, a column is missing, or a sample cannot be read.
        """
        opened = self.open(self.rows(path, confine=confine, only=only, **options), on_bad)
        for note in self.remarks(opened):
            print_line(f"note: {note}")
        return opened

    def remarks(self, opened: Opened) -> list[str]:
        """Return what is unusual about the values of opened rows, such as unknown categories."""
        remarks = {n: self.tokenizers[n].remark(raws) for n, raws in opened.raws.items()}
        return [f"{name}: {remark}" for name, remark in remarks.items() if remark]

    def rows(
        self,
        path: Any,
        *,
        confine: bool = True,
        only: Sequence[str] | None = None,
        **options: Any,
    ) -> Rows:
        """Return all samples of the option `input`, without reading their files, see `option`."""
        from dxn.runs.predictor.option import files_of, tables_of

        if tables := tables_of(str(path), confine=confine):
            # A table of queries, for example, need not have the columns of the other inputs.
            path = tables if len(tables) > 1 else tables[0]
            rows = self.table(path, confine=confine, with_target=False, only=only, **options)
            # A target column in a new table has no effect on predictions.
            cells = {name: column for name, column in rows.cells.items() if name != TARGET}
            return replace(rows, cells=cells)
        files, root = files_of(str(path))
        return self._files(files, str(path), root if confine else None)

    def table(
        self,
        path: Any,
        *,
        columns: Mapping[str, str],
        keep: Sequence[str] = (),
        group: str | None = None,
        with_target: bool = True,
        only: Sequence[str] | None = None,
        **options: Any,
    ) -> Rows:
        """Read all rows of the table `input` with their targets, and print the used columns.

        The inputs are read from the columns that the model was trained on. A public checkpoint has
        no such columns, so they are inferred.

        Args:
            path: The table.
            columns: Columns with other names than in the training.
            keep: Further columns that identify a row.
            group: Column of groups of rows in the training.
            with_target: Whether the rows are used with their targets. False: they are predicted.
            only: Names of the inputs that are used. The table may lack the others. Default: all.
            **options: The options sep, encoding, sheet and confine.
        """
        from dxn.data.sources.table import new_table, rows_of_table
        from dxn.tokenize.column_profile import by_modality

        specs = self.specs
        if not self.columns:
            # Read once, for the inference and for its rows.
            path = new_table(path, **options)
            specs = self._inferred(path, columns, only)
        notes: list[str] = []
        rows = rows_of_table(
            path,
            specs,
            by_modality(self.readers),
            target=self.target,
            columns=columns,
            keep=keep,
            layout=self.layout,
            group=group,
            with_target=with_target,
            optional=() if only is None else specs.keys() - set(only),
            notes=notes,
            **options,
        )
        # A column can be mapped by the name of its input or by its name in the training.
        trained = {name: spec.column for name, spec in specs.items() if name in rows.cells}
        print_columns({n: columns.get(n, columns.get(old, old)) for n, old in trained.items()})
        for note in notes:
            print_line(f"note: {note}")
        return rows

    def with_columns(
        self,
        path: str,
        renamed: Mapping[str, str],
        only: Sequence[str] | None = None,
        **options: Any,
    ) -> tuple[ModelInputs, Sequence[str] | None]:
        """Infer the columns of a public checkpoint from one of several tables.

        Args:
            path: The table.
            renamed: Columns with other names.
            only: Names of the inputs that are used. Default: all.
            **options: The options sep, encoding, sheet and confine.

        Returns:
            The inputs with their columns, and the names of those that the table has. None: it must
            have all of them, because they are known from the training.
        """
        from dxn.data.sources.table import new_table

        if self.columns:
            return self, None
        specs = self._inferred(new_table(path, **options), renamed, only)
        columns = {name: spec.column for name, spec in specs.items()}
        return replace(self, columns=columns), list(specs)

    def _inferred(
        self, table: Table, renamed: Mapping[str, str], only: Sequence[str] | None
    ) -> dict[str, InputSpec]:
        """Return the column of a table that each input of a public checkpoint is read from.

        A column with the name of an input is this input. Otherwise, it is the only column that fits
        the input. The table may lack some of the inputs.

        Raises:
            UserError: If no column fits any input, several columns or inputs fit each other, or a
                key of `renamed` is no input.
        """
        from dxn.data.columns.infer import infer_columns
        from dxn.data.rows import InputSpec
        from dxn.data.tables.read import column_name
        from dxn.tokenize.column_profile import by_modality

        readers = self.readers
        if unknown := [name for name in renamed if name not in readers]:
            raise UserError(
                f"columns.{unknown[0]}: must be an input of this model ({', '.join(readers)}), got "
                f"{unknown[0]}"
            )
        columns = {name: column_name(str(renamed[name])) for name in readers if name in renamed}
        used = [name for name in readers if only is None or name in only]
        columns |= {n: n for n in used if n not in columns and n in table.columns}
        fitting: dict[str, list[str]] = {}
        notes: list[str] = []
        if any(name not in columns for name in used):
            free = [name for name in table.columns if name not in columns.values()]
            infer_columns(table, free, by_modality(readers), fitting, [], (), notes)
        for modality, found in fitting.items():
            names = [n for n in used if n not in columns and readers[n].modality == modality]
            if len(names) == len(found) == 1:
                columns[names[0]] = found[0]
            elif names:
                pairs = zip_longest(names, found[: len(names)], fillvalue="COLUMN")
                options = " ".join(f"columns.{name}={column}" for name, column in pairs)
                raise UserError(
                    f"{table.name}: columns that fit {', '.join(names)}: {', '.join(found)}; "
                    f"choose, for example {options}"
                )
        if not columns:
            raise UserError(
                f"{table.name}: no column fits an input of this model ({', '.join(used)}); "
                f"{'; '.join(notes)}; choose one, columns.{used[0]}=COLUMN"
            )
        return {name: InputSpec(column, readers[name].modality) for name, column in columns.items()}

    def _files(self, files: Sequence[str], path: str, root: Path | None) -> Rows:
        """Return one row per file, for the input that reads files of its kind.

        Args:
            files: The files.
            path: The option that names them, for messages.
            root: Folder that links may not lead out of. None: they may.

        Raises:
            UserError: If no input reads them, or several inputs read the same kind of files.
        """
        from dxn.data.cell_paths import confined
        from dxn.runs.predictor.option import inputs_beside
        from dxn.tokenize.column_profile import by_modality, modality_of, profile_of

        readers = {name: reader for name, reader in self.readers.items() if reader.files}
        modalities = [modality_of(profile_of([file]), by_modality(readers)) for file in files]
        used = [file for file, modality in zip(files, modalities, strict=True) if modality]
        if not used:
            inputs = ", ".join(f"{n} ({reader.modality})" for n, reader in self.readers.items())
            raise UserError(
                f"input: no input of this model reads any of the {count(len(files), 'file')} of "
                f"{path}; its inputs are {inputs}"
            )
        kinds = [modality for modality in modalities if modality]
        cells: dict[str, list[str | None]] = {}
        for modality in dict.fromkeys(kinds):
            names = [name for name, reader in readers.items() if reader.modality == modality]
            if len(names) > 1:
                raise UserError(
                    f"input: the files of {path} fit several inputs ({', '.join(names)}); write a "
                    "table with one column per input, and set input to the table"
                )
            values = [f if m == modality else None for f, m in zip(used, kinds, strict=True)]
            if root is not None:
                values = [f if f is None else confined(f, root, "confine") for f in values]
            for name in inputs_beside(names[0], values, readers, self.columns):
                cells[name] = values
        others = [file for file, modality in zip(files, modalities, strict=True) if not modality]
        if others:
            listed = list_names([Path(file).name for file in others], MAX_NAMES)
            print_line(f"note: not used: {count(len(others), 'file')} of another kind ({listed})")
        from dxn.data.rows import Rows

        return Rows(cells, used)

    def of_source(self, source: Source, split: str) -> Rows:
        """Return a split of a data set whose columns have the names of the model's inputs.

        Each input of the model reads the column of the same name and modality that it was trained
        on. If there is none, it reads the input of the data with the same name, and otherwise the
        only input of its modality. Inputs that the data does not have are left out.
        """
        rows = source.splits[split]
        cells = {name: values for name, values in rows.cells.items() if name == TARGET}
        modalities = [tokenizer.modality for tokenizer in self.tokenizers.values()]
        for name, tokenizer in self.tokenizers.items():
            same = [n for n, spec in source.inputs.items() if spec.modality == tokenizer.modality]
            column = self.columns.get(name)
            exact = [n for n in same if column is not None and source.inputs[n].column == column]
            # With two inputs of a modality on either side, it is not clear which belongs to which.
            is_only = len(same) == modalities.count(tokenizer.modality) == 1
            matches = exact or [n for n in same if n == name] or (same if is_only else [])
            if matches:
                cells[name] = rows.cells[matches[0]]
        return replace(rows, cells=cells)

    # The arguments of a Python program

    def samples(
        self, samples: Sequence[Mapping[str, Any]], targets: Sequence[Any] | None = None
    ) -> Opened:
        """Open samples, each with the values of its inputs by name. None: it lacks the input.

        Args:
            samples: The values.
            targets: Target of each sample, which it then needs. None: they have none.

        Raises:
            UserError: If there is no sample, a file cannot be read, an input is unknown, or a
                target is missing.
        """
        if not samples:
            raise UserError("there is no sample; pass at least one")
        used = {name for sample in samples for name, value in sample.items() if value is not None}
        if unknown := used - set(self.tokenizers):
            raise UserError(
                f"this model has the inputs {', '.join(self.tokenizers)}, "
                f"got {', '.join(sorted(unknown))}"
            )
        cells = {
            name: [self.cell(name, sample.get(name)) for sample in samples]
            for name in self.tokenizers
        }
        is_single = len(samples) == 1 and targets is None
        if is_single and (opened := self._single(cells)) is not None:
            return opened
        from dxn.data.rows import Rows

        cells |= {} if targets is None else {TARGET: list(targets)}
        rows = Rows(cells, [f"sample {i + 1}" for i in range(len(samples))])
        opened = self.survey(rows, with_target=targets is not None)
        if opened.bad:
            # The number of the sample is noise if the caller passed only one.
            first = min(opened.bad, key=lambda fault: fault.row)
            raise UserError(str(first) if is_single else f"{first.origin}: {first}")
        return opened

    def _single(self, cells: Mapping[str, Sequence[Any]]) -> Opened | None:
        """Open one sample without the parts that tables need; None if it cannot be read.

        Then `survey` finds out why.
        """
        raws: dict[str, Column] = {}
        for name, (cell,) in cells.items():
            reader = self.tokenizers[name].reader
            try:
                raw = None if cell is None else reader.read(cell)
            except BadMedia:
                return None
            raws[name] = Column([self.task.target.words_of(raw) if reader.words else raw])
        if all(raw is None for (raw,) in raws.values()):
            return None
        if any(raws[name][0] is None for name in self.required):
            return None
        shown = {name: [printable(cell)] for name, (cell,) in cells.items()}
        return Opened(raws, None, ["sample 1"], cells=shown)

    def single_batch(self, sample: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the batch of one sample, without what files and several samples need.

        It equals the batch of the opened sample, and takes a third of its time.

        Returns:
            None for a sample that has to be opened, see `samples`: it has files, a target that
            reads its inputs, or unusual or wrong values, of which `samples` finds out the problem.
        """
        if not self.takes_values or not sample.keys() <= self.tokenizers.keys():
            return None
        batch: dict[str, Any] = {"#size": 1, "#index": [0]}
        for name, tokenizer in self.tokenizers.items():
            value = sample.get(name)
            cell = None if value is None else self.cell(name, value)
            if cell is None:
                continue
            reader = tokenizer.reader
            try:
                raw = reader.read(cell)
            except BadMedia:
                return None
            if raw is None:  # such as "N/A"
                continue
            raw = self.task.target.words_of(raw) if reader.words else raw
            if tokenizer.remark([raw]):
                return None
            part = tokenizer.batch([raw])
            mask = part.get("mask")  # only texts and categories can be without tokens
            if mask is not None and not mask.any():
                return None
            batch[name] = {**part, "rows": torch.zeros(1, dtype=torch.long)}
        return batch if len(batch) > 2 else None

    @cached_property
    def takes_values(self) -> bool:
        """Whether a sample consists of values, such as texts and numbers, and each is optional."""
        has_files = any(tokenizer.reader.files for tokenizer in self.tokenizers.values())
        return self.task.is_supervised and not self.required and not has_files

    def frame(self, frame: Any) -> Opened:
        """Open the rows of a data frame or a `datasets.Dataset`."""
        from dxn.data.sources.memory import table_of
        from dxn.data.sources.table import rows_of_table
        from dxn.tokenize.column_profile import by_modality

        specs = self.specs
        rows = rows_of_table(
            table_of(frame),
            specs,
            by_modality(self.readers),
            target=self.target,
            layout=self.layout,
            with_target=False,
            # The program itself chose the paths in the cells.
            confine=False,
        )
        inputs = {name: rows.cells[name] for name in specs if name in rows.cells}
        opened = self.open(replace(rows, cells=inputs), "error", key="")
        self.warn(opened)
        return opened

    def warn(self, opened: Opened) -> None:
        """Warn about unusual values, such as codes without the leading zeros of the training."""
        # A program may print nothing else.
        for note in self.remarks(opened):
            warn(note)

    def argument(self, data: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the argument of `Predictor.predict` as a frame, a list of samples, or one sample.

        Args:
            data: The argument.
            inputs: Inputs by name, of which there must be none beside it.

        Raises:
            UserError: If there are inputs by name too, or a value without the name of its input.
        """
        if inputs:
            raise UserError(
                f"{next(iter(inputs))}: cannot be combined with a positional argument such as a "
                "DataFrame; make it a column"
            )
        from dxn.data.sources.memory import is_dataset, is_frame, is_series

        if is_frame(data) or is_dataset(data):
            return data
        if is_series(data):
            columns = {name: spec.column for name, spec in self.specs.items()}
            # A row of a data frame has its columns as labels; otherwise it is a column.
            labels = set(map(str, data.index))
            if labels & set(columns.values()):
                return {name: data[column] for name, column in columns.items() if column in labels}
            return data.to_frame(columns[self._only()])
        if isinstance(data, list):
            return [self._sample(value) for value in data]
        return self._sample(data)

    def _sample(self, value: Any) -> dict[str, Any]:
        return dict(value) if isinstance(value, Mapping) else {self._only(): value}

    def _only(self) -> str:
        """Return the name of the only input."""
        first = next(iter(self.tokenizers))
        if len(self.tokenizers) > 1:
            raise UserError(
                f"this model has the inputs {', '.join(self.tokenizers)}; name them, such as "
                f"{{{first!r}: ...}}, or pass a DataFrame"
            )
        return first

    def cell(self, name: str, value: Any) -> Any:
        """Return a value that a Python program passes, as the cell of a table. None: it is missing.

        Raises:
            UserError: If it is a list of texts, but the task does not predict one tag per word.
        """
        if isinstance(value, str):  # most of them
            return value
        # The cells of a pandas row are NumPy scalars.
        value = plain_value(value)
        if is_null(value):
            return None
        is_sequence = isinstance(value, list | tuple)
        # The reader of a text would accept them as the words of one text.
        if (
            is_sequence
            and any(isinstance(item, str) for item in value)
            and self.tokenizers[name].reader.words
            and not self.task.target.words
        ):
            raise UserError(
                f"{name}: must be one text, got a list of {len(value)}; for several samples, use "
                f"predict_many([{{{name!r}: ...}}, {{{name!r}: ...}}])"
            )
        # A cell of a table is a str, and `read` of a user's reader may accept nothing else.
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple):  # the array and the sample rate of a clip
            return tuple(_writable(item) for item in value)
        return _writable(value)


def print_columns(columns: Mapping[str, str]) -> None:
    """Print the column that each input is read from."""
    pairs = [name if name == column else f"{name}={column}" for name, column in columns.items()]
    print_line(f"columns: {list_names(pairs, MAX_PRINTED_COLUMNS)}")


def _writable(value: Any) -> Any:
    """Return a copy of an array that is read-only, because PyTorch warns about such arrays."""
    is_read_only = isinstance(value, np.ndarray) and not value.flags.writeable
    return value.copy() if is_read_only else value
