"""The head that generates texts: a decoder with cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import OnTokens, beam_search, generate
from dxn.models.decoding.search import LENGTH_OFFSET, Hypothesis, Sampler, greedy
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
    """

    def __init__(self, decoder: nn.Module, *, label_smoothing: float = 0.0):
        super().__init__()
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

    def write(
        self,
        memory: Memory,
        *,
        begin: int | Sequence[int],
        end: int | Sequence[int],
        forbidden: Sequence[int] = (),
        beams: int = 1,
        length_penalty: float = 0.0,
        length_offset: int = LENGTH_OFFSET,
        max_new: int | None = None,
        sampler: Sampler | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Hypothesis]:
        """Generate the token ids of one text per sample.

        Args:
            memory: Encoded tokens that the decoder attends to.
            begin: Id of the token that begins a text (BOS), or of several that do.
            end: Id of the token that ends a text (EOS), or of several, each of which does.
            forbidden: Ids of tokens that are never generated.
            beams: Beam width; 1 for greedy decoding.
            length_penalty: Exponent of the length by which scores are divided.
            length_offset: Number that is added to this length, see `length_normalized`.
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token. Default: greedy decoding or beam search.
            on_tokens: See `generate`. Beam search does not call it.
        """
        first = [begin] if isinstance(begin, int) else list(begin)
        prompt = torch.tensor(first, device=memory.x.device).repeat(len(memory.x), 1)
        # These tokens occupy the first of max_len positions.
        num_positions = self.decoder.max_len - len(first)
        limit = min(max_new or num_positions, num_positions)
        if beams == 1 or sampler is not None:
            return generate(
                self.decoder,
                memory,
                prompt=prompt,
                end=end,
                max_new=limit,
                sampler=sampler or greedy,
                forbidden=forbidden,
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
            length_offset=length_offset,
            forbidden=forbidden,
        )
