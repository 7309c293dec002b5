"""The survey of the files of a data set."""

import os
from pathlib import Path

import numpy as np
import pytest

from dxn.config.model_plan import Input
from dxn.data import Opened, Rows, Source, files
from dxn.data.cell_paths import confined, file_of_cell, usual_file
from dxn.data.columns.choose import _input_cells
from dxn.data.files import in_parts, survey, with_files
from dxn.data.rows import Column, Origins, as_column
from dxn.data.splits.duplicates import codes_of
from dxn.data.tables.read import Table
from dxn.runs.build import fit_adapters
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.image.reader import ImageReader

SIZE = 9000  # bytes, more than both ends that are compared first


@pytest.fixture
def folder(tmp_path):
    """Files a and b are equal, c has another byte in the middle, d is a link to a."""
    content = {"a": bytes(SIZE), "b": bytes(SIZE), "c": bytes(SIZE // 2) + b"1" + bytes(SIZE // 2)}
    for name, data in content.items():
        (tmp_path / name).write_bytes(data[:SIZE])
    os.link(tmp_path / "a", tmp_path / "d")
    return tmp_path


def test_equal_files_have_equal_codes(folder):
    cells = [str(folder / name) for name in ("a", "b", "c", "d", "none", "a")]
    column = with_files(as_column([*cells, None, b"x", b"x"]))
    codes = column.files.codes[column.rows]
    a, b, c, d, none, again, missing, x, y = codes.tolist()
    assert a == b == d == again
    assert len({a, c, none, x}) == 4
    assert (missing, x) == (-1, y)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    column = with_files(as_column([str(tmp_path / name) for name in ("pipe", "empty")]))
    assert len({*column.files.codes.tolist()}) == 2


def test_a_file_of_two_splits_is_listed_once(folder):
    paths = [str(folder / name) for name in "abc"]
    splits = {
        "train": Rows({"image": as_column(paths)}, ["row"] * 3),
        "test": Rows({"image": paths[:1]}, ["row"]),
    }
    surveyed = survey(splits, ["image"])
    train, test = (rows.cells["image"] for rows in surveyed.values())
    assert train.files is test.files
    assert len(train.files.cells) == 3
    assert (list(train), list(test)) == (paths, paths[:1])
    assert survey(surveyed, ["image"])["train"].cells["image"].files is train.files


def test_processes_and_threads_give_the_same_results_in_order(monkeypatch):
    numbers = np.arange(5 * files.CHUNK + 7)

    def squares(part):
        return numbers[part] ** 2

    expected = [squares(part).tolist() for part, _ in in_parts(squares, len(numbers), "")]
    monkeypatch.setattr("dxn.data.files.MIN_FORKED", 2)
    monkeypatch.setattr("dxn.core.runtime.num_cores", lambda: 3)
    results = list(in_parts(squares, len(numbers), "work"))
    assert [values.tolist() for _, values in results] == expected
    assert np.concatenate([values for _, values in results]).tolist() == (numbers**2).tolist()


def test_the_usual_way_to_a_file_leads_to_the_same_path(folder):
    outside = folder / "outside"
    inside = folder / "data"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    for path in (inside / "x.png", inside / "deep" / "y.png", outside / "z.png"):
        path.write_bytes(b"1")
    (inside / "link.png").symlink_to(outside / "z.png")
    (inside / "linked").symlink_to(outside)
    names = ["x.png", "./x.png", "deep/y.png", "deep//y.png", "deep/../x.png"]
    names += [str(inside / "x.png"), "X.PNG", " x.png"]
    names += ["../outside/z.png", "link.png", "linked/z.png", "none.png", "", ".."]
    usual = 0
    for name in names:
        found = usual_file(name, inside, "confine")
        expected = file_of_cell(name, inside)
        assert found in (None, str(confined(expected, inside)))
        assert found is None or not hasattr(confined(expected, inside), "reason")
        usual += found is not None
    assert usual >= 4
    cells = _input_cells(
        Table({"image": as_column(names)}, Origins([inside / "t.csv"], range(len(names)))),
        "image",
        ImageReader(),
        "confine",
    )
    assert [hasattr(cell, "reason") for cell in cells][8:11] == [True] * 3


def test_a_column_in_memory_needs_no_files():
    pictures = [np.zeros((3, 3), np.uint8), np.zeros((3, 3), np.uint8), np.ones((3, 3), np.uint8)]
    column = with_files(Column(pictures))
    first, second, third = column.files.codes[column.rows].tolist()
    assert first == second != third
    assert column[2] is pictures[2]
    assert with_files(Column([Path("x"), Path("x")])).files.cells == [Path("x")]


def test_long_arrays_in_a_list_are_compared_completely():
    """The text of a long array leaves out its middle."""
    first, second = np.zeros(2003), np.zeros(2003)
    second[1001] = 1
    same, other, again = codes_of(Column([[first], [second], [first.copy()]])).tolist()
    assert same == again != other


def test_vocabularies_are_fitted_on_evenly_spaced_rows_of_a_stated_number(monkeypatch, capsys):
    monkeypatch.setattr("dxn.data.rows.FIT_ROWS", 40)
    monkeypatch.setattr("dxn.runs.build.FIT_ROWS", 40)
    adapter = TextAdapter(8, tokenizer=TokenizerOptions(kind="word"))
    texts = [f"{'early' if i < 200 else 'late'} row" for i in range(400)]
    train = Opened({"text": as_column(texts)}, None, ["row"] * 400)
    inputs = {"text": Input(column="text", modality="text", adapter="text")}
    fit_adapters({"text": adapter}, inputs, train, [])
    assert {"early", "late", "row"} <= adapter.tokenizer.vocabulary.get_vocab().keys()
    assert "adapters: fitted on 40 of 400 rows" in capsys.readouterr().out


def test_the_columns_of_a_large_table_are_judged_by_evenly_spaced_rows(monkeypatch):
    monkeypatch.setattr("dxn.data.rows.FIT_ROWS", 40)
    rows = {"train": Rows({"target": ["a"] * 200}, ["x"] * 200)}
    rows["test"] = Rows({"target": [None, "b"] * 100}, ["y"] * 200)
    targets, _, origins = Source(rows, {}).targets()
    assert 0 < targets.count("b") < 20 < targets.count("a") + 1
    assert len(origins) == len(targets) < 40
