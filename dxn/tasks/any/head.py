"""The head that writes the tokens of any input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.dropout import Keys, keep_mask
from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.tasks.generate.head import GenerateHead
from dxn.tasks.space import Batch
from dxn.tasks.target import IGNORED


class AnyHead(GenerateHead):
    """A decoder that writes a value of one of several inputs from the other inputs.

    Args:
        decoder: See `GenerateHead`.
        num_inputs: Number I of the inputs that can be written.
        stages: Ids of each of the R stages, of which one token each is predicted at a position.
        unconditional: Probability that a training sample is written without its inputs, for
            classifier-free guidance (arXiv:2207.12598).
        label_smoothing: Amount of label smoothing, from 0 (none) to 1.
    """

    def __init__(
        self,
        decoder: nn.Module,
        *,
        num_inputs: int,
        stages: Sequence[range],
        unconditional: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__(decoder, label_smoothing=label_smoothing)
        self.num_inputs = num_inputs
        self.stages = stages
        self.unconditional = unconditional

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return statistics (B, I, 3) of each sample and each input.

        The three numbers are the sum of the losses, the number of predicted tokens, and the number
        of right ones.
        """
        memory = self.memory(tokens)
        ids, labels = batch["target"]["ids"], batch["target"]["labels"]
        states = self.decoder.states(ids, ids[..., 0] != IGNORED, memory)
        known = (labels != IGNORED).any(-1)
        logits = self.decoder.output(states[known]).float()
        rows = known.nonzero()[:, 0]
        sums = logits.new_zeros(len(ids), 3)
        for stage, true in zip(self.stages, labels[known].unbind(-1), strict=True):
            own = logits[:, stage.start : stage.stop]
            losses = F.cross_entropy(
                own,
                true,
                reduction="none",
                label_smoothing=self.label_smoothing,
                ignore_index=IGNORED,
            )
            right = own.argmax(-1) == true
            each = torch.stack([losses, (true != IGNORED).float(), right.float()], -1)
            sums = sums.index_add(0, rows, each)
        number = batch["target"]["index"]
        statistics = sums.new_zeros(len(ids), self.num_inputs, 3)
        return statistics.index_put((torch.arange(len(ids), device=ids.device), number), sums)

    def memory(self, tokens: Tokens) -> Memory:
        """Return what the decoder attends to: zeros for some of the training samples."""
        if self.training and self.unconditional:
            keys = Keys.of_mask(tokens.mask)
            draws = keys.step.draw(keys.samples, 0)
            tokens = replace(tokens, x=tokens.x * keep_mask(draws, self.unconditional))
        return Memory.from_tokens(tokens)
