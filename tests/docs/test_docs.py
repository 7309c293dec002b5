"""The Python and the commands of the pages work, and links lead somewhere."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator

import pytest
from helpers.pages import (
    DOCS,
    GUIDES,
    LINK,
    PAGES,
    REFERENCE,
    ROOT,
    anchors,
    blocks,
    check_and_write,
    check_command,
    commands,
    run_python,
    scripts,
)

from dxn.commands.train import Train
from dxn.config.compose import compose

PLAIN = ("experiment=", "conf_dir=", "data.path=")
MAX_LINES = 150  # of a guide
MAX_BYTES = 150_000  # of a picture
OPTIONS = DOCS / "reference" / "options.md"
TEXTS = [ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md")]


def name_of(page) -> str:
    return page.relative_to(ROOT).as_posix()


def lines() -> Iterator[tuple[str, str]]:
    """Every dxn command of the README, of the pages for own files, and of the experiments."""
    for page in [*TEXTS, *PAGES]:
        if page.name == "extend.md" or page in GUIDES:
            continue  # test_extend.py runs the commands of extend.md
        for block in blocks(page):
            for command in commands(block):
                # The others need a folder that the reader has.
                if not re.search(r" (resume|conf_dir)=(?!examples )", command):
                    yield name_of(page), command
    # A row of the start page has one command.
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^\| .*?\| `(?:torchrun .* -m )?(dxn .+?)` \|", text, re.MULTILINE):
        yield "docs/README.md", command
    for path in sorted(ROOT.glob("*/**/conf/experiment/*.yaml")):
        text = path.read_text(encoding="utf-8")
        for command in re.findall(r"^# (?:torchrun .* -m )?(dxn .+)$", text, re.MULTILINE):
            # test_architecture.py composes each experiment without further options.
            words = command.split()[2:]
            if any(not word.startswith(PLAIN) for word in words):
                yield name_of(path), command


def written(page) -> str:
    """The content that the module beside a page of the reference writes."""
    return runpy.run_path(str(page.with_suffix(".py")))["page"]()


# The blocks of extend.md are files, and test_extend.py uses them.
PRINTING = [page for page in PAGES if page not in GUIDES and page.name != "extend.md"]


@pytest.mark.parametrize("page", PRINTING, ids=name_of)
def test_the_python_of_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(page):
        if block.kind == "python":
            assert run_python(block, names, page.name) == block.output


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_works_from_the_first_to_the_last_line_in_an_empty_folder(
    page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # Some commands are for the root of a clone.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names: dict = {}
    for block in blocks(page):
        assert block.kind in ("python", "py", "sh", "console"), block
        if block.kind == "python":
            assert run_python(block, names, page.name) == block.output
        for script in scripts(block):
            runpy.run_path(str(script))
        for command in commands(block):
            check_and_write(command)
    assert not [block for block in blocks(page) if block.kind == "sh" and foreign_lines(block)]


def foreign_lines(block) -> list[str]:
    """Lines of a block for the shell that no test checks."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if not line.startswith(("dxn ", "python examples/guides/"))]


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_is_short_and_has_a_small_picture(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    pictures = re.findall(r"!\[.+?\]\((.+?\.png)\)", text, re.DOTALL)
    assert pictures
    assert max((page.parent / picture).stat().st_size for picture in pictures) < MAX_BYTES


@pytest.mark.parametrize(("page", "command"), sorted(set(lines())))
def test_a_command_of_a_page_composes(page, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    check_command(command)


@pytest.mark.parametrize("page", [*TEXTS, *PAGES, *REFERENCE], ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"


@pytest.mark.parametrize("page", [*TEXTS, *PAGES], ids=name_of)
def test_a_file_that_a_page_names_exists(page):
    names = re.findall(
        r"`((?:benchmarks|dxn|tests)/[a-z_./0-9]+\.[a-z]+)`", page.read_text(encoding="utf-8")
    )
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_index_lists_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = {path for path, _ in LINK.findall(index)}
    pages = {page.relative_to(DOCS).as_posix() for page in [*PAGES, *REFERENCE]} - {"README.md"}
    assert sorted(pages - listed) == []


@pytest.mark.parametrize("page", REFERENCE, ids=name_of)
def test_a_page_of_the_reference_is_what_the_code_says(page):
    same = page.read_text(encoding="utf-8") == written(page)
    assert same, "write it again with `make docs`, and commit it"


def test_every_key_is_described_in_a_phrase_that_stands_alone():
    text = OPTIONS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 150
    bad = [key for key, _, text in rows if not text or re.match(r"(of|in place of) ", text)]
    assert bad == []


def test_every_key_of_a_training_is_on_the_page():
    rows = re.findall(r"^\| `([^`]+)` \|", OPTIONS.read_text(encoding="utf-8"), re.MULTILINE)
    keys: list[str] = []

    def walk(node, prefix):
        for name, value in node.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{name}.")
            elif not name.startswith("_"):
                keys.append(f"{prefix}{name}")

    walk(compose(Train).values, "")
    # The backbone of a decoder has the keys of the section backbone. A group has no row of its own.
    expected = {key for key in keys if not key.startswith("head.decoder.backbone.")}
    expected -= set(Train.options().groups)
    assert sorted(set(expected) - set(rows)) == []
