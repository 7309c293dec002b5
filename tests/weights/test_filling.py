"""Filling a model: tensors that are missing, unexpected, or of another shape."""

from types import SimpleNamespace

import pytest
import torch
from helpers.checkpoints import assert_refused, change_tensors, model_of, save_peer
from safetensors.torch import load_file
from torch import nn

from dxn.core.errors import UserError
from dxn.models import MultimodalModel
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


def test_missing_and_unexpected_tensors_are_listed_unless_strict_is_false(tmp_path):
    save_peer("ViT (timm)", tmp_path)
    removed = "blocks.1.mlp.fc2.bias"
    change_tensors(tmp_path, **{removed: None, "blocks.0.extra": torch.zeros(2)})
    public = read_public(str(tmp_path))
    with pytest.raises(UserError) as caught:
        public.fill(model_of(public))
    assert str(caught.value) == (
        f"weights: {tmp_path}: the tensors do not match ViT of timm: "
        f"missing tensors (1): {removed}; "
        "unexpected tensors (1): blocks.0.extra; "
        "set weights.strict=false to ignore this"
    )
    model = model_of(public)
    initial = model.backbone.blocks[1].mlp.down.bias.clone()
    result = public.fill(model, strict=False)
    assert result.missing == ["backbone.blocks.1.mlp.down.bias"]
    assert result.unexpected == ["blocks.0.extra"]
    assert torch.equal(model.backbone.blocks[1].mlp.down.bias, initial)
    expected = public.checkpoint.tensors["blocks.1.mlp.fc1.bias"]
    assert torch.equal(model.backbone.blocks[1].mlp.up.bias, expected)


def test_many_missing_tensors_are_counted_and_the_first_eight_named(tmp_path):
    save_peer("BERT", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    change_tensors(tmp_path, **{name: None for name in state if "encoder.layer.1." in name})
    public = read_public(str(tmp_path))
    message = r"BERT: missing tensors \(12\): .+ and 4 more; set weights\.strict=false"
    with pytest.raises(UserError, match=message):
        public.fill(model_of(public))


@pytest.mark.parametrize(
    "name",
    ["ViT, layer scale, qk norm, no qkv bias (timm)", "ViT, no class token, mean (timm)"],
)
def test_biases_that_a_family_may_lack_are_zero(name, tmp_path):
    public = read_public(str(save_peer(name, tmp_path)))
    model = model_of(public)
    bias = model.backbone.blocks[0].attn.qkv.bias
    nn.init.ones_(bias)
    result = public.fill(model)
    assert not result.missing
    assert not result.unexpected
    assert not result.unfilled
    expected = public.checkpoint.tensors.get("blocks.0.attn.qkv.bias", torch.zeros(36))
    assert torch.equal(bias, expected)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path):
    save_peer("ViT (timm)", tmp_path)
    change_tensors(tmp_path, **{"blocks.1.attn.proj.bias": torch.zeros(13)})
    public = read_public(str(tmp_path))
    for strict in (True, False):
        with pytest.raises(UserError) as caught:
            public.fill(model_of(public), strict=strict)
        assert str(caught.value) == (
            f"weights: {tmp_path}: blocks.1.attn.proj.bias has the shape (13,), "
            "but the model's backbone.blocks.1.attn.proj.bias has the shape (12,); "
            "remove options that change the shape"
        )


def test_a_head_for_other_classes_keeps_its_initial_values_and_is_named(tmp_path):
    public = read_public(str(save_peer("ViT (timm)", tmp_path)))
    model = model_of(public)
    model.head.out = nn.Linear(12, 5)
    initial = model.head.out.weight.clone()
    assert public.fill(model).unfilled == ["head.out.bias", "head.out.weight"]
    assert torch.equal(model.head.out.weight, initial)


def test_only_tensors_with_the_requested_prefixes_are_filled(tmp_path):
    public = read_public(str(save_peer("ViT (timm)", tmp_path)))
    model = model_of(public)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    public.fill(model, only=("backbone.",))
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.split(".")[0] for name in changed} == {"backbone"}


def test_two_adapters_of_one_modality_are_both_filled_and_others_are_left_alone(tmp_path):
    public = read_public(str(save_peer("ViT (timm)", tmp_path)))
    first, second, third = (model_of(public) for _ in range(3))
    third.adapters["image"].reader = SimpleNamespace(modality="another")
    keys = ("front.view", "image", "depth")
    adapters = {
        key: model.adapters["image"]
        for key, model in zip(keys, (first, second, third), strict=True)
    }
    initial = adapters["depth"].proj.weight.clone()
    model = MultimodalModel(
        adapters,
        inputs={key: key for key in keys},
        fusion=first.fusion,
        backbone=first.backbone,
        head=first.head,
    )
    result = public.fill(model)
    assert not result.missing
    kernel = public.checkpoint.tensors["patch_embed.proj.weight"].flatten(1)
    assert torch.equal(adapters["front.view"].proj.weight, kernel)
    assert torch.equal(adapters["image"].proj.weight, kernel)
    assert torch.equal(adapters["depth"].proj.weight, initial)


@pytest.mark.parametrize("removed", ["patch_embed.proj.bias", "cls_token"])
def test_a_vit_that_lacks_one_of_its_tensors_is_not_taken_for_another_kind(removed, tmp_path):
    save_peer("ViT (timm)", tmp_path)
    change_tensors(tmp_path, **{removed: None})
    message = r"^weights: .*(missing tensors|unexpected tensors|must be a square number)"
    with pytest.raises(UserError, match=message):
        public = read_public(str(tmp_path))
        public.fill(model_of(public))


def test_clip_without_part_names_both_towers(tmp_path):
    save_peer("CLIP, image", tmp_path)
    for part in (None, "tower", "audio"):
        assert_refused(
            tmp_path,
            f"{tmp_path}: contains the image tower of CLIP and the text tower of CLIP; "
            "choose one with weights.part=image or weights.part=text",
            part=part,
        )
    for part in ("text", "image"):
        public = read_public(str(tmp_path), part=part)
        assert public.architecture.adapters.keys() == {part}


def test_text_weights_without_a_tokenizer_are_refused(tmp_path):
    public = read_public(str(save_peer("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text("{}")  # of no use without its merges
    with pytest.raises(UserError) as caught:
        model_of(public)
    assert str(caught.value) == (
        f"weights: {tmp_path}: no tokenizer in the folder of the weights; add tokenizer.json, "
        "vocab.txt, or vocab.json and merges.txt"
    )


def test_a_broken_tokenizer_json_is_named(tmp_path):
    public = read_public(str(save_peer("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer\.json"):
        model_of(public)
