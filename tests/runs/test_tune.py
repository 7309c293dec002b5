"""A search: its space, its trials, how it continues, and the best run."""

import csv
import json
import math
import re
import statistics
import subprocess
import sys
import time
from types import SimpleNamespace

import optuna
import pytest
import yaml
from helpers.runs import PLAIN, SMALL, TEXT, interrupt, refused, table_of
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial
from sqlalchemy.exc import OperationalError

from dxn.cli import main
from dxn.config.space import Dimension, split, words_of
from dxn.core.display import number
from dxn.core.errors import UserError
from dxn.core.files import this_process
from dxn.core.results import BEST
from dxn.runs import tune as module

FAST = [*TEXT, *SMALL, *PLAIN, "data.fractions=[0.6,0.2,0.2]"]


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_not_collected_after_each_trial():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optuna.study._optimize.gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(table_of(60))
    return path


def command(table, *words):
    folder = f"run={table.parent / 'search'}"
    return ["tune", str(table), "target=label", "trainer.epochs=2", *FAST, folder, *words]


def search(table, *words, code=0):
    """Run `dxn tune` in the folder `search` beside the table; return the rows of trials.csv."""
    assert main(command(table, *words)) == code
    with (table.parent / "search" / "trials.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def evaluated(table):
    """The trials that saw the test split."""
    return sorted(p.parent.name for p in table.parent.glob("search/trials/*/metrics.json"))


def test_a_search_ends_with_the_best_run_and_no_other_one_saw_the_test_split(table, capsys):
    space = ["backbone.depth=1..2", "optimizer.lr=1e-4..1e-1:log", "head.dropout=0,0.1"]
    rows = search(table, *space, "trials=7", "trainer.epochs=3")
    folder = table.parent / "search"
    for row in rows:
        assert row["backbone.depth"] in ("1", "2")
        assert 1e-4 <= float(row["optimizer.lr"]) <= 1e-1
        assert row["head.dropout"] in ("0", "0.1")
    complete = [row for row in rows if row["state"] == "complete"]
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert len(rows) == 7 and pruned and int(pruned[0]["epochs"]) < 3
    # The lower loss decides between equal metrics.
    best = max(complete, key=lambda row: (float(row["validation/accuracy"]), -float(row["loss"])))
    assert evaluated(table) == [best["trial"]]
    metrics = json.loads((folder / "best" / "metrics.json").read_text())
    assert metrics["validation/best"] == float(best["validation/accuracy"])
    assert "test/accuracy" in metrics
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    # The trainings print no log of their own, only the last one does.
    start, _, end = output.partition(f" best: trial {best['trial']} ")
    assert "target: label (classify)" in start
    assert "train loss" not in start and "run folder: " in end
    for row in complete:
        value = number(float(row["validation/accuracy"]))
        line = rf"trial {row['trial']} \(.*\): validation accuracy {value} after {row['epochs']} "
        assert re.search(line, start)
    for row in pruned:
        assert re.search(
            rf"trial {row['trial']} \(.*\): pruned after epoch {row['epochs']}: ", start
        )
    # All complete trials have validation metrics, and the best one of them has test metrics.
    others = [row for row in complete if row is not best]
    trials = [folder / "trials" / row["trial"] for row in (best, *others[:2])]
    assert main(["compare", f"run=[{trials[0]},{trials[1]}]"]) == 0
    shown = capsys.readouterr().out
    assert "so the metrics of the validation split are shown" in " ".join(shown.split())
    assert number(float(others[0]["validation/accuracy"])) in shown
    assert main(["compare", f"run=[{folder / 'trials' / pruned[0]['trial']},{trials[1]}]"]) == 2
    assert "because the trial was pruned, has failed" in " ".join(capsys.readouterr().err.split())
    assert f"best options: backbone.depth={best['backbone.depth']} optimizer.lr=" in output
    assert re.search(rf"next: dxn predict run={folder}/best ", output)
    # The folder of the search stands for its best run.
    assert main(["predict", f"run={folder}", "input.text=apple"]) == 0
    assert f"run: {folder}/best (newest of 1)" in capsys.readouterr().out


def test_a_grid_ranks_settings_by_the_mean_over_their_seeds(table, capsys):
    space = ["seed=1,2", "optimizer.lr=0.0001,0.1", "data.seed=0", "trainer.epochs=3"]
    rows = search(table, *space, "sampler=grid")
    combinations = {(row["seed"], row["optimizer.lr"]) for row in rows}
    assert len(rows) == len(combinations) == 4
    means = {}
    for lr in ("0.0001", "0.1"):
        values = [float(r["validation/accuracy"]) for r in rows if r["optimizer.lr"] == lr]
        means[lr] = " ± ".join(
            number(v, 1) for v in (statistics.mean(values), statistics.stdev(values))
        )
    best = [row["trial"] for row in rows if row["optimizer.lr"] == "0.1"]
    assert evaluated(table) == sorted(best)
    output = capsys.readouterr().out
    for lr, mean in means.items():
        assert re.search(rf"│ \d, \d( \*)? +│ {lr} +│ {mean} +│", output)
    assert re.search(r"2 runs of the best setting: test/\w+ [\d.]+ ± [\d.]+, ", output)


def test_an_interrupted_trial_continues_with_the_same_command(table, monkeypatch, capsys):
    words = ["optimizer.lr=0.001,0.1", "sampler=grid"]
    with interrupt(monkeypatch, step=13):  # 4 steps per epoch, so in the second trial
        assert main(command(table, *words)) == 130
    error = capsys.readouterr().err
    assert re.fullmatch(r"dxn: interrupted; continue with: dxn tune .*run=\S+search.*\n", error)
    rows = search(table, *words)
    output = capsys.readouterr().out
    assert "the study already has 1 trial" in output
    assert [row["state"] for row in rows] == ["complete", "fail", "complete"]
    assert {row["optimizer.lr"] for row in rows[::2]} == {"0.001", "0.1"}
    assert rows[1]["folder"] == rows[2]["folder"]
    assert "had other options" not in output
    search(table, *words, "backbone.dropout=0.1")
    expected = "had other options (none of these) than this one (backbone.dropout=0.1)"
    assert expected in capsys.readouterr().out
    # Other options would make the trials of the folder incomparable.
    (line,) = refused(capsys, command(table, "optimizer.lr=0.001,0.2", "sampler=grid"))
    assert "searches optimizer.lr=0.001,0.1, got optimizer.lr=0.001,0.2; choose another" in line


@pytest.mark.exhaustive
def test_the_trial_of_a_killed_process_runs_again(table, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 1)
    monkeypatch.setattr(module, "GRACE", 1)
    # What a killed process leaves behind: a running trial without a heartbeat.
    (table.parent / "search").mkdir()
    storage = optuna.storages.RDBStorage(f"sqlite:///{table.parent / 'search' / 'study.db'}")
    study = optuna.create_study(storage=storage, study_name="dxn", direction="maximize")
    choices = optuna.distributions.CategoricalDistribution(["[text]", "[nothing]"])
    study.enqueue_trial({"data.text": "[text]"})
    killed = study.ask({"data.text": choices})
    storage.record_heartbeat(killed._trial_id)
    time.sleep(2.1)
    rows = search(table, "data.text=[text],[nothing]", "trials=2", "trainer.epochs=1")
    assert rows[0]["state"] == "fail" and not rows[0]["error"]
    assert rows[1]["state"] == "complete" and rows[1]["data.text"] == "[text]"
    # A setting that was trained is not trained again, and a failure does not end the search.
    assert all(row["repeats"] == "1" for row in rows[2:-1])
    assert rows[-1]["state"] == "fail" and "nothing" in rows[-1]["error"]


def test_the_trial_of_a_process_that_was_killed_on_this_machine_runs_again_at_once(
    table, monkeypatch
):
    metrics = {BEST: 0.5, "validation/loss": 1.0}
    results = SimpleNamespace(metrics=metrics, monitored="accuracy", epochs=1, evaluated=6)
    trained = []

    def train_one(settings, on_epoch):
        trained.append(settings.values["optimizer"]["lr"])
        return SimpleNamespace(results=results)

    monkeypatch.setattr(module, "train_one", train_one)
    monkeypatch.setattr(module.Search, "_draw", lambda search: None)  # it takes a second
    (table.parent / "search").mkdir()
    storage = optuna.storages.RDBStorage(f"sqlite:///{table.parent / 'search' / 'study.db'}")
    study = optuna.create_study(storage=storage, study_name="dxn", direction="maximize")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    machine = this_process()[:-8]
    # The second process runs, and the third one could, because it is one of another machine.
    for pid, rate in ((f"{machine}{ended.pid:08x}", "0.001"), (this_process(), "0.1"), ("0", "1")):
        study.enqueue_trial({"optimizer.lr": rate})
        trial = study.ask({"optimizer.lr": CategoricalDistribution(["0.001", "0.1", "1"])})
        trial.set_user_attr("process", pid)
    rows = search(table, "optimizer.lr=0.001,0.1,1", "trials=1")
    assert [row["state"] for row in rows] == ["fail", "running", "running", "complete"]
    assert trained == [0.001] and "process" not in rows[0]


def test_a_trial_that_fails_after_its_training_ends_the_search(table, monkeypatch, capsys):
    results = SimpleNamespace(metrics={BEST: 0.5, "validation/loss": 1.0}, monitored="accuracy")
    monkeypatch.setattr(module, "train_one", lambda *_, **__: SimpleNamespace(results=results))
    # The time limit would end a search that does not count such a trial.
    assert main(command(table, "optimizer.lr=0.001,0.1", "trials=1", "minutes=0.1")) == 2
    assert "has no attribute 'epochs'" in capsys.readouterr().err


def test_a_study_that_another_process_holds_is_no_wrong_url(table, monkeypatch, capsys):
    def create_study(**options):
        raise OperationalError("", None, Exception("database is locked"))

    monkeypatch.setattr(optuna, "create_study", create_study)
    (line,) = refused(capsys, command(table, "seed=1,2"))
    assert "database is locked); another process uses it; run the command again" in line


def test_a_trial_that_another_process_took_over_does_not_end_the_search(table, monkeypatch, capsys):
    original, numbers = module.train_one, []

    def train_one(settings, **options):
        numbers.append(len(numbers))
        if numbers == [0]:  # as a process that slept: another one has ended its trial
            storage = optuna.storages.RDBStorage(f"sqlite:///{table.parent}/search/study.db")
            storage.set_trial_state_values(1, TrialState.FAIL)
            options["on_epoch"](1, 2, 0.5)
        return original(settings, **options)

    monkeypatch.setattr(module, "train_one", train_one)
    rows = search(table, "optimizer.lr=0.001,0.1", "sampler=grid", "trials=1", "trainer.epochs=1")
    assert [row["state"] for row in rows] == ["fail", "complete"]
    assert "note: trial 0: this process did not answer for 60 seconds" in capsys.readouterr().out


def test_a_trial_that_the_time_limit_stops_continues_later(table, monkeypatch, capsys):
    metrics = {BEST: 0.5, "validation/loss": 1.0}
    results = SimpleNamespace(metrics=metrics, monitored="accuracy", epochs=1, evaluated=6)
    trials = []

    def train_one(settings, on_epoch):
        trials.append(settings.values["optimizer"]["lr"])
        if len(trials) == 2:
            late.setattr(module.time, "monotonic", lambda: math.inf)
            on_epoch(1, 2, 0.5)
        return SimpleNamespace(results=results)

    monkeypatch.setattr(module, "train_one", train_one)
    monkeypatch.setattr(module.Search, "_draw", lambda search: None)  # it takes a second
    words = ["optimizer.lr=0.001,0.1", "sampler=grid", "minutes=9"]
    with monkeypatch.context() as late:
        rows = search(table, *words)
    assert [row["state"] for row in rows] == ["complete", "fail", "waiting"]
    assert "stopped after epoch 1: the time is over" in capsys.readouterr().out
    rows = search(table, *words)
    assert [row["state"] for row in rows] == ["complete", "fail", "complete"]
    assert trials[1] == trials[2] != trials[0]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("backbone.depth=2..6", Dimension("backbone.depth", ("2", "6"), is_range=True)),
        ("lr=1e-4..1.:log", Dimension("lr", ("1e-4", "1."), is_range=True, is_log=True)),
        ("x=-.5..+1:0.5", Dimension("x", ("-.5", "+1"), is_range=True, step="0.5")),
        ("head.dropout=0,0.1", Dimension("head.dropout", ("0", "0.1"))),
        ("data.text=[a,b],[c]", Dimension("data.text", ("[a,b]", "[c]"))),
    ],
)
def test_a_word_with_several_values_is_searched(word, expected):
    fixed, space = split(["a,b.csv", "data.path=../x", "target=a", word])
    assert fixed == ["a,b.csv", "data.path=../x", "target=a"]
    assert space == [expected]
    assert space[0].word == word


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr=1..1", "lr: a range must begin with its lower end, got lr=1..1"),
        ("lr=0..1:log", "lr: a range with :log must begin above 0, got lr=0..1:log"),
        ("lr=0..1:2", "lr: the step must be above 0 and fit into the range, got lr=0..1:2"),
        ("lr=interval(0,1)", "lr=interval(0,1): must be a list of values such as 1,2,3 or a range"),
        ("lr=1e-4..", "lr: a range must be like 2..6, 64..512:64 or 1e-4..1e-2:log, got lr=1e-4.."),
        ("lr=1..2:log:2", "lr: a range must be like 2..6"),
        ("lr=1", "tune: no option has several values; give at least one of them a range"),
    ],
)
def test_a_wrong_space_is_one_sentence(word, message):
    with pytest.raises(UserError) as error:
        split([word])
    assert str(error.value).startswith(message)


