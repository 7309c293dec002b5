"""Masking of tokens and of cells for masked pretraining. `patch_masking.py` masks patches.

`adapter.masking()` creates a masking after `fit`. A masking is applied to one sample at a time in a
data worker. Its result depends only on the sample and the random generator, not on the batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dxn.core.randomness import torch_generator
from dxn.tokenize.base import MASKED, Sample


class Masking:
    """Hides a part of a sample for masked pretraining. It is picklable and runs in data workers.

    Attributes:
        num_outputs: Number K of values to predict per column. None: token ids are predicted by
            comparing the output with the adapter's embedding.
    """

    num_outputs: int | None

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return a copy of the sample in which the content of the masked columns is replaced.

        The result depends only on the sample and rand, so it does not depend on the batch. It has
        the additional keys `masked` bool, (n,) or a grid, True at the columns to predict, and
        `masked_target`: token ids (m,), or values (m, K) together with `masked_valid` (m, K) bool,
        False at padding.
        """
        raise NotImplementedError


def check_ratio(ratio: float) -> float:
    """Return the mask ratio, or raise a ValueError if it is outside [0, 1)."""
    if not 0 <= ratio < 1:
        raise ValueError(f"mask_ratio must be at least 0 and below 1, got {ratio}")
    return ratio


@dataclass(frozen=True)
class TokenMasking(Masking):
    """Masks tokens of a vocabulary, as in BERT (arXiv:1810.04805, section 3.1).

    Of the tokens to predict, some are replaced by the mask token, some by a random token, and the
    others are unchanged.

    Args:
        ratio: Probability that a token is selected for prediction.
        mask_id: Id of the mask token.
        vocab_size: Number of token ids.
        special_ids: Ids of special tokens, which are never masked.
        replaced: Fraction of the tokens to predict that are replaced by the mask token.
        randomized: Fraction of the tokens to predict that are replaced by a random token.
        num_copies: Number of columns per token. It is more than 1 if the adapter adds columns for
            n-grams. Only the first N columns, the tokens themselves, are predicted.
    """

    ratio: float
    mask_id: int
    vocab_size: int
    special_ids: Sequence[int] = ()
    replaced: float = 0.8
    randomized: float = 0.1
    num_copies: int = 1

    num_outputs = None

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with masked ids, masked (n,) or (num_copies, n), and masked_target.

        masked_target (m,) contains the original ids of the m masked tokens.
        """
        ids = sample["ids"]
        generator = torch_generator(rand)
        special = torch.tensor(list(self.special_ids))
        draws = torch.rand(ids.shape, generator=generator)
        masked = ~torch.isin(ids, special) & (draws < self.ratio)
        random_ids = torch.randint(self.vocab_size, ids.shape, generator=generator)
        # Special tokens do not occur inside a text, so they would be too easy to recognize. Tokens
        # for which one was drawn are unchanged.
        random_ids = torch.where(torch.isin(random_ids, special), ids, random_ids)
        # The same draw decides whether a token is masked and how, which saves a second draw.
        limits = self.replaced * self.ratio, (self.replaced + self.randomized) * self.ratio
        new_ids = torch.where(masked & (draws < limits[0]), self.mask_id, ids)
        is_random = masked & (draws >= limits[0]) & (draws < limits[1])
        columns = masked
        if self.num_copies > 1:
            columns = torch.zeros(self.num_copies, len(masked), dtype=torch.bool)
            columns[0] = masked
        hidden: dict[str, Tensor] = {}
        if "chars" in sample:
            # The n-grams of a word also belong to its other tokens, so all of them would tell which
            # tokens were masked.
            hidden["chars"] = torch.zeros_like(sample["chars"])
        return {
            **sample,
            **hidden,
            "ids": torch.where(is_random, random_ids, new_ids),
            MASKED: columns,
            "masked_target": ids[masked],
        }


@dataclass(frozen=True)
class CellMasking(Masking):
    """Hides the value of a cell, and predicts it.

    Args:
        ratio: Probability that a cell is hidden.
        num_outputs: Number of values to predict.
    """

    ratio: float
    num_outputs: int

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> Sample:
        """Return the sample with hidden (1,), masked (1,), masked_target and masked_valid (m, K).

        m is 1 if the cell is hidden, otherwise 0.
        """
        value = sample["value"]  # (1, K)
        masked = torch.tensor([rand.random() < self.ratio])
        valid = sample.get("valid", torch.ones_like(value, dtype=torch.bool))
        return {
            **sample,
            "value": value.masked_fill(masked[:, None], 0.0),
            MASKED: masked,
            "masked_target": value[masked],
            "masked_valid": valid[masked],
        }
