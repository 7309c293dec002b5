"""preset=auto: options that are chosen from the data."""

import json
import math

import numpy as np
import pytest
import soundfile
import torch
import yaml
from helpers.checkpoints import save_peer
from helpers.data import write_table
from helpers.runs import SMALL, table_of
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.cli import main
from dxn.presets.finetuning import LR, Start, advise_finetuning
from dxn.presets.preset import RULES, _training_advice, is_chosen
from dxn.presets.rules import Facts
from dxn.tasks.space import AnswerKind
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter

# The preset does not depend on the baseline.
SHORT = [*SMALL, "trainer.max_minutes=0.001", "baseline=none"]


def advised(adapter, cells, *, rows=1000, num_inputs=1, **known):
    facts = Facts(rows, num_inputs, num_inputs, "adapters.x", **known)
    return {each.key: each.value for each in RULES[adapter.modality](cells, facts)}


def saved(folder):
    return yaml.safe_load((folder / ".hydra" / "config.yaml").read_text())


def train_texts(tmp_path, *options):
    (tmp_path / "table.csv").write_text(table_of(40))
    return main(["train", str(tmp_path / "table.csv"), f"run={tmp_path}/run", *SHORT, *options])


def test_options_that_the_user_does_not_set_are_chosen_from_the_data(tmp_path, capsys):
    assert train_texts(tmp_path) == 0
    config = saved(tmp_path / "run")
    assert config["adapters"]["text"]["tokenizer"]["kind"] == "word"
    assert config["trainer"]["ema_decay"] == 0.99
    assert "preset: trainer.epochs=100" in capsys.readouterr().out


def test_every_chosen_option_is_printed_with_its_reason(tmp_path, capsys):
    assert train_texts(tmp_path) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("preset: ")]
    assert any("(32 training rows)" in line for line in lines)
    assert all(line.endswith(")") for line in lines)


def test_an_option_of_the_user_wins_over_the_preset(tmp_path):
    options = ["adapters.text.tokenizer.kind=bpe", "trainer.epochs=3", "backbone={dropout: 0.25}"]
    assert train_texts(tmp_path, *options) == 0
    config = saved(tmp_path / "run")
    assert config["adapters"]["text"]["tokenizer"]["kind"] == "bpe"
    assert config["adapters"]["text"]["conv_kernel"] == 3
    assert config["trainer"]["epochs"] == 3
    assert config["backbone"]["dropout"] == 0.25


def test_the_batch_size_of_the_user_is_that_of_the_trainer(tmp_path):
    assert train_texts(tmp_path, "batch_size=7") == 0
    assert saved(tmp_path / "run")["trainer"]["batch_size"] == 7


def test_preset_plain_leaves_all_options_as_they_are(tmp_path, capsys):
    assert train_texts(tmp_path, "preset=plain") == 0
    config = saved(tmp_path / "run")
    assert config["adapters"]["text"]["tokenizer"]["kind"] == "bpe"
    assert config["trainer"]["epochs"] == 20
    assert "preset:" not in capsys.readouterr().out


def test_an_experiment_has_no_preset(tmp_path, capsys):
    assert main(["train", "experiment=small_table", f"data.path={_wine(tmp_path)}", *SHORT[-2:],
                 "data.target=label", f"run={tmp_path}/run"]) == 0  # fmt: skip
    assert saved(tmp_path / "run")["preset"] == "plain"
    assert "preset:" not in capsys.readouterr().out


def test_a_resumed_run_keeps_the_options_of_its_preset(tmp_path, capsys):
    assert train_texts(tmp_path, "trainer.epochs=1") == 0
    before = saved(tmp_path / "run")
    capsys.readouterr()
    assert main(["train", f"resume={tmp_path}/run", "trainer.epochs=2"]) == 0
    after = saved(tmp_path / "run")
    assert "preset:" not in capsys.readouterr().out
    assert after["adapters"] == before["adapters"]


