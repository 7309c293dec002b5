"""The sandbox of Jinja in which chat templates run, with limits of time and size.

A template gets what transformers gives it: the filter `tojson`, the functions `raise_exception` and
`strftime_now`, `break` and `continue` in loops, and the block `{% generation %}`.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Iterator
from types import BuiltinMethodType, MethodType
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, nodes, pass_context, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, sync_do_join
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dxn.tokenize.base import BadMedia

MAX_STEPS = 1_000_000  # items of loops, and calls
MAX_SECONDS = 5.0
MAX_CHARS = 10_000_000  # of a text
MAX_INDENT = 100  # columns
LIMITS = "dxn_limits"  # name of the limits of a rendering among its variables
GLOBALS = ("range", "dict", "namespace")
# Filters whose result is at most about as long as what they get. The others are not in templates.
FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum"),
    *("title", "trim", "unique", "upper"),
)
# Methods that make a text of any length from a number or a pattern.
WIDENING = ("center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate")


class TemplateFailure(BadMedia):
    """A template refuses messages, or exceeds a limit. The message is the reason."""


class Limits:
    """What a rendering may still use.

    Args:
        mark: Text to add before and after each block `{% generation %}`.
    """

    def __init__(self, mark: str = ""):
        self.mark = mark
        self.steps = 0
        self.chars = 0
        self.end = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count an item of a loop, or a call."""
        self.steps += 1
        if self.steps > MAX_STEPS or time.monotonic() > self.end:
            raise TemplateFailure(
                f"the chat template takes too long (more than {MAX_STEPS:,} steps or "
                f"{MAX_SECONDS:g} seconds); use another one"
            )

    def take_text(self, size: int) -> None:
        """Count the characters of the text."""
        self.chars += size
        check_size(self.chars)


def check_size(size: int) -> None:
    """Raise TemplateFailure if a text or a list would be too large."""
    if size > MAX_CHARS:
        raise TemplateFailure(
            f"the chat template makes a text of more than {MAX_CHARS:,} characters; use another one"
        )


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also counts calls and limits the size of texts and lists."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse methods that make a text of any length."""
        return attr not in WIDENING and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Let `is_safe_attribute` refuse the method `format`."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Count a call, and limit the texts that `replace` and `join` make."""
        context[LIMITS].step()
        # The second type is that of the methods of escaped texts, which are written in Python.
        if isinstance(obj, BuiltinMethodType | MethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "replace":
                return _replace(obj.__self__, *args, **kwargs)
            if obj.__name__ == "join":
                args = (_checked_parts(args[0], obj.__self__),)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result is not too large."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # most of them
            check_size(len(left) + len(right))
            return left + right
        if operator == "%" and isinstance(left, str):
            raise TemplateFailure("the chat template formats a text with %; use another one")
        sizes = [len(v) for v in (left, right) if isinstance(v, str | list | tuple)]
        numbers = [int(v) for v in (left, right) if isinstance(v, int)]
        if operator == "+":
            check_size(sum(sizes))
        elif operator == "*" and sizes:
            check_size(sizes[0] * max([0, *numbers]))
        elif operator == "*":
            check_size(sum(number.bit_length() for number in numbers))
        elif operator == "**" and len(numbers) == 2:
            check_size(numbers[0].bit_length() * abs(numbers[1]))
        return super().call_binop(context, operator, left, right)


class Generation(Extension):
    """The block `{% generation %}`, which marks an answer of the assistant."""

    tags: ClassVar = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        """Return the block as a filter of its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marked: Any = nodes.Filter(None, "dxn_marked", [], [], None, None)
        return nodes.FilterBlock(body, marked).set_lineno(line)


class Counting(NodeTransformer):
    """Lets the limits count the items of loops, and the texts that `~` joins."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (the name of the node)
        """Count the items of a loop."""
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "dxn_items", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Join texts by a filter."""
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "dxn_joined", [], [], None, None, lineno=node.lineno)


def compiled(source: str) -> Template:
    """Compile a template, whose variables include the `Limits` with the name LIMITS.

    Raises:
        TemplateError: If it is not valid.
    """
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    known = {name: sandbox.filters[name] for name in FILTERS}
    sandbox.filters = {
        **known,
        "dxn_items": _items,
        "dxn_joined": _joined,
        "dxn_marked": _marked,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "tojson": _to_json,
    }
    sandbox.globals = {name: sandbox.globals[name] for name in GLOBALS}
    sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return sandbox.from_string(Counting().visit(sandbox.parse(source)))


@pass_context
def _items(context: Context, iterable: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a loop, and count them."""
    for item in iterable:
        context[LIMITS].step()
        yield item


@pass_context
def _joined(context: Context, parts: list[Any]) -> str:
    """Return the concatenation of the operator `~`."""
    context[LIMITS].step()
    return "".join(_checked_parts(parts))


@pass_context
def _marked(context: Context, text: str) -> str:
    """Return the text of a block between two marks."""
    mark = context[LIMITS].mark
    return f"{mark}{text}{mark}"


def _checked_parts(parts: Iterable[Any], separator: str = "") -> list[str]:
    """Return parts of a text as texts, after checking the size of the whole."""
    texts: list[str] = []
    size = 0
    for part in parts:
        texts.append(str(part))
        size += len(texts[-1]) + len(separator)
        check_size(size)
    return texts


@pass_eval_context
def _join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    items = list(value)
    _checked_parts(items, str(d))
    return sync_do_join(context, items, d, attribute)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    check_size(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_indent(width)
    return do_indent(str(text), width, first, blank)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own filter, which escapes characters for HTML.
    _check_indent(indent)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _check_indent(width: int | str | None) -> None:
    if width is not None and (width if isinstance(width, int) else len(width)) > MAX_INDENT:
        raise TemplateFailure(f"the chat template indents by more than {MAX_INDENT} columns")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
