"""A model folder or run folder from a stranger cannot run code, import a module or read the environment."""

import os
import shutil

import pytest
import yaml

from dxn.cli import main
from dxn.train.bundle import check_sums

FAST = ["dim=16", "backbone.depth=1", "trainer.epochs=1", "trainer.device=cpu", "trainer.precision=float32"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = "".join(f"{word},{word[0]}\n" for word in ["apple", "banana"] * 20)
    (folder / "table.csv").write_text(f"text,label\n{rows}")
    table = f"data.path={folder / 'table.csv'}"
    assert (
        main(["train", "data=table", table, "data.text=text", "data.target=label", *FAST, f"run={folder / 'run'}"]) == 0
    )
    return folder


def spoil(path, change):
    found = yaml.safe_load(path.read_text())
    change(found)
    path.write_text(yaml.safe_dump(found))


def attack(canary):
    return {"_target_": "os.system", "command": f"touch {canary}"}


@pytest.mark.parametrize("part", ["fusion", "head", "backbone"])
def test_training_from_a_model_folder_runs_nothing_that_it_names(run, tmp_path, capsys, part):
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(run / "run" / "model", model)
    (model / "SHA256SUMS").unlink()
    check_sums(model)
    spoil(model / "config.yaml", lambda c: c[part].__setitem__("pool" if part == "fusion" else "norm", attack(canary)))
    table = ["data=table", f"data.path={run / 'table.csv'}", "data.text=text", "data.target=label"]
    code = main(["train", f"weights={model}", *table, *FAST, f"run={tmp_path / 'out'}"])
    assert code == 2
    assert not canary.exists()
    assert "os.system" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["evaluate", "predict", "embed"])
def test_using_a_run_folder_composes_nothing_from_its_overrides(run, tmp_path, capsys, verb):
    copy, canary = tmp_path / "copy", tmp_path / "canary"
    shutil.copytree(run / "run", copy)
    line = f"+data.holdout={{_target_:os.system,command:'touch {canary}'}}"
    (copy / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([line, "data._target_=antigravity.fly"]))
    arguments = {
        "evaluate": [],
        "predict": [f"input={run / 'table.csv'}"],
        "embed": [f"input={run / 'table.csv'}", f"output={tmp_path / 'v.npy'}"],
    }
    main([verb, f"run={copy}", *arguments[verb]])
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["evaluate", "resume"])
def test_a_run_folders_saved_configuration_cannot_name_other_code(run, tmp_path, capsys, verb):
    copy, canary = tmp_path / "copy", tmp_path / "canary"
    shutil.copytree(run / "run", copy)
    spoil(copy / ".hydra" / "config.yaml", lambda c: c.__setitem__("data", attack(canary)))
    (copy / ".hydra" / "overrides.yaml").write_text(
        yaml.safe_dump([f"+data.x={{_target_:os.system,command:'touch {canary}'}}"])
    )
    command = ["evaluate", f"run={copy}"] if verb == "evaluate" else ["train", f"resume={copy}"]
    assert main(command) == 2
    assert not canary.exists()
    assert "os.system" in capsys.readouterr().err


def test_a_run_folder_cannot_read_the_environment(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "DXN_SECRET", "hunter2")
    copy = tmp_path / "copy"
    shutil.copytree(run / "run", copy)
    spoil(copy / ".hydra" / "config.yaml", lambda c: c["data"].__setitem__("text", "${oc.env:DXN_SECRET}"))
    (copy / ".hydra" / "overrides.yaml").write_text(
        yaml.safe_dump(["data=table", "data.path=x", "data.text=${oc.env:DXN_SECRET}"])
    )
    assert main(["predict", f"run={copy}", f"input={run / 'table.csv'}"]) == 2
    assert "hunter2" not in "".join(capsys.readouterr())
    assert main(["train", f"resume={copy}"]) == 2
    assert "hunter2" not in "".join(capsys.readouterr())
