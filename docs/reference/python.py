"""The page python.md, from the signatures and the docstrings.

python docs/reference/python.py   # writes docs/reference/python.md
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from dxn.core.parts import imported

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# Python, name by name

`make docs` writes this page from the signatures and the docstrings.
[Python and notebooks](../python.md) shows how to use these functions and classes."""
# Sections in which every member is described, and the names in them.
COMPLETE = {
    "dxn": (
        "dxn.train",
        "dxn.Run",
        "dxn.load",
        "dxn.from_public",
        "dxn.Predictor",
        "dxn.Model",
        "dxn.Tokens",
        "dxn.join",
        "dxn.UserError",
        "dxn.sklearn.Classifier",
        "dxn.sklearn.Regressor",
    ),
    "Base classes": (
        "dxn.tokenize.Reader",
        "dxn.tokenize.Tokenizer",
        "dxn.tokenize.Adapter",
        "dxn.tasks.Target",
        "dxn.tasks.Space",
        "dxn.tasks.Metric",
        "dxn.tasks.Task",
    ),
}
BASE_CLASSES = "The classes of which [a modality and a task of your own](../extend.md) are made."
MAX_WIDTH = 100  # of a signature in one line
# Packages whose names are listed with their first sentence. help(NAME) prints the rest.
LISTED = ("dxn.tokenize", "dxn.models", "dxn.tasks", "dxn.data", "dxn.weights")
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):$", re.MULTILINE)


class Plain(str):
    """An annotation that a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """Return the content of the page."""
    lines = [INTRO]
    for heading, names in COMPLETE.items():
        lines += ["", f"## {heading}"]
        lines += ["", BASE_CLASSES] if heading == "Base classes" else []
        for name in names:
            lines += ["", f"### {name}", "", *described(name, imported(name))]
    for package in LISTED:
        lines += ["", f"## {package}", "", "| name | meaning |", "|---|---|", *listed(package)]
    return "\n".join([*lines, ""])


def described(name: str, value: Any) -> Iterator[str]:
    """Yield the lines of a function or a class: signature, docstring and members."""
    if not is_exception(value):
        yield from signature_block(name.rpartition(".")[2], value)
    yield from prose(value)
    for member, content in vars(value).items() if inspect.isclass(value) else ():
        if member.startswith("_") or not inspect.getdoc(content):
            continue
        label = f"{value.__name__}.{member}"
        if isinstance(content, (staticmethod, classmethod)):
            content = content.__func__
        if isinstance(content, (property, cached_property)):
            yield from ["", f"**{label}** (property)", "", *prose(content)]
        elif inspect.isfunction(content):
            yield from ["", f"**{label}**", "", *signature_block(member, content), *prose(content)]


def is_exception(value: Any) -> bool:
    """Return whether a value is an exception, whose signature Python cannot tell."""
    return inspect.isclass(value) and issubclass(value, Exception)


def signature_block(name: str, value: Any) -> list[str]:
    """Return the signature in a block, with one argument per line if it is long."""
    signature = typed(value)
    line = f"{name}{signature}"
    if len(line) > MAX_WIDTH:
        # `str` writes the signs * and / between the arguments, which a loop would have to repeat.
        inner = str(signature.replace(return_annotation=signature.empty))[1:-1]
        end = line.removeprefix(f"{name}({inner}")
        line = "\n".join([f"{name}(", *(f"    {part}," for part in split(inner)), end])
    return ["```text", line, "```", ""]


def split(arguments: str) -> list[str]:
    """Split arguments at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "[(") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def typed(value: Any) -> inspect.Signature:
    """Return the signature with annotations without quotes, and without `self`."""
    signature = inspect.signature(value)
    parameters = [
        p.replace(annotation=Plain(p.annotation)) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    result = signature.return_annotation
    plain = Plain(result) if isinstance(result, str) else result
    return inspect.Signature(parameters, return_annotation=plain)


def prose(value: Any) -> list[str]:
    """Return a docstring in Google's style as Markdown."""
    text, *sections = SECTION.split(inspect.getdoc(value) or "")
    lines = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body).strip("\n")
        lines += ["", f"*{title}*:", ""]
        if title.startswith("Example"):
            lines += ["```text", body, "```"]
        elif title in ("Returns", "Yields"):
            lines[-2:] = [f"*{title}*: {' '.join(body.split())}"]
        else:
            lines += list(items(body))
    return lines


def items(body: str) -> Iterator[str]:
    """Yield the items of a section as a list."""
    for item in re.split(r"\n(?=\S)", body):
        text = " ".join(item.split())
        named = re.match(r"([*\w., |]+): (.*)", text)
        yield f"- `{named[1]}`: {named[2]}" if named else f"- {text}"


def listed(package: str) -> Iterator[str]:
    """Yield a row of each class and function that a package exports."""
    for name in dir(importlib.import_module(package)):
        if name.startswith("_"):
            continue
        value = imported(f"{package}.{name}")
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if value.__module__.startswith(f"{package}."):
            doc = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
            first = re.split(r"(?<=[.:]) (?=[A-Z])", doc)[0].replace("|", "\\|")
            call = "" if is_exception(value) else arguments(value)
            yield f"| `{name}{call}` | {first} |"


def arguments(value: Any) -> str:
    """Return the names of the arguments of a call, without types and defaults."""
    parts: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        optional = "" if parameter.default is parameter.empty else "=..."
        parts.append(f"{star.get(parameter.kind, '')}{parameter.name}{optional}")
    return f"({', '.join(parts)})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
