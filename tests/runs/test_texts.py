"""Trainings of models that write texts, from the command line to the written text."""

import csv
import random

import pytest
import torch
from helpers.runs import (
    checkpoint_of,
    interrupt,
    log_of,
    metrics_of,
    refused,
    same_tensors,
    weights_of,
)
from PIL import Image
from tokenizers import Tokenizer

import dxn
from dxn.cli import main
from dxn.commands.predict import MAX_PRINTED
from dxn.core.errors import UserError
from dxn.models import greedy, make_sampler

WORDS = ["red", "blue", "green", "ball", "cat", "dog", "bird", "sits", "runs", "sings"]
SPLITS = {"train": 23, "validation": 7, "test": 5}
TINY = [
    *(
        "dim=16",
        "backbone.depth=1",
        "backbone.num_heads=2",
        "trainer.precision=float32",
        "trainer.device=cpu",
    ),
    *("trainer.epochs=2", "batch_size=11", "adapters=[text]"),
]
TINY_OTHER = [line for line in TINY if not line.startswith("adapters=")]
TEXTS = [*TINY, "adapters.text.tokenizer.kind=word"]
SHARED = ["head=generate", "head.share_tokenizer=true", "head.max_len=8"]
WRITER = ["head=generate", "head.tokenizer.kind=word", "head.max_len=8"]
LANGUAGE = [*TINY, "head=language", "adapters.text.tokenizer.kind=character", "data=text"]
LANGUAGE += ["adapters.text.max_len=17"]
CAUSAL = "backbone.causal=true"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table of sentences and their words backwards in capitals, and a plain text."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    with (folder / "pairs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["read", "written", "split"])
        for split, count in SPLITS.items():
            for i in range(count):
                words = [draw.choice(WORDS) for _ in range(2 + i % 4)] + [f"only{split}"] * (i < 2)
                table.writerow([" ".join(words), " ".join(words[::-1]).upper(), split])
    (folder / "plain.txt").write_text("the red cat sits and the blue bird sings. " * 20)
    return folder


def pairs(place, *more):
    asked = [
        "data=table",
        f"data.path={place / 'pairs.csv'}",
        "data.text=read",
        "data.target=written",
    ]
    return [*TEXTS, *asked, *more]


def plain(place, *more):
    return [*LANGUAGE, f"data.path={place / 'plain.txt'}", *more]


