"""The command `dxn evaluate`."""

from __future__ import annotations

from dxn.runs.evaluation.evaluate import evaluate_model
from dxn.runs.evaluation.printing import print_line
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Compute the metrics of a trained model, with all inputs and with subsets of them."""
    predictor = load_predictor(settings)
    folder = evaluate_model(settings, predictor)
    files = "metrics.json, predictions.csv, plots/" if predictor.task.answers else "metrics.json"
    print_line(f"written: {folder}: {files}")
    if predictor.task.answers:
        print_line(f"{folder / 'predictions.csv'} has the prediction of each row")
    return 0
