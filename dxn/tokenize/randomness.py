"""Randomness that depends on nothing but what it is given."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_seeded(rng: random.Random) -> Iterator[None]:
    """torch's own generator, drawn from rng inside and as it was before outside: for libraries that use it."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(rng.getrandbits(63))
    try:
        yield
    finally:
        torch.set_rng_state(state)
