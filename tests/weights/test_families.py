"""Resizing of tensors, what families refuse, and what cannot be read off any tensor."""

import numpy as np
import pytest
import torch
from helpers.checkpoints import SIZES, assert_refused, model_of, save_peer
from helpers.exhaustive import exhaustive_except
from helpers.peers import CASES, cases, parity
from safetensors.torch import save_file

from dxn.core.errors import UserError
from dxn.runs.saved.loading import from_public
from dxn.weights import Checkpoint, hf, read_public, resize_tensor
from dxn.weights.families.vit import VIT

timm = cases.timm
transformers = cases.transformers
pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

# Resizing

POSITIONS = "adapters.any.pos_embed.weight"


@pytest.mark.parametrize(
    ("name", "shape", "wanted", "resized"),
    [
        (POSITIONS, (5, 5, 2), (5, 5, 2), (5, 5, 2)),
        (POSITIONS, (5, 5, 2), (3, 7, 2), (3, 7, 2)),
        (POSITIONS, (5, 5, 2), (3, 7, 3), (3, 7, 2)),  # of another width: `fill` refuses it
        (POSITIONS, (11, 2), (7, 2), (7, 2)),
        (POSITIONS, (7, 2), (11, 2), (7, 2)),  # too few rows: `fill` refuses it
        ("adapters.any.embedding.weight", (11, 2), (7, 2), (7, 2)),
        ("adapters.any.embedding.weight", (7, 2), (11, 2), (7, 2)),
        ("adapters.any.proj.weight", (11, 2), (7, 2), (11, 2)),
        ("fusion.input_embedding.weight", (11, 2), (7, 2), (11, 2)),
        ("backbone.blocks.0.mlp.up.weight", (11, 2), (7, 2), (11, 2)),
        ("head.decoder.embedding.weight", (11, 2), (7, 2), (7, 2)),
        ("head.output.weight", (11, 2), (7, 2), (7, 2)),
        ("head.out.weight", (11, 2), (7, 2), (11, 2)),
    ],
)
def test_only_positions_and_vocabularies_are_resized(name, shape, wanted, resized):
    tensor = torch.randn(shape, dtype=torch.float64)
    result = resize_tensor(name, tensor, wanted, continuous=False)
    assert result.shape == resized
    if len(shape) == 2:
        assert torch.equal(result, tensor[: resized[0]])


def test_a_constant_grid_stays_constant():
    grid = torch.full((5, 7, 2), 3.0, dtype=torch.float64)
    resized = resize_tensor(POSITIONS, grid, (3, 11, 2))
    torch.testing.assert_close(resized, grid[:1, :1].expand(3, 11, 2))


def test_antialiasing_averages_over_the_area_of_a_cell():
    grid = torch.randn(12, 12, 2, dtype=torch.float64)
    smooth, sharp = (resize_tensor(POSITIONS, grid, (4, 4, 2), antialias=a) for a in (True, False))
    assert smooth.std() < sharp.std()


def test_positions_on_a_continuous_axis_are_interpolated_linearly():
    """Twice as many positions less one: position k lies at k / 2 of the old ones."""
    line = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    longer = resize_tensor(POSITIONS, line, (13, 3))
    torch.testing.assert_close(longer[::2], line)
    torch.testing.assert_close(longer[1::2], (line[1:] + line[:-1]) / 2)
    assert torch.equal(resize_tensor(POSITIONS, line, (13, 3), continuous=False), line)


@pytest.mark.parametrize(("name", "longer"), [("Whisper, encoder", True), ("BERT", False)])
def test_more_positions_are_made_for_sounds_but_not_for_texts(name, longer, tmp_path):
    public = read_public(str(save_peer(name, tmp_path)))
    plan = public.plan()
    (node,) = plan.adapters.values()
    node["max_len"] += 13
    if not longer:
        with pytest.raises(UserError, match=r"has the shape \(\d+, 12\), but the model's adapters"):
            public.fill(model_of(public, plan))
        return
    node["spectrogram"]["num_frames"] += 26
    assert not public.fill(model_of(public, plan)).missing


# What families refuse

