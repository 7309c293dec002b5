"""Problems of a data set that make its metrics wrong or meaningless."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.marks import Described
from dxn.core.results import Truncation
from dxn.data.dataset import Opened
from dxn.data.formats import SPLITS
from dxn.data.reading import Issue
from dxn.data.rows import InputSpec, Rows, Source
from dxn.data.splits.duplicates import divided, input_codes, row_codes
from dxn.tasks.target import Target
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer
from dxn.tokenize.cells.cell_values import has_no_value

MIN_ROWS = 30  # below this number, one row changes a metric by more than three percentage points
MIN_PER_CLASS = 5  # rows to learn from
MIN_MEASURED = 10  # rows of a class, below which one row changes its recall by more than 10%
LOG_CHANCE = math.log(1e-6)  # of gaps that say nothing, below which they are noticed
MAX_RARE = 3  # rare classes in a sentence
MAX_LISTED = 5  # class names that show which names the model knows
WHOLE = re.compile(r"^(-?\d+)\.0+$")
MAX_TEXT = 40  # characters of a value in a sentence


def find_problems(
    source: Source,
    splits: Mapping[str, Opened],
    task: Task | None,
    codes: Mapping[str, np.ndarray] | None = None,
) -> list[Issue]:
    """Return problems such as equal inputs, small splits and rare classes, with the affected rows.

    Args:
        source: The data set.
        splits: Opened rows of each split.
        task: Task that parsed the targets. None: targets were not parsed.
        codes: Codes of the opened rows, see `input_codes`. Default: of the cells, without reading
            all files again.
    """
    # Without the rows that were left out.
    used = {name: source.splits[name].take(opened.kept) for name, opened in splits.items()}
    codes = input_codes(used.values(), source.files) if codes is None else codes
    rows = row_codes(codes, sum(map(len, used.values())))
    by_split = divided(rows, used)
    present = rows[rows >= 0]
    have_equal_inputs = len(np.unique(present)) < len(present)
    problems: list[Issue] = []
    if have_equal_inputs:
        problems += _repeated_rows(used, by_split)
    # A file can be shared by rows whose other inputs differ.
    if source.files and len(source.inputs) > 1:
        for name in source.files:
            if name in codes:
                problems += _shared_files(name, divided(codes[name], used))
    if any(split.groups is not None for split in used.values()):
        problems += _shared_groups(used)
    if "train" in splits and "validation" not in splits:
        problems.append(Issue("there is no validation split, which selects the best epoch"))
    for name in SPLITS[1:]:
        if name in splits and len(splits[name]) < MIN_ROWS:
            few = count(len(splits[name]), "row")
            sentence = f"{name} has only {few}, too few for reliable metrics (at least {MIN_ROWS})"
            problems.append(Issue(sentence))
    # A text can have several translations, and a photo several captions.
    if task is not None and task.is_supervised and not task.target.is_text:
        if have_equal_inputs:
            problems += _contradictions(splits, by_split, has_order=bool(task.target.words))
        problems += _target_problems(splits)
        if "train" in splits:
            problems += _missing_by_class(splits["train"], source.inputs)
    return problems


def check_learnable(train: Opened, target: str | None, task: Task) -> None:
    """Check that there are at least two rows with different targets to train on.

    Args:
        train: The training split with its parsed targets.
        target: Name of the target.
        task: Task that parsed the targets.

    Raises:
        UserError: If there is a single row, all targets are equal, or they contradict the inputs.
    """
    sentence = _constant(train)
    # If each word has a tag, rows with equal tags still contain different tags to learn.
    if sentence is not None and not (task.target.words and len(train) > 1):
        raise UserError(
            f"data.target: {sentence} in the training split, so there is nothing to learn; choose "
            f"another column than {target}, or add rows"
        )
    # Lazily, because few tasks look at all values.
    task.target.check_values(target for target in train.targets or () if target is not None)


def check_known_targets(
    task: Task, targets: Sequence[Any], where: str, *, min_rows: int = 1
) -> list[str]:
    """Return a note about rows whose classes the model does not know; none if there are none.

    Args:
        task: The fitted task.
        targets: Targets of the rows.
        where: What the rows are, such as "validation".
        min_rows: Number of rows below which all of them may be unknown.

    Raises:
        UserError: If all targets are unknown. Some unknown ones are normal and count as wrong. If
            all are, the names differ, such as "cat" and 3, and metrics of 0 would hide the reason.
    """
    unknown = task.target.unknown(targets)
    if not unknown:
        return []
    if len(unknown) == len(targets) >= min_rows:
        trained = ", ".join((task.target.labels or ())[:MAX_LISTED])
        received = ", ".join(list(dict.fromkeys(unknown))[:MAX_LISTED])
        raise UserError(
            f"data: all targets of {where} are unknown to the model, which was trained with "
            f"{trained}, got {received}; use the same names"
        )
    names = list_names(list(dict.fromkeys(unknown)), MAX_LISTED)
    rows = count(len(unknown), "row")
    return [
        f"{where}: the target of {rows} is not in the training split ({names}), which counts as "
        "wrong"
    ]


def _repeated_rows(splits: Mapping[str, Rows], codes: Mapping[str, np.ndarray]) -> Iterator[Issue]:
    """Yield the rows of one split whose inputs are all equal to those of an earlier split.

    Args:
        splits: The splits.
        codes: Code of each row, by split.
    """
    for first, second in combinations(splits, 2):
        repeated = np.isin(codes[second], codes[first]) & (codes[second] >= 0)
        repeats: list[Issue] = []
        # The last row with each code, without a dict of all rows.
        order = np.argsort(codes[first], kind="stable") if repeated.any() else np.empty(0, np.int64)
        rows = np.flatnonzero(repeated)
        last = np.searchsorted(codes[first][order], codes[second][rows], side="right") - 1
        for row, i in zip(rows.tolist(), order[last].tolist(), strict=True):
            other = splits[first].origin[i]
            reason = f"all inputs are equal to those of {other} ({first})"
            repeats.append(Issue(reason, splits[second].origin[row], split=second))
        if repeats:
            total = count(len(codes[second]), "row")
            verb = "occurs" if len(repeats) == 1 else "occur"
            yield Issue(
                f"{len(repeats):,} of {total} of {second} also {verb} in {first}, such as "
                f"{repeats[0].origin}, which makes the metrics of {second} too good",
                rows=repeats,
            )


def _shared_files(name: str, codes: Mapping[str, np.ndarray]) -> Iterator[Issue]:
    """Yield the files of an input that rows of two splits share, from their codes by split."""
    for first, second in combinations(codes, 2):
        present = codes[second][codes[second] >= 0]
        num_shared = int(np.isin(present, codes[first]).sum())
        if num_shared:
            yield Issue(
                f"{name}: {num_shared:,} of {count(len(present), 'row')} of {second} "
                f"{'has' if num_shared == 1 else 'have'} a file that rows of {first} have, too"
            )


def _shared_groups(splits: Mapping[str, Rows]) -> Iterator[Issue]:
    for first, second in combinations(splits, 2):
        groups = set(splits[first].groups or ()) - {None}
        shared = groups & set(splits[second].groups or ())
        if shared:
            yield Issue(
                f"{count(len(shared), 'group')} of data.group "
                f"{'is' if len(shared) == 1 else 'are'} in both {first} and {second}, such as "
                f"{_short(min(shared, key=str))}"
            )


def _contradictions(
    splits: Mapping[str, Opened], codes: Mapping[str, np.ndarray], *, has_order: bool
) -> Iterator[Issue]:
    """Yield the rows whose inputs are equal to those of a row with another target.

    Args:
        splits: The splits.
        codes: Code of each row, by split.
        has_order: Whether the names of a target have an order, as the tags of words have.
    """
    counts = np.bincount(np.concatenate(list(codes.values())) + 1, minlength=1)
    counts[0] = 0  # rows without inputs
    first_of: dict[int, tuple[str, Any]] = {}
    affected: list[Issue] = []
    example = ""
    for name, split in splits.items():
        if split.targets is None:
            continue
        for row in np.flatnonzero(counts[codes[name] + 1] > 1).tolist():
            # Not the cell: the same target can be written in several ways, or be another file.
            target, origin = split.targets[row], split.origin[row]
            if target is None:
                continue
            other, expected = first_of.setdefault(int(codes[name][row]), (origin, target))
            if not _are_equal(target, expected, has_order=has_order):
                reason = (
                    f"inputs of {other}, but target {_short(target)} instead of {_short(expected)}"
                )
                affected.append(Issue(reason, origin, split=name))
                example = example or f"{other} ({_short(expected)}) and {origin} ({_short(target)})"
    if affected:
        yield Issue(
            f"{count(len(affected), 'row')} {'has' if len(affected) == 1 else 'have'} the same "
            f"inputs as another row, but another target, such as {example}",
            rows=affected,
        )


def _are_equal(target: Any, other: Any, *, has_order: bool) -> bool:
    if isinstance(target, list) and not has_order:
        return set(map(repr, target)) == set(map(repr, other))
    return repr(target) == repr(other) or (isinstance(target, Described) and target == other)


def _missing_by_class(train: Opened, inputs: Mapping[str, InputSpec]) -> Iterator[Issue]:
    """Yield the columns that all rows of a class lack, which tells the class without their values.

    Such values are often entered after the class is known, as the reason of a cancellation is.
    """
    targets = train.targets or ()
    if not all(isinstance(target, str) for target in targets):
        return
    totals = Counter(targets)
    for name, present in train.present.items():
        filled = Counter(
            target for target, is_filled in zip(targets, present, strict=True) if is_filled
        )
        for label, number in totals.items():
            others, filled_others = len(targets) - number, filled.total()
            if filled[label] or 2 * filled_others < others:
                continue
            # If the values of this class were missing as often as the others.
            share = (others - filled_others + 1) / (others + 2)
            if number * math.log(share) < LOG_CHANCE:
                column = inputs[name].column
                yield Issue(
                    f"{column}: empty in all {number:,} training rows of the class "
                    f"{_short(label)}, but filled in {filled_others:,} of {others:,} others, so "
                    "that a gap tells the class; if the values are entered when the class is "
                    f"known, leave the column out with data.exclude={shlex.quote(column)}"
                )
                break  # one class is enough


def _target_problems(splits: Mapping[str, Opened]) -> Iterator[Issue]:
    # If all training targets are equal, `check_learnable` says so.
    is_constant = "train" in splits and _constant(splits["train"]) is not None
    counts: dict[str, Counter[str]] = {}  # number of rows of each class or label, by split
    for name, split in splits.items():
        constant = None if is_constant else _constant(split)
        if constant is not None and len(split) > 1:
            yield Issue(f"{name}: {constant}")
        counts[name] = Counter()
        for target in split.targets or ():
            if isinstance(target, Described):
                counts[name].update(dict.fromkeys(target.names, 1))
            elif isinstance(target, str):
                counts[name][target] += 1
            elif isinstance(target, list) and all(isinstance(label, str) for label in target):
                counts[name].update(dict.fromkeys(target, 1))
    classes = counts.get("train", Counter())
    spellings: dict[str, str] = {}
    for name in classes:
        spelling = " ".join(name.split()).casefold()
        # 1 and 1.0, which pandas writes if another cell of the column is empty.
        other = spellings.setdefault(WHOLE.sub(r"\1", spelling), name)
        if other != name:
            yield Issue(
                f"the classes {_short(other)} and {_short(name)} differ only in spaces, in upper "
                "and lower case, or in the decimals of a whole number"
            )
            break  # one example is enough
    for name, number in classes.items():
        # "None" and "unknown" are often classes on purpose.
        if has_no_value(name):
            yield Issue(
                f"the class {name!r} ({number:,} × in train) looks like a missing value; "
                "leave these cells empty if it is one"
            )
    for name in SPLITS[1:] if classes else ():
        # Texts need not be classes, and a new text is normal.
        unknown = counts.get(name, Counter()).keys() - classes.keys()
        if unknown and any(isinstance(t, Described) for t in splits[name].targets or ()):
            yield Issue(
                f"{name}: classes that train does not have: {list_names(sorted(unknown), MAX_RARE)}"
            )
    evaluated = [n for n in SPLITS[1:] if n in splits and len(splits[n]) >= MIN_ROWS]
    # Half of an equal share: in a small and balanced data set, all classes have few rows.
    few = classes.total() / (2 * max(len(classes), 1))
    # Too few rows to learn from, or to measure.
    rare = [
        name
        for name, number in classes.items()
        if number < MIN_PER_CLASS
        or (number < few and any(counts[split][name] < MIN_MEASURED for split in evaluated))
    ]
    if rare and len(classes) > 1:
        yield _rare_classes(rare, classes, {split: counts[split] for split in evaluated})


def _rare_classes(
    rare: list[str], classes: Counter[str], evaluated: Mapping[str, Counter[str]]
) -> Issue:
    """Return the issue about classes with few rows.

    Args:
        rare: Their names.
        classes: Number of rows of each class in the training split.
        evaluated: The same of the splits that are evaluated.
    """
    rare = sorted(rare, key=lambda name: classes[name])
    rows = [
        f"{_short(name)} has {count(classes[name], 'row')} in train"
        + "".join(f", {counts[name]} in {split}" for split, counts in evaluated.items())
        for name in rare[:MAX_RARE]
    ]
    more = [f"and {len(rare) - MAX_RARE:,} more"] if len(rare) > MAX_RARE else []
    return Issue(
        f"{len(rare):,} of {len(classes):,} classes {'is' if len(rare) == 1 else 'are'} rare, so "
        f"single rows decide about the metrics: {'; '.join([*rows, *more])}"
    )


def _constant(split: Opened) -> str | None:
    """Return a sentence if all targets of a split are equal."""
    targets = [target for target in split.targets or () if target is not None]
    if not targets or len({repr(target) for target in targets}) > 1:
        return None
    if len(targets) == 1:
        return f"there is only 1 row ({split.origin[0]})"
    return f"all {len(targets):,} targets are {_short(targets[0])}"


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Described) else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def count_truncated(
    opened: Opened, tokenizers: Mapping[str, Tokenizer], rows: Sequence[int] | None = None
) -> dict[str, Truncation]:
    """Count truncated samples, by input name. Inputs without truncated samples are left out.

    Args:
        opened: Opened rows.
        tokenizers: Tokenizers of fitted adapters, by input name.
        rows: Rows that are counted. Default: all.
    """
    rows = range(len(opened)) if rows is None else rows
    truncations: dict[str, Truncation] = {}
    for name, tokenizer in tokenizers.items():
        # A tokenizer that does not define `cut` never truncates. Skip it, because reading all of
        # its values would take long.
        can_cut = type(tokenizer).cut is not Tokenizer.cut and tokenizer.cut_unit
        if name not in opened.raws or not can_cut:
            continue
        num_values = 0
        counts: list[tuple[int, int]] = []
        for row in rows:
            if not opened.present[name][row]:
                continue
            num_values += 1
            # Without a random generator, because augmentation changes the lengths.
            lengths = tokenizer.cut(opened.raws[name][row])
            if lengths is not None:
                counts.append(lengths)
        if counts:
            max_len = max(num_read for num_read, _ in counts)
            median = statistics.median(num_read / total for num_read, total in counts)
            truncations[name] = Truncation(
                count=len(counts),
                total=num_values,
                max_len=max_len,
                median_read=median,
                unit=tokenizer.cut_unit,
            )
    return truncations


def check_kept(
    opened: Opened,
    task: Task,
    tokenizers: Mapping[str, Tokenizer],
    where: str,
    rows: Sequence[int] | None = None,
) -> list[str]:
    """Return a note about targets that are cut, such as those of long texts; none if none is.

    Args:
        opened: Opened rows.
        task: The task. Its target is bound and fitted.
        tokenizers: Tokenizers of fitted adapters, by input name.
        where: What the rows are, such as "validation".
        rows: Rows that are counted. Default: all.

    Raises:
        UserError: If no token of any target of the training split is left.
    """
    target = task.target
    if type(target).kept is Target.kept:  # most targets cannot be cut
        return []
    lost = cut = 0
    rows = range(len(opened)) if rows is None else rows
    for row in rows:
        raws = {name: column[row] for name, column in opened.raws.items()}
        value = None if opened.targets is None else opened.targets[row]
        kept = target.kept(value, raws, tokenizers) if task.is_supervised or raws else None
        if kept is not None:
            lost += not kept[0]
            cut += bool(kept[0])
    if not lost + cut:
        return []
    part, option = target.limit
    total = count(len(rows), "row")
    if lost == len(rows) and where == "train":
        raise UserError(
            f"{option}: none of {total} of the training split has a token of {part} within it, so "
            "there is nothing to learn; set a larger one, or shorten what is before it"
        )
    line = f"{where}: of {total}, {lost:,} have no token of {part} within {option}"
    if not lost:
        return [f"{where}: of {total}, {cut:,} have only a part of {part} within {option}"]
    return [f"{line}, and {cut:,} only a part of it" if cut else line]
