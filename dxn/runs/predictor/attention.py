"""The attention of a model on one sample, and the page of `dxn attend` that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dxn import viz
from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.core.untrusted import shortened
from dxn.core.windows import encode_input
from dxn.models.backbone import Backbone
from dxn.models.decoding.decoder import Memory
from dxn.models.fusion import EarlyFusion
from dxn.models.model import MultimodalModel
from dxn.runs.predictor.predictor import Predictor, Values
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.viz.rollout import recorded, rollout, token_shares

# Attention weights of a sample that a web page may need, 4 bytes each.
MAX_WEIGHTS = 50_000_000
PAGE = "attention.html"  # in the folder of `dxn attend`


@dataclass(frozen=True)
class WrittenText:
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
class Attention:
    """The attention of a model on one sample.

    Args:
        maps: One tensor (1, H, N, N) per block of the encoder. Empty with an obstacle.
        encoded: The encoded sample (1, N, D).
        written: The text that the model writes. None: it writes none.
        shares: (N,). Share of each column in the pooled vector or in the text.
        obstacle: Why there are no maps. "": there are.
        limits: What also decides about the answer, and has no attention. "": nothing.
    """

    maps: list[Tensor]
    encoded: Tokens
    written: WrittenText | None
    shares: Tensor
    obstacle: str = ""
    limits: str = ""


@torch.inference_mode()
def attention_on(
    predictor: Predictor,
    batch: Mapping[str, Any],
    names: Sequence[str],
    *,
    max_weights: int | None = None,
    encoder: str | None = None,
) -> Attention:
    """Compute the attention of a model on one sample.

    Args:
        predictor: The model.
        batch: A batch with one sample, on the device of the model.
        names: Names of the inputs that the sample has.
        max_weights: Largest number of attention weights that are computed, which take 4 bytes each.
            Default: no limit.
        encoder: Name of an input with an encoder of its own, inside which the attention is
            computed. Default: the attention of the backbone that all inputs share.

    Raises:
        UserError: If neither the encoder nor a decoder has attention, or the sample is too long, or
            the input has no encoder.
    """
    if encoder is not None:
        return _inside_encoder(predictor, batch, encoder, max_weights)
    model = predictor.model
    writes = predictor.task.writes
    backbone = _backbone_of(model, names)
    obstacle = obstacle_of(model, names)
    if obstacle and not writes:
        raise UserError(f"attention: {obstacle}")
    embedded = model.embed(dict(batch))
    num_tokens = sum(tokens.x.shape[1] for tokens in embedded)
    if max_weights is not None and not obstacle:
        _check_size(backbone, num_tokens, max_weights)
    # `recorded` needs the blocks of a transformer: without them, the list of maps stays empty.
    with nullcontext([]) if obstacle else recorded(backbone) as maps:
        encoded, _ = model.encode(embedded)
    # The drawings use NumPy, which has no bfloat16.
    maps = joined_windows([block.float() for block in maps], len(maps) and len(backbone.blocks))
    written = answer_of(predictor, encoded) if writes else None
    shares = _shares_of(maps, encoded, written, model.fusion.pool.kind)
    return Attention(maps, encoded, written, shares, obstacle, limits_of(predictor))


def encoders_of(predictor: Predictor) -> list[str]:
    """Return the names of the inputs that have an encoder of their own."""
    adapters = predictor.adapters.items()
    return [name for name, adapter in adapters if isinstance(adapter, EncodedAdapter)]


def _inside_encoder(
    predictor: Predictor, batch: Mapping[str, Any], name: str, max_weights: int | None
) -> Attention:
    """Compute the attention inside the encoder of an input, on one sample."""
    names = encoders_of(predictor)
    if name not in names:
        has = f"those of {', '.join(names)}" if names else "none"
        raise UserError(
            f"encoder: must be an input with an encoder of its own, got {shortened(name)}; "
            f"this model has {has}"
        )
    batch = predictor.model.first_part(batch)
    if name not in batch:
        raise UserError(f"encoder: the sample has no {name}; add it")
    adapter = predictor.adapters[name]
    if not isinstance(adapter.backbone, Backbone) or not len(adapter.backbone.blocks):
        raise UserError(f"encoder: the encoder of {name} has no attention")
    embedded = adapter.adapter(batch[name])
    if max_weights is not None:
        _check_size(adapter.backbone, embedded.x.shape[1], max_weights)
    with recorded(adapter.backbone) as maps:
        encoded, _ = encode_input(embedded, adapter.adapter, adapter.fusion, adapter.backbone)
    # The class tokens and registers before the input keep their name.
    *leading, of_input = encoded.spans
    encoded = replace(encoded, spans=(*leading, replace(of_input, name=name)))
    maps = joined_windows([block.float() for block in maps], len(adapter.backbone.blocks))
    shares = token_shares(maps, encoded.mask, adapter.fusion.pool.kind)[0]
    limits = f"the attention is that inside the encoder of {name}, not that of the answer"
    return Attention(maps, encoded, None, shares, limits=limits)


def joined_windows(maps: Sequence[Tensor], depth: int) -> list[Tensor]:
    """Return one map (1, H, N, N) per block of the encoder, also if it encodes windows alone.

    Args:
        maps: Maps (1, H, n, n) of all blocks of the first window, then those of the next one. A
            window of padding has no sample.
        depth: Number of blocks.
    """
    if len(maps) == depth:
        return list(maps)
    joined: list[Tensor] = []
    for i in range(depth):
        windows = [m[0] if len(m) else m.new_zeros(m.shape[1:]) for m in maps[i::depth]]
        heads = [torch.block_diag(*parts) for parts in zip(*windows, strict=True)]
        joined.append(torch.stack(heads)[None])
    return joined


def limits_of(predictor: Predictor) -> str:
    """Return what also decides about the answers, and has no attention, as a sentence or ""."""
    if predictor.num_members > 1:
        return (
            f"the answer is the mean of {predictor.num_members} models, and the attention is that "
            "of the first one"
        )
    network = predictor.network
    if network is predictor.model:
        return ""
    from dxn.stacking.stacked import Stacked

    if not isinstance(network, Stacked) or not network.formula():
        return ""
    formula = network.formula()
    # A factor that is printed as 0.00 has no visible effect.
    if network.mix[0] < 0.005:
        return f"the answer is {formula}, so the attention of the transformer does not explain it"
    return f"the answer is {formula}, and the attention is that of the transformer alone"


def answer_of(predictor: Predictor, encoded: Tokens) -> WrittenText:
    """Generate the text, and compute the cross-attention weights of each of its tokens.

    Args:
        predictor: A model whose task generates text.
        encoded: The encoded sample (batch size 1).

    Raises:
        UserError: If the decoder has no attention.
    """
    # Any: `search` and `tokenizer` are those of `dxn.tasks.Generate`.
    task: Any = predictor.task
    head = predictor.model.head
    memory = Memory.from_tokens(encoded)
    hypothesis = task.search(head, memory)[0]
    tokenizer = task.tokenizer
    first = head.prompt(memory, tokenizer.begin_ids, tokenizer.language_choice)[0].tolist()
    # Decoding uses a key-value cache and keeps no weights. One pass over the finished text, with
    # BOS in front, computes them for all tokens at once: position t predicts token t.
    ids = torch.tensor([[*first, *hypothesis.ids]], device=encoded.x.device)
    try:
        mask = torch.ones_like(ids, dtype=torch.bool)
        weights = head.decoder.cross_attention_weights(ids, mask, memory)[0].float()
        weights = weights[:, :, len(first) - 1 :]
    except ValueError as error:
        raise UserError(f"attention: {error}") from error
    words = tokenizer.text_tokenizer.pieces([*hypothesis.ids, tokenizer.end_ids[0]])
    # A text that fills all positions was cut off before EOS was generated.
    if len(hypothesis.ids) == head.decoder.max_len - len(first):
        words, weights = words[:-1], weights[:, :, :-1]
    return WrittenText(tokenizer.decode(hypothesis.ids), words, weights)


def _backbone_of(model: MultimodalModel, names: Sequence[str]) -> Any:
    """Return the backbone that encodes a sample; that of its first input if there are several."""
    from dxn.models.late_fusion import SeparateBackbones

    if not isinstance(model.backbone, SeparateBackbones):
        return model.backbone
    return model.backbone.of(next(iter(names), next(iter(model.inputs))))


def obstacle_of(model: MultimodalModel, names: Sequence[str]) -> str:
    """Return why the encoder's attention cannot be drawn, or "" if it can be drawn.

    Args:
        model: The model.
        names: Names of the inputs that the sample has.
    """
    backbone = _backbone_of(model, names)
    # Not only Recurrent: any backbone of a user's package may lack `blocks` with attention.
    if not isinstance(backbone, Backbone):
        return "a recurrent encoder has no attention"
    if not len(backbone.blocks):
        return "an encoder without blocks has no attention"
    if model.separates_inputs and len(names) > 1:
        options = " or ".join(f"input.{name}=..." for name in names)
        return f"this model encodes each input alone, so set only one of them: {options}"
    # Other fusions encode the inputs separately, so no map contains the columns of two inputs.
    if not isinstance(model.fusion, EarlyFusion) and len(model.inputs) > 1:
        return "the inputs are in one attention map only with fusion=early"
    return ""


def _shares_of(
    maps: Sequence[Tensor], encoded: Tokens, written: WrittenText | None, pool: str | Sequence[str]
) -> Tensor:
    """Return the share (N,) of each column in the pooled vector or in the generated text."""
    if written is None:
        return token_shares(maps, encoded.mask, pool)[0]
    # The decoder attends to encoded columns, which are mixtures of the input columns. The rollout
    # of the encoder traces its attention back to the input columns.
    attended = written.mean.mean(0)
    return attended @ rollout(maps)[0] if maps else attended


def _check_size(backbone: Any, num_tokens: int, max_weights: int) -> None:
    blocks = list(backbone.blocks)
    heads = getattr(blocks[0].attn, "num_heads", 1)
    if len(blocks) * heads * num_tokens**2 > max_weights:
        raise UserError(
            f"attention: {num_tokens:,} tokens are too many to draw their attention; take a "
            "shorter input, or use dxn attend"
        )


@torch.inference_mode()
def draw_attention(
    predictor: Predictor,
    sample: Values,
    folder: Path,
    *,
    model_name: str = "",
    encoder: str | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Write attention.html, the attention of a model on one sample.

    The page shows the attention of each head of the encoder. For a model that generates text, it
    shows the cross-attention of each generated token, too: on each input, and as an alignment. If
    the encoder has no attention, it shows only that of the generated tokens.

    Args:
        predictor: The model.
        sample: The inputs of the sample.
        folder: Folder to write to.
        model_name: Name of the model in the page, such as the path of its run folder.
        encoder: See `attention_on`.

    Returns:
        The share of the attention of each input, and of the class tokens, whose sum is 1, and lines
        to print: the answer, and which attention is not drawn and why.

    Raises:
        UserError: If neither the encoder nor a decoder has attention.
    """
    samples = predictor.samples([sample])
    batch = predictor.batch(samples, 0)
    attention = attention_on(predictor, batch, list(sample), encoder=encoder)
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
    others = [] if encoder else encoders_of(predictor)
    if others:
        options = " or ".join(f"encoder={name}" for name in others)
        notes.append(f"note: the attention inside the encoder of an input: {options}")
    if attention.obstacle:
        notes.append(f"no attention of the encoder: {attention.obstacle}")
    heading = {
        "answer": line,
        "probabilities": [] if answer is None else viz.sample.listed_probabilities(answer),
        "sample": viz.sample.describe_sample(sample),
        "model": model_name,
        "note": attention.limits,
        "reader": encoder and f"the encoder of {encoder}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights_of_words = None if written is None else (written.words, written.weights)
    notes += viz.page.attention_page(
        view, shares, attention.maps, folder / PAGE, heading=heading, written=weights_of_words
    )
    # A sum, because late fusion has one span of class tokens per input, all of the same name.
    shares_by_input: dict[str, float] = {}
    for span in attention.encoded.spans:
        share = float(shares[span.start : span.stop].sum())
        shares_by_input[span.name] = shares_by_input.get(span.name, 0.0) + share
    return shares_by_input, notes
