"""What is evaluated: a split, and subsets of the inputs: each alone, all but each, and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from itertools import chain

from dxn.core.results import ALL
from dxn.data.formats import SPLITS
from dxn.data.splits.split import UNDIVIDED
from dxn.tokenize.base import Reader

# With more inputs than this, "a+b+c" is harder to read than "all but d".
MAX_LISTED_INPUTS = 3

# With more inputs than this, a table with one row per input would fill the screen.
MAX_SEPARATE = 8

Groups = Mapping[str, tuple[str, ...]]


def default_split(splits: Mapping[str, Sized]) -> str:
    """Return the split that is evaluated by default: the first with rows, the test split first."""
    return next(name for name in (*SPLITS[::-1], UNDIVIDED) if splits.get(name))


def subsets(
    inputs: Sequence[str], least: int = 1, groups: Groups | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the subsets of the inputs that are evaluated: each alone, all but each, and all.

    N inputs have at most 2N + 1 subsets, instead of the 2^N - 1 that are possible. Equal subsets
    are listed once: with two inputs, leaving one out is the same as the other one alone.

    Args:
        inputs: Names of all inputs.
        least: Minimum number of inputs of a subset. Smaller subsets are left out.
        groups: Inputs that are alone or left out together, by name of the group. Default: each
            input is a group.
    """
    everything = tuple(inputs)
    groups = groups or {name: (name,) for name in everything}
    names = tuple(groups)
    alone = [(name,) for name in names]
    all_but_one = []
    # The last group is left out first, which gives pairs the order a+b, a+c, b+c.
    for left_out in reversed(names):
        all_but_one.append(tuple(name for name in names if name != left_out))
    candidates = [*alone, *all_but_one] if len(names) > 1 else []
    named: dict[str, tuple[str, ...]] = {}
    for chosen in candidates:
        shown = tuple(chain.from_iterable(groups[name] for name in chosen))
        if shown not in named.values() and len(shown) >= least:
            named[subset_name(chosen, names)] = shown
    return {**named, ALL: everything}


def evaluated_groups(readers: Mapping[str, Reader], inputs: Sequence[str]) -> Groups:
    """Return the groups of inputs that are evaluated alone and left out.

    A model with many inputs has one group per kind of table cells. Each other input is a group of
    its own, under its own name.

    Args:
        readers: Reader of each input, by input name.
        inputs: Names of the inputs.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in inputs:
        reader = readers[name]
        is_grouped = len(inputs) > MAX_SEPARATE and reader.tabular
        key = f"{reader.modality} columns" if is_grouped else name
        groups[key] = (*groups.get(key, ()), name)
    return groups


def subset_name(shown: Sequence[str], everything: Sequence[str]) -> str:
    """Name a subset of the inputs: "all", "a+b", or "all but c" if the latter is shorter."""
    if len(shown) == len(everything):
        return ALL
    hidden = [name for name in everything if name not in shown]
    if len(everything) > MAX_LISTED_INPUTS and len(hidden) < len(shown):
        return f"{ALL} but {' and '.join(hidden)}"
    return "+".join(shown)
