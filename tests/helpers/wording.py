"""Wording that a reader has to decode. CONTRIBUTING.md explains the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

UNITS = "file folder class sample step row line word split speaker epoch process letter column"
UNITS += " token patch frame label image recording block head"
PER = "class sample step row word epoch split speaker process token family head label case number"
PER += " file column image recording block"

BANNED = {
    "a folder a class": rf"\b(?:a|an) (?:{'|'.join(UNITS.split())}) (?:a|an) "
    rf"(?:{'|'.join(PER.split())})\b",
    "so-manieth": r"so-manieth",
    "hang on": r"\bhangs? on\b",
    "otherwise than": r"otherwise than",
    "manyfold": r"\bmanyfold\b",
    "anew": r"\banew\b",
    "mend": r"\bmend(?:s|ed)?\b",
    "come out even": r"comes? out even",
    "unless given": r"\bunless (?:one is )?given\b",
    "goes on to": r"\bgoes on to\b",
    "told the truth": r"\btold the truth\b",
    "worked out": r"\bworked out\b",
    "made on the spot": r"\bmade on the spot\b",
    "by heart": r"\bby heart\b",
    "let them meet": r"\blet them meet\b",
    "what counted": r"\bwhat counted\b",
    "the house": r"\bthe house\b",
    "guess": r"\bguess(?:es|ed|ing)?\b",
    "spoil": r"\bspoil(?:s|ed)?\b",
    "luck": r"\bluck\b",
}

ANY = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED.values()), re.IGNORECASE)


def banned(text: str) -> list[str]:
    """The banned phrases in a text."""
    return [match.group(0) for match in ANY.finditer(text)]


def texts(root: Path, tree: Callable[[Path], ast.Module]) -> Iterator[tuple[str, str]]:
    """Everything that a reader sees, with its place: pages, comments, and strings of words.

    `tree` parses a file.
    """
    pages = [root / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md")]
    for path in [*pages, *sorted((root / "docs").rglob("*.md"))]:
        yield str(path.relative_to(root)), path.read_text(encoding="utf-8")
    for path in sorted((root / "dxn" / "conf").rglob("*.yaml")):
        yield str(path.relative_to(root)), path.read_text(encoding="utf-8")
    for path in sorted((root / "dxn").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        for i, line in enumerate(source.splitlines(), 1):
            if "#" in line:
                yield f"{name}:{i}", line.partition("#")[2]
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{name}:{node.lineno}", node.value
