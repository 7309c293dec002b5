"""The baseline as a module: TF-IDF, kernels, missing inputs, and its part in a model."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from dxn.core.errors import UserError
from dxn.stacking.counted import fit_counted
from dxn.stacking.dense import fit_dense, fit_ridge
from dxn.stacking.features import Features
from dxn.stacking.modules import DenseScores, FeatureBaseline, ScoreTargets, TfIdf

N, F, K = 23, 5, 3


def counts_of(seed=0, size=N, num_codes=11):
    """Counts (size, num_codes), and the same as occurrences (2, n)."""
    counts = np.random.default_rng(seed).integers(0, 3, (size, num_codes))
    rows, columns = counts.nonzero()
    repeats = counts[rows, columns]
    codes = np.repeat(columns * 101 + 7, repeats)
    return counts, torch.tensor(np.stack([np.repeat(rows, repeats), codes]))


def classes_of(seed=0, size=N):
    labels = torch.tensor(np.random.default_rng(seed).integers(0, K, size))
    return ScoreTargets(2 * torch.nn.functional.one_hot(labels, K).float() - 1, are_classes=True)


def baseline_of(**options):
    baseline = FeatureBaseline(
        "test", dense={"a": 2, "b": 1}, linear={}, counted={"c": [4]}, num_outputs=K, **options
    )
    g = torch.Generator().manual_seed(0)
    for tensor in baseline.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=g) + 0.5)
    baseline.tfidf[0].codes.copy_(torch.tensor([2, 3, 5, 7]))
    return baseline


def features_of(size=N):
    g = torch.Generator().manual_seed(1)
    rows = torch.arange(size).repeat_interleave(3)
    codes = torch.randint(2, 9, (3 * size,), generator=g)
    return {
        "a": Features("numbers", torch.randn(size, 2, generator=g)),
        "b": Features("numbers", torch.randn(size, 1, generator=g)),
        "c": Features("TF-IDF", torch.zeros(size, 0), (torch.stack([rows, codes]),)),
    }


# Parts


def test_tfidf_is_that_of_scikit_learn():
    counts, occurrences = counts_of()
    module = fit_counted([occurrences], classes_of()).modules[0]
    rows, columns, values = module.entries(occurrences, N)
    ours = sparse.csr_matrix((values, (rows, columns)), (N, 11)).toarray()
    theirs = TfidfTransformer(sublinear_tf=True).fit_transform(counts).toarray()
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_scores_of_counted_features_are_products_with_the_matrix():
    counts, occurrences = counts_of()
    module = fit_counted([occurrences], classes_of()).modules[0]
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    theirs = weights @ module.weight.numpy()
    assert module(occurrences, N).numpy() == pytest.approx(theirs, abs=1e-5)


def test_unknown_features_and_samples_without_features_have_score_0():
    module = TfIdf(2, K)
    module.codes.copy_(torch.tensor([3, 9]))
    module.idf.fill_(1)
    module.weight.fill_(1)
    scores = module(torch.tensor([[0, 2, 2], [4, 3, 100]]), 4)
    assert scores[:, 0].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("size", [N, 2])
def test_leave_one_out_predictions_are_those_of_separate_models(size):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(size, F)), rng.normal(size=(size, K))
    ridge = fit_ridge(x, y)
    theirs = np.empty_like(y)
    for i in range(size):
        rest = np.arange(size) != i
        # The penalty of a mean that is estimated from all rows differs a little from that of the
        # other rows, but the predictions do not: leaving out a row is exact for a given penalty.
        model = Ridge(alpha=ridge.penalty).fit(x[rest], y[rest])
        theirs[i] = model.predict(x[i : i + 1])
    assert ridge.scores == pytest.approx(theirs, abs=1e-6)
    all_rows = Ridge(alpha=ridge.penalty).fit(x, y)
    assert x @ ridge.weight + ridge.bias == pytest.approx(all_rows.predict(x), abs=1e-6)


def test_few_rows_with_many_features_have_the_same_solution():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 13)), rng.normal(size=(7, K))
    ridge = fit_ridge(x, y)
    theirs = Ridge(alpha=ridge.penalty).fit(x, y)
    assert x @ ridge.weight + ridge.bias == pytest.approx(theirs.predict(x), abs=1e-6)


def test_a_kernel_with_all_rows_as_landmarks_is_kernel_ridge_regression():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(151, 2, generator=g)
    y = (2 * x[:, :1]).sin() + (2 * x[:, 1:]).cos()  # no linear function
    dense = fit_dense(x, ScoreTargets(y, are_classes=False), [x.shape[1]])
    assert "kernel" in dense.name
    z = dense.modules[0].standardized(x)
    ours = (dense.modules[0](x) + dense.bias).numpy()
    assert np.square(ours - y.numpy()).mean() < 0.1 * y.var()
    gamma = float(dense.modules[0].gamma)
    theirs = rbf_kernel(z.numpy(), dense.modules[0].landmarks.numpy(), gamma=gamma)
    assert dense.modules[0].features(z).numpy() == pytest.approx(theirs, abs=1e-4)
    model = KernelRidge(kernel="precomputed", alpha=1e-3)
    square = rbf_kernel(z.numpy(), gamma=gamma)
    model.fit(square, y.numpy())
    assert np.corrcoef(ours[:, 0], model.predict(square)[:, 0])[0, 1] > 0.98


def test_a_linear_relation_gets_a_linear_model():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(61, F, generator=g)
    dense = fit_dense(x, ScoreTargets(x @ torch.ones(F, 1), are_classes=False), [x.shape[1]])
    assert dense.name == "ridge regression" and not len(dense.modules[0].landmarks)


def test_a_number_counts_beside_an_input_of_many_features():
    g = torch.Generator().manual_seed(0)
    number, noise = torch.randn(151, 1, generator=g), torch.randn(151, 997, generator=g)
    x, y = torch.cat([noise, number], 1), (2 * number).sin()
    targets = ScoreTargets(y[:101], are_classes=False)

    def error(sizes):
        dense = fit_dense(x[:101], targets, sizes)
        return (dense.modules[0](x) + dense.bias - y)[101:].square().mean() / y.var()

    assert error([997, 1]) < 0.2
    assert error([998]) > 0.5  # the number is one of 998 features


def test_constant_and_unknown_features_have_no_influence():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(61, 3, generator=g)
    x[:, 1] = 4.0
    x[5, 2] = torch.nan
    module = fit_dense(x, ScoreTargets(x[:, :1], are_classes=False), [x.shape[1]]).modules[0]
    changed = x.clone()
    changed[:, 1] = 1e6
    assert torch.equal(module(x), module(changed))
    assert module(x).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


def test_features_of_rounding_errors_have_no_influence_but_small_units_have():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(61, 3, generator=g)
    noise = 1e-7 * torch.randn(61, 1, generator=g)
    small = 1e-7 * torch.randn(61, 1, generator=g)
    module = fit_dense(
        torch.cat([x, noise, small], 1), ScoreTargets(small * 1e7, are_classes=False), [4, 1]
    ).modules[0]
    assert module.scale[3] > 1 and module.scale[4] < 1e-6
    z = torch.cat([x, 100 * noise, small], 1)
    assert torch.equal(module(z), module(torch.cat([x, noise, small], 1)))
    assert not torch.equal(module(z), module(torch.cat([x, noise, -small], 1)))


# The module


@pytest.mark.parametrize("num_landmarks", [0, 7])
def test_samples_of_a_batch_do_not_affect_each_other(num_landmarks):
    baseline, features = baseline_of(num_landmarks=num_landmarks), features_of()
    together = baseline(features, N)
    assert together.shape == (N, K)
    for i in range(N):
        one = {}
        for name, summary in features.items():
            blocks = [
                block[:, block[0] == i] * torch.tensor([[0], [1]]) for block in summary.counted
            ]
            one[name] = Features("", summary.dense[i : i + 1], tuple(blocks))
        assert torch.allclose(baseline(one, 1)[0], together[i], atol=1e-5)


def test_an_input_that_no_sample_has_is_like_one_that_all_samples_lack():
    baseline, features = baseline_of(), features_of()
    without = {name: features[name] for name in ("a", "b")}
    lacking = {**without, "c": Features("", torch.zeros(N, 0), (torch.zeros(2, 0).long(),))}
    assert torch.equal(baseline(without, N), baseline(lacking, N))
    without = {name: features[name] for name in ("b", "c")}
    lacking = {**without, "a": Features("", torch.full((N, 2), torch.nan))}
    assert torch.equal(baseline(without, N), baseline(lacking, N))
    assert baseline({}, 2).isfinite().all()


def test_a_summary_is_spread_to_a_larger_batch():
    summary = Features("x", torch.ones(2, 1), (torch.tensor([[0, 1, 1], [5, 6, 7]]),))
    spread = summary.spread(torch.tensor([1, 3]), 4)
    assert spread.dense.isnan()[:, 0].tolist() == [True, False, True, False]
    assert spread.counted[0].tolist() == [[1, 3, 3], [5, 6, 7]]


def test_autocast_does_not_change_the_output():
    baseline, features = baseline_of(num_landmarks=7), features_of()
    with torch.autocast("cpu", torch.bfloat16):
        inside = baseline(features, N)
    assert torch.equal(inside, baseline(features, N))


def test_sizes_describe_the_module():
    baseline = baseline_of(num_landmarks=7)
    copy = FeatureBaseline(**baseline.sizes())
    copy.load_state_dict(baseline.state_dict())
    assert torch.equal(copy(features_of(), N), baseline(features_of(), N))


@pytest.mark.parametrize("name", ["a", "c"])
def test_another_number_of_features_is_an_error(name):
    wrong = {"a": Features("", torch.zeros(N, 3)), "c": Features("", torch.zeros(N, 0))}
    with pytest.raises(UserError, match=rf"baseline\.{name}: the adapter computes"):
        baseline_of()({**features_of(), name: wrong[name]}, N)


def test_a_linear_module_without_landmarks_has_one_weight_per_feature():
    module = DenseScores(F, K)
    assert module.weight.shape == (F, K)
    assert module(torch.full((2, F), torch.nan)).tolist() == [[0.0] * K] * 2
