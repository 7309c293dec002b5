"""Render the templates of HTML fragments."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.printable import printable

# jinja2 is imported when a notebook shows the first result.
if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).with_name("fragments")


def render(template: str, **content: Any) -> str:
    """Return an HTML fragment.

    Args:
        template: Name of the template, without its suffix.
        **content: Variables of the template. Texts are escaped, and their control characters and
            secrets are replaced.
    """
    return _environment().get_template(f"{template}.html").render(**content)


@cache
def _environment() -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
