"""Infer the task from the values of the target column (head=auto)."""

from __future__ import annotations

import importlib
import inspect
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import nn

from dxn.core.errors import UserError
from dxn.tasks.heads import HeadOptions
from dxn.tasks.label_format import are_joined, are_label_lists, explain_joined
from dxn.tasks.task import TASKS, Task
from dxn.tokenize.cells.dates import are_dates, most
from dxn.tokenize.cells.numbers import (
    NumberFormat,
    Numbers,
    are_codes,
    are_numbers,
    read_numbers,
)

# Thresholds of heuristics; head=NAME overrides their result.
# A column of whole numbers with at most this many distinct values contains class labels (such as 1
# to 5 stars), if the values repeat.
MAX_NUMERIC_CLASSES = 20
# The same limit for numbers with a unit, and for ranges that do not start at 0 or 1.
MAX_MEASURED_CLASSES = 10
# More distinct whole numbers are classes only if they look like class ids: 0 to K-1 or 1 to K,
# each in several rows, and hardly any of them rare. Ages and counts have gaps or rare values.
MIN_REPEATS = 5
RARE = 0.2  # a value is rare if it has less than this fraction of the mean number of rows
MAX_RARE = 0.2  # maximum fraction of rare values
PERCENT = 100  # 0 to 100 is a score or a percentage
# Below this number of values, a column is too short to tell identifiers from classes.
MIN_IDENTIFIERS = 20
DISTINCT = 0.9  # fraction of distinct values from which nearly all of them occur once
# An identifier contains a digit, such as SKU-1234, or is an address.
IDENTIFIER = re.compile(r"\S*(?:\d|@|://)\S*")
# Texts are not inferred from fewer values: in a small table, class names may also be distinct by
# chance.
MIN_TEXTS = 20
# A quantity with at most this many distinct values could also be classes.
MAX_CLOSE = 200
# Identifiers are different in at least this fraction of the rows.
MIN_ID_SHARE = 0.8
# The choice between classes and a quantity is close only if the values repeat at least this often.
MIN_CLOSE_REPEATS = 3


@dataclass(kw_only=True, eq=False)
class Auto(HeadOptions):
    """Choose the task from the targets of the training split.

    An option is passed to the chosen task if the task has an option of the same name. Other options
    are ignored.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1. Default: the default of the
            chosen task.
        balance: Whether to give rare classes a higher weight in the loss.
        decoder: Decoder for a task that generates text. Null: head=auto cannot choose such a task.
    """

    is_supervised: ClassVar[bool] = True

    label_smoothing: float | None = None
    balance: bool = False
    decoder: Callable[..., nn.Module] | None = None

    def resolve(
        self, values: Sequence[Any], words: Sequence[Any] | None = None, hint: str | None = None
    ) -> tuple[Task, dict[str, Any], str]:
        """Return the best-fitting task, the configuration node that rebuilds it, and the reason.

        Args:
            values: Cells of the target column in the training split; None where missing.
            words: Cells of an input that contains lists of words, one per row of `values`. None if
                there is no such input.
            hint: Name of the task, if the data source specifies one. It has priority.

        Raises:
            UserError: If there is no target, or if head=auto lacks a required option of the chosen
                task.
        """
        name, reason = (hint, "") if hint else infer(values, words)
        cls = task_class(name)
        parameters = inspect.signature(cls).parameters
        # An option that is None is not passed on, so that the task's own default applies.
        options = {
            field.name: vars(self)[field.name]
            for field in fields(self)
            if field.name in parameters and vars(self)[field.name] is not None
        }
        required = {key for key, p in parameters.items() if p.default is p.empty}
        if required - options.keys():
            raise UserError(f"head=auto: the task that fits the target is {name}; set head={name}")
        node = {"_target_": TASKS[name], **options}
        if "decoder" in node:
            # A decoder built from a configuration is a Partial, which stores its own node. The node
            # is what a saved configuration needs.
            node["decoder"] = getattr(node["decoder"], "node", node["decoder"])
        return cls(**options), node, reason


