"""The commands `dxn predict` and `dxn generate`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from dxn.commands.options import (
    OUTPUT_FILE,
    Compute,
    Count,
    FromWeights,
    Input,
    ManyRows,
    Seed,
    TableInput,
    ZeroShotLabels,
)
from dxn.config.words import AS_TYPED
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
            pictures with boxes. For questions with an id also a .squad.json file. For forecasts of
            frames also a .npy file.
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
        from dxn.runs.predictor.option import read_sample
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
            from dxn.runs.predictor.prediction_files import write_frames

            print_line(f"written: {output} ({write_frames(output, predictor, self.input)})")
            return 0
        rows = predicted_rows
        draws = output is not None and not output.suffix
        if output is not None and (draws or output.name.endswith(".coco.json")):
            from dxn.runs.predictor.prediction_files import coco_rows, picture_input

            picture_input(predictor, str(output))
            rows = coco_rows
            if not draws and isinstance(self.input, str) and Path(self.input).exists():
                from functools import partial

                from dxn.data.sources.coco import coco_ids

                rows = partial(coco_rows, ids=coco_ids(Path(self.input)))
        if not self.has_many_rows():
            sample = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
            samples = predictor.samples([sample])
            self._predict_one(predictor, samples, output)
            return 0
        opened = predictor.model_inputs.option(self.input, keep=self.keep, **self.table_options())
        finish = None
        if output is not None and output.name.endswith(".squad.json"):
            from dxn.runs.predictor.prediction_files import check_ids, write_by_id

            check_ids(predictor, opened, output)
            finish = write_by_id
        samples = predictor.model_inputs.prepared(opened)
        if draws and output is not None:
            from dxn.runs.predictor.prediction_files import write_pictures
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
                finish=finish,
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

        if output is not None and output.name.endswith(".squad.json"):
            from dxn.runs.predictor.prediction_files import check_ids

            check_ids(predictor, samples.opened, output)
        predictions = predictor.run(samples)
        if not is_main_process():
            return
        opened, task = samples.opened, predictor.task
        for note in predictor.model_inputs.remarks(opened):
            print_line(f"note: {note}")
        inputs = {name: cells[0] for name, cells in opened.cells.items()}
        for line in answer_lines(task.answer(predictions.predicted[0], inputs)):
            print_line(line)
        if output is None:
            return
        from dxn.runs.predictor.output import rows_text, write_records
        from dxn.runs.predictor.prediction_files import (
            COCO,
            coco_records,
            file_names,
            write_pictures,
        )

        batch = [0], predictions.predicted
        if not output.suffix:
            print_line(f"written: {output} ({write_pictures(output, predictor, opened, [batch])})")
            return
        if output.name.endswith(COCO):
            names = file_names(opened, task.objects_in)
            records = coco_records(predictor, opened, 0, predictions.predicted[0], names[0])
        else:
            records = prediction_records(predictions, opened, task)
            for record in records:  # a forecast has one per step
                record.pop("file", None)  # there is no file that contains the sample as a row
        write_records(output, records, separator=task.target.separator)
        print_line(f"written: {output} ({rows_text(len(records), 0)})")


@dataclass(frozen=True, kw_only=True)
class Generate(FromWeights, TableInput, Compute):
    """Generate text with a trained model: continue or answer a prompt, or describe an input.

    Args:
        prompt: Text to continue, for a language model, or message to answer.
        prompts: File with many prompts: a .txt file with one per line, or a table with a column
            prompt.
        system: Message of the system before the prompt, for a model of conversations.
        chat: Whether the prompt is a message of the user, and only the answer is the text (default:
            if the model has a chat template).
        input: Inputs to generate a text for: input.text=... input.image=... input.audio=..., or a
            table, a folder or a pattern ('photos/*.jpg'), each of whose rows gets a text.
        create: Input that a model of head=any creates (default: the only one that is not given).
        max_new: Maximum number of tokens to generate.
        temperature: Divisor of the logits; 0 chooses the most probable text. Default: that of a
            language model (1 unless its checkpoint names another one), and otherwise 0; with
            head=any, 0 for texts and 1 for other values.
        top_k: Sample from this number of most probable tokens (default: all).
        top_p: Sample from the most probable tokens with this total probability (arXiv:1904.09751).
        guidance: Scale of the classifier-free guidance of a model of head=any: larger values follow
            the inputs more closely, with less variety (arXiv:2207.12598); 1: no guidance.
            Default: 2 if the model was trained for it, and 1 for texts.
        count: Number of texts to generate, per prompt.
        output: .csv, .jsonl, .json or .parquet file for the texts (default: print them). With
            head=any: file for the picture, sound, series or clip, or a folder for many of them.
        seed: Random seed of sampling.
        batch_size: Number of texts per batch.
    """

    usage: ClassVar[Sequence[str]] = (
        'dxn generate run=RUN prompt="ROMEO:" temperature=0.8',
        'dxn generate weights=openai-community/gpt2 prompt="Once upon a time" top_p=0.9',
        'dxn generate run=RUN prompt="Which is larger, 17 or 52?" system="Answer briefly."',
        "dxn generate run=RUN prompts=prompts.txt output=texts.csv",
        "dxn generate run=RUN input.image=photo.jpg",
        'dxn generate run=RUN input=photos/ prompt="Describe the picture." output=texts.csv',
        'dxn generate run=RUN input.text="a seven" output=seven.png',
    )

    excludes: ClassVar[Mapping[str, Sequence[str]]] = {"temperature=0": ["top_k", "top_p"]}

    prompt: Annotated[str, AS_TYPED] = ""
    prompts: str | None = None
    system: Annotated[str, AS_TYPED] = ""
    chat: bool | None = None
    input: Input | None = None
    create: str | None = None
    max_new: Count = 200
    temperature: Annotated[float | None, Ge(0)] = None
    top_k: Count | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    guidance: Annotated[float, Ge(0)] | None = None
    count: Count = 1
    output: Annotated[str | None, OUTPUT_FILE] = None
    seed: Seed = 0
    batch_size: Count = 16

    def execute(self) -> int:
        """Continue or answer a prompt, or generate a text for an input."""
        from dxn.core.display import print_line, print_rule
        from dxn.runs.predictor.generating import create_files, read_prompts, read_rows, write_texts
        from dxn.runs.predictor.option import read_sample
        from dxn.runs.predictor.output import check_suffix

        predictor = None
        if self.run is not None:
            predictor = self.load(**self.computing())
            if predictor.task.creates:
                create_files(predictor, self)
                return 0
        guidance = None if self.guidance is None else f"{self.guidance:g}"
        for name, value in {"create": self.create, "guidance": guidance}.items():
            if value is not None:
                raise UserError(
                    f"{name}: needs a model of head=any, got {name}={value}; leave it out"
                )
        # Before a public model is loaded, so that a mistake is reported at once.
        output = check_suffix(self.output)
        prompts = read_prompts(self.prompt, self.prompts)
        predictor = predictor or self.load(**self.computing())
        inputs, rows = None, []
        if self.input is not None and self.has_many_rows():
            without = predictor.task.target.last
            inputs, rows = read_rows(predictor, self.input, without, **self.table_options())
        elif self.input is not None:
            inputs = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            texts = predictor.write(
                prompt=prompts,
                system=self.system,
                chat=self.chat,
                inputs=inputs,
                count=self.count,
                max_new=self.max_new,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=self.seed,
                batch_size=self.batch_size,
            )
        for note in dict.fromkeys(str(warning.message) for warning in caught):
            print_line(f"note: {note}", stderr=True)
        if output is not None:
            write_texts(output, prompts, texts, rows)
            return 0
        for i, text in enumerate(texts):
            if i:
                print_rule()
            print_line(text)
        return 0
