"""Question answering: windows, targets, loss, the best span and the metrics, compared by hand."""

import math
import random
import unicodedata
from types import SimpleNamespace

import pytest
import torch
from helpers.tasks import assert_same, build_model, make_batch, overfit, predict
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.core.marks import Mark
from dxn.tasks import Span
from dxn.tasks.span.target import Answers
from dxn.tasks.span.task import SpanAnswer, best_spans
from dxn.tokenize import TextAdapter, TokenizerOptions

examples = settings(max_examples=30, deadline=None)
TEXT = "Ada lives in New York and Bob in San Jose"


def adapter_of(texts, max_len=256, dim=16):
    options = TokenizerOptions(kind="word")
    return TextAdapter(dim, tokenizer=options, max_len=max_len).fit(texts)


def bound(task, raws, max_len=256):
    """The task and the adapters of texts by input name, which share an adapter."""
    adapter = adapter_of([text for column in raws.values() for text in column], max_len)
    adapters = dict.fromkeys(raws, adapter)
    task.target.bind(adapters)
    return adapters


def read(cell, text=TEXT, **others):
    return Span().target.read(
        cell, "qa.csv row 2", {"question": "Where?", "context": text, **others}
    )


def figures(predicted, true):
    found = [SpanAnswer(text, None, None, 1.0) for text in predicted]
    return Span().metric.metrics(found, [Answers(tuple(texts)) for texts in true], 0.0)


# Targets


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("New York", Answers(("New York",), 13, 21)),
        ({"text": ["in"], "answer_start": [30]}, Answers(("in",), 30, 32)),
        ({"text": ["in"], "answer_start": [29]}, Answers(("in",), 30, 32)),
        ({"text": "Bob", "start": 26}, Answers(("Bob",), 26, 29)),
        (
            {"text": ["York", "New York"], "answer_start": [17, 13]},
            Answers(("York", "New York"), 17, 21),
        ),
        (
            [{"text": "nobody", "answer_start": 1}, {"text": "Bob", "answer_start": 26}],
            Answers(("nobody", "Bob"), 26, 29),
        ),
        (["Bob", "Bob"], Answers(("Bob",), 26, 29)),
        ('{"text": ["Bob"], "answer_start": [26]}', Answers(("Bob",), 26, 29)),
        (
            "{'text': array(['Bob'], dtype=object), 'answer_start': array([26])}",
            Answers(("Bob",), 26, 29),
        ),
        ({"text": ["York"], "answer_start": [900]}, Answers(("York",), 17, 21)),
        ({"text": ["in"], "answer_start": [-1]}, Answers(("in",), 10, 12)),
        ("", Answers()),
        (None, Answers()),
        ([], Answers()),
        ({"text": [], "answer_start": []}, Answers()),
    ],
)
def test_a_cell_has_answers_and_the_position_of_one_of_them(cell, expected):
    assert read(cell) == expected


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("London", "the answer 'London' does not occur in context"),
        (
            {"text": ["in"], "answer_start": [20]},
            "answer_start 20 is not the start of 'in', which occurs 2 times in context; correct it",
        ),
        ({"answer_start": [3]}, "must be an answer, a list of answers, or an object"),
        ({"text": ["Bob"], "answer_start": ["x"]}, "must be an answer"),
        ({"text": ["Bob"], "answer_start": [math.inf]}, "must be an answer"),
        (object(), "must be an answer"),
    ],
)
def test_a_bad_cell_is_named(cell, message):
    with pytest.raises(UserError, match=rf"^qa\.csv row 2: .*{message}"):
        read(cell)


def test_the_text_has_a_usual_name_or_is_the_longest():
    task = Span()
    # In the first row, the question is longer.
    raws = {"short": ["Bob or Ada, what do you think?", "Where?"], "long": ["Bob", TEXT]}
    task.target.see_inputs(raws)
    rows = [{name: raws[name][i] for name in raws} for i in range(2)]
    assert [task.target.read("Bob", "", row).stop for row in rows] == [3, 29]
    bound(task, raws)
    assert task.target.context == "long"
    task = Span()
    bound(task, {"Passage": ["Ada"], "question": [TEXT]})
    assert task.target.context == "Passage"
    with pytest.raises(UserError, match=r"head\.context: must be the name of an input .* got body"):
        bound(Span(context="body"), {"question": ["Who?"], "context": [TEXT]})
    with pytest.raises(UserError, match="needs a question, got only context"):
        bound(Span(), {"context": [TEXT]})


