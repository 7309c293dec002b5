"""What families make fit, what they refuse, and what no tensor shows."""

import pytest
import torch
from checkpoints import CASES, SIZES, model_of, refused, saved
from peers import parity
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from dxn.errors import UserError
from dxn.weights import read_public
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.public import fitted
from dxn.weights.vit import VIT

timm, transformers = parity.timm, parity.transformers
pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

# Shapes that do not fit by themselves


@pytest.mark.parametrize(
    ("name", "shape", "asked", "made"),
    [
        ("adapters.image.position.table", (5, 5, 2), (5, 5, 2), (5, 5, 2)),
        ("adapters.image.position.table", (5, 5, 2), (3, 7, 2), (3, 7, 2)),
        ("adapters.image.position.table", (5, 5, 2), (3, 7, 3), (3, 7, 2)),  # of another width: for fill to refuse
        ("adapters.text.position.table", (11, 2), (7, 2), (7, 2)),
        ("adapters.text.position.table", (7, 2), (11, 2), (7, 2)),  # too few rows, likewise
        ("adapters.text.table.weight", (11, 2), (7, 2), (7, 2)),
        ("adapters.text.table.weight", (7, 2), (11, 2), (7, 2)),
        ("backbone.blocks.0.mlp.up.weight", (11, 2), (7, 2), (11, 2)),
        ("head.out.weight", (11, 2), (7, 2), (11, 2)),
    ],
)
def test_only_places_and_tables_are_made_to_fit(name, shape, asked, made):
    given = torch.randn(shape, dtype=torch.float64)
    found = fitted(name, given, asked)
    assert found.shape == made
    if len(shape) == 2:
        assert torch.equal(found, given[: made[0]])


def test_a_constant_grid_stays_constant_whatever_its_size_and_smoothing_shows_only_when_asked():
    constant = torch.full((5, 7, 2), 3.0, dtype=torch.float64)
    torch.testing.assert_close(fitted("position.table", constant, (3, 11, 2)), constant[:1, :1].expand(3, 11, 2))
    drawn = torch.randn(12, 12, 2, dtype=torch.float64)
    made = [fitted("position.table", drawn, (4, 4, 2), antialias=smooth) for smooth in (True, False)]
    assert made[0].std() < made[1].std()  # the mean over what a cell covers, against its middle alone


# What families refuse

NO = "which dxn does not have"
RELU = f"its activation is 'relu', {NO}"
REFUSED = [
    ("ViT (transformers)", {"hidden_act": "relu"}, RELU),
    ("DINOv2", {"hidden_act": "relu"}, RELU),
    ("BERT", {"hidden_act": "relu"}, RELU),
    ("BERT", {"is_decoder": True}, f"a decoder, or one with relative positions, {NO}"),
    ("BERT", {"position_embedding_type": "relative_key"}, f"a decoder, or one with relative positions, {NO}"),
    ("RoBERTa", {"hidden_act": "relu"}, RELU),
    ("RoBERTa", {"is_decoder": True}, f"a decoder, or one with relative positions, {NO}"),
    ("DistilBERT", {"activation": "relu"}, RELU),
    ("ModernBERT", {"classifier_activation": "relu"}, RELU),
    ("ModernBERT", {"hidden_activation": "relu"}, RELU),
    ("ModernBERT", {"hidden_activation": "gelu_new"}, f"a gate other than GELU, {NO}"),
    ("ModernBERT", {"attention_bias": True}, f"a ModernBERT with biases, {NO}"),
    ("ModernBERT", {"mlp_bias": True}, f"a ModernBERT with biases, {NO}"),
    ("ModernBERT", {"norm_bias": True}, f"a ModernBERT with biases, {NO}"),
    (
        "ModernBERT",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
        "blocks that see all at irregular distances: full_attention, sliding_attention, full_attention, full_attention",
    ),
    ("GPT-2", {"activation_function": "relu"}, RELU),
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "scores that are scaled by the block's number, or not at all"),
    ("GPT-2", {"scale_attn_weights": False}, "scores that are scaled by the block's number, or not at all"),
    ("AST", {"hidden_act": "relu"}, RELU),
    ("Whisper, encoder", {"activation_function": "relu"}, RELU),
    ("CLIP, image", {"vision_config": {"hidden_act": "relu"}}, RELU),
    ("CLIP, text", {"text_config": {"hidden_act": "relu"}}, RELU),
    ("BERT", {"num_hidden_layers": None}, "neither its tensors nor its config.json has 'num_hidden_layers'"),
    ("ViT (timm)", {"global_pool": "map"}, "pools by 'map', which dxn cannot"),
]


