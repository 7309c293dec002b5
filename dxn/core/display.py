"""What commands print: lines, tables, progress as a bar or as lines of a log file, numbers."""

from __future__ import annotations

import importlib
import json
import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache, cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from dxn.core.printable import printable

# rich is imported when something is printed: a single prediction ends before.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.table import Table
    from rich.text import Text

Item = TypeVar("Item")

# Seconds between two updates of the bar.
BAR_INTERVAL = 0.5
# Seconds until the first lines of a log file, each counted from the line before it. A short run
# has a line soon, and the log of a long run stays short.
LINE_INTERVALS = (10.0, 20.0, 30.0)
LAST_INTERVAL = 60.0

EDGE = 0.0005  # smallest share that is written as a percentage with one decimal
SMALLEST, LARGEST = 1e-4, 1e15  # numbers that are written without an exponent
FLOAT32_DECIMALS = 6  # further ones of numbers near 1 are rounding errors
RANK = "RANK"  # the variable with the number of a process that torchrun starts
WIDE = 1000  # characters; more than any table needs

_is_silent: ContextVar[bool] = ContextVar("silent", default=False)


@cache
def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # Without highlighting, numbers are not coloured. Soft wrapping leaves long lines to the
    # terminal: rich would break them at 80 columns when the output is a pipe or a file.
    # force_jupyter: in a notebook, rich would make a block with margins of each line.
    return Console(highlight=False, soft_wrap=True, force_jupyter=False, stderr=stderr)


def print_line(line: str, *, stderr: bool = False) -> None:
    """Print a line verbatim, except for control characters.

    Args:
        line: The line.
        stderr: Whether to print it to stderr, because stdout may be a generated text.
    """
    if prints():
        # Not with rich, which would replace :smile: and tabs. Flushed, so that the lines of stdout
        # and stderr keep their order in a log file.
        print(printable(line), file=sys.stderr if stderr else sys.stdout, flush=True)


def print_rule(title: str = "") -> None:
    """Print a horizontal line, with a title in its middle."""
    if prints():
        from rich.text import Text

        # Text, because rich would read brackets in a title as markup.
        _console().rule(Text(title), style="none")


def next_step(*words: str) -> None:
    """Print a command that the user may want to run next. It must run as it is printed."""
    line = shlex.join(words)
    # A line without its control characters would be another command.
    if printable(line) == line:
        print_line(f"next: {line}")


