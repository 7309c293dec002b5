"""Fine-tuning from the command line, and public checkpoints in use without any training."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from helpers.peers import CASES, cases
from helpers.runs import checkpoint_of, interrupt, refused, weights_of
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import dxn
from dxn.cli import main
from dxn.runs.saved import model_folder
from dxn.training.finetune import Finetune, LowRank
from dxn.weights import read_public
from dxn.weights.image_processor import CLIP

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


SIZES = cases.Sizes(dim=22, depth=3, heads=2, batch=3, side=24)
NAMES = [
    "ant",
    "bee",
    "cat",
    "dog",
    "eel",
    "fox",
    "gnu",
]  # as many as a benchmark's head has, sorted
FAST = ["trainer.epochs=1", "batch_size=3", "trainer.precision=float32", "trainer.device=cpu"]


def checkpoint(folder, name, *, end=2):
    """Save the peer of this name with class names, and a tokenizer whose texts end with `end`."""
    torch.manual_seed(1)
    folder.mkdir()
    theirs = cases.randomize(CASES[name].make(SIZES))
    cases.save(CASES[name], theirs, folder, heads=SIZES.heads)
    tokenizer = Tokenizer(
        models.WordLevel({f"w{i}": i for i in range(cases.VOCAB)}, unk_token="w4")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    around = {"special_tokens": [("w1", 1), (f"w{end}", end)]}
    tokenizer.post_processor = processors.TemplateProcessing(f"w1 $A w{end}", **around)
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "id2label": dict(enumerate(NAMES))})
    )
    return theirs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoints and their peers by name, and tables of 14 rows for them."""
    folder = tmp_path_factory.mktemp("public")
    peers = {
        "vit": checkpoint(folder / "vit", "ViT (transformers)"),
        "bert": checkpoint(folder / "bert", "BERT"),
        "gpt2": checkpoint(folder / "gpt2", "GPT-2"),
        "clip": checkpoint(folder / "clip", "CLIP, image", end=3),
    }
    random, rows = np.random.default_rng(0), []
    for i in range(14):
        Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(
            folder / f"{i}.png"
        )
        words = " ".join(f"w{n}" for n in random.integers(4, cases.VOCAB, 1 + i % 5))
        split = "train" if i < 7 else "test"
        rows.append({"text": words, "image": f"{i}.png", "label": NAMES[i % 7], "split": split})
    write(folder / "data.csv", rows)
    write(folder / "other.csv", [{**row, "label": f"{row['label']}s"} for row in rows])
    write(
        folder / "half.csv",
        [{**row, "label": "ant" if i % 2 else "yak"} for i, row in enumerate(rows)],
    )
    write(folder / "texts.csv", [{"text": row["text"]} for row in rows[:5]])
    write(folder / "images.csv", [{"image": row["image"]} for row in rows[:3]])
    return folder, peers


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def table(folder, name="data.csv"):
    return ["data=table", f"data.path={folder / name}", "data.target=label"]


def arguments(folder, run, *asked, adapters="image"):
    return ["train", *table(folder), *FAST, f"adapters=[{adapters}]", *asked, f"run={run}"]


def train(folder, run, *asked, **rest):
    assert main(arguments(folder, run, *asked, **rest)) == 0
    return weights_of(run)


def changed(run, before):
    """Names of the tensors that are not bit for bit as they were."""
    assert run.keys() == before.keys()
    return {name for name in run if not torch.equal(run[name], before[name])}


def of(state, *starts):
    found = {name for name in state if name.startswith(starts)}
    assert found
    return found


def public_state(folder):
    return dxn.from_public(str(folder)).model.state_dict()


