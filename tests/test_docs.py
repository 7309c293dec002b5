"""The Python in the pages runs and prints what the page says, and docs/config.md is current."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path

import pytest

from dxn import signature_index
from dxn.config import compose

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [p for p in sorted(DOCS.glob("*.md")) if "```text" in p.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def reference():
    """The module docs/reference.py."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert blocks
    names: dict = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        assert printed.getvalue() == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_is_followed_by_its_output(page):
    text = page.read_text(encoding="utf-8")
    pairs = re.findall(r"```python\n.*?```\n+```text", text, re.DOTALL)
    assert text.count("```python") == len(pairs)


def test_the_configuration_page_is_current(reference):
    current = (DOCS / "config.md").read_text(encoding="utf-8")
    assert reference.page() == current, "run make docs"


def test_the_stored_signatures_are_current(reference):
    stored = json.loads(signature_index.PATH.read_text(encoding="utf-8"))
    current = signature_index.content(reference.index_targets())
    assert json.loads(json.dumps(current)) == stored, "run make docs"


def test_every_key_is_described_in_a_phrase_that_stands_alone(reference):
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", reference.page(), re.MULTILINE)
    assert len(rows) > 150
    bad = [key for key, _, text in rows if not text or re.match(r"(of|in place of) ", text)]
    assert bad == []


def test_every_key_of_a_training_is_on_the_page(reference):
    rows = re.findall(r"^\| `([^`]+)` \|", reference.page(), re.MULTILINE)
    keys: list[str] = []

    def walk(node, prefix):
        for name, value in node.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{name}.")
            elif not name.startswith("_"):
                keys.append(f"{prefix}{name}")

    walk(compose("train").values, "")
    # The backbone of a decoder has the keys of the section backbone.
    expected = [key for key in keys if not key.startswith("head.decoder.backbone.")]
    assert sorted(set(expected) - set(rows)) == []