def test_a_row_without_the_text_has_no_position():
    task = Span()
    task.target.see_inputs({"question": ["Where?", "Where is Bob?"], "context": [TEXT, None]})
    raws = {"question": "Where is Bob?"}
    assert task.target.read("Eve", "qa.csv row 3", raws) == Answers(("Eve",))


def test_answers_that_occur_several_times_are_counted():
    answers = [read("in"), read("Bob"), read({"text": ["in"], "answer_start": [30]})]
    assert [answer.start for answer in answers] == [10, 26, 30]
    assert "1 without a start occur several times" in Span().target.describe(answers)


@pytest.mark.parametrize("answer", ["[citation]", "[3, 4]", "{a}", '["x"]', "[None]", "(1, 2)"])
def test_an_answer_that_looks_like_a_list_is_a_text_in_a_column_of_texts(answer):
    target = Span().target
    target.find_format([answer, "Oslo"], ["", ""])
    text = f"It says {answer} here."
    assert target.read(answer, "", {"context": text}) == Answers((answer,), 8, 8 + len(answer))
    target.find_format(['["Bob", "in"]', '{"text": []}'], ["", ""])
    assert target.read('["Bob"]', "", {"context": TEXT}) == Answers(("Bob",), 26, 29)


def test_one_damaged_list_does_not_change_how_other_answers_are_read():
    target = Span().target
    cells = ['{"text": ["b"], "answer_start": [2]}'] * 9 + ['{"text": ["b']
    target.find_format(cells, [""] * 10)
    assert target.read(cells[0], "", {"context": "a b", "question": "?"}).texts == ("b",)
    with pytest.raises(UserError, match=r"row 10: .* does not occur in context"):
        target.read(cells[9], "row 10", {"context": "a b", "question": "?"})


def test_an_answer_is_found_in_a_text_with_other_unicode_forms():
    for text, answer in [
        ("Ha\u0308ns Mu\u0308ller kam", "M\u00fcller"),
        ("H\u00e4ns M\u00fcller kam", "Mu\u0308ller"),
        ("\u1112\u1161\u11ab Mu\u0308ller", "\ud55c"),
    ]:
        found = read({"text": [answer], "answer_start": [text.find("M")]}, text)
        assert found.texts == (text[found.start : found.stop],)
        assert unicodedata.normalize("NFC", found.texts[0]) == unicodedata.normalize("NFC", answer)


def test_many_wrong_starts_are_refused_and_those_in_bytes_are_named():
    task, text = Span(), "Řeka Ústí: 7 in Ulm"
    in_bytes = [read({"text": ["Ulm"], "answer_start": [19]}, text)] * 3
    assert {answer.start for answer in in_bytes} == {16}
    assert "3 are not at their start" in task.target.describe(in_bytes)
    with pytest.raises(UserError, match=r"3 of 3 answers .* at 16; they count the units of UTF-8"):
        task.target.check_values(in_bytes)
    other = [read({"text": ["Ulm"], "answer_start": [8]}, "😀😀 in Ulm")] * 3
    with pytest.raises(UserError, match="units of UTF-16, so count characters"):
        task.target.check_values(other)
    wrong = read({"text": ["Ulm"], "answer_start": [2]}, text)
    with pytest.raises(UserError, match=r"4 of 4 answers .*; correct them, or remove them"):
        task.target.check_values([*in_bytes, wrong])
    right = [read({"text": ["Ulm"], "answer_start": [16]}, text)] * 40
    task.target.check_values([*right, *in_bytes])


# Windows


def plain_windows(count, room, overlap):
    """The windows of a text as (start, stop), one after the other."""
    step = room - min(overlap, room // 2)
    windows = [(0, min(room, count))]
    while windows[-1][1] < count:
        start = windows[-1][0] + step
        windows.append((start, min(start + room, count)))
    return windows


@examples
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(3, 17), st.integers(0, 20))
def test_windows_cover_a_text_and_overlap(lengths, max_len, overlap):
    texts = [" ".join(f"w{i}" for i in range(length)) for length in lengths]
    task = Span(overlap=overlap)
    raws = {"question": ["who"] * len(texts), "context": texts}
    adapters = bound(task, raws, max_len)
    batch = make_batch(task, adapters, raws)
    whole = batch["context"]["ids"]
    found = [[] for _ in texts]
    for window in task.target.windows.cut(batch):
        part = window["context"]
        place = part["window"]
        assert part["ids"].shape[1] <= max_len
        assert torch.equal(part["mask"].sum(1), place.count)
        for i, row in enumerate(found):
            start, count = int(place.start[i]), int(place.count[i])
            assert torch.equal(part["ids"][i, :count], whole[i, start : start + count])
            if place.is_new[i]:
                row.append((start, start + count))
    assert found == [plain_windows(length, max_len, overlap) for length in lengths]