def save_bert(folder):
    """A random BERT that knows the words w0 to w39."""
    torch.manual_seed(0)
    save_peer("BERT", folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def advised_for(**facts):
    about = {"rows": 5000, "parameters": 10**7, "writes": False, "has_backbone": True}
    start = Start(**{**about, "epochs_within_limit": 20.0, "minutes": 10.0, **facts})
    return {each.key: each.value for each in advise_finetuning(start)}


def test_published_weights_have_small_rates_and_few_epochs(tmp_path, capsys):
    save_bert(tmp_path / "bert")
    (tmp_path / "table.csv").write_text(table_of(40))
    options = [str(tmp_path / "table.csv"), f"weights={tmp_path}/bert", "baseline=none"]
    assert main(["train", *options, f"run={tmp_path}/run", "trainer.epochs=1"]) == 0
    config = saved(tmp_path / "run")
    assert config["optimizer"]["lr"] == LR < config["optimizer"]["new_lr"]
    assert config["optimizer"]["layer_decay"] < 1 and config["batch_size"] == 16
    assert config["finetune"]["freeze"] is None and not config["finetune"]["lora_rank"]
    assert "preset: optimizer.lr=5e-05" in capsys.readouterr().out
    # The rate of the user is the highest one.
    assert main(["train", *options, f"run={tmp_path}/own", "optimizer.lr=0.01",
                 "trainer.epochs=1"]) == 0  # fmt: skip
    assert saved(tmp_path / "own")["optimizer"]["new_lr"] is None


def test_the_measured_speed_decides_which_published_weights_are_trained():
    assert advised_for(epochs_within_limit=1.0)["optimizer.lr"] == LR
    slow = advised_for(epochs_within_limit=0.9)
    assert slow["finetune.freeze"] == "all"
    assert "optimizer.lr" not in slow and "finetune.lora_rank" not in slow
    # Nothing but low-rank updates can be trained in a model that writes.
    assert advised_for(epochs_within_limit=2.0, writes=True)["finetune.lora_rank"] == 16
    assert advised_for(parameters=10**9)["finetune.lora_rank"] == 16
    chosen = advised_for(epochs_within_limit=0.5, is_kind_chosen=True)
    assert not any(key.startswith("finetune") for key in chosen)
    assert advised_for(rows=100)["trainer.epochs"] > advised_for(rows=50_000)["trainer.epochs"]
    assert "trainer.max_minutes" not in advised_for(minutes=None)


def test_encoders_of_several_inputs_stay_as_they_are():
    assert advised_for(has_backbone=False, epochs_within_limit=100.0)["finetune.freeze"] == "all"
    chosen = advised_for(has_backbone=False, is_kind_chosen=True)
    assert chosen["optimizer.lr"] == LR


def test_weights_of_dxn_determine_the_options_instead_of_the_preset(tmp_path, capsys):
    assert train_texts(tmp_path) == 0
    capsys.readouterr()
    table, weights = f"{tmp_path}/table.csv", f"weights={tmp_path}/run"
    assert main(["train", table, weights, f"run={tmp_path}/next", *SHORT]) == 0
    assert "preset:" not in capsys.readouterr().out


def test_a_small_table_of_numbers_gets_a_small_model(tmp_path):
    assert main(["train", _wine(tmp_path), "target=label", f"run={tmp_path}/run", "dim=16",
                 "backbone.num_heads=2", *SHORT[-2:]]) == 0  # fmt: skip
    config = saved(tmp_path / "run")
    assert config["backbone"]["depth"] == 1
    assert config["loader"]["input_dropout"] == 0.3


def test_one_column_is_not_counted_in_the_plural(tmp_path, capsys):
    rows = "\n".join(f"{i % 7}.5,{'ab'[i % 2]}" for i in range(40))
    (tmp_path / "one.csv").write_text(f"size,label\n{rows}\n")
    options = ["target=label", f"run={tmp_path}/run", "dim=16", "backbone.num_heads=2", *SHORT[-2:]]
    assert main(["train", f"{tmp_path}/one.csv", *options]) == 0
    assert "training rows of 1 column" in (output := capsys.readouterr().out)
    assert "1 columns" not in output


def test_a_larger_table_of_numbers_hides_no_cells(tmp_path):
    assert main(["train", _wine(tmp_path, rows=1500), "target=label", f"run={tmp_path}/run",
                 "dim=16", "backbone.num_heads=2", *SHORT[-2:]]) == 0  # fmt: skip
    config = saved(tmp_path / "run")
    assert config["backbone"]["depth"] == 2
    assert config["loader"]["input_dropout"] == 0


def test_chosen_keys_include_what_is_below_and_above_them():
    chosen = frozenset({"adapters", "head", "backbone", "trainer.epochs", "optimizer.betas"})
    assert is_chosen("backbone.dropout", chosen)
    assert is_chosen("trainer.epochs", chosen)
    assert not is_chosen("adapters.text.dropout", chosen)
    assert not is_chosen("head.dropout", chosen)
    assert not is_chosen("trainer.mixup", chosen)
    assert is_chosen("fusion.pool", frozenset({"fusion.pool.kind"}))


@pytest.mark.parametrize("text", ["A short text of words", "これは空白のない文です", "ข้อความ"])
def test_texts_become_words(text):
    assert advised(TextAdapter(8), [text])["adapters.x.tokenizer.kind"] == "word"


def test_names_become_characters_unless_there_are_other_inputs():
    alone = advised(TextAdapter(8), ["Anna"])
    assert alone["adapters.x.tokenizer.kind"] == "character"
    assert advised(TextAdapter(8), ["Anna"], num_inputs=2) == {}


def test_codes_and_many_texts_keep_their_subwords():
    adapter = TextAdapter(8)
    assert advised(adapter, ["ACGTTAGCCATAGCATT CCATTAGACCATAACT"]) == {}
    assert advised(adapter, ["A text of some words"], rows=100_000) == {}


def test_the_patches_of_small_images_are_small():
    adapter = ImageAdapter(8)
    small = advised(adapter, [np.zeros((28, 28, 3), np.uint8)])
    assert (small["adapters.x.patch_size"], small["adapters.x.image_size"]) == (4, 28)
    large = advised(adapter, [np.zeros((300, 280, 3), np.uint8)])
    assert (large["adapters.x.patch_size"], large["adapters.x.image_size"]) == (8, 64)
    for options in (small, large):
        assert options["backbone.block.mlp"] == "swiglu"
        assert options["optimizer._target_"] == "dxn.training.optim.muon"
        assert (options["adapters.x.stem"], options["backbone.depth"]) == ("residual", 2)


@pytest.mark.parametrize(
    ("shape", "patch", "size"),
    [((28, 20), 4, [28, 20]), ((60, 45), 8, [64, 48]), ((300, 30), 8, [64, 8])],
)
def test_all_pictures_of_a_codec_get_one_size_and_stay_as_they_are(shape, patch, size):
    found = advised(ImageAdapter(8), [np.zeros((*shape, 3), np.uint8)], kind=AnswerKind.CODES)
    assert found == {
        "adapters.x.stem": "conv",
        "adapters.x.patch_size": patch,
        "adapters.x.image_size": size,
        "adapters.x.resize.mode": "stretch",
    }


def test_a_codec_is_trained_without_dropout_on_small_batches(tmp_path):
    for i in range(40):
        pixels = np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    rows = "".join(f"{tmp_path}/{i}.png\n" for i in range(40))
    (tmp_path / "table.csv").write_text(f"image\n{rows}")
    options = ["data.image=image", "adapters=[image]", "head=codec", f"run={tmp_path}/run"]
    short = [option for option in SHORT if "batch_size" not in option]
    assert main(["train", str(tmp_path / "table.csv"), *short, *options]) == 0
    config = saved(tmp_path / "run")
    assert (config["batch_size"], config["backbone"]["dropout"]) == (16, 0.0)
    assert config["adapters"]["image"]["image_size"] == [12, 12]


def test_pictures_are_trained_with_muon_unless_the_user_chooses_an_optimizer(tmp_path, capsys):
    for i in range(20):
        folder = tmp_path / "pictures" / "xy"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (12 * i, 0, 0)).save(folder / f"{i}.png")
    options = ["dim=16", "backbone.num_heads=2", *SHORT[-2:]]
    for i, chosen in enumerate([[], ["optimizer.lr=0.002"], ["optimizer=adamw"]]):
        run = tmp_path / f"run{i}"
        assert main(["train", f"{tmp_path}/pictures", f"run={run}", *options, *chosen]) == 0
        optimizer = saved(run)["optimizer"]
        printed = "optimizer=muon" in capsys.readouterr().out
        assert printed == (i < 2)
        assert optimizer["_target_"] == f"dxn.training.optim.{'muon' if printed else 'adamw'}"
        assert optimizer["lr"] == (0.002 if i == 1 else 0.001)
        assert ("momentum" in optimizer) == printed