def pixels(folder, i):
    """Picture i as both ViT and ours see it: as large as it is, from -1 to 1."""
    array = np.array(Image.open(folder / f"{i}.png"))
    return (torch.from_numpy(array).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5


# What is frozen


@pytest.mark.parametrize("freeze", [None, 0, 2, "all"])
def test_frozen_weights_stay_and_all_others_are_trained(made, tmp_path, freeze):
    folder, _ = made
    asked = [] if freeze is None else [f"finetune.freeze={freeze}"]
    run = train(folder, tmp_path / "run", f"weights={folder / 'vit'}", *asked)
    frozen = {
        None: (),
        0: ("adapters.",),
        2: ("adapters.", "backbone.blocks.0.", "backbone.blocks.1."),
        "all": ("adapters.", "backbone.", "fusion."),
    }[freeze]
    # The mask embedding is used by masked training only.
    unused = ("adapters.image.mean", "adapters.image.std", "adapters.image.mask_embedding")
    kept = of(run, *unused, *frozen)
    assert changed(run, public_state(folder / "vit")) == run.keys() - kept


def test_new_weights_are_trained_although_all_are_frozen(made, tmp_path):
    folder, _ = made
    asked = [f"weights={folder / 'vit'}", "adapters.text.vocab_size=300", "finetune.freeze=all"]
    train(folder, tmp_path / "still", *asked, "optimizer.lr=0", adapters="text,image")
    before = weights_of(tmp_path / "still")
    run = train(folder, tmp_path / "run", *asked, adapters="text,image")
    anew = of(
        run, "adapters.text.embedding", "adapters.text.pos_embed", "fusion.input_embedding", "head."
    )
    assert changed(run, before) == anew


def test_without_loaded_weights_all_but_the_head_is_frozen(made, tmp_path):
    folder, _ = made
    small = ["dim=22", "backbone.depth=1", "backbone.num_heads=2", "adapters.image.image_size=24"]
    train(folder, tmp_path / "still", *small, "optimizer.lr=0")
    run = train(folder, tmp_path / "run", *small, "finetune.freeze=all")
    before = weights_of(tmp_path / "still")
    assert changed(run, before) == {"head.out.weight", "head.out.bias"}


def test_only_the_weights_of_one_adapter_can_be_frozen(made, tmp_path):
    folder, _ = made
    asked = [
        f"weights.adapters.image={folder / 'vit'}",
        "backbone.depth=1",
        "backbone.num_heads=2",
        "finetune.freeze=all",
    ]
    run = train(folder, tmp_path / "run", *asked)
    before = train(folder, tmp_path / "still", *asked, "optimizer.lr=0")
    assert changed(run, before) == run.keys() - of(run, "adapters.")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("finetune.freeze=4", "finetune.freeze: the backbone has 3 blocks, got 4"),
        ("finetune.freeze=-1", "finetune: freeze must be all, null or at least 0, got -1"),
        (
            "finetune.freeze=most",
            "finetune.freeze: must be one of all, got 'most'",
        ),
        ("finetune.lora_rank=-1", "finetune.lora_rank: must be at least 0, got -1"),
        (
            "finetune.lora_rank=2 finetune.lora_targets=[attn.qkv,attn.query]",
            "finetune.lora_targets: no name of a linear layer ends in 'attn.query'; "
            "the first linear layers of this model are adapters.image.proj, "
            "backbone.blocks.0.attn.qkv, backbone.blocks.0.attn.proj, backbone.blocks.0.mlp.up, "
            "backbone.blocks.0.mlp.down, backbone.blocks.1.attn.qkv",
        ),
    ],
)
def test_what_cannot_be_frozen_or_changed_is_refused(made, tmp_path, capsys, asked, said):
    folder, _ = made
    found = refused(
        capsys, arguments(folder, tmp_path / "run", f"weights={folder / 'vit'}", *asked.split())
    )
    assert found == [f"dxn: {said}"]
    assert not (tmp_path / "run").exists()


# Low-rank changes


def test_a_run_changes_its_targets_by_at_most_the_rank(made, tmp_path):
    folder, _ = made
    asked = [
        "finetune.freeze=all",
        "finetune.lora_rank=2",
        "finetune.lora_targets=[attn.qkv,mlp.down]",
    ]
    run = train(folder, tmp_path / "run", f"weights={folder / 'vit'}", *asked, "optimizer.lr=0.1")
    before = public_state(folder / "vit")
    targets = {
        f"backbone.blocks.{i}.{linear}.weight"
        for i in range(3)
        for linear in ("attn.qkv", "mlp.down")
    }
    assert changed(run, before) == {*targets, "head.out.weight", "head.out.bias"}
    for name in targets:
        values = torch.linalg.svdvals((run[name] - before[name]).double())
        assert values[1] > 1e-3 * values[0] and values[2] < 1e-5 * values[0]


