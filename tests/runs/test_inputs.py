"""Tables with several inputs per modality, and what is shown of them."""

import csv
import json
import math

import numpy as np
import pytest
import soundfile
from helpers.runs import checkpoint_of, interrupt, refused, same_tensors, train, weights_of
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.runs.evaluation.subsets import subset_name, subsets
from dxn.runs.predictor.table import answer_lines

PHOTOS = ("front", "back", "left", "right")
TEXTS = ("title", "note")
INPUTS = [*TEXTS, *PHOTOS, "clip"]
WORDS = ("red", "green", "blue", "round", "square", "long")
TINY = [
    *("dim=12", "backbone.depth=2", "backbone.num_heads=2", "batch_size=7", "trainer.epochs=1"),
    *("trainer.device=cpu", "trainer.precision=float32", "adapters.text.tokenizer.kind=word"),
    *("adapters.image.image_size=8", "adapters.image.patch_size=4"),
    *("adapters.audio.sample_rate=4000", "adapters.audio.spectrogram.n_mels=8"),
    "data.exclude=[price]",
    *("preset=plain", "baseline=none"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """products.csv: 30 rows of four photos, two texts, a sound and a price, with missing cells."""
    folder = tmp_path_factory.mktemp("inputs")
    rand = np.random.default_rng(0)
    for i in range(6):
        pixels = rand.integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        soundfile.write(folder / f"{i}.wav", rand.normal(0, 0.1, 900), 4000)
    with (folder / "products.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("front", "title", "back", "left", "note", "right"),
                *("clip", "price", "label", "split"),
            ]
        )
        for i in range(30):
            photos = ["" if (i + k) % 4 == 1 else f"{(i + k) % 6}.png" for k in range(4)]
            texts = [f"{WORDS[i % 6]} {WORDS[i % 5]} {i}", f"{WORDS[i % 3]} thing {2 * i}"]
            title, note = ("" if (i + k) % 5 == 3 else text for k, text in enumerate(texts))
            clip = "" if i % 3 else f"{i % 6}.wav"
            label = ("cheap", "dear")[i % 2]
            # The photos repeat, so the splits cannot be drawn: equal inputs stay together.
            split = "validation" if i < 4 else "test" if i < 8 else "train"
            row = [photos[0], title, *photos[1:3], note, photos[3], clip, 10 * i, label, split]
            writer.writerow(row)
    return folder


def options(place, *more):
    return ["data=table", f"data.path={place / 'products.csv'}", *TINY, *more]


@pytest.fixture(scope="module")
def run(place):
    folder = place / "run"
    train(folder, *options(place, "trainer.epochs=2", "loader.input_dropout=0.3"))
    return folder


def test_every_column_becomes_an_input_of_its_own(run):
    model = dxn.load(run)
    assert model.inputs == INPUTS
    assert list(model.model.adapters) == ["text", "image", "audio"]
    assert model.columns == {name: name for name in INPUTS}
    assert model.target == "label"


@pytest.mark.parametrize("fusion", ["late", "bottleneck"])
def test_the_other_fusions_train_with_missing_cells_anywhere(place, tmp_path, fusion):
    metrics = train(tmp_path / "run", *options(place, f"fusion={fusion}"))
    assert math.isfinite(metrics["test/loss"])
    model = dxn.load(tmp_path / "run")
    for name, value in {"title": "red", "back": place / "1.png", "clip": place / "2.wav"}.items():
        shares = model.predict(**{name: value})["probabilities"]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)


def test_metrics_are_of_all_inputs_each_alone_and_each_left_out(run):
    metrics = json.loads((run / "metrics.json").read_text())
    shown = {key[len("test/loss") :] for key in metrics if key.startswith("test/loss")}
    assert shown == {"", *(f"[{n}]" for n in INPUTS), *(f"[all but {n}]" for n in INPUTS)}


def test_evaluating_again_gives_the_metrics_of_the_run(run, tmp_path):
    assert main(["evaluate", f"run={run}", f"output={tmp_path / 'all'}"]) == 0
    before, again = (json.loads((f / "metrics.json").read_text()) for f in (run, tmp_path / "all"))
    keys = [key for key in again if key.startswith("test/loss")]
    assert {k: again[k] for k in keys} == pytest.approx({k: before[k] for k in keys})
    only = ["only=[back,title]", f"output={tmp_path / 'some'}"]
    assert main(["evaluate", f"run={run}", *only]) == 0
    some = json.loads((tmp_path / "some" / "metrics.json").read_text())
    assert "test/loss[title+back]" in some


