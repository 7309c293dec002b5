"""Generated conversations: the answers are right, and no pair of numbers is in two splits."""

import re

import pytest
from dxn_examples.chats import chats
from helpers.data import sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from dxn.core.errors import UserError
from dxn.data import InputSpec
from dxn.tokenize.text.chat import read_messages

COUNTS = {"train": 53, "validation": 17, "test": 23}
OPTIONS = {f"num_{name}": count for name, count in COUNTS.items()}


def small(**changed):
    return chats(**{**OPTIONS, **changed})


def conversations(source, split):
    return list(source.splits[split].cells["messages"])


def pairs_of(conversation):
    asked = [message["content"] for message in conversation if message["role"] == "user"]
    return {tuple(sorted(map(int, re.findall(r"\d+", text)))) for text in asked}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(3, 99))
def test_each_answer_is_right_and_each_pair_is_in_one_split(seed, largest):
    source = small(seed=seed, largest=largest)
    assert sizes(source.splits) == COUNTS
    used = []
    for split in COUNTS:
        used.append(set())
        for conversation in conversations(source, split):
            assert read_messages(conversation) == conversation
            choose = max
            if conversation[0]["role"] == "system":
                choose = min if "smaller" in conversation[0]["content"] else max
                conversation = conversation[1:]
            for question, answer in zip(conversation[::2], conversation[1::2], strict=True):
                numbers = [int(text) for text in re.findall(r"\d+", question["content"])]
                assert len(set(numbers)) == 2 and max(numbers) <= largest
                assert answer["content"] == str(choose(numbers))
            used[-1] |= pairs_of(conversation)
    assert not used[0] & used[1] and not used[0] & used[2] and not used[1] & used[2]


def test_a_seed_determines_the_conversations():
    first, again, other = (conversations(small(seed=seed), "test") for seed in (1, 1, 2))
    assert first == again != other
    assert small().inputs == {"messages": InputSpec("chats", "text")}
    assert small().target is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"largest": 2}, "data.largest: must be at least 3, got 2"),
        ({"num_test": 0}, "data.num_test: must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        small(**options)
