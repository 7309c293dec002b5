"""The notebooks run from the first to the last cell."""

import os
import re

import nbformat
import pytest
from helpers.exhaustive import exhaustive_except
from helpers.pages import DOCS, ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

DRAWS_PICTURES = WRITES_REPORTS = True  # see conftest.py
FOLDER = DOCS / "notebooks"
NAMES = ["text", "pictures", "mixed", "any-to-any"]
FIRST_STEPS = ROOT / "examples" / "first_steps.ipynb"


# test_any_to_any.py runs the commands of the notebook with the same name.
@pytest.mark.parametrize("name", exhaustive_except(NAMES, "text", "pictures"))
def test_a_notebook_runs_and_shows_its_results(name, tmp_path, monkeypatch):
    assert "<b>Run</b>" in shown_by(FOLDER / f"{name}.ipynb", tmp_path, monkeypatch)


@pytest.mark.exhaustive
def test_the_first_steps_run_and_show_the_metrics_and_the_tokens(tmp_path, monkeypatch):
    html = shown_by(FIRST_STEPS, tmp_path, monkeypatch)
    for text in ("<b>Run</b>", "text+image", "attention/attention.html", "1 sample, 128×29"):
        assert text in html
    assert (tmp_path / "attention" / "attention.html").is_file()


def shown_by(path, tmp_path, monkeypatch) -> str:
    """Run the cells of a notebook, and return the HTML of their results."""
    book = nbformat.read(path, as_version=4)
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
    return html


def test_every_notebook_is_tested_and_listed_in_the_documentation():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)
    page = (FOLDER.parent / "python.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{name}.ipynb" in page for name in NAMES)
    assert "../examples/first_steps.ipynb" in (DOCS / "README.md").read_text(encoding="utf-8")
