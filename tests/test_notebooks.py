"""The notebooks of docs/notebooks run from the first to the last cell."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 300  # for one cell, on a machine that runs other tests


def outputs(book):
    return [output for cell in book.cells for output in cell.get("outputs", [])]


# The library of the kernel says which socket it uses, and which event loop.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["text", "pictures", "mixed"])
def test_a_notebook_runs_and_shows_its_results(name, tmp_path):
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert not outputs(book), "clear the outputs: they contain times and paths"
    NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": tmp_path}}).execute()
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs(book))
    assert "<b>Run</b>" in html
    assert not [output for output in outputs(book) if output.get("name") == "stderr"]


def test_every_notebook_is_tested_and_listed_in_the_documentation():
    names = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert names == {"text", "pictures", "mixed"}
    page = (FOLDER.parent / "python.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{name}.ipynb" in page for name in names)
