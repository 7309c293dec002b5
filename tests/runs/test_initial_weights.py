"""Trainings that start from public weights: what is loaded, and what the weights decide."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.checkpoints import words_of_bert
from helpers.peers import CASES, cases
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

import dxn
from dxn.cli import main
from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build
from dxn.config.values import leaves
from dxn.core.errors import UserError
from dxn.runs.build import build_model
from dxn.runs.filling import InitialWeights
from dxn.runs.weights import read_initial_weights, with_weights
from dxn.tasks import Classify
from dxn.weights import FAMILIES, Checkpoint, PublicModel

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


timm, transformers = cases.timm, cases.transformers
SIZES = cases.Sizes(dim=22, depth=2, heads=2, batch=3, side=24, length=11)
NAMES = [
    "ant",
    "bee",
    "cat",
    "dog",
    "eel",
    "fox",
    "gnu",
]  # as many as a benchmark's head has, sorted
FAST = [
    "trainer.epochs=1",
    "batch_size=7",
    "trainer.precision=float32",
    "trainer.device=cpu",
    "debug=null",
]
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0"]  # a training that changes nothing
MEAN, STD = [0.11, 0.23, 0.37], [0.41, 0.53, 0.67]


def checkpoint(folder, name, *, sizes=SIZES, **config):
    """The peer of this name and its folder; config: what is changed in its config.json."""
    torch.manual_seed(1)
    folder.mkdir()
    case = CASES[name]
    theirs = cases.randomize(case.make(sizes))
    cases.save(case, theirs, folder, heads=sizes.heads)
    if case.modality == "text":
        words_of_bert().save(str(folder / "tokenizer.json"))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return theirs


def ids2labels(names):
    return {"id2label": {str(i): name for i, name in enumerate(names)}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """ViT, BERT and CLIP by name: (folder, peer); tables for them."""
    folder = tmp_path_factory.mktemp("public")
    peers = {
        "vit": checkpoint(folder / "vit", "ViT (transformers)", **ids2labels(NAMES)),
        "timm": checkpoint(folder / "timm", "ViT (timm)", label_names=NAMES),
        "bert": checkpoint(folder / "bert", "BERT", **ids2labels(NAMES)),
        "clip": checkpoint(folder / "clip", "CLIP, image"),
        "gpt2": checkpoint(folder / "gpt2", "GPT-2"),
        "wide": checkpoint(folder / "wide", "BERT", sizes=cases.Sizes(dim=26, depth=2, heads=2)),
    }
    shot = {
        "image_mean": MEAN,
        "image_std": STD,
        "resample": 3,
        "do_normalize": True,
        "do_resize": True,
    }
    (folder / "vit" / "preprocessor_config.json").write_text(
        json.dumps({**shot, "size": {"height": 24, "width": 24}})
    )
    tables(folder)
    return folder, peers


def tables(folder):
    """data.csv: 21 rows of text, image and label; other.csv with other labels."""
    random, rows = np.random.default_rng(0), []
    for i in range(21):
        Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(
            folder / f"{i}.png"
        )
        words = " ".join(f"w{n}" for n in random.integers(4, cases.VOCAB, 1 + i % 5))
        rows.append(
            {
                "text": words,
                "image": f"{i}.png",
                "label": NAMES[i % 7],
                "split": ("train", "validation", "test")[i // 7],
            }
        )
    write(folder / "data.csv", rows)
    write(folder / "other.csv", [{**row, "label": f"{row['label']}s"} for row in rows])
    write(folder / "images.csv", [{"image": row["image"]} for row in rows[:3]])


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def arguments(folder, run, *asked, adapters="image", data="data.csv"):
    table = [
        "data=table",
        f"data.path={folder / data}",
        "data.target=label",
        f"adapters=[{adapters}]",
    ]
    return ["train", *table, *FAST, *asked, f"run={run}"]


def train(folder, run, *asked, **rest):
    assert main(arguments(folder, run, *asked, **rest)) == 0
    return load_file(run / "model" / "model.safetensors")


def refused(arguments, capsys):
    assert main(arguments) == 2
    found = capsys.readouterr().err
    assert "Traceback" not in found
    return found.splitlines()


def public_state(folder, **rest):
    return dxn.from_public(str(folder), **rest).model.state_dict()


def same(found, expected, names):
    assert names
    for name in names:
        assert torch.equal(found[name], expected[name]), name


# What is loaded


@pytest.mark.parametrize("name", ["vit", "timm", "bert"])
def test_a_run_starts_from_the_weights_of_the_checkpoint(made, tmp_path, name):
    folder, _ = made
    modality = "text" if name == "bert" else "image"
    run = train(
        folder,
        tmp_path / "run",
        f"weights={folder / name}",
        *STILL,
        "finetune.freeze=all",
        adapters=modality,
    )
    expected = public_state(folder / name)
    assert run.keys() == expected.keys()
    same(run, expected, [n for n in run if not n.startswith("head.")])
    for part in ("weight", "bias"):  # the labels are the same: the head was kept
        torch.testing.assert_close(
            run[f"head.out.{part}"], expected[f"head.out.{part}"], rtol=0, atol=1e-20
        )


def test_a_trained_model_works_without_the_checkpoint(made, tmp_path):
    folder, theirs = made
    shutil.copytree(folder / "bert", tmp_path / "bert")
    train(folder, tmp_path / "run", f"weights={tmp_path / 'bert'}", *STILL, adapters="text")
    shutil.rmtree(tmp_path / "bert")
    found = dxn.load(tmp_path / "run").predict(text="w5 w7 w11")["probabilities"]
    with torch.inference_mode():
        logits = theirs["bert"](torch.tensor([[1, 5, 7, 11, 2]])).logits[0]
    assert list(found.values()) == pytest.approx(logits.softmax(0).tolist(), abs=1e-5)


def test_the_adapter_uses_the_preprocessing_of_the_checkpoint(made, tmp_path):
    folder, _ = made
    train(folder, tmp_path / "run", f"weights={folder / 'vit'}")
    adapter = dxn.load(tmp_path / "run").model.adapters["image"]
    assert adapter.mean.flatten().tolist() == pytest.approx(MEAN)
    assert adapter.std.flatten().tolist() == pytest.approx(STD)
    config = yaml.safe_load((tmp_path / "run" / "model" / "config.yaml").read_text())
    node = config["adapters"]["image"]
    assert (node["image_size"], node["resize"]["mode"]) == (24, "stretch")
    assert node["resize"]["interpolation"] == "bicubic"


def test_a_head_for_other_names_is_replaced_with_a_notice(made, tmp_path, capsys):
    folder, _ = made
    run = train(folder, tmp_path / "run", f"weights={folder / 'vit'}", *STILL, data="other.csv")
    notice = "weights: the head for 7 classes is replaced by a new one for the targets"
    assert capsys.readouterr().out.splitlines().count(notice) == 1
    expected = public_state(folder / "vit")
    same(run, expected, [n for n in run if not n.startswith("head.")])
    assert not torch.allclose(run["head.out.weight"], expected["head.out.weight"], atol=0.1)
    assert dxn.load(tmp_path / "run").labels == tuple(f"{name}s" for name in NAMES)
    train(folder, tmp_path / "kept", f"weights={folder / 'vit'}", *STILL)
    assert notice not in capsys.readouterr().out


def test_a_head_in_another_order_is_replaced(made, tmp_path, capsys):
    folder, _ = made
    shutil.copytree(folder / "vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    (tmp_path / "vit" / "config.json").write_text(json.dumps({**config, **ids2labels(NAMES[::-1])}))
    train(folder, tmp_path / "run", f"weights={tmp_path / 'vit'}", *STILL)
    assert "the head for 7 classes is replaced" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pool", "registers"), [("attention", 0), ("mean", 0)], ids=["another pool", "no class token"]
)
def test_another_pool_is_new_and_the_rest_is_loaded(made, tmp_path, pool, registers):
    folder, _ = made
    asked = [f"fusion.pool={pool}", "adapters.image.image_size=32", "finetune.freeze=all"]
    run = train(folder, tmp_path / "run", f"weights={folder / 'vit'}", *asked)
    expected = public_state(folder / "vit")
    assert run["adapters.image.pos_embed.weight"].shape == (4, 4, 22)  # the checkpoint's is 3 by 3
    assert "fusion.pool.tokens" not in run
    same(run, expected, [n for n in run if n.startswith(("backbone.", "adapters.image.proj"))])


def test_the_layer_before_a_replaced_classifier_is_kept(made, tmp_path):
    folder, theirs = made
    run = train(
        folder,
        tmp_path / "run",
        f"weights={folder / 'bert'}",
        *STILL,
        adapters="text",
        data="other.csv",
    )
    pooler = theirs["bert"].bert.pooler.dense
    torch.testing.assert_close(
        run["head.pre.dense.weight"], pooler.weight.detach(), rtol=0, atol=1e-20
    )
    assert not torch.allclose(run["head.out.weight"], theirs["bert"].classifier.weight, atol=0.1)


def test_a_projection_of_another_width_makes_no_random_layer(made, tmp_path):
    folder, _ = made
    run = train(
        folder, tmp_path / "run", f"weights={folder / 'clip'}", "weights.part=image", *STILL
    )
    assert [name for name in run if name.startswith("head.")] == [
        "head.out.bias",
        "head.out.weight",
    ]


# What the user decides


def composed(*asked):
    """The configuration with what its weights decide, as a training makes it."""
    settings = compose(Train, ["data=table", "data.path=any", *asked])
    return with_weights(settings, read_initial_weights(settings))


def test_options_that_the_weights_do_not_decide_stay_free(made):
    folder, _ = made
    own = {
        "fusion.pool": "mean",
        "backbone.dropout": 0.3,
        "backbone.drop_path": 0.2,
        "backbone.activation_checkpointing": True,
        "head.dropout": 0.4,
        "adapters.image.image_size": 32,
        "adapters.image.resize.interpolation": "bilinear",
        "adapters.image.augment.flip": True,
        "adapters.image.augment.token_dropout": 0.1,
    }
    c = composed(
        f"weights={folder / 'vit'}", "adapters=[image]", *(f"{k}={v}" for k, v in own.items())
    )
    found = {key: select(c, key) for key in own}
    assert found == own
    assert (c["dim"], c["backbone"]["dim"], c["backbone"]["depth"]) == (22, 22, 2)
    assert c["adapters"]["image"]["normalize"]["mean"] == MEAN


def select(node, path):
    for key in path.split("."):
        node = node[key]
    return node


def test_a_default_that_the_user_names_is_kept(made):
    folder, _ = made
    asked = [f"weights={folder / 'vit'}", "adapters=[image]"]
    assert composed(*asked)["adapters"]["image"]["image_size"] == 24
    assert (
        composed(*asked, "adapters.image.image_size=224")["adapters"]["image"]["image_size"] == 224
    )


def test_options_that_the_weights_decide_are_refused_one_line_each(made, tmp_path, capsys):
    folder, _ = made
    asked = ["backbone.depth=4", "adapters.image.patch_size=16", "dim=24", "backbone.num_heads=2"]
    found = refused(
        arguments(folder, tmp_path / "run", f"weights={folder / 'vit'}", *asked), capsys
    )
    assert found == [
        "dxn: dim: the weights have 22, got 24; leave it out",
        "dxn: adapters.image.patch_size: the weights have 8, got 16; leave it out",
        "dxn: backbone.depth: the weights have 2, got 4; leave it out",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("backbone.norm.kind=rms", "backbone.norm.kind: the weights have layer, got rms"),
        (
            "backbone.norm.place=post",
            "backbone.norm.place: the weights have pre, got post",
        ),
        ("backbone.block.bias=false", "backbone.block.bias: the weights have True, got False"),
        (
            "backbone.position.kind=rotary",
            "backbone.position.kind: the weights have none, got rotary",
        ),
        ("backbone.causal=true", "backbone.causal: the weights have False, got True"),
        (
            "backbone.position.windows=[3]",
            "backbone.position.windows: the weights have [], got [3]",
        ),
        (
            "adapters.image.pos_embed=none",
            "adapters.image.pos_embed: the weights have learned, got none",
        ),
    ],
)
def test_no_option_silently_changes_the_function_of_the_weights(made, asked, said):
    folder, _ = made
    with pytest.raises(UserError, match=re.escape(f"{said}; leave it out")):
        composed(f"weights={folder / 'vit'}", "adapters=[image]", asked)


# Several checkpoints


def test_each_adapter_can_have_its_own_weights(made, tmp_path):
    folder, _ = made
    asked = [f"weights.adapters.image={folder / 'vit'}", f"weights.adapters.text={folder / 'bert'}"]
    small = ["backbone.depth=1", "backbone.num_heads=2", "finetune.freeze=all"]
    run = train(folder, tmp_path / "run", *asked, *small, adapters="text,image")
    for modality, name in (("image", "vit"), ("text", "bert")):
        same(
            run,
            public_state(folder / name),
            [n for n in run if n.startswith(f"adapters.{modality}.")],
        )
    model = dxn.load(tmp_path / "run").model
    assert len(model.backbone.blocks) == 1
    assert model.adapters["text"].tokenizer.vocabulary.token_to_id("w97") == 97


def test_the_weights_of_one_adapter_precede_those_of_the_whole_model(made, tmp_path):
    folder, _ = made
    asked = [
        f"weights={folder / 'vit'}",
        f"weights.adapters.text={folder / 'bert'}",
        "finetune.freeze=all",
    ]
    run = train(folder, tmp_path / "run", *asked, adapters="text,image")
    vit, bert = public_state(folder / "vit"), public_state(folder / "bert")
    same(
        run, vit, [n for n in run if n.startswith(("adapters.image.", "backbone.", "fusion.pool"))]
    )
    same(run, bert, [n for n in run if n.startswith("adapters.text.")])
    assert "fusion.input_embedding.weight" in run  # no checkpoint has it: it is new


def test_two_widths_are_an_error_that_names_both(made, tmp_path, capsys):
    folder, _ = made
    asked = [f"weights={folder / 'vit'}", f"weights.adapters.text={folder / 'wide'}"]
    found = refused(arguments(folder, tmp_path / "run", *asked, adapters="text,image"), capsys)
    assert found == [
        "dxn: weights: all checkpoints must have the same dim, "
        f"got 22 ({folder / 'vit'}), 26 ({folder / 'wide'})"
    ]


@pytest.mark.parametrize(
    ("asked", "adapters", "said"),
    [
        (
            "weights.adapters.image={}/bert",
            "image",
            "weights.adapters.image: {}/bert has weights only for the modality text",
        ),
        (
            "weights.adapters.text={}/bert",
            "image",
            "weights.adapters.text: the adapter text is not used; add it to adapters=[...]",
        ),
        ("weights={}/bert", "image", "adapters: the weights are for text, got image"),
    ],
)
def test_weights_for_a_modality_without_an_adapter_are_refused(
    made, tmp_path, capsys, asked, adapters, said
):
    folder, _ = made
    found = refused(
        arguments(folder, tmp_path / "run", asked.format(folder), adapters=adapters), capsys
    )
    assert found == [f"dxn: {said.format(folder)}"]
    assert not (tmp_path / "run").exists()


# Backbones by name


def timm_named(name):
    model = timm.create_model(name)
    settings = {k: v for k, v in model.pretrained_cfg.items() if v is not None}
    config = {
        "architecture": name,
        "global_pool": getattr(model, "global_pool", "token"),
        "pretrained_cfg": settings,
    }
    return model, config


def hf_named(cls, config, **options):
    config = getattr(transformers, config)(**options)
    model = getattr(transformers, cls)(config)
    return model, json.loads(config.to_json_string(use_diff=False))


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CROPPED = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
}
DINO = {**IMAGENET, **CROPPED, "resample": 3}
SMALL_DINO = {"hidden_size": 384, "num_attention_heads": 6}
LARGE_DINO = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}


def whisper(dim, depth):
    sizes = {
        "encoder_layers": depth,
        "encoder_attention_heads": dim // 64,
        "encoder_ffn_dim": 4 * dim,
    }
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 1}
    return lambda: hf_named("WhisperModel", "WhisperConfig", d_model=dim, **sizes)


def clip():
    return hf_named("CLIPModel", "CLIPConfig")


PEERS = {
    **{
        name: lambda name=name: timm_named(name)
        for name in (
            *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
            "deit_base_distilled_patch16_224",
        )
    },
    "dinov2_small": lambda: hf_named("Dinov2Model", "Dinov2Config", **SMALL_DINO),
    "dinov2_base": lambda: hf_named("Dinov2Model", "Dinov2Config"),
    "dinov2_large": lambda: hf_named("Dinov2Model", "Dinov2Config", **LARGE_DINO),
    "bert_base": lambda: hf_named("BertModel", "BertConfig"),
    "roberta_base": lambda: hf_named(
        "RobertaModel",
        "RobertaConfig",
        vocab_size=50265,
        max_position_embeddings=514,
        layer_norm_eps=1e-5,
    ),
    "distilbert_base": lambda: hf_named("DistilBertForSequenceClassification", "DistilBertConfig"),
    "modernbert_base": lambda: hf_named("ModernBertForSequenceClassification", "ModernBertConfig"),
    "gpt2": lambda: hf_named("GPT2Model", "GPT2Config"),
    "ast_base": lambda: hf_named("ASTForAudioClassification", "ASTConfig"),
    "whisper_tiny": whisper(384, 4),
    "whisper_base": whisper(512, 6),
    "whisper_small": whisper(768, 12),
    "clip_vit_base_patch32": clip,
    "clip_text_base": clip,
}
OWN = {"gru", "nano", "tiny", "small", "base"}


def test_every_backbone_is_compared_with_a_peer():
    folder = Path(dxn.__file__).parent / "conf" / "backbone"
    assert {path.stem for path in folder.glob("*.yaml")} == OWN | set(PEERS)


# Models of other sizes than those of the same family.
OTHER_SIZES = [name for name in PEERS if name.endswith(("_large", "_small", "whisper_base"))]
OTHER_SIZES += ["vit_large_patch16_224", "vit_small_patch16_224"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in OTHER_SIZES else [])
        for name in PEERS
    ],
)
def test_a_named_backbone_is_what_its_checkpoint_needs(name):
    with torch.device("meta"):
        peer, config = PEERS[name]()
    shot = DINO if name.startswith("dinov2") else {}
    tensors = peer.state_dict()
    if isinstance(peer, transformers.PreTrainedModel):  # under the names that files have
        tensors = transformers.core_model_loading.revert_weight_conversion(peer, tensors)
    checkpoint = Checkpoint(name, tensors, config=config, preprocessor=shot)
    known = [family for family in FAMILIES if family.matches(checkpoint)]
    if len(known) > 1:
        known = [family for family in known if (family.part == "image") == ("vit" in name)]
    (family,) = known
    architecture = family.architecture(checkpoint)
    public = PublicModel(
        checkpoint, family, architecture, family.tensor_map(checkpoint, architecture)
    )
    ((modality, options),) = architecture.adapters.items()
    named = ["data=table", "data.path=any", f"backbone={name}", f"adapters=[{modality}]"]
    settings = compose(Train, named)
    c = settings.values
    filled = with_weights(settings, InitialWeights(main=public))  # no conflict
    assert c["dim"] == architecture.dim
    for group, expected in (("backbone", architecture.backbone), ("fusion", architecture.fusion)):
        for key in leaves(expected):
            assert select(c[group], key) == select(expected, key), f"{group}.{key}"
    node = c["adapters"][modality]
    for key in leaves(options):
        # null is computed from the sample rate; other values must be the checkpoint's.
        value = find(node, key)
        assert value is None or close(value, select(options, key)), key
    for group in ("backbone", "fusion", "head"):
        assert filled[group] == c[group]
    assert public.fill(small_model(filled, public)).missing == []  # unexpected tensors would raise


def find(node, path):
    """A nested value, None where a level is missing."""
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def close(a, b):
    if isinstance(a, list) and not isinstance(b, list):
        return all(close(item, b) for item in a)  # one size stands for equal sides
    return math.isclose(a, b, rel_tol=1e-5) if isinstance(a, float) else a == b


def small_model(c, public):
    """The model of a configuration with its first block, and a vocabulary of seven words."""
    (modality,) = public.architecture.adapters
    adapter = build(c["adapters"][modality], key="adapters")
    if adapter.has_vocabulary:
        vocabulary = {str(i): i for i in range(7)}
        adapter.use_vocabulary(Tokenizer(models.WordLevel(vocabulary, unk_token="0")))
    task = Classify()
    task.target.fit(["a", "b", "c"])
    plan = public.plan()
    plan = plan.model_copy(
        update={"fusion": c["fusion"], "backbone": {**c["backbone"], "depth": 1}}
    )
    return build_model(plan, task, {modality: adapter}).to("meta")