NO = "dxn does not support"
TANH = f"{NO} the activation function 'tanh'"
REFUSED = [
    ("ViT (transformers)", {"hidden_act": "tanh"}, TANH),
    ("DINOv2", {"hidden_act": "tanh"}, TANH),
    ("BERT", {"hidden_act": "tanh"}, TANH),
    ("BERT", {"is_decoder": True}, f"{NO} a BERT that is a decoder (is_decoder)"),
    (
        "BERT",
        {"position_embedding_type": "relative_key"},
        f"{NO} position embeddings of the type 'relative_key'",
    ),
    ("RoBERTa", {"hidden_act": "tanh"}, TANH),
    ("RoBERTa", {"is_decoder": True}, f"{NO} a BERT that is a decoder (is_decoder)"),
    ("DistilBERT", {"activation": "tanh"}, TANH),
    ("ModernBERT", {"classifier_activation": "tanh"}, TANH),
    ("ModernBERT", {"hidden_activation": "tanh"}, TANH),
    (
        "ModernBERT",
        {"hidden_activation": "gelu_new"},
        f"{NO} a ModernBERT whose MLPs use another activation than gelu",
    ),
    ("ModernBERT", {"attention_bias": True}, f"{NO} a ModernBERT with attention_bias"),
    ("ModernBERT", {"mlp_bias": True}, f"{NO} a ModernBERT with mlp_bias"),
    ("ModernBERT", {"norm_bias": True}, f"{NO} a ModernBERT with norm_bias"),
    ("GPT-2", {"activation_function": "tanh"}, TANH),
    (
        "GPT-2",
        {"scale_attn_by_inverse_layer_idx": True},
        f"{NO} attention scores that are scaled by the index of the block",
    ),
    ("GPT-2", {"scale_attn_weights": False}, f"{NO} attention scores that are not scaled"),
    ("AST", {"hidden_act": "tanh"}, TANH),
    ("Whisper, encoder", {"activation_function": "tanh"}, TANH),
    ("CLIP, image", {"vision_config": {"hidden_act": "tanh"}}, TANH),
    ("CLIP, text", {"text_config": {"hidden_act": "tanh"}}, TANH),
    (
        "ViT (timm)",
        {"global_pool": "map"},
        "dxn supports only global_pool=token and global_pool=avg",
    ),
]


@pytest.mark.parametrize(
    ("name", "config", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else None
)
def test_a_feature_that_dxn_does_not_have_is_refused(name, config, message, tmp_path):
    save_peer(name, tmp_path, **config)
    assert_refused(tmp_path, f"{tmp_path}: {message}", part=CASES[name].part)


# Settings that dxn does not know, and those of published files that have no effect.
UNKNOWN = [
    ("BERT", {"embedding_scale": 2.0}, "BERT, so .*: embedding_scale=2.0; set weights.strict"),
    ("GPT-2", {"use_post_norm": True}, "GPT-2, so .*: use_post_norm=True"),
    ("BERT", {"position_embedding_type": "absolute", "directionality": "bidi", "new": False}, ""),
    ("ModernBERT", {"layer_norm_eps": 1e-5, "reference_compile": True}, ""),
    ("DistilBERT", {"sinusoidal_pos_embds": True, "tie_weights_": True, "qa_dropout": 0.1}, ""),
    ("GPT-2", {"n_special": 3, "task_specific_params": {"a": 1}, "temperature": 0.7}, ""),
    ("CLIP, image", {"vision_config": {"window": [3]}}, r".*: vision_config.window=\[3\]"),
    ("CLIP, image", {"text_config": {"window": [3]}, "text_config_dict": {"a": 1}}, ""),
]


@pytest.mark.parametrize(("name", "config", "message"), UNKNOWN)
def test_a_setting_that_may_have_an_effect_is_refused(name, config, message, tmp_path):
    save_peer(name, tmp_path, **config)
    part = CASES[name].part
    if message:
        with pytest.raises(UserError, match=f"settings that dxn does not know for {message}"):
            read_public(str(tmp_path), part=part)
    read_public(str(tmp_path), part=part, strict=not message)


@pytest.mark.parametrize("name", ["ViT (transformers)", "DINOv2", "CLIP, image"])
def test_an_unknown_filter_for_resizing_images_is_refused(name, tmp_path):
    save_peer(name, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 1}')
    message = f"{tmp_path}: {NO} PIL's resampling filter 1 for resizing images"
    assert_refused(tmp_path, message, part=CASES[name].part)


REPEATED = {
    "ViT (transformers)": {"id2label": dict(enumerate(["crane", "dog", "crane"]))},
    "ViT (timm)": {"pretrained_cfg": {"label_names": ["crane", "dog", "crane"]}},
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_class_name_gets_the_number_of_its_class(name, tmp_path):
    save_peer(name, tmp_path, **REPEATED[name])
    answer = from_public(str(tmp_path)).predict({"image": np.zeros((24, 24, 3), np.uint8)})
    assert list(answer["probabilities"])[:3] == ["crane", "dog", "crane 2"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a", "a"], ["a", "b", "a 2", "a 3"]),
        (["a 2", "a", "a"], ["a 2", "a", "a 2 2"]),
    ],
)
def test_names_of_classes_are_distinct(names, expected):
    assert hf.distinct_names(names) == expected


def test_an_unknown_interpolation_of_timm_is_refused(tmp_path):
    save_peer("ViT (timm)", tmp_path, pretrained_cfg={"interpolation": "lanczos"})
    message = "dxn supports only the interpolations bilinear and bicubic, got 'lanczos'"
    assert_refused(tmp_path, f"{tmp_path}: {message}")


def vit_state(**options):
    sizes = {"img_size": 40, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2}
    return timm.models.VisionTransformer(**{**sizes, **options}).state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": (8, 4)}, "dxn supports only square patches, got 8 by 4 pixels"),
        (
            {"img_size": (24, 32)},
            "cannot determine the grid of patches: the number of position embeddings (13) with or "
            "without the 1 leading tokens (12) must be a square number, got neither",
        ),
        (
            # 3 by 3 patches, or 2 by 2 and five leading tokens.
            {"img_size": 24, "reg_tokens": 4, "no_embed_class": True},
            "cannot determine the grid of patches: the number of position embeddings (9) with or "
            "without the 5 leading tokens (4) must be a square number, got both",
        ),
    ],
)
def test_a_vit_whose_patches_form_no_square_is_refused(options, message, tmp_path):
    save_file(vit_state(**options), tmp_path / "model.safetensors")
    assert_refused(tmp_path, f"{tmp_path}: {message}")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_images_of_transformers_that_are_not_square_are_refused(kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**SIZES.hf, image_size=(24, 40), patch_size=8)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="a grid of 15 patches, which is not a square"):
        read_public(str(tmp_path))


