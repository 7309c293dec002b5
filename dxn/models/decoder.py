"""Token by token: a decoder over any Tokens, or over nothing but what it has said itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.models.attention import Cache, Memory
from dxn.models.backbone import Backbone
from dxn.tokens import Tokens, sinusoidal


class Decoder(nn.Module):
    """Guesses each next token from those before it and, with a memory, from another sequence's Tokens.

    The vectors of the vocabulary are those that the guesses are compared with, too (arXiv:1608.05859).

    Args:
        backbone: causal; with cross it reads a memory, without one it is a language model.
        vocab_size: tokens V that it may say.
        max_len: tokens that it can be given or say, of which one is the beginning.
        position: learned, sinusoidal, or none where the backbone's own (rotary, alibi) will do.
        dropout: of the embedded tokens, in training.
        token_dropout: probability that a given token is not shown, in training, so that what is read counts for more
            than what usually follows (arXiv:1511.06349, 3.1).
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        vocab_size: int,
        max_len: int = 256,
        position: Literal["learned", "sinusoidal", "none"] = "sinusoidal",
        dropout: float = 0.0,
        token_dropout: float = 0.0,
    ):
        super().__init__()
        if not 0 <= token_dropout < 1:
            raise ValueError(f"token_dropout must be at least 0 and under 1, got {token_dropout}")
        if position not in ("learned", "sinusoidal", "none"):
            raise ValueError(f"position must be learned, sinusoidal or none, got {position!r}")
        if not backbone.causal:
            raise ValueError("a decoder's backbone must be causal: it would see what it has to guess")
        self.backbone, self.max_len = backbone, max_len
        self.table = nn.Embedding(vocab_size, backbone.dim)
        nn.init.normal_(self.table.weight, std=backbone.dim**-0.5)
        places = torch.zeros(max_len, backbone.dim)
        if position == "sinusoidal":
            places = sinusoidal(torch.arange(max_len), backbone.dim)
        self.places: Tensor
        if position == "learned":
            self.places = nn.Parameter(nn.init.trunc_normal_(places, std=0.02))
        else:
            self.register_buffer("places", places, persistent=False)
        self.dropout, self.token_dropout = nn.Dropout(dropout), token_dropout

    def share(self, table: nn.Embedding) -> None:
        """Use this table in place of its own; it stays a part of whom it belongs to, and is saved there alone."""
        del self.table
        self.__dict__["table"] = table

    def forward(
        self, ids: Tensor, mask: Tensor, memory: Memory | None = None, caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """ids (B, n), the newest of the sequence that mask (B, N) is of, to logits (B, n, V) of what comes next.

        Without caches n = N. ValueError beyond max_len.
        """
        return self.states(ids, mask, memory, caches) @ self.table.weight.T

    def states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None = None, caches: Sequence[Cache] | None = None
    ) -> Tensor:
        """As forward, but to what the table's vectors are compared with (B, n, D)."""
        total, new = mask.shape[1], ids.shape[1]
        if total > self.max_len:
            raise ValueError(f"this decoder reaches {self.max_len} tokens, got {total}: raise max_len")
        x = self.table(ids) * self.backbone.dim**0.5
        if self.training and self.token_dropout:
            x = x * (torch.rand(ids.shape, device=x.device) >= self.token_dropout)[..., None]
        x = self.dropout(x + self.places[total - new : total])
        return self.backbone.norm(self.backbone.run(x, mask, memory=memory, caches=caches))

    def looks(self, ids: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        """(B, L, H, n, M): how much of each column of the memory each token reads, in each block and head, to guess
        what follows it; rows sum to 1. ids and mask (B, n) as in forward. ValueError where no block reads a memory."""
        readers: list[Any] = [block.cross for block in self.backbone.blocks]
        if None in readers or not readers:
            raise ValueError("without blocks that read a memory there is nothing that it looks at")
        found: list[Tensor] = []
        hooks = [
            reader.register_forward_pre_hook(lambda own, given: found.append(own.weights(*given))) for reader in readers
        ]
        try:
            self.states(ids, mask, memory)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(found, 1)

    def caches(self) -> list[Cache]:
        """An empty one for each block."""
        return [Cache() for _ in self.backbone.blocks]


@dataclass(frozen=True)
class Said:
    """What was generated for one sample: ids without the beginning and the end, and the sum of its log-probabilities,
    the end's included."""

    ids: list[int]
    score: float


Pick = Callable[[Tensor], Tensor]  # log-probabilities (B, V) to the ids (B,) to go on with


def remember(tokens: Tokens | None) -> Memory | None:
    """Encoded Tokens as a memory."""
    return None if tokens is None else Memory.of(tokens.x, tokens.mask)


def greedy(log_probs: Tensor) -> Tensor:
    """The most probable."""
    return log_probs.argmax(-1)


def sampled(
    draw: torch.Generator, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Pick:
    """One at random by its probability: sharper below temperature 1; only of the top_k most probable; only of the
    fewest that together have probability top_p (arXiv:1904.09751, 3.1)."""
    if temperature <= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ValueError(f"needs temperature > 0, top_k >= 1, 0 < top_p <= 1, got {temperature}, {top_k}, {top_p}")

    def pick(log_probs: Tensor) -> Tensor:
        shares, order = (log_probs / temperature).softmax(-1).sort(-1, descending=True)
        if top_k is not None:
            shares[:, top_k:] = 0
        if top_p is not None:
            shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0)  # the first always stays
        return order.gather(1, torch.multinomial(shares, 1, generator=draw)).squeeze(1)

    return pick


def picking(
    temperature: float, *, top_k: int | None, top_p: float | None, seed: int, device: torch.device | str = "cpu"
) -> Pick:
    """`greedy` at temperature 0, `sampled` above it, by seed."""
    if temperature == 0:
        return greedy
    draw = torch.Generator(device).manual_seed(seed)
    return sampled(draw, temperature=temperature, top_k=top_k, top_p=top_p)


@torch.inference_mode()
def generate(
    decoder: Any, memory: Memory | None, *, prompt: Tensor, end: int | None, max_new: int, pick: Pick = greedy
) -> list[Said]:
    """Go on from prompt (B, P), all of one length, until `end` or max_new tokens, a token at a time with a cache.

    decoder: a Decoder, a RecurrentDecoder or a LanguageModel.
    """
    caches, mask = decoder.caches(), torch.ones_like(prompt, dtype=torch.bool)
    said: list[list[int]] = [[] for _ in prompt]
    scores, going, ids = prompt.new_zeros(len(prompt), dtype=torch.float32), [True] * len(prompt), prompt
    for _ in range(max_new):
        log_probs = decoder(ids, mask, memory, caches)[:, -1].float().log_softmax(-1)
        chosen = pick(log_probs)
        gained = log_probs.gather(1, chosen[:, None]).squeeze(1)
        scores = scores + gained * torch.tensor(going, device=gained.device)
        for i, token in enumerate(chosen.tolist()):
            if going[i] and token != end:
                said[i].append(token)
            going[i] = going[i] and token != end
        if not any(going):
            break
        ids = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return [Said(ids, score) for ids, score in zip(said, scores.tolist(), strict=True)]


def lengthened(score: float, length: int, penalty: float) -> float:
    """score / ((5 + length) / 6)^penalty (arXiv:1609.08144, eq. 14): 0 leaves short answers ahead."""
    return score / ((5 + length) / 6) ** penalty


@torch.inference_mode()
def beam_search(
    decoder: Any,
    memory: Memory | None,
    *,
    prompt: Tensor,
    end: int,
    max_new: int,
    beams: int,
    length_penalty: float = 0.0,
) -> list[Said]:
    """The best answer found to each prompt (B, P), going on with the `beams` most probable beginnings at each step.

    Answers are ranked by `lengthened`; a search ends once no beginning can beat the answers it has, or at max_new
    tokens, where what is under way counts as it stands.
    """
    if beams < 1 or max_new < 1 or length_penalty < 0:
        got = f"{beams}, {max_new} and {length_penalty}"
        raise ValueError(f"beams and max_new must be at least 1 and length_penalty at least 0, got {got}")
    batch, device = len(prompt), prompt.device
    rows = torch.arange(batch, device=device).repeat_interleave(beams)
    caches, ids = decoder.caches(), prompt[rows]
    mask, memory = torch.ones_like(ids, dtype=torch.bool), None if memory is None else memory.select(rows)
    scores = torch.full((batch, beams), -torch.inf, device=device)
    scores[:, 0] = 0  # all beams are the same prompt: only one may go on
    words = ids.new_zeros(batch * beams, 0)
    answers: list[list[Said]] = [[] for _ in range(batch)]
    for _ in range(max_new):
        log_probs = decoder(ids, mask, memory, caches)[:, -1].float().log_softmax(-1)
        total = scores[..., None] + rearrange(log_probs, "(b k) v -> b k v", k=beams)
        vocab = total.shape[-1]
        # Twice as many as beams: even if all beams could end, as many go on.
        best, at = rearrange(total, "b k v -> b (k v)").topk(min(2 * beams, beams * vocab), -1)
        keep, scores = _divide(best, at, words, vocab, beams, end, answers)
        rows, chosen = keep // vocab, keep % vocab
        rows = (rows + torch.arange(batch, device=device)[:, None] * beams).flatten()
        words = torch.cat([words[rows], chosen.flatten()[:, None]], 1)
        if all(_is_over(a, s, max_new, length_penalty) for a, s in zip(answers, scores, strict=True)):
            break
        for cache in caches:
            cache.select(rows)
        ids, memory = chosen.flatten()[:, None], None if memory is None else memory.select(rows)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    for i, found in enumerate(answers):
        under_way = zip(words[i * beams : (i + 1) * beams].tolist(), scores[i].tolist(), strict=True)
        found += [Said(ids, score) for ids, score in under_way if score > -torch.inf and len(ids) == max_new]
    return [max(found, key=lambda s: lengthened(s.score, len(s.ids) + 1, length_penalty)) for found in answers]


def _divide(
    best: Tensor, at: Tensor, words: Tensor, vocab: int, beams: int, end: int, answers: list[list[Said]]
) -> tuple[Tensor, Tensor]:
    """Of the best continuations those that end become answers; the others' places (B, beams) and scores go on."""
    keep, scores = [], []
    for i, (values, places) in enumerate(zip(best.tolist(), at.tolist(), strict=True)):
        going = []
        for rank, (value, place) in enumerate(zip(values, places, strict=True)):
            if value == -torch.inf:
                continue
            if place % vocab != end:
                going.append((place, value))
            elif rank < beams:
                answers[i].append(Said(words[i * beams + place // vocab].tolist(), value))
        going = going[:beams] + [(0, -torch.inf)] * (beams - len(going))
        keep.append([place for place, _ in going])
        scores.append([value for _, value in going])
    return torch.tensor(keep, device=at.device), torch.tensor(scores, device=best.device)


def _is_over(answers: list[Said], scores: Tensor, max_new: int, penalty: float) -> bool:
    """Whether no beginning can beat the best answer: more tokens only cost it, and length helps it up to max_new."""
    best = max((lengthened(a.score, len(a.ids) + 1, penalty) for a in answers), default=-math.inf)
    return best >= lengthened(float(scores.max()), max_new + 1, penalty)
