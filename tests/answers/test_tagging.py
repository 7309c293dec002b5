"""Tags of every common scheme and form: entities and metrics are those of whole entities."""

import csv
import json
import math
import random
from pathlib import Path

import pytest
import torch
from helpers.exhaustive import exhaustive_except
from helpers.runs import SMALL, metrics_of, refused, train

import dxn
from dxn.cli import main
from dxn.tasks import IGNORED, Tag
from dxn.tasks.entities import entities, scheme_of, split_words

OPTIONS = [*SMALL, "preset=plain", "report=false", "baseline=none", "adapters=[text]"]
OPTIONS += ["adapters.text.tokenizer.kind=word", "trainer.epochs=12", "optimizer.lr=0.02"]

# The tags of an entity of one, two and four words.
SCHEMES = {
    "IOB2": ("B", "B I", "B I I I"),
    "BIOES": ("S", "B E", "B I I E"),
    "BILOU": ("U", "B L", "B I I L"),
    "BMES": ("S", "B E", "B M M E"),
}
FORMS = {"prefix": "{}-{}", "underscore": "{}_{}", "suffix": "{1}-{0}", "colon": "{}:{}"}
NAMES = {
    "person": ["Turing", "Ada Lovelace", "Maria de la Cruz"],
    "place": ["Paris", "New York", "Isle of Man Town"],
}
LENGTHS = {1: 0, 2: 1, 4: 2}


def sentences(count, scheme="IOB2", form="{}-{}"):
    """Sentences with words, tags, and the true entities as (first, stop, type)."""
    rand = random.Random(0)
    rows = []
    for _ in range(count):
        words, tags, spans = [], [], []
        for part in rand.choice(["person left place .", "In place , person met person"]).split():
            name = rand.choice(NAMES[part]).split() if part in NAMES else [part]
            if part in NAMES:
                spans.append((len(words), len(words) + len(name), part))
                letters = SCHEMES[scheme][LENGTHS[len(name)]].split()
                tags += [form.format(letter, part) for letter in letters]
            else:
                tags.append("O")
            words += name
        rows.append({"words": words, "tags": tags, "spans": spans})
    return rows


def write(path, rows, *columns):
    path.write_text("\n".join(json.dumps({c: row[c] for c in columns}) for row in rows))
    return str(path)