@examples
@given(st.integers(0, 10**6))
def test_a_training_window_of_a_long_text_has_the_answer_or_none(seed):
    text = " ".join(f"w{i}" for i in range(50))
    raws = {"question": ["who"], "context": [text]}
    task = Span()
    adapters = bound(task, raws, 11)
    value = task.target.read("w20 w21 w22", "", {"context": text})
    batch = make_batch(task, adapters, raws, [value], rand=random.Random(seed))
    ids = batch["context"]["ids"][0].tolist()
    vocabulary = adapters["context"].tokenizer.vocabulary
    words = [vocabulary.id_to_token(k) for k in ids]
    first, last = batch["target"][0].tolist()
    assert len(words) == 11
    if first < 0:
        assert last < 0 and not {"w20", "w21", "w22"} <= set(words)
    else:
        assert words[first : last + 1] == ["w20", "w21", "w22"]


def test_half_of_the_training_windows_have_the_answer():
    text = " ".join(f"w{i}" for i in range(500))
    raws = {"question": ["who"], "context": [text]}
    task = Span()
    adapters = bound(task, raws, 10)
    value = task.target.read("w250", "", {"context": text})
    targets = [
        make_batch(task, adapters, raws, [value], rand=random.Random(seed))["target"][0, 0]
        for seed in range(200)
    ]
    assert 70 < sum(int(target) >= 0 for target in targets) < 140


# Loss and predictions


def test_the_loss_is_the_mean_cross_entropy_of_both_ends_in_each_window():
    texts = [" ".join(f"w{i}" for i in range(length)) for length in (14, 3)]
    raws = {"question": ["who", "who"], "context": texts}
    task = Span(overlap=4)
    adapters = bound(task, raws, 8)
    values = [
        task.target.read(a, "", {"context": t}) for a, t in zip(["w5 w6", ""], texts, strict=True)
    ]
    batch = make_batch(task, adapters, raws, values)
    # Windows 0:8, 4:12 and 8:14 of the first text, and one of the second.
    output = torch.randn(2, 3, 9, 2)
    expected = []
    for row, window, ends in [(0, 0, (6, 7)), (0, 1, (2, 3)), (0, 2, (0, 0)), (1, 0, (0, 0))]:
        logits = output[row, window].log_softmax(0)
        expected.append(-(logits[ends[0], 0] + logits[ends[1], 1]) / 2)
    loss = task.space.loss(output, batch)
    assert_same(loss.total, sum(expected))
    assert loss.weight == 4


@examples
@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 1000))
def test_the_best_span_is_that_of_all_pairs(size, longest, seed):
    scores = torch.randn(3, size, 2, generator=torch.Generator().manual_seed(seed))
    value, first, last = best_spans(scores, longest)
    for row in range(3):
        pairs = [(i, j) for i in range(size) for j in range(i, min(i + longest, size))]
        best = max(pairs, key=lambda p: float(scores[row, p[0], 0] + scores[row, p[1], 1]))
        assert (int(first[row]), int(last[row])) == best
        assert_same(value[row], scores[row, best[0], 0] + scores[row, best[1], 1])


def test_a_prediction_is_an_exact_part_of_the_text():
    text = "Zoë\u0301  lives\tin   New\u00a0York !"
    raws = {"question": ["Where ?"], "context": [text]}
    task = Span()
    adapters = bound(task, raws)
    batch = make_batch(task, adapters, raws)
    model = build_model(task, adapters).eval()
    model.adapters["question"] = model.adapters["context"]
    (found,) = predict(task, model, batch)
    assert found.text and text[found.start : found.stop] == found.text == found.text.strip()


