"""head=auto: infer the task from the cells of the target column, and what the cells contain."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.parts import imported
from dxn.core.randomness import Probability, evenly_spaced
from dxn.core.untrusted import shortened
from dxn.tasks.heads import HeadOptions
from dxn.tasks.names import Balance, class_name
from dxn.tasks.task import TASKS, Task
from dxn.tokenize.cells.cell_values import NumberFormat, ParsedNumbers, mixed_decimals, units_of
from dxn.tokenize.cells.joined import items_of, list_of
from dxn.tokenize.column_profile import ColumnProfile, profile_of

SEPARATOR = "|"  # usual text between the labels of one cell, as in "red|round"
# Other texts between labels. They also occur in the names of classes, so they are only suggested.
SUGGESTED = (";", ",", " / ", "/", " + ", "+", "&", "\t", " ")
LISTS = ("[", "(", "{")  # first characters of a text that can be a list or an object
MASK = "mask"  # key of the mask in a cell that also has the names of the classes
COLOR = 256  # value of black in a mask of colors, see `value_of_color`
MASK_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff", ".pgm")
MAX_MASKS = 20  # cells in which masks are recognized
# Up to this share of the cells, a separator, a bracket or a list is an exception.
FEW = 0.05

SAME_VALUE = "the same value in all rows"  # kind of a column, see `kind_of`
CONTENTS = {bytes, np.ndarray, Tensor}  # types of files and arrays
ANSWER = {"text", "answer_start"}  # keys of an answer

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
MOST = 0.95  # fraction of the values that must be identifiers
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
        balance: Weight of each class in the loss: its inverse frequency (inverse), the root of this
            (root), or the same for all (none).
        decoder: Decoder for a task that generates text. Null: targets that need such a task are
            refused.
    """

    is_supervised: ClassVar[bool] = True

    label_smoothing: Probability | None = None
    balance: Balance = "none"
    decoder: Callable[..., nn.Module] | None = None

    def resolve(
        self,
        values: Sequence[Any],
        words: Sequence[Any] | None = None,
        hint: str | None = None,
        *,
        has_text: bool = True,
    ) -> tuple[Task, dict[str, Any], str]:
        """Return the best-fitting task, the configuration node that rebuilds it, and the reason.

        Args:
            values: Cells of the target column in the training split; None where missing.
            words: Cells of an input that contains lists of words or texts, one per row of `values`.
                None if there is no such input.
            hint: Name of the task, if the data source specifies one. It has priority.
            has_text: Whether an input is a text.

        Raises:
            UserError: If there is no target or no task named `hint`, or if head=auto lacks a
                required option of the chosen task.
        """
        name, reason = hint or "", ""
        if not hint:
            rows = () if words is None else list(zip(words, values, strict=True))
            name, reason = infer(profile_of(values), rows, has_text=has_text)
        if name not in TASKS:
            raise UserError(f"head: there is no task {name!r}; choose one of {', '.join(TASKS)}")
        cls = imported(TASKS[name])
        parameters = inspect.signature(cls).parameters
        # An option that is None is not passed on, so that the task's own default applies.
        options = {
            field.name: vars(self)[field.name]
            for field in fields(self)
            if field.name in parameters and vars(self)[field.name] is not None
        }
        if not cls.writes:
            options.pop("decoder", None)  # that of a forecast does not generate text
        required = {key for key, p in parameters.items() if p.default is p.empty}
        if required - options.keys():
            raise UserError(f"head=auto: the task that fits the target is {name}; set head={name}")
        node = {"_target_": TASKS[name], **options}
        if "decoder" in node:
            # A decoder built from a configuration is a Partial, which stores its own node. The node
            # is what a saved configuration needs.
            node["decoder"] = getattr(node["decoder"], "node", node["decoder"])
        return cls(**options), node, reason


