"""Public models in dxn against timm and transformers, after every block; and saved again."""

from dataclasses import replace

import pytest
import torch
from helpers.checkpoints import model_of
from helpers.peers import CASES, cases, parity
from safetensors.torch import load_file, save_file

from dxn.export.original import to_original
from dxn.weights import read_public

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

# 5 by 5 patches, and texts of 23, 6 and 11 tokens.
SIZES = cases.Sizes(dim=44, depth=2, heads=2, batch=3, side=40, length=23)
FLOAT64 = torch.float64
FLOAT32 = torch.float32
CASES_AND_TYPES = [
    (name, dtype)
    for name, case in CASES.items()
    for dtype in (FLOAT64, FLOAT32)
    if case.float64 or dtype == FLOAT32
]
HF_SAVED = ("ViT (transformers)", "DeiT, distilled (transformers)", "BERT", "AST", "VideoMAE")
SAVED = [name for name in CASES if "timm" in name or name in HF_SAVED]


def filled(public, *, dtype=FLOAT64, **adapter_options):
    """dxn's model with the checkpoint's weights; adapter_options are changed by the user."""
    plan = public.plan()
    for node in plan.adapters.values():
        node |= adapter_options
    model = model_of(public, plan).to(dtype).eval()
    public.fill(model)
    return model


