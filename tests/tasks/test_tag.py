"""A tag per word: encoding, loss, decoding and entities, compared by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tasks import (
    WEIGHTS,
    B,
    K,
    N,
    adapters_stub,
    assert_same,
    build_model,
    make_batch,
    overfit,
    predict,
    smoothed_cross_entropy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from dxn.core.errors import UserError
from dxn.tasks import IGNORED, Tag
from dxn.tasks.entities import entities
from dxn.tasks.tag import Tagged, first_tokens
from dxn.tokenize import TextAdapter, TokenizerOptions

VALUES = [["N", "V"], ["N"], ["V", "D", "N"]]
BIO = ("O", "B-x", "I-x")
examples = settings(max_examples=30, deadline=None)


def task_of(names=BIO, *, weights=None, input="words", **options):
    task = Tag(**options)
    task.target.load({"labels": list(names), "class_weights": weights})
    task.target.bind(adapters_stub(**{input: {"words": True}}))
    return task


def figures_of(predicted, true):
    """The metrics of lists of tags."""
    return Tag().metric.metrics([Tagged(tags, [1.0] * len(tags)) for tags in predicted], true, 0.0)


def encoded(task, tags):
    """The targets of a sample with one token per word."""
    return task.target.encode(tags, {task.target.input: {"words": torch.arange(len(tags))}})


def close(value):
    return pytest.approx(value, abs=1e-6)


# Inputs


def test_the_tags_belong_to_the_first_input_that_gives_words():
    task = Tag()
    task.target.bind(
        adapters_stub(
            photo={"words": False}, title={"words": True}, body={"words": True}, s={"words": False}
        )
    )
    assert task.target.input == "title" and task.target.required == ("title",)


def test_without_such_an_input_the_task_is_refused():
    with pytest.raises(UserError, match="needs an input that consists of words, got photo, sound"):
        Tag().target.bind(adapters_stub(photo={"words": False}, sound={"words": False}))


@pytest.mark.parametrize(
    ("raws", "message"),
    [
        ({"words": ["a", "b"]}, None),
        ({}, None),  # a row without the input is left out elsewhere
        ({"words": None}, None),
        ({"words": ["a"]}, r"t\.csv:3: there must be one tag per word, got 2 tags for 1 words"),
        ({"words": ["a", "b", "c"]}, "2 tags for 3 words"),
        ({"words": "a b"}, None),  # split at white space
        ({"words": "a b c"}, "2 tags for 3 words"),
    ],
)
@pytest.mark.parametrize("is_bound", [True, False])
def test_every_word_needs_one_tag(raws, message, is_bound):
    task = task_of() if is_bound else Tag()
    raws = {"photo": torch.zeros(1), **raws}
    if message is None:
        assert task.target.read(["O", "O"], "t.csv:3", raws) == ["O", "O"]
        return
    with pytest.raises(UserError, match=message):
        task.target.read(["O", "O"], "t.csv:3", raws)


def test_words_and_tags_can_be_lists_in_texts():
    target = Tag().target
    raws = {"text": ["['a', 'b c']", '["d"]', "e"]}
    target.find_format(["['N', 'V']"], [])
    target.see_inputs(raws)
    assert target.words_of(raws["text"][0]) == ["a", "b c"]
    assert target.words_of("e f") == ["e", "f"]
    assert target.read("['N', 'V']", "", {"text": raws["text"][0]}) == ["N", "V"]
    target.labels, target.input = ("N", "V"), "text"
    answer = Tag.answer(SimpleNamespace(target=target), Tagged(["N"], [1.0]), {"text": '["d"]'})
    assert answer["words"] == ["d"]
    # The column of the training decides, not a text that looks like a list.
    target.see_inputs({"text": ["[a]"]})
    assert target.lists and Tag().target.words_of("['a', 'b']") == ["['a',", "'b']"]


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [("Ada lives", 4, "lives"), ("\N{GRINNING FACE} Ada lives", 3, "da l")],  # units of UTF-16
)
def test_an_entity_whose_text_is_elsewhere_is_refused(text, start, found):
    target = Tag().target
    span = {"start": start, "end": start + len(found), "label": "x", "text": "Ada"}
    right = {"start": text.find("Ada"), "end": text.find("Ada") + 3, "label": "x", "text": "Ada "}
    target.find_format([[span]], [])
    assert "B-x" in target.read([right], "row 1", {"text": text})
    with pytest.raises(UserError, match=f"row 1: the entity 'Ada' is not at .*has '{found}'"):
        target.read([span], "row 1", {"text": text})


@pytest.mark.parametrize("tag", [None, -100])
def test_a_word_without_a_tag_is_refused(tag):
    with pytest.raises(UserError, match=f"row 1: each word must have a tag, got {tag};"):
        Tag().target.read(["N", tag], "row 1", {"text": ["a", "b"]})


def test_a_cell_that_is_no_list_is_refused():
    assert Tag().target.read(["N", 3], "row 1", {}) == ["N", "3"]
    with pytest.raises(UserError, match=r"t\.csv:3: the target must be a list, got 'N V'"):
        Tag().target.read("N V", "t.csv:3", {})


# Targets


def test_encoding_is_undone_by_the_names():
    task = Tag()
    task.target.fit(VALUES)
    assert task.target.labels == ("D", "N", "V")
    for value in VALUES:
        assert [task.target.labels[i] for i in encoded(task, value)] == value
    assert encoded(task, []).dtype == torch.long and encoded(task, []).shape == (0,)


def test_an_unknown_tag_is_ignored_and_its_row_counted():
    task = Tag()
    task.target.fit(VALUES)
    assert encoded(task, ["N", "?"]).tolist() == [1, IGNORED]
    assert len(task.target.unknown([["N"], ["?", "!"]])) == 1


@examples
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=53))
def test_balanced_weights_equal_those_of_scikit_learn(tags):
    task = Tag(balance="inverse")
    task.target.fit([tags[:5], tags[5:]])
    expected = compute_class_weight(
        "balanced", classes=np.array(task.target.labels), y=np.array(tags)
    )
    np.testing.assert_allclose(task.target.class_weights, expected, rtol=1e-12)


def test_only_the_first_token_of_a_word_has_a_target():
    words = torch.tensor([-1, 0, 0, 1, 2, 2, 2, -1])
    target = task_of().target.encode(["B-x", "O", "I-x"], {"words": {"words": words}})
    assert target.tolist() == [IGNORED, 1, IGNORED, 0, 2, IGNORED, IGNORED, IGNORED]
    first = first_tokens(words)
    assert first.nonzero().flatten().tolist() == [1, 3, 4]


def test_too_few_tags_for_a_prepared_sample_are_refused():
    with pytest.raises(UserError, match="got 1 tags for at least 3 words"):
        task_of().target.encode(["O"], {"words": {"words": torch.tensor([0, 1, 2])}})


def test_targets_are_padded_with_ignored():
    target = task_of().target.collate([torch.tensor([1, 2, 0]), torch.tensor([2])])
    assert target.tolist() == [[1, 2, 0], [2, IGNORED, IGNORED]]


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, list(WEIGHTS)])
def test_the_loss_counts_only_what_is_not_ignored(smoothing, weights):
    task = task_of("abcde", label_smoothing=smoothing, weights=weights)
    logits = torch.randn(2, 3, K)
    target = torch.tensor([[4, IGNORED, 1], [IGNORED, 0, IGNORED]])
    real = torch.stack([logits[0, 0], logits[0, 2], logits[1, 1]])
    expected = smoothed_cross_entropy(
        real, torch.tensor([4, 1, 0]), smoothing=smoothing, weights=weights or [1.0] * K
    )
    assert_same(task.loss(logits, {"target": target}).mean, expected)
    changed = logits.masked_fill((target == IGNORED)[..., None], 17.0)
    assert_same(task.loss(changed, {"target": target}).mean, expected)
    total = 3 if weights is None else sum(weights[i] for i in (4, 1, 0))
    assert task.loss(logits, {"target": target}).weight == pytest.approx(total)


def test_the_loss_leaves_out_columns_after_the_last_target():
    task, logits = task_of("abcde"), torch.randn(B, N, K)
    target = torch.randint(K, (B, 5))
    assert_same(
        task.loss(logits, {"target": target}).mean,
        task.loss(logits[:, :5], {"target": target}).mean,
    )


# Predictions


def test_each_word_is_tagged_by_its_first_token():
    words = torch.tensor([[0, 0, 1, 3, -1], [0, 1, -1, -1, -1]])
    logits = torch.full((2, 5, 3), -1.0)
    for row, column, tag in ((0, 0, 1), (0, 1, 0), (0, 2, 2), (0, 3, 1), (1, 0, 0), (1, 1, 1)):
        logits[row, column, tag] = 1.0
    batch = {"#size": 2, "words": {"words": words, "rows": torch.arange(2)}}
    # Word 2 of the first row has no token.
    predictions = task_of().predict(None, logits, batch)
    assert [p.tags for p in predictions] == [["B-x", "I-x", "O", "B-x"], ["O", "B-x"]]


def test_a_sample_without_the_input_has_no_tags():
    batch = {"#size": 3, "words": {"words": torch.tensor([[0], [0]]), "rows": torch.tensor([0, 2])}}
    logits = torch.zeros(3, 1, 3)
    logits[2, 0, 1] = 1.0
    predictions = task_of().predict(None, logits, batch)
    assert [p.tags for p in predictions] == [["O"], [], ["B-x"]]
    assert predictions[2].scores == [close(math.e / (math.e + 2))]


@pytest.mark.parametrize("raw", ["Ann Lee  is in Bath", ["Ann", "Lee", "is", "in", "Bath"]])
def test_entities_are_marked_at_their_place_in_the_text(raw):
    task = task_of(("B-person", "I-person", "B-place", "O"))
    tags = ["B-person", "I-person", "O", "O", "B-place"]
    true, found = (
        task.marks(value, {"words": raw})["words"] for value in (tags, Tagged(tags, [0.5] * 5))
    )
    shift = isinstance(raw, str)  # two spaces after "Lee"
    assert [(mark.label, mark.box) for mark in true] == [
        ("person", (0, 7)),
        ("place", (14 + shift, 18 + shift)),
    ]
    assert [mark.score for mark in true] == [None, None]
    assert [mark._replace(score=None) for mark in found] == true
    assert [mark.score for mark in found] == [0.5, 0.5]
    assert task.marks(tags, {}) == {}


# Metrics


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-x", [(0, 1, "x")]),
        ("O B-x I-x I-x O", [(1, 4, "x")]),
        ("B-x B-x", [(0, 1, "x"), (1, 2, "x")]),  # adjacent entities stay separate
        ("B-x I-x B-x I-x", [(0, 2, "x"), (2, 4, "x")]),
        ("I-x I-x O", [(0, 2, "x")]),  # an I- that continues nothing begins a run
        ("O I-x", [(1, 2, "x")]),
        ("B-x O I-x", [(0, 1, "x"), (2, 3, "x")]),  # a gap ends a run
        ("B-x I-y I-y", [(0, 1, "x"), (1, 3, "y")]),  # so does another type
        ("I-x I-y I-x", [(0, 1, "x"), (1, 2, "y"), (2, 3, "x")]),
        ("NOUN O VERB VERB", [(0, 1, "NOUN"), (2, 3, "VERB"), (3, 4, "VERB")]),  # no B- and I-
        ("B I", [(0, 1, "B"), (1, 2, "I")]),
        ("B-x-y I-x-y", [(0, 2, "x-y")]),
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == expected


def test_metrics_by_hand():
    true = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"], ["O"]]
    predicted = [["B-x", "I-x", "O", "B-x"], ["B-x", "I-x"], ["B-y"]]
    # True: 0-2 x, 3-4 y; 0-1 x. Predicted: 0-2 x, 3-4 x; 0-2 x; 0-1 y. One has both ends and type.
    assert figures_of(predicted, true) == {
        "accuracy": close(4 / 7),
        "precision_entity": close(1 / 4),
        "recall_entity": close(1 / 3),
        "f1_entity": close(2 / 7),
    }


def test_an_entity_of_another_row_is_not_correct():
    figures = figures_of([["B-x", "O"], ["O", "O"]], [["O", "O"], ["B-x", "O"]])
    assert figures["f1_entity"] == 0 and figures["accuracy"] == 0.5


@pytest.mark.parametrize(("predicted", "true"), [([["O"]], [["O"]]), ([], []), ([[]], [[]])])
def test_without_entities_the_metrics_are_zero_and_finite(predicted, true):
    assert figures_of(predicted, true)["f1_entity"] == 0


def test_words_that_max_len_cut_off_count_as_outside():
    figures = figures_of([["B-x"]], [["B-x", "O", "B-y"]])
    assert figures["accuracy"] == close(2 / 3) and figures["recall_entity"] == 0.5


@pytest.mark.parametrize(
    ("predicted", "true", "message"),
    [
        ([["O", "O"]], [["O"]], "2 predicted tags for 1 words"),
        ([["O"], ["O"]], [["O"]], "argument 2 is"),
    ],
)
def test_too_many_tags_or_rows_are_an_error(predicted, true, message):
    with pytest.raises(ValueError, match=message):
        figures_of(predicted, true)


@examples
@given(st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=13))
def test_entities_never_overlap_and_cover_every_tagged_word(tags):
    covered = [i for start, stop, _ in entities(tags) for i in range(start, stop)]
    assert covered == [i for i, tag in enumerate(tags) if tag != "O"]
    assert all(
        tags[i][2:] == kind for start, stop, kind in entities(tags) for i in range(start, stop)
    )


# Answers, files and learning


def test_an_answer_has_the_words_and_the_entities_with_their_positions():
    task, text = task_of(), "In  New\tYork, Kim sang"
    tagged = Tagged(["O", "B-x", "I-x", "B-x", "O"], [0.9, 0.5, 0.7, 0.8, 1.0])
    answer = task.answer(tagged, {"words": text})
    assert answer["prediction"] == tagged.tags
    assert answer["words"] == text.split()
    place, person = answer["entities"]
    assert place == {
        "text": "New\tYork,",
        "label": "x",
        "score": close(0.6),
        "start_word": 1,
        "end_word": 3,
        "start": 4,
        "end": 13,
    }
    assert text[place["start"] : place["end"]] == place["text"] and person["text"] == "Kim"
    # A list of words has no positions of characters.
    place, _ = task.answer(tagged, {"words": text.split()})["entities"]
    assert place["text"] == "New York," and place["start"] is None
    assert task.columns(tagged, None, {"words": text}) == {
        "prediction": tagged.tags,
        "entities": answer["entities"],
    }
    assert task.answer(tagged) == {"prediction": tagged.tags}


def test_the_trivial_answer_has_no_entities():
    description, (prediction,) = task_of().naive([{}])
    assert description == "always O"
    figures = Tag().metric.metrics([prediction], [["B-x", "O", "O"]], math.nan)
    assert figures["accuracy"] == close(2 / 3) and figures["f1_entity"] == 0
    assert task_of(("N", "V")).naive([{}]) is None


def test_a_saved_task_is_restored(tmp_path):
    task = Tag(balance="inverse")
    task.target.fit(VALUES)
    task.save(tmp_path)
    assert vars(Tag().load(tmp_path).target) == {**vars(task.target), "balance": "none"}


def test_mixup_is_refused():
    with pytest.raises(UserError, match=r"trainer\.mixup: cannot be combined with head=tag"):
        Tag().check({"trainer": {"mixup": 0.2}})
    Tag().check({"trainer": {"mixup": 0.0}})


def test_eight_samples_are_overfitted():
    words = [[f"word{i}", f"word{i * 3 % 8}", "end"][: 1 + i % 3] for i in range(8)]
    values = [[BIO[(i + j) % 3] for j in range(len(row))] for i, row in enumerate(words)]
    adapters = {"notes": TextAdapter(16, tokenizer=TokenizerOptions(kind="word")).fit(words)}
    task = Tag(dropout=0.0)
    task.target.bind(adapters)
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"notes": words}, values)
    losses = overfit(task, model, batch)
    assert losses[0] > 0.4 and losses[-1] < 0.05
    assert [prediction.tags for prediction in predict(task, model, batch)] == values


def test_the_words_within_max_len_are_counted():
    words = ["a", "b", "c", "d", "e"]
    adapter = TextAdapter(8, tokenizer=TokenizerOptions(kind="word"), max_len=3).fit([words])
    task = Tag()
    task.target.bind({"text": adapter})
    tokenizers = {"text": adapter.tokenizer}
    assert task.target.kept(["O"] * 5, {"text": words}, tokenizers) == (3, 5)
    assert task.target.kept(["O"] * 3, {"text": words[:3]}, tokenizers) is None
    assert task.target.kept([], {"text": None}, tokenizers) is None


def test_the_simple_method_knows_the_most_frequent_tag_of_each_word():
    task = task_of()
    texts = {task.target.input: ["Kim runs", "Kim New", "Kim"]}
    targets = [["B-x", "O"], ["B-x", "B-x"], ["O"]]
    ((description, predictions),) = task.simple_methods(
        texts, targets, {task.target.input: ["New Kim sat"]}
    )
    assert description == "usual tag of each word"
    assert predictions[0].tags == ["B-x", "B-x", "O"]
    task = task_of(("N", "V"))
    raws = {task.target.input: ["a b c"]}
    ((_, predictions),) = task.simple_methods(raws, [["N", "V", "V"]], {task.target.input: ["a d"]})
    assert predictions[0].tags == ["N", "V"]
