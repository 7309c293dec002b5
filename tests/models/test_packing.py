"""Packed batches give the outputs and gradients of padded ones, without computing padding."""

import pytest
import torch
from helpers import varlen
from helpers.reference import backbone_of, lively, numbers, tokens_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dxn.core.dropout import keyed
from dxn.core.tokens import Tokens
from dxn.models import compiling
from dxn.models.decoding.decoder import Memory
from dxn.models.packing import ROWS, GroupPacking, SequencePacking

D, H = 20, 5
OPTIONS = (
    {},
    {"causal": True},
    {"position": "rotary"},
    {"position": "alibi"},
    {"position": "rotary", "causal": True, "windows": [4]},
    {"position": "alibi", "windows": [4]},
    {"pre_norm": False, "qk_norm": True, "position": "rotary"},
    {"norm_place": "out", "qk_norm": "all"},
    {"score": "additive"},
    {"num_kv_heads": 1, "head_dim": 6, "position": "rotary", "causal": True},
    {"norm_place": "both", "position": "rotary", "rope_share": 0.5, "rope_blocks": [True, False]},
    {"position": "buckets", "score_softcap": 0.7},
)
# Those that the kernel for sequences can compute.
KERNEL_OPTIONS = (
    {},
    {"causal": True},
    {"windows": [4]},
    {"position": "rotary", "causal": True, "windows": [4], "qk_norm": True},
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
    with keyed(torch.arange(4), 3):
        out = backbone.run(x, mask, num_real=int(mask.sum()), memory=memory)
        (out.sin() * mask[..., None]).sum().backward()
    grads = [p.grad for p in backbone.parameters() if p.grad is not None]
    return out[mask], x.grad, *grads


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        *((OPTIONS[0], lengths) for lengths in LENGTHS),
        *((options, LENGTHS[i % 4]) for i, options in enumerate(OPTIONS[1:])),
    ],
    ids=str,
)
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


def test_packing_and_unpacking_keep_every_token_in_its_place():
    for mask in masks_of([70, 3, 40, 41]):
        packing, x = GroupPacking.of(mask), numbers(4, 70, D)
        assert torch.equal(packing.unpack(packing.pack(x)), x * mask[..., None])
        for group in packing.groups():
            rows = packing.pack(x)[group.rows]
            assert torch.equal(group.unpad(group.pad(packing.pack(x))), rows)


@pytest.fixture
def kernel(monkeypatch):
    """Use the kernel for sequences on this CPU. The value are its calls."""
    monkeypatch.setattr("dxn.models.packing.has_kernel", lambda x, head_dim: True)
    varlen.calls.clear()
    return varlen.calls


