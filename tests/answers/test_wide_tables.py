"""The work for a table grows with the number of its columns, and not with its square."""

import json
import random
import sys

import pytest

from dxn.cli import main
from dxn.core.errors import UserError
from dxn.tokenize import NumberAdapter

COLUMNS = 50


def test_each_column_writes_and_reads_its_own_state_once(tmp_path, monkeypatch):
    for i in range(COLUMNS):
        NumberAdapter(dim=4).fit([float(i), i + 2.0]).save(tmp_path, f"c{i}")
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    centers = []
    for i in range(COLUMNS):
        adapter = NumberAdapter(dim=4)
        adapter.load(tmp_path, f"c{i}")
        centers.append(adapter.tokenizer.center)
    assert centers == [i + 1.0 for i in range(COLUMNS)]
    assert len(parsed) == COLUMNS


def test_the_last_state_of_a_column_counts_and_a_missing_one_is_named(tmp_path):
    for center in (1.0, 5.0):
        NumberAdapter(dim=4).fit([center - 1, center + 1]).save(tmp_path, 'a "b"\n')
        adapter = NumberAdapter(dim=4)
        adapter.load(tmp_path, 'a "b"\n')
        assert adapter.tokenizer.center == center
    with pytest.raises(UserError, match="no valid state of the input 'other'"):
        NumberAdapter(dim=4).load(tmp_path, "other")


def test_check_of_a_table_takes_as_many_calls_for_each_further_column(tmp_path, capsys):
    calls = {}
    for columns in (10, 30, 50):
        path = write_table(tmp_path / f"{columns}.csv", columns)
        words = ["check", f"data.path={path}", "target=y", f"output={tmp_path / 'bad.jsonl'}"]
        main(words)  # the first call also imports modules
        capsys.readouterr()
        counter = CallCounter()
        sys.setprofile(counter)
        try:
            code = main(words)
        finally:
            sys.setprofile(None)
        out = capsys.readouterr().out
        assert code == 1  # one cell of each column is not a number
        assert f"\nc{columns - 1} (number)\n" in out
        assert out.count("bad: 1 × c") == columns
        calls[columns] = counter.count
    # The same for the first and for the last 20 columns, up to the lengths of the names.
    assert calls[50] - calls[30] < 1.2 * (calls[30] - calls[10])


class CallCounter:
    """Counts the calls of functions, which is the same on each machine, unlike a time."""

    def __init__(self):
        self.count = 0

    def __call__(self, frame, event, arg):
        self.count += event in ("call", "c_call")


def write_table(path, columns):
    """Write a table of 60 rows with random numbers, of which one per column is a word."""
    rand = random.Random(0)
    lines = [",".join(["y", *(f"c{i}" for i in range(columns))])]
    for row in range(60):
        cells = [f"{rand.gauss(0, 1):.4f}" for _ in range(columns)]
        if row == 7:
            cells = ["broken"] * columns
        lines.append(",".join([rand.choice(["a", "b"]), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path
