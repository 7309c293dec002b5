"""Options do not come from the environment, except for a URL that is neither saved nor shown."""

import json
import sqlite3

import pytest

from dxn.cli import main
from dxn.commands.train import Train, settings_of_run
from dxn.commands.tune import Tune
from dxn.config.compose import compose
from dxn.config.settings import FOLDER
from dxn.core.errors import UserError

SECRET = "hunter2-geheim"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("DXN_TEST_TOKEN", SECRET)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("name=${oc.env:DXN_TEST_TOKEN}", "name"),
        ("name=a-${oc.env:DXN_TEST_TOKEN}-b", "name"),
        ("trust=[a,'${oc.env:DXN_TEST_TOKEN}']", "trust"),
        ("seed=${oc.decode:${oc.env:DXN_TEST_TOKEN}}", "seed"),
        ("adapters.image.resize.mode=${oc.env:DXN_NO_SUCH,x}", "adapters.image.resize.mode"),
    ],
)
def test_an_option_that_is_saved_cannot_come_from_the_environment(word, key, capsys):
    assert main(["show", "data=digits", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dxn: {key}: cannot be ") and "oc.env:DXN_" in line
    assert "can be a secret; write the value itself" in line
    assert SECRET not in line


def test_a_saved_run_is_not_changed_by_the_environment(tmp_path):
    compose(Train, ["data=digits"]).save(tmp_path)
    with pytest.raises(UserError, match=r"^name: cannot be \$\{oc.env:DXN_TEST_TOKEN\} in a saved"):
        settings_of_run(tmp_path, ["name=${oc.env:DXN_TEST_TOKEN}"])


def test_a_saved_interpolation_is_a_text(tmp_path):
    compose(Train, ["data=digits"]).save(tmp_path)
    path = tmp_path / FOLDER / "config.yaml"
    path.write_text(path.read_text().replace("name: null", "name: ${oc.env:DXN_TEST_TOKEN}"))
    assert settings_of_run(tmp_path).values["name"] == "${oc.env:DXN_TEST_TOKEN}"


def test_a_wrong_variable_of_the_storage_is_named(capsys):
    assert main(["tune", "seed=1,2", "storage=${oc.env:DXN_NO_SUCH}"]) == 2
    assert "DXN_NO_SUCH" in capsys.readouterr().err


def test_the_url_of_a_database_comes_from_the_environment_and_is_written_nowhere(
    tmp_path, capsys, monkeypatch
):
    database = tmp_path / f"{SECRET}.db"
    monkeypatch.setenv("DXN_TEST_URL", f"sqlite:///{database}")
    folder = tmp_path / "search"
    words = ["seed=1,2", "storage=${oc.env:DXN_TEST_URL}", f"run={folder}", "trials=1"]
    words += ["data.num_train=19", "data.num_validation=7", "data.num_test=7", "baseline=none"]
    words += ["trainer.epochs=1", "dim=8", "backbone.depth=1", "backbone.num_heads=1"]
    assert Tune.compose(words).storage == f"sqlite:///{database}"
    assert main(["tune", *words, "report=false"]) == 0
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from trials").fetchone() == (1,)
    connection.close()
    assert SECRET not in "".join(capsys.readouterr())
    files = [path for path in folder.rglob("*") if path.suffix in (".yaml", ".json", ".md", ".csv")]
    assert files
    assert not [path for path in files if SECRET in path.read_text(encoding="utf-8")]
    assert json.loads(next(folder.rglob("metrics.json")).read_text())


def test_a_database_that_cannot_be_opened_is_not_shown(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("DXN_TEST_URL", f"foo://user:{SECRET}@server")
    words = ["seed=1,2", "storage=${oc.env:DXN_TEST_URL}", f"run={tmp_path / 'search'}"]
    assert main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert "storage: cannot be opened (" in error
    assert SECRET not in error
