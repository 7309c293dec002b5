"""Public models in our backbone against timm and transformers themselves, after every block; and the way back."""

from dataclasses import replace

import pytest
import torch
from peers import parity
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from dxn.models import Model
from dxn.train.bundle import construct
from dxn.weights.public import read_public, save_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


timm, transformers = parity.timm, parity.transformers
CASES = {case.name: case for case in parity.CASES}
# 5 by 5 patches, and texts of 23, 6 and 11 tokens.
SIZES = parity.Sizes(dim=44, depth=2, heads=2, batch=3, side=40, length=23)
DOUBLE, SINGLE = torch.float64, torch.float32
KINDS = [(name, dtype) for name, case in CASES.items() for dtype in (DOUBLE, SINGLE) if case.doubles or dtype == SINGLE]
BACK = [name for name in CASES if "timm" in name or name in ("ViT (transformers)", "BERT", "AST")]
BACK.append("DeiT, distilled (transformers)")


def built(public, *, dtype=DOUBLE, adapter=None):
    """Our model with the checkpoint's weights; adapter: arguments of it that a user changes."""
    nodes = public.nodes()
    for node in nodes["adapters"].values():
        node |= adapter or {}
    adapters = {name: construct(node) for name, node in nodes["adapters"].items()}
    public.prepare(adapters)
    rest = {name: construct(nodes[name]) for name in ("fusion", "backbone", "head")}
    ours = Model(adapters, **rest).to(dtype).eval()
    public.fill(ours)
    return ours


