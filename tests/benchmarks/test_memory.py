"""The parts of benchmarks/speed/memory.py: its photos, and the measurement of a command."""

import sys
from dataclasses import replace

import pytest
from helpers.benchmarks import load
from PIL import Image

memory = load("memory")


def test_photos_have_about_the_requested_size_and_are_written_once(tmp_path):
    photos = replace(memory.SETS["web"], count=4, width=60, height=40)
    memory.make_photos(photos, tmp_path)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert [file.parent.name for file in files] == ["a", "a", "b", "b"]
    for file in files:
        with Image.open(file) as image:
            width, height = image.size
        assert 48 <= width <= 72
        assert width / height == pytest.approx(1.5, rel=0.05)
    before = [file.stat().st_mtime_ns for file in files]
    memory.make_photos(photos, tmp_path)
    assert [file.stat().st_mtime_ns for file in files] == before


def test_a_command_is_measured_and_must_succeed():
    gigabytes, seconds = memory.measure([sys.executable, "-c", "pass"])
    assert 0 < gigabytes < 100
    assert seconds > 0
    with pytest.raises(SystemExit, match="failed"):
        memory.measure([sys.executable, "-c", "raise SystemExit(3)"])
