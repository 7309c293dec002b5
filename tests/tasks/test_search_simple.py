"""The simple methods of a search: equal words, similar colors, and similar training rows."""

import pytest
import torch
from helpers.tasks import adapters_stub

from dxn.cli import main
from dxn.tasks import Contrastive
from dxn.tasks.contrastive import simple
from dxn.tasks.contrastive.search import MISSING, Embedded

COLORS = {"red": (220, 20, 20), "blue": (20, 20, 220), "green": (20, 200, 20), "white": (250,) * 3}
COUNTERPART = "most similar training row"


def picture(color, side=9):
    pixels = torch.tensor(COLORS[color], dtype=torch.uint8)[:, None, None]
    return pixels.expand(3, side, side + 2).clone()


def tone(hertz, seconds=0.2, rate=8000):
    time = torch.arange(int(seconds * rate)) / rate
    return torch.sin(2 * torch.pi * hertz * time)


def figures(train, raws, keys=None, share=1.0):
    """Return the metrics of each method; by default, no inputs of the rows are equal."""
    task = Contrastive()
    task.target.bind(adapters_stub(**{name: {} for name in raws}))
    size = len(next(iter(raws.values())))
    if keys is None:
        keys = torch.arange(1, size * len(raws) + 1).view(size, -1)
    predictions = [Embedded(torch.ones(len(raws), 3), row) for row in keys]
    return dict(task.simple_figures(train, [], raws, [], predictions, share=share))


def test_texts_are_found_by_the_words_that_they_share():
    train = {"question": ["who is there"], "reply": ["a friend"]}
    raws = {
        "question": ["Where is Bern?", "What is an otter?", ["Who", "was", "Ada"]],
        "reply": ["Bern lies on a river.", "An animal: the otter", "ada wrote programs"],
    }
    results = figures(train, raws)
    assert results["word overlap"]["recall@1"] == results["word overlap"]["mrr"] == 1


def test_pictures_of_any_size_are_found_by_their_colors():
    train = {"front": [picture("red")], "back": [picture("red")]}
    raws = {
        "front": [picture(name) for name in COLORS],
        "back": [picture(name, side=200) for name in COLORS],
    }
    assert figures(train, raws)["color histograms"]["strict_recall@1"] == 1


def test_inputs_of_different_kinds_are_found_by_the_other_input_of_a_similar_training_row():
    names = list(COLORS)
    train = {
        "title": [*(f"a {name} shirt" for name in names), None, "blue hat"],
        "photo": [*(picture(name) for name in names), picture("red"), None],
    }
    raws = {"title": [f"{n} shoe" for n in names], "photo": [picture(n) for n in names]}
    results = figures(train, raws)
    assert list(results) == [COUNTERPART]
    colors = [(name,) for name in names]  # cells of a column of categories
    assert figures({**train, "title": [*colors, None, None]}, {**raws, "title": colors}) == results
    assert results[COUNTERPART]["recall@1"] == 1
    # Without training rows that have both, nothing is known of the kinds together.
    lacks_photos = {**train, "photo": [None] * len(train["photo"])}
    assert not figures({**lacks_photos, "title": train["title"]}, raws)


def test_sounds_are_found_by_their_spectra():
    train = {"title": ["low hum", "high beep", "middle"], "sound": [*map(tone, (150, 3000, 900))]}
    raws = {"title": ["a beep", "a hum"], "sound": [tone(2900), tone(170, seconds=0.1)]}
    assert figures(train, raws)[COUNTERPART]["recall@1"] == 1


def test_a_query_without_a_common_word_finds_as_much_as_a_random_order():
    size = 400
    raws = {
        "en": [f"left{i}" for i in range(size)],
        "de": [f"right{i}" for i in range(size)],
    }
    result = figures({"en": ["a"], "de": ["b"]}, raws)["word overlap"]
    assert result["recall@10"] == pytest.approx(10 / size, abs=0.02)
    assert result["median_rank"] == pytest.approx(size / 2, rel=0.2)


def test_a_search_is_in_the_same_rows_as_that_of_the_model():
    raws = {"en": ["one", "two", "red", None], "de": ["one", "zwei", "red", "red"]}
    keys = torch.tensor([[1, 5], [2, 6], [3, 7], [MISSING, 7]])
    result = figures({"en": ["x"], "de": ["y"]}, raws, keys)["word overlap"]
    assert result["strict_recall@1"] >= 2 / 3  # with the last row, which has one input, 5 / 8
    keys[2, 0] = MISSING  # the model found no token in it
    assert figures({"en": ["x"], "de": ["y"]}, raws, keys)["word overlap"]["median_rank"] == 1


def test_a_single_row_and_empty_texts_are_searched():
    assert figures({"a": [""], "b": [" "]}, {"a": [""], "b": [""]})["word overlap"]["mrr"] == 1
    assert not figures({"a": [None], "b": [None]}, {"a": [None], "b": ["x"]})


@pytest.mark.parametrize("value", [3.5, torch.zeros(2, 3, 4), [torch.zeros(2)]])
def test_inputs_that_are_not_compared_have_no_method(value):
    assert not figures({"a": ["x"], "b": [value]}, {"a": ["x", "y"], "b": [value, value]})


def test_many_rows_have_fewer_queries_and_too_many_have_no_method(monkeypatch, capsys):
    words = [f"word{i}" for i in range(40)]
    train = {"a": words, "b": words}
    monkeypatch.setattr(simple, "MAX_ROWS", 40)
    monkeypatch.setattr("dxn.tasks.contrastive.task.MAX_PAIRS", 800)
    assert figures(train, train, share=0.5)["word overlap"]["recall@1"] == 1
    assert "note: 5 of the 40 rows are the queries of simple methods" in capsys.readouterr().out
    monkeypatch.setattr(simple, "MAX_ROWS", 39)
    assert not figures(train, train)
    assert "40 rows, which are more than 39" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fractions", "has_methods"), [("[0.6,0.2,0.2]", True), ("[1,0,0]", False)], ids=["test", "all"]
)
def test_training_rows_are_not_looked_up_in_themselves(fractions, has_methods, tmp_path, capsys):
    rows = [f"w{i} a{i % 5},b{i % 5} v{i}" for i in range(40)]
    (tmp_path / "texts.csv").write_text("\n".join(["en,de", *rows]))
    options = [f"data.fractions={fractions}", "head=contrastive", "pretrained=none", "dim=16"]
    options += ["preset=plain", "backbone.depth=1", "trainer.epochs=1", "report=false"]
    assert main(["train", str(tmp_path / "texts.csv"), *options, f"run={tmp_path}/run"]) == 0
    assert (COUNTERPART in capsys.readouterr().out) == has_methods