def test_the_merged_folder_predicts_as_the_changed_model(made, tmp_path):
    folder, _ = made
    predictor, plan = (
        dxn.from_public(str(folder / "vit")),
        read_public(str(folder / "vit")).plan(),
    )
    model = predictor.model
    plain = set(model.state_dict())
    before = predictor.predict(image=folder / "0.png")["probabilities"]
    Finetune(lora_rank=3, lora_targets=("attn.qkv", "image.proj", "head.out"))(model, set())
    for module in model.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.up, std=0.3)
    live = predictor.predict(image=folder / "0.png")["probabilities"]
    folder_of_model = tmp_path / "model"
    model_folder.save(folder_of_model, model=model, plan=plan, task=predictor.task, card="")
    assert set(load_file(folder_of_model / "model.safetensors")) == plain
    found = dxn.load(tmp_path / "model").predict(image=folder / "0.png")["probabilities"]
    assert found == pytest.approx(live, abs=1e-6)
    assert found != pytest.approx(before, abs=1e-2)


def test_an_interrupted_run_of_low_rank_changes_resumes_bit_for_bit(made, tmp_path, monkeypatch):
    folder, _ = made
    asked = [
        f"weights={folder / 'vit'}",
        "finetune.freeze=1",
        "finetune.lora_rank=2",
        "trainer.epochs=2",
    ]
    asked += ["trainer.checkpoint_minutes=1e-9", "trainer.ema_decay=0.5", "backbone.dropout=0.1"]
    whole = train(folder, tmp_path / "whole", *asked)
    with interrupt(monkeypatch, step=3):
        assert main(arguments(folder, tmp_path / "cut", *asked)) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert not changed(weights_of(tmp_path / "cut"), whole)
    last = [checkpoint_of(tmp_path / name) for name in ("cut", "whole")]
    assert not changed(*last)


# Public checkpoints in use


def test_a_checkpoint_predicts_the_names_of_its_config(made, capsys):
    folder, theirs = made
    with torch.inference_mode():
        expected = theirs["vit"](pixel_values=pixels(folder, 5)).logits.softmax(-1)[0].tolist()
    found = dxn.from_public(str(folder / "vit")).predict(image=folder / "5.png")
    assert list(found["probabilities"]) == NAMES
    assert list(found["probabilities"].values()) == pytest.approx(expected, abs=1e-5)
    assert found["prediction"] == NAMES[int(np.argmax(expected))]
    assert main(["predict", f"weights={folder / 'vit'}", f"input.image={folder / '5.png'}"]) == 0
    assert capsys.readouterr().out.startswith(f"prediction: {found['prediction']}\n")


def test_embeddings_are_what_the_peers_pool(made):
    folder, theirs = made
    ids = torch.tensor([[1, 5, 7, 11, 2]])
    with torch.inference_mode():
        vit = theirs["vit"].vit(pixel_values=pixels(folder, 0)).last_hidden_state[:, 0]
        bert = theirs["bert"].bert(input_ids=ids).pooler_output
        gpt2 = theirs["gpt2"](input_ids=ids[:, 1:-1]).last_hidden_state[:, -1]
    found = dxn.from_public(str(folder / "vit")).embed(image=folder / "0.png")
    torch.testing.assert_close(found[None], vit, rtol=0, atol=1e-5)
    for name, expected in (("bert", bert), ("gpt2", gpt2)):
        found = dxn.from_public(str(folder / name)).embed(text="w5 w7 w11")
        torch.testing.assert_close(found[None], expected, rtol=0, atol=1e-5)


def test_each_tower_of_clip_embeds_its_modality(made, tmp_path, capsys):
    folder, theirs = made
    mean, std = (torch.tensor(v)[:, None, None] for v in CLIP.values())
    seen = ((pixels(folder, 2) * 0.5 + 0.5) - mean) / std
    with torch.inference_mode():
        image = cases._clip_image(theirs["clip"], {"pixels": seen})
        ids = torch.tensor([[1, 5, 7, 11, 3]])
        text = cases._clip_text(theirs["clip"], {"ids": ids, "mask": torch.ones_like(ids)})
    given = {"image": {"image": folder / "2.png"}, "text": {"text": "w5 w7 w11"}}
    for part, expected in (("image", image), ("text", text)):
        found = dxn.from_public(str(folder / "clip"), part=part).embed(**given[part])
        torch.testing.assert_close(found[None], expected, rtol=0, atol=1e-5)
    asked = [f"weights={folder / 'clip'}", "weights.part=text", "input.text=w5 w7 w11"]
    assert main(["embed", *asked, f"output={tmp_path / 'v.npy'}"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), text, atol=1e-5)
    found = refused(capsys, ["embed", f"weights={folder / 'clip'}", "input.text=w5"])
    assert len(found) == 1 and found[0].endswith("weights.part=image or weights.part=text")