def test_a_resumed_run_has_the_same_bits(place, run, tmp_path, monkeypatch):
    asked = options(
        place, "trainer.epochs=2", "loader.input_dropout=0.3", "trainer.checkpoint_minutes=1e-9"
    )
    with interrupt(monkeypatch, step=3):
        assert main(["train", *asked, f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert same_tensors(weights_of(tmp_path / "cut"), weights_of(run))
    assert same_tensors(checkpoint_of(tmp_path / "cut"), checkpoint_of(run))


def test_a_table_is_read_from_the_columns_of_the_training(place, run, tmp_path, capsys):
    text = (place / "products.csv").read_text().splitlines()
    # The columns stand in another order, and one that also looks like an image is new.
    rows = list(csv.DictReader(text))
    names = ["spare", *reversed(rows[0])]
    for row in rows:
        row["spare"] = "0.png"
    with (place / "turned.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    answers = []
    for name in ("products.csv", "turned.csv"):
        assert main(["predict", f"run={run}", f"input={place / name}"]) == 0
        columns, *lines = capsys.readouterr().out.splitlines()
        assert columns.startswith("columns: title, note, front")
        unused = next(line for line in lines if line.startswith("note: not used: "))
        assert ("spare" in unused) == (name == "turned.csv")
        answers.append([line.partition(": ")[2] for line in lines if " row " in line])
    assert answers[0] == answers[1] and len(answers[0]) == 20


def test_a_missing_column_is_named_with_the_columns_of_the_table(run, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("title,front,extra\nred thing,,1\n")
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={tmp_path / 'new.csv'}"])
    assert "'note'" in line and "title, front, extra" in line


def test_one_file_is_not_assigned_to_one_of_several_inputs(place, run, capsys):
    (line,) = refused(capsys, ["predict", f"run={run}", f"input={place / '1.png'}"])
    assert "fits several inputs" in line and "input.front=..." in line
    assert main(["predict", f"run={run}", f"input={place / '1.wav'}"]) == 0


def test_a_number_is_a_text_on_the_command_line_and_a_sentence_in_python(run, capsys):
    assert main(["predict", f"run={run}", "input.title=42"]) == 0
    expected = dxn.load(run).predict(title="42")["prediction"]
    assert capsys.readouterr().out.startswith(f"prediction: {expected}\n")
    with pytest.raises(UserError, match=r"^title: .*42"):
        dxn.load(run).predict(title=42)


def test_a_text_file_is_read(run, tmp_path, capsys):
    (tmp_path / "note.txt").write_text("red round thing")
    assert main(["predict", f"run={run}", f"input.note={tmp_path / 'note.txt'}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == answer_lines(dxn.load(run).predict(note="red round thing"))


def test_each_input_can_have_an_adapter_of_its_own(place, tmp_path):
    asked = options(place, "share_adapters=false", "data.image=[front,back]")
    train(tmp_path / "run", *asked)
    model = dxn.load(tmp_path / "run")
    assert list(model.model.adapters) == ["title", "note", "front", "back", "clip"]
    assert model.adapters["front"] is not model.adapters["back"]
    names = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert {"title.tokenizer.json", "note.tokenizer.json"} <= names


def test_an_adapter_is_used_by_the_input_that_is_called_like_it(place, tmp_path):
    conf = tmp_path / "conf" / "adapters"
    conf.mkdir(parents=True)
    node = "back:\n  _target_: dxn.tokenize.ImageAdapter\n  dim: ${dim}\n  patch_size: 8\n"
    (conf / "back.yaml").write_text(f"{node}  image_size: 8\n")
    asked = options(place, f"conf_dir={tmp_path / 'conf'}", "adapters=[image,back]")
    train(
        tmp_path / "run", *[o for o in asked if not o.startswith(("adapters.text", "adapters.au"))]
    )
    model = dxn.load(tmp_path / "run")
    assert model.adapters["back"].tokenizer is not model.adapters["front"].tokenizer
    assert model.adapters["front"] is model.adapters["left"]


def test_texts_that_are_cut_are_counted_and_printed(place, tmp_path, capsys):
    asked = options(place, "adapters=[text]", "adapters.text.max_len=2")
    other = ("adapters.image.", "adapters.audio.")
    metrics = train(tmp_path / "run", *[o for o in asked if not o.startswith(other)])
    cut = metrics["data"]["truncated"]["title"]
    assert 0 < cut["count"] <= cut["total"]
    assert "note: title: " in capsys.readouterr().out


def test_sets_of_inputs_are_bounded_and_listed_once():
    assert subsets(["a"]) == {"all": ("a",)}
    assert list(subsets(["a", "b"])) == ["a", "b", "all"]
    assert list(subsets(["a", "b", "c"])) == ["a", "b", "c", "a+b", "a+c", "b+c", "all"]
    many = subsets([str(i) for i in range(11)])
    assert len(many) == 23 and many["all but 7"] == tuple(str(i) for i in range(11) if i != 7)
    assert subset_name(["a", "b"], ["a", "b", "c", "d", "e"]) == "a+b"
