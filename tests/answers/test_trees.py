"""The baseline of a table has gradient-boosted trees, which are saved and exported with it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.exports import probabilities
from helpers.runs import SMALL, changed_stack, train
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.stacking.modules import ScoreTargets
from dxn.stacking.trees import fit_trees

ROWS = 400
NOISE = 2
OPTIONS = [*SMALL, "trainer.epochs=1", "optimizer.lr=1e-5", "preset=plain", "report=false"]
ALL_CLASSES = np.arange(ROWS) % 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a target that has steps, whose places depend on a category, and empty cells."""
    folder = tmp_path_factory.mktemp("trees")
    rand = np.random.default_rng(0)
    rows = []
    for i in range(ROWS):
        kind = "xyz"[i % 3]
        a, b, *noise = rand.normal(size=2 + NOISE)
        shown = "" if i % 9 == 0 else f"{b:.4f}"
        price = 10 * (a > 0.4) * (kind == "x") + 10 * (a < -0.2) * (kind == "y")
        cells = [f"{a:.4f}", shown, *(f"{x:.4f}" for x in noise), kind, f"{price + 0.1 * b:.4f}"]
        rows.append(",".join(cells))
    names = ["a", "b", *(f"n{i}" for i in range(NOISE)), "kind", "price"]
    (folder / "table.csv").write_text("\n".join([",".join(names), *rows]))
    metrics = train(folder / "run", str(folder / "table.csv"), "target=price", *OPTIONS)
    return folder / "run", metrics


def test_a_step_whose_place_depends_on_a_category_is_learned(run, capsys):
    folder, metrics = run
    assert "gradient-boosted trees" in metrics["baseline"]
    assert metrics["mix"][1] > 0
    model = dxn.load(str(folder))
    rest = {"b": 0.0, **{f"n{i}": 0.0 for i in range(NOISE)}}
    high = model.predict(**rest, a=1.5, kind="x")["prediction"]
    low = model.predict(**rest, a=-1.5, kind="x")["prediction"]
    assert high > 7 and low < 3


@pytest.mark.filterwarnings("ignore:.* as unknown")
def test_unknown_categories_and_missing_cells_have_a_finite_answer(run):
    model = dxn.load(str(run[0]))
    for inputs in ({"a": 1.0, "kind": "new"}, {"kind": "x"}, {"a": 1.0}):
        assert np.isfinite(model.predict(**inputs)["prediction"])


@pytest.mark.parametrize("name", ["left", "right", "roots", "feature"])
@pytest.mark.parametrize("value", [-1, 10**12])
def test_a_tree_with_an_index_out_of_range_is_refused(run, tmp_path, name, value):
    def change(entry, tensors):
        tensors[f"trees.{name}"][0] = value

    with pytest.raises(UserError, match="does not exist"):
        dxn.load(changed_stack(run[0], tmp_path, change))


def test_nodes_in_a_circle_end(run, tmp_path):
    def change(entry, tensors):
        tensors["trees.left"].zero_()
        tensors["trees.right"].zero_()

    model = dxn.load(changed_stack(run[0], tmp_path, change))
    assert np.isfinite(model.predict(a=1.0, kind="x")["prediction"])


