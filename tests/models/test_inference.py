"""Converted models: equal outputs to the plain path, and what still works with their layers."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.models.blocks import BlockOptions
from dxn.models.inference import (
    ROWS,
    Int8Linear,
    LowLinear,
    PackedLinear,
    convert,
    foreign_parts,
    restore,
    to_int8,
)
from dxn.tokenize import ImageAdapter

B, N, D, K = 3, 7, 128, 5
# Differences to float32, relative to the norm of the output.
LIMITS = {"float32": 1e-5, "bf16": 0.02, "int8": 0.05}
# Processors without AVX-512 have no layout for bf16.
needs_bf16 = pytest.mark.skipif(
    not PackedLinear.supports(nn.Linear(D, D, dtype=torch.bfloat16)),
    reason="oneDNN has no bf16 layout on this processor",
)


class Vectors(nn.Module):
    """An adapter that receives the features of its tokens."""

    modality = "vectors"
    window = 0
    parts = 1

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, D)
        self.number = nn.Linear(1, D)

    def forward(self, batch):
        x = self.proj(batch["x"]) + self.number(batch["x"][..., :1])
        coords = torch.zeros(*x.shape[:2], 1)
        span = Span(self.modality, self.modality, 0, x.shape[1], coords)
        return Tokens(x, batch["mask"], (span,))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(D, K)

    def forward(self, tokens, pooled, batch):
        return self.out(pooled)


def build(mlp="gelu", depth=2):
    torch.manual_seed(0)
    backbone = Backbone(D, depth=depth, num_heads=4, block=BlockOptions(mlp=mlp))
    parts = {"fusion": EarlyFusion(D, inputs=("vectors",)), "backbone": backbone, "head": Head()}
    model = MultimodalModel({"vectors": Vectors()}, inputs={"vectors": "vectors"}, **parts)
    return model.eval()


def make_batch():
    torch.manual_seed(1)
    mask = torch.arange(N) < torch.tensor([N, N - 1, 2])[:, None]
    part = {"x": torch.randn(B, N, D), "mask": mask, "rows": torch.arange(B)}
    return {"vectors": part, "#size": B}


def converted(model, dtype):
    model = copy.deepcopy(model)
    base = torch.float32 if dtype == "float32" else torch.bfloat16
    convert(model, base, int8=dtype == "int8", pack=True)
    return model


def distance(output, expected):
    return float((output.float() - expected).norm() / expected.norm())


def linear_of(dtype=torch.float32, bias=True):
    torch.manual_seed(2)
    return nn.Linear(136, 24, bias=bias).to(dtype)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("mlp", ["gelu", "gelu_tanh", "quick_gelu", "swiglu", "geglu"])
@torch.inference_mode()
def test_a_converted_model_computes_the_same_as_the_plain_one(dtype, mlp):
    model = build(mlp)
    batch = make_batch()
    assert distance(converted(model, dtype)(batch), model(batch)) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", ["float32", "int8", pytest.param("bf16", marks=needs_bf16)])
def test_the_linear_layers_of_the_backbone_are_replaced(dtype):
    block = converted(build(), dtype).backbone.blocks[0]
    kind = Int8Linear if dtype == "int8" else PackedLinear
    layers = [block.attn.qkv, block.attn.proj, block.mlp.up, block.mlp.down]
    assert all(type(layer) is kind for layer in layers)
    assert (block.attn.qkv.in_features, block.attn.qkv.out_features) == (D, 3 * D)
    assert block.mlp.up.activation == "gelu"


@needs_bf16
def test_an_adapter_keeps_the_precision_of_a_single_number():
    adapter = converted(build(), "bf16").adapters["vectors"]
    assert adapter.number.weight.dtype == torch.float32
    assert adapter.proj.weight.dtype == torch.bfloat16
    assert adapter(make_batch()["vectors"]).x.dtype == torch.bfloat16


def test_outside_of_a_cpu_wide_layers_of_an_adapter_multiply_in_bf16_too():
    model = build().to("meta")
    convert(model, torch.bfloat16)
    adapter = model.adapters["vectors"]
    assert isinstance(adapter.proj, LowLinear) and adapter.proj.weight.dtype == torch.bfloat16
    assert type(adapter.number) is nn.Linear and adapter.number.weight.dtype == torch.float32
    batch = {"x": torch.empty(B, N, D, device="meta"), "mask": torch.ones(B, N, dtype=torch.bool)}
    assert adapter(batch).x.dtype == torch.bfloat16
    restore(model)
    assert type(model.adapters["vectors"].proj) is LowLinear
    assert adapter(batch).x.dtype == torch.bfloat16


@torch.inference_mode()
def test_the_scale_of_pixels_is_a_part_of_the_weights_in_bf16():
    torch.manual_seed(0)
    adapter = ImageAdapter(D, image_size=None, patch_size=8)
    parts = {"fusion": EarlyFusion(D), "backbone": Backbone(D, depth=1), "head": Head()}
    plain = MultimodalModel({"photo": adapter}, inputs={"photo": "photo"}, **parts).eval()
    raws = [torch.randint(256, (3, *size), dtype=torch.uint8) for size in [(24, 40), (17, 31)]]
    photos = {**adapter.tokenizer.batch(raws), "rows": torch.arange(2)}
    batch = {"#size": 2, "photo": photos}
    expected = plain(batch)
    model = copy.deepcopy(plain)
    convert(model, torch.bfloat16)
    assert model.adapter("photo").shift is not None
    assert distance(model(batch), expected) < LIMITS["bf16"]
    restore(model)
    assert distance(model(batch), expected) < LIMITS["bf16"]
    convert(plain, torch.float32)
    assert plain.adapter("photo").shift is None  # it can be saved in a format without dxn


@torch.no_grad()
def test_a_layer_with_fewer_digits_returns_the_dtype_of_its_input():
    linear, x = nn.Linear(D, D), torch.randn(B, N, D)
    out = LowLinear(copy.deepcopy(linear).bfloat16())(x)
    assert out.dtype == torch.float32
    assert float((out - linear(x)).norm() / linear(x).norm()) < LIMITS["bf16"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(136,), (0, 136), (3, 136), (2, 3, 136)])
def test_a_packed_layer_equals_nn_linear(shape, activation, bias):
    linear = linear_of(bias=bias)
    expected = linear(x := torch.randn(shape))
    if activation != "none":
        expected = F.gelu(
            expected, approximate=activation.removeprefix("gelu_").replace("gelu", "none")
        )
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear, activation)(x), expected)


@needs_bf16
def test_a_packed_layer_in_bf16_returns_the_dtype_of_its_input():
    layer = PackedLinear(linear_of(torch.bfloat16))
    x = torch.randn(3, 136)
    with torch.no_grad():
        assert layer(x).dtype == torch.float32
        assert torch.equal(layer(x), layer(x.bfloat16()).float())


@pytest.mark.parametrize("kind", [PackedLinear, Int8Linear])
def test_a_layer_passes_on_gradients_with_respect_to_its_input(kind):
    linear = linear_of()
    x = torch.randn(3, 136, requires_grad=True)
    layer = kind(linear)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 136))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("dtype", LIMITS)
@torch.inference_mode()
def test_a_converted_model_can_be_copied_and_pickled(dtype, copied):
    model = converted(build(), dtype)
    batch = make_batch()
    assert torch.equal(copied(model)(batch), model(batch))


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_a_converted_model_has_the_state_dict_of_the_plain_one(dtype):
    model = build()
    state = converted(model, dtype).state_dict()
    assert state.keys() == model.state_dict().keys()
    limit = 0 if dtype == "float32" else 0.01
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name].float(), tensor, rtol=limit, atol=0)


@pytest.mark.parametrize("mlp", ["gelu", "gelu_tanh"])
@torch.inference_mode()
def test_a_restored_model_has_plain_layers_and_the_same_output(mlp):
    plain = build(mlp)
    model = converted(plain, "float32")
    restore(model)
    assert {type(m) for m in model.modules()} == {type(m) for m in plain.modules()}
    assert torch.equal(model(make_batch()), plain(make_batch()))


def test_a_layer_with_a_hook_or_of_a_subclass_is_kept():
    class Special(nn.Linear):
        pass

    model = build()
    block = model.backbone.blocks[0]
    block.attn.qkv.register_forward_hook(lambda module, args, output: output)
    block.attn.proj = Special(D, D)
    convert(model, torch.float32, pack=True)
    assert type(block.attn.qkv) is nn.Linear
    assert type(block.attn.proj) is Special
    assert type(model.backbone.blocks[1].attn.qkv) is PackedLinear


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float32, nn.Linear),
        pytest.param(torch.bfloat16, PackedLinear, marks=needs_bf16),
    ],
)
def test_layers_are_packed_in_bf16_only(dtype, kind):
    model = build()
    convert(model, dtype)
    assert type(model.backbone.blocks[0].attn.qkv) is kind


def test_a_layer_that_occurs_twice_is_packed_once():
    model = build()
    first, second = model.backbone.blocks
    second.mlp.down = first.mlp.down
    convert(model, torch.float32, pack=True)
    assert second.mlp.down is first.mlp.down


def test_a_packed_model_stays_on_its_device_and_in_its_dtype():
    model = converted(build(), "float32")
    assert model.to("cpu") is model
    with pytest.raises(TypeError, match="restore"):
        model.to(torch.float64)


def test_classes_of_others_are_named():
    assert foreign_parts(Backbone(D, depth=1, num_heads=4)) == []
    assert foreign_parts(Head()) == [f"{__name__}.Head"]


def test_int8_uses_one_scale_per_row_and_keeps_zeros():
    x = torch.tensor([[0.5, -1.0, 0.0], [0.0, 0.0, 0.0], [254.0, 2.0, 0.0]])
    quantized, scale = to_int8(x)
    assert quantized.tolist() == [[64, -127, 0], [0, 0, 0], [127, 1, 0]]
    torch.testing.assert_close(scale.flatten()[[0, 2]], torch.tensor([1 / 127, 2.0]))


@torch.inference_mode()
def test_int8_gives_the_same_result_for_any_number_of_rows():
    layer = Int8Linear(linear_of(), "gelu")
    x = torch.randn(2 * ROWS + 3, 136)
    assert torch.equal(layer(x), torch.cat([layer(row) for row in x.split(1)]))
    assert layer(x[:0]).shape == (0, 24)


@torch.inference_mode()
def test_a_packed_layer_also_works_inside_a_compiled_function():
    layer = PackedLinear(linear_of(), "gelu")
    compiled = torch.compile(lambda x: layer(x) + 1, backend="eager")
    x = torch.randn(3, 136)
    torch.testing.assert_close(compiled(x), layer(x) + 1)
