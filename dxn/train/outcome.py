"""What a trained model is worth on a split, with every set of modalities, and what is written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dxn.data.samples import Opened, Samples
from dxn.data.stream import samples_of
from dxn.errors import UserError
from dxn.explain.alignment import looks_pictures
from dxn.explain.attention import (
    heads_picture,
    recorded,
    rollout,
    shares,
    shares_picture,
    token_names,
    word_pictures,
)
from dxn.explain.page import write_page
from dxn.explain.pictures import token_picture
from dxn.models import Backbone, BottleneckFusion, Decoder, LateFusion, RecurrentDecoder
from dxn.models.decoder import remember
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
        samples = samples_of(predictor.target)(opened, predictor.prepares, target=predictor.target, only=subset)
        if len(samples):
            name = "all" if subset == everything else "+".join(subset)
            found[name] = samples, predictor.run(samples, batch_size=batch_size)
            results[name] = figures(found[name][1], samples, predictor.target)
    if not found:
        raise UserError(f"only: no row of {split} has any of {shown}")
    samples, predictions = found[list(found)[-1]]
    report.figures_table(results, predictor.target, f"{split}: {len(samples):,} rows")
    folder.mkdir(parents=True, exist_ok=True)
    report.draw(folder / "plots", predictions, samples, predictor.target, results)
    if predictor.target.kind in ("next", "masked"):
        return results  # nothing to answer row by row
    answers = [predictor.answer(p) for p in predictions.predicted]
    report.write_predictions(folder / "predictions.csv", predictions, samples, predictor.target, answers)
    raws = {m: column[samples.rows[0]] for m, column in opened.raws.items()}
    draw_tokens(predictor.prepares, raws, predictor.embedded(samples, 0), folder / "plots" / "tokens.png")
    return results


def draw_tokens(prepares: Mapping[str, Any], raws: Mapping[str, Any], tokens: Tokens, path: Path) -> None:
    """One sample's raw inputs, read already, with its tokens."""
    shown = {name: raw for name, raw in raws.items() if raw is not None and name in prepares}
    if "audio" in shown:
        shown["audio"] = shown["audio"], prepares["audio"].sample_rate
    token_picture(shown, tokens, path)


@dataclass(frozen=True)
class Answer:
    """What a model wrote of one sample: its text, its tokens' names (T,), and how much each read of each of the N
    columns, padding too: (T, N), the mean of all the decoder's blocks and heads."""

    text: str
    words: list[str]
    looks: Tensor  # (L, H, T, N): how much each word read of each column, by block and head

    @property
    def weights(self) -> Tensor:
        """(T, N): the mean; of a trained translator it aligns words better than any one block does."""
        return self.looks.mean((0, 1))


def draw_attention(
    predictor: bundle.Predictor, given: Mapping[str, Any], folder: Path
) -> tuple[dict[str, float], list[Path], list[str]]:
    """One sample's attention drawn; how much each modality counts in all, the files, and notes: the answer that was
    written, what was left out and why.

    heads.png and shares.png always; arcs.png where there is text, across.png where there is more beside it;
    attention.html to move through all of it. Of a model that writes also what each token of its answer read:
    alignment.png of text, time.png of a sound, cells.png of a picture. Only a model that writes may have an encoder
    without attention, and has these and the page alone then.
    """
    model = predictor.model
    writes, blind = model.head.kind == "text", _blind(predictor)
    if blind and not writes:
        raise UserError(f"attend: {blind}")
    if writes and not _looks(model.head.decoder):
        raise UserError("attend: this model's decoder has no attention, only the encoder's last state")
    samples = predictor.samples([given])
    with torch.inference_mode(), nullcontext([]) if blind else recorded(model.backbone) as maps:
        encoded, _ = model.encode(model.embed(to_device(samples.collate([samples[0, 0]]), predictor.device)))
    maps = [one.float() for one in maps]
    answer = answer_of(predictor, encoded) if writes else None
    share = _share(maps, encoded, answer, model.fusion.pool.kind).cpu().numpy()
    raws = {m: column[samples.rows[0]] for m, column in samples.opened.raws.items()}
    shown = {name: raw for name, raw in raws.items() if raw is not None}
    pieces = _pieces(predictor, raws.get("text"))
    if "audio" in shown:
        shown["audio"] = shown["audio"], predictor.prepares["audio"].sample_rate
    folder.mkdir(parents=True, exist_ok=True)
    names, drawn, notes = token_names(encoded, pieces), [], []
    if answer is not None:
        notes.append(f"answer: {answer.text}")
        drawn += looks_pictures(answer.weights.cpu().numpy(), answer.words, encoded, names, shown, folder)
    if blind:
        notes.append(f"no heads.png and no shares.png: {blind}")
    else:
        _draw_heads(maps, encoded, names, folder / "heads.png")
        shares_picture(shown, encoded, share, folder / "shares.png")
        written, left_out = word_pictures(maps, encoded, pieces, shown, folder)
        drawn += [folder / "heads.png", folder / "shares.png", *written]
        notes += left_out
    said = None if answer is None else (answer.words, answer.looks)
    notes += write_page(maps, encoded, names, shown, folder / "attention.html", said=said)
    totals: dict[str, float] = {}
    for span in encoded.spans:
        totals[span.modality] = totals.get(span.modality, 0.0) + float(share[span.start : span.stop].sum())
    return totals, [*drawn, folder / "attention.html"], notes


