"""The command `dxn attend`: attention maps of the encoder, and cross-attention of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn import viz
from dxn.core.tokens import Tokens
from dxn.runs.evaluation.printing import print_line
from dxn.runs.predictor.attention import attention_on
from dxn.runs.predictor.drawing import describe_sample, shown_inputs
from dxn.runs.predictor.predictor import Predictor, Sample
from dxn.runs.predictor.samples import read_sample
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings
from dxn.viz.answers import answer_line, listed_probabilities
from dxn.viz.attention import token_names
from dxn.viz.drawers import Shown
from dxn.viz.written import list_pictures, remove_pictures


def run(settings: Settings) -> int:
    """Draw the attention of a model on one sample."""
    values = settings.values
    predictor = load_predictor(settings)
    sample = read_sample(values["input"], predictor.preprocessors, predictor.columns)
    folder = Path(values["output"])
    name = str(values["run"] or values["weights"]["source"])
    result = draw_attention(predictor, sample, folder, model_name=name)
    for name, share in result.shares.items():
        print_line(f"{name}: {share:.1%} of the attention")
    for note in result.notes:
        print_line(note)
    print_line(f"written: {folder}: {', '.join(path.name for path in result.files)}")
    print_line(f"open {result.files[-1]} in a browser")
    return 0


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
    predictor: Predictor, sample: Sample, folder: Path, *, model_name: str = ""
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
    maps, encoded, written = found.maps, found.encoded, found.written
    if written is not None:
        answer: Mapping[str, Any] | None = {"prediction": written.text}
    else:
        answer = predictor.predict(**sample) if predictor.task.answers else None
    shares = found.shares.cpu().numpy()
    raws = {name: column[samples.rows[0]] for name, column in samples.opened.raws.items()}
    shown = shown_inputs(predictor.adapters, raws, sources=sample)
    names = token_names(encoded, shown)
    folder.mkdir(parents=True, exist_ok=True)
    remove_pictures(folder)
    result = AttentionReport(_shares_by_input(encoded, shares))
    described = describe_sample(sample)
    about = described
    if answer is not None:
        result.notes.append(f"answer: {answer_line(answer)}")
        about = f"answer: {answer_line(answer)}; {described}"
    about = f"{about}; model: {model_name}" if model_name else about
    if found.limits:
        result.notes.append(f"note: {found.limits}")
    if written is not None:
        weights = written.mean.cpu().numpy()
        result.files.extend(
            viz.alignment.cross_attention_pictures(
                weights, written.words, encoded, names, shown, folder, about=about
            )
        )
    if found.obstacle:
        result.notes.append(f"no heads.png and no shares.png: {found.obstacle}")
    else:
        _draw_encoder(maps, encoded, shares, names, shown, folder, about, result)
    list_pictures(folder, result.files)
    page = folder / "attention.html"
    notes = viz.page.write_page(
        maps,
        encoded,
        names,
        shown,
        page,
        shares=shares,
        written=None if written is None else (written.words, written.weights),
        heading=viz.page.Heading(
            answer="" if answer is None else answer_line(answer),
            probabilities=[] if answer is None else listed_probabilities(answer),
            sample=described,
            model=model_name,
            note=found.limits,
        ),
    )
    result.notes.extend(notes)
    result.files.append(page)
    return result


def _draw_encoder(
    maps: Sequence[Tensor],
    encoded: Tokens,
    shares: np.ndarray,
    names: Sequence[str],
    shown: Mapping[str, Shown],
    folder: Path,
    about: str,
    result: AttentionReport,
) -> None:
    """Draw the attention of the encoder, and add the files and notes to the result."""
    pictures = viz.attention_pictures
    _draw_heads(maps, encoded, names, folder / "heads.png", about)
    pictures.shares_picture(shown, encoded, shares, folder / "shares.png", about=about)
    files, notes = pictures.word_pictures(maps, encoded, names, shown, folder, about=about)
    result.files.extend([folder / "heads.png", folder / "shares.png", *files])
    result.notes.extend(notes)


def _shares_by_input(encoded: Tokens, shares: Any) -> dict[str, float]:
    # A sum, because late fusion has one span of class tokens per input, all of the same name.
    totals: dict[str, float] = {}
    for span in encoded.spans:
        share = float(shares[span.start : span.stop].sum())
        totals[span.name] = totals.get(span.name, 0.0) + share
    return totals


def _draw_heads(
    maps: Sequence[Tensor], encoded: Tokens, names: Sequence[str], path: Path, about: str
) -> None:
    """Draw heads.png without the columns of padding."""
    real = encoded.mask[0].cpu()
    real_names = [name for name, is_real in zip(names, real.tolist(), strict=True) if is_real]
    counts: dict[str, int] = {}
    for span in encoded.spans:
        count = int(real[span.start : span.stop].sum())
        if count:
            counts[span.name] = counts.get(span.name, 0) + count
    is_real_column = encoded.mask[0]
    real_maps = [block[:, :, is_real_column][..., is_real_column] for block in maps]
    viz.attention_pictures.heads_picture(real_maps, real_names, path, parts=counts, about=about)
