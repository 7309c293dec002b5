"""Attention maps of the encoder, and cross-attention of a decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dxn import viz
from dxn.core.files import write_text
from dxn.core.tokens import Tokens
from dxn.core.untrusted import load_json
from dxn.runs.predictor.attention import attention_on
from dxn.runs.predictor.predictor import Predictor, Values

LIST = ".attend.json"  # names of the pictures of the last call; packages can add drawers


@dataclass(frozen=True)
class AttentionReport:
    """The results of `draw_attention`.

    Args:
        shares: Share of the attention of each input, and of the class tokens. The sum is 1.
        files: The files that were written.
        notes: Lines to print: the answer, and which drawings were left out and why.
    """

    shares: dict[str, float]
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@torch.inference_mode()
def draw_attention(
    predictor: Predictor, sample: Values, folder: Path, *, model_name: str = ""
) -> AttentionReport:
    """Draw the attention of one sample, and remove the pictures of an earlier call.

    heads.png and shares.png show the attention of the encoder, arcs.png and across.png that of the
    words of a text, and attention.html the attention of every block. For a model that generates
    text, one more picture per input shows the cross-attention of each generated token. If the
    encoder has no attention, only these pictures and attention.html are drawn.

    Args:
        predictor: The model.
        sample: The inputs of the sample.
        folder: Folder to write to.
        model_name: Name of the model in the titles, such as the path of its run folder.

    Raises:
        UserError: If neither the encoder nor a decoder has attention.
    """
    samples = predictor.samples([sample])
    found = attention_on(predictor, predictor.batch(samples, 0), list(sample))
    written = found.written
    if written is not None:
        answer: Mapping[str, Any] | None = {"prediction": written.text}
    else:
        answer = predictor.predict(**sample) if predictor.task.is_supervised else None
    shares = found.shares.cpu().numpy()
    raws = {name: column[samples.rows[0]] for name, column in samples.opened.raws.items()}
    view = viz.sample.SampleView.of(found.encoded, predictor.adapters, raws, sample)
    folder.mkdir(parents=True, exist_ok=True)
    remove_pictures(folder)
    result = AttentionReport(_shares_by_input(found.encoded, shares))
    described = viz.sample.describe_sample(sample)
    line = "" if answer is None else viz.sample.answer_line(answer)
    about = "; ".join(
        filter(None, [line and f"answer: {line}", described, model_name and f"model: {model_name}"])
    )
    if answer is not None:
        result.notes.append(f"answer: {line}")
    if found.limits:
        result.notes.append(f"note: {found.limits}")
    if written is not None:
        weights = written.mean.cpu().numpy()
        result.files.extend(
            viz.attention.reading_pictures(view, weights, written.words, folder, about=about)
        )
    if found.obstacle:
        result.notes.append(f"no heads.png and no shares.png: {found.obstacle}")
    else:
        viz.attention.heads_picture(view, found.maps, folder / "heads.png", about=about)
        viz.attention.shares_picture(view, shares, folder / "shares.png", about=about)
        files, notes = viz.attention.word_pictures(view, found.maps, folder, about=about)
        result.files.extend([folder / "heads.png", folder / "shares.png", *files])
        result.notes.extend(notes)
    list_pictures(folder, result.files)
    heading = {
        "answer": line,
        "probabilities": [] if answer is None else viz.sample.listed_probabilities(answer),
        "sample": described,
        "model": model_name,
        "note": found.limits,
    }
    page = folder / "attention.html"
    weights_of_words = None if written is None else (written.words, written.weights)
    notes = viz.page.attention_page(
        view, shares, found.maps, page, heading=heading, written=weights_of_words
    )
    result.notes.extend(notes)
    result.files.append(page)
    return result


def remove_pictures(folder: Path) -> None:
    """Remove the pictures of an earlier call from a folder, and no others.

    Raises:
        UserError: If the list of these pictures is damaged.
    """
    path = folder / LIST
    names = load_json(path) if path.exists() else []
    for name in names if isinstance(names, list) else []:
        # The folder may come from an untrusted source, so a name may not lead out of it.
        if isinstance(name, str) and name.endswith(".png") and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def list_pictures(folder: Path, files: Sequence[Path]) -> None:
    """Write the names of the pictures of this call for `remove_pictures`."""
    write_text(folder / LIST, json.dumps([file.name for file in files]))


def _shares_by_input(encoded: Tokens, shares: Any) -> dict[str, float]:
    # A sum, because late fusion has one span of class tokens per input, all of the same name.
    totals: dict[str, float] = {}
    for span in encoded.spans:
        share = float(shares[span.start : span.stop].sum())
        totals[span.name] = totals.get(span.name, 0.0) + share
    return totals
