"""The command `dxn predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from dxn.commands.model import Compute, FromWeights, ManyRows, ZeroShotLabels
from dxn.commands.options import OUTPUT_FILE, Input
from dxn.core.errors import UserError

if TYPE_CHECKING:
    from dxn.data.dataset import Samples
    from dxn.runs.predictor.predictor import Predictor

MAX_PRINTED = 20  # rows; a file has all of them


@dataclass(frozen=True, kw_only=True)
class Predict(FromWeights, ManyRows, ZeroShotLabels, Compute):
    """Predict for one sample or a table with a trained model.

    Args:
        input: Table, file, folder, pattern ('photos/*.jpg') or one sample (input.text=...).
        output: .csv, .jsonl, .json or .parquet file for the predictions (default: print them); with
            engine=ray a folder. For objects in pictures also a .coco.json file, or a folder for the
            pictures with boxes. For forecasts of frames also a .npy file.
        keep: Further columns of the table to copy to the output.
        data: Columns of a table with one row per time step, for the weights of a public forecasting
            model: data.target, and optionally data.time and data.series_id.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn predict run=outputs/label new.csv output=answers.csv",
        "dxn predict run=RUN shards/ output=answers engine=ray",
        "dxn predict run=RUN photo.jpg",
        "dxn predict run=RUN photos/ output=photos_with_boxes",
        "dxn predict run=RUN rain.npy output=next.npy",
        'dxn predict run=RUN input.text="a fine film"',
        "dxn predict run=RUN input.image=a.jpg input.audio=a.wav",
        'dxn predict run=RUN input.image=a.jpg labels=[cat,dog] template="a photo of a {}"',
        "dxn predict weights=amazon/chronos-bolt-small sales.csv target=sales head.horizon=14",
    )

    input: Input
    output: Annotated[str | None, OUTPUT_FILE] = None
    keep: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def execute(self) -> int:
        """Predict for one sample, or for each sample of a table, a folder or a pattern of files."""
        from dxn.core.display import count, is_main_process, next_step, print_line
        from dxn.data.formats import ARRAYS
        from dxn.runs.predictor.option import has_many_samples, read_sample
        from dxn.runs.predictor.table import predicted_rows, record_line

        if self.engine == "ray" and self.data:
            raise UserError("engine: ray cannot be combined with data; set engine=local")
        if self.engine == "ray":
            return self.on_ray(
                predicted_rows,
                keep=self.keep,
                batch_size=self.batch_size,
                **self.computing(),
                labels=self.labels,
                template=self.template,
            )
        output = None
        if self.output is not None:  # its writers take time to import
            from dxn.runs.predictor.output import SUFFIXES, check_suffix

            # Before the model is loaded, so that a mistake is reported at once. A name without a
            # suffix is a folder of pictures.
            output = Path(self.output)
            suffixes = (*SUFFIXES, ARRAYS[0])
            output = check_suffix(self.output, suffixes) if output.suffix else output
        predictor = self.load(**self.computing(), labels=self.labels, template=self.template)
        if self.data:
            predictor = self._forecaster(predictor)
        predictor.require_answers()  # before a large table is read
        if output is not None and output.suffix.lower() == ARRAYS[0]:
            from dxn.runs.predictor.frames import write_frames

            print_line(f"written: {output} ({write_frames(output, predictor, self.input)})")
            return 0
        rows = predicted_rows
        draws = output is not None and not output.suffix
        if output is not None and (draws or output.name.endswith(".coco.json")):
            from dxn.runs.predictor.objects import coco_rows, picture_input

            picture_input(predictor, str(output))
            rows = coco_rows
        if not has_many_samples(self.input):
            sample = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
            samples = predictor.samples([sample])
            self._predict_one(predictor, samples, output)
            return 0
        opened = predictor.model_inputs.option(self.input, keep=self.keep, **self.table_options())
        samples = predictor.model_inputs.prepared(opened)
        if draws and output is not None:
            from dxn.runs.predictor.objects import write_pictures
            from dxn.runs.predictor.table import predicted_batches

            batches = predicted_batches(predictor, samples, self.batch_size)
            print_line(f"written: {output} ({write_pictures(output, predictor, opened, batches)})")
            return 0
        if output is not None:
            from dxn.runs.predictor.resumable import write_answers

            written = write_answers(
                output,
                rows,
                predictor,
                samples,
                batch_size=self.batch_size,
                identity=self.identity(opened),
                separator=predictor.task.target.separator,
            )
            if written is not None:
                print_line(f"written: {output} ({written[0]})")
            return 0
        num_answered = num_records = 0
        for rows, records, _ in predicted_rows(predictor, samples, self.batch_size):
            for record in records[: max(MAX_PRINTED - num_records, 0)]:
                print_line(record_line(record))
            num_answered += len(rows)
            num_records += len(records)
        if not is_main_process():
            return 0
        if num_records > MAX_PRINTED:
            print_line(f"and {count(num_records - MAX_PRINTED, 'more row')}")
        if skipped := opened.skipped + len(samples) - num_answered:
            print_line(f"{count(skipped, 'row')} skipped")
        next_step("dxn", *self.with_output("answers.csv"))
        return 0

    def _forecaster(self, predictor: Predictor) -> Predictor:
        """Return a predictor of the target columns of the table."""
        from dxn.runs.predictor.option import tables_of
        from dxn.runs.predictor.zero_shot import forecaster

        tables = tables_of(self.input, confine=self.confine) if isinstance(self.input, str) else []
        if len(tables) != 1:
            raise UserError(f"data.target: needs one table as input, got {self.input}; remove it")
        return forecaster(
            predictor,
            tables[0],
            self.data,
            sep=self.sep,
            encoding=self.encoding,
            sheet=self.sheet,
        )

    def _predict_one(self, predictor: Predictor, samples: Samples, output: Path | None) -> None:
        """Predict for one sample, print the answer, and write it to a file."""
        from dxn.core.display import is_main_process, print_line
        from dxn.runs.predictor.table import answer_lines, prediction_records

        predictions = predictor.run(samples)
        if not is_main_process():
            return
        opened, task = samples.opened, predictor.task
        for name, raws in opened.raws.items():
            raw = raws[0]  # None: the sample lacks the input
            note = "" if raw is None else predictor.tokenizers[name].remark(raw)
            if note:
                print_line(f"note: {name}: {note}")
        inputs = {name: cells[0] for name, cells in opened.cells.items()}
        for line in answer_lines(task.answer(predictions.predicted[0], inputs)):
            print_line(line)
        if output is None:
            return
        from dxn.runs.predictor.objects import COCO, coco_records, write_pictures
        from dxn.runs.predictor.output import rows_text, write_records

        batch = [0], predictions.predicted
        if not output.suffix:
            print_line(f"written: {output} ({write_pictures(output, predictor, opened, [batch])})")
            return
        if output.name.endswith(COCO):
            records = coco_records(predictor, opened, *batch)
        else:
            records = prediction_records(predictions, opened, task)
            for record in records:  # a forecast has one per step
                record.pop("file", None)  # there is no file that contains the sample as a row
        write_records(output, records, separator=task.target.separator)
        print_line(f"written: {output} ({rows_text(len(records), 0)})")
