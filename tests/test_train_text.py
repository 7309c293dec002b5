"""Trainings of models that write, from the command line to what they write."""

import csv
import json
import random

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import dxn
from dxn.cli import main
from dxn.errors import UserError
from dxn.models.decoder import greedy, picking
from dxn.train.loop import Run

WORDS = ["red", "blue", "green", "ball", "cat", "dog", "bird", "sits", "runs", "sings"]
SPLITS = {"train": 23, "validation": 7, "test": 5}
TINY = [
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32", "trainer.device=cpu"),
    *("trainer.epochs=2", "batch_size=11", "adapters=[text]"),
]
TEXTS = [*TINY, "adapters.text.subwords=word", "target_text.subwords=word", "target_text.max_len=8"]
LANGUAGE = [*TINY, "head=language", "adapters.text.subwords=character", "adapters.text.max_len=17", "data=text"]
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
                words = [draw.choice(WORDS) for _ in range(2 + i % 4)] + [f"only{split}"] * (i == 0)
                table.writerow([" ".join(words), " ".join(words[::-1]).upper(), split])
    (folder / "plain.txt").write_text("the red cat sits and the blue bird sings. " * 20)
    return folder


def pairs(place, *more):
    asked = ["data=table", f"data.path={place / 'pairs.csv'}", "data.text=read", "data.target=written"]
    return [*TEXTS, *asked, "data.kind=text", *more]


def plain(place, *more):
    return [*LANGUAGE, f"data.path={place / 'plain.txt'}", *more]


