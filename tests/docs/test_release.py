"""The version of dxn is the same in every file that states it."""

import re
import tomllib

import pytest
from helpers.pages import ROOT

import dxn

FILES = {
    "CHANGELOG.md": r"^## (\S+)$",  # the first heading is the newest release
    "CITATION.cff": r"^version: (\S+)$",
    "pyproject.toml": r'^version = "(.+)"$',
    "uv.lock": r'^name = "dxn"\nversion = "(.+)"$',
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_states_the_version_of_the_package(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    stated = re.search(FILES[name], text, re.MULTILINE)
    assert stated is not None
    assert stated[1] == dxn.__version__


def test_the_citation_has_the_license_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nlicense: {project['license']}\n" in citation
