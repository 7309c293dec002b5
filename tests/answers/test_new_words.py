"""A word that the training texts do not contain has a trained embedding."""

import torch
from helpers.runs import PLAIN, SMALL, train

import dxn

WORD = "adapters.text.tokenizer.kind=word"
OPTIONS = [*SMALL, *PLAIN, "adapters=[text]", WORD, "target=label", "report=false"]


def table_of(path, texts):
    rows = [f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts)]
    path.write_text("\n".join(["text,label", *rows]))
    return str(path)


def vector_of_a_new_word(folder):
    """The embedding of the token that a new word becomes."""
    adapter = dxn.load(folder).adapters["text"]
    (token,) = adapter.tokenizer("zyzzyva")["ids"].tolist()
    return adapter.embedding.weight[token].detach()


def test_the_token_of_new_words_is_trained(tmp_path):
    """Each text has a word of its own, as names and numbers are."""
    texts = [f"{['fine', 'dull'][i % 2]} film of the week number w{i}" for i in range(60)]
    table = table_of(tmp_path / "texts.csv", texts)
    # The embedding is not decayed, so only a gradient changes it.
    train(tmp_path / "start", table, *OPTIONS, "trainer.epochs=1", "optimizer.lr=0")
    train(tmp_path / "end", table, *OPTIONS, "trainer.epochs=1")
    before, after = (vector_of_a_new_word(tmp_path / each) for each in ("start", "end"))
    assert not torch.equal(before, after)


def test_the_words_of_a_table_of_few_texts_are_kept(tmp_path):
    """If most words occur once, nothing would be left without them."""
    texts = [f"w{i} v{i}" for i in range(40)]
    train(tmp_path / "run", table_of(tmp_path / "texts.csv", texts), *OPTIONS, "trainer.epochs=1")
    adapter = dxn.load(tmp_path / "run").adapters["text"]
    assert sum(f"w{i}" in adapter.tokenizer.vocabulary.get_vocab() for i in range(40)) >= 30
