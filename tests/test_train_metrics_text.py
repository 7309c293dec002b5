"""Figures of texts that were written: against sacrebleu's own call, and a distance found by trying everything."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import corpus_bleu, corpus_chrf

from dxn.data.targets import Target
from dxn.tokenize import TargetTokenizer
from dxn.train.metrics import _texts, better, edit_distance, monitored, score

WRITTEN = [
    "a man in a red hat rides a small horse",
    "two dogs play with the ball",
    "the child eats",
    "",
    "five birds sit on a roof",
]
TRUE = [
    "a man with a red hat rides a small brown horse",
    "two dogs play with the ball",
    "a child eats bread",
    "nobody is there",
    "five birds are sitting on the roof",
]
words = st.text("ab", max_size=5)
lists = st.lists(st.sampled_from(["red", "hat", "dog"]), max_size=5)
examples = settings(max_examples=40, deadline=None)


def by_trying_everything(one, other):
    """The definition: the last element of either is put in, left out, or replaced where it is another."""

    @cache
    def fewest(i, j):
        if not i or not j:
            return i + j
        changed = fewest(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(fewest(i - 1, j) + 1, fewest(i, j - 1) + 1, changed)

    return fewest(len(one), len(other))


def within_one_edit(word, letters="ab"):
    found = {word}
    for i in range(len(word) + 1):
        found |= {word[:i] + letter + word[i:] for letter in letters}
        found |= {word[:i] + word[i + 1 :]} | {word[:i] + letter + word[i + 1 :] for letter in letters}
    return {w for w in found if len(w) <= 6}


def by_walking(one, other):
    """Steps of one edit from one to the other, breadth first."""
    seen, steps = {one}, 0
    while other not in seen:
        seen, steps = {near for word in seen for near in within_one_edit(word)}, steps + 1
    return steps


@examples
@given(one=words, other=words)
def test_the_distance_is_the_fewest_edits_there_are(one, other):
    assert edit_distance(one, other) == by_walking(one, other)


@examples
@given(one=lists, other=lists)
def test_the_distance_of_words_is_that_of_the_definition(one, other):
    assert edit_distance(one, other) == by_trying_everything(tuple(one), tuple(other))


@examples
@given(one=words, other=words, third=words)
def test_the_distance_is_a_metric(one, other, third):
    there, back = edit_distance(one, other), edit_distance(other, one)
    assert there == back
    assert (there == 0) == (one == other)
    assert there <= edit_distance(one, third) + edit_distance(third, other)


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("", "", 0), ("ab", "ba", 2), (["a b"], ["a", "b"], 2)],
)
def test_distances_by_hand(one, other, edits):
    assert edit_distance(one, other) == edits


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(1, 2), slice(3, 4)])
def test_bleu_and_chrf_are_sacrebleus(rows):
    written, true = WRITTEN[rows], TRUE[rows]
    found = _texts(written, true)
    assert found["bleu"] == corpus_bleu(written, [true]).score
    assert found["chrf"] == corpus_chrf(written, [true]).score


def test_all_that_is_right_is_a_hundred():
    found = _texts(TRUE, TRUE)
    assert found == {"bleu": pytest.approx(100), "chrf": pytest.approx(100), "wer": 0, "cer": 0, "exact_match": 1}


def test_figures_of_texts_by_hand():
    found = _texts(["a red cat", "two dogs", ""], ["a red hat", "two dogs", "no one"])
    assert found["exact_match"] == 1 / 3
    assert found["wer"] == (1 + 0 + 2) / (3 + 2 + 2)
    assert found["cer"] == (1 + 0 + 6) / (9 + 8 + 6)


def test_nothing_written_leaves_out_every_word_and_a_text_too_long_costs_more_than_all():
    empty = _texts(["", ""], ["one two three", "four"])
    assert (empty["wer"], empty["cer"], empty["exact_match"], empty["bleu"], empty["chrf"]) == (1, 1, 0, 0, 0)
    assert _texts(["one two three"], ["one"])["wer"] == 2


def test_where_nothing_was_to_be_written_what_was_written_is_counted():
    found = _texts(["", "two words"], ["", ""])
    assert (found["wer"], found["exact_match"]) == (2, 0.5)


def test_more_space_between_words_is_no_wrong_word_but_a_wrong_character():
    found = _texts(["one  two"], ["one two"])
    assert (found["wer"], found["cer"], found["exact_match"]) == (0, 1 / 7, 0)


@examples
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_error_rates_are_of_all_rows_together(pairs):
    """Not the mean of each row's rate: a long row counts for more."""
    written, true = zip(*pairs, strict=True)
    found = _texts(list(written), list(true))
    edits = sum(by_trying_everything(w, t) for w, t in pairs)
    assert found["cer"] == edits / max(sum(map(len, true)), 1)
    assert found["exact_match"] == sum(w == t for w, t in pairs) / len(pairs)


def test_the_truth_is_read_as_the_tokenizer_reads_it():
    writing = TargetTokenizer(subwords="word", lowercase=True)
    writing.fit(["ein ball"])
    target = Target("text", writing=writing)
    assert score(target, ["ein bälle"], ["Ein Ba\u0308lle"])["exact_match"] == 1
    plain = TargetTokenizer(subwords="word")
    plain.fit(["ein ball"])
    assert score(Target("text", writing=plain), ["ein ball"], ["Ein Ball"])["exact_match"] == 0


def test_which_epoch_is_best():
    assert monitored(Target("text")) == "chrf" and better("chrf", 2.0, 1.0) and not better("chrf", 1.0, 2.0)
    metric = monitored(Target("next"))
    assert metric == "loss_per_char"
    assert better(metric, 1.0, 2.0) and not better(metric, 2.0, 1.0) and not better(metric, float("nan"), None)