def test_trials_that_are_validated_on_different_rows_are_named(table, monkeypatch, capsys):
    counts = iter([9, 12])
    monkeypatch.setattr("dxn.training.loop.fitting", lambda *_: next(counts))
    rows = search(table, "optimizer.lr=0.001,0.01", "sampler=grid", "trainer.max_minutes=5")
    assert sorted(row["validated"] for row in rows) == ["12", "9"]
    printed = " ".join(capsys.readouterr().out.split())
    assert "the trials were validated on different numbers of rows (9 and 12)" in printed


def test_a_grid_has_all_values_of_a_range():
    _, (steps, whole, free) = split(["x=0..0.3:0.1", "depth=2..4", "lr=0..1"])
    assert steps.grid() == ["0", "0.1", "0.2", "0.3"]
    assert Dimension(whole.key, whole.values, is_range=True, is_whole=True).grid() == [
        "2",
        "3",
        "4",
    ]
    with pytest.raises(UserError, match="a grid needs a list of values or a range with a step"):
        free.grid()


def test_a_space_in_yaml_has_dotted_or_nested_keys(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("backbone: {depth: 2..6}\noptimizer.lr: [1e-3, 0.1]\nreport: false\n")
    assert words_of(path) == ["backbone.depth=2..6", "optimizer.lr=1e-3,0.1", "report=false"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("optimizer.lr: 1e-4..1e-2\noptimizer: {lr: [0.1, 0.2]}", "optimizer.lr: must occur once"),
        ("head: {dropout: []}", "head.dropout: must have at least one value"),
    ],
)
def test_a_wrong_file_of_a_space_is_named(tmp_path, content, message):
    path = tmp_path / "space.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        words_of(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("optimizer.betas: [[0.9, 0.99], [0.9, 0.999]]", "optimizer.betas=[0.9,0.99],[0.9,0.999]"),
        ("adapters: [[text], [text, image]]", "adapters=[text],[text,image]"),
        ("head.labels: [null, {a: 1}]", "head.labels=null,{a:1}"),
        ("""name: ['a,b', "it's", 'null']""", """name="a,b","it's","null\""""),
        ("trainer.ema_decay: [0.99995, 0.9999]", "trainer.ema_decay=0.99995,0.9999"),
    ],
)
def test_the_values_of_a_space_in_yaml_stay_what_they_are(tmp_path, content, words):
    path = tmp_path / "space.yaml"
    path.write_text(content)
    assert words_of(path) == [words]
    _, (dimension,) = split([words])
    assert len(dimension.values) == len(yaml.safe_load(content).popitem()[1])


