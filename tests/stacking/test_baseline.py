"""baseline=auto: training beside the model, the mix of both, and the model folder."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.runs import SMALL, changed_stack, metrics_of, refused, train, weights_of
from scipy import sparse
from sklearn.linear_model import Ridge

import dxn
from dxn.cli import main
from dxn.core.files import write_sums
from dxn.runs.predictor.attention import limits_of
from dxn.stacking.counted import NUM_FOLDS, _fit_linear, _merged, split_folds
from dxn.stacking.features import Features
from dxn.stacking.fit import fit_baseline, fit_mix, fit_scales
from dxn.stacking.metrics import BASELINE, TRANSFORMER, warn_about
from dxn.stacking.train import score_targets
from dxn.tasks import Bernoulli, Categorical, Classify, Multilabel, Number, Regress
from dxn.training.state import State

WORDS = {"good": ["fine", "lovely", "great"], "bad": ["cold", "dull", "awful"]}
# Far too few steps to learn anything, so that the baseline is the better model.
TEXTS = [*SMALL, "adapters=[text]", "trainer.epochs=1", "optimizer.lr=1e-5", "preset=plain"]


def texts_of(path, count=120):
    """A table of texts whose class is that of one of their words."""
    rows = []
    for i in range(count):
        label = ["good", "bad"][i % 2]
        word = WORDS[label][i // 2 % 3]
        rows.append(f"the {word} film number {i},{label}")
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


def numbers_of(path, count=90):
    """A table of two numbers and a category that determine the target, with empty cells."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for i in range(count):
        a, b = torch.randn(2, generator=g).tolist()
        kind = ["x", "y"][i % 2]
        shown = "" if i % 11 == 0 else f"{b:.4f}"
        rows.append(f"{a:.4f},{shown},{kind},{3 * a + (kind == 'x') + 20:.4f}")
    path.write_text("\n".join(["a,b,kind,price", *rows]))
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with texts, and its metrics."""
    folder = tmp_path_factory.mktemp("baseline")
    table = texts_of(folder / "texts.csv")
    return folder / "run", train(folder / "run", table, "target=label", *TEXTS), table


# The mix


def outputs_of(seed=0, size=211, num_classes=3):
    g = torch.Generator().manual_seed(seed)
    target = torch.randint(0, num_classes, (size,), generator=g)
    right = F.one_hot(target, num_classes).float()
    noise = torch.randn(2, size, num_classes, generator=g)
    return right, noise, lambda output: F.cross_entropy(output.float(), target)


def test_the_mix_has_the_lowest_loss():
    right, noise, loss = outputs_of()
    head, other = 5 * (right + noise[0]), right + noise[1]
    a, b = fit_mix(head, other, loss)
    best = float(loss(a * head + b * other))
    assert a > 0 and b > 0
    for da, db in ((0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05)):
        # The prior moves the minimum a little.
        assert best <= float(loss((a + da) * head + (b + db) * other)) + 1e-3
    assert best < float(loss(head)) and best < float(loss(other))


def test_a_useless_baseline_is_left_out():
    right, noise, loss = outputs_of()
    a, b = fit_mix(3 * right, -right + noise[1], loss)
    assert b == 0 and a > 0


def test_an_overconfident_model_is_calibrated():
    right, noise, loss = outputs_of()
    head = right + noise[0]
    a, _ = fit_mix(head, torch.zeros_like(head), loss)
    scaled, _ = fit_mix(10 * head, torch.zeros_like(head), loss)
    assert scaled == pytest.approx(a / 10, rel=0.1)


def test_few_rows_change_little():
    right, _, loss = outputs_of(size=1)
    a, b = fit_mix(right, right, loss)
    assert abs(a - 1) < 0.3 and abs(b - 0.5) < 0.3
    # A model of cells is too certain.
    cells = fit_mix(right, right, loss, inputs="cells")
    assert cells[0] == pytest.approx(cells[1]) and sum(cells) < a + b


def test_a_model_of_few_texts_does_not_replace_the_baseline():
    right, noise, loss = outputs_of(size=20)
    # By chance, the model is better on these few rows.
    head, other = right + noise[0], right + 1.2 * noise[1]
    assert fit_mix(3 * head, other, loss)[0] > fit_mix(3 * head, other, loss, inputs="texts")[0]
    _, b = fit_mix(4 * right, -right, loss, inputs="texts")
    assert b > 0.3


def test_many_texts_decide_alone():
    right, noise, loss = outputs_of(size=4000)
    head, other = right + noise[0], right + noise[1]
    assert fit_mix(head, other, loss, inputs="texts") == pytest.approx(
        fit_mix(head, other, loss), abs=0.02
    )


def test_a_few_rows_do_not_choose_one_of_two_numbers():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4000, 1, generator=g)
    y = x[0]

    def factors(rows):
        # The model is as good as the baseline, but a little better on the first rows.
        model, baseline = (y + 0.8 * each for each in x[1:])
        model[:20] -= 0.3 * x[1, :20]
        return fit_mix(
            model[:rows],
            baseline[:rows],
            lambda output: (output - y[:rows]).square().mean(),
            are_classes=False,
        )

    few, many = factors(20), factors(4000)
    assert few[1] > 0.37 and abs(many[0] - many[1]) < 0.05


def test_a_baseline_that_fits_a_few_rows_perfectly_does_not_replace_the_model():
    right, noise, loss = outputs_of(size=25)
    a, b = fit_mix(3 * (right + 0.3 * noise[0]), 8 * right, loss)
    assert a > b


def test_the_scales_of_numbers_are_those_of_least_squares():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5003, 1, generator=g)
    y = 0.25 * x[0] + 2 * x[1]
    scales = fit_scales(list(x), lambda output: F.mse_loss(output, y.double()), [1, 1])
    assert scales == pytest.approx([0.25, 2], abs=0.01)


# The training


def test_folds_have_all_classes():
    y = torch.eye(3)[torch.arange(60) % 3].numpy()
    folds = split_folds(y)
    for fold in range(NUM_FOLDS):
        assert y[folds == fold].sum(0).tolist() == [4, 4, 4]


def test_merged_rows_give_the_same_model():
    """Three texts, repeated with different targets."""
    rows = np.random.default_rng(0).integers(0, 3, 500)
    x = sparse.csr_matrix(np.array([[1.0, 0, 2], [0, 3, 0], [1, 1, 0]])[rows])
    y = np.random.default_rng(1).integers(-2, 3, (500, 1)).astype(float)
    merged_x, merged_y, counts = _merged(x.copy(), y)
    assert len(merged_y) == 15
    assert counts.sum() == 500
    expected = Ridge(solver="sparse_cg").fit(x, y[:, 0])
    weight, bias = _fit_linear(x, y, are_classes=False)
    assert weight[:, 0] == pytest.approx(expected.coef_, abs=1e-3)
    assert bias[0] == pytest.approx(expected.intercept_, abs=1e-3)
    assert merged_x.shape == (15, 3)


def test_counted_and_dense_features_are_learned_together():
    g = torch.Generator().manual_seed(0)
    size = 401
    word = torch.randint(0, 2, (size,), generator=g)
    number = torch.randint(0, 2, (size,), generator=g)
    target = (2 * word + number).tolist()
    task = Classify()
    task.target.fit([str(value) for value in target])
    features = {
        "t": Features("TF-IDF", torch.zeros(size, 0), (torch.stack([torch.arange(size), word]),)),
        "n": Features("columns", number[:, None] + 0.1 * torch.randn(size, 1, generator=g)),
    }
    learned = score_targets(task, [str(value) for value in target])
    expected = torch.tensor(target)
    with torch.no_grad():
        baseline = fit_baseline(
            features, learned, lambda output, rows: F.cross_entropy(output, expected[rows])
        )
    output = baseline(features, size)
    assert (output.argmax(1) == expected).float().mean() > 0.98
    assert F.cross_entropy(output, expected) < 0.5
    assert baseline.about.startswith("TF-IDF + columns + linear SVM + ")


def test_a_baseline_is_the_same_each_time():
    g = torch.Generator().manual_seed(0)
    counted = torch.stack([torch.arange(50), torch.randint(0, 9, (50,), generator=g)])
    features = {"t": Features("TF-IDF", torch.randn(50, 3, generator=g), (counted,))}
    task = Regress()
    values = torch.randn(50, generator=g).tolist()
    task.target.fit(values)
    learned = score_targets(task, values)
    expected = learned.values

    def fit():
        with torch.no_grad():
            return fit_baseline(
                features, learned, lambda output, rows: F.mse_loss(output.float(), expected[rows])
            )

    first, second = fit().state_dict(), fit().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_each_label_has_its_own_scores():
    task = Multilabel()
    values = [["a"], ["a", "b"], []]
    task.target.fit(values)
    assert score_targets(task, values).values.tolist() == [[1, -1], [1, 1], [-1, -1]]


@pytest.mark.parametrize("base", [Bernoulli, Categorical, Number])
def test_a_derived_space_has_no_baseline_because_its_targets_can_be_others(base):
    class Mine(base):
        pass

    task = Classify()
    task.target.fit(["a", "b"])
    task.space = Mine(task.target)
    assert score_targets(task, ["a", "b"]) is None


def test_a_derived_space_that_says_what_a_row_gets_has_a_baseline():
    class Focal(Categorical):
        kind = Categorical.kind

    task = Classify()
    task.target.fit(["a", "b"])
    task.space = Focal(task.target)
    assert score_targets(task, ["a", "b"]).are_exclusive


@pytest.mark.parametrize(
    ("own", "other", "best_epoch", "max_minutes", "advice"),
    [
        (0.5, 0.75, 10, None, "train longer (trainer.epochs)"),
        (0.5, 0.75, 10, 5.0, "train longer (trainer.max_minutes, trainer.epochs)"),
        (0.5, 0.75, 2, 5.0, "best in epoch 2 of 10 and did not improve"),
        (1.0, 1.0, 2, None, ""),  # nothing can be better
        (0.9, 0.75, 10, None, ""),
    ],
)
def test_a_transformer_that_is_worse_gets_advice_that_fits(
    own, other, best_epoch, max_minutes, advice
):
    state = State(epoch=10, best_epoch=best_epoch)
    figures = {TRANSFORMER: {"accuracy": own}, BASELINE: {"accuracy": other}}
    lines = warn_about(figures, Classify(), state, max_minutes=max_minutes)
    assert bool(lines) == bool(advice)
    assert all(advice in line and "0.75 and 0.5" in line for line in lines)
    assert warn_about({"all": {"accuracy": own}}, Classify(), state, max_minutes=None) == []


def test_answers_that_are_worse_than_the_baseline_alone_are_named():
    parts = {TRANSFORMER: {"accuracy": 0.9}, BASELINE: {"accuracy": 0.8}}

    def lines(answers):
        figures = {"all": {"accuracy": answers}, **parts}
        return warn_about(figures, Classify(), State(epoch=10, best_epoch=9), max_minutes=None)

    assert lines(0.95) == lines(0.9) == []
    (line,) = lines(0.7)
    assert "baseline alone is better than the answers" in line and "0.8 and 0.7" in line


# Runs


def test_a_training_has_a_baseline_and_mixes_it(run):
    _, metrics, _ = run
    assert metrics["test/accuracy[baseline alone]"] == 1
    assert metrics["test/accuracy"] == 1 > metrics["test/accuracy[transformer alone]"]
    assert metrics["baseline"] == "TF-IDF + linear SVM"
    assert metrics["mix"][1] > 0


def test_the_saved_model_contains_the_baseline(run):
    model = dxn.load(run[0])
    assert model.predict(text="an awful day")["prediction"] == "bad"
    assert model.predict(text="a LOVELY day")["prediction"] == "good"
    answer = model.predict(text="an awful day")
    model.network = model.model
    assert model.predict(text="an awful day")["probabilities"] != answer["probabilities"]
    assert model.embed(text="x").shape == (16,)


def test_a_text_has_the_answer_of_a_batch(run):
    model = dxn.load(run[0])
    texts = [
        "an awful day",
        "a fine, FINE film\n",
        "unheard-of",
        "好看的电影 fine",
        "cafe\u0301 " * 300,
        "?",
        "the film " + "x" * 99,
    ]
    samples = [{"text": text} for text in texts]
    for sample, together in zip(samples, model.predict_many(samples), strict=True):
        alone = model.predict(**sample)["probabilities"]
        assert alone == pytest.approx(together["probabilities"], abs=1e-5)


def test_the_report_and_the_attention_say_that_a_baseline_decides_too(run, tmp_path, capsys):
    folder, metrics, _ = run
    own, other = metrics["mix"]
    formula = f"{own:.2f} x transformer + {other:.2f} x baseline (TF-IDF + linear SVM)"
    copy = shutil.copytree(folder, tmp_path / "run")
    assert main(["report", f"run={copy}"]) == 0
    page = (copy / "report.html").read_text()
    assert page.count(formula) == 2  # Training and Attention
    sample = "input.text=the dull film"
    assert main(["attend", f"run={folder}", sample, f"output={tmp_path}"]) == 0
    assert f"note: the answer is {formula}" in " ".join(capsys.readouterr().out.split())
    assert formula in (tmp_path / "attention.html").read_text()


@pytest.mark.parametrize(
    ("mix", "limits"),
    [
        (None, ""),
        ([0.5, 0.5], "the attention is that of the transformer alone"),
        ([0.0, 1.0], "the attention of the transformer does not explain it"),
    ],
)
def test_the_limits_of_the_attention_depend_on_the_factors(mix, limits, run):
    model = dxn.load(run[0])
    if mix is None:
        model.network = model.model
    else:
        model.network.mix.copy_(torch.tensor(mix))
    assert limits_of(model).endswith(limits)
    assert bool(limits_of(model)) == bool(limits)


def test_the_model_itself_does_not_know_the_baseline(run):
    loaded = dxn.load(run[0])
    batch = loaded.batch(loaded.samples([{"text": "an awful day"}]), 0)
    with torch.inference_mode():
        alone = loaded.model(batch)
        a, b = loaded.network.mix
        expected = a * alone + b * loaded.network.baseline_output(batch)
        assert torch.equal(loaded.network(batch), expected)
    assert not torch.equal(expected, alone)


def test_an_evaluation_shows_the_same_figures(run, tmp_path):
    folder, metrics, _ = run
    assert main(["evaluate", f"run={folder}", f"output={tmp_path / 'again'}"]) == 0
    again = metrics_of(tmp_path / "again")
    for name in [name for name in metrics if name.startswith("test/")]:
        # Batches of another size change the last digits.
        assert again[name] == pytest.approx(metrics[name], abs=1e-5, nan_ok=True)


def test_a_finished_run_can_be_resumed(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    before = weights_of(tmp_path / "run")
    assert main(["train", f"resume={tmp_path / 'run'}"]) == 0
    after = weights_of(tmp_path / "run")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_can_start_from_a_model_with_a_baseline(run, tmp_path):
    metrics = train(
        tmp_path / "run",
        run[2],
        "target=label",
        f"weights={run[0]}",
        "trainer.epochs=1",
        "trainer.precision=float32",
        "baseline=none",
    )
    assert "test/accuracy" in metrics and "test/accuracy[baseline alone]" not in metrics


def test_a_run_with_a_baseline_is_verified(run):
    assert main(["verify", f"run={run[0]}"]) == 0


def test_baseline_none_trains_the_model_alone(tmp_path):
    table = texts_of(tmp_path / "texts.csv")
    metrics = train(tmp_path / "run", table, "target=label", *TEXTS, "baseline=none")
    assert "test/accuracy[baseline alone]" not in metrics and "baseline" not in metrics
    assert not list((tmp_path / "run" / "model").glob("stack.*"))


def test_numbers_with_missing_cells_have_a_baseline(tmp_path):
    table = numbers_of(tmp_path / "numbers.csv")
    options = ["target=price", "trainer.epochs=1", "dim=16", "trainer.precision=float32"]
    metrics = train(tmp_path / "run", table, *options, "preset=plain")
    assert metrics["test/r2[baseline alone]"] > 0.9
    assert metrics["test/r2"] > 0.9
    assert "ridge" in metrics["baseline"]


def test_a_model_that_is_better_alone_is_saved_without_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setattr("dxn.stacking.train.fit_mix", lambda *_, **__: (0.5, 0.0))
    table = texts_of(tmp_path / "texts.csv")
    metrics = train(tmp_path / "run", table, "target=label", *TEXTS)
    assert "test/accuracy[baseline alone]" in metrics and metrics["mix"] == [0.5, 0]
    network = dxn.load(tmp_path / "run").network
    assert network.baseline is None and network.mix.tolist() == [0.5, 0]


def test_another_value_is_an_error(tmp_path, capsys):
    lines = refused(capsys, ["train", texts_of(tmp_path / "t.csv"), "baseline=yes"])
    assert "baseline" in lines[0]


def test_a_baseline_of_another_size_is_an_error(run, tmp_path, capsys):
    def change(entry, tensors):
        entry["baseline"]["counted"]["text"][0] += 1

    folder = changed_stack(run[0], tmp_path, change)
    lines = refused(capsys, ["predict", f"run={folder}", "input.text=x"])
    assert "does not match stack.json" in lines[0]


def test_a_baseline_with_another_number_of_outputs_is_an_error(run, tmp_path, capsys):
    def change(entry, tensors):
        entry["baseline"]["num_outputs"] = 3
        for name in tensors:
            if name.endswith(("weight", "bias")):
                tensors[name] = torch.zeros(*tensors[name].shape[:-1], 3)

    folder = changed_stack(run[0], tmp_path, change)
    lines = refused(capsys, ["predict", f"run={folder}", "input.text=x"])
    assert "must have the output shape (2,) of the head, got (3,)" in lines[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["members"].append(None), "must have one entry per model (1)"),
        (lambda content: content.pop("members"), "members is missing"),
        (lambda content: content["members"][0].update(mix=[1.0]), "mix must have at least 2"),
    ],
)
def test_a_stack_that_does_not_fit_the_model_is_an_error(change, message, run, tmp_path, capsys):
    folder = shutil.copytree(run[0] / "model", tmp_path / "model")
    content = json.loads((folder / "stack.json").read_text())
    change(content)
    (folder / "stack.json").write_text(json.dumps(content))
    write_sums(folder)
    lines = refused(capsys, ["predict", f"run={folder}", "input.text=x"])
    assert message in lines[0] and "stack.json" in lines[0]


def test_a_missing_file_of_the_stack_is_an_error(run, tmp_path, capsys):
    folder = shutil.copytree(run[0] / "model", tmp_path / "model")
    (folder / "stack.json").unlink()
    lines = refused(capsys, ["predict", f"run={folder}", "input.text=x"])
    assert "stack.json" in lines[0]
