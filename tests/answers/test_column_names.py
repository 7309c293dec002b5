"""Names of columns are found in another Unicode form and with spaces at their ends."""

import unicodedata

import pytest
from helpers.runs import PLAIN, SMALL, refused, train

import dxn
from dxn.cli import main

OPTIONS = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false"]
NAME = "pr\u00fcfung"
DECOMPOSED = unicodedata.normalize("NFD", NAME)


def table_of(path, *names):
    rows = [f"{['fine', 'dull'][i % 2]} film {i},{'ab'[i % 2]}" for i in range(40)]
    path.write_text("\n".join([",".join(names), *rows]), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("written", [NAME, DECOMPOSED, f" {NAME} "])
@pytest.mark.parametrize("typed", [NAME, DECOMPOSED])
def test_a_target_is_found_in_every_form(written, typed, tmp_path):
    table = table_of(tmp_path / "t.csv", "text", written)
    train(tmp_path / "run", table, f"target={typed}", *OPTIONS)
    assert dxn.load(tmp_path / "run").target == NAME


@pytest.mark.parametrize("written", [NAME, DECOMPOSED, f"{NAME} "])
def test_an_input_of_new_data_is_found_in_every_form(written, tmp_path):
    train(tmp_path / "run", table_of(tmp_path / "t.csv", NAME, "label"), "target=label", *OPTIONS)
    new = table_of(tmp_path / "new.csv", written, "label")
    assert (
        main(["predict", f"run={tmp_path / 'run'}", f"input={new}", f"output={tmp_path}/a.csv"])
        == 0
    )
    assert (
        main(["evaluate", f"run={tmp_path / 'run'}", f"input={new}", f"output={tmp_path}/e"]) == 0
    )


def test_two_columns_of_equal_names_are_refused(tmp_path, capsys):
    table = table_of(tmp_path / "t.csv", NAME, f"{DECOMPOSED} ")
    (line,) = refused(capsys, ["train", table, f"target={NAME}", *OPTIONS])
    assert f"two columns called '{NAME}'" in line