def train(folder, overrides):
    assert main(["train", *overrides, f"run={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def writer(place):
    return train(place / "writer", pairs(place, *WRITER))


@pytest.fixture(scope="module")
def language(place):
    return train(place / "language", plain(place, CAUSAL))


def answer_of(capsys, *arguments):
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


# Texts of texts


def test_a_writer_leaves_metrics_and_one_text_per_row(writer, place):
    found = metrics_of(writer)
    tests = {key.removeprefix("test/") for key in found if key.startswith("test/")}
    names = {"bleu", "chrf", "wer", "wer_normalized", "cer", "exact_match"}
    similar = {f"{name}[text of the most similar row]" for name in names}
    assert tests == {"loss"} | names | similar
    assert 0 < found["test/loss"] < 4 and found["data"]["rows"] == SPLITS
    with (writer / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (place / "pairs.csv").open() as file:
        true = [row["written"] for row in csv.DictReader(file) if row["split"] == "test"]
    assert list(rows[0]) == ["file", "row", "read", "target", "prediction"]
    assert [row["target"] for row in rows] == true
    assert [row["read"] for row in rows] == inputs_of(place, "test")
    model = dxn.load(writer)
    assert [row["prediction"] for row in rows] == [
        model.predict(read=text)["prediction"] for text in inputs_of(place, "test")
    ]


def inputs_of(place, split):
    with (place / "pairs.csv").open() as file:
        return [row["read"] for row in csv.DictReader(file) if row["split"] == split]


def test_both_tokenizers_are_trained_on_the_training_split_alone(writer):
    """Each split has a word of its own."""
    names = ("tokenizer.json", "target_tokenizer.json")
    read, written = (
        Tokenizer.from_file(str(writer / "model" / name)).get_vocab() for name in names
    )
    assert {piece for piece in read if "only" in piece.lower()} == {"onlytrain"}
    assert {piece for piece in written if "only" in piece.lower()} == {"ONLYTRAIN"}
    assert "red" in read and "RED" not in read and "RED" in written and "red" not in written


def test_head_auto_chooses_a_writer_for_texts(place, tmp_path):
    folder = train(tmp_path / "run", pairs(place, "head=auto", "trainer.epochs=1"))
    assert "dxn.tasks.Generate" in (folder / "model" / "config.yaml").read_text()
    assert isinstance(dxn.load(folder).predict(read="red ball")["prediction"], str)


def test_a_model_from_its_folder_writes_what_its_sampler_chooses(writer):
    model = dxn.load(writer / "model")
    first = model.write(inputs={"read": "red ball"}, max_new=6, sampler=greedy)
    assert (
        first == dxn.load(writer).write(inputs={"read": "red ball"}, max_new=6, sampler=greedy)
        and len(first) == 1
    )
    drawn = [make_sampler(9.0, top_k=None, top_p=None, seed=seed) for seed in (1, 1, 2)]
    one, again, other = (
        model.write(inputs={"read": "red ball"}, count=3, sampler=sampler) for sampler in drawn
    )
    assert one == again != other and len(one) == 3
    assert all(word.isupper() for text in one for word in text.split())
    assert len(set(one)) > 1
    assert all(
        len(text.split()) <= 2
        for text in model.write(inputs={"read": "red"}, count=5, max_new=2, sampler=drawn[0])
    )


def test_every_verb_answers_with_the_same_text(writer, place, capsys):
    run, given = f"run={writer}", "input.read=red ball"
    told = answer_of(capsys, "predict", run, given)
    assert told == f"prediction: {dxn.load(writer).predict(read='red ball')['prediction']}\n"
    listed = answer_of(capsys, "predict", run, f"input={place / 'pairs.csv'}").splitlines()
    assert listed[0] == "columns: read"
    assert sum(line.startswith("pairs.csv row ") for line in listed) == MAX_PRINTED
    hot = ["temperature=9", "count=3", "max_new=4"]
    said = answer_of(capsys, "generate", run, given, *hot)
    assert said == answer_of(capsys, "generate", run, given, *hot, "seed=0")
    assert said != answer_of(capsys, "generate", run, given, *hot, "seed=1")
    # Beam search, and not the most probable token at each step.
    assert dxn.load(writer).task.beams > 1
    sure = answer_of(capsys, "generate", run, given)
    assert told == f"prediction: {sure}"
    assert sure == answer_of(capsys, "generate", run, given, "temperature=0")
    assert [sure.strip()] == dxn.load(writer).write(inputs={"read": "red ball"})
    assert answer_of(capsys, "embed", run, given).startswith("embedding: 16 numbers")


def test_evaluating_a_writer_again_gives_the_metrics_of_its_run(writer, tmp_path):
    assert main(["evaluate", f"run={writer}", f"output={tmp_path}"]) == 0
    again, before = metrics_of(tmp_path), metrics_of(writer)
    # The simple method learns from the training rows.
    own = {k: v for k, v in before.items() if k.startswith("test/") and "[" not in k}
    assert own == {k: pytest.approx(v, abs=1e-6) for k, v in again.items() if k.startswith("test/")}
    assert (tmp_path / "predictions.csv").read_text() == (writer / "predictions.csv").read_text()


def test_an_interrupted_writer_resumes_bit_for_bit(place, tmp_path, monkeypatch):
    random_parts = ["backbone.dropout=0.2", "adapters.text.augment.token_dropout=0.2"]
    asked = pairs(place, *SHARED, *random_parts)
    asked += ["trainer.ema_decay=0.9", "trainer.checkpoint_minutes=1e-9"]
    train(tmp_path / "whole", asked)
    with interrupt(monkeypatch, step=5):  # of 3 per epoch
        assert main(["train", *asked, f"run={tmp_path / 'cut'}"]) == 130
    monkeypatch.setattr(
        "dxn.tokenize.text.tokenizer.train_tokenizer",
        lambda *_, **__: pytest.fail("trained again"),
    )
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert same_tensors(weights_of(tmp_path / "cut"), weights_of(tmp_path / "whole"))
    assert same_tensors(*(checkpoint_of(tmp_path / name) for name in ("cut", "whole")))
    # One embedding for what is read and what is written, and both tokenizers are equal.
    embeddings = [n for n in weights_of(tmp_path / "whole") if n.endswith("embedding.weight")]
    assert embeddings == ["adapters.text.embedding.weight"]
    kept = [
        (tmp_path / "whole" / "model" / f"{n}tokenizer.json").read_text() for n in ("", "target_")
    ]
    assert kept[0] == kept[1] and '"RED"' in kept[0] and '"red"' in kept[0]
    assert dxn.load(tmp_path / "cut").predict(read="red cat") == dxn.load(
        tmp_path / "whole"
    ).predict(read="red cat")


# A language


def test_a_language_model_is_evaluated_on_the_last_split(language):
    found = metrics_of(language)
    shown = {key.removeprefix("validation/") for key in found if key.startswith("validation/")}
    assert shown == {"loss", "loss_per_char", "perplexity", "best"}
    assert found["validation/perplexity"] == pytest.approx(
        torch.tensor(found["validation/loss"]).exp().item()
    )
    assert found["validation/loss_per_char"] == found["validation/loss"]  # a token is a character
    assert found["validation/best"] == found["validation/loss_per_char"]
    assert not (language / "predictions.csv").exists()


def test_evaluating_a_language_model_again_gives_the_metrics_of_its_run(language, tmp_path):
    assert main(["evaluate", f"run={language}", f"output={tmp_path}"]) == 0
    assert metrics_of(tmp_path)["validation/loss"] == pytest.approx(
        metrics_of(language)["validation/loss"], abs=1e-6
    )


def test_token_ids_in_a_file_give_the_same_training_and_the_same_resume(
    language, place, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("dxn.data.token_windows.MAX_IN_MEMORY", 0)
    with interrupt(monkeypatch, step=7):
        assert main(["train", *plain(place, CAUSAL), f"run={tmp_path / 'cut'}"]) == 130
    # One file of ids, and one of the starts of the texts, for each split.
    written = {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("*.npy")}
    assert len(written) == 4
    assert main(["train", f"resume={tmp_path / 'cut'}", "loader.num_workers=2"]) == 0
    assert {path: path.stat().st_ino for path in written} == written  # not written again
    assert log_of(tmp_path / "cut") == log_of(language)
    assert same_tensors(weights_of(tmp_path / "cut"), weights_of(language))
    assert same_tensors(checkpoint_of(tmp_path / "cut"), checkpoint_of(language))


def test_a_language_model_continues_a_text(language, capsys):
    run = f"run={language}"
    prompt = "the red cat sits and"  # longer than the 17 characters that it reads at a time
    assert main(["generate", run, f"prompt={prompt}", "max_new=40", "temperature=0"]) == 0
    said, noted = capsys.readouterr()
    cut = "the prompt has 20 tokens, and the model reads at most 17"
    assert noted.startswith(f"note: {cut}")
    with pytest.warns(UserWarning, match=cut):
        again = dxn.load(language).write(prompt=prompt, max_new=40)
    assert said == again[0] + "\n" and said.startswith(prompt) and len(again[0]) > len(prompt)
    with pytest.warns(UserWarning, match=cut):
        assert again[0].startswith(dxn.load(language).write(prompt=prompt, max_new=3)[0])
    assert answer_of(capsys, "generate", run, "max_new=11", "temperature=0") == (
        dxn.load(language).write(max_new=11)[0] + "\n"
    )
    many = answer_of(capsys, "generate", run, "prompt=the", "count=3", "max_new=7").splitlines()
    texts = [line for line in many if line.startswith("the")]
    assert len(texts) == 3 and len(set(texts)) > 1 and len(many) == 5  # a rule between each two
    told = answer_of(capsys, "embed", run, "input.text=the red")
    assert told.startswith("embedding: 16 numbers")


PROMPTS = ["the red cat sits", "a", "the blue"]


def test_several_prompts_are_continued_like_each_of_them(language):
    model = dxn.load(language)
    single = [model.write(prompt=prompt, max_new=9)[0] for prompt in PROMPTS]
    assert model.write(prompt=PROMPTS, max_new=9) == single
    assert model.write(prompt=PROMPTS, max_new=9, batch_size=2) == single
    twice = [text for text in single for _ in range(2)]
    assert model.write(prompt=PROMPTS, max_new=9, count=2) == twice
    assert model.write(prompt=[]) == []


def test_several_samples_are_written_about_like_each_of_them(writer):
    model, samples = dxn.load(writer), [{"read": "red ball"}, {"read": "a blue bird sings"}]
    single = [model.write(inputs=sample)[0] for sample in samples]
    assert model.write(inputs=samples) == single
    assert model.write(inputs=samples, batch_size=1, count=2) == [
        text for text in single for _ in range(2)
    ]


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.csv", "prompts.jsonl"])
def test_a_file_of_prompts_is_continued_into_a_table(language, tmp_path, capsys, name):
    lines = {
        "prompts.txt": "{}\n\n{}\n{}\n",
        "prompts.csv": "number,prompt\n1,{}\n2,{}\n3,{}\n",
        "prompts.jsonl": '{{"prompt": "{}"}}\n{{"prompt": "{}"}}\n{{"prompt": "{}"}}\n',
    }
    (tmp_path / name).write_text(lines[name].format(*PROMPTS))
    told = [f"run={language}", f"prompts={tmp_path / name}", "max_new=9", "temperature=0"]
    expected = dxn.load(language).write(prompt=PROMPTS, max_new=9)
    output = tmp_path / "texts.csv"
    said = answer_of(capsys, "generate", *told, f"output={output}", "count=2")
    assert said == f"written: {output} (6 rows)\n"
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["prompt"] for row in rows[::2]] == PROMPTS
    written = [row["generated"] for row in rows]
    assert written[::2] == written[1::2] == expected
    shown = answer_of(capsys, "generate", *told)
    assert all(text in shown for text in expected)


@pytest.mark.parametrize(
    ("content", "asked", "message"),
    [
        ("text\nred\n", [], "prompts: no column 'prompt' in p.csv; its columns are text"),
        ("prompt,n\nred,1\n,2\n", [], "prompts: p.csv row 3: the prompt is empty; remove"),
        ("prompt\n", [], "contains no prompts; write one per line or row"),
        ("prompt\nred\n", ["prompt=red"], "prompt, prompts: set only one of them"),
        ("prompt\nred\n", ["output=x.doc"], "output: must be a file that ends in .csv"),
        ("prompt\nred\n", ["batch_size=0"], "batch_size: must be at least 1, got 0"),
        ("prompt\nred\n", ["prompts=q.csv"], "q.csv"),
        ("prompt\nred\n", ["create=image"], "create: needs a model of head=any, got create=image"),
        ("prompt\nred\n", ["guidance=2"], "guidance: needs a model of head=any, got guidance=2"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used_is_explained(
    language, tmp_path, capsys, content, asked, message
):
    (tmp_path / "p.csv").write_text(content)
    given = [f"prompts={tmp_path / 'p.csv'}", *asked]
    if "prompts=q.csv" in asked:
        given = asked
    assert message in refused(capsys, ["generate", f"run={language}", *given])[0]


# What cannot be


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["prompt=red"], "input: this model generates a text for input.read=...; got a prompt"),
        ([], "input: this model generates a text for input.read=...; got no input"),
        (["input.read=red", "prompt=red"], "got a prompt"),
        (["input=red.png"], "input: 'red.png' fits no input; name the input: input.read=..."),
        (["input.image=red.png"], "input.image: there is no such input; the inputs are read"),
        (["input.read=red", "count=0"], "count: must be at least 1, got 0"),
        (["input.read=red", "max_new=0"], "max_new: must be at least 1, got 0"),
        (["input.read=red", "temperature=-1"], "dxn: temperature: must be at least 0, got -1"),
        (["input.read=red", "top_p=2"], "dxn: top_p: must be at most 1, got 2"),
        (["input.read=red", "top_k=0"], "dxn: top_k: must be at least 1, got 0"),
        (["input.read= "], "blank text"),
        (["input.read=red", "beam=3"], "beam: no such key"),
    ],
)
def test_generate_explains_what_a_writer_cannot_use(writer, capsys, asked, message):
    assert message in refused(capsys, ["generate", f"run={writer}", *asked])[0]


@pytest.mark.parametrize(
    ("verb", "asked", "message"),
    [
        (
            "generate",
            ["input.text=red"],
            "input: a language model continues a text; set prompt=...",
        ),
        ("predict", ["input.text=red"], "this model cannot predict (its task is language)"),
        ("predict", ["input={place}"], "this model cannot predict (its task is language)"),
    ],
)
def test_a_language_model_explains_what_it_cannot_answer(
    language, place, capsys, verb, asked, message
):
    given = [argument.format(place=place / "pairs.csv") for argument in asked]
    assert message in refused(capsys, [verb, f"run={language}", *given])[0]


def test_only_a_model_that_writes_writes(tmp_path, capsys):
    small = ["data.num_train=11", "data.num_validation=3", "data.num_test=3", "trainer.epochs=1"]
    train(tmp_path / "run", [*TINY, "data=digits", *small])
    (line,) = refused(capsys, ["generate", f"run={tmp_path / 'run'}", "prompt=red"])
    assert "generates no text (its task is classify); use dxn predict" in line


@pytest.mark.parametrize(
    ("make", "asked", "message"),
    [
        (plain, [], "set backbone.causal=true"),
        (plain, [CAUSAL, "adapters.text.augment.token_mask=0.1"], "augment.token_mask: cannot be"),
        (plain, [CAUSAL, "adapters.text.augment.token_dropout=0.1"], "token_dropout: cannot be"),
        (
            plain,
            [CAUSAL, "adapters.text.augment.subword_dropout=0.1"],
            "subword_dropout: cannot be",
        ),
        (plain, [CAUSAL, "adapters.text.conv_kernel=3"], "adapters.text.conv_kernel: cannot"),
        (plain, [CAUSAL, "data.fractions=[0.5,0.4]"], "data.fractions: must"),
        (plain, ["head=generate"], "data.target: needs a value"),
        (plain, [CAUSAL, "head.max_len=9"], "head.max_len: no such key"),
        (pairs, [*WRITER, "head.max_len=1"], "head.max_len: must be at least 2"),
        (pairs, [*WRITER, "head.beams=0"], "head.beams: must be at least 1, got 0"),
        (
            pairs,
            [*SHARED, "head.tokenizer.path=t.json"],
            "head: share_tokenizer and tokenizer.path cannot be set together",
        ),
        (
            pairs,
            [*WRITER, "head.vocab=3"],
            "head.vocab: no such key",
        ),
    ],
)
def test_what_cannot_be_trained_is_explained_and_writes_nothing(
    place, tmp_path, capsys, make, asked, message
):
    lines = refused(capsys, ["train", *make(place, *asked), f"run={tmp_path / 'run'}"])
    assert message in "\n".join(lines)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "asked", "task"), [(pairs, WRITER, "generate"), (plain, [CAUSAL], "language")]
)
def test_texts_are_not_mixed(place, tmp_path, capsys, make, asked, task):
    asked = make(place, *asked, "trainer.mixup=0.5", f"run={tmp_path / 'run'}")
    (line,) = refused(capsys, ["train", *asked])
    assert line.endswith(f"trainer.mixup: cannot be combined with head={task}; set trainer.mixup=0")


def test_a_tokenizer_is_only_shared_with_an_input_that_has_one(tmp_path, capsys):
    digits = ["data=digits", "data.num_train=23", "data.num_validation=7", "data.num_test=5"]
    asked = ["adapters=[image]", "head=language", CAUSAL]
    (line,) = refused(capsys, ["train", *TINY_OTHER, *digits, *asked, f"run={tmp_path / 'run'}"])
    assert "head=language: needs an input with a vocabulary, got image" in line
    asked = [*pictures(tmp_path), *SHARED]
    (line,) = refused(capsys, ["train", *TINY_OTHER, *asked, f"run={tmp_path / 'run'}"])
    assert "head.share_tokenizer: no input has a vocabulary, got image; set" in line


def pictures(folder):
    """A table of seven pictures with texts, and the options that train on it."""
    rows = ["image,written"]
    for i in range(7):
        Image.new("RGB", (8, 8), (30 * i, 0, 0)).save(folder / f"{i}.png")
        rows.append(f"{i}.png,red {i}")
    (folder / "pictures.csv").write_text("\n".join(rows))
    table = ["data=table", f"data.path={folder / 'pictures.csv'}", "data.target=written"]
    image = ["adapters=[image]", "adapters.image.patch_size=4", "adapters.image.image_size=8"]
    return [*table, *image]


def test_a_model_that_reads_pictures_writes_about_a_picture(tmp_path, capsys):
    asked = [*TINY_OTHER, *pictures(tmp_path), *WRITER, "trainer.epochs=1"]
    folder = train(tmp_path / "run", asked)
    picture = tmp_path / "3.png"
    said = answer_of(capsys, "generate", f"run={folder}", f"input.image={picture}", "temperature=0")
    assert said.strip() == dxn.load(folder).write(inputs={"image": picture})[0]
    with pytest.raises(UserError, match=r"generates a text for input\.image=\.\.\.; got a prompt"):
        dxn.load(folder).write(prompt="red")