def predicted_rows(run):
    with (run / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def spans_of(record):
    """The predicted entities of a row of predictions.csv."""
    return {(e["start_word"], e["end_word"], e["label"]) for e in json.loads(record["entities"])}


def f1_of(pairs):
    right = sum(len(p & t) for p, t in pairs)
    return 2 * right / sum(len(p) + len(t) for p, t in pairs)


@pytest.mark.parametrize(
    ("scheme", "form"),
    exhaustive_except(
        [("BIOES", "prefix"), ("BILOU", "suffix"), ("IOB2", "underscore"), ("BMES", "colon")],
        ("BMES", "colon"),
    ),
)
def test_the_tags_of_every_scheme_are_whole_entities(scheme, form, tmp_path):
    rows = sentences(60, scheme, FORMS[form])
    table = write(tmp_path / "t.jsonl", rows, "words", "tags")
    metrics = train(tmp_path / "run", table, "target=tags", *OPTIONS)
    true = {" ".join(row["words"]): set(row["spans"]) for row in rows}
    records = predicted_rows(tmp_path / "run")
    pairs = [(spans_of(record), true[record["words"]]) for record in records]
    assert metrics["test/f1_entity"] == pytest.approx(f1_of(pairs), abs=1e-4)
    assert metrics["test/f1_entity"] > 0.5
    answer = dxn.load(tmp_path / "run").predict(words="In New York , Ada Lovelace met Turing")
    assert {e["label"] for e in answer["entities"]} <= {"person", "place"}
    for entity in answer["entities"]:
        text = "In New York , Ada Lovelace met Turing"
        assert text[entity["start"] : entity["end"]] == entity["text"]
    assert "New York" in [e["text"] for e in answer["entities"]]


# Every letter by its meaning, decoded word by word: an independent implementation.
CASES = [
    # BIOES and its other names
    ("O B-x I-x E-x S-x", [(1, 4, "x"), (4, 5, "x")]),
    ("B-x E-x B-x E-x", [(0, 2, "x"), (2, 4, "x")]),
    ("S-x S-x O E-x B-x", [(0, 1, "x"), (1, 2, "x"), (3, 4, "x"), (4, 5, "x")]),
    ("B-x I-x L-x U-x", [(0, 3, "x"), (3, 4, "x")]),
    ("B-x L-y", [(0, 1, "x"), (1, 2, "y")]),
    ("E-x E-x B-x", [(0, 1, "x"), (1, 2, "x"), (2, 3, "x")]),
    ("S-x I-x E-x B-x", [(0, 1, "x"), (1, 3, "x"), (3, 4, "x")]),
    ("B-x M-x M-x E-x S-y", [(0, 4, "x"), (4, 5, "y")]),
    # Other forms
    ("B_x I_x O B_x", [(0, 2, "x"), (3, 4, "x")]),
    ("x-B x-I O y-B", [(0, 2, "x"), (3, 4, "y")]),
    ("a-b-B a-b-I", [(0, 2, "a-b")]),
    ("B-a_b I-a_b", [(0, 2, "a_b")]),
    ("b-x i-x o", [(0, 2, "x")]),
    ("B-x I-x 0 0", [(0, 2, "x")]),
    ("B I O B", [(0, 2, "entity"), (3, 4, "entity")]),
    ("S B M E", [(0, 1, "entity"), (1, 4, "entity")]),
    # IOB1 and IOB2
    ("I-x I-x O B-x", [(0, 2, "x"), (3, 4, "x")]),
    ("I-x B-x I-x", [(0, 1, "x"), (1, 3, "x")]),
    ("B-x I-y", [(0, 1, "x"), (1, 2, "y")]),
    # Tags without letters
    ("0 1 2 0", [(1, 2, "1"), (2, 3, "2")]),
    ("N V O E-mail", [(0, 1, "N"), (1, 2, "V"), (3, 4, "E-mail")]),
    ("E-mail O U-turn", [(0, 1, "E-mail"), (2, 3, "U-turn")]),
    ("per o", [(0, 1, "per")]),
]


@pytest.mark.parametrize(("tags", "expected"), CASES)
def test_the_entities_of_tags_are_those_written_by_hand(tags, expected):
    tags = tags.split()
    assert entities(tags, scheme_of(tuple(dict.fromkeys(tags)))) == expected


def numbered(count):
    names = ["O", "B-person", "I-person", "B-place", "I-place"]
    rows = sentences(count)
    return [{**row, "tags": [names.index(tag) for tag in row["tags"]]} for row in rows], names


def test_integer_tags_with_names_are_whole_entities(tmp_path):
    rows, names = numbered(60)
    table = write(tmp_path / "t.jsonl", rows, "words", "tags")
    option = f"head.names=[{','.join(names)}]"
    metrics = train(tmp_path / "run", table, "target=tags", "head=tag", option, *OPTIONS)
    true = {" ".join(row["words"]): set(row["spans"]) for row in rows}
    records = predicted_rows(tmp_path / "run")
    pairs = [(spans_of(record), true[record["words"]]) for record in records]
    assert metrics["test/f1_entity"] == pytest.approx(f1_of(pairs), abs=1e-4) and pairs
    answer = dxn.load(tmp_path / "run").predict(words="In New York , Turing met Turing")
    assert ("New York", "place") in [(e["text"], e["label"]) for e in answer["entities"]]


def test_zero_is_no_entity_and_names_are_asked_for(tmp_path, capsys):
    rows, _ = numbered(40)
    table = write(tmp_path / "t.jsonl", rows, "words", "tags")
    train(tmp_path / "run", table, "target=tags", *OPTIONS)
    assert "the tags are integers: 0 is read as no entity" in capsys.readouterr().out
    records = predicted_rows(tmp_path / "run")
    assert all(label != "0" for record in records for _, _, label in spans_of(record))


def test_an_integer_tag_without_a_name_is_refused(tmp_path, capsys):
    rows, _ = numbered(40)
    table = write(tmp_path / "t.jsonl", rows, "words", "tags")
    command = ["train", table, "target=tags", "head=tag", "head.names=[O,B-x]", *OPTIONS]
    (line,) = refused(capsys, command)
    assert "head.names has no name for the tag" in line and "from 0 to 1" in line


@pytest.mark.parametrize("options", [{}, {"balance": "inverse"}, {"label_smoothing": 0.1}])
def test_the_loss_of_a_batch_without_known_tags_is_zero(options):
    task = Tag(**options)
    task.target.fit([["O", "B-x", "O"]])
    logits = torch.randn(2, 3, 2, requires_grad=True)
    loss = task.loss(logits, {"target": torch.full((2, 3), IGNORED)}).mean
    loss.backward()
    assert loss.item() == 0 and math.isfinite(logits.grad.sum())


# Files


def conll(rows, separator, middle=()):
    """A CoNLL file with a line between documents."""
    lines = ["-DOCSTART- -X- O O", ""] if middle else []
    for row in rows:
        pairs = zip(row["words"], row["tags"], strict=True)
        lines += [separator.join([word, *middle, tag]) for word, tag in pairs]
        lines.append("")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "separator", "middle"),
    [("t.conll", " ", ("NNP", "I-NP")), ("t.iob", "\t", ())],
)
def test_a_conll_file_has_one_sentence_per_row(name, separator, middle, tmp_path, capsys):
    rows = sentences(60)
    (tmp_path / name).write_text(conll(rows, separator, middle))
    metrics = train(tmp_path / "run", str(tmp_path / name), *OPTIONS)
    width = 2 + len(middle)
    note = "60 sentences between blank lines; the words are from column 1, the tags from column "
    assert f"{name}: {note}{width} of {width}" in " ".join(capsys.readouterr().out.split())
    assert metrics["test/f1_entity"] > 0.5
    true = {" ".join(row["words"]): row["tags"] for row in rows}
    records = predicted_rows(tmp_path / "run")
    assert records and all(r["target"].split() == true[r["words"]] for r in records)
    # The same file, without its tags.
    lines = (tmp_path / name).read_text().split("\n")
    new = tmp_path / f"new{name[1:]}"
    new.write_text("\n".join(line.split()[0] if line else "" for line in lines[:40]))
    output = tmp_path / "out.csv"
    assert main(["predict", f"run={tmp_path / 'run'}", f"input={new}", f"output={output}"]) == 0
    assert output.read_text().count("\n") > 3