def train(folder, overrides):
    assert main(["train", *overrides, f"run={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def writer(place):
    return train(place / "writer", pairs(place, "head=generate"))


@pytest.fixture(scope="module")
def language(place):
    return train(place / "language", plain(place, CAUSAL))


def figures(folder):
    return json.loads((folder / "metrics.json").read_text())


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def answer_of(capsys, *arguments):
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


# Texts of texts


def test_a_writer_leaves_its_figures_and_what_it_wrote_row_by_row(writer, place):
    found = figures(writer)
    tests = {key.removeprefix("test/") for key in found if key.startswith("test/")}
    assert tests == {"loss", "bleu", "chrf", "wer", "cer", "exact_match"}
    assert 0 < found["test/loss"] < 4 and found["rows"] == SPLITS
    with (writer / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (place / "pairs.csv").open() as file:
        true = [row["written"] for row in csv.DictReader(file) if row["split"] == "test"]
    assert list(rows[0]) == ["row", "true", "predicted"] and [row["true"] for row in rows] == true
    model = dxn.load(writer)
    assert [row["predicted"] for row in rows] == [
        model.predict(text=text)["prediction"] for text in inputs_of(place, "test")
    ]


def inputs_of(place, split):
    with (place / "pairs.csv").open() as file:
        return [row["read"] for row in csv.DictReader(file) if row["split"] == split]


def test_both_tokenizers_are_learned_on_the_training_split_alone(writer):
    """Each split has a word of its own."""
    names = ("tokenizer.json", "target_tokenizer.json")
    read, written = (Tokenizer.from_file(str(writer / "model" / name)).get_vocab() for name in names)
    assert {piece for piece in read if "only" in piece.lower()} == {"onlytrain"}
    assert {piece for piece in written if "only" in piece.lower()} == {"ONLYTRAIN"}
    assert "red" in read and "RED" not in read and "RED" in written and "red" not in written


def test_the_head_that_fits_a_text_writes_it(writer, place):
    folder = train(place / "auto", pairs(place, "head=auto"))
    assert same(weights(folder), weights(writer))
    assert "dxn.models.Generate" in (folder / "model" / "config.yaml").read_text()


def test_a_model_from_its_folder_writes_what_its_decoder_says(writer):
    model = dxn.load(writer / "model")
    first = model.write(given={"text": "red ball"}, max_new=6)
    assert first == dxn.load(writer).write(given={"text": "red ball"}, max_new=6, pick=greedy) and len(first) == 1
    drawn = [picking(9.0, top_k=None, top_p=None, seed=seed) for seed in (1, 1, 2)]
    one, again, other = (model.write(given={"text": "red ball"}, count=3, pick=pick) for pick in drawn)
    assert one == again != other and len(one) == 3
    assert all(word.isupper() for text in one for word in text.split())
    assert len(set(one)) > 1
    assert all(len(text.split()) <= 2 for text in model.write(given={"text": "red"}, count=5, max_new=2, pick=drawn[0]))


def test_a_trained_writer_answers_on_the_command_line(writer, place, capsys):
    run, given = f"run={writer}", "input.text=red ball"
    told = json.loads(answer_of(capsys, "predict", run, given))
    assert told == dxn.load(writer).predict(text="red ball")
    listed = answer_of(capsys, "predict", run, f"input={place / 'pairs.csv'}").splitlines()
    assert len(listed) == sum(SPLITS.values()) and listed[0].startswith("pairs.csv row 2: ")
    hot = ["temperature=9", "count=3", "max_new=4"]
    said = answer_of(capsys, "generate", run, given, *hot)
    assert said == answer_of(capsys, "generate", run, given, *hot, "seed=0")
    assert said != answer_of(capsys, "generate", run, given, *hot, "seed=1")
    sure = answer_of(capsys, "generate", run, given, "temperature=0")
    assert sure.strip() == dxn.load(writer).write(given={"text": "red ball"})[0]
    vector = json.loads(answer_of(capsys, "embed", run, given))
    assert len(vector) == 16


def test_evaluating_a_writer_again_gives_the_figures_of_its_run(writer, tmp_path):
    assert main(["evaluate", f"run={writer}", f"output={tmp_path}"]) == 0
    again, before = figures(tmp_path), figures(writer)
    assert {k: v for k, v in before.items() if k.startswith("test/")} == {
        k: pytest.approx(v, abs=1e-6) for k, v in again.items() if k.startswith("test/")
    }
    assert (tmp_path / "predictions.csv").read_text() == (writer / "predictions.csv").read_text()


def test_a_writer_that_was_cut_goes_on_bit_for_bit(place, tmp_path, monkeypatch):
    random_parts = ["backbone.dropout=0.2", "adapters.text.token_dropout=0.2", "trainer.average=0.9"]
    asked = pairs(place, *random_parts, "target_text.share=true", "trainer.checkpoint_every=1")
    train(tmp_path / "whole", asked)
    step = Run.step

    def cut(run):
        step(run)
        if run.state.step == 5:  # of 3 an epoch
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", cut)
        assert main(["train", *asked, f"run={tmp_path / 'cut'}"]) == 130
    monkeypatch.setattr("dxn.tokenize.target.train_tokenizer", lambda *_, **__: pytest.fail("learned again"))
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert same(*(load_file(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("cut", "whole")))
    # One table for what is read and what is written, and both tokenizers are one.
    assert [name for name in weights(tmp_path / "whole") if name.endswith("table.weight")] == [
        "adapters.text.table.weight"
    ]
    kept = [(tmp_path / "whole" / "model" / f"{n}tokenizer.json").read_text() for n in ("", "target_")]
    assert kept[0] == kept[1] and '"RED"' in kept[0] and '"red"' in kept[0]
    assert dxn.load(tmp_path / "cut").predict(text="red cat") == dxn.load(tmp_path / "whole").predict(text="red cat")


# A language


def test_a_language_leaves_its_figures_of_the_last_split(language):
    found = figures(language)
    shown = {key.removeprefix("validation/") for key in found if key.startswith("validation/")}
    assert shown == {"loss", "loss_per_char", "perplexity", "best"}
    assert found["validation/perplexity"] == pytest.approx(torch.tensor(found["validation/loss"]).exp().item())
    assert found["validation/loss_per_char"] == found["validation/loss"]  # a token is a character
    assert found["validation/best"] == found["validation/loss_per_char"]
    assert not (language / "predictions.csv").exists()


def test_evaluating_a_language_again_gives_the_figures_of_its_run(language, tmp_path):
    assert main(["evaluate", f"run={language}", f"output={tmp_path}"]) == 0
    assert figures(tmp_path)["validation/loss"] == pytest.approx(figures(language)["validation/loss"], abs=1e-6)


def test_a_language_goes_on_with_a_text(language, capsys):
    run = f"run={language}"
    prompt = "the red cat sits and"  # longer than the 17 characters that it reads at a time
    said = answer_of(capsys, "generate", run, f"prompt={prompt}", "max_new=40", "temperature=0")
    again = dxn.load(language).write(prompt=prompt, max_new=40)
    assert said == again[0] + "\n" and said.startswith(prompt) and len(again[0]) > len(prompt)
    assert again[0].startswith(dxn.load(language).write(prompt=prompt, max_new=3)[0])
    assert answer_of(capsys, "generate", run, "max_new=11", "temperature=0") == (
        dxn.load(language).write(max_new=11)[0] + "\n"
    )
    many = answer_of(capsys, "generate", run, "prompt=the", "count=3", "max_new=7").splitlines()
    texts = [line for line in many if line.startswith("the")]
    assert len(texts) == 3 and len(set(texts)) > 1 and len(many) == 5  # a rule between each two
    assert len(json.loads(answer_of(capsys, "embed", run, "input.text=the red"))) == 16


# What cannot be


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["prompt=red"], "this model writes of its text: give input, and no prompt"),
        ([], "this model writes of its text: give input, and no prompt"),
        (["input.text=red", "prompt=red"], "give input, and no prompt"),
        (["input=red"], "input: name what it is, input.text=... input.image=... or input.audio=..."),
        (["input.image=red.png"], "this model takes text, got image"),
        (["input.text=red", "count=0"], "count and max_new: must be at least 1, got 0 and 200"),
        (["input.text=red", "max_new=0"], "count and max_new: must be at least 1, got 1 and 0"),
        (["input.text=red", "temperature=-1"], "temperature, top_k, top_p: needs temperature > 0"),
        (["input.text=red", "top_p=2"], "temperature, top_k, top_p: needs temperature > 0, top_k >= 1, 0 < top_p <= 1"),
        (["input.text=red", "top_k=0"], "temperature, top_k, top_p: needs"),
        (["input.text= "], "blank text"),
        (["input.text=red", "beam=3"], "beam: no such key"),
    ],
)
def test_what_a_writer_cannot_write_of_says_why(writer, capsys, asked, message):
    assert main(["generate", f"run={writer}", *asked]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "asked", "message"),
    [
        ("generate", ["input.text=red"], "input: a language model goes on with a text: give it as prompt"),
        ("predict", ["input.text=red"], "a language model has no answer to predict: let it go on with a text"),
        ("predict", ["input=pairs.csv"], "input: a language model answers no table: let it go on with a text"),
    ],
)
def test_what_a_language_cannot_answer_says_why(language, capsys, verb, asked, message):
    assert main([verb, f"run={language}", *asked]) == 2
    assert message in capsys.readouterr().err


