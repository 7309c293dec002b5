"""The pages' Python runs, and prints what the page says it prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```text" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert blocks
    names: dict = {}
    for code, said in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        assert printed.getvalue() == said


def test_every_python_block_is_followed_by_its_output():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```python") == len(re.findall(r"```python\n.*?```\n+```text", text, re.S)), page.name