@pytest.mark.parametrize(("rows", "epochs", "batch_size"), [
    (6_000, math.inf, 128), (6_000, 60.0, 128), (6_000, 30.0, 64), (6_000, 8.0, 64),
    (3_000, 60.0, 64), (1_000, 8.0, 32),
])  # fmt: skip
def test_several_inputs_have_smaller_batches_if_few_steps_fit(rows, epochs, batch_size):
    facts = Facts(rows, 2, 2, epochs_within_limit=lambda tokens: epochs)
    advice = _training_advice(facts, frozenset(), is_validated=True)
    assert {a.key: a.value for a in advice}["batch_size"] == batch_size


def test_images_next_to_other_inputs_become_few_tokens():
    adapter, image = ImageAdapter(8), [np.zeros((28, 28, 3), np.uint8)]
    small = advised(adapter, image, num_inputs=2)
    assert (small["adapters.x.patch_size"], small["adapters.x.image_size"]) == (8, 32)
    assert small["adapters.x.stem"] == "conv"


def test_images_without_colors_have_one_channel(tmp_path):
    paths = [str(tmp_path / f"{mode}.png") for mode in ("L", "1")]
    for mode, path in zip(("L", "1"), paths, strict=True):
        Image.new(mode, (30, 30)).save(path)
    assert advised(ImageAdapter(8), paths)["adapters.x.in_channels"] == 1
    colored = np.zeros((30, 30, 3), np.uint8)
    assert "adapters.x.in_channels" not in advised(ImageAdapter(8), [*paths, colored])


