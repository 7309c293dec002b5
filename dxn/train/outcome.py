"""What a trained model is worth on a split, with every set of modalities, and what is written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.data.samples import Opened, Samples
from dxn.errors import UserError
from dxn.explain.pictures import token_picture
from dxn.tokens import Tokens
from dxn.train import bundle, report
from dxn.train.evaluate import Predictions, figures, subsets


def evaluate_subsets(
    predictor: bundle.Predictor,
    opened: Opened,
    split: str,
    folder: Path,
    *,
    batch_size: int,
    shown: Sequence[tuple[str, ...]] | None = None,
) -> dict[str, dict[str, float]]:
    """Figures with every set of modalities ("all" last), printed; predictions.csv and plots/ for all of them."""
    everything = tuple(m for m in predictor.modalities if m in opened.raws)
    results: dict[str, dict[str, float]] = {}
    found: dict[str, tuple[Samples, Predictions]] = {}
    for subset in shown or subsets(everything) or [everything]:
        if unknown := set(subset) - set(everything):
            raise UserError(f"only: the data and the model share {', '.join(everything)}, got {', '.join(unknown)}")
        samples = Samples(opened, predictor.prepares, target=predictor.target, only=subset)
        if len(samples):
            name = "all" if subset == everything else "+".join(subset)
            found[name] = samples, predictor.run(samples, batch_size=batch_size)
            results[name] = figures(found[name][1], samples, predictor.target)
    if not found:
        raise UserError(f"only: no row of {split} has any of {shown}")
    samples, predictions = found[list(found)[-1]]
    answers = [predictor.answer(p) for p in predictions.predicted]
    folder.mkdir(parents=True, exist_ok=True)
    report.write_predictions(folder / "predictions.csv", predictions, samples, predictor.target, answers)
    report.draw(folder / "plots", predictions, samples, predictor.target, results)
    raws = {m: column[samples.rows[0]] for m, column in opened.raws.items()}
    draw_tokens(predictor.prepares, raws, predictor.embedded(samples, 0), folder / "plots" / "tokens.png")
    report.figures_table(results, predictor.target, f"{split}: {len(samples):,} rows")
    return results


def draw_tokens(prepares: Mapping[str, Any], raws: Mapping[str, Any], tokens: Tokens, path: Path) -> None:
    """One sample's raw inputs, read already, with its tokens."""
    shown = {name: raw for name, raw in raws.items() if raw is not None and name in prepares}
    if "audio" in shown:
        shown["audio"] = shown["audio"], prepares["audio"].sample_rate
    token_picture(shown, tokens, path)


def by_split(split: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Keys as report.write_metrics wants them: test, test/image, test/text+image ..."""
    return {split if shown == "all" else f"{split}/{shown}": found for shown, found in results.items()}