def format_shares(shares: Mapping[str, float]) -> str:
    """Return the share of each class that occurs, largest first."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number(share)}" for name, share in ranked if share)


def print_table(table: Table) -> None:
    """Print a table. Outside of a terminal, all of its columns have their full width."""
    from rich.console import Console

    if _console().is_terminal:
        if prints():
            _console().print(table)
        return
    # A pipe has no width, and rich would shorten the names of columns to fit into 80 characters.
    text = StringIO()
    Console(file=text, width=WIDE).print(table)
    print_line(text.getvalue().rstrip("\n"))


def records_table(records: Sequence[Mapping[str, object]]) -> None:
    """Print one row per record and one column per key."""
    from rich.table import Table
    from rich.text import Text

    columns: dict[str, None] = {}  # a set that keeps the order of the keys
    for record in records:
        columns |= dict.fromkeys(record)
    table = Table()
    for name in columns:
        table.add_column(Text(printable(name)))
    for record in records:
        cells = [record.get(name, "") for name in columns]
        # Text, because rich would read brackets in a cell as markup.
        texts = [number(c) if isinstance(c, float) else printable(str(c)) for c in cells]
        table.add_row(*map(Text, texts))
    print_table(table)


def plain_text(text: str) -> Text:
    """Return a text for a table cell, in which leading spaces are visible as dots.

    Many vocabularies have the same word with and without a space in front of it.
    """
    from rich.text import Text

    # A text of nothing but whitespace is shown by its escape sequences, such as '\n'.
    spaces = len(text) - len(text.lstrip())
    return Text("·" * spaces + printable(text.strip())) if text.strip() else Text(repr(text))


def now() -> str:
    """Return the name of a folder for the current time, such as 2026-01-31_12-00-00.00."""
    # Hundredths of a second, because short runs can start within the same second.
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-4]


class Display:
    """Shows how far a piece of work is: as a bar on a terminal, otherwise as lines.

    Args:
        main: Whether this process prints. Default: see `prints`.
        stderr: Whether to write to stderr, for a command whose output on stdout is a result.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        *,
        main: bool | None = None,
        stderr: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.main = prints() if main is None else main and prints()
        self.stderr = stderr
        self.clock = clock
        self.intervals = iter(LINE_INTERVALS)
        self.interval = next(self.intervals)
        self.since = clock()

    @cached_property
    def live(self) -> Any:
        """The progress in the output of a notebook cell; None without a notebook."""
        return _notebook().LiveLine() if self.main and is_notebook() else None

    @cached_property
    def has_bar(self) -> bool:
        """Whether the progress is shown as a bar."""
        return self.main and _console(stderr=self.stderr).is_terminal

    @cached_property
    def bar(self) -> Bar:
        """The bar, with a single task."""
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            console=_console(stderr=self.stderr),
            transient=True,
            disable=not self.has_bar,
            redirect_stdout=not self.stderr,  # results on stdout are never written to stderr
        )
        bar.add_task("", total=None, status="")
        return bar

    def is_due(self) -> bool:
        """Whether it is time to call `update`. Between the updates, this is all that is computed.

        A caller whose status is expensive, such as a loss that is still on the GPU, asks first.
        """
        waited = self.clock() - self.since
        # First without `has_bar`, which creates the console.
        if not self.main or waited < BAR_INTERVAL:
            return False
        return self.has_bar or self.live is not None or waited >= self.interval

    def update(self, title: str, done: int, total: int, status: str = "") -> None:
        """Show the progress, whether or not it is due.

        Args:
            title: Name of the work, such as "epoch 1/20".
            done: Number of items that are done.
            total: Number of all items.
            status: Further text, such as the time left.
        """
        title = printable(title)
        text = printable(f"{100 * done / total:.0f} %  {status}".rstrip())
        if self.live is not None:
            self.live.update(title, done, total, text)
        elif self.has_bar:
            # Started only now, so that short work shows no bar.
            self.bar.start()
            task = self.bar.task_ids[0]
            self.bar.update(task, description=title, completed=done, total=total, status=text)
        elif self.main:
            _console(stderr=self.stderr).print(f"{title}  {text}", markup=False)
        self.interval = next(self.intervals, LAST_INTERVAL)
        self.since = self.clock()

    def line(self, text: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if self.main:
            _console(stderr=self.stderr).print(printable(text), markup=False)
        # Any line in a log file shows that the work continues, so the interval starts again.
        self.since = self.clock()

    def close(self) -> None:
        """Remove the bar."""
        if "bar" in self.__dict__:
            self.bar.stop()
        if self.__dict__.get("live") is not None:
            self.__dict__["live"].close()


def track(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    """Yield the items, and show on stderr how many of them are done if it takes long.

    Args:
        items: The items.
        total: Number of items.
        title: Name of the work, such as "reading".
    """
    display = Display(stderr=True)
    try:
        for done, item in enumerate(items):
            if display.is_due():
                display.update(title, done, total)
            yield item
    finally:
        display.close()


def is_notebook() -> bool:
    """Whether the process is the kernel of a notebook, such as Jupyter, VS Code or Colab."""
    # IPython on a terminal has another shell, and a terminal shows a bar already.
    if "IPython" not in sys.modules or "ipykernel" not in sys.modules:
        return False
    shell: Any = importlib.import_module("IPython").get_ipython()
    return hasattr(shell, "kernel")


def notebook_html(value: Any) -> str:
    """Return what a notebook shows of a result, see `dxn.viz.notebook`."""
    return _notebook().html_of(value)


def _notebook() -> Any:
    # Drawings know the core, and not the other way round, so they are imported on first use.
    return importlib.import_module("dxn.viz.notebook")


def is_main_process() -> bool:
    """Whether this process is the first one of those that torchrun starts."""
    return os.environ.get(RANK, "0") == "0"


def prints() -> bool:
    """Whether this process and this thread print: the first process, outside of `silence`."""
    return os.environ.get(RANK, "0") == "0" and not _is_silent.get()


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing in this thread. Other threads still print."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def input_line(name: str, column: str, modality: str) -> str:
    """Return the line about an input. It names neither the column nor the modality twice."""
    if column == name:
        return f"{name} ({modality})"
    return f"{name}: {column}" if modality == name else f"{name}: {column} ({modality})"


def count(number: int, singular: str, plural: str = "") -> str:
    """Return a number and its noun, such as "1 row" or "1,200 rows".

    Args:
        number: The number.
        singular: The noun for one.
        plural: The noun for several. Default: singular + "s".
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def significant(value: float) -> float:
    """Round to six significant digits. Float32, which models compute with, has about seven."""
    return float(f"{value:.6g}")


def cut(text: str, length: int) -> str:
    """Return at most `length` characters of a text. One that is cut ends with "…"."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def join_names(names: Iterable[str]) -> str:
    """Return names as one text, those that occur several times with their number, such as 3 × cup.

    Those with a comma are in quotes, so that all can be told apart.
    """
    quoted = Counter(json.dumps(n, ensure_ascii=False) if "," in n else n for n in names)
    return ", ".join(f"{times} × {name}" if times > 1 else name for name, times in quoted.items())


def list_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first names of a list and the number of the others, such as "a, b and 7 more"."""
    more = f" and {len(names) - count:,} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def duration(seconds: float) -> str:
    """Format a duration, such as 1 h 2 min, 3 min 4 s or 5 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def number(value: float, largest: float | None = None) -> str:
    """Return a number with at least five digits, such as 0.8125, 612,902 or 1.2346e-06.

    The zero before the point counts as a digit from 0.1 on. Zeros at the end are left out. A number
    below 1 is not written as 1, unless the difference is a rounding error of float32.

    Args:
        value: The number.
        largest: The largest number of a column, so that all of its numbers have as many decimals.
            A number that would have fewer than two digits then has its own decimals.
    """
    if not math.isfinite(value):
        return str(value)
    value += 0.0  # -0.0 becomes 0.0
    magnitude = abs(value)
    if magnitude and (magnitude < SMALLEST or magnitude >= LARGEST):
        return f"{value:.5g}"
    decimals = _decimals(magnitude if largest is None else max(magnitude, abs(largest)))
    if largest is not None and (magnitude == 0 or magnitude >= 10 ** (1 - decimals)):
        text = f"{value:,.{decimals}f}"
        if magnitude >= 1 or float(text) != 1:
            return text
    decimals = _decimals(magnitude)
    while magnitude < 1 and round(magnitude, decimals) == 1 and decimals < FLOAT32_DECIMALS:
        decimals += 1
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def _decimals(magnitude: float) -> int:
    """Return the decimals of five digits, of which a zero before the point is one from 0.1 on."""
    if magnitude == 0 or 0.1 <= magnitude < 1:
        return 4
    return max(4 - math.floor(math.log10(magnitude)), 0)


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 10 % and above 99 %.

    Only a share of exactly 0 or 1 is written as 0% or 100%.
    """
    if 0 < share < EDGE:
        return "<0.1%"
    if 1 - EDGE < share < 1:
        return ">99.9%"
    is_close = 0 < share < 0.0995 or 0.9905 < share < 1
    return f"{share:.1%}" if is_close else f"{share:.0%}"