def infer(values: Sequence[Any], words: Sequence[Any] | None = None) -> tuple[str, str]:
    """Return the name of the task that fits target values, and why.

    The reason is "" if no other task fits nearly as well. Otherwise it names the option that
    selects the other task.

    Args:
        values: Cells of the target column; None where missing.
        words: Cells of an input that contains lists of words, one per row of `values`. None if
            there is no such input.

    Raises:
        UserError: If there are no values, or no task accepts them.
    """
    rows = [i for i, value in enumerate(values) if value is not None]
    present = [values[i] for i in rows]
    if not present:
        raise UserError(
            "head=auto: there are no target values to infer a task from; set data.target=COLUMN, "
            "or head=masked to train without targets"
        )
    # Tags are recognized by having the same length as the words of their row, so the rows of both
    # lists must stay aligned.
    row_words = None if words is None else [words[i] for i in rows]
    if list_like(present[0]):
        from dxn.tasks.spans import are_spans  # few columns contain lists

        if are_spans(present) or _are_tags(present, row_words):
            return "tag", ""
        if are_label_lists(present):
            return "multilabel", ""
    if are_amounts(present):
        return "regress", explain_amounts(present)
    problem = problem_of(present)
    if problem is None and _are_texts(present):
        return "generate", _explain_texts(present)
    if are_joined(present):
        return "multilabel", ""
    if problem is not None:
        raise UserError(f"data.target: {problem}")
    return "classify", explain_classes(present) or explain_joined(present)


def task_class(name: str) -> type[Task]:
    """Return the class of a registered task.

    Raises:
        UserError: If there is no task of that name.
    """
    if name not in TASKS:
        raise UserError(f"head: there is no task {name!r}; choose one of {', '.join(TASKS)}")
    # The registry contains import paths, because the task modules import the registry module:
    # importing the classes there would be a circular import.
    module, _, cls = TASKS[name].rpartition(".")
    return getattr(importlib.import_module(module), cls)


def list_like(cell: Any) -> bool:
    """Return whether a cell is a list or an object, or a text that can be one."""
    return not isinstance(cell, str | int | float) or str(cell).lstrip()[:1] in tuple("[({")


def _are_tags(values: Sequence[Any], words: Sequence[Any] | None) -> bool:
    """Return whether each value is a list of one tag per word."""
    if words is None or not all(isinstance(value, list) for value in values):
        return False
    # The lengths of empty lists are equal by chance, so empty rows are not evidence.
    pairs = [(w, tags) for w, tags in zip(words, values, strict=True) if w and tags]
    return bool(pairs) and all(isinstance(w, list) and len(w) == len(tags) for w, tags in pairs)


def _are_texts(values: Sequence[Any]) -> bool:
    """Return whether values are strings that are mostly distinct, unlike class names."""
    if len(values) < MIN_TEXTS or not all(isinstance(value, str) for value in values):
        return False
    # The thresholds are heuristics: single words must be more distinct than texts of several words.
    distinct_ratio = len(set(values)) / len(values)
    if distinct_ratio <= 0.5 or are_numbers(values):
        return False
    words_per_value = statistics.fmean(len(value.split()) for value in values)
    return words_per_value > 1 or distinct_ratio > 0.9


def _explain_texts(values: Sequence[str]) -> str:
    """Return why single words are texts instead of classes. "": they are not single words."""
    if any(len(value.split()) > 1 for value in values):
        return ""
    return (
        f"{len(set(values)):,} different words in {len(values):,} rows are read as texts to write; "
        "set head=classify to make each word a class"
    )


def are_amounts(values: Sequence[Any]) -> bool:
    """Return whether the values are numbers that are quantities rather than class labels."""
    numbers = read_numbers(values)
    if numbers is None or are_codes(values) or are_dates(values):  # a date can be 20260131
        return False
    return not are_class_ids(numbers)


def are_class_ids(numbers: Numbers) -> bool:
    """Return whether the numbers of a column are class labels rather than quantities."""
    if not numbers.are_whole:
        return False
    counts = Counter(numbers.values)  # "1" and "1.0" are the same number
    distinct, total = len(counts), len(numbers.values)
    low, high = min(counts), max(counts)
    is_contiguous = high - low + 1 == distinct
    is_range = is_contiguous and low in (0, 1)
    # 10 %, 20 % or $5 are quantities, and so are the years from 2005 to 2020.
    is_measured = bool(numbers.format.unit) or (is_contiguous and not is_range)
    if is_measured and distinct > MAX_MEASURED_CLASSES:
        return False
    if distinct <= MAX_NUMERIC_CLASSES:
        # Too few rows to see repetitions: only a range such as 0, 1, 2 shows classes.
        return distinct <= total / 2 or is_range or total < MIN_REPEATS
    if not is_range or (low, high) == (0, PERCENT) or total < MIN_REPEATS * distinct:
        return False
    num_rare = sum(count < RARE * total / distinct for count in counts.values())
    return num_rare <= MAX_RARE * distinct


