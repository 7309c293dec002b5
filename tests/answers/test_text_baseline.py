"""The baseline of texts reads the raw text: all words, whole texts, and parts of words."""

import pandas as pd
import pytest
from helpers.exports import probabilities
from helpers.runs import SMALL, train

import dxn
from dxn.cli import main

# The transformer learns nothing, and sees ten tokens of a vocabulary of a few words.
OPTIONS = [*SMALL, "adapters=[text]", "trainer.epochs=1", "optimizer.lr=1e-6", "preset=plain"]
OPTIONS += ["report=false", "target=label", "adapters.text.max_len=10"]
OPTIONS += ["adapters.text.tokenizer.kind=word", "adapters.text.vocab_size=20"]


def accuracy(folder, rows, *options):
    table = folder.parent / f"{folder.name}.csv"
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(table, index=False)
    return train(folder, str(table), *OPTIONS, *options)["test/accuracy[baseline alone]"]


def rare_words(i):
    """Words that are too rare for the vocabulary of the tokenizer."""
    colors = ["crimson", "azure"]
    return f"a film of the week about things {'and so on ' * (i % 3)} {colors[i % 2]}{i % 5}"


def ends_of_texts(i):
    return "a film of the week about things " * 40 + f"number {i % 7} {['good', 'bad'][i % 2]}"


def parts_of_words(i):
    return f"w{i * 7919 % 1000}{['ness', 'able'][i % 2]} w{i * 104729 % 1000} film"


def upper_case(i):
    return f"{['GREAT', 'Awful'][i % 2] if i % 3 else ['great', 'AWFUL'][i % 2]} film {i}"


def composed(i):
    """The same word in two forms of Unicode."""
    words = [["caf\u00e9", "th\u00e9"], ["cafe\u0301", "the\u0301"]]
    return f"{words[i // 2 % 2][i % 2]} {i}"


@pytest.mark.parametrize("make", [rare_words, ends_of_texts, parts_of_words, upper_case, composed])
def test_the_baseline_reads(make, tmp_path):
    rows = [(make(i), "ab"[i % 2]) for i in range(100)]
    assert accuracy(tmp_path / "run", rows) == 1


def test_rows_without_a_text_are_read_too(tmp_path):
    rows = [(rare_words(i) if i % 10 else "", "ab"[i % 2]) for i in range(100)]
    assert accuracy(tmp_path / "run", rows, "data.on_bad=skip") == 1


def test_the_answer_for_a_text_does_not_depend_on_spaces_at_the_end_of_the_row_before(tmp_path):
    accuracy(tmp_path / "run", [(rare_words(i), "ab"[i % 2]) for i in range(100)])
    model = dxn.load(tmp_path / "run")
    texts = ["a film\n", "azure1", "crimson1  ", "film\t\n", "azure3"]
    together = model.predict(pd.DataFrame({"text": texts}))
    alone = [model.predict(text=text)["probabilities"]["b"] for text in texts]
    assert list(together["p(b)"]) == pytest.approx(alone, abs=1e-4)


@pytest.mark.exhaustive
def test_the_exported_program_reads_the_whole_text(tmp_path):
    rows = [(ends_of_texts(i), "ab"[i % 2]) for i in range(100)]
    accuracy(tmp_path / "run", rows)
    out = tmp_path / "out"
    assert main(["export", f"run={tmp_path / 'run'}", f"output={out}"]) == 0
    expected = dxn.load(tmp_path / "run").predict(text=ends_of_texts(3))
    assert expected["prediction"] == "b"
    answer = probabilities(out, f"text={ends_of_texts(3)}")
    assert answer["b"] == pytest.approx(expected["probabilities"]["b"], abs=1e-4)