def test_sounds_next_to_other_inputs_get_no_noise_and_a_small_stem(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(800), 8000)
    alone = advised(AudioAdapter(8), [str(path)])
    assert "adapters.x.augment.noise" in alone
    assert (alone["adapters.x.stem"], alone["backbone.depth"]) == ("residual", 2)
    few = advised(AudioAdapter(8), [str(path)], rows=999)
    assert few["adapters.x.stem"] == "conv" and "backbone.depth" not in few
    together = advised(AudioAdapter(8), [str(path)], num_inputs=2)
    assert "adapters.x.augment.noise" not in together and "backbone.depth" not in together
    assert together["adapters.x.stem"] == "conv"


def test_long_sounds_are_trained_in_parts(tmp_path):
    path = tmp_path / "a.wav"
    for seconds in (9, 11):
        soundfile.write(path, np.zeros(4000 * seconds), 4000)
        is_long = seconds == 11
        alone = advised(AudioAdapter(8), [str(path)])
        assert alone.get("adapters.x.augment.crop") == (5.0 if is_long else None)
        together = advised(AudioAdapter(8), [str(path)], num_inputs=2)
        assert "adapters.x.augment.crop" not in together


def train_on_texts_and_images(folder, *options):
    """Train on two inputs, and return the configuration of the run."""
    lines = ["text,image,label"]
    for i in range(40):
        Image.new("RGB", (8, 8), (6 * i, 0, 0)).save(folder / f"{i}.png")
        lines.append(f"some words {i},{i}.png,{'xy'[i % 2]}")
    (folder / "table.csv").write_text("\n".join(lines))
    assert main(["train", f"{folder}/table.csv", "target=label", f"run={folder}/run",
                 "dim=16", "backbone.num_heads=2", *SHORT[-2:], *options]) == 0  # fmt: skip
    return saved(folder / "run")


@pytest.fixture
def many_rows(monkeypatch):
    """Presets take 32 training rows for many."""
    monkeypatch.setattr("dxn.presets.preset.FEW", 10)


