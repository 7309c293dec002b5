"""Language models whose text follows other inputs, from the command line to the texts."""

import csv

import numpy as np
import pytest
from helpers.checkpoints import byte_gpt2
from helpers.runs import interrupt, log_of, metrics_of, refused, same_tensors, weights_of
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.datasets.shapes import COLOURS, RADII, SHAPES, Thing, draw

NUM_TRAIN, NUM_NEW = 400, 64
SMALL = ["head=language", "backbone.causal=true", "dim=32", "backbone.num_heads=2", "report=false"]
SMALL += ["trainer.device=cpu", "trainer.precision=float32", "preset=plain", "baseline=none"]
SMALL += ["adapters.text.tokenizer.kind=word", "adapters.text.max_len=8"]
SMALL += ["adapters.image.image_size=32", "adapters.image.patch_size=16"]
LEARNED = ["backbone.depth=1", "optimizer.lr=0.01", "batch_size=16", "trainer.epochs=8"]
TINY = ["backbone.depth=1", "trainer.epochs=2", "batch_size=8"]


def drawn(seed):
    """A picture of one shape, and the words that describe it."""
    rng = np.random.default_rng(seed)
    colour, shape = str(rng.choice(list(COLOURS))), str(rng.choice(SHAPES))
    thing = Thing("large", colour, shape, *rng.uniform(0.3, 0.7, 2), RADII["large"][1], 0.0)
    return draw(rng, [thing], 32), f"a {colour} {shape}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rows = [drawn(i) for i in range(NUM_TRAIN)]
    for i, (picture, _) in enumerate(rows):
        Image.fromarray(picture).save(folder / f"{i}.png")
    write_table(folder / "table.csv", [(f"{i}.png", text) for i, (_, text) in enumerate(rows)])
    return folder


