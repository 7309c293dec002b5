"""The features of known and static columns in the ridge regression of a forecast."""

import math

import pytest
import torch

from dxn.stacking.past import MAX_FEATURES, ForecastColumns, choose_columns

B, T, H, J, K = 2, 5, 3, 2, 2
STATIC = {"kind": 7}


@pytest.mark.parametrize("has_products", [False, True])
def test_each_channel_has_features_of_its_own(has_products):
    columns = ForecastColumns(J, 4, STATIC, has_products)
    known, static = torch.rand(B, T + H, J), torch.rand(B, 7)
    known[0, 0], static[1, 2] = math.nan, math.nan
    x = columns.features(known, static, torch.rand(B, K), H)
    count = columns.count(H)
    assert x.shape == (B, K, K * count)
    assert not x.isnan().any()
    assert not x[:, 0, count:].any() and not x[:, 1, :count].any()
    # The first features are the known values of the last 4 past steps and of the future.
    torch.testing.assert_close(x[:, 0, : J * (4 + H)], known[:, 1:].flatten(1))
    torch.testing.assert_close(x[:, 1, count : count + J * (4 + H)], known[:, 1:].flatten(1))


@pytest.mark.parametrize(
    ("num_known", "static", "shape", "expected"),
    [
        (0, {}, (14, 7, 1), ForecastColumns()),
        (1, {"kind": 4}, (14, 7, 1), ForecastColumns(1, 14, {"kind": 4}, True)),
        (1, {}, (336, 96, 1), ForecastColumns(1, 336)),
        (5, {}, (336, 96, 7), ForecastColumns()),  # more would be too many
        (0, {"kind": 500}, (14, 7, 1), ForecastColumns(0, 0, {"kind": 500})),
        (1, {"kind": 300}, (14, 7, 1), ForecastColumns(1, 14, {"kind": 300})),
        (1, {"kind": 2000}, (14, 7, 1), ForecastColumns(1, 14)),
        (0, {"kind": 600}, (14, 7, 1), ForecastColumns()),
    ],
)
def test_the_features_are_not_too_many(num_known, static, shape, expected):
    chosen = choose_columns(num_known, static, shape=shape, season=7)
    assert chosen == expected
    assert chosen.count(shape[1]) * shape[2] <= MAX_FEATURES
