"""The head of question answering: logits of the first and the last token of an answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.tasks.heads import PreHead
from dxn.tasks.space import Batch
from dxn.tasks.span.windows import WINDOW, Windows

# The logit of padding. Finite, because outputs that are not finite are reported as a fault.
PADDING = -1e9


class PairPreHead(PreHead):
    """The layers before the output layer, and the embeddings of the question and of the text.

    The text adapter adds them to its tokens, if both texts are in the same sequence.

    Args:
        dim: Width D of a token.
        dropout: Dropout probability of the encoded tokens.
    """

    def __init__(self, dim: int, *, dropout: float = 0.0):
        super().__init__(dim, dropout=dropout)
        self.segments = nn.Embedding(2, dim)
        nn.init.zeros_(self.segments.weight)


class SpanHead(nn.Module):
    """A linear layer on each token of a text. Its first token stands for "no answer".

    Args:
        pre: Layers applied to the tokens before the output layer.
        windows: How the text is cut.
    """

    def __init__(self, pre: PreHead, windows: Windows):
        super().__init__()
        self.pre = pre
        self.cuts = windows
        self.out = nn.Linear(pre.width, 2)

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return the logits (B, K, 1 + n, 2) of K windows."""
        outputs = [output_of(window) for window in self.windows(batch)]
        size = max(output.shape[2] for output in outputs)
        padded = [F.pad(x, (0, 0, 0, size - x.shape[2]), value=PADDING) for x in outputs]
        return torch.cat(padded, 1)

    def first_part(self, batch: Batch) -> Batch:
        """Return the first window, which an embedding and an attention show."""
        return self.windows(batch)[0]

    def windows(self, batch: Batch) -> list[Batch]:
        """Return the batch of each window of the text."""
        windows = self.cuts.cut(batch)
        for window in windows:
            part = window[self.cuts.context]
            # The only window of a batch that is one has them already.
            has_segments = "segments" in part and "added" not in part
            if isinstance(self.pre, PairPreHead) and has_segments:
                part["added"] = self.pre.segments(part["segments"])
        return windows

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return the logits (B, 1, 1 + n, 2) of the first and the last token of the answer.

        Those of "no answer" come first, then those of the n tokens of the window, and PADDING
        after them.
        """
        place = batch[self.cuts.context][WINDOW]
        text = tokens.select(self.cuts.context).x
        # [CLS], or the first token of all inputs that the sample has.
        none = text[:, 0]
        if not self.cuts.lead:
            first = tokens.mask.int().argmax(1)
            none = tokens.x[torch.arange(first.shape[0], device=first.device), first]
        special = len(self.cuts.lead) + len(self.cuts.tail)
        size = text.shape[1] - special
        if special:
            columns = torch.arange(size, device=text.device)[None] + place.column[:, None]
            columns = columns.clamp(max=text.shape[1] - 1)
            text = text.gather(1, columns[..., None].expand(-1, -1, text.shape[2]))
        logits = self.out(self.pre(torch.cat([none[:, None], text[:, :size]], 1)))
        known = torch.arange(size + 1, device=text.device)[None] <= place.count[:, None]
        return logits.float().masked_fill(~known[..., None], PADDING)[:, None]
