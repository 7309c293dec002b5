"""An exported model that tags words gives each word the tag that dxn gives it."""

import importlib
import json
import random

import pytest
from helpers.exports import exported
from helpers.runs import PLAIN, SMALL, train

import dxn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    """Functions from a text to the tags of its words: those of dxn, and those of the program."""
    folder = tmp_path_factory.mktemp("tags")
    rand = random.Random(0)
    lines = []
    for _ in range(44):
        place = rand.choice(["Paris", "London", "Zürich"])
        text = f"{rand.choice(['Ada', 'Alan'])} flew to {place}, didn't she?"
        start = text.index(place)
        spans = [[start, start + len(place), "place"]]
        lines.append(json.dumps({"text": text, "spans": spans}))
    (folder / "news.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = ["adapters.text.tokenizer.kind=bpe", "adapters.text.vocab_size=90"]
    options = [*PLAIN, *SMALL, *tokenizer, "trainer.epochs=1", "report=false"]
    train(folder / "run", str(folder / "news.jsonl"), "target=spans", *options)
    model = dxn.load(folder / "run", device="cpu")
    with exported(folder / "run", folder / "program") as (about, answer):
        read = importlib.import_module("prepare_text")

        def theirs(text):
            outputs = answer({"text": text})
            best = outputs["probabilities"][0].argmax(-1).tolist()
            options = about["inputs"]["text"]
            words = read.prepare([read.read(text, options)], options)["words"][0].tolist()
            firsts = [words.index(word) for word in range(max(words) + 1)]
            return [about["outputs"]["labels"][best[first]] for first in firsts]

        yield lambda text: model.predict(text=text)["prediction"], theirs


@pytest.mark.parametrize(
    "text",
    [
        "Ada flew to Paris, didn't she?",
        "  London Zürich",
        "東京 to New-York",
        ["New York", "Paris,"],
    ],
    ids=str,
)
def test_each_word_has_the_same_tag(tags, text):
    ours, theirs = tags
    assert theirs(text) == ours(text)
