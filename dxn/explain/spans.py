"""The real tokens of each input, and their positions in the raw input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxn.explain.drawers import Drawer, Shown, get_drawer
from dxn.tokens import Span, Tokens


@dataclass(frozen=True)
class InputTokens:
    """The real tokens of one input of the first sample.

    Args:
        name: Name of the input.
        shown: The input.
        columns: (n,). Columns of the tokens in the D×N matrix.
        coords: (n, k). Position of each token in the raw input, in the units of `Span.coords`. NaN
            for a token without a position, such as an end-of-text token.
    """

    name: str
    shown: Shown
    columns: np.ndarray
    coords: np.ndarray

    @property
    def drawer(self) -> Drawer:
        """Drawer of the modality of the input."""
        return get_drawer(self.shown.modality)

    @property
    def is_placed(self) -> np.ndarray:
        """(n,) bool. True for tokens that have a position in the raw input."""
        return np.logical_not(np.isnan(self.coords).any(axis=1))

    @property
    def placed(self) -> np.ndarray:
        """(m, k). Coordinates of the tokens that have a position."""
        return self.coords[self.is_placed]


def drawn_inputs(tokens: Tokens, inputs: Mapping[str, Shown]) -> list[InputTokens]:
    """Return the inputs that have real tokens, in the order of their columns.

    Class tokens and registers do not belong to an input, so they are left out.
    """
    parts: list[InputTokens] = []
    for span in tokens.spans:
        if span.name in inputs:
            part = _real_tokens(tokens, span, inputs[span.name])
            if len(part.columns):
                parts.append(part)
    return parts


def _real_tokens(tokens: Tokens, span: Span, shown: Shown) -> InputTokens:
    is_real = tokens.mask[0, span.start : span.stop].cpu().numpy()
    columns = span.start + is_real.nonzero()[0]
    return InputTokens(span.name, shown, columns, span.coords[0].cpu().numpy()[is_real])
