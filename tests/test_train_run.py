"""A training from the command line: what it leaves behind, and that it goes on bit for bit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.errors import UserError
from dxn.train.loop import Run

PACKAGE = Path(dxn.__file__).parent
TINY = [
    *("data.num_train=47", "data.num_validation=13", "data.num_test=17", "batch_size=11"),
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32"),
]
# Everything random at once: what is drawn must not depend on where a run was cut.
RANDOM = [
    *("trainer.modality_dropout=0.3", "trainer.mixup=0.5", "trainer.average=0.9", "trainer.log_every=1"),
    *("adapters.image.augment.flip=true", "adapters.audio.augment.noise=0.5", "adapters.image.token_dropout=0.2"),
]


def train(folder, *overrides):
    assert main(["train", *TINY, *overrides, f"run={folder}"]) == 0
    return json.loads((folder / "metrics.json").read_text())


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "samples/s"} for row in rows]


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "trainer.epochs=2")
    return folder


def test_a_run_leaves_the_folder_that_was_promised(trained):
    found = {str(p.relative_to(trained)) for p in trained.rglob("*") if p.is_file()}
    assert found == {
        *(".hydra/config.yaml", ".hydra/overrides.yaml", "checkpoints/last.safetensors"),
        "checkpoints/tokenizer.json",
        *("model/model.safetensors", "model/config.yaml", "model/tokenizer.json", "model/labels.json"),
        *("model/README.md", "model/SHA256SUMS", "metrics.json", "metrics.jsonl", "predictions.csv"),
        *("plots/curves.png", "plots/confusion.png", "plots/modalities.png", "plots/tokens.png"),
    }
    figures = json.loads((trained / "metrics.json").read_text())
    for shown in ("[text]", "[image]", "[audio]", "[text+image]", "[text+audio]", "[image+audio]", ""):
        assert 0 <= figures[f"test/accuracy{shown}"] <= 1
    assert len((trained / "predictions.csv").read_text().splitlines()) == 1 + 17


def test_nothing_in_the_package_runs_or_writes_a_pickle():
    """A public torch file is read with weights_only, which runs nothing; the module's name is there for its error."""
    forbidden = re.compile(r"pickle\.(?!UnpicklingError)\w+\(?|torch\.save\(|torch\.load\((?![^)]*weights_only=True)")
    for path in PACKAGE.rglob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.S)
        assert not forbidden.search(code), path
        assert "pickle" not in code or path.parent.name == "weights", path


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path, trained):
    train(tmp_path / "again", "trainer.epochs=2")
    train(tmp_path / "other", "trainer.epochs=2", "seed=1")
    assert same(weights(trained), weights(tmp_path / "again"))
    assert not same(weights(trained), weights(tmp_path / "other"))


