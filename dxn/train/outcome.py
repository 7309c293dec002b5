"""What a trained model is worth on a split, with every set of modalities, and what is written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dxn.data.samples import Opened, Samples
from dxn.errors import UserError
from dxn.explain.attention import heads_picture, recorded, shares, shares_picture, token_names
from dxn.explain.pictures import token_picture
from dxn.models import BottleneckFusion, LateFusion
from dxn.tokens import Tokens
from dxn.train import bundle, report
from dxn.train.evaluate import Predictions, figures, subsets, to_device


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


def draw_attention(predictor: bundle.Predictor, given: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """heads.png and shares.png of one sample; how much each modality counts in all."""
    model = predictor.model
    if isinstance(model.fusion, LateFusion | BottleneckFusion) and len(predictor.modalities) > 1:
        raise UserError("attend: with fusion=late or bottleneck the modalities never stand in one map; it needs early")
    samples = predictor.samples([given])
    with torch.inference_mode(), recorded(model.backbone) as maps:
        encoded, _ = model.encode(model.embed(to_device(samples.collate([samples[0, 0]]), predictor.device)))
    share = shares([one.float() for one in maps], encoded.mask, model.fusion.pool.kind)[0].cpu().numpy()
    real = encoded.mask[0].cpu()
    raws = {m: column[samples.rows[0]] for m, column in samples.opened.raws.items()}
    names = token_names(encoded, _pieces(predictor, raws.get("text")))
    folder.mkdir(parents=True, exist_ok=True)
    kept = [one[:, :, real][..., real] for one in maps]
    own = [name for name, is_real in zip(names, real.tolist(), strict=True) if is_real]
    counts = {span.modality: int(real[span.start : span.stop].sum()) for span in encoded.spans}
    heads_picture(kept, own, folder / "heads.png", parts={name: count for name, count in counts.items() if count})
    shown = {name: raw for name, raw in raws.items() if raw is not None}
    if "audio" in shown:
        shown["audio"] = shown["audio"], predictor.prepares["audio"].sample_rate
    shares_picture(shown, encoded, share, folder / "shares.png")
    return {span.modality: float(share[span.start : span.stop].sum()) for span in encoded.spans}


def _pieces(predictor: bundle.Predictor, text: Any) -> list[str]:
    if text is None:
        return []
    prepare = predictor.prepares["text"]
    ids = prepare(text)["ids"].tolist()
    return [prepare.tokenizer.decode([i], skip_special_tokens=False).strip() or "·" for i in ids]


def by_split(split: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Keys as report.write_metrics wants them: test, test/image, test/text+image ..."""
    return {split if shown == "all" else f"{split}/{shown}": found for shown, found in results.items()}
