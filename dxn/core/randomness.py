"""Seeding of libraries that use the global generator of torch, and checks of probabilities."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_seeded(rand: random.Random) -> Iterator[None]:
    """Seed the global generator of torch from rand, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):  # [] skips the CUDA generators
        # Not torch.manual_seed: it also seeds the CUDA generators, which fork_rng does not restore.
        torch.default_generator.manual_seed(rand.getrandbits(63))
        yield


def check_probability(name: str, value: float) -> None:
    """Raise a ValueError if the option `name` is outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability from 0 to 1, got {value}")
