"""What a checkpoint lacks, what it has too much, and what does not fit."""

import pytest
import torch
from checkpoints import change, model_of, refused, saved
from peers import parity
from safetensors.torch import load_file

from dxn.errors import UserError
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


def test_missing_and_unexpected_tensors_are_listed_unless_strict_is_false(tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{"blocks.1.mlp.fc2.bias": None, "blocks.0.extra": torch.zeros(2)})
    public = read_public(str(tmp_path))
    with pytest.raises(UserError) as caught:
        public.fill(model_of(public))
    assert str(caught.value) == (
        f"weights: {tmp_path}: 1 of the tensors that ViT of timm has are missing: blocks.1.mlp.fc2.bias; "
        "1 are none of ViT of timm's: blocks.0.extra; weights.strict=false goes on without them"
    )
    model = model_of(public)
    kept = model.backbone.blocks[1].mlp.down.bias.clone()
    filled = public.fill(model, strict=False)
    assert (filled.missing, filled.unexpected) == (["backbone.blocks.1.mlp.down.bias"], ["blocks.0.extra"])
    assert torch.equal(model.backbone.blocks[1].mlp.down.bias, kept)
    assert torch.equal(model.backbone.blocks[1].mlp.up.bias, public.checkpoint.tensors["blocks.1.mlp.fc1.bias"])


def test_many_missing_tensors_are_counted_and_the_first_eight_named(tmp_path):
    saved("BERT", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    change(tmp_path, **{name: None for name in state if "encoder.layer.1." in name})
    public = read_public(str(tmp_path))
    with pytest.raises(UserError, match=r"12 of the tensors that BERT has are missing: .+ and 4 more; weights\.strict"):
        public.fill(model_of(public))


@pytest.mark.parametrize("name", ["ViT, layer scale, qk norm, no qkv bias (timm)", "ViT, no class token, mean (timm)"])
def test_biases_that_a_family_may_lack_are_zero(name, tmp_path):
    public = read_public(str(saved(name, tmp_path)))
    model = model_of(public)
    torch.nn.init.ones_(model.backbone.blocks[0].attn.qkv.bias)
    found = public.fill(model)
    assert not found.missing and not found.unexpected and not found.replaced
    given = public.checkpoint.tensors.get("blocks.0.attn.qkv.bias", torch.zeros(36))
    assert torch.equal(model.backbone.blocks[0].attn.qkv.bias, given)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{"blocks.1.attn.proj.bias": torch.zeros(13)})
    public = read_public(str(tmp_path))
    for strict in (True, False):
        with pytest.raises(UserError) as caught:
            public.fill(model_of(public), strict=strict)
        assert str(caught.value) == (
            f"weights: {tmp_path}: blocks.1.attn.proj.bias makes (13,), but backbone.blocks.1.attn.proj.bias is (12,)"
        )


def test_a_head_of_other_classes_keeps_its_own_weights_and_is_named(tmp_path):
    public = read_public(str(saved("ViT (timm)", tmp_path)))
    model = model_of(public)
    model.head = parity.construct({"_target_": "dxn.models.Classify", "dim": 12, "num_classes": 5})
    before = model.head.out.weight.clone()
    assert public.fill(model).replaced == ["head.out.bias", "head.out.weight"]
    assert torch.equal(model.head.out.weight, before)


def test_only_the_parts_that_are_asked_for_are_filled(tmp_path):
    public = read_public(str(saved("ViT (timm)", tmp_path)))
    model = model_of(public)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    public.fill(model, only=("backbone.",))
    changed = {name.split(".")[0] for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"backbone"}


@pytest.mark.parametrize("gone", ["patch_embed.proj.bias", "cls_token"])
def test_a_vit_without_one_of_its_own_tensors_is_no_other_kind_of_vit_by_accident(gone, tmp_path):
    saved("ViT (timm)", tmp_path)
    change(tmp_path, **{gone: None})
    with pytest.raises(UserError, match=r"^weights: .*(missing: |none of ViT of timm's: |not a square)"):
        public = read_public(str(tmp_path))
        public.fill(model_of(public))


def test_clip_without_part_names_both_towers(tmp_path):
    saved("CLIP, image", tmp_path)
    for part in (None, "tower", "audio"):
        refused(
            tmp_path,
            f"{tmp_path}: it holds the image tower of CLIP and the text tower of CLIP; say weights.part=text or image",
            part=part,
        )
    assert read_public(str(tmp_path), part="text").parts.adapters.keys() == {"text"}
    assert read_public(str(tmp_path), part="image").parts.adapters.keys() == {"image"}


def test_text_weights_without_a_tokenizer_are_refused(tmp_path):
    public = read_public(str(saved("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text("{}")  # of no use without its merges
    with pytest.raises(UserError) as caught:
        model_of(public)
    assert str(caught.value) == (
        f"weights: {tmp_path}: no tokenizer.json, vocab.txt, or vocab.json with merges.txt beside the weights; "
        "without it nobody knows which row is whose"
    )


def test_a_broken_tokenizer_json_is_named(tmp_path):
    public = read_public(str(saved("BERT", tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer\.json that can be read"):
        model_of(public)
