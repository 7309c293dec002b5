"""From a contrastive training to an index, a search and a classifier without training."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from helpers.checkpoints import byte_gpt2
from helpers.runs import refused, train
from PIL import Image
from safetensors.torch import load_file, save_file

import dxn
from dxn.cli import main
from dxn.runs.index import nearest

COLORS = {"red": (220, 20, 20), "blue": (20, 20, 220), "green": (20, 200, 20), "white": (250,) * 3}
KINDS = ("shirt", "shoe", "hat")
TINY = [
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "batch_size=24", "trainer.epochs=12"),
    *("trainer.device=cpu", "trainer.precision=float32", "optimizer.lr=1e-2", "trainer.patience=0"),
    *("adapters.text.tokenizer.kind=word", "adapters.image.image_size=8"),
    *("adapters.image.patch_size=4", "head.embedding_dim=11"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """shop.csv: titles and photos that both tell a color and a kind; some rows lack one of them."""
    folder = tmp_path_factory.mktemp("search")
    rows = []
    for i in range(72):
        color, kind = list(COLORS)[i % 4], KINDS[i % 3]
        pixels = np.full((8, 8, 3), COLORS[color], np.uint8)
        pixels[: 2 + 3 * KINDS.index(kind), :2] = 0
        pixels[7, 7] = i  # equal photos would all be in one split
        Image.fromarray(pixels).save(folder / f"{i}.png")
        title = f"{color} {kind}" if i % 9 else ""
        rows.append([f"s{i}", title, f"{i}.png" if i % 9 != 4 else "", color, i])
    with (folder / "shop.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["sku", "title", "photo", "color", "price"], *rows])
    return folder


@pytest.fixture(scope="module")
def table(place):
    path = place / "shop.csv"
    columns = ["data.text=title", "data.image=photo"]
    return ["data=table", f"data.path={path}", *columns, "adapters=[text,image]"]


@pytest.fixture(scope="module")
def run(place, table):
    metrics = train(place / "run", *table, *TINY, "head=contrastive", "share_backbone=false")
    assert metrics["test/mrr"] > metrics["test/mrr[random order]"]
    assert {"test/mrr[title to photo]", "test/mrr[photo to title]"} <= metrics.keys()
    # A simple method stands beside it, and a note tells which rows are searched.
    name = "most similar training row"
    assert metrics["test/mrr[random order]"] < metrics[f"test/mrr[{name}]"] <= 1
    assert name in (place / "run" / "model" / "README.md").read_text()
    note, few, *_ = metrics["remarks"]
    assert note.startswith("only the 6 of 7 rows with title and photo are searched")
    assert few.startswith("the search by title and photo has only ")
    assert "test/mrr[title]" not in metrics  # one input alone has nothing to be compared with
    return place / "run"


@pytest.fixture(scope="module")
def index(run, place):
    """The photos of all rows."""
    folder = place / "index"
    arguments = [f"run={run}", f"input={place / 'shop.csv'}", "only=[photo]", "keep=[color]"]
    assert main(["index", *arguments, f"output={folder}"]) == 0
    return folder


def found(capsys, *arguments, path):
    capsys.readouterr()
    assert main(["search", *map(str, arguments), f"output={path}"]) == 0
    return json.loads(path.read_text())


def test_an_index_has_unit_vectors_and_what_its_rows_contain(index, run):
    vectors = np.load(index / "vectors.npy")
    rows = [json.loads(line) for line in (index / "rows.jsonl").read_text().splitlines()]
    assert vectors.shape == (64, 11) and len(rows) == 64  # eight rows have no photo
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert rows[1]["sku"] == "s1" and rows[1]["title"] == "blue shoe" and rows[1]["color"] == "blue"
    meta = json.loads((index / "index.json").read_text())
    assert meta["inputs"] == ["photo"] and meta["run"] == str(run.resolve())


def test_a_text_finds_photos_of_its_color(index, capsys, tmp_path):
    for color in COLORS:
        query = f"input.title={color} shirt"
        rows = found(capsys, f"index={index}", query, "k=5", path=tmp_path / "found.json")
        assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
        assert [row["color"] for row in rows].count(color) >= 4
        scores = [row["score"] for row in rows]
        assert scores == sorted(scores, reverse=True)


def test_a_photo_finds_itself(index, place, capsys, tmp_path):
    query = f"input.photo={place / '7.png'}"
    rows = found(capsys, f"index={index}", query, "k=1", path=tmp_path / "found.json")
    assert rows[0]["score"] == pytest.approx(1, abs=1e-5)
    assert rows[0]["color"] == "white"


def test_a_table_of_queries_needs_only_the_columns_of_its_inputs(index, capsys, tmp_path):
    (tmp_path / "queries.csv").write_text("title\nred hat\nblue shoe\n")
    arguments = [f"index={index}", f"input={tmp_path / 'queries.csv'}", "only=[title]", "k=3"]
    rows = found(capsys, *arguments, path=tmp_path / "found.json")
    assert [row["query_title"] for row in rows] == ["red hat"] * 3 + ["blue shoe"] * 3
    assert [row["query_row"] for row in rows] == [2] * 3 + [3] * 3
    assert rows[0]["color"] == "red" and rows[3]["color"] == "blue"
    assert main(["search", *arguments]) == 0
    assert "query_title" in capsys.readouterr().out


def test_a_model_that_is_no_contrastive_one_has_an_index_too(place, table, capsys, tmp_path):
    short = [option for option in TINY if not option.startswith(("head.", "trainer.epochs"))]
    train(tmp_path / "colors", *table, *short, "trainer.epochs=1", "data.target=color")
    assert main(["index", f"run={tmp_path / 'colors'}", f"output={tmp_path / 'index'}"]) == 0
    assert "title and photo, 16 numbers each" in capsys.readouterr().out
    arguments = [f"index={tmp_path / 'index'}", "input.title=red hat", "k=2"]
    assert len(found(capsys, *arguments, path=tmp_path / "found.json")) == 2


def test_labels_make_a_classifier_of_samples_and_tables(run, place, table, capsys, tmp_path):
    labels = f"labels=[{','.join(COLORS)}]"
    template = "template={} shirt"
    photo = f"input.photo={place / '6.png'}"
    assert main(["predict", f"run={run}", photo, labels, template]) == 0
    assert capsys.readouterr().out.startswith("prediction: green")
    evaluation = [*table[:2], "data.target=color", "data.on_bad=skip", f"output={tmp_path / 'e'}"]
    assert main(["evaluate", f"run={run}", *evaluation, labels, template]) == 0
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert metrics["all/accuracy"] > 0.9
    assert (tmp_path / "e" / "predictions.csv").is_file()


def test_one_input_alone_is_embedded_and_attended(run, place, capsys, tmp_path):
    arguments = [f"run={run}", str(place / "shop.csv"), "only=[photo]"]
    assert main(["embed", *arguments, f"output={tmp_path / 'v.npy'}"]) == 0
    assert np.load(tmp_path / "v.npy").shape == (64, 11)
    both = ["input.title=red hat", f"input.photo={place / '1.png'}"]
    assert main(["embed", f"run={run}", *both, "only=[photo]", f"output={tmp_path / '1.npy'}"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "1.npy"), np.load(tmp_path / "v.npy")[[1]], 1e-4)
    model = dxn.load(run)
    each = torch.stack([model.embed(title="red hat"), model.embed(photo=str(place / "1.png"))])
    both = model.embed(title="red hat", photo=str(place / "1.png"))
    torch.testing.assert_close(both, torch.nn.functional.normalize(each.sum(0), dim=0))
    assert main(["attend", f"run={run}", "input.title=red hat", f"output={tmp_path / 'a'}"]) == 0
    assert (tmp_path / "a" / "attention.html").is_file()


@pytest.mark.parametrize("options", [["fusion=late"], ["fusion=bottleneck", "head.loss=sigmoid"]])
def test_every_fusion_and_both_losses_train_evaluate_and_check(table, options, capsys, tmp_path):
    short = [option for option in TINY if not option.startswith("trainer.epochs")]
    arguments = [*table, *short, "head=contrastive", *options, "trainer.epochs=1"]
    train(tmp_path / "run", *arguments)
    assert main(["check", *table, "head=contrastive", f"output={tmp_path / 'bad.csv'}"]) == 0
    output = f"output={tmp_path / 'evaluation'}"
    assert main(["evaluate", f"run={tmp_path / 'run'}", "split=validation", output]) == 0


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ([], ["title", "photo"]),
        (["data.category=[color]"], ["title", "photo", "color"]),
        (["data.exclude=[photo]"], ["title", "color"]),
    ],
)
def test_cells_that_many_rows_have_in_common_are_no_inputs_by_default(
    options, inputs, place, tmp_path, capsys
):
    bad = f"output={tmp_path / 'bad.csv'}"
    table = ["check", str(place / "shop.csv"), *options, "head=contrastive", bad]
    assert main(table) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [
        line.split(" (")[0] for line in lines if line.endswith(("(text)", "(image)", "(category)"))
    ]
    assert found == inputs
    is_told = any("color (many rows have the same value" in line for line in lines)
    assert is_told == ("color" not in inputs)


def test_separate_backbones_of_an_ordinary_task_train_and_load(table, tmp_path):
    short = [option for option in TINY if not option.startswith(("head.", "trainer.epochs"))]
    options = ["fusion=bottleneck", "share_backbone=false", "trainer.epochs=1", "data.target=color"]
    train(tmp_path / "run", *table, *short, *options)
    model = dxn.load(tmp_path / "run")
    names = [name for name, _ in model.model.named_parameters()]
    assert {name.split(".")[2] for name in names if ".towers." in name} == {"0", "1"}
    train(tmp_path / "more", *table, *short, *options, f"weights={tmp_path / 'run'}")


def test_each_separate_backbone_starts_from_the_shared_one_of_a_checkpoint(table, tmp_path):
    short = [option for option in TINY if not option.startswith(("head.", "trainer.epochs"))]
    options = [*table, *short, "trainer.epochs=1", "data.target=color", "fusion=late"]
    train(tmp_path / "shared", *options)
    start = [f"weights={tmp_path / 'shared'}", "share_backbone=false", "optimizer.lr=0"]
    train(tmp_path / "separate", *options, *start)
    shared = dxn.load(tmp_path / "shared").model.backbone.state_dict()
    for tower in dxn.load(tmp_path / "separate").model.backbone.towers:
        assert all(torch.equal(tensor, shared[name]) for name, tensor in tower.state_dict().items())


TABLE_FAULTS = [
    (["search", "index=INDEX", "input.title=x", "k=0"], "k: must be at least 1, got 0"),
    (["search", "index=PLACE", "input.title=x"], "not an index folder, it has no index.json"),
    (["search", "index=INDEX", "input.sound=x"], "input.sound: there is no such input"),
    (["search", "index=INDEX", "PLACE/shop.csv", "only=[sound]"], "only: must be inputs of"),
    (["search", "index=INDEX", "input.title=x", "only=[photo]"], "no row has any of the inputs p"),
    (["embed", "run=RUN", "input.title=x", "only=[photo]"], "there are no embeddings"),
    (["index", "run=RUN", "PLACE/shop.csv", "only=[sound]"], "only: must be inputs of the model"),
    (["predict", "run=RUN", "input.title=x"], "set labels=[A,B] to classify"),
    (
        ["predict", "run=RUN", "input.title=x", "labels=[a,b]"],
        "there is no such input; the inputs are photo",
    ),
    (["predict", "run=RUN", "input.photo=x.png", "labels=[a]"], "at least two different names"),
    (["predict", "run=RUN", "input.photo=x", "labels=[a,b]", "template=x"], "must contain {}"),
    (["evaluate", "run=RUN", "only=[title]"], "only: this model needs at least 2 inputs of a row"),
    (["attend", "run=RUN", "input.title=x", "input.photo=PLACE/1.png"], "so set only one of them"),
]


@pytest.mark.parametrize(("arguments", "message"), TABLE_FAULTS)
def test_wrong_commands_are_refused(arguments, message, index, run, place, capsys, tmp_path):
    places = {"INDEX": index, "RUN": run, "PLACE": place}
    words = []
    for word in arguments:
        for name, path in places.items():
            word = word.replace(name, str(path))
        words.append(word)
    assert message in " ".join(refused(capsys, words))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["share_backbone=false", "data.target=color", "fusion=early"], "share_backbone: must be"),
        (
            ["backbone.dim=32", "data.target=color"],
            "backbone.dim: all parts of a model have the same",
        ),
        (["head=contrastive", "loader.input_dropout=0.1"], "loader.input_dropout: cannot be"),
        (["head=contrastive", "trainer.mixup=0.2"], "trainer.mixup: cannot be combined"),
        (
            ["head=contrastive", "share_backbone=false", "pretrain=masked"],
            "share_backbone: must be true, because this fusion encodes all inputs together",
        ),
    ],
)
def test_impossible_trainings_are_refused(options, message, table, capsys):
    short = [option for option in TINY if not option.startswith("head.")]
    assert message in " ".join(refused(capsys, ["train", *table, *short, *options]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("index.json", b"[]", "is not the description of an index"),
        ("index.json", b"{", "cannot be read"),
        ("index.json", b'{"digest": "", "inputs": 3}', "inputs must be a list"),
        ("index.json", b'{"digest": "", "inputs": [], "run": 3}', "run must be a path"),
        ("index.json", b'{"digest": "", "inputs": []}', "must name a run or a public checkpoint"),
        ("vectors.npy", b"", "cannot be read"),
        ("vectors.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("rows.jsonl", b"3\n", "one object for each of the 64 vectors"),
        ("rows.jsonl", b"[" * 100_000, "cannot be read"),
    ],
)
def test_damaged_files_of_an_index_are_refused(name, content, message, index, capsys, tmp_path):
    for path in index.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(content)
    (line,) = refused(capsys, ["search", f"index={tmp_path}", "input.title=x"])
    assert message in line and "write it again" in line


def test_an_index_of_other_weights_or_of_a_lost_model_is_refused(index, capsys, tmp_path):
    for path in index.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    meta = json.loads((index / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**meta, "digest": "0"}))
    (line,) = refused(capsys, ["search", f"index={tmp_path}", "input.title=x"])
    assert "was written with other weights" in line
    (tmp_path / "index.json").write_text(json.dumps({**meta, "run": "gone"}))
    (line,) = refused(capsys, ["search", f"index={tmp_path}", "input.title=x"])
    assert "is not at gone any more; set run=RUN" in line


def test_an_index_of_a_checkpoint_that_was_replaced_is_refused(tmp_path, capsys):
    weights, table = tmp_path / "gpt2", tmp_path / "t.csv"
    byte_gpt2(weights)
    table.write_text("text\na b\nb c\nc d\n", encoding="utf-8")
    index = tmp_path / "index"
    assert main(["index", f"weights={weights}", str(table), f"output={index}"]) == 0
    query = ["search", f"index={index}", "input.text=a b", "k=1"]
    assert main(query) == 0
    # Other files in the folder, such as an index, are not part of the model.
    shutil.copytree(index, weights / "index")
    (weights / "index.json").write_text("{}")
    (weights / "notes.txt").write_text("good")
    assert main(query) == 0
    (weights / "vocab.txt").symlink_to("gone")
    capsys.readouterr()
    (line,) = refused(capsys, query)
    assert line.startswith(f"dxn: weights: {weights / 'vocab.txt'}: cannot be read (No such file")
    (weights / "vocab.txt").unlink()
    path = weights / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    save_file({**tensors, name: tensors[name] + 1}, path, metadata={"format": "pt"})
    capsys.readouterr()
    (line,) = refused(capsys, query)
    assert f"was written with other weights than those of {weights}" in line


@pytest.mark.parametrize("chunk", [1, 40, 2**24])
def test_the_exact_search_does_not_depend_on_its_chunks(chunk, monkeypatch):
    monkeypatch.setattr("dxn.runs.index.CHUNK", chunk)
    random = np.random.default_rng(0)
    vectors = random.normal(size=(53, 3)).astype(np.float32)
    vectors[17] = vectors[5]  # equal rows keep their order
    queries = random.normal(size=(4, 3)).astype(np.float32)
    rows, scores = nearest(vectors, queries, 53)
    expected = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")
    assert rows.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors.T, rows, 1), rtol=1e-6)
