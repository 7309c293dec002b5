"""CTC: the loss as a sum over all paths, decoding, the vocabulary, and refused targets."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.tasks import assert_same, build_model, make_batch, overfit, predict

from dxn.core.errors import UserError
from dxn.data.reading import open_rows
from dxn.data.rows import TARGET, Rows
from dxn.tasks import Ctc
from dxn.tokenize import AudioAdapter, SpectrogramOptions, TextAdapter

LABELS = ["", " ", "a", "b", "c"]
RATE = 1000


def adapter_of(dim=16):
    """Tokens of 20 ms: 51 per second."""
    return AudioAdapter(
        dim, sample_rate=RATE, frame_size=2, spectrogram=SpectrogramOptions(n_mels=7, n_fft=24)
    )


def task_of(labels=LABELS, **adapters):
    task = Ctc()
    task.target.load({"labels": labels})
    task.target.bind(adapters or {"sound": adapter_of()})
    return task


def clip(seconds, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).normal(size=round(seconds * RATE)).astype("float32")
    )


def batch_of(counts, texts, task, name="sound"):
    """A batch of clips with these numbers of tokens, and its targets."""
    adapter = adapter_of()
    raws = [clip((20 * count - 10) / 1000, i) for i, count in enumerate(counts)]
    return make_batch(task, {name: adapter}, {name: raws}, texts)


def written(path):
    """The text of a path: repetitions are one character, and the blank is none."""
    return "".join(LABELS[i] for i, _ in itertools.groupby(path))


def test_the_loss_is_that_of_the_sum_over_all_paths():
    task = task_of()
    texts, counts = ["ab", "bb", "a", "c a"], [3, 4, 2, 5]
    batch = batch_of(counts, texts, task)
    output = torch.randn(4, 5, len(LABELS))
    probabilities = output.double().softmax(-1)
    expected = 0.0
    for each, text, count in zip(probabilities, texts, counts, strict=True):
        total = sum(
            math.prod(each[t, i].item() for t, i in enumerate(path))
            for path in itertools.product(range(len(LABELS)), repeat=count)
            if written(path) == text
        )
        expected -= math.log(total)
    loss = task.loss(output, batch)
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    assert loss.weight.item() == sum(map(len, texts))
    half = task.loss(output.bfloat16(), batch).total
    assert half.dtype == torch.float32


def test_what_is_beyond_the_tokens_of_a_clip_changes_neither_loss_nor_text():
    task = task_of()
    batch = batch_of([3, 5], ["ab", "c a"], task)
    output = torch.randn(2, 9, len(LABELS))
    changed = output.clone()
    changed[0, 3:] += torch.randn(6, len(LABELS))
    changed[1, 5:] += torch.randn(4, len(LABELS))
    assert_same(task.loss(output, batch).total, task.loss(changed, batch).total)
    assert task.predict(None, output, batch) == task.predict(None, changed, batch)
    assert (task.space.decode(changed, batch)["probabilities"][0, 3:] == 0).all()


def test_a_clip_that_is_too_short_for_its_text_adds_neither_loss_nor_gradient():
    task = task_of()
    batch = batch_of([3, 4], ["abc ab", "ab"], task)
    output = torch.randn(2, 4, len(LABELS), requires_grad=True)
    loss = task.loss(output, batch).total
    loss.backward()
    assert loss.isfinite() and output.grad[0].eq(0).all() and output.grad[1].ne(0).any()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("aa_b", "ab"),
        ("a_ab", "aab"),
        ("____", ""),
        ("_a  ", "a"),
        ("  a ", "a"),
        ("a b_", "a b"),
    ],
)
def test_equal_neighbors_are_one_character_and_blanks_are_left_out(path, text):
    task = task_of()
    batch = batch_of([4], [text], task)
    output = torch.zeros(1, 4, len(LABELS))
    for t, char in enumerate(path):
        output[0, t, LABELS.index(char.replace("_", ""))] = 3.0
    assert task.predict(None, output, batch) == [text]
    assert task.answer(text) == {"prediction": text}


def test_an_ensemble_has_the_mean_of_the_probabilities():
    task = task_of()
    batch = batch_of([4], ["a"], task)
    outputs = [torch.randn(1, 4, len(LABELS)) for _ in range(3)]
    mean = task.space.decode(task.space.mean(outputs), batch)["probabilities"]
    each = [task.space.decode(output, batch)["probabilities"] for output in outputs]
    assert_same(mean, torch.stack(each).mean(0))


# The vocabulary


def test_the_vocabulary_is_that_of_the_training_split():
    target = Ctc().target
    target.fit(["ba c", "é"])
    assert target.labels == ("", " ", "a", "b", "c", "é")
    ids, count = bound(target).encode("a cx", {"sound": adapter_of().tokenizer(clip(0.1))})
    assert ids.tolist() == [2, 1, 4] and count == 6  # x is unknown


def bound(target):
    target.bind({"sound": adapter_of()})
    return target


def test_the_vocabulary_of_a_checkpoint_is_kept_if_it_has_all_characters():
    letters = ["", "E", "T", " ", "<s>"]
    target = Ctc().target
    target.start_from(letters)
    target.fit(["te et", "E"])
    assert target.labels == tuple(letters) and target.normalize("te é") == "TE é"
    target = Ctc().target
    target.start_from(letters)
    target.fit(["te et", "é"])
    assert target.labels == ("", " ", "e", "t", "é")


def test_error_rates_ignore_the_case_that_the_vocabulary_lacks():
    task = task_of(["", " ", "A", "B"])
    figures = task.metric.metrics(["A B", "BA", ""], ["a b", "b b a", "a"], 0.0)
    # 0 of 2, 3 of 3 and 1 of 1 words; 0 of 3, 3 of 5 and 1 of 1 characters.
    wer = {"wer": 4 / 6, "wer_normalized": 4 / 6}
    assert figures == pytest.approx({**wer, "cer": 4 / 9, "exact_match": 1 / 3})


@pytest.mark.parametrize("labels", [["a", "b"], ["", "", "a"], []])
def test_a_vocabulary_without_one_blank_is_refused(labels):
    with pytest.raises(UserError, match="labels"):
        Ctc().target.load({"labels": labels})


# Inputs


def test_the_text_belongs_to_the_first_input_with_a_known_number_of_tokens():
    task = task_of(note=TextAdapter(16), sound=adapter_of(), other=adapter_of())
    assert task.target.input == "sound" and task.target.required == ("sound",)
    with pytest.raises(UserError, match=r"needs an input whose tokens .* such as audio, got note"):
        Ctc().target.bind({"note": TextAdapter(16)})


def opened(texts, on_bad):
    adapter = adapter_of()
    sounds = [(clip(0.1).numpy(), RATE)] * len(texts)
    origin = [f"t.csv row {i + 2}" for i in range(len(texts))]
    rows = Rows({"sound": sounds, TARGET: texts}, origin)
    return open_rows(rows, {"sound": adapter.tokenizer}, task=Ctc(), on_bad=on_bad)


def test_a_text_that_is_longer_than_the_tokens_of_its_clip_is_refused():
    texts = ["abcabc", "abcabca", "aabcab", "a  bcab"]
    message = (
        "t.csv row 3: the target needs at least 7 tokens, one per character and one between two "
        r"equal ones, but sound has 6; use shorter tokens, or correct the target \(and 1 more"
    )
    with pytest.raises(UserError, match=message):
        opened(texts, "error")
    kept = opened(texts, "skip")
    assert list(kept.targets) == ["abcabc", "a bcab"] and kept.skipped == 2


def test_eight_samples_are_overfitted():
    torch.manual_seed(0)
    texts = ["ab", "bb c", "a", "c a", "abc", "cab", "b", "aa"]
    adapter = adapter_of()
    raws = {"sound": [clip(0.1 + 0.02 * i, i) for i in range(8)]}
    adapter.fit(raws["sound"])
    task = Ctc(dropout=0.0)
    task.target.bind({"sound": adapter})
    task.target.fit(texts)
    model = build_model(task, {"sound": adapter})
    batch = make_batch(task, {"sound": adapter}, raws, texts)
    overfit(task, model, batch, goal=0.05)
    assert predict(task, model, batch) == texts


def test_a_letter_with_an_accent_is_one_character():
    target = Ctc().target
    assert (
        target.read("cafe\N{COMBINING ACUTE ACCENT}  au", "", {})
        == "caf\N{LATIN SMALL LETTER E WITH ACUTE} au"
    )
