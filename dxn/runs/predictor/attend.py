"""The attention of a model on one sample, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dxn import viz
from dxn.core.tokens import Tokens
from dxn.runs.predictor.attention import attention_on
from dxn.runs.predictor.predictor import Predictor, Values


@dataclass(frozen=True)
class AttentionReport:
    """The results of `draw_attention`.

    Args:
        page: The page that was written.
        shares: Share of the attention of each input, and of the class tokens. The sum is 1.
        notes: Lines to print: the answer, and which attention is not drawn and why.
    """

    page: Path
    shares: dict[str, float]
    notes: list[str] = field(default_factory=list)


@torch.inference_mode()
def draw_attention(
    predictor: Predictor, sample: Values, folder: Path, *, model_name: str = ""
) -> AttentionReport:
    """Write attention.html, the attention of a model on one sample.

    The page shows the attention of each head of the encoder. For a model that generates text, it
    shows the cross-attention of each generated token, too: on each input, and as an alignment. If
    the encoder has no attention, it shows only that of the generated tokens.

    Args:
        predictor: The model.
        sample: The inputs of the sample.
        folder: Folder to write to.
        model_name: Name of the model in the page, such as the path of its run folder.

    Raises:
        UserError: If neither the encoder nor a decoder has attention.
    """
    samples = predictor.samples([sample])
    attention = attention_on(predictor, predictor.batch(samples, 0), list(sample))
    written = attention.written
    if written is not None:
        answer: Mapping[str, Any] | None = {"prediction": written.text}
    else:
        answer = predictor.predict(**sample) if predictor.task.is_supervised else None
    shares = attention.shares.cpu().numpy()
    raws = {name: column[samples.rows[0]] for name, column in samples.opened.raws.items()}
    view = viz.sample.SampleView.of(attention.encoded, predictor.adapters, raws, sample)
    line = "" if answer is None else viz.sample.answer_line(answer)
    notes: list[str] = []
    if answer is not None:
        notes.append(f"answer: {line}")
    if attention.limits:
        notes.append(f"note: {attention.limits}")
    if attention.obstacle:
        notes.append(f"no attention of the encoder: {attention.obstacle}")
    heading = {
        "answer": line,
        "probabilities": [] if answer is None else viz.sample.listed_probabilities(answer),
        "sample": viz.sample.describe_sample(sample),
        "model": model_name,
        "note": attention.limits,
    }
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "attention.html"
    weights_of_words = None if written is None else (written.words, written.weights)
    notes += viz.page.attention_page(
        view, shares, attention.maps, page, heading=heading, written=weights_of_words
    )
    return AttentionReport(page, _shares_by_input(attention.encoded, shares), notes)


def _shares_by_input(encoded: Tokens, shares: Any) -> dict[str, float]:
    # A sum, because late fusion has one span of class tokens per input, all of the same name.
    totals: dict[str, float] = {}
    for span in encoded.spans:
        share = float(shares[span.start : span.stop].sum())
        totals[span.name] = totals.get(span.name, 0.0) + share
    return totals
