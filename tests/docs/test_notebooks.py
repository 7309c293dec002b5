"""The notebooks of docs/notebooks run from the first to the last cell."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from helpers.exhaustive import exhaustive_except
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

DRAWS_PICTURES = WRITES_REPORTS = True  # see conftest.py
FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = ["text", "pictures", "mixed", "any-to-any"]


# test_any_to_any.py runs the commands of the notebook with the same name.
@pytest.mark.parametrize("name", exhaustive_except(NAMES, "text", "pictures"))
def test_a_notebook_runs_and_shows_its_results(name, tmp_path, monkeypatch):
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "clear the outputs: they contain times and paths"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "IPYTHONDIR", str(tmp_path / "ipython"))
    # In this process, because a kernel imports everything again, which takes most of its time.
    shell = InteractiveShell()
    html = ""
    for cell in code:
        with capture_output() as captured:
            # Short trainings with few rows.
            source = re.sub(r'"epochs": \d+', '"epochs": 1', cell.source)
            result = shell.run_cell(re.sub(r"range\(1000\)", "range(60)", source))
        result.raise_error()
        # A busy machine prints how far something is.
        assert "Warning" not in captured.stderr
        if result.result is not None:
            shown, _ = shell.display_formatter.format(result.result)
            html += shown.get("text/html", "")
    assert "<b>Run</b>" in html


def test_every_notebook_is_tested_and_listed_in_the_documentation():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)
    page = (FOLDER.parent / "python.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{name}.ipynb" in page for name in NAMES)