@pytest.mark.parametrize("cut_at", [5, 7, 9], ids=["epoch's end", "mid-epoch", "between checkpoints"])
def test_a_run_that_was_cut_goes_on_bit_for_bit(tmp_path, monkeypatch, cut_at):
    settings = [*RANDOM, "trainer.epochs=3", "trainer.checkpoint_every=2"]
    train(tmp_path / "whole", *settings)
    step = Run.step

    def cut(run):
        step(run)
        if run.state.step == cut_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", cut)
        assert main(["train", *TINY, *settings, f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert same(*(load_file(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("cut", "whole")))


def test_a_tokenizer_is_not_learned_again_for_going_on(tmp_path, monkeypatch):
    # A unigram model's ties are broken by the order of a hash table: learned again it would be another.
    train(tmp_path / "run", "adapters=[text]", "adapters.text.subwords=unigram", "trainer.epochs=1")
    before = (tmp_path / "run" / "model" / "tokenizer.json").read_bytes()
    monkeypatch.setattr("dxn.tokenize.text.train_tokenizer", lambda *_, **__: pytest.fail("learned again"))
    assert main(["train", f"resume={tmp_path / 'run'}", "trainer.epochs=2"]) == 0
    assert (tmp_path / "run" / "model" / "tokenizer.json").read_bytes() == before


def test_a_refused_evaluation_leaves_nothing(trained, tmp_path, capsys):
    assert main(["evaluate", f"run={trained}", "only=[smell]", f"output={tmp_path / 'out'}"]) == 2
    assert "got smell" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_table_can_be_predicted_from_the_model_folder_alone(trained, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("text\nzwei\n")
    copy = copied(trained, tmp_path)
    for run in (trained / "model", copy):
        assert main(["predict", f"run={run}", f"input={tmp_path / 'new.csv'}"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("new.csv row 2: ")


def test_workers_change_nothing(tmp_path):
    settings = [*RANDOM, "trainer.epochs=1"]
    for workers in (0, 2):
        train(tmp_path / str(workers), *settings, f"trainer.num_workers={workers}")
    assert same(weights(tmp_path / "0"), weights(tmp_path / "2"))


def test_two_processes_train_one_model_together(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "dxn"]
    asked = ["train", *TINY, "trainer.epochs=2", "trainer.log_every=1", f"run={tmp_path / 'both'}"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=300)
    assert done.returncode == 0, done.stderr
    # 47 samples are five batches of 11: each process has two of them in an epoch, and one of the two writes.
    assert [row["step"] for row in lines(tmp_path / "both") if "train/loss" in row] == [1, 2, 3, 4]
    assert done.stdout.count("epoch 2/2") == 1
    assert dxn.load(tmp_path / "both").predict(text="seven")


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path):
    plain = ["adapters=[image]", "backbone.dropout=0", "head.dropout=0", "trainer.epochs=1", "data.num_train=22"]
    train(tmp_path / "one", *plain, "batch_size=22")
    train(tmp_path / "two", *plain, "batch_size=11", "trainer.accumulate=2")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)


def test_patience_ends_a_training_that_gets_no_better(tmp_path):
    found = train(tmp_path / "run", "trainer.epochs=50", "trainer.patience=2", "optimizer.lr=0")
    assert (found["epochs"], found["best_epoch"]) == (3, 1)


def test_the_best_epoch_is_the_one_that_is_kept(tmp_path):
    found = train(tmp_path / "run", "trainer.epochs=4")
    accuracies = [row["validation/accuracy"] for row in lines(tmp_path / "run") if "validation/accuracy" in row]
    assert found["validation/best"] == max(accuracies)
    assert found["best_epoch"] == 1 + accuracies.index(max(accuracies))


def test_evaluating_again_gives_the_figures_of_the_run(tmp_path, trained):
    assert main(["evaluate", f"run={trained}", f"output={tmp_path / 'all'}"]) == 0
    again, before = (json.loads((f / "metrics.json").read_text()) for f in (tmp_path / "all", trained))
    shared = [key for key in again if key.startswith("test/accuracy")]
    assert len(shared) == 7
    assert {k: again[k] for k in shared} == {k: before[k] for k in shared}
    assert main(["evaluate", f"run={trained}", "only=[image]", f"output={tmp_path / 'one'}"]) == 0
    alone = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert alone["test/accuracy[image]"] == before["test/accuracy[image]"]
    assert "test/accuracy" not in alone


def test_other_data_can_be_evaluated(tmp_path, trained):
    (tmp_path / "new.csv").write_text("text,label\nzwei,2\nfive,5\nnine,9\n")
    asked = ["data=table", f"data.path={tmp_path / 'new.csv'}", "data.fractions=[0,0,1]", f"output={tmp_path / 'out'}"]
    assert main(["evaluate", f"run={trained}", *asked]) == 0
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 4


def test_a_split_is_named_or_the_first_that_there_is(tmp_path, trained, capsys):
    (tmp_path / "new.csv").write_text("text,label\nzwei,2\nfive,5\nnine,9\n")
    asked = ["data=table", f"data.path={tmp_path / 'new.csv'}", "data.fractions=[0,1,0]", f"output={tmp_path / 'out'}"]
    assert main(["evaluate", f"run={trained}", *asked]) == 0
    assert "validation/loss" in json.loads((tmp_path / "out" / "metrics.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", f"run={trained}", *asked, "split=test"]) == 2
    assert capsys.readouterr().err.endswith("split: the data has validation, got test\n")


def test_a_sweep_reports_mean_and_deviation(tmp_path, capsys):
    assert main(["train", "-m", *TINY, "trainer.epochs=1", "seed=1,2", f"output={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "mean ± sd of 2 runs" in shown
    figures = [json.loads(p.read_text())["test/accuracy"] for p in tmp_path.rglob("metrics.json")]
    assert len(figures) == 2
    assert f"{sum(figures) / 2:.4f}" in shown


def test_debug_fast_and_overfit_run(tmp_path):
    assert train(tmp_path / "fast", "debug=fast")["epochs"] == 1
    learned = train(tmp_path / "overfit", "debug=overfit", "dim=64", "adapters=[image]")
    assert learned["validation/best"] == 1


def test_a_second_run_never_overwrites_the_first(trained, capsys):
    assert main(["train", *TINY, f"run={trained}"]) == 2
    assert "holds a run already; go on with it" in capsys.readouterr().err


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
    samples = [{"text": "acht"}, {"text": "seventeen and more", "image": picture}, {"image": picture}]
    for sample, together in zip(samples, model.predict_many(samples), strict=True):
        alone = model.predict(**sample)["probabilities"]
        assert alone == pytest.approx(together["probabilities"], abs=1e-5)


def damaged(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "changed since it was saved"),
        ("labels.json", lambda b: b.replace(b'"3"', b'"7"'), "changed since it was saved"),
        ("config.yaml", lambda b: b.replace(b"dxn.models.Backbone", b"os.system"), "changed since it was saved"),
    ],
)
def test_a_changed_file_is_not_loaded(tmp_path, trained, name, change, message):
    copy = copied(trained, tmp_path)
    damaged(copy, name, change)
    with pytest.raises(UserError, match=message):
        dxn.load(copy)


@pytest.mark.parametrize("target", ["os.system", "dxn.cli.main", "dxn.models.torch.nn.Linear", "builtins.eval"])
def test_a_config_that_names_foreign_code_runs_nothing(tmp_path, trained, target):
    copy = copied(trained, tmp_path)
    damaged(copy, "config.yaml", lambda b: b.replace(b"dxn.models.Backbone", target.encode()))
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"has no part|not one of"):
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
        ({}, "nothing to learn from"),
        ({"text": "  "}, "blank text"),
        ({"image": "no.jpg"}, "no.jpg file not found"),
        ({"audio": b""}, "empty file"),
    ],
)
def test_a_sample_that_cannot_be_used_says_why(trained, given, message):
    with pytest.raises(UserError, match=message):
        dxn.load(trained).predict(**given)
