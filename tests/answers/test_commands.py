"""Commands write where they say, read what they print, and print lines that run as they are."""

import csv
import shutil
from datetime import datetime
from io import StringIO

import pandas
import pytest
import yaml
from helpers.runs import SMALL, refused, table_of, train

import dxn
from dxn.cli import main
from dxn.config.instantiate import build

OPTIONS = [*SMALL, "preset=plain", "baseline=none", "trainer.epochs=1"]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    """The folder of a run on a table of texts."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "table.csv").write_text(table_of(24))
    train(folder / "run", str(folder / "table.csv"), "target=label", *OPTIONS)
    return folder / "run"


@pytest.fixture
def copied(text_run, tmp_path):
    """A copy of the run, as from somebody else."""
    shutil.copytree(text_run, tmp_path / "copy")
    return tmp_path / "copy"


def change_data(run, **data):
    """Change the data in the saved configuration of a run."""
    path = run / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["data"] = data
    path.write_text(yaml.safe_dump(config))


def output_of(capsys, *arguments):
    """Run a command that must succeed, and return what it printed, without line breaks."""
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_folder_that_a_run_names_as_a_data_set_of_the_hub_is_printed(
    command, copied, tmp_path, capsys
):
    private = tmp_path / "private"
    private.mkdir()
    (private / "train.csv").write_text(table_of(8))
    change_data(copied, _target_="dxn.data.hub", name=str(private), target="label", seed=0)
    printed = output_of(capsys, command, f"run={copied}")
    assert f"dataoftherun:{private}" in printed


def test_a_resumed_run_prints_the_data_that_it_names(copied, capsys):
    printed = output_of(capsys, "train", f"resume={copied}")
    config = yaml.safe_load((copied / ".hydra" / "config.yaml").read_text())
    assert f"dataoftherun:{config['data']['path']}" in printed


def test_an_evaluation_does_not_follow_a_link_out_of_the_run_folder(copied, tmp_path, capsys):
    (tmp_path / "private").mkdir()
    (copied / "evaluate").symlink_to(tmp_path / "private")
    (line, *_) = refused(capsys, ["evaluate", f"run={copied}"])
    assert f"{copied / 'evaluate'}: must not be a link" in line
    assert not list((tmp_path / "private").iterdir())
    output_of(capsys, "evaluate", f"run={copied}", f"output={tmp_path / 'out'}")


@pytest.mark.parametrize("name", ["checkpoints", "model", "metrics.json"])
def test_a_resumed_run_writes_through_no_link(name, copied, tmp_path, capsys):
    private = tmp_path / "private"
    (copied / name).rename(private)
    (copied / name).symlink_to(private)
    before = private.stat().st_mtime_ns
    (line, *_) = refused(capsys, ["train", f"resume={copied}", "trainer.epochs=2"])
    assert f"{copied / name}: must not be a link" in line
    assert private.stat().st_mtime_ns == before


def test_a_link_inside_of_a_run_folder_is_followed(copied, capsys):
    (copied / "evaluations").mkdir()
    (copied / "evaluate").symlink_to("evaluations")
    output_of(capsys, "evaluate", f"run={copied}")
    assert len(list((copied / "evaluations").iterdir())) == 1


@pytest.fixture
def stopped_clock(monkeypatch):
    """All folders with a time in their name get the same name."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 31, 12)

    monkeypatch.setattr("dxn.core.display.datetime", Stopped)


def test_trainings_of_the_same_moment_have_folders_of_their_own(tmp_path, stopped_clock):
    (tmp_path / "table.csv").write_text(table_of(24))
    command = ["train", str(tmp_path / "table.csv"), "target=label", *OPTIONS, "report=false"]
    for _ in range(2):
        assert main([*command, f"output={tmp_path / 'out'}"]) == 0
    assert main([*command, f"output={tmp_path / 'out'}", "ensemble=2", "name=label"]) == 0
    runs = sorted(path.parent.name for path in (tmp_path / "out" / "label").glob("*/metrics.json"))
    day = "2026-01-31_12-00-00.00"
    assert runs == [day, *(f"{day}-{number}" for number in (2, 3))]


def test_trainings_in_python_of_the_same_moment_have_folders_of_their_own(tmp_path, stopped_clock):
    frame = pandas.read_csv(StringIO(table_of(24)))
    options = [*OPTIONS, f"output={tmp_path}", "report=false"]
    folders = [dxn.train(frame, *options, target="label").folder for _ in range(2)]
    assert len(set(folders)) == 2
    assert all((folder / "metrics.json").is_file() for folder in folders)


def test_evaluations_of_the_same_moment_have_folders_of_their_own(copied, stopped_clock, capsys):
    for _ in range(2):
        output_of(capsys, "evaluate", f"run={copied}")
    assert len(list((copied / "evaluate").glob("*/metrics.json"))) == 2


def test_a_refused_evaluation_leaves_no_folder(copied, capsys):
    refused(capsys, ["evaluate", f"run={copied}", "only=[picture]"])
    assert not (copied / "evaluate").exists()


def test_no_line_of_a_single_forecast_names_a_file(tmp_path):
    rows = [f"{day},{day % 7},{day % 5}" for day in range(120)]
    (tmp_path / "days.csv").write_text("\n".join(["day,a,b", *rows]))
    windows = ["data=timeline", "data.horizon=3", "data.context=14", "target=[a,b]"]
    train(tmp_path / "run", *windows, f"data.path={tmp_path / 'days.csv'}", *OPTIONS)
    (name,) = dxn.load(tmp_path / "run").inputs
    history = [[float(day % 7), float(day % 5)] for day in range(14)]
    command = ["predict", f"run={tmp_path / 'run'}", f"input.{name}={history}"]
    assert main([*command, f"output={tmp_path / 'answers.csv'}"]) == 0
    records = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert len(records) > 1
    assert "file" not in records[0]


def test_a_single_tracker_needs_no_list(tmp_path):
    (tmp_path / "table.csv").write_text(table_of(24))
    options = [*OPTIONS, "report=false", "trainer.tracker=tensorboard"]
    train(tmp_path / "run", str(tmp_path / "table.csv"), "target=label", *options)
    assert list((tmp_path / "run" / "tensorboard").rglob("events*"))


def test_a_defect_of_a_class_of_dxn_is_not_reported_as_a_wrong_option(monkeypatch):
    def broken(self):
        raise AttributeError("a defect")

    monkeypatch.setattr("dxn.training.trainer.Trainer.__post_init__", broken)
    with pytest.raises(AttributeError, match="a defect"):
        build({"_target_": "dxn.training.trainer.Trainer"}, key="trainer")
