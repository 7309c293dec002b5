"""Groups of inputs that are printed and evaluated together, such as the columns of a wide table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dxn.runs.record import Input
from dxn.tokenize.base import Tokenizer

# With more inputs than this, a table with one row per input would fill the screen.
MAX_SEPARATE = 8
# Columns of a modality that are printed one per line. More are printed in one line.
MAX_LINES = 4
MAX_NAMED = 6  # columns that this line names

Groups = Mapping[str, tuple[str, ...]]


def evaluated_groups(preprocessors: Mapping[str, Tokenizer], inputs: Sequence[str]) -> Groups:
    """Return the groups of inputs that are evaluated alone and left out.

    A model with many inputs has one group per kind of table cells. Each other input is a group of
    its own, under its own name.

    Args:
        preprocessors: Tokenizer of each input, by input name.
        inputs: Names of the inputs.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in inputs:
        prepare = preprocessors[name]
        is_grouped = len(inputs) > MAX_SEPARATE and prepare.reader.tabular
        key = f"{prepare.modality} columns" if is_grouped else name
        groups[key] = (*groups.get(key, ()), name)
    return groups


def input_lines(specs: Mapping[str, Input]) -> list[str]:
    """Return the lines that describe the inputs of a training, one for many columns."""
    by_modality: dict[str, list[str]] = {}
    for spec in specs.values():
        by_modality.setdefault(spec.modality, []).append(spec.column)
    lines: list[str] = []
    for name, spec in specs.items():
        columns = by_modality[spec.modality]
        if len(columns) > MAX_LINES:
            # The first input of a modality stands for all of them.
            if spec.column == columns[0]:
                lines.append(f"{spec.modality}: {len(columns)} columns ({named(columns)})")
        elif spec.modality == name:
            lines.append(f"{name}: {spec.column}")
        elif spec.column == name:
            lines.append(f"{name} ({spec.modality})")
        else:
            lines.append(f"{name}: {spec.column} ({spec.modality})")
    return lines


def named(names: Sequence[str], maximum: int = MAX_NAMED) -> str:
    """Return the first names of a list, and "..." if there are more."""
    more = ", ..." if len(names) > maximum else ""
    return ", ".join(names[:maximum]) + more
