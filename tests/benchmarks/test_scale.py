"""The parts of benchmarks/speed/scale.py: its tables, and the verdict on a measurement."""

from __future__ import annotations

import csv

from helpers.benchmarks import load

from dxn.tokenize.image.reader import image_size

scale = load("scale")


def test_each_row_has_a_path_of_its_own_and_a_larger_table_has_more_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "PICTURES", 3)
    small, large = (scale.make_table(count, tmp_path) for count in (5, 7))
    rows = list(csv.DictReader(large.read_text(encoding="utf-8").splitlines()))
    assert rows[:5] == list(csv.DictReader(small.read_text(encoding="utf-8").splitlines()))
    paths = [tmp_path / row["image"] for row in rows]
    assert len(set(paths)) == 7
    assert all(image_size(path) == (scale.SIDE, scale.SIDE) for path in paths)
    assert paths[0].samefile(paths[3])  # hard links to three pictures


def test_memory_may_grow_by_a_tenth_and_400_bytes_per_row():
    def measured(rows: int, megabytes: float):
        return scale.Measured("train", rows, megabytes, megabytes, 1.0, 1.0, 1.0)

    smallest = measured(10_000, 1000.0)
    assert scale.line_of(measured(1_010_000, 1499.0), smallest).endswith(" reached")
    assert scale.line_of(measured(1_010_000, 1501.0), smallest).endswith("not reached")