def test_only_a_model_that_writes_writes(place, tmp_path, capsys):
    small = ["data.num_train=11", "data.num_validation=3", "data.num_test=3", "trainer.epochs=1"]
    train(tmp_path / "run", [*TINY, "data=digits", *small])
    assert main(["generate", f"run={tmp_path / 'run'}", "prompt=red"]) == 2
    assert "generate: only a model of text alone, whose backbone is causal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "asked", "message"),
    [
        (plain, [], "head=language: the backbone would see what it has to guess; set backbone.causal=true"),
        (plain, [CAUSAL, "adapters.text.token_mask=0.1"], "adapters.text.token_mask: not for head=language"),
        (plain, [CAUSAL, "adapters.text.token_dropout=0.1"], "adapters.text.token_dropout: not for head=language"),
        (plain, [CAUSAL, "adapters.text.subword_dropout=0.1"], "adapters.text.subword_dropout: not for head=language"),
        (plain, [CAUSAL, "adapters.text.conv_kernel=3"], "adapters.text.conv_kernel: not for head=language"),
        (
            plain,
            [CAUSAL, "adapters.text.ngrams=[2]", "adapters.text.ngram_columns=true"],
            "adapters.text.ngram_columns: not for head=language",
        ),
        (plain, [CAUSAL, "data.fractions=[0.5,0.4]"], "data.fractions: must be up to three shares that add up to 1"),
        (plain, ["head=generate"], "no target"),
        (
            plain,
            [CAUSAL, "target_text.max_len=9"],
            "target_text.max_len: no text is written here, the target is the text's own next token; leave",
        ),
        (pairs, ["head=classify"], "head: Classify predicts class, but the target is text; set head=auto"),
        (pairs, ["target_text.max_len=1"], "target_text: max_len must be at least 2, a token and the end, got 1"),
        (pairs, ["head=generate", "head.beams=0"], "head: needs beams >= 1"),
        (
            pairs,
            ["target_text.share=true", "target_text.tokenizer=t.json"],
            "target_text: share takes the text adapter's",
        ),
        (pairs, ["target_text.vocab=3"], "target_text.vocab: no such key; did you mean target_text.vocab_size?"),
    ],
)
def test_what_cannot_be_trained_says_why_and_leaves_nothing(place, tmp_path, capsys, make, asked, message):
    assert main(["train", *make(place, *asked), f"run={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "asked", "kind"),
    [(pairs, [], "text"), (plain, [CAUSAL], "next")],
)
def test_texts_are_not_mixed(place, tmp_path, capsys, make, asked, kind):
    assert main(["train", *make(place, *asked, "trainer.mixup=0.5"), f"run={tmp_path / 'run'}"]) == 2
    assert f"trainer.mixup: {kind} cannot be mixed; set trainer.mixup=0" in capsys.readouterr().err


def test_without_a_text_to_read_there_is_none_to_share_a_table_with(place, tmp_path, capsys):
    digits = ["data=digits", "data.num_train=23", "data.num_validation=7", "data.num_test=5"]
    asked = ["adapters=[image]", "head=language", CAUSAL]
    assert main(["train", *TINY, *digits, *asked, f"run={tmp_path / 'run'}"]) == 2
    assert "head=language: guesses text from text alone, got image; set adapters=[text]" in capsys.readouterr().err
    pictures(tmp_path)
    table = ["data=table", f"data.path={tmp_path / 'pictures.csv'}", "data.target=written", "data.kind=text"]
    asked = ["adapters=[image]", "target_text.share=true"]
    assert main(["train", *TINY, *table, *asked, f"run={tmp_path / 'run'}"]) == 2
    assert "target_text.share: there is no text that is read to share it with; leave it out" in capsys.readouterr().err


def pictures(folder):
    from PIL import Image

    rows = ["image,written"]
    for i in range(7):
        Image.new("RGB", (8, 8), (30 * i, 0, 0)).save(folder / f"{i}.png")
        rows.append(f"{i}.png,red {i}")
    (folder / "pictures.csv").write_text("\n".join(rows))


def test_a_writer_of_pictures_writes_of_a_picture(tmp_path, capsys):
    pictures(tmp_path)
    asked = ["data=table", f"data.path={tmp_path / 'pictures.csv'}", "data.target=written", "data.kind=text"]
    more = ["adapters=[image]", "adapters.image.patch_size=4", "adapters.image.image_size=8", "trainer.epochs=1"]
    folder = train(tmp_path / "run", [*TINY, *asked, *more, "target_text.subwords=word", "target_text.max_len=8"])
    said = answer_of(capsys, "generate", f"run={folder}", f"input.image={tmp_path / '3.png'}", "temperature=0")
    assert said.strip() == dxn.load(folder).write(given={"image": tmp_path / "3.png"})[0]
    with pytest.raises(UserError, match="this model writes of its image: give input, and no prompt"):
        dxn.load(folder).write(prompt="red")