def test_a_checkpoint_without_a_head_embeds_but_does_not_predict(made, tmp_path, capsys):
    folder, _ = made
    headless = (
        "dxn: this model cannot predict (its task is language); use dxn embed, or dxn generate for "
        "a language model, or train a head: dxn train weights=..."
    )
    weights = f"weights={folder / 'gpt2'}"
    assert refused(capsys, ["predict", weights, "input.text=w5"]) == [headless]
    assert refused(capsys, ["predict", weights, f"input={folder / 'data.csv'}"]) == [headless]
    out = tmp_path / "out"
    clip = [f"weights={folder / 'clip'}", "weights.part=text"]
    (line,) = refused(capsys, ["evaluate", *clip, *table(folder), f"output={out}"])
    assert "this checkpoint has no head to predict with" in line
    assert not out.exists()
    assert main(["embed", weights, "input.text=w5"]) == 0
    assert capsys.readouterr().out.startswith("embedding: 22 numbers")


def test_the_vectors_of_a_table_are_in_the_order_of_its_rows(made, tmp_path, capsys):
    folder, _ = made
    predictor = dxn.from_public(str(folder / "vit"))
    expected = torch.stack([predictor.embed(image=folder / f"{i}.png") for i in range(3)])
    asked = ["embed", f"weights={folder / 'vit'}", f"input={folder / 'images.csv'}", "batch_size=2"]
    for name in ("v.npy", "v.csv"):
        assert main([*asked, f"output={tmp_path / 'new' / name}"]) == 0
        assert f"{name} (3 rows; 22 numbers each)" in capsys.readouterr().out.replace("\n", "")
    array = np.load(tmp_path / "new" / "v.npy", allow_pickle=False)
    assert (array.dtype, array.shape) == (np.float32, (3, 22))
    torch.testing.assert_close(torch.from_numpy(array), expected, rtol=0, atol=1e-5)
    heading, *rows = csv.reader((tmp_path / "new" / "v.csv").read_text().splitlines())
    assert heading == ["file", "row", *(f"v{i}" for i in range(22))]
    assert [row[:2] for row in rows] == [["images.csv", str(i)] for i in (2, 3, 4)]
    numbers = [[float(v) for v in row[2:]] for row in rows]
    np.testing.assert_allclose(numbers, array, rtol=1e-5)


def test_a_trained_run_embeds_as_its_model_does(made, tmp_path):
    folder, _ = made
    train(folder, tmp_path / "run", f"weights={folder / 'bert'}", adapters="text")
    asked = [
        f"run={tmp_path / 'run'}",
        f"input={folder / 'texts.csv'}",
        f"output={tmp_path / 'v.npy'}",
    ]
    assert main(["embed", *asked]) == 0
    model = dxn.load(tmp_path / "run")
    with (folder / "texts.csv").open() as file:
        expected = [model.embed(text=row["text"]).tolist() for row in csv.DictReader(file)]
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "weights={0}/vit output={1}/v.txt",
            "output: must be a file that ends in .npy, .csv or .parquet, got {1}/v.txt",
        ),
        (
            "weights={0}/vit",
            "output: must be set for several samples, to a file that ends in .npy, .csv or "
            ".parquet",
        ),
        (
            "output={1}/v.npy",
            "run: set run=RUN to use a trained model, or weights=... to use a public checkpoint",
        ),
        (
            "weights={0}/vit run={0} output={1}/v.npy",
            "run: {0}: not a run folder, and no folder in it contains a trained model",
        ),
    ],
)
def test_embed_needs_an_output_file_and_one_model(made, tmp_path, capsys, asked, said):
    folder, _ = made
    given = asked.format(folder, tmp_path).split()
    found = refused(capsys, ["embed", *given, f"input={folder / 'images.csv'}"])
    assert found == [f"dxn: {said.format(folder, tmp_path)}"]


