"""Trainings that are killed, started twice, or resumed with something that has changed.

tests/robustness/faults/faults.py injects many more faults into real processes.
"""

import csv
import shutil
import sys
from contextlib import contextmanager

import pytest
import yaml
from helpers.runs import (
    PLAIN,
    SMALL,
    TINY_DIGITS,
    checkpoint_of,
    interrupt,
    log_of,
    metrics_of,
    refused,
    same_tensors,
    table_of,
    train,
    weights_of,
)

from dxn.cli import main
from dxn.runs.folder import locked
from dxn.runs.saved import model_folder
from dxn.training.loop import Fit

OPTIONS = [*TINY_DIGITS, "adapters=[text]", "trainer.epochs=2", "trainer.log_every=1"]
TABLE = [*SMALL, *PLAIN, "adapters.text.vocab_size=60", "trainer.epochs=2", "data.split=split"]
TABLE += ["trainer.checkpoint_minutes=1e-9"]  # after each step
WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.chmod", "ctypes.dlsym"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, *OPTIONS)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run on a table, interrupted in its second epoch, and the rows of the table."""
    folder = tmp_path_factory.mktemp("killed")
    lines = list(csv.reader(table_of(40).splitlines()))
    splits = ["split", *(["train"] * 30), *(["validation"] * 5), *(["test"] * 5)]
    rows = [[*row, split] for row, split in zip(lines, splits, strict=True)]
    write_rows(folder / "t.csv", rows)
    with pytest.MonkeyPatch.context() as patch, interrupt(patch, step=4):
        arguments = [str(folder / "t.csv"), "target=label", *TABLE, f"run={folder / 'run'}"]
        assert main(["train", *arguments]) == 130
    return folder / "run", rows


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def with_cell(rows, row, column, value):
    return [
        [value if (i, j) == (row, column) else cell for j, cell in enumerate(cells)]
        for i, cells in enumerate(rows)
    ]


# What changed since the start


DATA = {
    "another order": (
        lambda rows: [rows[0], *rows[30:0:-1], *rows[31:]],
        "the train split has its rows in another order",
    ),
    "a row less": (lambda rows: [*rows[:-1]], "the test split has 4 rows instead of 5"),
    "a row more": (
        lambda rows: [*rows, ["new", "a", "train"]],
        "the train split has 31 rows instead of 30",
    ),
    "another label": (
        lambda rows: with_cell(rows, 1, 1, "b"),
        "the train split has other values of target",
    ),
    "another text": (
        lambda rows: with_cell(rows, 32, 0, "other"),
        "the validation split has other values of text",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_a_resume_with_changed_data_is_refused(killed, tmp_path, capsys, name):
    change, expected = DATA[name]
    run = shutil.copytree(killed[0], tmp_path / "run")
    write_rows(tmp_path / "t.csv", change(killed[1]))
    (line,) = refused(capsys, ["train", f"resume={run}", f"data.path={tmp_path / 't.csv'}"])
    assert line.startswith(f"dxn: resume: the data changed since the run started: {expected}; undo")
    assert "set resume.force=true to continue nevertheless" in line


def test_resume_force_continues_with_changed_data(killed, tmp_path):
    run = shutil.copytree(killed[0], tmp_path / "run")
    write_rows(tmp_path / "t.csv", DATA["another order"][0](killed[1]))
    changed = f"data.path={tmp_path / 't.csv'}"
    assert main(["train", f"resume={run}", changed, "resume.force=true"]) == 0


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("optimizer.lr=0.5", "configuration changed since the run started: optimizer.lr was 0.001"),
        ("batch_size=4", "batch_size: 11 samples per batch over all processes, and now 4"),
        ("trainer.mixup=0.5", "trainer.mixup was 0.0 and is now 0.5"),
        ("trainer.precision=bf16", "trainer.precision was 'float32' and is now 'bf16'"),
        ("trainer.grad_accum_steps=2", "trainer.grad_accum_steps was 1 and is now 2"),
        ("dim=32", "dim: cannot be changed in a saved run"),
        ("seed=1", "seed: cannot be changed in a saved run"),
        ("scheduler=linear", "the parts of a saved run cannot be changed"),
    ],
)
def test_a_resume_with_another_configuration_is_refused(killed, capsys, option, expected):
    (line,) = refused(capsys, ["train", f"resume={killed[0]}", option])
    assert expected in line


