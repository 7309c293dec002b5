"""Publication on the hub, and models that are loaded from it, against a local stand-in."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from helpers.hub import TOKEN, stand_in
from helpers.runs import PLAIN, SMALL, refused, table_of, train
from huggingface_hub import ModelCard

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.export.hub import OLD_USE, _without_home
from dxn.runs.hub import parse

REPO = "ann/fruit"
# huggingface_hub itself uploads with an argument that its HTTP library deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    data = folder / "fruit.csv"
    data.write_text(table_of(40))
    train(folder / "run", str(data), *PLAIN, *SMALL, "trainer.epochs=1", "report=false")
    return folder / "run"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in, with an empty cache and a token."""
    with stand_in() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": False,
            # The protocol of the hub's own storage is not that of the stand-in.
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        yield hub


def push(run, *options):
    assert main(["push", f"run={run}", f"repo={REPO}", *options]) == 0


def test_a_pushed_model_loads_with_the_same_predictions(run, hub, capsys):
    push(run)
    output = capsys.readouterr().out
    commit = hub.refs[REPO]["main"]
    assert f'dxn.load("hf://{REPO}@{commit}")' in output
    assert hub.private[REPO]
    ours = dxn.load(run).predict(text="apple number 3")
    assert dxn.load(f"hf://{REPO}").predict(text="apple number 3") == ours
    assert dxn.load(f"hf://{REPO}@{commit}").predict(text="apple number 3") == ours


def test_the_command_line_uses_a_model_on_the_hub(run, hub, capsys):
    push(run)
    capsys.readouterr()
    assert main(["predict", f"run=hf://{REPO}", "input.text=apple number 3"]) == 0
    assert "prediction:" in capsys.readouterr().out


def test_a_revision_keeps_its_files_after_another_push(run, hub, tmp_path):
    push(run)
    first = hub.refs[REPO]["main"]
    push(run, "license=apache-2.0")
    assert hub.refs[REPO]["main"] != first
    card = hub.files(REPO, first)["README.md"].decode()
    assert "license" not in yaml.safe_load(card.split("---")[1])
    assert dxn.load(f"hf://{REPO}@{first}").labels == ("a", "b")


def test_a_branch_is_created_and_main_is_unchanged(run, hub):
    push(run, "revision=trial", "private=false", "message=First trial")
    assert not hub.private[REPO]
    assert "main" not in hub.refs[REPO]
    assert hub.messages == ["First trial"]
    assert dxn.load(f"hf://{REPO}@trial").labels == ("a", "b")


def test_a_private_push_to_a_public_repository_is_refused(run, hub, monkeypatch, capsys):
    public = SimpleNamespace(private=False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: public)
    (line,) = refused(capsys, ["push", f"run={run}", f"repo={REPO}"])
    assert f"{REPO} exists and is public; set private=false" in line
    assert not hub.requests
    push(run, "private=false")
    assert "visibility: public" in capsys.readouterr().out


def test_the_own_sections_of_a_card_are_kept():
    text = "# Card\n\n## Use\n\nold\n\n## Data\n\nmine\n"
    assert OLD_USE.sub("", text) == "# Card\n\n## Data\n\nmine\n"


@pytest.mark.parametrize(
    ("home", "expected"), [("/", "/home/ann/x /data/home/ann"), ("/home/ann", "~/x /data/home/ann")]
)
def test_only_the_home_folder_of_the_author_is_hidden(home, expected, monkeypatch):
    monkeypatch.setenv("HOME", home)
    assert _without_home("/home/ann/x /data/home/ann") == expected


def test_a_model_in_the_cache_loads_without_the_hub(run, hub, monkeypatch):
    push(run)
    dxn.load(f"hf://{REPO}")
    hub.repos.clear()
    commit = hub.refs[REPO]["main"]
    assert dxn.load(f"hf://{REPO}@{commit}").labels == ("a", "b")


def test_the_card_has_the_figures_the_use_and_the_limitations(run, hub):
    push(run, "license=apache-2.0")
    card = hub.files(REPO)["README.md"].decode()
    metadata = yaml.safe_load(card.split("---")[1])
    figures = json.loads((run / "metrics.json").read_text())
    (result,) = metadata["model-index"][0]["results"]
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values["accuracy"] == pytest.approx(figures["test/accuracy"], abs=1e-6)
    # The library reads the metrics in the format of the hub.
    data: Any = ModelCard(card).data
    (first, *_) = data.eval_results
    assert first.metric_type in values
    assert metadata["license"] == "apache-2.0"
    assert metadata["tags"] == ["dxn", "classify", "text"]
    assert f'dxn.load("hf://{REPO}")' in card
    assert "## Limitations" in card
    assert 'dxn.load("model")' not in card


def test_only_files_of_the_model_are_uploaded(run, hub):
    push(run)
    names = {path.name for path in (run / "model").iterdir()}
    assert set(hub.files(REPO)) == names


def test_a_damaged_model_is_not_uploaded(run, hub, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with (copy / "model" / "labels.json").open("a") as file:
        file.write(" ")
    (line,) = refused(capsys, ["push", f"run={copy}", f"repo={REPO}"])
    assert "labels.json" in line
    assert not hub.requests


def test_a_changed_file_on_the_hub_is_refused(run, hub):
    push(run)
    hub.files(REPO)["labels.json"] += b" "
    with pytest.raises(UserError, match=r"labels\.json"):
        dxn.load(f"hf://{REPO}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "repo: set repo=OWNER/NAME"),
        (["repo=name"], "repo: must be OWNER/NAME, got name"),
        (["repo=a/b", "license=My Licence"], "license: must be an identifier"),
        (["repo=a/b", "revision=../x"], "revision: must be the name of a branch"),
    ],
)
def test_a_wrong_option_of_push_is_named(run, hub, options, message, capsys):
    (line,) = refused(capsys, ["push", f"run={run}", *options])
    assert message in line
    assert not hub.requests


def test_a_push_without_permission_says_how_to_log_in(run, hub, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    (line,) = refused(capsys, ["push", f"run={run}", f"repo={REPO}"])
    assert "hf auth login" in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://ann/unknown", "load: ann/unknown: not found on the hub"),
        (f"hf://{REPO}@v7", f"load: {REPO} has no revision v7"),
        ("hf://fruit", "load: a model on the hub is written hf://OWNER/NAME"),
        ("hf://ann/../fruit", "load: a model on the hub is written"),
        (f"hf://{REPO}@", "load: a model on the hub is written"),
    ],
)
def test_a_model_that_does_not_exist_is_named(run, hub, name, message):
    push(run)
    with pytest.raises(UserError) as caught:
        dxn.load(name)
    assert message in str(caught.value)


def test_a_repository_without_a_dxn_model_is_refused(hub):
    hub.repos["ann/other"] = {"1" * 40: {"config.json": b"{}"}}
    hub.refs["ann/other"] = {"main": "1" * 40}
    with pytest.raises(UserError, match=r"ann/other is not a model of dxn"):
        dxn.load("hf://ann/other")
    # Its files, which may be large, are not downloaded.
    assert not [request for request in hub.requests if "/resolve/" in request]


def test_files_in_folders_are_not_downloaded(run, hub):
    push(run)
    hub.files(REPO)["old/weights.json"] = b"{}"
    hub.requests.clear()
    dxn.load(f"hf://{REPO}")
    assert not [request for request in hub.requests if "old/" in request]


def test_a_name_is_parsed_with_its_revision():
    assert parse("hf://ann/a.b-c@v1.0") == ("ann/a.b-c", "v1.0")
    assert parse("hf://ann/fruit") == ("ann/fruit", None)
