"""make site: the pages of docs/ and of the repository's root as one site."""

import os
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml
from helpers.pages import DOCS, PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. `strict` makes every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return folder


@pytest.mark.exhaustive
def test_a_link_to_a_page_of_the_repository_leads_to_its_page_in_the_site(site):
    links = Links()
    links.feed((site / "tasks" / "classify" / "index.html").read_text())
    assert "../../project/RESULTS/" in links.targets
    assert (site / "project" / "RESULTS" / "index.html").is_file()


@pytest.mark.exhaustive
def test_no_page_of_the_site_needs_another_server(site):
    page = Links()
    page.feed((site / "index.html").read_text())
    assert page.loaded
    assert not [target for target in page.loaded if "//" in target]


def test_the_reference_of_python_lists_the_public_functions():
    text = (DOCS / "reference" / "python.md").read_text()
    for name in ("dxn.load", "dxn.from_public", "predict_many", "UserError"):
        assert name in text


def test_every_page_is_in_the_navigation():
    # mkdocs.yml has no tags of Python, which the safe loader would refuse.
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = set(pages_of(config["nav"]))
    assert {page.relative_to(DOCS).as_posix() for page in PAGES} <= listed


def pages_of(node):
    """The paths of a part of the navigation."""
    if isinstance(node, str):
        yield node
        return
    for part in node.values() if isinstance(node, dict) else node:
        yield from pages_of(part)


class Links(HTMLParser):
    """Collects the targets of links, and what a browser loads with the page."""

    def __init__(self):
        super().__init__()
        self.targets, self.loaded = [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.targets.append(values["href"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])
        elif tag in ("script", "img") and values.get("src"):
            self.loaded.append(values["src"])