def test_a_checkpoint_is_evaluated_on_classes_it_knows(made, tmp_path):
    folder, theirs = made
    with torch.inference_mode():
        logits = torch.cat(
            [theirs["vit"](pixel_values=pixels(folder, i)).logits for i in range(7, 14)]
        )
    right = (logits.argmax(-1) == torch.arange(7)).float().mean()
    out = tmp_path / "out"
    assert main(["evaluate", f"weights={folder / 'vit'}", *table(folder), f"output={out}"]) == 0
    found = json.loads((out / "metrics.json").read_text())
    assert found["test/accuracy"] == pytest.approx(float(right))
    assert found["evaluated"] == 7
    rows = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    assert [row["prediction"] for row in rows] == [NAMES[i] for i in logits.argmax(-1)]


def test_classes_that_a_checkpoint_does_not_know_are_refused(capsys, made, tmp_path):
    folder, _ = made
    out = tmp_path / "out"
    asked = ["evaluate", f"weights={folder / 'vit'}", f"output={out}"]
    said = (
        f"dxn: data: all targets of test of {folder / 'other.csv'} are unknown to the model, which "
        "was trained with ant, bee, cat, dog, eel, got ants, bees, cats, dogs, eels; use the same "
        "names"
    )
    assert refused(capsys, [*asked, *table(folder, "other.csv")]) == [said]
    said = "dxn: data: a public checkpoint has no data of its own; set data=table data.path=..."
    assert refused(capsys, asked) == [said]
    assert not out.exists()
    assert main([*asked, *table(folder, "half.csv")]) == 0  # some of them it knows


# Bad checkpoints


def _truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def _without_a_tensor(folder):
    path = folder / "model.safetensors"
    save_file(
        {k: t for k, t in load_file(path).items() if not k.endswith("layernorm.weight")}, path
    )


def _of_no_family(folder):
    (folder / "config.json").unlink()


def _emptied(folder):
    (folder / "model.safetensors").unlink()


def _not_json(folder):
    (folder / "config.json").write_text("{")


def _gone(folder):
    shutil.rmtree(folder)


def _no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def _another_activation(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "mish"}))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("vit", _truncated, "damaged or truncated safetensors file"),
        (
            "vit",
            _without_a_tensor,
            "missing tensors (1): vit.layernorm.weight",
        ),
        ("vit", _of_no_family, "does not belong to a supported family"),
        ("vit", _emptied, ""),
        ("vit", _not_json, "config.json"),
        ("vit", _gone, "file or folder not found"),
        ("vit", _another_activation, "dxn does not support the activation function 'mish'"),
        (
            "bert",
            _no_tokenizer,
            "no tokenizer in the folder of the weights; add tokenizer.json, vocab.txt, or",
        ),
    ],
)
def test_a_bad_checkpoint_gives_one_sentence_and_writes_nothing(
    made, tmp_path, capsys, name, damage, said
):
    folder, _ = made
    bad = tmp_path / "bad"
    shutil.copytree(folder / name, bad)
    damage(bad)
    modality = "text" if name == "bert" else "image"
    found = refused(
        capsys, arguments(folder, tmp_path / "run", f"weights={bad}", adapters=modality)
    )
    assert len(found) == 1 and found[0].startswith("dxn: weights: ")
    assert str(bad) in found[0] and said in found[0]
    assert not (tmp_path / "run").exists()
    assert refused(capsys, ["predict", f"weights={bad}", f"input={folder / 'images.csv'}"]) == found


def test_a_missing_tensor_can_be_initialized_at_random(made, tmp_path, capsys):
    folder, _ = made
    bad = tmp_path / "bad"
    shutil.copytree(folder / "vit", bad)
    _without_a_tensor(bad)
    train(folder, tmp_path / "run", f"weights={bad}", "weights.strict=false", "finetune.freeze=all")
    notice = f"weights: {bad} has no backbone.norm.weight: initialized randomly"
    assert notice in capsys.readouterr().out.splitlines()
