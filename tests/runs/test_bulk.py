"""Answers in parts: a folder that continues, bad rows in a table of their own, and Ray."""

import importlib
import importlib.util
import io
import json
import os
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.runs import PLAIN, SMALL, train
from PIL import Image

from dxn.cli import main
from dxn.runs.engine import bulk, cluster

COUNT = 150
# 64 rows per part, because a part has 16 batches.
OPTIONS = ["batch_size=4", "engine=ray"]
BAD = 70  # index of a row without a text


def text_of(i):
    return f"{('apple', 'pear', 'plum', 'cherry')[i % 4]} number {i}"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table in several formats, and a folder of shards with the same rows."""
    folder = tmp_path_factory.mktemp("bulk")
    rows = {
        "key": [f"k{i}" for i in range(COUNT)],
        "text": [text_of(i) for i in range(COUNT)],
        "label": ["ab"[i % 2] for i in range(COUNT)],
    }
    table = pa.table(rows)
    pq.write_table(table, folder / "all.parquet")
    (folder / "shards").mkdir()
    for start in range(0, COUNT, 50):
        pq.write_table(table.slice(start, 50), folder / "shards" / f"{start:03}.parquet")
    lines = [json.dumps({**row, "text": row["text"]}) for row in table.to_pylist()]
    lines[BAD] = json.dumps({"key": f"k{BAD}", "text": None})
    (folder / "bad.jsonl").write_text("\n".join(lines))
    (folder / "tars").mkdir()
    for start in range(0, COUNT, 50):
        with tarfile.open(folder / "tars" / f"{start:03}.tar", "w") as archive:
            for i in range(start, start + 50):
                info = tarfile.TarInfo(f"k{i}.text.txt")
                info.size = len(text_of(i))
                archive.addfile(info, io.BytesIO(text_of(i).encode()))
    return folder


@pytest.fixture(scope="module")
def run(place):
    data = [f"data.path={place / 'all.parquet'}", "data.target=label", "data.text=text"]
    train(place / "run", *data, *PLAIN, *SMALL, "trainer.epochs=1")
    return place / "run"


@pytest.fixture
def here(monkeypatch):
    """Compute the parts in this process, in place of Ray. Return the names of those parts."""
    names = []

    def compute(ray, sources, reading, load, rows_of, folder, replicas):
        predictor = load()
        for source in sources:
            for part in reading.read(source):
                names.append(part.name)
                yield bulk.answer(reading.tokenize(part), predictor, rows_of, folder)

    monkeypatch.setattr(cluster, "compute", compute)
    monkeypatch.setattr(cluster, "start", lambda address: None)
    monkeypatch.setattr(cluster, "require_ray", lambda: None)
    return names


def answers(folder):
    return pq.read_table(folder / "answers").to_pylist()


def same(ours, theirs):
    """Whether values are equal. Sums in batches of other sizes have other roundings."""
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, float):
        return ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    return ours == theirs


def local(run, path, output, verb="predict", *options):
    assert main([verb, f"run={run}", f"input={path}", f"output={output}", *options]) == 0
    return pq.read_table(output).to_pylist()


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("all.parquet", "predict"),
        ("shards", "embed"),
        ("shards/*.parquet", "predict"),
        ("tars", "tokenize"),
        ("tars/*", "predict"),
    ],
)
def test_parts_have_the_answers_of_one_process_in_the_same_order(
    place, run, here, tmp_path, verb, name
):
    options = [option for option in OPTIONS if verb != "tokenize" or "batch" not in option]
    columns = ["columns.text=text.txt"] if name.startswith("tars") else []
    words = [f"run={run}", f"input={place / name}", *columns]
    assert main([verb, *words, f"output={tmp_path / 'o'}", *options]) == 0
    expected = local(run, place / name, tmp_path / "local.parquet", verb, *columns)
    assert len(expected) == COUNT
    assert same(answers(tmp_path / "o"), expected)


def test_a_command_that_was_stopped_computes_only_the_missing_parts(place, run, here, tmp_path):
    words = ["predict", f"run={run}", f"input={place / 'all.parquet'}", f"output={tmp_path}/o"]
    assert main([*words, *OPTIONS]) == 0
    whole = answers(tmp_path / "o")
    # As if the command was killed before it wrote the last file of this part.
    (tmp_path / "o" / "progress" / "part-000000-000001.json").unlink()
    (tmp_path / "o" / "answers" / ".unfinished-1-part-000000-000001.parquet").write_bytes(b"PAR1")
    here.clear()
    assert main([*words, *OPTIONS]) == 0
    assert here == ["part-000000-000001"]
    assert same(answers(tmp_path / "o"), whole)
    here.clear()
    assert main([*words, *OPTIONS]) == 0
    assert here == []


def test_bad_rows_and_files_are_in_a_second_table(place, run, here, tmp_path, capsys):
    words = ["predict", f"run={run}", f"input={place / 'bad.jsonl'}", *OPTIONS]
    assert main([*words, f"output={tmp_path / 'strict'}"]) == 1
    assert main([*words, f"output={tmp_path / 'o'}", "on_bad=skip"]) == 0
    assert f"written: {tmp_path / 'o' / 'answers'} (149 rows)" in capsys.readouterr().out
    bad = pq.read_table(tmp_path / "o" / "bad").to_pylist()
    assert bad == [{"file": "bad.jsonl", "row": BAD + 1, "reason": "no input: text is missing"}]
    numbers = [row["row"] for row in answers(tmp_path / "o")]
    assert numbers == [i + 1 for i in range(COUNT) if i != BAD]


@pytest.mark.parametrize(
    ("folder", "damaged", "columns", "reason"),
    [
        ("shards", "050.parquet", [], "invalid Parquet file"),
        ("tars", "050.tar", ["columns.text=text.txt"], "050.tar: the tar file is cut off; replace"),
    ],
)
def test_a_damaged_shard_does_not_stop_the_others(
    place, run, here, tmp_path, folder, damaged, columns, reason
):
    (tmp_path / folder).mkdir()
    for file in (place / folder).iterdir():
        (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    (tmp_path / folder / damaged).write_bytes((place / folder / damaged).read_bytes()[:1300])
    words = ["predict", f"run={run}", f"input={tmp_path / folder}", *OPTIONS, "on_bad=skip"]
    assert main([*words, *columns, f"output={tmp_path / 'o'}"]) == 0
    (bad,) = pq.read_table(tmp_path / "o" / "bad").to_pylist()
    assert bad["file"] == damaged and reason in bad["reason"]
    assert len(answers(tmp_path / "o")) == 100


def test_a_changed_model_needs_another_folder(place, run, here, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    words = ["predict", f"run={copy}", f"input={place / 'all.parquet'}", *OPTIONS]
    assert main([*words, f"output={tmp_path / 'o'}"]) == 0
    os.utime(copy / "model" / "model.safetensors", (1, 1))
    assert main([*words, f"output={tmp_path / 'o'}"]) == 2
    assert "another command (the model has changed)" in capsys.readouterr().err


def test_an_unknown_input_to_use_is_refused(place, run, here, tmp_path, capsys):
    words = ["embed", f"run={run}", f"input={place / 'all.parquet'}", *OPTIONS, "only=[sound]"]
    assert main([*words, f"output={tmp_path / 'o'}"]) == 2
    assert "only: must be inputs of the model (text), got sound" in capsys.readouterr().err


def test_a_folder_of_pictures_is_divided_into_parts(here, tmp_path):
    for label, level in (("dark", 20), ("light", 230)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((8, 8, 3), level + i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    sizes = ["adapters.image.image_size=8", "adapters.image.patch_size=4", "trainer.epochs=1"]
    train(tmp_path / "run", f"data.path={tmp_path / 'photos'}", *PLAIN, *SMALL, *sizes)
    (tmp_path / "photos" / "light" / "5.png").write_bytes(b"no picture")
    words = ["predict", f"run={tmp_path / 'run'}", f"input={tmp_path / 'photos'}", "on_bad=skip"]
    assert main([*words, "batch_size=2", "engine=ray", f"output={tmp_path / 'o'}"]) == 0
    assert len(here) == 3
    expected = local(
        tmp_path / "run", tmp_path / "photos", tmp_path / "local.parquet", "predict", "on_bad=skip"
    )
    assert same(answers(tmp_path / "o"), expected)
    (bad,) = pq.read_table(tmp_path / "o" / "bad").to_pylist()
    assert bad["file"].endswith("5.png") and "not a supported image" in bad["reason"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (([None, None], ["a", None], ["b", "c"]), [None, None, "a", None, "b", "c"]),
        # Such as identifiers of two tables.
        (([1, None], ["a", "b"]), ["1", None, "a", "b"]),
    ],
)
def test_the_columns_of_all_parts_get_the_same_type(tmp_path, parts, expected):
    for i, values in enumerate(parts):
        (tmp_path / "answers").mkdir(exist_ok=True)
        table = pa.table({"row": [1, 2], "note": values})
        pq.write_table(table, tmp_path / "answers" / f"{bulk.part_name(0, i)}.parquet")
    bulk.unify(tmp_path)
    assert [row["note"] for row in answers(tmp_path)] == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["batch_size=8"], "contains the answers of another command (batch_size); choose"),
        (["keep=[label]"], "contains the answers of another command (keep); choose"),
    ],
)
def test_another_command_does_not_mix_its_answers(
    place, run, here, tmp_path, capsys, change, reason
):
    words = ["predict", f"run={run}", f"input={place / 'all.parquet'}", f"output={tmp_path}/o"]
    assert main([*words, *OPTIONS]) == 0
    assert main([*words, "engine=ray", "batch_size=4", *change]) == 2
    assert reason in capsys.readouterr().err


def test_options_that_ray_cannot_use_are_refused(place, run, here, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("mine")
    cases = {
        ("input.text=apple", f"output={tmp_path}/o"): "input: engine=ray computes a table",
        (
            f"input={place}/all.parquet",
        ): "output: engine=ray writes a folder, got no output; set output=FOLDER",
        (f"input={place}/all.parquet", f"output={tmp_path}/a.csv"): "writes a folder",
        (f"input={place}/all.parquet", f"output={tmp_path}/other"): "is not empty, and contains no",
    }
    for words, reason in cases.items():
        assert main(["predict", f"run={run}", *words, *OPTIONS]) == 2
        assert reason in capsys.readouterr().err


def test_without_ray_one_sentence_says_what_to_install(place, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    words = [f"run={run}", f"input={place / 'all.parquet'}", f"output={tmp_path / 'o'}", *OPTIONS]
    assert main(["predict", *words]) == 2
    expected = "dxn: engine: ray is not installed; run pip install 'dxn[ray]'\n"
    assert capsys.readouterr().err == expected


def test_an_address_without_a_cluster_is_an_error(place, run, tmp_path, capsys):
    pytest.importorskip("ray", reason="needs the optional libraries of dxn[ray]")
    words = [f"run={run}", f"input={place / 'all.parquet'}", f"output={tmp_path / 'o'}", *OPTIONS]
    assert main(["predict", *words, "ray.address=127.0.0.1:1"]) == 2
    assert "ray.address: no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the optional libraries of dxn[ray]"
)
@pytest.mark.filterwarnings("ignore")  # those of Ray
def test_ray_has_the_answers_of_one_process(place, run, tmp_path, monkeypatch):
    # With one processor, tasks that need two of them would wait for ever.
    monkeypatch.setattr(cluster, "num_cores", lambda: 1)
    # Of a cluster that ran on this machine: without ray.address, it is not used.
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    try:
        words = [f"run={run}", f"input={place / 'bad.jsonl'}", *OPTIONS, "on_bad=skip"]
        assert main(["predict", *words, f"output={tmp_path / 'o'}", "ray.replicas=1"]) == 0
        expected = local(
            run, place / "bad.jsonl", tmp_path / "local.parquet", "predict", "on_bad=skip"
        )
        assert same(answers(tmp_path / "o"), expected)
        assert len(pq.read_table(tmp_path / "o" / "bad")) == 1
    finally:
        importlib.import_module("ray").shutdown()