@pytest.mark.parametrize(("name", "config", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_what_our_parts_cannot_do_is_refused_and_not_left_out(name, config, message, tmp_path):
    saved(name, tmp_path, **config)
    refused(tmp_path, f"{tmp_path}: {message}", part=CASES[name].part)


@pytest.mark.parametrize("name", ["ViT (transformers)", "DINOv2", "CLIP, image"])
def test_a_filter_of_pictures_that_we_do_not_have_is_refused(name, tmp_path):
    saved(name, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 1}')
    message = f"{tmp_path}: pictures are resized by PIL's filter 1, which dxn cannot"
    refused(tmp_path, message, part=CASES[name].part)


def test_an_interpolation_of_timm_that_we_do_not_have_is_refused(tmp_path):
    saved("ViT (timm)", tmp_path, pretrained_cfg={"interpolation": "lanczos"})
    refused(tmp_path, "pictures are resized by lanczos, which dxn cannot; only bilinear and bicubic")


def vit_state(**options):
    size = {"img_size": 40, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2}
    return timm.models.VisionTransformer(**{**size, **options}).state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": (8, 4)}, "patches of 8 by 4 pixels; only square ones can be taken"),
        ({"img_size": (24, 32)}, "13 places, 1 of them for leading tokens or none,"),
        (
            {"img_size": 24, "reg_tokens": 4, "no_embed_class": True},  # 3 by 3, or 2 by 2 and 5 leading ones
            "9 places, 5 of them for leading tokens or none, may be a square of patches either way",
        ),
    ],
)
def test_a_vit_whose_patches_are_no_square_is_refused(options, message, tmp_path):
    save_file(vit_state(**options), tmp_path / "model.safetensors")
    refused(tmp_path, f"{tmp_path}: {message}")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_pictures_of_transformers_that_are_no_square_are_refused(kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**SIZES.hf, image_size=(24, 40), patch_size=8)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"15 patches that are no square, which dxn does not have"):
        read_public(str(tmp_path))


# What no tensor of timm's shows


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "deit3_huge_patch14_224",
        "vit_huge_patch14_224",
        "vit_giant_patch14_224",
        "vit_giant_patch14_dinov2",
        "vit_gigantic_patch14_224",
        "vit_base_patch16_gap_224",
        "vit_so400m_patch14_siglip_gap_224",
        "vit_so400m_patch16_siglip_gap_256",
        "vit_base_patch32_siglip_gap_256",
        "vit_giantopt_patch16_siglip_gap_256",
        "vit_large_patch16_siglip_gap_256",
        "vit_large_patch16_siglip_gap_512",
        "test_vit",
        "test_vit2",
    ],
)
def test_heads_and_activation_are_those_that_timm_builds(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    state = {key: torch.ones(t.shape) if "gamma" in key else t for key, t in model.state_dict().items()}
    backbone = VIT.parts(Checkpoint(name, state, {"architecture": name})).backbone
    first = model.blocks[0]
    kinds = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "swiglu"}
    assert backbone["num_heads"] == first.attn.num_heads
    assert backbone["mlp"] == kinds[type(first.mlp.act).__name__]
    assert backbone["norm_eps"] == first.norm1.eps and backbone["depth"] == len(model.blocks)


def test_what_a_config_json_leaves_out_is_as_transformers_has_it(tmp_path):
    saved("GPT-2", tmp_path, activation_function=None)
    assert read_public(str(tmp_path)).parts.backbone["mlp"] == "gelu_tanh"
    state = {"text_model.embeddings.token_embedding.weight": torch.zeros(5, 512)}
    state["text_model.embeddings.position_embedding.weight"] = torch.zeros(7, 512)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "clip", "text_config": {"num_hidden_layers": 3}}')
    public, theirs = read_public(str(tmp_path)), transformers.CLIPTextConfig()
    backbone = public.parts.backbone
    assert (public.parts.dim, backbone["depth"], backbone["num_heads"]) == (theirs.hidden_size, 3, 8)
    assert backbone["num_heads"] == theirs.num_attention_heads
    assert backbone["mlp_ratio"] == theirs.intermediate_size / theirs.hidden_size
    assert backbone["mlp"] == theirs.hidden_act and backbone["norm_eps"] == theirs.layer_norm_eps


@pytest.mark.parametrize(
    ("tower", "part"), [("CLIPVisionModelWithProjection", "image"), ("CLIPTextModelWithProjection", "text")]
)
def test_a_tower_of_clip_by_itself_needs_no_part(tower, part, tmp_path):
    config = getattr(parity._clip(SIZES), "vision_config" if part == "image" else "text_config")
    theirs = parity.lively(getattr(transformers, tower)(config))
    theirs.save_pretrained(tmp_path)
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(parity.VOCAB)}, unk_token="w3")).save(
        str(tmp_path / "tokenizer.json")
    )
    public = read_public(str(tmp_path))
    model = model_of(public).eval()
    filled = public.fill(model)
    assert list(public.parts.adapters) == [part] and not (filled.missing or filled.unexpected)
    case = parity.hf_case("tower", tower, lambda s: config, "", part)
    mine, given = parity.inputs(parity.Pair(case, theirs, model, public), SIZES, torch.float32)
    with torch.inference_mode():
        out = theirs(pixel_values=given["pixels"]) if part == "image" else theirs(given["ids"], given["mask"].long())
        expected = out.image_embeds if part == "image" else out.text_embeds
        torch.testing.assert_close(model(mine), expected, atol=1e-5, rtol=0)


def test_places_of_a_longer_sound_lie_between_those_there_are():
    """Moment k of twice as many (less one) is moment k / 2."""
    table = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    longer = fitted("adapters.audio.position.table", table, (13, 3))
    torch.testing.assert_close(longer[::2], table)
    torch.testing.assert_close(longer[1::2], (table[1:] + table[:-1]) / 2)
    assert fitted("adapters.text.position.table", table, (13, 3)).shape == (7, 3)  # a text's order is not a line