def test_options_without_effect_on_the_weights_may_change(killed, tmp_path):
    run = shutil.copytree(killed[0], tmp_path / "run")
    more = ["trainer.log_every=2", "trainer.patience=1", "loader.num_workers=0"]
    assert main(["train", f"resume={run}", *more, "trainer.checkpoint_minutes=1"]) == 0


def test_the_options_of_a_resume_are_saved_for_the_next_one(killed, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    changes = ["optimizer.lr=0.5", "trainer.epochs=3"]
    assert main(["train", f"resume={run}", *changes, "resume.force=true"]) == 0
    saved = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    assert (saved["optimizer"]["lr"], saved["trainer"]["epochs"]) == (0.5, 3)
    # The permission to change something is not saved.
    assert saved["resume"] == {"run": None, "force": False}
    (line,) = refused(capsys, ["train", f"resume={run}", "optimizer.lr=0.1"])
    assert "optimizer.lr was 0.5 and is now 0.1" in line
    assert main(["train", f"resume={run}", "trainer.epochs=4"]) == 0
    assert {row["epoch"] for row in log_of(run) if "validation/loss" in row} == {1, 2, 3, 4}


@pytest.mark.parametrize("option", ["batch_size=7", "trainer.batch_size=7"])
def test_another_batch_size_starts_the_epoch_again(killed, tmp_path, capsys, option):
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    (line,) = refused(capsys, ["train", f"resume={run}", option])
    assert "batch_size: 11 samples per batch over all processes, and now 7" in line
    assert main(["train", f"resume={run}", option, "resume.force=true"]) == 0
    # The run stopped after four batches of eleven. The 30 rows are five batches of seven.
    assert log_of(run)[-1]["step"] == 4 + 5


def test_a_maximum_number_of_tokens_starts_the_epoch_again(killed, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(killed[0], run)
    (line,) = refused(capsys, ["train", f"resume={run}", "trainer.batch_tokens=48"])
    assert "trainer.batch_tokens was None and is now 48" in line
    assert main(["train", f"resume={run}", "trainer.batch_tokens=48", "resume.force=true"]) == 0
    assert "epoch 2 starts again with the new batch size" in capsys.readouterr().out
    # The run stopped after four batches. The 30 rows have 9 to 16 tokens: three per batch.
    assert log_of(run)[-1]["step"] == 4 + 10


def test_the_chosen_precision_is_kept(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    with interrupt(monkeypatch, step=7):  # in the second epoch
        main(["train", *OPTIONS, "trainer.precision=auto", f"run={run}"])
    monkeypatch.setattr("dxn.training.parallel.choose_bf16", lambda device: (True, "bf16"))
    capsys.readouterr()
    assert main(["train", f"resume={run}"]) == 0
    assert "precision: float32, as configured" in capsys.readouterr().out


# A saved configuration that is damaged


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda config: config.pop("trainer"), "trainer is missing"),
        (lambda config: config.update(loader=5), "loader must be a mapping"),
        (lambda config: config["head"].pop("_target_"), "head._target_ is missing"),
        (lambda config: config.update(resume={"run": None}), "resume.force is missing"),
        (lambda config: config.update(output=5), "output: "),
        (lambda config: config["trainer"].update(epochs="x"), "trainer.epochs: "),
    ],
)
def test_a_damaged_configuration_of_a_run_is_named(killed, tmp_path, capsys, change, expected):
    run = shutil.copytree(killed[0], tmp_path / "run")
    path = run / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config))
    assert expected in refused(capsys, ["train", f"resume={run}"])[0]


