"""The blocks of the documentation, and what their commands need and write.

python tests/helpers/pages.py docs/inputs/text.md   # runs a guide for real, in an empty folder
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxn.commands import all_commands
from dxn.commands.options import check_paths
from dxn.config.command import Command
from dxn.config.help import topic_page
from dxn.config.settings import Settings
from dxn.runs.folder import has_model

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# A guide shows one modality or one task. Its blocks work, in their order, in an empty folder.
GUIDES = sorted([*(DOCS / "inputs").glob("*.md"), *(DOCS / "tasks").glob("*.md")])
PAGES = [*sorted(DOCS.glob("*.md")), *GUIDES]
REFERENCE = sorted((DOCS / "reference").glob("*.md"))  # written by the modules beside them
MODEL = Path("model", "config.yaml")  # the file that makes a run folder one of a finished training

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FILE_NAME = re.compile(r"[\w./-]+\.[a-z][a-z0-9]{1,6}")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Args:
        kind: The word after the fence, such as python or sh.
        text: The content.
        output: What a block of Python prints: the content of the block of text that follows it.
    """

    kind: str
    text: str
    output: str = ""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in their order. An output belongs to the block before it."""
    found: list[Block] = []
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "text" and found and found[-1].kind == "python" and not found[-1].output:
            found[-1] = Block("python", found[-1].text, text)
        else:
            found.append(Block(kind, text))
    return found


def commands(block: Block) -> Iterator[str]:
    """The dxn commands of a block for the shell, without comments."""
    prompt = "$ " if block.kind == "console" else ""
    if block.kind not in ("sh", "console"):
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        command = line.removeprefix(prompt).partition("  #")[0].strip()
        if line.startswith(f"{prompt}dxn "):
            yield command


def scripts(block: Block) -> list[Path]:
    """The scripts of examples/guides that a block for the shell runs, which write its data."""
    names = re.findall(r"^python (examples/guides/\w+\.py)", block.text, re.MULTILINE)
    return [ROOT / name for name in names] if block.kind == "sh" else []


def run_python(block: Block, names: dict[str, Any], page: str) -> str:
    """Run a block of Python with the names of the earlier blocks, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, page, "exec"), names)
    return printed.getvalue()


def check_command(command: str) -> list[Command]:
    """Compose a command; none for a page of help."""
    _, verb, *words = shlex.split(command)
    if verb == "help" or "--help" in words:
        topic_page([verb, *words], all_commands())
        return []
    return [all_commands()[verb].compose(words)]


def check_and_write(command: str) -> None:
    """Check a command of a guide in the current folder, and write what it would write, as stubs."""
    for word in shlex.split(command)[2:]:
        key, _, value = word.rpartition("=")
        if key != "output" and FILE_NAME.fullmatch(value):
            assert Path(value).exists(), f"{value} is not made by the page: {command}"
    for composed in check_command(command):
        check_paths(composed)
        verb, settings = composed.verb(), composed.settings
        values = settings.values
        source = (values.get("weights") or {}).get("source")
        # Unlike run=, weights= does not look for the newest run in a folder of runs.
        assert not source or not Path(source).is_dir() or has_model(Path(source)), command
        if verb == "train":
            _write_run(settings)
        elif verb != "check" and values.get("output"):
            path = Path(values["output"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch() if path.suffix else path.mkdir(exist_ok=True)


def _write_run(settings: Settings) -> None:
    values = settings.values
    data = values["data"]
    name = values["name"] or data.get("target") or Path(data.get("path") or "run").stem
    assert isinstance(name, str), "set name= if a later command uses this run"
    folder = Path(values["run"] or Path(values["output"], name, "run"))
    settings.save(folder)
    (folder / MODEL).parent.mkdir(exist_ok=True)
    (folder / MODEL).touch()


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in plain}


def run_guide(page: Path, folder: Path) -> None:
    """Run every block of a guide for real in an empty folder, and print the time of each."""
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        for block in blocks(page):
            start = time.perf_counter()
            if block.kind == "python":
                printed = run_python(block, names, page.name)
                assert printed == block.output, printed
                print(f"{time.perf_counter() - start:6.1f} s  python", flush=True)
            for script in scripts(block):
                runpy.run_path(str(script))
            for command in commands(block):
                print(f"$ {command}", flush=True)
                start = time.perf_counter()
                words = [sys.executable, "-m", *shlex.split(command)]
                subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
                print(f"{time.perf_counter() - start:6.1f} s  {command}\n", flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as empty:
            run_guide(Path(argument).resolve(), Path(empty))
