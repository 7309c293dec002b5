"""Task heads of models that write: a text of what was encoded, or the text itself, a token further."""

from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.decoder import Pick, Said, beam_search, generate, greedy, remember
from dxn.models.losses import linear_cross_entropy
from dxn.tokens import Tokens


class Generate(nn.Module):
    """A text for a sample, a token at a time, by a decoder that reads the encoded tokens.

    Args:
        dim: width D of a token.
        decoder: what guesses the next token from those before it and the encoded ones.
        shares: the decoder's table of vectors is the text adapter's.
        label_smoothing: share of the target spread over all tokens (arXiv:1512.00567, 7).
        beams: beginnings that go on side by side; 1 goes on with the most probable token only.
        length_penalty: exponent of the length that an answer's score is divided by (arXiv:1609.08144, eq. 14).
    """

    kind = "text"

    def __init__(
        self,
        dim: int = 128,
        *,
        decoder: Any,
        shares: bool = False,
        label_smoothing: float = 0.0,
        beams: int = 1,
        length_penalty: float = 0.0,
    ):
        super().__init__()
        if beams < 1 or length_penalty < 0:
            raise ValueError(f"needs beams >= 1 and length_penalty >= 0, got {beams} and {length_penalty}")
        self.neck = nn.Identity()
        self.decoder, self.shares, self.label_smoothing = decoder, shares, label_smoothing
        self.beams, self.length_penalty = beams, length_penalty

    def forward(self, tokens: Tokens, pooled: Tensor, targets: Tensor) -> Tensor:
        """Encoded tokens and true ids (B, n), -100 behind their end, to the sum of the cross-entropy () of each from
        those before it. No logits: of all tokens together they would take more room than all the rest."""
        given, following = targets[:, :-1], targets[:, 1:]
        real = following >= 0
        states = self.decoder.states(given.clamp(min=0), given >= 0, remember(tokens))
        return linear_cross_entropy(
            states[real], self.decoder.table.weight, following[real], label_smoothing=self.label_smoothing
        )

    def loss(self, total: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens of what forward gave for these targets (B, n)."""
        return total / (targets[:, 1:] >= 0).sum().clamp(min=1)

    def share(self, table: nn.Embedding) -> None:
        """Let the decoder use these vectors (V, D); they stay the text adapter's, and are saved there."""
        self.decoder.share(table)

    def write(
        self,
        tokens: Tokens,
        *,
        begin: int,
        end: int,
        beams: int | None = None,
        max_new: int | None = None,
        pick: Pick | None = None,
    ) -> list[Said]:
        """The text for each sample of encoded tokens, between the ids begin and end, of at most max_new tokens.

        beams: its own unless given; pick: how to choose each token, in place of a search.
        """
        prompt = torch.full((len(tokens), 1), begin, device=tokens.x.device)
        room = self.decoder.max_len - 1
        options = {"prompt": prompt, "end": end, "max_new": min(max_new or room, room)}
        beams = beams or self.beams
        if beams == 1 or pick is not None:
            return generate(self.decoder, remember(tokens), **options, pick=pick or greedy)
        options |= {"beams": beams, "length_penalty": self.length_penalty}
        return beam_search(self.decoder, remember(tokens), **options)


class Language(nn.Module):
    """The next token after each of the text's, of a causal backbone; compared with the text adapter's vectors.

    Args:
        dim: width D of a token.
        label_smoothing: share of the target spread over all tokens (arXiv:1512.00567, 7).
    """

    kind = "next"
    shares = True
    table: nn.Embedding

    def __init__(self, dim: int = 128, *, label_smoothing: float = 0.0):
        super().__init__()
        self.neck = nn.Identity()
        self.label_smoothing = label_smoothing

    def share(self, table: nn.Embedding) -> None:
        """Compare with these vectors (V, D); they stay the text adapter's, and are saved there."""
        self.__dict__["table"] = table

    def forward(self, tokens: Tokens, pooled: Tensor, targets: Tensor) -> Tensor:
        """The text's encoded columns and the ids that follow (B, N), -100 where none does, to the sum of their
        cross-entropies ()."""
        real = targets >= 0
        states = tokens.select("text").x[:, : targets.shape[1]]
        return linear_cross_entropy(
            states[real], self.table.weight, targets[real], label_smoothing=self.label_smoothing
        )

    def loss(self, total: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens of what forward gave for these targets (B, N)."""
        return total / (targets >= 0).sum().clamp(min=1)