def test_a_question_longer_than_a_window_and_an_answer_at_the_end_of_a_long_text():
    # Learned positions end at max_len, and a sample usually keeps the first 50,000 characters.
    text = " ".join(["Ada"] * 20_000 + ["Bob"])
    raws = {"question": ["who is it " * 30], "context": [text]}
    task = Span()
    adapters = bound(task, raws, 64)
    batch = make_batch(task, adapters, raws)
    (window, *_) = task.target.windows.cut(batch)
    assert window["question"]["ids"].shape == window["question"]["mask"].shape == (1, 64)
    assert batch["context"]["text"] == [text]


def test_no_answer_is_predicted_only_if_the_training_has_such_questions():
    raws = {"question": ["Where"], "context": [TEXT]}
    task = Span()
    bound(task, raws)
    batch = make_batch(task, dict.fromkeys(raws, adapter_of([TEXT, "Where"])), raws)
    output = torch.zeros(1, 1, 11, 2)
    output[..., 0, :] = 5.0
    head = SimpleNamespace()
    assert task.predict(head, output, batch)[0].text == "Ada"
    task.target.fit([Answers(("a",), 0, 1), Answers()])
    (found,) = task.predict(head, output, batch)
    share = math.exp(5) / (math.exp(5) + 10)
    assert found.text == "" and found.start is None
    assert found.score == pytest.approx(share**2, rel=1e-5)


def test_the_simple_method_answers_with_the_sentence_that_shares_most_words():
    text = "Ada met Bob in Bonn. It rained, and Bob went home early."
    raws = {"question": ["When did Bob go home?", None], "context": [text, None]}
    task = Span()
    bound(task, {"question": ["When"], "context": [text]})
    ((_, answers),) = task.simple_methods({}, [], raws)
    assert answers[0].text == "It rained, and Bob went home early."
    assert text[answers[0].start : answers[0].stop] == answers[0].text
    assert answers[1].text == ""


def test_eight_samples_are_overfitted():
    texts = [f"Ada{i} lives in Town{i * 3 % 8} and eats Food{i}" for i in range(8)]
    questions = ["Where" if i % 2 else "What" for i in range(8)]
    questions[5] = "Why"
    answers = [f"Town{i * 3 % 8}" if i % 2 else f"Food{i}" for i in range(8)]
    answers[5] = ""
    raws = {"question": questions, "context": texts}
    task = Span(dropout=0.0)
    values = [task.target.read(a, "", {"context": t}) for a, t in zip(answers, texts, strict=True)]
    adapters = bound(task, raws)
    task.target.fit(values)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, raws, values)
    losses = overfit(task, model, batch)
    assert losses[0] > 1 and losses[-1] < 0.05
    assert [found.text for found in predict(task, model, batch)] == answers


# Metrics


def test_exact_match_and_f1_are_those_of_squad():
    got = figures(
        ["the New  York!", "york", "", "Bob", "in New York"],
        [["New York"], ["New York", "a York"], [], [], ["New York", "Paris"]],
    )
    assert got["exact_match"] == pytest.approx(3 / 5)
    assert got["f1_answer"] == pytest.approx((1 + 1 + 1 + 0 + 0.8) / 5)
    assert got["f1_with_answer"] == pytest.approx(2.8 / 3)
    assert got["accuracy_without_answer"] == pytest.approx(1 / 2)


def test_words_that_repeat_count_as_often_as_in_both():
    assert figures(["big big dog"], [["big dog"]])["f1_answer"] == pytest.approx(0.8)
    assert figures(["the"], [["a"]])["exact_match"] == 1


def test_late_fusion_is_refused():
    config = {"fusion": {"_target_": "dxn.models.LateFusion"}, "trainer": {}}
    with pytest.raises(UserError, match="set fusion=early"):
        Span().check(config)


def test_answers_are_marked_at_their_place_in_the_text():
    task = Span()
    raws = {"question": ["Where ?"], "context": ["Ada lives in Oslo."]}
    bound(task, raws)
    true = task.marks(Answers(("Oslo",), 13, 17, "start"), {})
    assert true == {"context": [Mark("", 0, (13, 17))]}
    assert task.marks(SpanAnswer("Ada", 0, 3, 0.5), {}) == {"context": [Mark("", 0, (0, 3), 0.5)]}
    assert task.marks(Answers(), {}) == task.marks(SpanAnswer("", None, None, 0.5), {}) == {}