@pytest.mark.parametrize("fractions", [[0.8, 0.1, 0.1], [0.8, 0, 0.2]])
def test_few_rows_with_several_inputs_are_mixed_from_the_start(tmp_path, fractions):
    config = train_on_texts_and_images(tmp_path, f"data.fractions={fractions}")
    trainer, loader = config["trainer"], config["loader"]
    assert (trainer["mixup"], loader["input_dropout"]) == (1, 0.3)
    assert list(trainer["once_learning"]) == (["patience"] if fractions[1] else [])


def test_several_inputs_train_longer_without_dropout(many_rows, tmp_path, capsys):
    config = train_on_texts_and_images(tmp_path)
    assert config["backbone"]["dropout"] == 0
    trainer, loader = config["trainer"], config["loader"]
    assert (trainer["patience"], trainer["mixup"], loader["input_dropout"]) == (0.3, 1, 0.3)
    assert trainer["once_learning"] == ["patience", "mixup", "input_dropout"]
    assert "(2 inputs of texts or files)" in capsys.readouterr().out


def test_without_a_validation_split_no_option_waits_for_its_loss(many_rows, tmp_path):
    config = train_on_texts_and_images(tmp_path, "data.fractions=[0.8,0,0.2]")
    trainer, loader = config["trainer"], config["loader"]
    assert trainer["mixup"] == loader["input_dropout"] == len(trainer["once_learning"]) == 0
    assert config["optimizer"]["_target_"].endswith("muon")


def test_an_option_of_the_user_does_not_wait(many_rows, tmp_path):
    config = train_on_texts_and_images(tmp_path, "trainer.mixup=0.2", "loader.input_dropout=0.1")
    trainer, loader = config["trainer"], config["loader"]
    assert (trainer["mixup"], loader["input_dropout"]) == (0.2, 0.1)
    assert trainer["once_learning"] == ["patience"]


def test_sounds_keep_their_sample_rate(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(800), 8000)
    options = advised(AudioAdapter(8), [str(path), str(tmp_path / "missing.wav")])
    assert options["adapters.x.sample_rate"] == 8000


def test_files_that_cannot_be_read_have_no_advice(tmp_path):
    assert advised(AudioAdapter(8), [str(tmp_path / "missing.wav")]) == {}
    assert advised(ImageAdapter(8), [str(tmp_path / "missing.png")]) == {}


def test_a_damaged_picture_is_ignored(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    Image.new("RGB", (30, 30)).save(tmp_path / "good.png")
    paths = [str(tmp_path / "broken.png"), str(tmp_path / "good.png")]
    assert advised(ImageAdapter(8), paths)["adapters.x.image_size"] == 32


def _wine(folder, rows=60):
    lines = ["a,b,label"]
    lines += [f"{i % 7}.5,{i % 5}.25,{'xy'[i % 2]}" for i in range(rows)]
    (folder / "wine.csv").write_text("\n".join(lines))
    return str(folder / "wine.csv")


def test_a_block_that_the_preset_removes_cannot_have_bottleneck_tokens(tmp_path, capsys):
    rows = [{"a": i % 7 * 1.5, "b": i * 0.37 % 5, "y": "pq"[i % 2]} for i in range(90)]
    write_table(tmp_path / "t.csv", rows)
    command = ["train", str(tmp_path / "t.csv"), "target=y", f"run={tmp_path / 'run'}"]
    assert main([*command, "fusion=bottleneck", "fusion.start=2"]) == 2
    assert "(backbone.depth=1), got 2; lower it, or set backbone.depth=3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "size", "patch", "image_size"),
    [
        ((240, 320), (70, 80), 16, 320),
        ((96, 96), (24, 26), 8, 96),
        ((96, 96), (0.25, 0.27), 8, 96),
        ((1000, 2000), (40, 50), 16, 320),
        ((48, 50), (4, 5), 4, 52),
    ],
)
def test_tokens_are_smaller_than_the_objects(shape, size, patch, image_size):
    pictures = [np.zeros((*shape, 3), np.uint8)] * 3
    kind = AnswerKind.OBJECTS
    found = advised(ImageAdapter(8), pictures, rows=300, kind=kind, object_size=size)
    assert found["adapters.x.patch_size"] == patch
    assert found["adapters.x.image_size"] == image_size
    assert found["adapters.x.stem"] == "residual" and found["backbone.depth"] == 2
    assert "adapters.x.augment.randaugment" not in found


