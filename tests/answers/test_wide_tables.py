"""The work for a table grows with the number of its columns, and not with its square."""

import json

import pytest

from dxn.errors import UserError
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
        centers.append(adapter.prepare.center)
    assert centers == [i + 1.0 for i in range(COLUMNS)]
    assert len(parsed) == COLUMNS


def test_the_last_state_of_a_column_counts_and_a_missing_one_is_named(tmp_path):
    for center in (1.0, 5.0):
        NumberAdapter(dim=4).fit([center - 1, center + 1]).save(tmp_path, 'a "b"\n')
        adapter = NumberAdapter(dim=4)
        adapter.load(tmp_path, 'a "b"\n')
        assert adapter.prepare.center == center
    with pytest.raises(UserError, match="no valid state of the input 'other'"):
        NumberAdapter(dim=4).load(tmp_path, "other")