@pytest.mark.parametrize("name", ["step-000000004", "start"])
def test_an_empty_list_of_checksums_does_not_hide_damage(killed, tmp_path, capsys, name):
    run = shutil.copytree(killed[0], tmp_path / "run")
    (run / "checkpoints" / name / "SHA256SUMS").write_text("")
    if name == "start":
        expected = "start/SHA256SUMS: must list plan.json"
        assert expected in refused(capsys, ["train", f"resume={run}"])[0]
    else:
        assert main(["train", f"resume={run}"]) == 0
        assert (run / "checkpoints" / f"damaged-{name}").is_dir()


# One run folder


def test_a_second_training_in_a_folder_is_refused(whole, capsys):
    (line,) = refused(capsys, ["train", *OPTIONS, f"run={whole}"])
    assert "already contains a run; set resume=" in line


def test_a_run_whose_checkpoints_were_deleted_is_not_said_to_be_resumable(whole, tmp_path, capsys):
    run = shutil.copytree(whole, tmp_path / "run")
    for checkpoint in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(checkpoint)
    (line,) = refused(capsys, ["train", *OPTIONS, f"run={run}"])
    assert line.endswith(
        "has no checkpoint to continue from; choose another folder, or delete this one"
    )


def test_a_resume_of_a_training_that_runs_is_refused(whole, capsys, monkeypatch):
    # A POSIX lock does not exclude its own process, so another process is simulated.
    def taken(*arguments):
        raise BlockingIOError

    with locked(whole, main=True):
        monkeypatch.setattr("fcntl.lockf", taken)
        (line,) = refused(capsys, ["train", f"resume={whole}"])
    assert "is in use by process " in line


def test_the_resume_of_a_finished_run_changes_nothing(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    assert main(["train", f"resume={run}"]) == 0
    assert log_of(run) == log_of(whole)
    assert same_tensors(weights_of(run), weights_of(whole))


def test_a_training_that_ends_in_its_final_evaluation_is_evaluated_by_a_resume(
    whole, tmp_path, monkeypatch, capsys
):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "metrics.json").unlink()

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dxn.runs.evaluation.after_training.evaluate_subsets", stop)
        assert main(["train", f"resume={run}"]) == 130
    assert f"continue with: dxn train resume={run}" in capsys.readouterr().err
    assert main(["train", f"resume={run}"]) == 0
    assert metrics_of(run)["test/accuracy"] == metrics_of(whole)["test/accuracy"]
    assert log_of(run) == log_of(whole)


# Killed at a write


class Killed(BaseException):
    """Stands for SIGKILL: no `except Exception` sees it."""


class Killer:
    """Raises Killed at one write in a folder. An audit hook cannot be removed, so there is one."""

    def __init__(self):
        self.folder = None
        self.left = 0
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.folder is None or event not in WRITES:
            return
        path = arguments[1] if event == "ctypes.dlsym" else str(arguments[0])
        is_write = event != "open" or "r" not in str(arguments[1] or "r")
        if path == "renameat2" or (is_write and path.startswith(str(self.folder))):
            self.left -= 1
            if self.left <= 0:
                # Each later write too: the `finally` of a dead process does nothing.
                raise Killed

    @contextmanager
    def at(self, number, folder, monkeypatch):
        """Kill at a write of the end of the second epoch."""
        validate = Fit.validate

        def armed(run):
            if run.state.epoch == 2:
                self.folder, self.left = folder, number
            return validate(run)

        with monkeypatch.context() as patch:
            patch.setattr(Fit, "validate", armed)
            try:
                yield
            finally:
                self.folder = None


@pytest.fixture(scope="module")
def killer():
    return Killer()


@pytest.mark.parametrize(
    "number",
    [1, 9, 18, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (3, 6, 12, 15, 21))],
)
def test_a_training_killed_at_a_write_resumes_bit_for_bit(
    whole, tmp_path, monkeypatch, killer, number
):
    run = tmp_path / "run"
    with killer.at(number, run, monkeypatch), pytest.raises(Killed):
        main(["train", *OPTIONS, f"run={run}"])
    model_folder.load(run / "model")
    assert main(["train", f"resume={run}"]) == 0
    assert log_of(run) == log_of(whole)
    assert same_tensors(weights_of(run), weights_of(whole))
    assert same_tensors(checkpoint_of(run), checkpoint_of(whole))
    assert not list(run.rglob(".unfinished-*"))