def infer(
    profile: ColumnProfile, rows: Sequence[tuple[Any, Any]] = (), *, has_text: bool = True
) -> tuple[str, str]:
    """Return the name of the task that fits a column of targets, and why.

    The reason is "" if no other task fits nearly as well. Otherwise it names the option that
    selects the other task.

    Args:
        profile: Profile of the target column.
        rows: Words and target of each row, if an input contains lists of words, or texts.
        has_text: Whether an input is a text, in which positions are those of characters.

    Raises:
        UserError: If there are no values, or no task accepts them.
    """
    cells = profile.cells
    if not cells:
        raise UserError(
            "head=auto: there are no target values to infer a task from; set data.target=COLUMN, "
            "or head=masked to train without targets"
        )
    # Most cells decide. A row that does not fit is reported when the rows are read.
    checked = list(evenly_spaced(cells, MAX_MASKS))
    if 2 * sum(map(_is_mask, checked)) > len(checked):
        return "segment", ""
    # Lists: positions of entities, one tag per word, or labels.
    if sum(map(_can_be_list, cells)) > FEW * len(cells):
        # Few columns contain lists.
        from dxn.tasks.detect.objects import are_objects
        from dxn.tasks.entities import are_spans

        if are_answers(cells):
            return "span", ""
        if are_spans(cells) and (has_text or not are_objects(cells)):
            return "tag", ""
        if are_objects(cells):
            return "detect", ""
        if _are_tags(rows):
            return "tag", ""
        # Texts such as "[0.5, 1.5]" that repeat are classes, the names of intervals.
        is_varied = 2 * profile.num_different > len(profile.values)
        if (is_varied or are_label_lists(cells)) and _are_amounts_in_lists(cells):
            raise UserError(
                f"data.target: contains lists of numbers such as {shortened(cells[0])}, which no "
                "task predicts; write each number in a column of its own, and train one model per "
                "column"
            )
        if are_label_lists(cells):
            return "multilabel", ""
    # Numbers: quantities, or ids of classes.
    if are_amounts(profile):
        return "regress", explain_amounts(profile)
    distinct, count = profile.num_different, len(profile.values)
    if profile.are_dates and (distinct > MAX_NUMERIC_CLASSES or 2 * distinct > count):
        problem = (
            f"contains {distinct:,} different dates or times, such as {str(cells[0])!r}, which no "
            "task predicts; add a column with a number (such as days) or a class (such as the "
            "month), or set head=classify to make each value a class"
        )
    elif decimals := explain_decimals(profile):
        problem = f"contains {decimals}"
    elif are_identifiers(profile) and profile.numbers is None:
        problem = (
            f"contains identifiers such as {str(cells[0])!r}: {distinct:,} different values in "
            f"{count:,} rows; choose another column, or set head=classify to make each "
            "value a class, or head=generate to write it as a text"
        )
    elif len(units := mixed_units(profile)) > 1 and distinct > MAX_NUMERIC_CLASSES:
        problem = (
            f"contains numbers with different units such as {units[0]} and {units[1]}; convert "
            "them to one unit, or set head=classify to make each value a class"
        )
    else:
        problem = ""
    # Texts are mostly distinct, unlike the names of classes. Single words must be more distinct
    # than texts of several words.
    is_text = not problem and count >= MIN_TEXTS and profile.types == {str}
    if is_text and 2 * distinct > count and profile.numbers is None:
        if profile.words > 1:
            return "generate", ""
        if distinct > DISTINCT * count:
            return "generate", (
                f"{distinct:,} different words in {count:,} rows are read as texts to write; "
                "set head=classify to make each word a class"
            )
    if are_joined(profile):
        return "multilabel", ""
    # A model could only memorize values that are different in nearly every row.
    if problem:
        raise UserError(f"data.target: {problem}")
    return "classify", explain_classes(profile) or explain_joined(cells)


def _can_be_list(cell: Any) -> bool:
    """Whether a cell can be a list or an object, also as a text."""
    return not isinstance(cell, str | int | float) or str(cell).lstrip().startswith(LISTS)


def _are_amounts_in_lists(cells: Sequence[Any]) -> bool:
    """Whether most cells are lists, also as texts, and most items are numbers with a fraction."""
    lists = [items for items in map(items_of, cells) if items is not None]
    items = [item for item in chain.from_iterable(lists) if item is not None]
    fractions = [item for item in items if isinstance(item, float) and not item.is_integer()]
    return 2 * len(lists) > len(cells) and 2 * len(fractions) > len(items)


