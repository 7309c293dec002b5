"""HTML: how templates are rendered, and pages that load nothing and run only their own scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dxn
from dxn.core.files import write_text
from dxn.core.printable import printable, valid_text

# jinja2 is imported when the first template is rendered.
if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


def render(template: Path, **content: Any) -> str:
    """Return a rendered template.

    Args:
        template: The template. It can extend and import others of its folder.
        **content: Variables of the template. Texts are escaped, and their control characters and
            secrets are replaced. `Markup` is inserted as it is.
    """
    return _environment(template.parent).get_template(template.name).render(**content)


def write_page(template: Path, path: Path, scripts: Sequence[Path], **content: Any) -> None:
    """Write a page that loads nothing from elsewhere, and runs only these scripts.

    A text from data that became an element by a mistake could therefore not run code.

    Args:
        template: The template, with the variables `policy`, `scripts` and `version`.
        path: File to write.
        scripts: JavaScript files, which become a part of the page.
        **content: Further variables, see `render`.
    """
    from markupsafe import Markup

    texts = [script.read_text(encoding="utf-8") for script in scripts]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = (
        "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
    content |= {"policy": Markup(policy), "scripts": list(map(Markup, texts))}
    page = render(template, version=dxn.__version__, **content)
    write_text(path, valid_text(page))


def json_script(data: Any) -> str:
    """Return data as JSON for a script element.

    The element would end at "</script", which a text can contain. In JSON, \\u003c is the same
    character.
    """
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")


def escaped(text: str) -> str:
    """Return a text for HTML, also inside of quotation marks, with control characters as escapes.

    Lines and tabs stay as they are.
    """
    return html.escape(printable(text))


def data_url(kind: str, content: bytes) -> str:
    """Return the content of a file of a media type as a URL, so that a page needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@cache
def _environment(folder: Path) -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Markup is a str too, and is already escaped.
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