@pytest.fixture
def compiled(monkeypatch):
    """A function that compiles another one, without generated code, which takes long."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    compiling._compiled.cache_clear()
    torch._dynamo.utils.counters.clear()
    yield lambda function: compiling._compiled(function, True)
    compiling._compiled.cache_clear()


@pytest.mark.parametrize(
    ("options", "lengths", "multiple"),
    [
        (options, LENGTHS[j], (1, 64, ROWS)[(i + j) % 3])
        for i, options in enumerate(KERNEL_OPTIONS)
        for j in (i, (i + 1) % 4)
    ],
    ids=str,
)
def test_one_call_for_all_sequences_has_the_outputs_and_gradients_of_a_padded_batch(
    options, lengths, multiple, kernel, monkeypatch
):
    monkeypatch.setattr("dxn.models.packing.ROWS", multiple)
    backbone = lively(backbone_of(D, depth=2, num_heads=H, dropout=0.3, **options)).train()
    x = numbers(4, 70, D)
    for mask in masks_of(lengths):
        padded = outputs(backbone, x, mask, packed=False)
        for actual, expected in zip(outputs(backbone, x, mask, packed=True), padded, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    rows = min(-(-sum(lengths) // multiple) * multiple, 280)
    assert set(kernel) == {(rows, rows)}


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [(LENGTHS[0], [9, 1, 7, 3]), (LENGTHS[1], [9, 9, 9, 9]), (LENGTHS[2], [9, 1, 7, 3])],
    ids=str,
)
def test_one_call_for_all_memories_has_the_outputs_and_gradients_of_a_padded_batch(
    lengths, sizes, kernel, monkeypatch
):
    monkeypatch.setattr("dxn.models.packing.ROWS", 32)
    options = {"causal": True, "cross": True, "position": "rotary", "windows": [4]}
    decoder = lively(backbone_of(D, depth=2, num_heads=H, **options)).train()
    x, source = numbers(4, 70, D), numbers(4, 9, D)
    for mask in masks_of(lengths):
        results = []
        for packed in (False, True):
            leaf = source.clone().requires_grad_()
            tokens = Tokens(leaf, torch.arange(9) < torch.tensor(sizes)[:, None], (), sum(sizes))
            memory = Memory.from_tokens(tokens)
            results.append([*outputs(decoder, x, mask, packed=packed, memory=memory), leaf.grad])
        torch.testing.assert_close(*results, rtol=0, atol=1e-10)
    rows, columns = (-(-sum(each) // 32) * 32 for each in (lengths, sizes))
    assert set(kernel) == {(rows, rows), (rows, min(columns, 36))}


def test_the_rows_of_a_packing_on_a_gpu_depend_on_the_mask_only():
    """So a captured graph can be used for a batch with fewer tokens."""
    for mask in masks_of([70, 3, 40, 0]):
        packing = SequencePacking.of(mask, int(mask.sum()) + 99)
        x = numbers(4, 70, D)
        assert torch.equal(packing.pack(x)[:113], x[mask])
        assert torch.equal(packing.unpack(packing.pack(x))[mask], x[mask])
        assert packing.sequences().starts.tolist() == [0, 70, 73, 113, 113, 113, 180, 210, 256]


@pytest.mark.parametrize(
    "options",
    ({"position": "alibi"}, {"score": "cosine"}, {"attn_dropout": 0.1}),
    ids=str,
)
def test_what_the_kernel_cannot_compute_is_not_given_to_it(options, kernel):
    backbone = lively(backbone_of(D, depth=1, num_heads=H, **options)).train()
    mask, _ = masks_of([70, 3, 40, 41])
    backbone.run(numbers(4, 70, D), mask, num_real=154)
    assert not kernel


def run(backbone, x, mask, num_real):
    tokens = Tokens(x, mask, (), num_real)
    memory = Memory.from_tokens(tokens) if backbone.cross else None
    return backbone.run(x, mask, num_real=num_real, memory=memory)


@pytest.mark.exhaustive
def test_batches_of_all_sizes_are_one_graph(kernel, compiled):
    options = {"causal": True, "cross": True, "position": "rotary", "windows": [4]}
    backbone = lively(backbone_of(D, depth=1, num_heads=H, **options)).train()
    for shape, num_real in [((4, 70), 154), ((3, 31), 90), ((2, 300), 257)]:
        mask = (torch.randperm(shape[0] * shape[1]) < num_real).view(shape)
        results = []
        values = numbers(*shape, D)
        for call in (run, compiled(run)):
            backbone.zero_grad()
            x = values.clone().requires_grad_()
            out = call(backbone, x, mask, num_real)[mask]
            out.sin().sum().backward()
            grads = [p.grad for p in backbone.parameters() if p.grad is not None]
            results.append([out, x.grad, *grads])
        torch.testing.assert_close(*results, rtol=0, atol=1e-10)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert set(kernel) == {(256, 256), (93, 93), (512, 512)}


@pytest.mark.exhaustive
def test_a_gpu_computes_all_batches_with_padding_by_one_graph(compiled, monkeypatch):
    """The tensors of this device have no values here, so only the graph is built."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("torch.version.cuda", "13.0")
    backbone = backbone_of(64, depth=1, num_heads=4).bfloat16()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for module in backbone.modules():
            for name, weight in module._parameters.items():
                module._parameters[name] = nn.Parameter(torch.empty_like(weight, device="cuda"))
        for shape, num_real in [((4, 70), 154), ((3, 31), 90), ((2, 300), 257)]:
            x = torch.empty(*shape, 64, device="cuda", dtype=torch.bfloat16)
            mask = torch.empty(shape, device="cuda", dtype=torch.bool)
            assert compiled(run)(backbone, x, mask, num_real).shape == x.shape
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_kernel_computes_what_a_padded_batch_does(options, lengths, autocast):
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