def perturbed(model):
    """Change every weight that training would change."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def random_pixels(height, width, *, batch=3):
    return torch.randint(256, (batch, 3, height, width), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "dtype"), CASES_AND_TYPES, ids=lambda v: str(v).removeprefix("torch.")
)
def test_every_layer_and_the_answer_equal_those_of_the_peer(name, dtype, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=dtype)
    gaps = parity.differences(p, SIZES, dtype)
    depth = SIZES.depth + (2 if name == "ModernBERT" else 0)
    assert len(gaps) == depth + 2  # the embedding, each block, the answer
    assert max(gaps) < parity.TOLERANCE[dtype], gaps


# Larger in one direction and smaller in the other, smaller in both, larger in one.
OTHER_SIZES = [(56, 24), (24, 32), (88, 40)]


@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reg_tokens": 4, "no_embed_class": True},
        {"class_token": False, "global_pool": "avg"},
    ],
    ids=["class token", "registers without positions", "no class token"],
)
def test_position_embeddings_are_interpolated_as_by_timm(size, options, tmp_path):
    case = cases.timm_case("any", dynamic_img_size=True, **options)
    p = parity.pair(case, tmp_path, sizes=SIZES)
    model = filled(p.public, image_size=list(size))
    grid = model.adapters["image"].pos_embed.weight.shape[:2]
    assert grid == (size[0] // 8, size[1] // 8)
    batch, peer_batch = parity.images(model, random_pixels(*size), FLOAT64)
    with torch.inference_mode():
        expected = case.answer(p.peer, peer_batch)
        # timm interpolates in float32.
        torch.testing.assert_close(model(batch), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
@pytest.mark.parametrize(
    "name", ["DINOv2", "DINOv2 with registers, SwiGLU", "ViT (transformers)", "CLIP, image"]
)
def test_position_embeddings_are_interpolated_as_by_transformers(size, name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES)
    model = filled(p.public, image_size=list(size))
    batch, peer_batch = parity.images(model, random_pixels(*size), FLOAT64)
    pixels = peer_batch["pixels"]
    options = {} if "DINO" in name else {"interpolate_pos_encoding": True}
    with torch.inference_mode():
        if name == "CLIP, image":
            expected = p.peer.get_image_features(pixel_values=pixels, **options).pooler_output
        else:
            output = p.peer(pixel_values=pixels, **options)
            expected = output["pooler_output"] if "Swi" in name else output.logits
        torch.testing.assert_close(model(batch), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "DistilBERT", "RoBERTa", "CLIP, text"])
def test_rows_of_the_embedding_that_the_tokenizer_does_not_use_are_left_out(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES)
    vocab_size = cases.VOCAB - 8
    cases.save_tokenizer(tmp_path, vocab_size=vocab_size)
    p = replace(p, public=read_public(str(tmp_path), part=p.case.part))
    model = filled(p.public)
    assert len(model.adapters["text"].embedding.weight) == vocab_size
    batch, peer_batch = parity.inputs(p, SIZES, FLOAT64)
    for part in (batch["text"], peer_batch):
        part["ids"] = part["ids"].clamp(max=vocab_size - 1)
    with torch.inference_mode():
        expected = p.case.answer(p.peer, peer_batch)
        answer = parity.answer_of(model, batch)
        torch.testing.assert_close(answer, expected, atol=1e-10, rtol=0)


# Saving in the family's own format


def save_again(p, folder):
    """The file of p.model in the format of its family."""
    (folder / "saved").mkdir()
    file = folder / "saved" / "model.safetensors"
    labels = p.public.architecture.labels or ()
    tensors = to_original(p.public, p.model.state_dict(), labels).tensors
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)
    return file


def read_by_peer(p, file, folder):
    """A new peer with other weights that reads the file, which must have exactly its tensors."""
    if p.case.config is not None:
        peer = cases.randomize(p.case.make(SIZES))
        peer.load_state_dict(load_file(file), strict=True)
        return peer.eval()
    for name in ("config.json", "tokenizer.json"):
        if (folder / name).exists():
            (file.parent / name).write_bytes((folder / name).read_bytes())
    peer, report = type(p.peer).from_pretrained(file.parent, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], report
    return peer.eval()


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_gives_the_answers_of_the_original(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=FLOAT32)
    again = read_by_peer(p, save_again(p, tmp_path), tmp_path)
    _, peer_batch = parity.inputs(p, SIZES, FLOAT32)
    with torch.inference_mode():
        expected = p.case.answer(p.peer, peer_batch)
        torch.testing.assert_close(p.case.answer(again, peer_batch), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_contains_what_was_learned(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=FLOAT32)
    batch, peer_batch = parity.inputs(p, SIZES, FLOAT32)
    perturbed(p.model)
    file = save_again(p, tmp_path)
    if "no qkv bias" in name:  # the perturbation has given it one, so the peer needs one as well
        p.case = cases.timm_case("any", init_values=0.1, qk_norm=True)
    again = read_by_peer(p, file, tmp_path)
    with torch.inference_mode():
        answer = p.model(batch)
        before = p.case.answer(p.peer, peer_batch)
        torch.testing.assert_close(p.case.answer(again, peer_batch), answer, atol=1e-5, rtol=0)
    assert (answer - before).abs().max() > 0.01


def test_a_saved_model_keeps_rows_and_positions_that_were_left_out(tmp_path):
    p = parity.pair(CASES["BERT"], tmp_path, sizes=SIZES, dtype=FLOAT32)
    vocab_size = cases.VOCAB - 8
    cases.save_tokenizer(tmp_path, vocab_size=vocab_size)
    public = read_public(str(tmp_path))
    model = perturbed(filled(public, dtype=FLOAT32, max_len=SIZES.length))
    p = replace(p, model=model, public=public)
    again = read_by_peer(p, save_again(p, tmp_path), tmp_path).bert.embeddings
    before = p.peer.bert.embeddings
    words = again.word_embeddings.weight
    assert torch.equal(words[:vocab_size], model.adapters["text"].embedding.weight)
    assert torch.equal(words[vocab_size:], before.word_embeddings.weight[vocab_size:])
    positions = again.position_embeddings.weight
    assert torch.equal(positions[: SIZES.length], model.adapters["text"].pos_embed.weight)
    # What the position embeddings gained, the embedding of the first segment lost.
    moved = again.token_type_embeddings.weight[0] - before.token_type_embeddings.weight[0]
    torch.testing.assert_close(
        positions[SIZES.length :] + moved, before.position_embeddings.weight[SIZES.length :]
    )


def test_a_model_for_images_of_another_size_is_refused(tmp_path):
    p = parity.pair(CASES["ViT (timm)"], tmp_path, sizes=SIZES)
    p = replace(p, model=filled(p.public, dtype=FLOAT32, image_size=24))
    with pytest.raises(
        ValueError, match=r"pos_embed has the shape \(1, 26, 44\), but \(1, 10, 44\)"
    ):
        save_again(p, tmp_path)


@pytest.mark.parametrize("name", ["CLIP, image", "CLIP, text", "GPT-2", "Whisper, encoder"])
def test_families_whose_classifiers_cannot_be_saved_are_refused(name, tmp_path):
    p = parity.pair(CASES[name], tmp_path, sizes=SIZES, dtype=FLOAT32)
    message = f"^weights: {p.public.family.name} has no classifier in its original format"
    with pytest.raises(ValueError, match=message):
        save_again(p, tmp_path)