@pytest.mark.parametrize(
    ("size", "epochs", "patch", "image_size"),
    [
        ((600, 700), 40, 16, 320),
        ((600, 700), 0.1, 8, 112),  # 32 pixels of the shorter side
        ((0.6, 0.35), 0.1, 8, 112),
        ((60, 70), 0.1, 16, 320),  # small objects need all pixels
        ((0, 70), 0.1, 16, 320),  # most boxes are lines or points
    ],
)
def test_pictures_with_objects_are_smaller_if_time_is_short(size, epochs, patch, image_size):
    pictures = [np.zeros((1000, 2000, 3), np.uint8)] * 3
    known = {"kind": AnswerKind.OBJECTS, "object_size": size}
    fitting = {"epochs_within_limit": lambda tokens: epochs * 40 * 20 / tokens}
    found = advised(ImageAdapter(8), pictures, rows=120, **known, **fitting)
    assert found["adapters.x.patch_size"] == patch
    assert found["adapters.x.image_size"] == image_size


def test_a_training_for_objects_uses_the_rules(tmp_path):
    options = ["data=objects", "data.num_train=30", "data.num_validation=5", "data.num_test=5"]
    options += ["adapters=[text,image]", "data.ask=true", f"run={tmp_path}/run", *SHORT]
    options += ["optimizer=adamw"]  # Muon takes most of the time of such a training
    assert main(["train", *options]) == 0
    config = saved(tmp_path / "run")
    assert config["adapters"]["image"]["patch_size"] == 8
    assert config["adapters"]["image"]["augment"]["flip"] is True
    assert not config["trainer"]["mixup"]


@pytest.mark.parametrize(
    ("area", "epochs", "image_size", "tile"),
    [
        ((40, 24), 20, 512, 128),  # all pixels, in tiles
        ((40, 24), 2.5, 256, None),  # fewer pixels, so that each picture is seen 10 times
        ((40, 24), 0.1, 128, None),  # an area keeps 6 pixels
        ((5, 5), 0.1, 512, 128),  # small areas need all pixels
        ((400, 400), 0.1, 96, None),
    ],
)
def test_pictures_with_masks_are_as_large_as_time_and_areas_allow(area, epochs, image_size, tile):
    def epochs_within_limit(tokens):
        return epochs * 3 * 32 * 64 / tokens  # at the full size

    pictures = [np.zeros((256, 512, 3), np.uint8)] * 3
    known = {"kind": AnswerKind.PIXELS, "object_size": area}
    found = advised(
        ImageAdapter(8), pictures, rows=300, epochs_within_limit=epochs_within_limit, **known
    )
    assert found["adapters.x.image_size"] == image_size
    assert found.get("head.tile") == tile
    assert found["adapters.x.stem"] == "residual" and found["adapters.x.augment.flip"]
    assert "head.balance" not in found
    balanced = advised(ImageAdapter(8), pictures, rows=300, num_classes=3, **known)
    assert balanced["head.balance"] == "root"


def test_tokens_are_shorter_than_events(tmp_path):
    events = [{"label": "bump", "start": 10, "stop": 30}, {"label": "wave", "start": 5, "stop": 34}]
    rows = [json.dumps({"signal": [i, *range(50)], "events": events[i % 2 :]}) for i in range(40)]
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    options = ["target=events", f"run={tmp_path}/run", *SHORT]
    assert main(["train", str(tmp_path / "table.jsonl"), *options]) == 0
    assert saved(tmp_path / "run")["adapters"]["series"]["patch_size"] == 4


