"""Repeated rows: copies with other augmentation, that resume and are named like their rows."""

from dataclasses import replace

import pytest
import torch
from helpers import training
from helpers.runs import checkpoint_of, interrupt, same_tensors
from helpers.training import SeriesTokenizer, fit, make_rows, make_task

from dxn.core.dropout import Keys, keyed
from dxn.data import LoaderOptions
from dxn.data.dataset import Samples
from dxn.data.loader import BatchOrder
from dxn.data.token_windows import make_samples
from dxn.tasks import Language
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.training.predict import name_rows


def samples_of(count=7, **options):
    tokenizers = {"series": SeriesTokenizer()}
    options = {"augment": True, "seed": 3, **options}
    return Samples(make_rows(count), tokenizers, task=make_task(), **options)


def values(samples, epoch=0):
    return [samples[epoch, i]["series"]["values"] for i in range(len(samples))]


def test_each_row_occurs_as_often_as_requested_with_other_augmentation():
    samples = samples_of(repeats=3)
    assert len(samples) == 21
    copies = values(samples)
    for row in range(7):
        same = copies[row::7]
        # Augmentation adds one random number to all values.
        for copy in same[1:]:
            difference = copy - same[0]
            assert float(difference.abs().min()) > 0
            torch.testing.assert_close(difference, difference.flatten()[:1].expand_as(difference))
        assert len({samples[0, row + 7 * copy]["target"].item() for copy in range(3)}) == 1
    assert not torch.equal(values(samples, 1)[0], copies[0])


def test_the_first_copies_are_the_samples_without_repeats():
    plain, repeated = values(samples_of()), values(samples_of(repeats=2))
    assert all(torch.equal(a, b) for a, b in zip(plain, repeated[:7], strict=True))


def test_without_augmentation_each_row_occurs_once():
    samples = samples_of(augment=False, repeats=3)
    assert len(samples) == 7 and samples.rows.tolist() == list(range(7))


def test_an_epoch_has_every_copy_once():
    samples = samples_of(repeats=3)
    order = BatchOrder(samples, 4, shuffle=True)
    assert len(order) == 6
    assert sorted(i for _, indices, *_ in order for i in indices) == list(range(21))


def test_copies_have_dropout_masks_of_their_own():
    samples = samples_of(repeats=2)
    batch = samples.collate([samples[0, 1], samples[0, 8]])
    with keyed(torch.tensor(batch["#index"]), 5):
        first, second = Keys.of(torch.Size([2]), torch.device("cpu")).samples
    assert first != second


def test_a_copy_is_named_like_its_row():
    samples = samples_of(repeats=3)
    assert samples.describe(8) == samples.describe_index(8) == "row 1"
    samples.opened.raws["series"][1][0][0] = float("nan")
    assert name_rows(samples, 0, [2, 15]) == "values that are not finite in row 1"


def test_rows_that_are_not_usable_are_left_out_of_every_copy():
    opened = make_rows(5)
    series = list(opened.raws["series"])
    series[2] = None
    opened = replace(opened, raws={"series": series}, present={})
    samples = Samples(
        opened, {"series": SeriesTokenizer()}, task=make_task(), augment=True, repeats=2
    )
    assert [samples.describe(i) for i in range(len(samples))] == [
        f"row {i}" for i in (0, 1, 3, 4, 0, 1, 3, 4)
    ]


def test_the_length_of_a_row_is_computed_once(monkeypatch):
    calls = []
    samples = samples_of(repeats=5)
    prepare = samples.tokenizers["series"]
    monkeypatch.setattr(prepare, "length", lambda raw: calls.append(raw) or len(raw))
    order = BatchOrder(samples, 4, shuffle=True)
    assert len(calls) == 7
    assert order.lengths.tolist() == [len(raw) for raw in samples.opened.raws["series"]] * 5


def test_a_stream_has_more_windows_at_random_positions():
    text = "abcdefghijklmnopqrst"
    adapter = TextAdapter(8, tokenizer=TokenizerOptions("character"), max_len=4).fit([text])
    task = Language()
    task.target.bind({"text": adapter})
    opened = replace(make_rows(1), raws={"text": [text]}, targets=None)
    prepare = {"text": adapter.tokenizer}
    once = make_samples(task, opened, prepare, augment=True)
    samples = make_samples(task, opened, prepare, augment=True, repeats=6)
    assert len(samples) == 6 * len(once)
    starts = {samples[0, i]["text"]["ids"][0].item() for i in range(len(samples))}
    assert len(starts) > len(once)
    assert len(make_samples(task, opened, prepare, repeats=6)) == len(once)


@pytest.fixture
def repeating(monkeypatch):
    """Trainings whose training split is repeated."""
    original = training.make_samples

    def make(count, task, *, seed=0, augment=False, input_dropout=None):
        if not augment:
            return original(count, task, seed=seed)
        tokenizers = {"series": SeriesTokenizer()}
        rows = make_rows(count, seed=seed)
        return Samples(rows, tokenizers, task=task, seed=seed, augment=True, repeats=3)

    monkeypatch.setattr(training, "make_samples", make)


def test_an_interrupted_training_is_resumed_bit_for_bit(tmp_path, monkeypatch, repeating):
    options = {"count": 17, "epochs": 2, "checkpoint_every": 2}
    whole, state, _ = fit(tmp_path / "whole", **options)
    assert state.step == 2 * 5  # of 51 samples in batches of 11
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))


def test_repeats_below_one_are_refused():
    with pytest.raises(ValueError, match=r"^repeats must be at least 1, got 0$"):
        LoaderOptions(repeats=0)
    assert LoaderOptions().repeats == 1
