"""The command `dxn evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from dxn.commands.options import (
    OUTPUT_FOLDER,
    Compute,
    Data,
    FromWeights,
    InputTable,
    Run,
    Seed,
    TableInput,
    ZeroShotLabels,
)
from dxn.core.errors import UserError
from dxn.core.files import METRICS, PREDICTIONS, TOKENS


@dataclass(frozen=True, kw_only=True)
class Evaluate(FromWeights, Data, TableInput, ZeroShotLabels, Compute):
    """Compute the metrics of a trained model, with all inputs and with subsets of them.

    Args:
        input: Table whose rows are all evaluated, with the columns and target of the training.
        split: Split to evaluate (default: the first of test, validation and train that has rows).
        only: Inputs to use, such as [text] (default: all, each alone, and all but each).
        create: Input that a model of head=any creates for each row from the other inputs, or from
            those of only. The metrics are then those of the created values.
        judge: Run of a classifier that was trained alone and reads the created values. Texts need
            none.
        temperature: Divisor of the logits of created values; 0 always chooses the most probable
            token. Default: 0 for texts, and 1 for other values.
        guidance: Scale of the classifier-free guidance of created values (arXiv:2207.12598).
            Default: as in dxn generate.
        output: Folder for metrics.json, predictions.csv and tokens.png (default:
            RUN/evaluate/date_time).
        keep: Further columns of the table to copy to the output.
        seed: Random seed of the splits, if the data has none, and of created values.
        confine: Refuse files of input or of the run's data that lead out of its folder.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn evaluate run=outputs/label",
        "dxn evaluate run=outputs/label new.csv",
        "dxn evaluate run=RUN only=[image]",
        "dxn evaluate run=RUN create=image judge=CLASSIFIER only=[text] guidance=2",
        "dxn evaluate weights=google/vit-base-patch16-224 data.path=photos/",
    )

    needs: ClassVar[Mapping[str, Sequence[str]]] = {
        "create": ["judge", "temperature", "guidance"],
        "data or create": ["seed"],
    }
    # All rows of a table are evaluated.
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {"input": ["data", "split"]}

    input: InputTable = None
    split: Literal["train", "validation", "test"] | None = None
    only: Sequence[str] | None = None
    create: str | None = None
    judge: Run = None
    temperature: Annotated[float | None, Ge(0)] = None
    guidance: Annotated[float, Ge(0)] | None = None
    output: Annotated[str | None, OUTPUT_FOLDER] = None
    keep: Sequence[str] = ()
    seed: Seed = 0
    confine: bool = True

    def execute(self) -> int:
        """Evaluate, and write the files."""
        from dxn.core.display import is_main_process, print_line
        from dxn.runs.evaluation.data import evaluation_source, open_evaluation_data, open_table
        from dxn.runs.evaluation.evaluate import evaluate_data, new_evaluation
        from dxn.runs.monitoring import own_metrics_of
        from dxn.runs.saved.dtypes import difference
        from dxn.runs.saved.loading import load_predictor

        trust = self.settings.folder_trust
        predictor = self.load(**self.computing(), labels=self.labels, template=self.template)
        predictor.task.metric.own = own_metrics_of(self.run, trust)
        where = nullcontext(Path(self.output)) if self.output else new_evaluation(self.run)
        source = self.source_options()
        if self.create is not None:
            from dxn.runs.evaluation.created_values import evaluate_created

            if self.input is not None:
                raise UserError(
                    f"input: cannot be combined with create; set data.path={self.input}"
                )
            judge = None
            if self.judge is not None:
                judge = load_predictor(self.judge, trust=trust, **self.computing())
            rows = evaluation_source(predictor, self.run, **source)
            with where as folder:
                evaluate_created(
                    predictor,
                    judge,
                    rows,
                    folder,
                    create=self.create,
                    only=self.only,
                    batch_size=self.batch_size,
                    temperature=self.temperature,
                    guidance=self.guidance,
                    seed=self.seed,
                )
            return 0
        if self.input is None:
            data = open_evaluation_data(predictor, self.run, **source)
        else:
            options = self.table_options()
            data = open_table(
                self.input, predictor, self.run, trust=trust, keep=self.keep, **options
            )
        with where as folder:
            evaluate_data(predictor, data, folder, batch_size=self.batch_size, only=self.only)
        if not is_main_process():
            return 0
        if predictor.dtype != "float32":
            samples = predictor.task_samples(data.opened, only=self.only)
            reference = self.load(device=self.device, labels=self.labels, template=self.template)
            print_line(difference(predictor, reference, samples, batch_size=self.batch_size))
        has_answers = predictor.task.is_supervised
        files = f"{METRICS}, {PREDICTIONS}, {TOKENS}" if has_answers else METRICS
        print_line(f"written: {folder}: {files}")
        if has_answers:
            print_line(f"{folder / PREDICTIONS} has the prediction of each row")
        return 0