def test_comments_and_lines_of_another_width_in_a_conll_file(tmp_path, capsys):
    text = conll(sentences(40), "\t")
    path = tmp_path / "t.conll"
    path.write_text("# id 1\n" + text + "\n#\tO\n")
    train(tmp_path / "run", str(path), *OPTIONS, "trainer.epochs=1")
    assert "41 sentences" in " ".join(capsys.readouterr().out.split())
    path.write_text(text + "\nword\n")
    (line,) = refused(capsys, ["train", path, *OPTIONS])
    assert "must have 2 columns, as most lines have, got 1: word" in line


@pytest.mark.parametrize(
    ("header", "blank", "options"),
    [
        (("sentence_id", "word", "pos", "tag"), False, ()),
        (("Sentence #", "Word", "POS", "Tag"), True, ()),
        (("s", "w", "pos", "tag"), False, ("data.sentence=s", "data.text=w")),
    ],
)
def test_a_table_with_a_word_per_row_has_one_sentence_per_row(
    header, blank, options, tmp_path, capsys
):
    rows = sentences(60)

    def write_table(path, rows):
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*header, "split"])
            for i, row in enumerate(rows):
                split = "test" if i % 4 == 3 else "train"
                for j, (word, tag) in enumerate(zip(row["words"], row["tags"], strict=True)):
                    name = "" if blank and j else f"Sentence: {i}"
                    writer.writerow([name, word, "NN" if j else "V", tag, split])
        return str(path)

    table = write_table(tmp_path / "t.csv", rows)
    command = [table, f"target={header[3]}", *options, *OPTIONS]
    metrics = train(tmp_path / "run", *command)
    assert "each row is a word" in capsys.readouterr().out
    assert metrics["test/f1_entity"] > 0.5
    true = {" ".join(row["words"]): row["tags"] for row in rows}
    records = predicted_rows(tmp_path / "run")
    assert len(records) == 15
    assert all(r["target"].split() == true[r[header[1]]] for r in records)
    # The saved model rearranges new tables in the same way.
    new = write_table(tmp_path / "new.csv", rows[3::4])
    folder = f"output={tmp_path / 'evaluated'}"
    assert main(["evaluate", f"run={tmp_path / 'run'}", f"input={new}", folder]) == 0
    again = metrics_of(tmp_path / "evaluated")
    assert again["input/f1_entity"] == pytest.approx(metrics["test/f1_entity"], abs=1e-6)


