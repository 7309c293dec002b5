"""The head that generates texts: a decoder with cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import OnTokens, beam_search, generate
from dxn.models.decoding.rules import Rules
from dxn.models.decoding.search import BatchSampler, Hypothesis, Sampler, greedy
from dxn.tasks.space import Batch
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import NUM_REAL


@dataclass(frozen=True, slots=True)
class Generated:
    """Output of the head.

    Args:
        loss_sum: Sum () of the cross-entropies of all target tokens. None for a batch without
            targets.
        memory: Encoded tokens that the decoder attends to.
    """

    loss_sum: Tensor | None
    memory: Memory


class GenerateHead(nn.Module):
    """A decoder that predicts each token of a text from its previous tokens and the encoded tokens.

    Args:
        decoder: Decoder with the attributes `states`, `caches`, `output` and `max_len`.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1.
        window: Number of encoded tokens for which a text is written. The texts of the windows of a
            longer input are joined. 0: one text is written for all.
    """

    def __init__(self, decoder: nn.Module, *, label_smoothing: float = 0.0, window: int = 0):
        super().__init__()
        self.window = window
        self.pre = nn.Identity()
        self.decoder: Any = decoder
        self.label_smoothing = label_smoothing

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Generated:
        """Compute the loss with teacher forcing, if the batch has targets.

        The output contains the loss instead of logits: the logits (B, N, V) of all tokens would
        need more memory than the rest of the model.
        """
        memory = Memory.from_tokens(tokens)
        if "target" not in batch:
            return Generated(None, memory)
        # The decoder predicts token i + 1 at position i.
        ids = batch["target"]["ids"]
        inputs, following = ids[:, :-1], ids[:, 1:]
        # Padding has the negative id IGNORED, which has no row in the embedding. Any valid id can
        # replace it, because the mask hides these positions.
        num_real = batch["target"].get(NUM_REAL)
        mask = inputs != IGNORED
        states = self.decoder.states(inputs.clamp(min=0), mask, memory, num_real=num_real)
        loss_sum = self.decoder.output.loss(
            states.flatten(0, 1),
            following.flatten(),
            label_smoothing=self.label_smoothing,
            ignore_index=IGNORED,
        )
        return Generated(loss_sum, memory)

    @torch.inference_mode()
    def prompt(
        self,
        memory: Memory,
        begin: Sequence[int],
        choice: tuple[int, Sequence[int]] | None = None,
    ) -> Tensor:
        """Return the ids (B, P) of the tokens before each text.

        Args:
            memory: Encoded tokens that the decoder attends to.
            begin: Ids of the tokens.
            choice: Index of the token that the decoder chooses, such as that of the language, and
                the ids of which it chooses the most probable one. None: there is none.
        """
        prompt = torch.tensor(begin, device=memory.x.device).repeat(len(memory.x), 1)
        if choice is not None:
            index, ids = choice
            before = prompt[:, :index]
            logits = self.decoder(before, torch.ones_like(before, dtype=torch.bool), memory)[:, -1]
            allowed = torch.tensor(ids, device=prompt.device)
            prompt[:, index] = allowed[logits[:, allowed].argmax(1)]
        return prompt

    def write(
        self,
        memory: Memory,
        *,
        sampler: Sampler | None = None,
        on_tokens: OnTokens | None = None,
        **options: Any,
    ) -> list[Hypothesis]:
        """Generate the token ids of one text per sample.

        Args:
            memory: Encoded tokens that the decoder attends to.
            sampler: Function that chooses the next token. Default: greedy decoding or beam search.
            on_tokens: See `generate` and `beam_search`.
            **options: Further arguments of `write_window`.
        """
        length, window = memory.x.shape[1], self.window
        if not window or length <= window or length % window:
            return self.write_window(memory, sampler=sampler, on_tokens=on_tokens, **options)
        assert memory.mask is not None
        texts = [Hypothesis([], 0.0) for _ in memory.x]
        for start in range(0, length, window):
            mask = memory.mask[:, start : start + window]
            rows = mask.any(1).nonzero().flatten()  # the samples that are so long
            indices = rows.tolist()
            others = memory.mask[:, start + window :].any(1).nonzero().flatten().tolist()
            part = Tokens(memory.x[rows, start : start + window], mask[rows])
            hypotheses = self.write_window(
                Memory.from_tokens(part),
                sampler=sampler.of(indices) if isinstance(sampler, BatchSampler) else sampler,
                on_tokens=on_tokens and partial(_pass_on, on_tokens, indices, others),
                **options,
            )
            for i, new in zip(indices, hypotheses, strict=True):
                texts[i] = Hypothesis([*texts[i].ids, *new.ids], texts[i].score + new.score)
        return texts

    def write_window(
        self,
        memory: Memory,
        *,
        begin: int | Sequence[int],
        end: int | Sequence[int],
        rules: Rules = Rules(),
        choice: tuple[int, Sequence[int]] | None = None,
        beams: int = 1,
        length_penalty: float = 0.0,
        max_new: int | None = None,
        sampler: Sampler | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Hypothesis]:
        """Generate the token ids of one text per sample, or for one window of each.

        Args:
            memory: Encoded tokens that the decoder attends to.
            begin: Id of the token that begins a text (BOS), or of several that do.
            end: Id of the token that ends a text (EOS), or of several, each of which does.
            rules: Rules about the tokens.
            choice: See `prompt`.
            beams: Beam width; 1 for greedy decoding.
            length_penalty: Exponent of the length by which scores are divided.
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token. Default: greedy decoding or beam search.
            on_tokens: See `generate` and `beam_search`.
        """
        prompt = self.prompt(memory, [begin] if isinstance(begin, int) else begin, choice)
        # These tokens occupy the first of max_len positions.
        num_positions = self.decoder.max_len - prompt.shape[1]
        limit = min(max_new or num_positions, num_positions)
        if beams == 1 or sampler is not None:
            return generate(
                self.decoder,
                memory,
                prompt=prompt,
                end=end,
                max_new=limit,
                sampler=sampler or greedy,
                rules=rules,
                on_tokens=on_tokens,
            )
        return beam_search(
            self.decoder,
            memory,
            prompt=prompt,
            end=end,
            max_new=limit,
            beams=beams,
            length_penalty=length_penalty,
            rules=rules,
            on_tokens=on_tokens,
        )


def _pass_on(
    on_tokens: OnTokens, indices: Sequence[int], others: Sequence[int], new: dict[int, list[int]]
) -> None:
    """Pass on new tokens of rows by the indices of their samples in the batch.

    The samples `others` have further windows, so their texts have not ended.
    """
    started: dict[int, list[int]] = {i: [] for i in others}
    on_tokens(new and started | {indices[row]: ids for row, ids in new.items()})
