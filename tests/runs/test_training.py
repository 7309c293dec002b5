"""A training from the command line: what it writes, and what its model folder answers."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from helpers.runs import PLAIN, SMALL, TEXT, TINY_DIGITS, table_of, train

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.files import write_sums

DRAWS_PICTURES = WRITES_REPORTS = True  # see conftest.py
HEADER = "spelled,handwritten,dialled"  # the columns of the inputs of data=digits
PACKAGE = Path(dxn.__file__).parent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, *TINY_DIGITS, "trainer.epochs=2")
    return folder


def test_a_run_writes_the_documented_files(trained):
    found = {str(p.relative_to(trained)) for p in trained.rglob("*") if p.is_file()}
    assert found == {
        *(".lock", ".hydra/config.yaml", ".hydra/overrides.yaml"),
        # Five steps per epoch. The last two checkpoints are kept.
        *(f"checkpoints/step-{step:09}/training.safetensors" for step in (5, 10)),
        *(f"checkpoints/step-{step:09}/SHA256SUMS" for step in (5, 10)),
        *("checkpoints/start/tokenizer.json", "checkpoints/start/labels.json"),
        *("checkpoints/start/plan.json", "checkpoints/start/SHA256SUMS"),
        *(
            "model/model.safetensors",
            "model/config.yaml",
            "model/tokenizer.json",
            "model/labels.json",
        ),
        *(
            "model/README.md",
            "model/SHA256SUMS",
            "metrics.json",
            "metrics.jsonl",
            "predictions.csv",
        ),
        *("report.html", "scores.json"),
        "tokens.png",
    }
    figures = json.loads((trained / "metrics.json").read_text())
    for shown in (
        "[text]",
        "[image]",
        "[audio]",
        "[text+image]",
        "[text+audio]",
        "[image+audio]",
        "",
    ):
        assert 0 <= figures[f"test/accuracy{shown}"] <= 1
    assert len((trained / "predictions.csv").read_text().splitlines()) == 1 + 17


def test_no_code_of_the_package_reads_or_writes_a_pickle():
    """A public torch file is read with weights_only; the module's name is there for its error.

    The tasks of a Ray job send each other messages, which Ray pickles too. They are no files.
    """
    forbidden = re.compile(
        r"pickle\.(?!UnpicklingError)\w+\(?|torch\.save\(|torch\.load\((?![^)]*weights_only=True)"
    )
    for path in PACKAGE.rglob("*.py"):
        if path.name == "cluster.py":
            continue
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.S)
        assert not forbidden.search(code), path
        assert "pickle" not in code or path.parent.name in ("weights", "core"), path


def test_a_refused_evaluation_writes_nothing(trained, tmp_path, capsys):
    assert main(["evaluate", f"run={trained}", "only=[smell]", f"output={tmp_path / 'out'}"]) == 2
    assert "got smell" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_folder_alone_predicts_a_table(trained, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(f"{HEADER}\nzwei,,\n")
    copy = copied(trained, tmp_path)
    outputs = []
    for run in (trained / "model", copy):
        capsys.readouterr()
        assert main(["predict", f"run={run}", f"input={tmp_path / 'new.csv'}"]) == 0
        outputs.append(capsys.readouterr().out.replace(str(run), "RUN"))
    assert outputs[0] == outputs[1]
    columns, answer, *_ = outputs[0].splitlines()
    assert columns == "columns: text=spelled, image=handwritten, audio=dialled"
    assert answer.startswith("new.csv row 2: ")


def test_experiments_run_all_their_epochs():
    """experiments.md of the studies has their metrics, which early stopping would change."""
    for path in sorted((PACKAGE / "conf" / "experiment").glob("*.yaml")):
        experiment = yaml.safe_load(path.read_text(encoding="utf-8"))
        # An experiment that is based on another one has its options.
        base, *_ = [name for name in experiment["defaults"] if isinstance(name, str)] or [None]
        if base is None:
            assert experiment["trainer"]["patience"] == 0, path.stem


def test_evaluating_again_gives_the_metrics_of_the_run(tmp_path, trained):
    assert main(["evaluate", f"run={trained}", f"output={tmp_path / 'all'}"]) == 0
    again, before = (
        json.loads((f / "metrics.json").read_text()) for f in (tmp_path / "all", trained)
    )
    shared = [key for key in again if key.startswith("test/accuracy")]
    assert len(shared) == 8  # six subsets, all inputs, and the trivial answer
    assert {k: again[k] for k in shared} == {k: before[k] for k in shared}
    assert main(["evaluate", f"run={trained}", "only=[image]", f"output={tmp_path / 'one'}"]) == 0
    alone = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert alone["test/accuracy[image]"] == before["test/accuracy[image]"]
    assert "test/accuracy" not in alone


def test_other_data_can_be_evaluated(tmp_path, trained):
    (tmp_path / "new.csv").write_text(f"{HEADER},digit\nzwei,,,2\nfive,,,5\nnine,,,9\n")
    asked = [
        "data=table",
        f"data.path={tmp_path / 'new.csv'}",
        "data.fractions=[0,0,1]",
        f"output={tmp_path / 'out'}",
    ]
    assert main(["evaluate", f"run={trained}", *asked]) == 0
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 4


def test_a_table_that_has_changed_since_the_training_is_named(tmp_path, capsys):
    table, run = tmp_path / "table.csv", tmp_path / "run"
    table.write_text(table_of(40))
    options = [*SMALL, *PLAIN, *TEXT, "trainer.epochs=1", "report=false"]
    train(run, *options, str(table), "target=label")
    printed = []
    for rows in (40, 60):
        table.write_text(table_of(rows))
        capsys.readouterr()
        assert main(["evaluate", f"run={run}", f"output={tmp_path / str(rows)}"]) == 0
        printed.append(capsys.readouterr().out)
    assert "warning: since the training" not in printed[0]
    assert "the data has changed: the test split has 6 rows instead of 4; if" in printed[1]


def test_the_first_split_that_exists_is_evaluated_by_default(tmp_path, trained, capsys):
    (tmp_path / "new.csv").write_text(f"{HEADER},digit\nzwei,,,2\nfive,,,5\nnine,,,9\n")
    asked = [
        "data=table",
        f"data.path={tmp_path / 'new.csv'}",
        "data.fractions=[0,1,0]",
        f"output={tmp_path / 'out'}",
    ]
    assert main(["evaluate", f"run={trained}", *asked]) == 0
    assert "validation/loss" in json.loads((tmp_path / "out" / "metrics.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", f"run={trained}", *asked, "split=test"]) == 2
    assert capsys.readouterr().err.endswith("split: the data has validation, got test\n")


def test_a_second_run_never_overwrites_the_first(trained, capsys):
    assert main(["train", *TINY_DIGITS, f"run={trained}"]) == 2
    assert "already contains a run; set resume=" in capsys.readouterr().err


def test_the_model_predicts_the_same_wherever_its_folder_is_moved(tmp_path, trained):
    moved = (trained / "model").rename(tmp_path / "elsewhere")
    try:
        model = dxn.load(moved)
        first = model.predict(text="seven")
        assert set(first) == {"prediction", "probabilities"}
        assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert dxn.load(moved).predict(text="seven") == first
        tokens = model.tokens(text="seven")
        assert tokens.matrix.shape == (1, 16, 5)
        assert model.embed(text="seven").shape == (16,)
    finally:
        moved.rename(trained / "model")


def test_one_sample_is_the_same_alone_and_in_a_batch_with_others(trained):
    model = dxn.load(trained)
    picture = torch.randint(0, 256, (8, 8), dtype=torch.uint8).numpy()
    samples = [
        {"text": "acht"},
        {"text": "seventeen and more", "image": picture},
        {"image": picture},
    ]
    for sample, together in zip(samples, model.predict_many(samples), strict=True):
        alone = model.predict(**sample)["probabilities"]
        assert alone == pytest.approx(together["probabilities"], abs=1e-5)


def damaged(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "changed after it was saved"),
        ("labels.json", lambda b: b.replace(b'"3"', b'"7"'), "changed after it was saved"),
        (
            "config.yaml",
            lambda b: b.replace(b"dxn.models.Backbone", b"os.system"),
            "changed after it was saved",
        ),
    ],
)
def test_a_changed_file_is_not_loaded(tmp_path, trained, name, change, message):
    copy = copied(trained, tmp_path)
    damaged(copy, name, change)
    with pytest.raises(UserError, match=message):
        dxn.load(copy)


@pytest.mark.parametrize(
    "target", ["os.system", "dxn.cli.main", "dxn.models.torch.nn.Linear", "builtins.eval"]
)
def test_a_model_folder_cannot_name_foreign_code(tmp_path, trained, target):
    copy = copied(trained, tmp_path)
    damaged(copy, "config.yaml", lambda b: b.replace(b"dxn.models.Backbone", target.encode()))
    write_sums(copy)
    with pytest.raises(UserError, match=r"has no part|does not belong to dxn|cannot be imported"):
        dxn.load(copy)


def copied(trained, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for path in (trained / "model").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no input: text, image, audio are all missing"),
        ({"text": "  "}, "blank text"),
        ({"image": "no.jpg"}, "no.jpg: file not found"),
        ({"audio": b""}, "empty file"),
    ],
)
def test_a_sample_that_cannot_be_used_gives_the_reason(trained, given, message):
    with pytest.raises(UserError, match=message):
        dxn.load(trained).predict(**given)
