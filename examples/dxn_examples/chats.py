"""Synthetic data for language models: conversations about the larger of two numbers."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import InputSpec, Rows, Source
from dxn.datasets.checks import check_counts
from dxn.tokenize.text.chat import Message

# The message of the system, and whether the larger number is right. The first one is no message.
SYSTEMS = (("", True), ("Choose the larger number.", True), ("Choose the smaller number.", False))
MAX_TURNS = 3
HELD_OUT = 0.1  # share of the pairs of numbers that are only in the validation or the test split


def chats(
    *,
    num_train: int = 3000,
    num_validation: int = 300,
    num_test: int = 300,
    largest: int = 20,
    seed: int = 0,
) -> Source:
    """Generate conversations of one to three questions such as "17 or 5?", and their answers.

    The answer is the larger number, if the message of the system does not ask for the smaller one.
    Each pair of numbers is in one split only, so that the answers of the test split are new.

    Args:
        num_train: Number of training conversations.
        num_validation: Number of validation conversations.
        num_test: Number of test conversations.
        largest: Largest number; 0 is the smallest one.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no conversation, or there are too few numbers.
    """
    counts = check_counts(num_train, num_validation, num_test)
    if largest < 3:
        raise UserError(f"data.largest: must be at least 3, got {largest}")
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(list(combinations(range(largest + 1), 2)))
    held_out = math.ceil(HELD_OUT * len(pairs))
    ends = (len(pairs) - 2 * held_out, len(pairs) - held_out)
    splits: dict[str, Rows] = {}
    for (name, count), part in zip(counts.items(), np.split(pairs, ends), strict=True):
        cells = [_conversation(rng, part) for _ in range(count)]
        origin = [f"chats row {i + 1}" for i in range(count)]
        splits[name] = Rows({"messages": cells}, origin)
    note = "synthetic data: each pair of numbers occurs in one split only"
    return Source(
        splits,
        {"messages": InputSpec("chats", "text")},
        task="language",
        name="chats",
        notes=[note],
    )


def _conversation(rng: np.random.Generator, pairs: np.ndarray) -> list[Message]:
    """Return the messages of a conversation about some of these pairs (P, 2) of numbers."""
    system, is_larger = SYSTEMS[rng.integers(len(SYSTEMS))]
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for _ in range(rng.integers(1, MAX_TURNS, endpoint=True)):
        first, second = rng.permutation(pairs[rng.integers(len(pairs))]).tolist()
        answer = max(first, second) if is_larger else min(first, second)
        messages.append({"role": "user", "content": f"{first} or {second}?"})
        messages.append({"role": "assistant", "content": str(answer)})
    return messages