# Positions of entities in a text


def texts(count):
    """Texts with punctuation marks, and the true entities as (start, end, type)."""
    rows = []
    for row in sentences(count):
        text, starts = "", []
        for word in row["words"]:
            text += "" if word in ",." or not text else " "
            starts.append((len(text), len(text) + len(word)))
            text += word
        spans = [[starts[i][0], starts[j - 1][1], kind] for i, j, kind in row["spans"]]
        rows.append({"text": text, "spans": spans})
    return rows


KEYS = {
    "lists": lambda spans: spans,
    "objects": lambda s: [{"start": a, "end": b, "label": k} for a, b, k in s],
    "offsets": lambda s: [{"start_offset": a, "end_offset": b, "labels": [k]} for a, b, k in s],
    "spacy": lambda spans: {"entities": spans},
    "csv": lambda spans: str([tuple(span) for span in spans]),
}


@pytest.mark.parametrize("form", exhaustive_except(KEYS, "objects", "csv"))
def test_positions_of_entities_are_tags_of_words_and_come_back_as_positions(form, tmp_path, capsys):
    rows = [{**row, "spans": KEYS[form](row["spans"])} for row in texts(60)]
    true = {row["text"]: {tuple(span) for span in row["spans"]} for row in texts(60)}
    if form == "csv":
        table = str(tmp_path / "t.csv")
        with Path(table).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "spans"])
            writer.writeheader()
            writer.writerows(rows)
    else:
        table = write(tmp_path / "t.jsonl", rows, "text", "spans")
    metrics = train(tmp_path / "run", table, "target=spans", *OPTIONS, "trainer.epochs=16")
    output = capsys.readouterr().out
    assert output.count("the target contains the positions of entities") == 1
    assert "within a word" not in output
    pairs = []
    for record in predicted_rows(tmp_path / "run"):
        found = json.loads(record["entities"])
        text = record["text"]
        assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
        pairs.append(({(e["start"], e["end"], e["label"]) for e in found}, true[text]))
    assert metrics["test/f1_entity"] == pytest.approx(f1_of(pairs), abs=1e-4)
    assert metrics["test/f1_entity"] > 0.5
    if form != "objects":
        return
    answer = dxn.load(tmp_path / "run").predict(text="Ada Lovelace left New York.")
    named = [(e["text"], e["label"]) for e in answer["entities"]]
    assert ("New York", "place") in named and answer["words"][-1] == "."
    folder = f"output={tmp_path / 'evaluated'}"
    assert main(["evaluate", f"run={tmp_path / 'run'}", f"input={table}", folder]) == 0
    assert metrics_of(tmp_path / "evaluated")["input/f1_entity"] > 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('(O\'Brien, "U.S.")', ["(", "O", "'", "Brien", ",", '"', "U", ".", "S", ".", '"', ")"]),
        ("我去北京。", ["我", "去", "北", "京", "。"]),
        ("हिन्दी में।", ["हिन्दी", "में", "।"]),
        ("cafe\u0301 «là» a_b 3.5€", ["cafe\u0301", "«", "là", "»", "a_b", "3", ".", "5€"]),
    ],
)
def test_a_text_with_positions_is_split_into_words_and_punctuation_marks(text, words):
    found, positions = split_words(text, punctuation=True)
    assert found == words == [text[start:end] for start, end in positions]


def test_entities_that_do_not_fit_words_are_counted_or_refused(tmp_path, capsys):
    rows = texts(40)
    rows[0] = {"text": "Unparislike, he said", "spans": [[2, 7, "place"]]}
    rows[1] = {"text": "New York City", "spans": [[0, 13, "place"], [4, 8, "place"]]}
    table = write(tmp_path / "t.jsonl", rows, "text", "spans")
    train(tmp_path / "run", table, "target=spans", *OPTIONS, "trainer.epochs=1")
    output = " ".join(capsys.readouterr().out.split())
    assert "; entities of all splits that overlap" in output
    assert "extended to the whole word: 2" in output
    rows[2] = {"text": "Rome", "spans": [[0, 5, "place"]]}
    table = write(tmp_path / "t.jsonl", rows, "text", "spans")
    (line,) = refused(capsys, ["train", table, "target=spans", *OPTIONS])
    assert "row 3: the entity 'place' from character 0 to 5 is not in the text of 4" in line
