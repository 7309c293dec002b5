"""One sample to draw: its tokens, its raw inputs, and one line about it and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.display import cut, list_names, number, percent
from dxn.core.tokens import Span, Tokens
from dxn.viz.drawers import Drawer, Shown, get_drawer, is_file

MAX_TEXT = 60  # characters of a text in the description of a sample
MAX_DESCRIBED = 8  # inputs in the description of a sample
MAX_ANSWER = 120  # characters of an answer in a title
MAX_LISTED = 5  # classes whose probabilities are listed


@dataclass(frozen=True)
class InputTokens:
    """The real tokens of one input.

    Args:
        name: Name of the input.
        shown: The raw input, and what draws it.
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
    def placed(self) -> np.ndarray:
        """(m, k). Coordinates of the tokens that have a position."""
        return self.coords[~np.isnan(self.coords).any(axis=1)]


@dataclass(frozen=True)
class SampleView:
    """The tokens of one sample, and the raw inputs that they were made of.

    Args:
        tokens: Tokens whose first sample is drawn, with N columns.
        inputs: The inputs by name. Columns of an input that is missing here belong to no input,
            such as class tokens.
    """

    tokens: Tokens
    inputs: Mapping[str, Shown]

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        adapters: Mapping[str, Any],
        raws: Mapping[str, Any],
        sources: Mapping[str, Any] | None = None,
    ) -> SampleView:
        """Return the view of a sample without the inputs that it lacks.

        Args:
            tokens: Tokens of the sample.
            adapters: Adapter of each input, by input name.
            raws: Raw value of each input, by input name.
            sources: What the inputs were read from, by input name.
        """
        return cls(tokens, shown_inputs(adapters, raws, sources))

    @cached_property
    def names(self) -> list[str]:
        """Names of the N columns, padding included.

        The drawer of an input names its tokens, for example with subwords or times. Tokens that it
        returns None for are numbered. Columns of a text that are not subwords have the name "".
        """
        names: list[str] = []
        for span in self.tokens.spans:
            span_names: Sequence[str | None] = [None] * len(span)
            if span.name in self.inputs:
                shown = self.inputs[span.name]
                span_names = get_drawer(shown.modality).token_names(shown, coords_of(span))
            names += [
                f"{span.name} {i + 1}" if name is None else name
                for i, name in enumerate(span_names)
            ]
        return names

    @cached_property
    def panels(self) -> list[InputTokens]:
        """The inputs that have real tokens, in the order of their columns.

        Class tokens and registers do not belong to an input, so they are left out. Neighbors whose
        drawer draws several inputs in one panel are joined.
        """
        inputs: list[InputTokens] = []
        for span in self.tokens.spans:
            if span.name in self.inputs:
                is_real = self.tokens.mask[0, span.start : span.stop].cpu().numpy()
                if is_real.any():
                    columns = span.start + is_real.nonzero()[0]
                    coords = coords_of(span)[is_real]
                    inputs.append(InputTokens(span.name, self.inputs[span.name], columns, coords))
        results: list[InputTokens] = []
        for _, group in groupby(inputs, key=lambda shown_input: type(shown_input.drawer)):
            members = list(group)
            results += [_joined(members)] if members[0].drawer.joins_inputs else members
        return results


def shown_inputs(
    adapters: Mapping[str, Any],
    raws: Mapping[str, Any],
    sources: Mapping[str, Any] | None = None,
) -> dict[str, Shown]:
    """Return the raw inputs of a sample for the drawers, see `SampleView.of`."""
    shown: dict[str, Shown] = {}
    for name, raw in raws.items():
        if raw is not None and name in adapters:
            adapter = adapters[name].plain_values
            prepare = adapters[name].tokenizer.plain_values
            source = (sources or {}).get(name)
            shown[name] = Shown(prepare.drawing, raw, prepare, adapter, source, name)
    return shown


def coords_of(span: Span) -> np.ndarray:
    """Return the coordinates (n, k) of the columns of a span in the first sample."""
    return span.coords[0].cpu().numpy()


def describe_sample(sample: Mapping[str, Any]) -> str:
    """Describe a sample in one line: its first texts, and the names of its files."""
    descriptions: list[str] = []
    for name, value in sample.items():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | Path) and is_file(text):
            descriptions.append(f"{name}: {Path(text).name}")
        elif isinstance(text, str):
            descriptions.append(f"{name}: “{cut(text, MAX_TEXT)}”")
    if len(descriptions) > MAX_DESCRIBED + 1:
        descriptions[MAX_DESCRIBED:] = [f"{len(descriptions) - MAX_DESCRIBED} more"]
    return "; ".join(descriptions)


def answer_line(answer: Mapping[str, Any]) -> str:
    """Return a prediction in one line, with its probability if the model gives one.

    Args:
        answer: Result of `Task.answer`.
    """
    prediction = answer["prediction"]
    probabilities = answer.get("probabilities") or {}
    if "entities" in answer:
        entities = ["{text} ({label})".format(**entity) for entity in answer["entities"]]
        line = ", ".join(entities) or "no entities"
    elif "excerpt" in answer:
        before, excerpt, after = answer["excerpt"]
        line = f"{excerpt}: {before}[{excerpt}]{after}"
    elif "objects_in" in answer:
        line = _objects(prediction)
    elif "start" in answer and answer["start"] is None:
        line = "no answer"
    elif isinstance(prediction, Mapping):  # the share of each class, largest first
        shares = [f"{name} {percent(share)}" for name, share in prediction.items() if share]
        line = list_names(shares, MAX_LISTED)
    elif isinstance(prediction, list):
        line = ", ".join(_named(part, probabilities) for part in prediction) or "none"
    else:
        line = _named(prediction, probabilities)
    return cut(line, MAX_ANSWER)


def listed_probabilities(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the largest probabilities and their classes, largest first."""
    probabilities = answer.get("probabilities") or {}
    order = sorted(probabilities.items(), key=lambda item: -item[1])
    return [(str(name), float(share)) for name, share in order[:MAX_LISTED]]


def _objects(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the labels of objects with their scores, or with their number and range of scores."""
    scores: dict[str, list[float]] = {}
    for item in found:
        scores.setdefault(item["label"], []).append(item["score"])
    parts: list[str] = []
    for label, values in scores.items():
        low, high = percent(min(values)), percent(max(values))
        spread = high if low == high else f"{low} to {high}"
        parts.append(
            f"{len(values)} × {label} ({spread})" if len(values) > 1 else f"{label} ({high})"
        )
    return ", ".join(parts) or "no objects"


def _named(prediction: Any, probabilities: Mapping[str, float]) -> str:
    share = probabilities.get(str(prediction))
    if share is not None:
        return f"{prediction} ({percent(share)})"
    return number(prediction) if isinstance(prediction, float) else str(prediction)


def _joined(members: Sequence[InputTokens]) -> InputTokens:
    columns = np.concatenate([shown_input.columns for shown_input in members])
    index = np.arange(len(columns), dtype=np.float32)
    name = f"{len(members)} columns" if len(members) > 1 else members[0].name
    shown = members[0].drawer.join({shown_input.name: shown_input.shown for shown_input in members})
    return InputTokens(name, shown, columns, np.stack([index, index + 1], 1))