def _are_tags(rows: Sequence[tuple[Any, Any]]) -> bool:
    """Whether most rows have as many words, in a list or a text, as tags in a list."""
    lengths: list[tuple[int, int]] = []
    are_lists = False
    for cell, target in rows:
        words, tags = list_of(cell), list_of(target)
        are_lists |= bool(words)
        if words is None and isinstance(cell, str):
            words = cell.split()
        # The lengths of empty lists are equal by chance, so empty rows are not evidence.
        if words and tags:
            lengths.append((len(words), len(tags)))
    # So are those of a single word and label, and those of a few texts.
    several = [pair for pair in lengths if max(pair) > 1]
    if not are_lists and len(several) < MIN_TEXTS:
        return False
    lengths = several or lengths
    num_equal = sum(first == second for first, second in lengths)
    return bool(lengths) and num_equal >= MOST * len(lengths)


def _is_mask(cell: Any) -> bool:
    """Return whether a cell is a mask: an existing file without loss, an array or a mapping."""
    if isinstance(cell, Mapping):
        return MASK in cell
    if isinstance(cell, np.ndarray):
        return cell.ndim == 2 and cell.dtype == np.uint8
    return isinstance(cell, str) and cell.lower().endswith(MASK_SUFFIXES) and Path(cell).is_file()


def are_answers(values: Sequence[Any]) -> bool:
    """Return whether most values are answers with their positions in a text, as in SQuAD."""
    from dxn.tasks.span.target import parsed  # few columns contain lists

    right = wrong = 0
    for value in values:
        value = parsed(value) if isinstance(value, str) else value
        items = value if isinstance(value, list) else [value]
        has_keys = all(isinstance(item, Mapping) and item.keys() >= ANSWER for item in items)
        right, wrong = right + (has_keys and bool(items)), wrong + (not has_keys)
    return right > wrong


def are_amounts(profile: ColumnProfile) -> bool:
    """Return whether the values are numbers that are quantities rather than class labels."""
    # A date can be 20260131.
    if profile.numbers is None or profile.are_codes or profile.are_dates:
        return False
    return not are_class_ids(profile.numbers)


def are_class_ids(numbers: ParsedNumbers) -> bool:
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


def are_identifiers(profile: ColumnProfile) -> bool:
    """Return whether the values are codes such as SKU-1234, which nearly all occur once."""
    count = len(profile.values)
    if count < MIN_IDENTIFIERS or profile.num_different <= DISTINCT * count:
        return False
    # Texts are recognized by their words, which is faster.
    if profile.types != {str} or profile.words >= 2:
        return False
    num_codes = sum(IDENTIFIER.fullmatch(value.strip()) is not None for value in profile.values)
    return num_codes >= MOST * count


def mixed_units(profile: ColumnProfile) -> list[str]:
    """Return the units of a column that is not one of numbers, because it has several of them."""
    return [] if profile.numbers is not None else units_of(profile.values)


def explain_decimals(profile: ColumnProfile) -> str:
    """Return which two decimal separators the numbers of a column have; "" if it has one."""
    if profile.numbers is not None or profile.are_dates or profile.separator is not None:
        return ""
    pair = mixed_decimals(profile.values)
    if pair is None:
        return ""
    return (
        f"numbers with a decimal point such as {str(pair[0])!r} and with a decimal comma such as "
        f"{str(pair[1])!r}; write all of them with the same decimal separator"
    )


def kind_of(profile: ColumnProfile) -> str:
    """Return what the cells of a column are, for notes, such as "numbers"."""
    if not profile.values:
        return "no values"
    if profile.are_dates:
        return "dates"
    if profile.numbers is not None and not profile.are_codes:
        return "numbers"
    if any(issubclass(kind, list | dict) for kind in profile.types):
        return "lists or objects"
    if are_identifiers(profile):
        return "identifiers"
    if profile.num_different == 0:
        names = sorted(kind.__name__ for kind in profile.types)
        return "files or arrays" if profile.types <= CONTENTS else f"values of type {names[0]}"
    if profile.num_different == 1:
        return SAME_VALUE
    return "categories" if 2 * profile.num_different <= len(profile.values) else "texts"


def are_label_lists(values: Sequence[Any]) -> bool:
    """Return whether cells are lists, or rows of several columns; others can be single labels."""
    num_lists = num_others = 0
    for value in values:
        is_list = isinstance(value, Mapping) or list_of(value) is not None
        if not is_list and not isinstance(value, str):
            return False
        num_lists, num_others = num_lists + is_list, num_others + (not is_list)
    return num_lists > FEW * (num_lists + num_others)