def are_identifiers(values: Sequence[Any]) -> bool:
    """Return whether the values are codes such as SKU-1234, which nearly all occur once."""
    if len(values) < MIN_IDENTIFIERS or not all(isinstance(value, str) for value in values):
        return False
    is_code = most(values, lambda value: IDENTIFIER.fullmatch(value) is not None)
    return is_code and len(set(values)) > DISTINCT * len(values)


def problem_of(values: Sequence[Any]) -> str | None:
    """Return why target values are neither classes, numbers nor texts. None: they can be.

    Dates and identifiers are distinct in nearly every row, so that a model could only memorize
    them.
    """
    example = repr(str(values[0])) if values else ""
    distinct = len(set(map(str, values)))
    if are_dates(values) and (distinct > MAX_NUMERIC_CLASSES or distinct > len(values) / 2):
        return (
            f"contains {distinct:,} different dates or times, such as {example}, which no task "
            "predicts; add a column with a number (such as days) or a class (such as the month), "
            "or set head=classify to make each value a class"
        )
    if are_identifiers(values) and not are_numbers(values):
        return (
            f"contains identifiers such as {example}: {distinct:,} different values in "
            f"{len(values):,} rows; choose another column, or set head=classify to make each "
            "value a class, or head=generate to write it as a text"
        )
    return None


def kind_of(values: Sequence[Any]) -> str:
    """Return what the cells of a column are, for notes, such as "numbers".

    Args:
        values: Cells of the column; None where missing.
    """
    present = [value for value in values if value is not None]
    if not present:
        return "no values"
    if are_dates(present):
        return "dates"
    if are_numbers(present) and not are_codes(present):
        return "numbers"
    if any(isinstance(value, list | dict) for value in present):
        return "lists or objects"
    if are_identifiers(present):
        return "identifiers"
    distinct = len(set(map(str, present)))
    if distinct == 1:
        return "the same value in all rows"
    return "categories" if distinct <= len(present) / 2 else "texts"


def explain_classes(values: Sequence[Any]) -> str:
    """Return why numbers are class labels. "": no value is a number, or there are two classes."""
    numbers = read_numbers(values)
    if numbers is None:
        return _explain_mixture(values)
    counts = Counter(numbers.values)
    if len(counts) <= 2:
        return ""
    if are_codes(values):
        why = "some start with a zero, as in codes"
    else:
        why = f"in about {len(values) / len(counts):.0f} rows each"
    note = (
        f"{len(counts)} different whole numbers ({_range(counts)}), {why}: read as classes; set "
        "head=regress to predict them as a quantity"
    )
    if numbers.others:
        # The same cell in a column of names is an ordinary class, so this needs a sentence.
        other = str(values[numbers.others[0]])[:20]
        note += f"; {other!r} is a class, too (leave the cell empty if the value is missing)"
    return note


def explain_amounts(values: Sequence[Any]) -> str:
    """Return why integers or repeated numbers are a quantity. "": they cannot be classes."""
    numbers = read_numbers(values)
    if numbers is None:
        return ""
    counts = Counter(numbers.values)
    repeats = len(numbers.values) / len(counts)
    if numbers.are_whole and len(counts) > max(MAX_CLOSE, MIN_ID_SHARE * len(values)):
        return (
            f"{len(counts):,} different whole numbers in {len(values):,} rows: read as a quantity; "
            "if they are identifiers or row numbers, choose another column"
        )
    if len(counts) > MAX_CLOSE or (repeats < MIN_CLOSE_REPEATS and not numbers.are_whole):
        return ""
    kind = "whole numbers" if numbers.are_whole else "numbers"
    return (
        f"{len(counts)} different {kind} ({_range(counts)}) in {len(values):,} rows: read as a "
        "quantity; set head=classify to make each number a class"
    )


def _explain_mixture(values: Sequence[Any]) -> str:
    """Return why a column that contains many numbers is not numeric."""
    form = NumberFormat()
    others = [value for value in values if form.parse(value) is None]
    count = len(values) - len(others)
    # A few numbers among names are not worth a note.
    if count <= len(values) / 2:
        return ""
    return (
        f"{count:,} of {len(values):,} values are numbers, but others are not, such as "
        f"{str(others[0])[:20]!r}: each value is a class; set head=regress data.on_bad=skip to "
        "predict the numbers"
    )


def _range(counts: Counter[float]) -> str:
    return f"{min(counts):.10g} to {max(counts):.10g}"