def test_a_setting_with_a_seed_that_failed_is_not_the_best(tmp_path):
    study = optuna.create_study(direction="maximize")
    choices = {key: CategoricalDistribution(list("abc")) for key in ("head", "seed")}
    values = {"ab": [0.9, None], "bb": [0.7, 0.8], "cb": [0.6, 0.6]}
    for (head, _), accuracies in values.items():
        for seed, value in zip("ab", accuracies, strict=True):
            study.add_trial(
                create_trial(
                    state=TrialState.FAIL if value is None else TrialState.COMPLETE,
                    params={"head": head, "seed": seed},
                    distributions=choices,
                    value=value,
                    user_attrs={"error": "diverged"} if value is None else {"loss": 1.0},
                )
            )
    space = [Dimension("head", tuple("abc")), Dimension("seed", tuple("ab"))]
    found = module.Search(study, None, [], space, None, tmp_path, "accuracy")._settings()
    assert [trials[0].params["head"] for trials in found] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backbone.depth=2..6:1.5"], "backbone.depth: the step must be a whole number, got"),
        (["seed=1,2", "prune=true"], "prune: cannot be true if seed is searched, because"),
        (["optimizer.lrr=1..2"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["backbone.depth=2.5..6"], "backbone.depth: must be a whole number, got 2.5"),
        (["head.dropout=0,x"], "head.dropout: must be a number, got 'x'"),
        (["seed=1,2", "trails=3"], "trails: no such key; did you mean trials?"),
        (["trials=1,2"], "trials: must be one value, got trials=1,2"),
        (["seed=1,2", "ensemble=3"], "ensemble: must be 1 in a search, got 3"),
        (["seed=1,2", "resume=x"], "resume: to continue a search, run the same command again"),
        (["lr=1..2:log", "sampler=grid"], "lr: no such key; did you mean optimizer.lr?"),
        (["space=no.yaml"], "space: file not found: no.yaml"),
        (["optimizer.lr=0.1,-1"], "optimizer.lr: must be at least 0, got -1"),
        (["seed=1,2", "storage=foo://x"], "storage: cannot be opened (Can't load plugin"),
        (["seed=1,2", "data.fractions=[0.8,0,0.2]"], "tune: the data has no validation split"),
    ],
)
def test_everything_is_checked_before_the_first_trial(words, message, table, capsys):
    (line,) = refused(capsys, command(table, *words))
    assert line.removeprefix("dxn: ").startswith(message)
    assert not (table.parent / "search").exists()


def test_a_training_that_diverges_is_a_trial_that_failed(table, capsys):
    rows = search(table, "optimizer.lr=1e30,1e-3", "sampler=grid", "trainer.epochs=1")
    states = {row["optimizer.lr"]: row["state"] for row in rows}
    assert states == {"1e+30": "fail", "0.001": "complete"}
    assert "failed: the training diverged, its validation loss is nan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("0.99990..0.99992:0.00001", ["0.9999", "0.99991", "0.99992"]),
        ("10000.5..10003.5:1", ["10000.5", "10001.5", "10002.5", "10003.5"]),
        ("0.1..0.3:0.1", ["0.1", "0.2", "0.3"]),
        ("1..3:1", ["1", "2", "3"]),
    ],
)
def test_the_values_of_a_grid_are_exact(word, values):
    ends, _, step = word.partition(":")
    dimension = Dimension("x", tuple(ends.split("..")), is_range=True, step=step)
    assert dimension.grid() == values
