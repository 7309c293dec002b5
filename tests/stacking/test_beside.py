"""The features of known and static columns in the ridge regression of a forecast."""

import math

import pytest
import torch

from dxn.stacking.beside import MAX_FEATURES, Beside, choose_beside

B, T, H, J, K = 2, 5, 3, 2, 2
STATIC = {"kind": 7}


@pytest.mark.parametrize("has_products", [False, True])
@pytest.mark.parametrize("is_relative", [False, True])
def test_each_channel_has_features_of_its_own(has_products, is_relative):
    beside = Beside(J, 4, STATIC, has_products, is_relative)
    known, static = torch.rand(B, T + H, J), torch.rand(B, 7)
    known[0, 0], static[1, 2] = math.nan, math.nan
    x = beside.features(known, static, torch.rand(B, K), H)
    count = beside.count(H)
    assert x.shape == (B, K, K * count)
    assert not x.isnan().any()
    assert not x[:, 0, count:].any() and not x[:, 1, :count].any()
    # The first features are the known values of the last 4 past steps and of the future.
    torch.testing.assert_close(x[:, 0, : J * (4 + H)], known[:, 1:].flatten(1))
    torch.testing.assert_close(x[:, 1, count : count + J * (4 + H)], known[:, 1:].flatten(1))


@pytest.mark.parametrize(
    ("num_known", "static", "shape", "expected"),
    [
        (0, {}, (14, 7, 1), Beside()),
        (1, {"kind": 4}, (14, 7, 1), Beside(1, 14, {"kind": 4}, True, True)),
        (1, {}, (336, 96, 1), Beside(1, 336, {}, False, True)),
        (5, {}, (336, 96, 7), Beside()),  # more would be too many
        (0, {"kind": 600}, (14, 7, 1), Beside(0, 0, {"kind": 600}, False, False)),
        (1, {"kind": 2000}, (14, 7, 1), Beside(1, 14, {}, False, True)),
    ],
)
def test_the_features_are_not_too_many(num_known, static, shape, expected):
    chosen = choose_beside(num_known, static, shape=shape, season=7)
    assert chosen == expected
    assert chosen.count(shape[1]) * shape[2] <= MAX_FEATURES