def write_table(path, rows, names=("photo", "caption")):
    with path.open("w") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    """A run that takes few seconds."""
    folder = tmp_path_factory.mktemp("prefix") / "run"
    assert main(["train", str(pictures / "table.csv"), *SMALL, *LEARNED, f"run={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def model(run):
    return dxn.load(run)


def test_the_colours_of_new_pictures_are_named_much_more_often_than_by_chance(model):
    new = [drawn(10_000 + i) for i in range(NUM_NEW)]
    texts = model.write(inputs=[{"photo": picture} for picture, _ in new], max_new=6)
    right = sum(
        text.split()[1:2] == want.split()[1:2] for text, (_, want) in zip(texts, new, strict=True)
    )
    # One of 8 colours is right by chance.
    assert right > NUM_NEW // 2, (right, texts)
    # A text goes on from a prompt.
    picture, text = new[0]
    (written,) = model.write(inputs={"photo": picture}, prompt="a " + text.split()[1], max_new=6)
    assert written.startswith("a " + text.split()[1])


def test_a_text_does_not_depend_on_the_other_samples(model):
    inputs = [{"photo": drawn(i)[0]} for i in range(5)]
    inputs[2]["photo"] = inputs[2]["photo"][:20]  # another size
    together = model.write(inputs=inputs, prompt="a", count=2, max_new=5)
    alone = [model.write(inputs=each, prompt="a", max_new=5)[0] for each in inputs]
    assert together == [text for text in alone for _ in range(2)]
    several = model.write(inputs=inputs[0], prompt=["a", "a red"], max_new=5)
    assert several == [
        model.write(inputs=inputs[0], prompt=text, max_new=5)[0] for text in ("a", "a red")
    ]


def test_the_command_writes_what_the_model_writes(run, model, pictures, capsys, tmp_path):
    path = pictures / "3.png"
    for words in (["input.photo={}"], ["input={}", "prompt=a red"]):
        capsys.readouterr()
        options = [word.format(path) for word in words]
        assert main(["generate", f"run={run}", *options, "temperature=0", "max_new=5"]) == 0
        prompt = words[1].removeprefix("prompt=") if len(words) > 1 else ""
        (text,) = model.write(inputs={"photo": str(path)}, prompt=prompt, max_new=5)
        assert capsys.readouterr().out.strip() == text
    assert main(["generate", f"run={run}", "prompt=a red", "max_new=5"]) == 0  # no picture


@pytest.mark.parametrize(
    ("inputs", "prompt", "message"),
    [
        ({"caption": "a red ring"}, "", "set prompt=..., or input.photo=..."),
        ([{"photo": drawn(0)[0]}] * 2, ["a"] * 3, "got 2 samples and 3 prompts"),
    ],
)
def test_wrong_inputs_are_one_sentence(model, inputs, prompt, message):
    with pytest.raises(UserError, match=message):
        model.write(inputs=inputs, prompt=prompt)


def test_the_suggested_command_has_a_picture_and_no_prompt(pictures, tmp_path, capsys):
    rows = [(str(pictures / f"{i}.png"), drawn(i)[1]) for i in range(40)]
    table = write_table(pictures / "some.csv", rows)
    assert main(["train", str(table), *SMALL, *TINY, f"run={tmp_path / 'run'}"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("next: dxn generate") and "input.photo=" in line
    assert "prompt=" not in line and "caption" not in line


def test_rows_without_a_picture_and_columns_of_other_kinds(pictures, tmp_path):
    rows = [
        (f"{i}.png" if i % 3 else "", i % 5, ["new", "old"][i % 2], drawn(i)[1]) for i in range(60)
    ]
    names = ("photo", "count", "kind", "caption")
    table = write_table(pictures / "missing.csv", rows, names)
    assert main(["train", str(table), *SMALL, *TINY, f"run={tmp_path / 'run'}"]) == 0
    model = dxn.load(tmp_path / "run")
    assert list(model.inputs)[-1] == "caption" and len(model.inputs) == 4
    inputs = [{"photo": drawn(0)[0]}, {"count": 3, "kind": "new"}, {"kind": "old"}]
    together = model.write(inputs=inputs, max_new=4)
    assert together == [model.write(inputs=each, max_new=4)[0] for each in inputs]
    # The picture of a row that has none has no columns.
    assert main(["evaluate", f"run={tmp_path / 'run'}"]) == 0
    (folder,) = (tmp_path / "run" / "evaluate").iterdir()
    assert metrics_of(folder)["test/loss"] == pytest.approx(
        metrics_of(tmp_path / "run")["test/loss"], rel=1e-4
    )


def test_resuming_gives_the_same_weights(pictures, tmp_path, monkeypatch):
    rows = [(str(pictures / f"{i}.png"), drawn(i)[1]) for i in range(40)]
    words = [str(write_table(pictures / "some.csv", rows)), *SMALL, *TINY]
    words += ["trainer.checkpoint_minutes=1e-9", "trainer.log_every=1"]
    assert main(["train", *words, f"run={tmp_path / 'whole'}"]) == 0
    with interrupt(monkeypatch, step=6):
        assert main(["train", *words, f"run={tmp_path / 'half'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'half'}"]) == 0
    assert log_of(tmp_path / "half") == log_of(tmp_path / "whole")
    assert same_tensors(weights_of(tmp_path / "half"), weights_of(tmp_path / "whole"))


@pytest.mark.parametrize("chosen", [["data.chat=[prompt,response]"], ["data.image=photo"]])
def test_questions_about_pictures_are_answered(chosen, pictures, tmp_path, capsys):
    """The messages of a conversation follow the tokens of the picture of its row."""
    rows = []
    for i in range(60):
        _, colour, shape = drawn(i)[1].split()
        question, answer = [("colour?", colour), ("shape?", shape)][i % 2]
        rows.append((f"{i}.png", question, answer))
    table = write_table(pictures / "asked.csv", rows, ("photo", "prompt", "response"))
    words = [*SMALL, *TINY, *chosen]
    words += ["adapters.text.max_len=32"]
    assert main(["train", str(table), *words, f"run={tmp_path / 'run'}"]) == 0
    assert "conversations: prompt (user), response (assistant)" in capsys.readouterr().out
    model = dxn.load(tmp_path / "run")
    assert list(model.inputs) == ["photo", "messages"]
    photo = drawn(1)[0]
    assert isinstance(model.write(inputs={"photo": photo}, prompt="colour?", max_new=4)[0], str)


def test_two_columns_of_texts_are_refused(pictures, capsys):
    rows = [(f"{i}.png", drawn(i)[1], f"number {i} of a longer list") for i in range(40)]
    table = write_table(pictures / "two.csv", rows, ("photo", "caption", "notes"))
    (line,) = refused(capsys, ["train", table, *SMALL, *TINY])
    assert "needs exactly one text, got caption, notes; set data.text=notes" in line


def test_a_model_with_a_picture_is_not_exported(run, tmp_path, capsys):
    (line,) = refused(capsys, ["export", f"run={run}", f"output={tmp_path / 'out'}"])
    assert "export: a language model with other inputs than a text cannot be exported" in line


def test_public_weights_of_a_language_model_learn_to_describe_pictures(pictures, tmp_path, capsys):
    source = byte_gpt2(tmp_path / "gpt2")
    rows = [(str(pictures / f"{i}.png"), drawn(i)[1]) for i in range(40)]
    table = write_table(pictures / "some.csv", rows)
    words = ["head=language", f"weights={source}", "adapters=[text,image]", "report=false"]
    words += ["trainer.epochs=1", "trainer.precision=float32", "trainer.device=cpu"]
    words += ["adapters.image.image_size=32", "optimizer.lr=0", f"run={tmp_path / 'run'}"]
    assert main(["train", str(table), *words]) == 0
    model = dxn.load(tmp_path / "run")
    # Without a picture, the loaded weights are those of the checkpoint.
    public = dxn.from_public(source)
    model.model.fusion.input_embedding.weight.data.zero_()
    assert model.write(prompt=["a red", "b"], max_new=9) == public.write(
        prompt=["a red", "b"], max_new=9
    )
    assert model.write(inputs={"photo": str(pictures / "3.png")}, max_new=3)
