"""The order of batches: a function of seed and epoch, by similar length, for any processes."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.data.batches import BatchOrder, make_loader

LENGTHS = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), max_size=67)


class Lengths:
    """Stands for samples where only their number and their lengths matter."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def num_tokens(self, i):
        return self.lengths[i]

    def __getitem__(self, key):
        return key

    def collate(self, samples):
        return samples


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
    keys = sorted(key for batch in batches for key in batch)
    assert keys == [(epoch, i) for i in range(len(lengths))]
    assert all(len(batch) <= batch_size for batch in batches)
    assert sum(len(batch) < batch_size for batch in batches) <= 1


def test_the_order_depends_on_seed_and_epoch_only():
    def order(seed, epoch, lengths=tuple(range(53))):
        batches = BatchOrder(Lengths([float(n) for n in lengths]), 5, seed=seed, shuffle=True)
        batches.epoch = epoch
        return [[i for _, i in batch] for batch in batches]

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
    assert [[i for _, i in batch] for batch in order] == [[2, 6], [1, 5], [3], [0, 4]]


def test_iterating_twice_gives_the_same_epoch():
    order = BatchOrder(Lengths([float(i % 7) for i in range(53)]), 5, seed=3, shuffle=True)
    assert list(order) == list(order)


def test_without_shuffling_samples_come_in_order_in_every_epoch():
    order = BatchOrder(Lengths([5.0, 1.0, 3.0, 2.0, 4.0]), 2, seed=3)
    order.epoch = 4
    assert list(order) == [[(4, 0), (4, 1)], [(4, 2), (4, 3)], [(4, 4)]]


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.integers(1, 5), st.integers(0, 70), st.booleans())
def test_skipping_resumes_exactly_where_the_epoch_stopped(lengths, batch_size, skip, shuffle):
    order = BatchOrder(Lengths(lengths), batch_size, seed=3, shuffle=shuffle)
    order.epoch = 2
    whole = list(order)
    order.skip = skip
    assert list(order) == whole[skip:]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_processes_get_disjoint_shards_of_equal_length(lengths, batch_size, count, shuffle):
    shards = []
    for i in range(count):
        order = BatchOrder(Lengths(lengths), batch_size, seed=3, shuffle=shuffle, shard=(i, count))
        shards.append(order)
    parts = [list(shard) for shard in shards]
    total = -(-len(lengths) // batch_size)
    assert {len(part) for part in parts} == {total // count} == {len(shard) for shard in shards}
    keys = [key for part in parts for batch in part for key in batch]
    assert len(keys) == len(set(keys))
    # Only the batches that do not fill a step of all processes are left out.
    assert len(lengths) - len(keys) <= (total % count) * batch_size
    if not shuffle:
        # Together they go through the samples in the order in which one process would.
        in_turn = [key for step in zip(*parts, strict=True) for batch in step for key in batch]
        assert in_turn == sorted(keys)


def test_processes_get_batches_of_similar_length_at_the_same_step():
    lengths = random_lengths()
    means = []
    for i in range(2):
        order = BatchOrder(Lengths(lengths), 5, seed=3, shuffle=True, shard=(i, 2))
        means.append([sum(lengths[i] for _, i in batch) / len(batch) for batch in order])
    differences = [abs(a - b) for a, b in zip(*means, strict=True)]
    # For two batches drawn at random the mean would be 333.
    assert sorted(differences)[len(differences) // 2] < 40


def test_similar_lengths_are_batched_within_a_pool_and_the_batches_are_shuffled():
    lengths = random_lengths()
    order = BatchOrder(Lengths(lengths), 5, seed=3, shuffle=True)
    batches = [[lengths[i] for _, i in batch] for batch in order]
    spread = sum(max(batch) - min(batch) for batch in batches) / len(batches)
    # A pool is 250 sorted numbers out of 1,000: five neighbors span about 16, five random ones 667.
    assert spread < 40
    means = [sum(batch) / len(batch) for batch in batches]
    falls = sum(a > b for a, b in pairwise(means))
    assert 0.35 < falls / len(means) < 0.65, "the batches are sorted"
    # The five shortest of all are not in one batch, because the pools are random.
    assert sorted(lengths)[:5] not in [sorted(batch) for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_prepares_the_batches_without_a_draw_from_the_global_generator(num_workers):
    order = BatchOrder(Lengths([1.0, 2.0, 3.0]), 2)
    before = torch.get_rng_state()
    assert list(make_loader(order, num_workers=num_workers)) == [[(0, 0), (0, 1)], [(0, 2)]]
    assert torch.equal(before, torch.get_rng_state())