def test_a_training_with_masks_uses_the_rules(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    stripes = np.tile(np.repeat(np.array([0, 1], np.uint8), 100), (300, 1))
    for i in range(6):
        Image.fromarray(
            np.array([[40, 90, i]], np.uint8).repeat(60000, 0).reshape(300, 200, 3)
        ).save(tmp_path / f"images/{i}.png")
        Image.fromarray(stripes).save(tmp_path / f"masks/{i}.png")
    options = [option for option in SHORT if "batch_size" not in option]
    assert main(["train", str(tmp_path), f"run={tmp_path}/run", *options, "optimizer=adamw"]) == 0
    config = saved(tmp_path / "run")
    # By the measured speed.
    assert 96 <= config["adapters"]["image"]["image_size"] <= 304 and config["batch_size"] == 8


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("trainer.log_every=9", (304, 128, 4)),
        ("head.tile=64", (304, 64, 1)),
        ("adapters.image.patch_size=14", (304, 128, 4)),
        ("adapters.image.image_size=64", (64, 0, 1)),
    ],
)
def test_tiles_fit_the_size_of_the_pictures(option, expected, tmp_path, monkeypatch):
    pixels = np.zeros((300, 200, 3), np.uint8)
    objects = [{"label": "a", "segmentation": [[20, 20, 90, 20, 90, 60, 20, 60]]}]
    for i in range(6):
        Image.fromarray(pixels + i).save(tmp_path / f"{i}.png")
    rows = [json.dumps({"image": f"{i}.png", "objects": objects}) for i in range(6)]
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    speeds = iter([1e-9])  # the speed is measured once
    monkeypatch.setattr("dxn.presets.preset.seconds_per_token", lambda *given: next(speeds))
    options = ["target=objects", "head=segment", "optimizer=adamw", option, *SHORT]
    assert main(["train", str(tmp_path / "table.jsonl"), f"run={tmp_path}/run", *options]) == 0
    config = saved(tmp_path / "run")
    size = config["adapters"]["image"]["image_size"]
    assert (size, config["head"]["tile"], config["loader"]["repeats"]) == expected


def test_heads_of_an_odd_width_keep_their_positions(tmp_path):
    rows = [{"text": [f"Ada{i}", "sings"], "tags": ["name", "O"]} for i in range(40)]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["target=tags", *SHORT, "dim=6", "backbone.num_heads=2"]
    assert main(["train", str(tmp_path / "table.jsonl"), f"run={tmp_path}/run", *options]) == 0
    assert saved(tmp_path / "run")["backbone"]["position"]["kind"] != "rotary"


@pytest.mark.parametrize(("column", "kind"), [("tags", "bpe"), ("answers", "word")])
def test_tags_and_answers_have_rules_of_their_own(column, kind, tmp_path):
    rows = []
    for i in range(40):
        words = [f"Ada{i}", "Lind", "lives", "in", "Oslo"]
        answer = {"text": [words[0]], "answer_start": [0]}
        asked = {
            "context": " ".join(words),
            "question": f"Who is number {i}, and where?",
            "answers": answer,
        }
        tagged = {"text": words, "tags": ["B-person", "I-person", "O", "O", "B-place"]}
        rows.append(json.dumps(tagged if column == "tags" else asked))
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    options = [f"target={column}", f"run={tmp_path}/run", *SHORT]
    assert main(["train", str(tmp_path / "table.jsonl"), *options]) == 0
    config = saved(tmp_path / "run")
    assert config["adapters"]["text"]["tokenizer"]["kind"] == kind
    assert config["backbone"]["position"]["kind"] == "rotary"
    assert not config["trainer"]["mixup"]


def test_a_simple_model_on_the_published_weights_stands_beside_the_trained_one(tmp_path, capsys):
    save_bert(tmp_path / "bert")
    # Each class has its own word. A rate of 0 leaves the new head at its random weights.
    rows = [f"w{4 + 9 * (i % 2)} w{14 + i // 12} w{26 + i % 12},{'ab'[i % 2]}" for i in range(120)]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows]))
    options = [str(tmp_path / "table.csv"), f"weights={tmp_path}/bert", "trainer.epochs=1",
               "optimizer.lr=0", "report=false", f"run={tmp_path}/run"]  # fmt: skip
    assert main(["train", *options]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    name = "test/accuracy[classical model, frozen weights]"
    assert metrics[name] > 0.9 > metrics["test/accuracy"]
    lines = capsys.readouterr().out.splitlines()
    (warning,) = [line for line in lines if "better before the training" in line]
    assert "classical model, frozen weights has accuracy" in warning
    # A resumed run has the same row.
    assert main(["train", f"resume={tmp_path}/run", "trainer.epochs=2"]) == 0
    resumed = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert resumed[name] == metrics[name]
