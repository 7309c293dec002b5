"""Packed batches give the outputs and gradients of padded ones, without computing padding."""

import itertools

import pytest
import torch
from helpers.reference import backbone_of, lively, numbers, tokens_of

from dxn.core.dropout import Noise, keyed
from dxn.models.attention import attend
from dxn.models.decoding.decoder import Memory
from dxn.models.packing import GroupPacking, Sequences, max_padding
from dxn.models.positions import make_attn_mask

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
    {"num_kv_heads": 1, "head_dim": 6, "position": "rotary", "causal": True},
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
        out = backbone.run(x, mask, num_real=int(mask.sum()), memory=memory)
        (out.sin() * mask[..., None]).sum().backward()
    grads = [p.grad for p in backbone.parameters() if p.grad is not None]
    return out[mask], x.grad, *grads


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_packed_batch_has_the_outputs_and_gradients_of_a_padded_one(options, lengths):
    backbone = lively(backbone_of(D, depth=2, num_heads=H, dropout=0.3, drop_path=0.3, **options))
    x = numbers(4, 70, D)
    for mask in masks_of(lengths):
        assert GroupPacking.of(mask) is not None
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
    packing = GroupPacking.of(mask)
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
    assert GroupPacking.of(torch.arange(100) < torch.tensor([[100], [91]])) is None
    assert GroupPacking.of(torch.zeros(2, 9, dtype=torch.bool)) is None
    assert GroupPacking.of(torch.arange(100) < torch.tensor([[100], [89]])) is not None


def test_on_a_gpu_packing_must_save_more_computation():
    assert max_padding(10_000, 100) == 100_000
    assert max_padding(10_000, 1000) == 1000
    assert max_padding(100_000, 1000) == 5000


def test_packing_and_unpacking_keep_every_token_in_its_place():
    for mask in masks_of([70, 3, 40, 41]):
        packing, x = GroupPacking.of(mask), numbers(4, 70, D)
        assert torch.equal(packing.unpack(packing.pack(x)), x * mask[..., None])
        for group in packing.groups():
            rows = packing.pack(x)[group.rows]
            assert torch.equal(group.unpad(group.pad(packing.pack(x))), rows)


def attend_one_by_one(sequences, query, key, value):
    """What the kernel computes, for one sequence after the other."""
    bounds = sequences.starts.tolist()
    parts = []
    for start, stop in itertools.pairwise(bounds):
        mask = torch.ones(1, stop - start, dtype=torch.bool)
        attn_mask = make_attn_mask(mask, causal=sequences.causal, window=sequences.window)
        part = slice(start, stop)
        parts.append(attend(query[:, :, part], key[:, :, part], value[:, :, part], attn_mask))
    return torch.cat(parts, 2)


@pytest.mark.parametrize(
    "options",
    ({}, {"causal": True}, {"position": "rotary", "causal": True, "window": 4, "qk_norm": True}),
    ids=str,
)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_one_call_for_all_sequences_has_the_outputs_and_gradients_of_a_padded_batch(
    options, lengths, monkeypatch
):
    monkeypatch.setattr("dxn.models.packing.has_kernel", lambda x, head_dim: head_dim == D // H)
    monkeypatch.setattr("dxn.models.packing.GPU_PADDING", 0)
    calls = []

    def attend(*args):
        calls.append(1)
        return attend_one_by_one(*args)

    monkeypatch.setattr(Sequences, "attend", attend)
    backbone = lively(backbone_of(D, depth=2, num_heads=H, dropout=0.3, **options)).train()
    x = numbers(4, 70, D)
    for mask in masks_of(lengths):
        padded = outputs(backbone, x, mask, packed=False)
        for actual, expected in zip(outputs(backbone, x, mask, packed=True), padded, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert calls


@pytest.mark.parametrize(
    "options",
    ({"position": "alibi"}, {"score": "cosine"}, {"attn_dropout": 0.1}),
    ids=str,
)
def test_what_the_kernel_cannot_compute_is_not_given_to_it(options, monkeypatch):
    monkeypatch.setattr("dxn.models.packing.has_kernel", lambda x, head_dim: True)
    monkeypatch.setattr("dxn.models.packing.GPU_PADDING", 0)
    monkeypatch.setattr(Sequences, "attend", lambda *_: pytest.fail("was called"))
    backbone = lively(backbone_of(D, depth=1, num_heads=H, **options)).train()
    mask, _ = masks_of([70, 3, 40, 41])
    backbone.run(numbers(4, 70, D), mask)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"causal": True},
        {"window": 4},
        {"position": "rotary", "causal": True, "window": 4, "qk_norm": True},
    ),
    ids=str,
)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_kernel_computes_what_a_padded_batch_does(options, lengths, autocast, monkeypatch):
    monkeypatch.setattr("dxn.models.packing.GPU_PADDING", 0)
    backbone = lively(backbone_of(64, depth=2, num_heads=4, **options)).cuda().float()
    x = numbers(4, 70, 64).cuda().float()
    if not autocast:
        backbone, x = backbone.bfloat16(), x.bfloat16()
    for mask in masks_of(lengths):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            padded = outputs(backbone, x, mask.cuda(), packed=False)
            packed = outputs(backbone, x, mask.cuda(), packed=True)
        for actual, expected in zip(packed, padded, strict=True):
            error = (actual - expected).float().norm() / expected.float().norm()
            assert error < 0.05
