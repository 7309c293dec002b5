"""The command `dxn evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from dxn.commands.options import Compiled, Data, FromWeights, InputTable, Labels, Seed, TableInput
from dxn.config.command import OUTPUT_FOLDER


@dataclass(frozen=True, kw_only=True)
class Evaluate(FromWeights, Data, TableInput, Labels, Compiled):
    """Compute the metrics of a trained model, with all inputs and with subsets of them.

    Args:
        input: Table whose rows are all evaluated, with the columns and target of the training.
        split: Split to evaluate (default: the first of test, validation and train that has rows).
        only: Inputs to use, such as [text] (default: all, each alone, and all but each).
        output: Folder for metrics.json, predictions.csv and plots (default:
            RUN/evaluate/date_time).
        keep: Further columns of the table to copy to the output.
        seed: Random seed of the splits, if the data has none.
        confine: Refuse files of input or of the run's data that lead out of its folder.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn evaluate run=outputs/label",
        "dxn evaluate run=outputs/label new.csv",
        "dxn evaluate run=RUN only=[image]",
        "dxn evaluate weights=google/vit-base-patch16-224 data.path=photos/",
    )

    input: InputTable = None
    split: Literal["train", "validation", "test"] | None = None
    only: Sequence[str] | None = None
    output: Annotated[str | None, OUTPUT_FOLDER] = None
    keep: Sequence[str] = ()
    seed: Seed = 0
    confine: bool = True

    def execute(self) -> int:
        """Evaluate, and write the files."""
        from dxn.core.display import print_line
        from dxn.runs.evaluation.evaluate import evaluate_model
        from dxn.runs.saved.loading import load_predictor

        predictor = load_predictor(self.settings)
        folder = evaluate_model(self.settings, predictor)
        has_answers = predictor.task.is_supervised
        files = "metrics.json, predictions.csv, plots/" if has_answers else "metrics.json"
        print_line(f"written: {folder}: {files}")
        if has_answers:
            print_line(f"{folder / 'predictions.csv'} has the prediction of each row")
        return 0
