"""Which run the keys run=, resume= and weights= mean."""

import os
from pathlib import Path

import pytest

from dxn.commands.options import check_paths
from dxn.commands.train import Train
from dxn.core.errors import UserError
from dxn.runs.folder import model_folder, name_of, trained_run, weights_of_run


def make_run(folder, *, time, has_model=True):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("")
    os.utime(folder / ".hydra" / "config.yaml", (time, time))
    if has_model:
        (folder / "model").mkdir()
        (folder / "model" / "config.yaml").write_text("")


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Runs of two targets; the newest one has no model yet."""
    monkeypatch.chdir(tmp_path)
    for name, time in (("label/a", 3), ("label/b", 5), ("price/c", 7)):
        make_run(tmp_path / "outputs" / name, time=time)
    make_run(tmp_path / "outputs" / "price/d", time=11, has_model=False)
    return tmp_path / "outputs"


@pytest.mark.parametrize(
    ("text", "folder", "note"),
    [
        ("outputs/label", "outputs/label/b", "(newest of 2)"),
        ("outputs", "outputs/price/c", "(newest of 3)"),
        ("latest", "outputs/price/c", "(newest of 3)"),
        ("outputs/label/a", "outputs/label/a", None),
        ("outputs/label/a/model", "outputs/label/a/model", None),
    ],
)
def test_weights_and_run_mean_the_same_folder(outputs, text, folder, note):
    found, line = trained_run(text)
    expected = None if note is None else f"run: {folder} {note}"
    assert (str(found), line) == (folder, expected)
    expected = None if note is None else f"weights: {folder} {note}"
    assert weights_of_run(text) == (folder, expected)


@pytest.mark.parametrize(
    "text", ["owner/name", "gpt2", "outputs/price/d", "no/such/folder", "checkpoint", "x.bin"]
)
def test_other_sources_of_weights_are_left_as_they_are(outputs, text):
    (outputs.parent / "checkpoint").mkdir()
    (outputs.parent / "checkpoint" / "model.safetensors").write_text("")
    (outputs.parent / "x.bin").write_text("")
    assert weights_of_run(text) == (text, None)


def test_the_newest_run_needs_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^weights: folder not found: outputs \("):
        weights_of_run("latest")
    make_run(tmp_path / "outputs" / "a", time=3, has_model=False)
    message = "^weights: outputs: not a run folder, and no folder in it contains a trained model$"
    with pytest.raises(UserError, match=message):
        weights_of_run("latest")


def test_a_folder_of_runs_is_no_model_folder(outputs):
    message = "^outputs/label: a folder of runs; name one of them, such as outputs/label/b$"
    with pytest.raises(UserError, match=message):
        model_folder(Path("outputs/label"))


def test_a_training_names_the_run_that_its_weights_come_from(outputs):
    lines = ["weights=latest", "weights.adapters.text=outputs/label"]
    settings = check_paths(Train.compose(lines)).settings
    assert settings.values["weights"]["source"] == "outputs/price/c"
    assert settings.values["weights"]["adapters"] == {"text": "outputs/label/b"}
    assert settings.notes == (
        "weights: outputs/price/c (newest of 3)",
        "weights.adapters.text: outputs/label/b (newest of 2)",
    )


def test_a_missing_run_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        check_paths(Train.compose(["weights=latest"]))
    assert str(error.value).startswith("weights: folder not found: outputs ")
    assert "\n" not in str(error.value)


def test_the_best_run_of_a_search_has_the_name_of_the_search(tmp_path, monkeypatch):
    search = tmp_path / "reviews" / "2026-01-31_12-00-00.00"
    (search / "trials").mkdir(parents=True)
    monkeypatch.chdir(search)
    assert name_of(search / "best") == name_of(Path("best")) == "reviews"
    assert name_of(tmp_path / "reviews" / "best") == "best"  # the user's own name
