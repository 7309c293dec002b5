"""The order of batches: a function of seed and epoch, by similar length, for any processes."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.data.dataset import Opened, Samples
from dxn.data.loader import BatchOrder, Loader
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.base import FULL, NUM_REAL, rounded

LENGTHS = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), max_size=67)


class Lengths:
    """Stands for samples where only their number and their lengths matter."""

    def __init__(self, lengths):
        self.values = np.array(lengths, float)

    def __len__(self):
        return len(self.values)

    def lengths(self):
        return self.values

    num_workers = None
    timeout = None
    batch_tokens = None
    reads_files = False

    def batch(self, epoch, indices, *, drop_inputs=True):
        return {"indices": indices}


def random_lengths():
    """Three pools of five samples per batch, and a few more."""
    rand = random.Random(0)
    return [float(rand.randint(1, 1000)) for _ in range(3 * 50 * 5 + 11)]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 7), st.booleans(), st.integers(0, 3))
def test_every_sample_is_in_one_batch_and_only_one_batch_is_smaller(
    lengths, batch_size, shuffle, epoch
):
    order = BatchOrder(Lengths(lengths), batch_size, seed=3, shuffle=shuffle)
    order.epoch = epoch
    batches = list(order)
    assert len(batches) == len(order)
    assert {keys[0] for keys in batches} <= {epoch}
    assert sorted(i for keys in batches for i in keys[1]) == list(range(len(lengths)))
    assert all(len(keys[1]) <= batch_size for keys in batches)
    assert sum(len(keys[1]) < batch_size for keys in batches) <= 1


def test_the_order_depends_on_seed_and_epoch_only():
    def order(seed, epoch, lengths=tuple(range(53))):
        batches = BatchOrder(Lengths([float(n) for n in lengths]), 5, seed=seed, shuffle=True)
        batches.epoch = epoch
        return [keys[1] for keys in batches]

    random.seed(1)
    first = order(3, 2)
    random.seed(2)
    torch.manual_seed(2)
    assert order(3, 2) == first
    assert order(4, 2) != first
    assert order(3, 1) != first
    equal = order(3, 2, [1] * 53)
    assert sorted(i for batch in equal for i in batch) == list(range(53))
    assert equal != order(3, 1, [1] * 53)


def test_the_order_is_the_one_of_earlier_versions():
    order = BatchOrder(Lengths([3.0, 1.0, 2.0, 5.0, 4.0, 1.0, 2.0]), 2, seed=3, shuffle=True)
    assert [keys[1] for keys in order] == [[2, 6], [1, 5], [3], [0, 4]]


def test_iterating_twice_gives_the_same_epoch():
    order = BatchOrder(Lengths([float(i % 7) for i in range(53)]), 5, seed=3, shuffle=True)
    assert list(order) == list(order)


def test_without_shuffling_samples_come_in_order_in_every_epoch():
    order = BatchOrder(Lengths([5.0, 1.0, 3.0, 2.0, 4.0]), 2, seed=3)
    order.epoch = 4
    assert [keys[:2] for keys in order] == [(4, [0, 1]), (4, [2, 3]), (4, [4])]


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.integers(1, 5), st.integers(0, 70), st.booleans())
def test_skipping_resumes_exactly_where_the_epoch_stopped(lengths, batch_size, skip, shuffle):
    order = BatchOrder(Lengths(lengths), batch_size, seed=3, shuffle=shuffle)
    order.epoch = 2
    whole = list(order)
    order.skip = skip
    assert list(order) == whole[skip:]


def epoch_of(
    lengths, batch_size, processes, *, epoch=2, shuffle=True, skip=0, parts=1, batch_tokens=None
):
    """The batches of each process in an epoch, each as pairs of (sample indices, filler)."""
    epochs = []
    for i in range(processes):
        order = BatchOrder(
            Lengths(lengths),
            batch_size,
            batch_tokens=batch_tokens,
            seed=3,
            shuffle=shuffle,
            shard=(i, processes),
        )
        order.epoch, order.skip, order.parts = epoch, skip, parts
        epochs.append([(keys[1], keys[3]) for keys in order])
    return epochs


def samples_in(epochs):
    """The samples of all processes, without those of fillers."""
    return [i for epoch in epochs for batch, filler in epoch if not filler for i in batch]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 7), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_processes_and_parts_divide_the_batches_of_one_process(
    lengths, batch_size, processes, parts, shuffle
):
    (whole,) = epoch_of(lengths, batch_size, 1, shuffle=shuffle)
    epochs = epoch_of(lengths, batch_size, processes, parts=parts, shuffle=shuffle)
    assert {len(epoch) for epoch in epochs} == {parts * len(whole)}
    for number, (batch, _) in enumerate(whole):
        here = [epoch[number * parts : (number + 1) * parts] for epoch in epochs]
        assert sorted(samples_in(here)) == sorted(batch)
        # Fillers are samples too, because a model cannot run on an empty batch.
        assert all(keys and set(keys) <= set(batch) for part in here for keys, _ in part)
        sizes = [len(keys) for part in here for keys, filler in part if not filler]
        assert max(sizes) <= -(-batch_size // (processes * parts))


@pytest.mark.parametrize(
    "lengths",
    [[5.0] * 2000, [float(random.Random(i).randrange(3, 50)) for i in range(2000)]],
    ids=["equal lengths", "unequal lengths"],
)
@pytest.mark.parametrize("counts", [(1, 2, 1), (2, 1, 2), (1, 3, 4), (2, 2, 2)])
def test_an_epoch_continues_with_another_number_of_processes(lengths, counts):
    (whole,) = epoch_of(lengths, 21, 1)
    stops = [0, 37, 60, 96]
    seen = []
    for processes, start, stop in zip(counts, stops[:-1], stops[1:], strict=True):
        epochs = [epoch[: stop - start] for epoch in epoch_of(lengths, 21, processes, skip=start)]
        seen += samples_in(epochs)
        assert sorted(samples_in(epochs)) == sorted(samples_in([whole[start:stop]]))
    assert sorted(seen) == list(range(2000))


def test_without_enough_samples_a_part_is_a_filler():
    # Two processes with three parts each share batches of five samples.
    assert epoch_of([1.0] * 6, 5, 2, parts=3, shuffle=False) == [
        [([0], False), ([2], False), ([4], False), ([5], False), ([5], True), ([5], True)],
        [([1], False), ([3], False), ([0], True), ([5], True), ([5], True), ([5], True)],
    ]


def test_processes_get_samples_of_similar_length_at_the_same_step():
    lengths = random_lengths()
    first, second = epoch_of(lengths, 10, 2)
    for (mine, _), (other, _) in zip(first, second, strict=True):
        # They take turns in a batch that is sorted by length.
        turns = [lengths[i] for pair in zip(mine, other, strict=False) for i in pair]
        assert turns == sorted(turns)


def test_similar_lengths_are_batched_within_a_pool_and_the_batches_are_shuffled():
    lengths = random_lengths()
    order = BatchOrder(Lengths(lengths), 5, seed=3, shuffle=True)
    batches = [[lengths[i] for i in keys[1]] for keys in order]
    spread = sum(max(batch) - min(batch) for batch in batches) / len(batches)
    # A pool is 250 sorted numbers out of 1,000: five neighbors span about 16, five random ones 667.
    assert spread < 40
    means = [sum(batch) / len(batch) for batch in batches]
    falls = sum(a > b for a, b in pairwise(means))
    assert 0.35 < falls / len(means) < 0.65, "the batches are sorted"
    # The five shortest of all are not in one batch, because the pools are random.
    assert sorted(lengths)[:5] not in [sorted(batch) for batch in batches]


# A maximum number of tokens


def samples_of_epoch(epoch, *arguments, **options):
    """The samples of the batches of each process; none of a filler."""
    epochs = epoch_of(*arguments, epoch=epoch, **options)
    return [[[] if filler else batch for batch, filler in own] for own in epochs]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=67),
    st.integers(1, 30),
    st.integers(1, 2000),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_batches_have_at_most_so_many_tokens(lengths, batch_size, tokens, processes, parts):
    options = {"shuffle": True, "batch_tokens": tokens}
    (whole,) = samples_of_epoch(2, lengths, batch_size, 1, **options)
    (other,) = samples_of_epoch(5, lengths, batch_size, 1, **options)
    assert sorted(i for batch in whole for i in batch) == list(range(len(lengths)))
    (rest,) = samples_of_epoch(2, lengths, batch_size, 1, skip=2, **options)
    assert rest == whole[2:]
    for batch in whole:
        longest = max(rounded(np.array(lengths)[batch]))
        assert len(batch) == 1 or (len(batch) <= batch_size and longest * len(batch) <= tokens)
    # All epochs have the same shapes: one per rounded length, and that of the last batch.
    shapes, others = (
        sorted((len(batch), max(rounded(np.array(lengths)[batch]))) for batch in batches)
        for batches in (whole, other)
    )
    assert shapes == others
    assert len(set(shapes)) <= len(set(rounded(np.array(lengths)))) + 1
    divided = samples_of_epoch(2, lengths, batch_size, processes, parts=parts, **options)
    assert {len(own) for own in divided} == {parts * len(whole)}
    for number, batch in enumerate(whole):
        here = [own[number * parts : (number + 1) * parts] for own in divided]
        assert sorted(i for own in here for part in own for i in part) == sorted(batch)


def test_batches_of_so_many_tokens_are_random():
    rand = random.Random(0)
    lengths = Lengths([rand.randint(1, 300) for _ in range(2000)])
    epochs = []
    for epoch in (1, 2, 1):
        order = BatchOrder(lengths, 999, batch_tokens=2000, seed=3, shuffle=True)
        order.epoch = epoch
        epochs.append([keys[1] for keys in order])
    first, second, again = epochs
    assert first == again
    assert not set(map(frozenset, first)) & set(map(frozenset, second))
    longest = [max(batch) for batch in first]
    falls = sum(a > b for a, b in pairwise(longest))
    assert 0.35 < falls / len(longest) < 0.65, "the batches are sorted"


def test_one_long_sample_does_not_make_the_other_batches_in_order_small():
    samples = Lengths([8] * 10 + [400] + [8] * 12)
    samples.batch_tokens = 64
    batches = [batch["indices"] for batch in Loader(BatchOrder(samples, 10))]
    assert list(map(len, batches)) == [8, 2, 1, 8, 1, 3]
    assert [i for batch in batches for i in batch] == list(range(23))


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=67),
    st.integers(1, 30),
    st.integers(1, 2000),
)
def test_batches_in_order_have_at_most_so_many_tokens(lengths, batch_size, tokens):
    samples = Lengths(lengths)
    samples.batch_tokens = tokens
    ends = BatchOrder(samples, batch_size).ends
    # Processes share whole batches of so many samples.
    assert {*range(batch_size, len(lengths), batch_size), len(lengths)} <= set(ends)
    for start, end in pairwise([0, *ends]):
        longest = max(rounded(np.array(lengths)[start:end]))
        assert end - start == 1 or (end - start) * longest <= tokens


def test_rounded_lengths_are_few_and_close():
    lengths = np.arange(4097)
    values = rounded(lengths)
    assert (values >= lengths).all() and (rounded(values) == values).all()
    assert (values[64:] <= 1.125 * lengths[64:]).all()
    assert len(set(values.tolist())) == 16 + 5 * 8


@pytest.mark.parametrize("tokens", [None, 1000])
def test_wider_batches_have_few_shapes(tokens):
    rand = random.Random(0)
    texts = [" ".join(["a"] * min(int(rand.expovariate(0.02)) + 1, 250)) for _ in range(2000)]
    tokenizer = TextAdapter(8, tokenizer=TokenizerOptions(kind="word")).fit(texts).tokenizer
    tokenizer.max_len = 220
    samples = Samples(Opened({"text": texts}, None, texts), {"text": tokenizer})
    found = []
    for widen in (False, True):
        order = BatchOrder(samples, 20, batch_tokens=tokens, seed=3, shuffle=True)
        order.widen = widen
        batches = [batch["text"] for batch in Loader(order)]
        padded = [batch for batch in batches if not batch[FULL]]
        found.append({tuple(batch["ids"].shape) for batch in padded})
        for batch in padded:
            assert {batch[key].shape[:2] for key in ("ids", "mask", "coords", "words")} == {
                batch["ids"].shape
            }
            assert batch[NUM_REAL] == batch["mask"].sum()
    many, few = found
    widths = {*rounded(np.arange(1, 220)).tolist(), 220}
    assert {columns for _, columns in few} <= widths
    assert len(few) <= len(widths) + 1 < len(many) / 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_prepares_the_batches_without_a_draw_from_the_global_generator(num_workers):
    order = BatchOrder(Lengths([1.0, 2.0, 3.0]), 2)
    before = torch.get_rng_state()
    batches = [batch["indices"] for batch in Loader(order, num_workers=num_workers)]
    assert batches == [[0, 1], [2]]
    assert torch.equal(before, torch.get_rng_state())
