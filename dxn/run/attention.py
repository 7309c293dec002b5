"""The drawings of `dxn attend`: attention maps of the encoder, and cross-attention of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn import explain
from dxn.errors import UserError
from dxn.explain.answers import answer_line, listed_probabilities
from dxn.explain.attention import recorded, rollout, token_names, token_shares
from dxn.explain.drawers import Shown, is_file
from dxn.explain.written import remove_pictures
from dxn.models import Backbone, EarlyFusion, Memory, Model, SeparateBackbones
from dxn.run.predictor import Predictor, Sample
from dxn.tasks import Writes
from dxn.tokens import Tokens

MAX_TEXT = 60  # characters of a text in the description of a sample


@dataclass(frozen=True)
class Answer:
    """The text that a model generated for one sample, with its cross-attention weights.

    Args:
        text: The generated text.
        words: The T tokens of the text, as strings.
        weights: (L, H, T, N). Cross-attention weight of each generated token on each column of the
            encoder, for each block and head of the decoder.
    """

    text: str
    words: list[str]
    weights: Tensor

    @property
    def mean(self) -> Tensor:
        """(T, N). Mean of the weights over blocks and heads."""
        # The mean aligns words more reliably than the weights of any single block.
        return self.weights.mean((0, 1))


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
    model = predictor.model
    generates_text = isinstance(predictor.task, Writes)
    backbone = backbone_of(model, sample)
    obstacle = obstacle_of(predictor, backbone, sample)
    if obstacle and not generates_text:
        raise UserError(f"attend: {obstacle}")
    samples = predictor.samples([sample])
    # `recorded` needs the blocks of a transformer: without them, the list of maps stays empty.
    with nullcontext([]) if obstacle else recorded(backbone) as maps:
        encoded, _ = model.encode(model.embed(predictor.batch(samples, 0)))
    # The drawings use NumPy, which has no bfloat16.
    maps = [block.float() for block in maps]
    written = answer_of(predictor, encoded) if generates_text else None
    if written is not None:
        answer: Mapping[str, Any] | None = {"prediction": written.text}
    else:
        answer = predictor.predict(**sample) if predictor.task.answers else None
    shares = shares_of(maps, encoded, written, model.fusion.pool.kind).cpu().numpy()
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
    if written is not None:
        weights = written.mean.cpu().numpy()
        result.files.extend(
            explain.alignment.cross_attention_pictures(
                weights, written.words, encoded, names, shown, folder, about=about
            )
        )
    if obstacle:
        result.notes.append(f"no heads.png and no shares.png: {obstacle}")
    else:
        _draw_encoder(maps, encoded, shares, names, shown, folder, about, result)
    page = folder / "attention.html"
    notes = explain.page.write_page(
        maps,
        encoded,
        names,
        shown,
        page,
        shares=shares,
        written=None if written is None else (written.words, written.weights),
        heading=explain.page.Heading(
            answer="" if answer is None else answer_line(answer),
            probabilities=[] if answer is None else listed_probabilities(answer),
            sample=described,
            model=model_name,
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
    pictures = explain.attention_pictures
    _draw_heads(maps, encoded, names, folder / "heads.png", about)
    pictures.shares_picture(shown, encoded, shares, folder / "shares.png", about=about)
    files, notes = pictures.word_pictures(maps, encoded, names, shown, folder, about=about)
    result.files.extend([folder / "heads.png", folder / "shares.png", *files])
    result.notes.extend(notes)


def answer_of(predictor: Predictor, encoded: Tokens) -> Answer:
    """Generate the text, and compute the cross-attention weights of each of its tokens.

    Args:
        predictor: A model whose task generates text.
        encoded: The encoded sample (batch size 1).

    Raises:
        UserError: If the decoder has no attention.
    """
    # Any: the protocol Writes does not have `search` and `tokenizer`, which this task also has.
    task: Any = predictor.task
    head = predictor.model.head
    memory = Memory.from_tokens(encoded)
    hypothesis = task.search(head, memory)[0]
    begin, end = task.tokenizer.begin, task.tokenizer.end
    # Decoding uses a key-value cache and keeps no weights. One pass over the finished text, with
    # BOS in front, computes them for all tokens at once: position t predicts token t.
    ids = torch.tensor([[begin, *hypothesis.ids]], device=encoded.x.device)
    try:
        mask = torch.ones_like(ids, dtype=torch.bool)
        weights = head.decoder.cross_attention_weights(ids, mask, memory)[0].float()
    except ValueError as error:
        raise UserError(f"attend: {error}") from error
    words = task.tokenizer.pieces([*hypothesis.ids, end])
    # A text of max_len - 1 tokens (BOS takes one position) was cut off before EOS was generated.
    if len(hypothesis.ids) == head.decoder.max_len - 1:
        words, weights = words[:-1], weights[:, :, :-1]
    return Answer(task.tokenizer.decode(hypothesis.ids), words, weights)


def draw_tokens(
    adapters: Mapping[str, Any],
    raws: Mapping[str, Any],
    tokens: Tokens,
    path: Path,
    *,
    about: str = "",
    sources: Mapping[str, Any] | None = None,
) -> None:
    """Draw the raw inputs of one sample with their tokens, and the D×N matrix.

    Args:
        adapters: Adapter of each input, by input name.
        raws: Raw value of each input, by input name.
        tokens: Tokens of the sample.
        path: File to write.
        about: Name of the sample or the model, for the title.
        sources: What the inputs were read from, by input name.
    """
    explain.pictures.token_picture(
        shown_inputs(adapters, raws, sources=sources), tokens, path, about=about
    )


def shown_inputs(
    adapters: Mapping[str, Any],
    raws: Mapping[str, Any],
    *,
    sources: Mapping[str, Any] | None = None,
) -> dict[str, Shown]:
    """Return the raw inputs of one sample for the drawers, without those that are missing."""
    shown: dict[str, Shown] = {}
    for name, raw in raws.items():
        if raw is not None and name in adapters:
            prepare = adapters[name].prepare
            source = (sources or {}).get(name)
            shown[name] = Shown(prepare.modality, raw, prepare, adapters[name], source, name)
    return shown


def describe_sample(sample: Sample) -> str:
    """Describe a sample in one line: its texts, and the names of its files."""
    parts: list[str] = []
    for name, value in sample.items():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | Path) and is_file(text):
            parts.append(f"{name}: {Path(text).name}")
        elif isinstance(text, str):
            short = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
            parts.append(f"{name}: “{short}”")
    return "; ".join(parts)


def backbone_of(model: Model, sample: Sample) -> Any:
    """Return the backbone that encodes a sample; that of its first input if there are several."""
    if not isinstance(model.backbone, SeparateBackbones):
        return model.backbone
    return model.backbone.of(next((name for name in sample), next(iter(model.inputs))))


def obstacle_of(predictor: Predictor, backbone: Any, sample: Sample) -> str:
    """Return why the encoder's attention cannot be drawn, or "" if it can be drawn."""
    model = predictor.model
    # Not only Recurrent: any backbone of a user's package may lack `blocks` with attention.
    if not isinstance(backbone, Backbone):
        return "a recurrent encoder has no attention"
    if not len(backbone.blocks):
        return "an encoder without blocks has no attention"
    if model.separates_inputs and len(sample) > 1:
        names = " or ".join(f"input.{name}=..." for name in sample)
        return f"this model encodes each input alone, so set only one of them: {names}"
    # Other fusions encode the inputs separately, so no map contains the columns of two inputs.
    if not isinstance(model.fusion, EarlyFusion) and len(predictor.inputs) > 1:
        return "the inputs are in one attention map only with fusion=early"
    return ""


def shares_of(maps: Sequence[Tensor], encoded: Tokens, written: Answer | None, pool: str) -> Tensor:
    """Return the share (N,) of each column in the pooled vector or in the generated text."""
    if written is None:
        return token_shares(maps, encoded.mask, pool)[0]
    # The decoder attends to encoded columns, which are mixtures of the input columns. The rollout
    # of the encoder traces its attention back to the input columns.
    attended = written.mean.mean(0)
    return attended @ rollout(maps)[0] if maps else attended


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
    explain.attention_pictures.heads_picture(real_maps, real_names, path, parts=counts, about=about)
