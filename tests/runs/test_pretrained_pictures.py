"""Published encoders of pictures in trainings for masks and objects."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
import yaml
from PIL import Image

import dxn
from dxn.cli import main
from dxn.presets.pictures import Pictures
from dxn.tasks.space import AnswerKind

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
WIDTH, HEIGHT, ROWS = 60, 30, 12
PATCH = 5
# Whole patches in the ratio of the pictures, at least three along the usual object.
SIZES = {"masks.csv": [40, 80], "objects.jsonl": [45, 90]}
QUICK = [
    *("trainer.max_minutes=null", "trainer.epochs=1", "trainer.device=cpu"),
    *("trainer.precision=float32", "baseline=none", "data.fractions=[0.5,0.25,0.25]"),
]


def lines(capsys):
    """All that was printed, without the breaks of long lines."""
    captured = capsys.readouterr()
    return " ".join(f"{captured.out} {captured.err}".split())


def boxes(i):
    """The objects of a picture: one is at its left border, which a center crop does not show."""
    left = {"label": "edge", "bbox": [0, 2 + i, 8, 10]}
    return [left, {"label": "middle", "bbox": [25 + i, 5, 12, 15]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random encoder that crops the center of a picture, and pictures in two tables."""
    path = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(0)
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=35,
        patch_size=PATCH,
    )
    transformers.Dinov2WithRegistersModel(config).save_pretrained(path / "encoder")
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 24}, crop_size={"height": 20, "width": 20}
    )
    processor.save_pretrained(path / "encoder")
    rand = np.random.default_rng(0)
    masks, objects = ["photo,note,mask"], []
    for i in range(ROWS):
        pixels = rand.integers(0, 90, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        for value, item in enumerate(boxes(i % 5), 1):
            left, top, width, height = item["bbox"]
            pixels[top : top + height, left : left + width, value] = 250
            mask[top : top + height, left : left + width] = value
        Image.fromarray(pixels).save(path / f"{i}.png")
        Image.fromarray(mask).save(path / f"m{i}.png")
        masks.append(f"{i}.png,a note of row {i},m{i}.png")
        objects.append(json.dumps({"photo": f"{i}.png", "objects": boxes(i % 5)}))
    (path / "masks.csv").write_text("\n".join(masks))
    (path / "objects.jsonl").write_text("\n".join(objects))
    return path


def train(folder, run, table, *options):
    assert main(["train", str(folder / table), *QUICK, *options, f"run={run}"]) == 0
    return yaml.safe_load((run / ".hydra" / "config.yaml").read_text())


@pytest.mark.parametrize("table", ["masks.csv", "objects.jsonl"])
@pytest.mark.parametrize("option", ["pretrained.photo", "pretrained.image", "weights"])
def test_an_encoder_sees_the_whole_picture_in_whole_patches(
    table, option, folder, tmp_path, capsys
):
    target = ["target=mask", "data.text=[]"] if table == "masks.csv" else ["target=objects"]
    config = train(folder, tmp_path / "run", table, *target, f"{option}={folder}/encoder")
    key = "photo" if option == "pretrained.photo" else "image"
    node = config["adapters"][key]
    size = SIZES[table]
    assert node["image_size"] == size
    assert (node["resize"]["mode"], node["resize"]["crop_ratio"]) == ("stretch", 1.0)
    out = lines(capsys)
    assert f"adapters.{key}.image_size={size}" in out
    assert f"images of usually {HEIGHT}×{WIDTH} pixels" in out
    assert f"patches of {PATCH}" in out
    model = dxn.load(tmp_path / "run")
    (answer,) = model.predict([{"photo": str(folder / "0.png")}])
    if table == "masks.csv":
        assert answer["masks_in"] == "photo"
    else:
        assert answer["objects_in"] == "photo"
    assert main(["export", f"run={tmp_path / 'run'}", f"output={tmp_path / 'export'}"]) == 0
    assert (tmp_path / "export" / "model.onnx").exists()


def test_options_of_the_user_have_priority_for_each_way_to_name_an_encoder(folder, tmp_path):
    options = ["adapters.image.image_size=[25,50]", "adapters.image.augment.flip=false"]
    options += ["data.text=[]", f"pretrained.photo={folder}/encoder"]
    config = train(folder, tmp_path / "run", "masks.csv", "target=mask", *options)
    node = config["adapters"]["photo"]
    assert node["image_size"] == [25, 50]
    assert node["augment"]["flip"] is False
    assert node["resize"]["mode"] == "stretch"


@pytest.mark.parametrize("tune", ["finetune.freeze=all", "finetune.lora_rank=2"])
def test_frozen_weights_and_low_rank_updates_work_for_masks(tune, folder, tmp_path):
    options = [tune, "data.text=[]", f"weights={folder}/encoder"]
    train(folder, tmp_path / "run", "masks.csv", "target=mask", *options)
    (answer,) = dxn.load(tmp_path / "run").predict([{"photo": str(folder / "1.png")}])
    assert answer["mask"].startswith("data:image/png")


@pytest.mark.parametrize(
    ("table", "target"), [("masks.csv", "target=mask"), ("objects.jsonl", "target=objects")]
)
def test_an_encoder_beside_another_input_finds_parts_too(table, target, folder, tmp_path):
    rows = (folder / table).read_text()
    if table == "objects.jsonl":
        rows = "\n".join(
            json.dumps({**json.loads(row), "note": "a note"}) for row in rows.split("\n")
        )
    (folder / f"two_{table}").write_text(rows)
    encoder = f"pretrained.photo={folder}/encoder"
    config = train(folder, tmp_path / "run", f"two_{table}", target, encoder, "data.text=note")
    assert config["adapters"]["photo"]["adapter"]["image_size"] == SIZES[table]
    model = dxn.load(tmp_path / "run")
    answers = model.predict([{"photo": str(folder / "1.png"), "note": "a note"}])
    assert len(answers) == 1
    assert main(["export", f"run={tmp_path / 'run'}", f"output={tmp_path / 'export'}"]) == 0


def test_tokens_without_a_place_find_no_object(folder, tmp_path):
    encoder = f"pretrained.photo={folder}/encoder"
    objects = (folder / "objects.jsonl").read_text()
    rows = [json.dumps({**json.loads(r), "n": "a b"}) for r in objects.split("\n")]
    (folder / "three.jsonl").write_text("\n".join(rows))
    train(folder, tmp_path / "run", "three.jsonl", "target=objects", encoder, "data.text=n")
    model = dxn.load(tmp_path / "run").model
    adapter = model.adapter("photo")
    raw = adapter.tokenizer.reader.read(str(folder / "1.png"))
    batch = adapter.tokenizer.batch([raw])
    tokens = adapter(batch)
    num_leading = tokens.x.shape[1] - 9 * 18
    assert num_leading == 5  # the class token and four registers
    part = {**batch, "rows": torch.tensor([0])}
    tokens = replace(tokens, spans=(replace(tokens.spans[0], name="photo"),))
    pooled = torch.zeros(1, model.head.context.in_features)
    logits = model.head(tokens, pooled, {"#size": 1, "photo": part})
    classes = logits[0, :, : model.head.num_classes]
    assert (classes[: 4 * num_leading] < -29).all()
    assert (classes[4 * num_leading :] > -29).all()


def test_masks_and_objects_start_from_random_weights_by_default_with_a_reason(
    folder, tmp_path, capsys
):
    train(folder, tmp_path / "run", "masks.csv", "target=mask", "data.text=[]")
    line = "pretrained: photo: random weights, because no encoder was compared for such targets"
    assert line in lines(capsys)
    train(folder, tmp_path / "b", "masks.csv", "target=mask", "data.text=[]", "pretrained=none")
    assert "pretrained: photo" not in lines(capsys)


def test_an_encoder_that_cannot_be_downloaded_is_refused_in_one_line(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    words = ["train", str(folder / "masks.csv"), "target=mask", "data.text=[]"]
    assert main([*words, "pretrained.image=small", f"run={tmp_path}/run"]) == 2
    assert "pretrained.image: the local cache has no copy of" in lines(capsys)


@pytest.mark.parametrize("option", ["weights", "pretrained.photo"])
def test_a_note_says_that_borders_are_cut_off_without_the_preset(option, folder, tmp_path, capsys):
    options = ["preset=plain", "data.text=[]", f"{option}={folder}/encoder", "report=false"]
    train(folder, tmp_path / "run", "masks.csv", "target=mask", *options)
    note = "note: adapters.image.resize.mode=crop cuts off the borders of pictures"
    assert note in lines(capsys)


def pictures(height=360, width=480, patch_size=14, **options):
    usual = {"is_alike": True, "object_size": (30, 40), "kind": AnswerKind.PIXELS}
    return Pictures(height, width, patch_size=patch_size, **{**usual, **options})


@pytest.mark.parametrize(
    ("views", "size"),
    [
        (lambda patches: 1e9, [364, 490]),  # all of their pixels
        (lambda patches: 0, [168, 224]),  # the fewest patches
        (lambda patches: 1e6 / patches, [224, 294]),  # 1,000 views of each of 100 pictures: 336
    ],
)
def test_the_largest_size_that_the_time_allows_is_chosen(views, size):
    found = pictures().options(100, views)
    assert found["image_size"] == size or views(1) == 1e6
    height, width = found["image_size"]
    assert height % 14 == width % 14 == 0
    assert abs(height / width - 360 / 480) < 0.05


def test_large_pictures_have_at_most_the_patches_that_encoders_know():
    found = pictures(3000, 4000).options(100, lambda patches: 1e9)
    assert found["image_size"] == [28 * 14, 37 * 14]


def test_small_objects_need_several_patches():
    known = {"kind": AnswerKind.OBJECTS, "object_size": (0.1, 0.05)}
    found = pictures(400, 400, **known).options(100, lambda patches: 0)
    assert found["image_size"] == [37 * 14, 37 * 14]
    known["object_size"] = (0.2, 0.15)
    found = pictures(400, 400, **known).options(100, lambda patches: 0)
    assert found["image_size"] == [20 * 14, 20 * 14]


def test_boxes_without_a_size_are_no_reason_for_a_failure():
    known = {"kind": AnswerKind.OBJECTS, "object_size": (0.0, 0.0)}
    found = pictures(400, 300, **known).options(100, lambda patches: 1e9)
    assert found["image_size"] == [37 * 14, 28 * 14]


def test_pictures_of_different_formats_keep_the_ratio_of_their_sides():
    found = pictures(is_alike=False).options(100, lambda patches: 0)
    assert (found["image_size"], found["resize.mode"]) == (224, "within")
    # They would not be enlarged.
    found = pictures(48, 64, is_alike=False).options(100, lambda patches: 0)
    assert found["resize.mode"] == "stretch"