def perturbed(model):
    """Every weight that training would change, changed."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("name", "dtype"), KINDS, ids=lambda v: str(v).removeprefix("torch."))
def test_every_layer_and_the_answer_are_the_peers(name, dtype, tmp_path):
    case = CASES[name]
    p = parity.pair(case, tmp_path, sizes=SIZES, dtype=dtype)
    gaps = parity.differences(p, SIZES, dtype)
    depth = SIZES.depth + (2 if name == "ModernBERT" else 0)
    assert len(gaps) == depth + 2  # the embedding, each block, the answer
    assert max(gaps) < parity.TOLERANCE[dtype], gaps


def pictures(adapter, height, width, *, batch=3, dtype=DOUBLE):
    """The same pixels for our model and, with mean and deviation taken off, for the peer."""
    pixels = torch.randint(256, (batch, 3, height, width), dtype=torch.uint8)
    mean, std = (t[:, None, None] for t in (adapter.mean, adapter.std))
    given = {"pixels": pixels, "sizes": torch.tensor([[height, width]] * batch), "frame": torch.ones(batch, 4)}
    return {"image": {**given, "rows": torch.arange(batch)}, "size": batch}, (pixels.to(dtype) / 255 - mean) / std


OTHER_SIZES = [(56, 24), (24, 32), (88, 40)]  # larger one way and smaller the other, smaller both, larger


@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"reg_tokens": 4, "no_embed_class": True}, {"class_token": False, "global_pool": "avg"}],
    ids=["class token", "registers without places", "no class token"],
)
def test_places_of_another_grid_are_made_as_timm_makes_them(size, options, tmp_path):
    case = parity.timm_case("any", dynamic_img_size=True, **options)
    p = parity.pair(case, tmp_path, sizes=SIZES)
    ours = built(p.public, adapter={"image_size": list(size)})
    assert ours.adapters["image"].position.table.shape[:2] == (size[0] // 8, size[1] // 8)
    mine, theirs = pictures(ours.adapters["image"], *size)
    with torch.inference_mode():
        torch.testing.assert_close(ours(mine), p.theirs(theirs), atol=1e-5, rtol=0)  # timm interpolates in float32


@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
@pytest.mark.parametrize("name", ["DINOv2", "DINOv2 with registers, SwiGLU", "ViT (transformers)", "CLIP, image"])
def test_places_of_another_grid_are_made_as_transformers_makes_them(size, name, tmp_path):
    case = CASES[name]
    p = parity.pair(case, tmp_path, sizes=SIZES)
    ours = built(p.public, adapter={"image_size": list(size)})
    mine, theirs = pictures(ours.adapters["image"], *size)
    asked = {} if "DINO" in name else {"interpolate_pos_encoding": True}
    with torch.inference_mode():
        if name == "CLIP, image":
            expected = p.theirs.get_image_features(pixel_values=theirs, **asked).pooler_output
        else:
            out = p.theirs(pixel_values=theirs, **asked)
            expected = out["pooler_output"] if "Swi" in name else out.logits
        torch.testing.assert_close(ours(mine), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "DistilBERT", "RoBERTa", "CLIP, text"])
def test_rows_that_the_tokenizer_does_not_know_change_nothing(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES)
    known = parity.VOCAB - 8
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(known)}, unk_token="w3")).save(
        str(tmp_path / "tokenizer.json")
    )
    p = replace(p, public=read_public(str(tmp_path), part=p.case.part))
    ours = built(p.public)
    assert len(ours.adapters["text"].table.weight) == known
    mine, theirs = parity.inputs(p, SIZES, DOUBLE)
    for batch in (mine["text"], theirs):
        batch["ids"] = batch["ids"].clamp(max=known - 1)
    with torch.inference_mode():
        torch.testing.assert_close(ours(mine), p.case.answer(p.theirs, theirs), atol=1e-10, rtol=0)


def read_by_peer(p, file, folder, **changed):
    """A new peer, with other weights, that reads file and finds in it what it has, no more and no less."""
    if p.case.config is None:
        for name in ("config.json", "tokenizer.json"):
            if (folder / name).exists():
                (file.parent / name).write_bytes((folder / name).read_bytes())
        peer, info = type(p.theirs).from_pretrained(file.parent, output_loading_info=True)
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        return peer.eval()
    peer = parity.lively(p.case.make(replace(SIZES, **changed)))
    peer.load_state_dict(load_file(file), strict=True)
    return peer.eval()


@pytest.mark.parametrize("name", BACK)
def test_the_way_back_gives_the_peer_its_own_answers(name, tmp_path):
    (tmp_path / "back").mkdir()
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=SINGLE)
    file = tmp_path / "back" / "model.safetensors"
    save_public(p.public, p.ours, file)
    again = read_by_peer(p, file, tmp_path)
    _, given = parity.inputs(p, SIZES, SINGLE)
    with torch.inference_mode():
        expected = p.case.answer(p.theirs, given)
        torch.testing.assert_close(p.case.answer(again, given), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", BACK)
def test_the_way_back_takes_along_what_was_learned(name, tmp_path):
    (tmp_path / "back").mkdir()
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=SINGLE)
    mine, given = parity.inputs(p, SIZES, SINGLE)
    perturbed(p.ours)
    file = tmp_path / "back" / "model.safetensors"
    save_public(p.public, p.ours, file)
    if "no qkv bias" in name:  # training gave it one, so the peer must have room for it
        p.case = parity.timm_case("any", init_values=0.1, qk_norm=True)
    again = read_by_peer(p, file, tmp_path)
    with torch.inference_mode():
        ours, before = p.ours(mine), p.case.answer(p.theirs, given)
        torch.testing.assert_close(p.case.answer(again, given), ours, atol=1e-5, rtol=0)
    assert (ours - before).abs().max() > 0.01


def test_the_way_back_keeps_rows_that_the_tokenizer_does_not_know_and_places_beyond_max_len(tmp_path):
    (tmp_path / "back").mkdir()
    p = parity.pair(CASES["BERT"], tmp_path, sizes=SIZES, dtype=SINGLE)
    known = parity.VOCAB - 8
    words = {f"w{i}": i for i in range(known)}
    Tokenizer(models.WordLevel(words, unk_token="w3")).save(str(tmp_path / "tokenizer.json"))
    public = read_public(str(tmp_path))
    ours = perturbed(built(public, dtype=SINGLE, adapter={"max_len": SIZES.length}))
    file = tmp_path / "back" / "model.safetensors"
    save_public(public, ours, file)
    again, before = (m.bert.embeddings for m in (read_by_peer(p, file, tmp_path), p.theirs))
    table, places = again.word_embeddings.weight, again.position_embeddings.weight
    assert torch.equal(table[:known], ours.adapters["text"].table.weight)
    assert torch.equal(table[known:], before.word_embeddings.weight[known:])
    kind = again.token_type_embeddings.weight[0] - before.token_type_embeddings.weight[0]
    torch.testing.assert_close(places[SIZES.length :] + kind, before.position_embeddings.weight[SIZES.length :])
    assert torch.equal(places[: SIZES.length], ours.adapters["text"].position.table)


@pytest.mark.parametrize("side", [24, 56])
@pytest.mark.parametrize("name", ["ViT (timm)", "ViT, registers, mean, fc norm (timm)", "DeiT, distilled (timm)"])
def test_the_way_back_of_pictures_of_another_size_is_a_peer_of_that_size(name, side, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES)
    ours = built(p.public, dtype=SINGLE, adapter={"image_size": side})
    save_public(p.public, ours, tmp_path / "back.safetensors")
    again = read_by_peer(p, tmp_path / "back.safetensors", tmp_path, side=side)
    mine, theirs = pictures(ours.adapters["image"], side, side, dtype=SINGLE)
    with torch.inference_mode():
        torch.testing.assert_close(ours(mine), again(theirs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", sorted(set(CASES) - set(BACK)))
def test_families_without_a_way_back_say_so(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=SINGLE)
    with pytest.raises(ValueError, match=f"^weights: no way back is known to {p.public.family.name}$"):
        save_public(p.public, p.ours, tmp_path / "back.safetensors")
    assert not (tmp_path / "back.safetensors").exists()