def are_joined(profile: ColumnProfile) -> bool:
    """Return whether cells are labels with SEPARATOR between them."""
    if profile.numbers is not None:
        return False  # a number never contains a separator
    joined = [str(value).split(SEPARATOR) for value in profile.cells if SEPARATOR in str(value)]
    pieces = [piece.strip() for parts in joined for piece in parts]
    # Labels repeat. If most pieces are distinct, the separator is punctuation in a text.
    labels_repeat = len(set(pieces)) <= len(pieces) / 2
    # Otherwise, the separator is a character of a class name.
    return labels_repeat and len(joined) > FEW * len(profile.cells)


def explain_classes(profile: ColumnProfile) -> str:
    """Return why numbers are classes. "": hardly any value is one, or there are two classes."""
    values, numbers = profile.cells, profile.numbers
    if numbers is None:
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
    counts = Counter(numbers.values)
    if len(counts) <= 2:
        return ""
    if profile.are_codes:
        why = "some start with a zero, as in codes"
    else:
        why = f"in about {len(values) / len(counts):.0f} rows each"
    note = (
        f"{len(counts)} different whole numbers ({_range(counts)}), {why}: read as classes; set "
        "head=regress to predict them as a quantity"
    )
    if numbers.others:
        # The same cell in a column of names is an ordinary class, so this needs a sentence.
        other = str(numbers.others[0])[:20]
        note += f"; {other!r} is a class, too (leave the cell empty if the value is missing)"
    return note


def explain_amounts(profile: ColumnProfile) -> str:
    """Return why integers or repeated numbers are a quantity. "": they cannot be classes."""
    numbers = profile.numbers
    if numbers is None:
        return ""
    num_rows = len(profile.cells)
    counts = Counter(numbers.values)
    repeats = len(numbers.values) / len(counts)
    if numbers.are_whole and len(counts) > max(MAX_CLOSE, MIN_ID_SHARE * num_rows):
        return (
            f"{len(counts):,} different whole numbers in {num_rows:,} rows: read as a quantity; "
            "if they are identifiers or row numbers, choose another column"
        )
    if len(counts) > MAX_CLOSE or (repeats < MIN_CLOSE_REPEATS and not numbers.are_whole):
        return ""
    kind = "whole numbers" if numbers.are_whole else "numbers"
    return (
        f"{len(counts)} different {kind} ({_range(counts)}) in {num_rows:,} rows: read as a "
        "quantity; set head=classify to make each number a class"
    )


def explain_joined(values: Sequence[Any]) -> str:
    """Return a sentence about cells that seem to join a few labels. "": they do not."""
    distinct = {class_name(value) for value in values if isinstance(value, str)}
    for separator in SUGGESTED:
        rows = [[part.strip() for part in value.split(separator)] for value in distinct]
        joined = [row for row in rows if len(row) > 1]
        parts = sorted({part for row in rows for part in row if part})
        # The words of names such as "very good" and "good" have few combinations.
        enough = 2 * len(parts) if separator == " " else len(parts) + 1
        if len(parts) < 2 or len(joined) < 1 or len(distinct) < enough:
            continue
        return (
            f"{len(distinct):,} different values are combinations of {len(parts)} parts "
            f"({', '.join(parts[:3])}{', ...' if len(parts) > 3 else ''}) with {separator!r} "
            f"between them: each combination is a class; set head=multilabel and head.separator="
            f"{separator!r} to make each part a label"
        )
    return ""


def _range(counts: Counter[float]) -> str:
    return f"{min(counts):.10g} to {max(counts):.10g}"


def value_of_color(red: Any, green: Any, blue: Any) -> np.ndarray:
    """Return the values of colors in a mask. That of gray is its level, as in masks of gray.

    Args:
        red: Integers of any shape, with more than 24 bits, such as the pixels (H, W) of a picture.
        green: Of the same shape.
        blue: Of the same shape.
    """
    is_gray = (red == green) & (green == blue)
    return np.where(is_gray, red, COLOR + (red << 16 | green << 8 | blue))
