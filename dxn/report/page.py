"""Write self-contained HTML pages from the templates of this package."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import dxn
from dxn.core.files import write_text
from dxn.core.printable import printable, valid_text

TEMPLATES = Path(__file__).with_name("templates")


def write_page(template: str, path: Path, content: Mapping[str, Any]) -> None:
    """Write a page that loads nothing from elsewhere.

    Args:
        template: Name of the template.
        path: File to write.
        content: Variables of the template. Texts are escaped, and control characters and secrets
            are replaced. `Markup` is inserted as it is.
    """
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
    )
    html = environment.get_template(template).render(
        **content,
        version=dxn.__version__,
        policy=Markup(_policy(script)),
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
    )
    write_text(path, valid_text(html))


def _policy(script: str) -> str:
    """Return the content security policy: no network, and no script except for that of the page.

    A text from data that became an element by a mistake could therefore still not run code.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _printable(value: Any) -> Any:
    # Markup is a str too, and is already escaped.
    return printable(value) if type(value) is str else value
