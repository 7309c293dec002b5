"""The real tokens of each input, and their positions in the raw input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dxn.core.tokens import Span, Tokens
from dxn.viz.drawers import Drawer, Shown, get_drawer


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
    return _joined(parts)


def _joined(parts: Sequence[InputTokens]) -> list[InputTokens]:
    """Join neighbors whose drawer draws several inputs in one panel, see `Drawer`."""
    results: list[InputTokens] = []
    for _, group in groupby(parts, key=lambda part: type(part.drawer)):
        members = list(group)
        join = getattr(members[0].drawer, "join", None)
        if join is None:
            results += members
            continue
        columns = np.concatenate([part.columns for part in members])
        index = np.arange(len(columns), dtype=np.float32)
        name = f"{len(members)} columns" if len(members) > 1 else members[0].name
        shown = join({part.name: part.shown for part in members})
        results.append(InputTokens(name, shown, columns, np.stack([index, index + 1], 1)))
    return results


def _real_tokens(tokens: Tokens, span: Span, shown: Shown) -> InputTokens:
    is_real = tokens.mask[0, span.start : span.stop].cpu().numpy()
    columns = span.start + is_real.nonzero()[0]
    return InputTokens(span.name, shown, columns, span.coords[0].cpu().numpy()[is_real])
