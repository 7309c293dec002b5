"""A configuration cannot describe a model that is much larger than its weights."""

import pytest
import torch
from torch import nn

from dxn.core.build_limit import build_limit
from dxn.core.errors import UserError
from dxn.models import Backbone

SMALL = {"a": torch.zeros(7), "b": torch.zeros(3)}


def many_layers():
    return nn.ModuleList(nn.Linear(1000, 1000) for _ in range(1000))


def random_matrix():
    return torch.randn(10**4, 10**5, generator=torch.Generator())


def outer_product():
    column = torch.arange(10**5)
    return column[:, None] * column


TOO_LARGE = {
    "wide layers": lambda: Backbone(10**6, depth=1, num_heads=4),
    "many blocks": lambda: Backbone(32, depth=10**6, num_heads=4),
    "many layers": many_layers,
    "a long table": lambda: nn.Embedding(10**10, 32),
    "a buffer": lambda: nn.Module().register_buffer("x", torch.zeros(10**9)),
    "random numbers": random_matrix,
    "a product of two small tensors": outer_product,
    "a range": lambda: torch.arange(0, 1e12),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_model_that_is_too_large_is_refused_before_it_is_allocated(tmp_path, case):
    path = tmp_path / "config.yaml"
    expected = f"^{path}: describes a larger model than that of its weights, which have 0.0 MB in 2"
    with pytest.raises(UserError, match=expected), build_limit(SMALL, path):
        TOO_LARGE[case]()


def test_the_model_of_the_weights_is_built_with_the_same_initial_weights(tmp_path):
    def build():
        torch.manual_seed(3)
        return Backbone(32, depth=3, num_heads=4).state_dict()

    expected = build()
    with build_limit(expected, tmp_path / "config.yaml"):
        state = build()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_the_limit_ends_with_the_block(tmp_path):
    with build_limit(SMALL, tmp_path / "config.yaml"):
        nn.Linear(3, 5)
    assert torch.zeros(5 * 10**7).sum() == 0
    nn.Embedding(10**6, 64)
