"""Blocks that are computed without calls of their modules."""

import pytest
import torch

from dxn.models import Backbone, Memory
from dxn.models.blocks import BlockOptions, Mlp, NormOptions, PositionOptions
from dxn.models.decoding.decoder import KVCache
from dxn.models.inference import LowLinear
from dxn.viz.rollout import recorded

B, N, D = 2, 7, 12
MASK = torch.ones(B, N, dtype=torch.bool)


def prepared(**options) -> Backbone:
    backbone = Backbone(D, **{"depth": 3, "num_heads": 4, **options}).eval()
    backbone.prepare()
    return backbone


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": NormOptions(place="post")},
        {"causal": True},
        {"norm": NormOptions(kind="rms", input_norm=False)},
        {"block": BlockOptions(bias=False)},
        {"block": BlockOptions(mlp="relu", num_kv_heads=2, head_dim=5, hidden_dim=17)},
        {"block": BlockOptions(mlp="swiglu")},
        {"position": PositionOptions(kind="alibi")},
        {"position": PositionOptions(windows=[2])},
        {"cross": True},
        {"cross": True, "norm": NormOptions(place="post")},
    ],
)
@pytest.mark.parametrize("part", [(0, None), (1, 2)])
def test_plain_blocks_give_the_same_numbers_as_modules(options, part):
    backbone = prepared(**options)
    assert backbone.plain is not None
    x = torch.randn(B, N, D)
    memory = Memory(torch.randn(B, 3, D), None) if backbone.cross else None
    plain = backbone.run(x, MASK, *part, memory=memory)
    backbone.plain = None
    assert torch.equal(plain, backbone.run(x, MASK, *part, memory=memory))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": NormOptions(place="both")},
        {"block": BlockOptions(qk_norm=True)},
        {"block": BlockOptions(score="cosine")},
        {"block": BlockOptions(layer_scale=0.1)},
    ],
)
def test_blocks_with_further_parts_keep_their_modules(options):
    assert prepared(**options).plain is None


@pytest.mark.parametrize("kind", ["none", "rotary", "buckets"])
@pytest.mark.parametrize("cross", [False, True])
def test_plain_blocks_continue_sequences_of_different_lengths_like_modules(kind, cross):
    backbone = prepared(
        causal=True,
        cross=cross,
        norm=NormOptions(kind="rms"),
        block=BlockOptions(mlp="swiglu", num_kv_heads=2, head_dim=6),
        position=PositionOptions(kind=kind),
    )
    x, new = torch.randn(B, N, D), torch.randn(2, B, 1, D)
    lengths = torch.tensor([[4], [N]])
    memory = Memory(torch.randn(B, 3, D), None) if cross else None

    def steps() -> list[torch.Tensor]:
        caches = [KVCache() for _ in backbone.blocks]
        return [
            backbone.run(step, torch.arange(N + i) < lengths + i, memory=memory, caches=caches)
            for i, step in enumerate([x, *new])
        ]

    plain = steps()
    assert backbone.plain is not None
    backbone.plain = None
    assert all(map(torch.equal, plain, steps()))


@pytest.mark.parametrize("place", ["pre", "post"])
def test_layers_for_inference_give_the_same_numbers_as_modules(place):
    backbone = Backbone(D, depth=2, num_heads=4, norm=NormOptions(place=place)).eval()
    for block in backbone.blocks:
        block.mlp.down = LowLinear(block.mlp.down.to(torch.bfloat16))
    x = torch.randn(B, N, D)
    expected = backbone.run(x, MASK)
    backbone.prepare()
    assert backbone.plain is not None
    assert torch.equal(expected, backbone.run(x, MASK))


def test_other_classes_of_layers_keep_their_modules():
    class OtherMlp(Mlp):
        pass

    backbone = Backbone(D, depth=1, num_heads=4).eval()
    backbone.blocks[0].mlp = OtherMlp(D)
    backbone.prepare()
    assert backbone.plain is None


def test_hooks_are_called_after_the_preparation():
    backbone = prepared()
    with recorded(backbone) as maps:
        backbone.run(torch.randn(B, N, D), MASK)
    assert [tuple(weights.shape) for weights in maps] == [(B, 4, N, N)] * 3


def test_padding_is_excluded_after_the_preparation():
    backbone = prepared()
    x, mask = torch.randn(B, N, D), MASK.clone()
    mask[0, 5:] = False
    out = backbone.run(x, mask)
    torch.testing.assert_close(out[:1, :5], backbone.run(x[:1, :5], MASK[:1, :5]))


def test_a_training_after_the_preparation_uses_dropout():
    backbone = prepared(dropout=0.5).train()
    x = torch.randn(B, N, D)
    assert not torch.equal(backbone.run(x, MASK), backbone.eval().run(x, MASK))