CITIES = 80
SOME_ROW = {"a": 1.2, "b": -0.9, "city": "city 1", **{f"n{i}": 0.1 for i in range(NOISE)}}


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A run with two classes: whether two numbers have different signs, except in a frequent city.

    There are more cities than features of a category, lists of cities, and empty cells.
    """
    folder = tmp_path_factory.mktemp("classes")
    rand = np.random.default_rng(1)
    rows = []
    for i in range(3 * ROWS):
        a, b, *noise = rand.normal(size=2 + NOISE)
        cities = [f"city {i % CITIES if i % 2 else 0}", "city 1"][: 1 + (i % 5 == 0)]
        differ = (a > 0) != (b > 0)
        label = "same" if differ == ("city 0" in cities) else "different"
        numbers = [f"{x:.4f}" for x in (a, b, *noise)]
        numbers[2] = "" if i % 7 == 0 else numbers[2]
        rows.append(",".join([*numbers, "|".join(cities), label]))
    names = ["a", "b", *(f"n{i}" for i in range(NOISE)), "city", "label"]
    (folder / "table.csv").write_text("\n".join([",".join(names), *rows]))
    options = ["target=label", "adapters.category.separator=|", *OPTIONS]
    return folder / "run", train(folder / "run", str(folder / "table.csv"), *options)


def test_two_numbers_with_different_signs_are_learned(classes):
    metrics = classes[1]
    assert "gradient-boosted trees" in metrics["baseline"]
    assert metrics["test/accuracy[baseline alone]"] > 0.9


def test_two_classes_share_the_trees_of_one_logit(classes):
    weight = dxn.load(classes[0]).network.baseline.trees.weight
    assert (weight[:, 0] == -weight[:, 1]).all() and (weight != 0).all()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.* as unknown")
def test_the_exported_program_answers_the_same_as_the_model_with_trees(classes, tmp_path):
    out = tmp_path / "out"
    # The command compares the answers too, and fails if they differ.
    assert main(["export", f"run={classes[0]}", f"output={out}"]) == 0
    model = dxn.load(str(classes[0]))
    without = {name: x for name, x in SOME_ROW.items() if name != "a"}
    for row in ({**without, "city": "city 0|city 1"}, {**SOME_ROW, "city": "new"}):
        expected = model.predict(**row)["probabilities"]["same"]
        found = probabilities(out, *(f"{name}={x}" for name, x in row.items()))
        assert found["same"] == pytest.approx(expected, abs=1e-4)


def table(seed=0):
    rand = np.random.default_rng(seed)
    x = rand.normal(size=(ROWS, 4)).astype(np.float32)
    x[rand.random(x.shape) < 0.1] = np.nan
    return torch.from_numpy(x)


def columns_of(values):
    return 2 * F.one_hot(torch.tensor(values), int(max(values)) + 1).float() - 1


def test_more_than_twenty_labels_have_no_trees():
    x = table().nan_to_num(0.0)
    labels = (x[:, :1] > torch.linspace(-1, 1, 21)).float()
    targets = ScoreTargets(2 * labels - 1, are_classes=True)
    loss = F.binary_cross_entropy_with_logits
    assert fit_trees(x, torch.arange(4), targets, lambda out, rows: loss(out, labels[rows])) is None


def fitted(x, targets, loss):
    part = fit_trees(x, torch.arange(x.shape[1]), targets, loss)
    assert part is not None
    scores = part.modules[0](x) + part.bias
    num_trees = len(part.modules[0].roots)
    return scores.double().numpy(), num_trees


def test_numbers_are_those_of_scikit_learn():
    x = table()
    y = ((x[:, :1].nan_to_num(1.0) > 0) * (x[:, 1:2].nan_to_num(0.0) > 0.5)).float()
    scores, count = fitted(
        x, ScoreTargets(y, are_classes=False), lambda out, rows: F.mse_loss(out, y[rows])
    )
    model = HistGradientBoostingRegressor(
        max_iter=count, max_depth=12, early_stopping=False, random_state=0
    )
    expected = model.fit(x.numpy(), y[:, 0].numpy()).predict(x.numpy())
    np.testing.assert_allclose(scores[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_logits_are_those_of_scikit_learn(num_classes):
    x = table()
    classes = torch.bucketize(x[:, 0].nan_to_num(0.0), torch.tensor([-0.3, 0.6])[: num_classes - 1])
    targets = ScoreTargets(columns_of(classes.tolist()), are_classes=True, are_exclusive=True)
    scores, count = fitted(x, targets, lambda out, rows: F.cross_entropy(out, classes[rows]))
    model = HistGradientBoostingClassifier(
        max_iter=count if num_classes == 2 else count // num_classes,
        max_depth=12,
        early_stopping=False,
        random_state=0,
    )
    expected = model.fit(x.numpy(), classes.numpy()).decision_function(x.numpy())
    found = scores[:, 1] - scores[:, 0] if num_classes == 2 else scores
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_each_label_of_a_sample_has_its_own_trees():
    x = table().nan_to_num(0.0)
    labels = torch.stack([x[:, 0] > 0, x[:, 1] > 0.5, torch.ones(ROWS) > 0], 1).float()
    targets = ScoreTargets(2 * labels - 1, are_classes=True)
    scores, _ = fitted(
        x,
        targets,
        lambda out, rows: F.binary_cross_entropy_with_logits(out, labels[rows]),
    )
    assert ((scores > 0) == labels.numpy().astype(bool)).mean() > 0.99


def test_a_class_of_one_row_is_no_error():
    x = table()
    classes = torch.from_numpy(ALL_CLASSES.copy())
    classes[0] = 3
    x[:, 0] = classes.float()
    targets = ScoreTargets(columns_of(classes.tolist()), are_classes=True, are_exclusive=True)
    scores, _ = fitted(x, targets, lambda out, rows: F.cross_entropy(out, classes[rows]))
    assert np.isfinite(scores).all()
    assert (scores.argmax(1) == classes.numpy()).mean() > 0.99