def _blind(predictor: bundle.Predictor) -> str:
    """Why there is no map of the encoder's attention, where there is none."""
    model = predictor.model
    if not isinstance(model.backbone, Backbone):
        return "a recurrent encoder has no attention"
    if not len(model.backbone.blocks):
        return "an encoder without blocks has no attention"
    if isinstance(model.fusion, LateFusion | BottleneckFusion) and len(predictor.modalities) > 1:
        return "with fusion=late or bottleneck the modalities never stand in one map; it needs early"
    return ""


def _looks(decoder: Decoder | RecurrentDecoder) -> bool:
    """Whether it looks at single columns of what it reads."""
    return decoder.look is not None if isinstance(decoder, RecurrentDecoder) else len(decoder.backbone.blocks) > 0


@torch.inference_mode()
def answer_of(predictor: bundle.Predictor, encoded: Tokens) -> Answer:
    """Write it, then give it to the decoder as a whole: what was read before each token was said."""
    head, writing, memory = predictor.model.head, predictor.target.writing, remember(encoded)
    assert writing is not None and memory is not None
    said = head.write(encoded, begin=writing.begin, end=writing.end)[0].ids
    ids = torch.tensor([[writing.begin, *said]], device=encoded.x.device)
    looks = head.decoder.looks(ids, torch.ones_like(ids, dtype=torch.bool), memory)[0].float()
    words = writing.pieces([*said, writing.end])
    if len(said) == head.decoder.max_len - 1:  # cut: it came to no end
        words, looks = words[:-1], looks[:, :, :-1]
    return Answer(writing.decode(said), words, looks)


def _share(maps: Sequence[Tensor], encoded: Tokens, answer: Answer | None, pool: str) -> Tensor:
    """(N,): how much each column counts in what the head gets: in one vector, or in the mean of what was read."""
    if answer is None:
        return shares(maps, encoded.mask, pool)[0]
    read = answer.weights.mean(0)
    return read @ rollout(maps)[0] if maps else read


def _draw_heads(maps: Sequence[Tensor], encoded: Tokens, names: Sequence[str], path: Path) -> None:
    real = encoded.mask[0].cpu()
    own = [name for name, is_real in zip(names, real.tolist(), strict=True) if is_real]
    counts = {span.modality: int(real[span.start : span.stop].sum()) for span in encoded.spans}
    parts = {name: count for name, count in counts.items() if count}
    heads_picture([one[:, :, real][..., real] for one in maps], own, path, parts=parts)


def _pieces(predictor: bundle.Predictor, text: Any) -> list[str]:
    if text is None:
        return []
    prepare = predictor.prepares["text"]
    ids = prepare(text)["ids"].tolist()
    return [prepare.tokenizer.decode([i], skip_special_tokens=False).strip() or "·" for i in ids]


def split_for_figures(splits: Mapping[str, Sized]) -> str:
    """The split whose figures count unless one is named: test, or where it has no rows validation, or else train."""
    return next(name for name in ("test", "validation", "train") if splits.get(name))


def by_split(split: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Keys as report.write_metrics wants them: test, test/image, test/text+image ..."""
    return {split if shown == "all" else f"{split}/{shown}": found for shown, found in results.items()}