# What cannot be read off any tensor


NAMES = [
    "vit_tiny_patch16_224",
    "vit_base_patch16_gap_224",
    "vit_base_patch32_siglip_gap_256",
    "vit_base_patch16_siglip_224",
    "vit_base_patch32_siglip_256",
    "test_vit",
    "test_vit2",
    "deit3_huge_patch14_224",
    "vit_so400m_patch14_siglip_gap_224",
]
LARGE_NAMES = [
    "vit_huge_patch14_224",
    "vit_giant_patch14_224",
    "vit_giant_patch14_dinov2",
    "vit_gigantic_patch14_224",
    "vit_so400m_patch16_siglip_gap_256",
    "vit_giantopt_patch16_siglip_gap_256",
    "vit_large_patch16_siglip_gap_256",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip_512",
    "vit_large_patch16_siglip_512",
    "vit_giantopt_patch16_siglip_384",
]


@pytest.mark.parametrize("name", exhaustive_except([*NAMES, *LARGE_NAMES], *NAMES))
def test_heads_and_activation_are_those_that_timm_builds(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    # The layer scale is the only value that is read.
    state = {
        key: torch.ones(tensor.shape) if "gamma" in key else tensor
        for key, tensor in model.state_dict().items()
    }
    backbone = VIT.architecture(Checkpoint(name, state, {"architecture": name})).backbone
    block = model.blocks[0]
    kinds = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "swiglu"}
    assert backbone["num_heads"] == block.attn.num_heads
    assert backbone["block"]["mlp"] == kinds[type(block.mlp.act).__name__]
    assert backbone["norm"]["eps"] == block.norm1.eps
    assert backbone["depth"] == len(model.blocks)


def test_settings_that_gpt2_leaves_out_of_config_json_are_the_librarys_defaults(tmp_path):
    save_peer("GPT-2", tmp_path, activation_function=None)
    backbone = read_public(str(tmp_path)).architecture.backbone
    assert backbone["block"]["mlp"] == "gelu_tanh"


def test_settings_that_clip_leaves_out_of_config_json_are_the_librarys_defaults(tmp_path):
    state = {
        "text_model.embeddings.token_embedding.weight": torch.zeros(5, 512),
        "text_model.embeddings.position_embedding.weight": torch.zeros(7, 512),
    }
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"model_type": "clip", "text_config": {"num_hidden_layers": 3}}'
    )
    architecture = read_public(str(tmp_path)).architecture
    backbone = architecture.backbone
    expected = transformers.CLIPTextConfig()
    assert architecture.dim == expected.hidden_size
    assert backbone["depth"] == 3
    assert backbone["num_heads"] == expected.num_attention_heads
    assert backbone["block"]["hidden_dim"] == expected.intermediate_size
    assert backbone["block"]["mlp"] == expected.hidden_act
    assert backbone["norm"]["eps"] == expected.layer_norm_eps


@pytest.mark.parametrize(
    ("tower", "part"),
    [("CLIPVisionModelWithProjection", "image"), ("CLIPTextModelWithProjection", "text")],
)
def test_a_single_tower_of_clip_needs_no_part(tower, part, tmp_path):
    key = "vision_config" if part == "image" else "text_config"
    config = getattr(cases.clip_config(SIZES), key)
    peer = cases.randomize(getattr(transformers, tower)(config))
    peer.save_pretrained(tmp_path)
    cases.save_tokenizer(tmp_path)
    public = read_public(str(tmp_path))
    model = model_of(public).eval()
    result = public.fill(model)
    assert list(public.architecture.adapters) == [part]
    assert not result.missing
    assert not result.unexpected
    case = cases.hf_case("tower", tower, lambda sizes: config, "", part)
    batch, peer_batch = parity.inputs(parity.Pair(case, peer, model, public), SIZES, torch.float32)
    with torch.inference_mode():
        if part == "image":
            expected = peer(pixel_values=peer_batch["pixels"]).image_embeds
        else:
            expected = peer(peer_batch["ids"], peer_batch["mask"].long()).text_embeds
        torch.testing.assert_close(model(batch), expected, atol=1e-5, rtol=0)
