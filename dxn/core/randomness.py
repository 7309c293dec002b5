"""Random generators with a seed, random rows, and checks of probabilities."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Annotated, TypeVar

import torch
from annotated_types import Interval

Value = TypeVar("Value")
Probability = Annotated[float, Interval(ge=0, le=1)]


@contextmanager
def torch_seeded(rand: random.Random) -> Iterator[None]:
    """Seed the global generator of torch from rand, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):  # [] skips the CUDA generators
        # Not torch.manual_seed: it also seeds the CUDA generators, which fork_rng does not restore.
        torch.default_generator.manual_seed(rand.getrandbits(63))
        yield


@contextmanager
def named_draws(seed: int, name: str) -> Iterator[None]:
    """Draw from a generator of its own inside of the block, such as the weights of one part.

    The draws depend only on the seed and the name, so the order in which parts are built has no
    effect, and one more part changes no other one.

    Args:
        seed: Seed of the training.
        name: Name of what is drawn, such as "backbone".
    """
    with torch_seeded(random.Random(seed_of(seed, name))):
        yield


def seed_of(seed: int, name: str) -> int:
    """Return the seed (63 bits) of what has a name in a training with this seed."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def torch_generator(rand: random.Random) -> torch.Generator:
    """Create a torch generator that is seeded from rand.

    Drawing a tensor from it is much faster than drawing many numbers from rand.
    """
    return torch.Generator().manual_seed(rand.getrandbits(63))


def spaced_rows(size: int, count: int) -> Sequence[int]:
    """Return the indices of at most `count` of `size` rows, spread over all of them.

    The rows of most data sets are sorted, so the first ones would be of one class. Each index is
    drawn at random from one of `count` equal parts, always with the same seed: with a constant
    distance, all of them could be of one class if the classes take turns.
    """
    if size <= count:
        return range(size)
    rand = random.Random(0)
    edges = [i * size // count for i in range(count + 1)]
    return [rand.randrange(edges[i], edges[i + 1]) for i in range(count)]


def evenly_spaced(values: Sequence[Value], count: int) -> Iterator[Value]:
    """Yield the values of `spaced_rows`, one by one, because reading one can read a file."""
    return (values[i] for i in spaced_rows(len(values), count))
