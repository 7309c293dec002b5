"""Untrusted files are plain data of a limited size inside of their folder, or are refused."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from dxn.core import untrusted
from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import check_file, load_json, load_yaml

BOMB = "\n".join(
    ["a: &a [x, x]", *(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}]" for i in range(9))]
)


def message(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"- 1\n- 2\n", "must be a mapping whose keys are strings, got list"),
        (b"", "must be a mapping whose keys are strings, got NoneType"),
        (b"1: 2", "must be a mapping whose keys are strings"),
        (b"a: [", "not valid YAML"),
        (b"a: \x00", "not valid YAML"),
        (b"\xff\xfe\x00a", "cannot be read as UTF-8 text"),
        (b"!!python/object/apply:os.system ['true']", "not valid YAML"),
        (BOMB.encode(), "aliases (*name) are not allowed"),
        (b"a: " + b"[" * 100_000, "nested too deeply"),
        (b"a: " + b"{a: " * 40 + b"1" + b"}" * 40, "nested too deeply"),
        (b"a: !!binary aGVsbG8=", "must contain only texts, numbers, true, false and null"),
        (b"a: 2026-01-01", "must contain only texts, numbers, true, false and null"),
        (b"a: 9999-99-99", "not valid YAML"),
        (b"b: [{a: 1}]\na:\n  b: 2\n  c: {b: 1}\n  b: 3", "not valid YAML: the key b occurs twice"),
        (b"a: !!set {x}", "must contain only texts, numbers, true, false and null"),
        (b"a: " + b"x" * 2_000_001, "must have at most 2,000,000 bytes, got 2,000,004"),
    ],
)
def test_a_yaml_file_of_a_stranger_is_plain_data_or_refused(tmp_path, content, expected):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    text = message(load_yaml, path)
    assert text.startswith(f"{path}: ") and expected in text


def test_interpolations_of_a_strangers_file_stay_text(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: ${oc.env:HOME}\n")
    assert load_yaml(path) == {"a": "${oc.env:HOME}"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "invalid JSON (Expecting value"),
        (b"{", "invalid JSON ("),
        (b"\xff", "cannot be read as UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 50 + b"]" * 50, "nested too deeply (more than 32 levels)"),
        (b'{"a": NaN}', "numbers must be finite, got NaN"),
        (b"[-Infinity]", "numbers must be finite, got -Infinity"),
        (b"1" * 5000, "invalid JSON"),
    ],
)
def test_a_json_file_of_a_stranger_is_plain_data_or_refused(tmp_path, content, expected):
    path = tmp_path / "labels.json"
    path.write_bytes(content)
    text = message(load_json, path)
    assert text.startswith(f"{path}: ") and expected in text


def test_a_large_json_file_is_not_read(tmp_path):
    path = tmp_path / "labels.json"
    path.write_text("[1, 2, 3]")
    assert "must have at most 5 bytes, got 9" in message(load_json, path, max_bytes=5)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.dictionaries(st.text(), PLAIN))
def test_plain_data_is_read_as_it_was_written(content):
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.json")
        path.write_text(json.dumps(content))
        # JSON writes an infinite number as Infinity, which is not valid JSON.
        assert load_json(path, allow_nan=True) == content


@given(content=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_with_the_name_of_the_file(content):
    with TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(content)
        for load in (load_yaml, load_json):
            try:
                load(path)
            except UserError as error:
                assert str(error).startswith(f"{path}: ")


# Entries of a folder that are not regular files


def link_outside(path):
    (path.parents[1] / "secret").write_text("{}")
    path.symlink_to(path.parents[1] / "secret")


ENTRIES = {
    "missing": (lambda path: None, "file not found"),
    "folder": (lambda path: path.mkdir(), "must be a regular file"),
    "pipe": (os.mkfifo, "must be a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "must be a regular file"),
    "loop": (lambda path: path.symlink_to(path), "file not found"),
    "link": (link_outside, "must not be a link to a file outside of its folder"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_only_a_regular_file_of_the_folder_itself_is_read(tmp_path, entry):
    make, expected = ENTRIES[entry]
    path = tmp_path / "model" / "labels.json"
    path.parent.mkdir()
    make(path)
    for load in (check_file, load_json, load_yaml):
        assert expected in message(load, path)


def test_a_link_inside_of_the_folder_is_read(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "b.json").symlink_to("a.json")
    assert load_json(tmp_path / "b.json") == [1]


def test_a_snapshot_of_the_hub_cache_may_link_to_its_blobs(tmp_path):
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "4567"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    blob.write_text("[1]")
    (snapshot / "labels.json").symlink_to(blob)
    assert load_json(snapshot / "labels.json") == [1]


# pydantic models


class Example(Strict):
    count: Annotated[int, Field(ge=1, le=7)] = 1
    names: Annotated[list[str], Field(min_length=1)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "the content must be a mapping, got []"),
        ({}, "names is missing"),
        ({"names": []}, "names must have at least 1 items, got []"),
        ({"names": ["a", 3]}, "names.1 must be a text, got 3"),
        ({"names": ["a"], "count": True}, "count must be an integer, got True"),
        ({"names": ["a"], "count": "3"}, "count must be an integer, got '3'"),
        ({"names": ["a"], "count": 8}, "count must be at most 7, got 8"),
        ({"names": "x" * 100_000, "count": 0}, "count must be at least 1, got 0; names must be a"),
        ({"names": list(range(99))}, "and 94 more"),
    ],
)
def test_the_problems_of_a_file_are_listed_with_their_places(content, expected):
    text = message(validated, Example, content, "a.json")
    assert text.startswith("a.json: not valid: ") and expected in text
    assert len(text) < 400


def test_the_parser_without_c_gives_the_same_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "SAFE_LOADER", yaml.SafeLoader)
    path = tmp_path / "config.yaml"
    path.write_text("a: {b: [1, 2.5, null, yes]}\n")
    assert load_yaml(path) == {"a": {"b": [1, 2.5, None, True]}}
    path.write_text(BOMB)
    assert "aliases" in message(load_yaml, path)
