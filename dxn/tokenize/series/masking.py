"""Masking of series for masked pretraining."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dxn.tokenize.base import Masking
from dxn.tokenize.grid import PatchGrid
from dxn.tokenize.masking import fully_hidden, hide_tiles, make_generator, patch_contents


@dataclass(frozen=True)
class SeriesMasking(Masking):
    """Hides runs of time steps and predicts their normalized values (arXiv:2211.14730, 3.2).

    All channels of a time step are hidden together. Missing values are not predicted.

    Args:
        ratio: Fraction of the time steps of a series that is hidden.
        span: Length of a run in patches. Runs are shorter in a series where ratio allows fewer
            hidden patches.
        grid: Patches of the adapter along time and channels.
    """

    ratio: float
    span: int
    grid: PatchGrid

    @property
    def num_outputs(self) -> int:
        """Number of values of a patch."""
        return self.grid.size[0] * self.grid.size[1]

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (T,), masked (t, c), masked_target and masked_valid.

        Both masked_target and masked_valid have the shape (m, P c) for m masked patches of P time
        steps and c channels.
        """
        values, observed = sample["values"], sample["observed"]
        length, channels = values.shape
        stride = self.grid.stride[0]
        steps = -(-length // stride)  # rounded up
        shortest = -(-self.grid.size[0] // stride)
        # A run must cover a whole patch. Otherwise no patch would be hidden completely.
        run = max(min(round(self.ratio * steps), self.span), shortest)
        tile = (run, -(-channels // self.grid.stride[1]))
        hidden = hide_tiles(
            (length, channels),
            (stride, self.grid.stride[1]),
            tile,
            self.ratio,
            make_generator(rand),
        )
        hidden = hidden[:, :1].expand(length, channels)  # all channels of a time step together
        masked = fully_hidden(hidden, self.grid)
        rows, columns = masked.nonzero(as_tuple=True)
        valid, _ = patch_contents(observed[None], masked, self.grid)
        # A patch without values is no token, so that nothing can be predicted from it.
        kept = valid.any(1)
        masked = masked.clone()
        masked[rows[~kept], columns[~kept]] = False
        target, inside = patch_contents(values[None], masked, self.grid)
        return {
            **sample,
            "hidden": hidden[:, 0],
            "masked": masked,
            "masked_target": target,
            "masked_valid": valid[kept] & inside,
        }
