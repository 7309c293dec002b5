"""Values of environment variables are used, but never saved or shown, and never read again."""

import pytest

from dxn import cli
from dxn.commands.train import Train, settings_of_run
from dxn.config.compose import compose
from dxn.config.environment import require_no_interpolations
from dxn.config.settings import FOLDER, Settings, dump_yaml
from dxn.core import printable
from dxn.core.errors import UserError
from dxn.core.printable import printable as shown
from dxn.runs.folder import fill

SECRET = "hunter2-geheim"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(printable, "_secrets", {})
    monkeypatch.setenv("DXN_TEST_TOKEN", SECRET)
    monkeypatch.setenv("DXN_TEST_SEED", "17")


def composed(*overrides):
    return compose(Train, ["data=digits", *overrides])


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("name=${oc.env:DXN_TEST_TOKEN}", "name", SECRET),
        ("name=a-${oc.env:DXN_TEST_TOKEN}-b", "name", f"a-{SECRET}-b"),
        ("output=/x/${oc.env:DXN_TEST_TOKEN}", "output", f"/x/{SECRET}"),
        ("output=/x/${name}", "output", None),  # the name comes from the environment below
        ("trust=[a,'${oc.env:DXN_TEST_TOKEN}']", "trust", ["a", SECRET]),
        ("name=${oc.decode:${oc.env:DXN_TEST_TOKEN}}", "name", SECRET),
    ],
)
def test_the_value_is_used_and_the_interpolation_is_saved(tmp_path, override, key, value):
    more = ["name=${oc.env:DXN_TEST_TOKEN}"] if value is None else []
    settings = composed(override, *more)
    assert settings.values[key] == (value or f"/x/{SECRET}")
    settings.save(tmp_path)
    for path in (tmp_path / FOLDER).iterdir():
        assert SECRET not in path.read_text()
    saved = Settings.load(tmp_path).values[key]
    assert "${" in str(saved)
    assert dump_yaml(settings.plain()) == (tmp_path / FOLDER / "config.yaml").read_text()


def test_a_number_of_the_environment_is_saved_because_it_is_no_secret(tmp_path):
    settings = composed("seed=${oc.decode:${oc.env:DXN_TEST_SEED}}")
    settings.save(tmp_path)
    assert Settings.load(tmp_path).values["seed"] == 17
    assert Settings.load(tmp_path).values["trainer"]["seed"] == 17


def test_nothing_that_is_printed_contains_the_value(capsys):
    assert cli.main(["show", "data=digits", "name=${oc.env:DXN_TEST_TOKEN}"]) == 0
    assert cli.main(["train", "data=digits", "batch_size=${oc.env:DXN_TEST_TOKEN}"]) == 2
    assert cli.main(["check", "data=table", "data.path=${oc.env:DXN_TEST_TOKEN}.csv"]) == 2
    out, error = capsys.readouterr()
    assert "name: ${oc.env:DXN_TEST_TOKEN}" in out
    assert "data.path: file or folder not found: ${oc.env:DXN_TEST_TOKEN}.csv" in error
    assert SECRET not in out + error


@pytest.mark.parametrize(
    "override",
    [
        "backbone._target_=${oc.env:DXN_TEST_TOKEN}",
        "name=${oc.env:DXN_NO_SUCH}",
        "name=${${oc.env:DXN_TEST_TOKEN}}",
    ],
)
def test_other_uses_of_the_environment_are_refused(override):
    with pytest.raises(UserError) as error:
        composed(override)
    assert SECRET not in shown(str(error.value))


def test_a_value_that_a_model_would_store_is_refused():
    with pytest.raises(
        UserError, match=r"^adapters.image.resize.mode: cannot come from the environment"
    ):
        compose(Train, ["adapters.image.resize.mode=${oc.env:DXN_TEST_TOKEN}"])


def saved_run(folder, *overrides):
    composed(*overrides).save(folder)
    return folder


def test_resuming_asks_for_the_option_again_and_reads_no_variable_that_the_folder_names(tmp_path):
    run = saved_run(tmp_path, "trust=['${oc.env:DXN_TEST_TOKEN}']")
    message = r"trust.0: came from the environment \(\$\{oc.env:DXN_TEST_TOKEN\}\) and is not saved"
    with pytest.raises(UserError, match=message):
        settings_of_run(run)
    with pytest.raises(UserError, match=message):
        settings_of_run(run, ["trainer.epochs=9"])


def test_an_option_that_is_written_again_is_used_but_not_saved(tmp_path):
    run = saved_run(tmp_path, "weights.source=${oc.env:DXN_TEST_TOKEN}")
    for again in ("weights.source=other", "weights.source=${oc.env:DXN_TEST_TOKEN}"):
        settings = settings_of_run(run, [again])
        assert settings.values["weights"]["source"] in ("other", SECRET)
        assert "source: ${oc.env:DXN_TEST_TOKEN}" in dump_yaml(settings.plain())
        assert SECRET not in dump_yaml(settings.plain())


def test_the_name_of_a_run_need_not_be_written_again(tmp_path):
    run = saved_run(tmp_path, "name=${oc.env:DXN_TEST_TOKEN}")
    assert settings_of_run(run).values["name"] == "${oc.env:DXN_TEST_TOKEN}"


def test_a_restarted_command_uses_its_own_values():
    saved = {"a": {"b": "${oc.env:X}", "c": 1}, "d": ["${oc.env:Y}"]}
    values, hidden = fill(saved, {"a": {"b": "x", "c": 2}, "d": ["y"]})
    assert values == {"a": {"b": "x", "c": 1}, "d": ["y"]}
    assert hidden == {("a", "b"): "${oc.env:X}", ("d", 0): "${oc.env:Y}"}


def test_the_data_of_a_run_whose_path_is_not_saved_must_be_named():
    with pytest.raises(UserError, match=r"^data.path: came from the environment .* set data="):
        require_no_interpolations({"data": {"path": "${oc.env:X}"}}, "set data=...")
