"""The environment of Jinja in which chat templates run, as that of transformers.

It is Jinja's sandbox, without access to files, and with the filter `tojson`, the functions
`raise_exception` and `strftime_now`, `break` and `continue` in loops, and the block
`{% generation %}`.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARK = "dxn_mark"  # name of the text before and after each block `{% generation %}`


class Generation(Extension):
    """The block `{% generation %}`, which marks an answer of the assistant."""

    tags: ClassVar = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        """Return the block between two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = nodes.Output([nodes.Name(MARK, "load")])
        return nodes.Scope([mark, *body, mark]).set_lineno(line)


def compiled(source: str) -> Template:
    """Compile a template, whose variables include MARK if its blocks are to be marked.

    Raises:
        TemplateError: If it is not valid.
    """
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return sandbox.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own filter, which escapes characters for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
