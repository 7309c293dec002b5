"""The initial weights of a part depend on the seed and the name of the part only."""

import pytest
import torch

from dxn.config.model_plan import Input, ModelPlan
from dxn.core.randomness import named_draws
from dxn.runs.build import build_adapters, build_model
from dxn.tasks import Classify

D = 4
NUMBER = {"_target_": "dxn.tokenize.NumberAdapter", "dim": D}
CATEGORY = {"_target_": "dxn.tokenize.CategoryAdapter", "dim": D}
NODES = {
    "fusion": {"_target_": "dxn.models.EarlyFusion", "dim": D},
    "backbone": {"_target_": "dxn.models.Backbone", "dim": D, "depth": 2, "num_heads": 2},
}


def weights(nodes, *, seed=3, **options):
    """The initial weights of a model whose inputs have these adapters."""
    adapters = build_adapters(nodes, seed=seed)
    task = Classify()
    task.target.fit(["a", "b", "c"])
    inputs = {n: Input(modality="number", column=n, adapter=n) for n in nodes}
    plan = ModelPlan(inputs=inputs, adapters=nodes, head={}, **{**NODES, **options})
    return build_model(plan, task, adapters, seed=seed).state_dict()


def same(one, other):
    """The names of tensors that are equal in both models."""
    return {name for name in one if name in other and torch.equal(one[name], other[name])}


def random_names(state):
    """The names of tensors that are drawn, and not the edges of bins or zeros."""
    return {n for n, t in state.items() if t.unique().numel() > 1 and not n.endswith("edges")}


def test_the_order_of_the_inputs_does_not_change_the_weights_of_a_part():
    one = weights({"age": NUMBER, "height": NUMBER})
    other = weights({"height": NUMBER, "age": NUMBER})
    assert same(one, other) == set(one)


def test_one_more_input_does_not_change_the_weights_of_the_other_parts():
    one = weights({"age": NUMBER})
    other = weights({"town": CATEGORY, "age": NUMBER})
    # The fusion has one embedding per input, so it is another part.
    assert same(one, other) >= {name for name in one if not name.startswith("fusion.")}


def test_other_options_of_a_part_do_not_change_the_weights_of_the_other_parts():
    one = weights({"age": NUMBER})
    other = weights({"age": NUMBER}, backbone={**NODES["backbone"], "depth": 1})
    assert same(one, other) >= {name for name in one if not name.startswith("backbone.")}


def test_parts_of_equal_shape_have_different_weights():
    state = weights({"age": NUMBER, "height": NUMBER})
    pairs = [(n, n.replace("adapters.age.", "adapters.height.")) for n in random_names(state)]
    compared = [(a, b) for a, b in pairs if a != b]
    assert compared
    assert not any(torch.equal(state[a], state[b]) for a, b in compared)


def test_another_seed_gives_other_weights():
    one, other = weights({"age": NUMBER}), weights({"age": NUMBER}, seed=4)
    assert not same(one, other) & random_names(one)


@pytest.mark.parametrize("draws", [0, 5])
def test_named_draws_do_not_depend_on_earlier_ones_and_leave_the_generator_as_it_was(draws):
    torch.manual_seed(draws)
    before = torch.get_rng_state()
    with named_draws(7, "head"):
        values = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with named_draws(7, "head"):
        assert torch.equal(torch.rand(3), values)
