"""Packed batches give the outputs and gradients of padded ones, without computing padding."""

import pytest
import torch
from helpers.reference import backbone_of, lively, numbers, tokens_of

from dxn.dropout import Noise, keyed
from dxn.models.cache import Memory
from dxn.models.packing import Packing

D, H = 20, 5
OPTIONS = (
    {},
    {"causal": True},
    {"position": "rotary"},
    {"position": "alibi"},
    {"position": "rotary", "causal": True, "window": 4},
    {"position": "alibi", "window": 4},
    {"pre_norm": False, "qk_norm": True, "position": "rotary"},
    {"score": "additive"},
)
# Lengths of four samples of at most 70 tokens. Long samples of equal and of different length.
LENGTHS = ([70, 3, 40, 41], [70, 70, 1, 0], [9, 8, 2, 1], [64, 60, 64, 5])


def masks_of(lengths):
    """Padding at the end, and padding at random places."""
    front = torch.arange(70) < torch.tensor(lengths)[:, None]
    order = torch.rand(4, 70, generator=torch.Generator().manual_seed(0)).argsort(1)
    return front, front.gather(1, order)


def outputs(backbone, x, mask, packed, memory=None):
    """The output at real tokens, and the gradients."""
    backbone.packed = packed
    x = x.clone().requires_grad_()
    backbone.zero_grad()
    with keyed(Noise.of_step(torch.arange(4), 3)):
        out = backbone.run(x, mask, memory=memory)
        (out.sin() * mask[..., None]).sum().backward()
    grads = [p.grad for p in backbone.parameters() if p.grad is not None]
    return out[mask], x.grad, *grads


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_packed_batch_has_the_outputs_and_gradients_of_a_padded_one(options, lengths):
    backbone = lively(backbone_of(D, depth=2, num_heads=H, dropout=0.3, drop_path=0.3, **options))
    x = numbers(4, 70, D)
    for mask in masks_of(lengths):
        assert Packing.of(mask) is not None
        for mode in (backbone.train(), backbone.eval()):
            padded = outputs(mode, x, mask, packed=False)
            for actual, expected in zip(outputs(mode, x, mask, packed=True), padded, strict=True):
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_memory_of_a_packed_decoder_stays_with_its_sample(lengths):
    decoder = lively(backbone_of(D, depth=2, num_heads=H, causal=True, cross=True)).eval()
    x = numbers(4, 70, D)
    memory = Memory.from_tokens(tokens_of(numbers(4, 9, D), torch.rand(4, 9) < 0.7))
    for mask in masks_of(lengths):
        padded = outputs(decoder, x, mask, packed=False, memory=memory)
        actual = outputs(decoder, x, mask, packed=True, memory=memory)
        torch.testing.assert_close(actual, padded, rtol=0, atol=1e-10)


def test_the_layers_see_only_real_tokens():
    backbone = backbone_of(D, depth=1, num_heads=H).eval()
    rows = []
    backbone.blocks[0].mlp.register_forward_pre_hook(lambda m, args: rows.append(len(args[0])))
    mask, _ = masks_of([70, 3, 40, 41])
    backbone(tokens_of(numbers(4, 70, D).float(), mask))
    with backbone.unpacked():
        backbone(tokens_of(numbers(4, 70, D).float(), mask))
    assert rows == [154, 280]


def test_a_group_has_samples_of_similar_length_or_short_ones():
    mask = torch.arange(200) < torch.tensor([[200], [30], [180], [90], [31], [2], [149], [0]])
    packing = Packing.of(mask)
    groups = packing.groups()
    assert [group.shape for group in groups] == [(2, 200), (1, 149), (1, 90), (3, 31)]
    assert [group.rows for group in groups] == [
        slice(0, 380),
        slice(380, 529),
        slice(529, 619),
        slice(619, 682),
    ]
    assert groups[1].mask is None and groups[3].mask.sum(1).tolist() == [31, 30, 2]


def test_a_batch_with_little_padding_is_not_packed():
    assert Packing.of(torch.arange(100) < torch.tensor([[100], [91]])) is None
    assert Packing.of(torch.zeros(2, 9, dtype=torch.bool)) is None
    assert Packing.of(torch.arange(100) < torch.tensor([[100], [89]])) is not None


def test_packing_and_unpacking_keep_every_token_in_its_place():
    for mask in masks_of([70, 3, 40, 41]):
        packing, x = Packing.of(mask), numbers(4, 70, D)
        assert torch.equal(packing.unpack(packing.pack(x)), x * mask[..., None])
        for group in packing.groups():
            rows = packing.pack(x)[group.rows]
            assert torch.equal(group.unpad(group.pad(packing.pack(x))), rows)
