"""The base classes: a small modality of one's own, the defaults, and the registries."""

import importlib
import random

import pytest
import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Span, Tokens
from dxn.tokenize import (
    ADAPTERS,
    Adapter,
    AudioAdapter,
    BadMedia,
    ImageAdapter,
    Reader,
    TextAdapter,
    Tokenizer,
)
from dxn.tokenize.base import READERS, pad


class WaveReader(Reader):
    """A list of numbers."""

    modality = "wave"

    def read(self, cell) -> Tensor:
        try:
            return torch.tensor([float(value) for value in cell])
        except (TypeError, ValueError):
            raise BadMedia(f"must be a list of numbers, got {cell!r}") from None


class WaveTokenizer(Tokenizer):
    """A list of numbers to one sample."""

    reader = WaveReader()

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        return {"values": raw, "lengths": torch.tensor(len(raw))}


class WaveAdapter(Adapter):
    """Numbers to Tokens: one column for each number."""

    reader = WaveReader

    def __init__(self, dim: int = 8):
        super().__init__()
        self.dim = dim
        self.tokenizer = WaveTokenizer()
        self.proj = nn.Linear(1, dim)

    def forward(self, batch) -> Tokens:
        x = self.proj(batch["values"][..., None])
        mask = torch.arange(x.shape[1]) < batch["lengths"][:, None]
        index = torch.arange(x.shape[1]).float().expand(len(x), -1)[..., None]
        return Tokens(x, mask, (Span("wave", "wave", 0, x.shape[1], index),))


class Scaled(WaveAdapter):
    """An adapter with a state."""

    scale = 1.0

    def state(self):
        return {"scale": self.scale}

    def load_state(self, state):
        if not state["scale"] > 0:
            raise ValueError(f"scale must be above 0, got {state['scale']}")
        self.scale = state["scale"]


def test_a_modality_with_the_required_members_only_becomes_tokens():
    tokens = WaveAdapter(7).tokens([[1, 2, 3], ["4"]])
    assert tokens.x.shape == (2, 3, 7) and tokens.mask.sum(1).tolist() == [3, 1]
    with pytest.raises(BadMedia, match="must be a list of numbers, got 'abc'"):
        WaveAdapter(7).tokens(["abc"])


@pytest.mark.parametrize(
    ("adapter", "cells", "message"),
    [
        (WaveAdapter(7), [[1], "x"], "^wave 2: must be a list of numbers, got 'x'$"),
        (WaveAdapter(7), [], r"^wave: must be a list of at least one value, got \[\]$"),
        (WaveAdapter(7), "1 2", "^wave: must be a list of at least one value, got '1 2'$"),
        (WaveAdapter(7), [[1], None], "^wave 2: has no value; leave it out, and `spread`"),
        (ImageAdapter(8), ["no.png"], "^image 1: no.png: file not found "),
        (
            ImageAdapter(8),
            [torch.rand(3, 8, 8)],
            "; multiply values from 0 to 1 by 255$",
        ),
        (AudioAdapter(8), [torch.rand(9)], r"pass a pair such as \(x, 16000\), got only the array"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(adapter, cells, message):
    with pytest.raises(BadMedia, match=message):
        adapter.tokens(cells)


def test_every_other_member_has_a_default(tmp_path):
    adapter = WaveAdapter()
    tokenizer, reader = adapter.tokenizer, adapter.tokenizer.reader
    raw = reader.read([1, 2])
    assert adapter.modality == tokenizer.modality == "wave"
    assert not reader.files and not reader.words and not reader.is_path("a.png")
    assert tokenizer.length(raw) == 1 and reader.score([[1, 2]]) == 0
    assert (
        reader.describe([raw], [[1, 2]]) == reader.learn([[1, 2]]) == tokenizer.remark([raw]) == ""
    )
    assert tokenizer.cut(raw) is None and tokenizer.plain() is tokenizer
    assert adapter.describe(raw) == "" and adapter.masking(ratio=0.5) is None
    assert not adapter.has_vocabulary and adapter.fit([raw]) is adapter
    adapter.save(tmp_path, "wave")
    adapter.load(tmp_path, "wave")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("base", "member", "meant"),
    [
        (Reader, "scores", "score"),
        (Reader, "is_paht", "is_path"),
        (Tokenizer, "lenght", "length"),
        (Tokenizer, "colate", "collate"),
        (Adapter, "maskin", "masking"),
        (Adapter, "load_sate", "load_state"),
    ],
)
def test_a_misspelled_member_is_an_error_when_the_class_is_defined(base, member, meant):
    match = f"Mine.{member} is not a member of {base.__name__}; did you mean {meant}?"
    with pytest.raises(TypeError, match=match.replace("?", r"\?")):
        type("Mine", (base,), {member: lambda self: None})


def test_the_states_of_all_adapters_are_in_one_file(tmp_path):
    for name in ("a", "../b"):
        adapter = Scaled()
        adapter.scale = 3.0 if name == "a" else 5.0
        adapter.save(tmp_path, name)
    assert [path.name for path in tmp_path.iterdir()] == ["adapters.jsonl"]
    again = Scaled()
    again.load(tmp_path, "../b")
    assert again.scale == 5
    with pytest.raises(UserError, match="has no valid state of the input 'c'"):
        again.load(tmp_path, "c")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": {"scale": -1}}', "a: scale must be above 0, got -1"),
        ('{"a": {}}', "a: has no 'scale'; copy the model again"),
        ('{"a": 1}', "a: must be a mapping, got int"),
        ("{", "has no valid state of the input 'a'"),
    ],
)
def test_a_wrong_state_is_refused(tmp_path, line, message):
    (tmp_path / "adapters.jsonl").write_text(line)
    with pytest.raises(UserError, match=message):
        Scaled().load(tmp_path, "a")


def test_padding_is_at_the_end_of_all_axes():
    samples = [
        {"x": torch.ones(2, 3), "masked": torch.ones(1, 2, dtype=torch.bool), "masked_target": a}
        for a in (torch.zeros(2, 5), torch.zeros(2, 5))
    ]
    samples[1] = {**samples[1], "x": torch.ones(1, 5), "masked": torch.ones(2, 1, dtype=torch.bool)}
    batch = pad(samples, {"x": -1})
    assert batch["x"].shape == (2, 2, 5) and batch["x"][1].sum() == 5 - 5
    assert batch["masked"].tolist() == [[True, True, False, False], [True, False, True, False]]
    assert batch["masked_target"].shape == (4, 5)


def test_only_adapters_with_a_vocabulary_say_so():
    assert TextAdapter(8).has_vocabulary
    assert not ImageAdapter(8).has_vocabulary


@pytest.mark.parametrize(("modality", "path"), ADAPTERS.items())
def test_the_registries_name_an_adapter_and_a_reader_of_each_modality(modality, path):
    built = part(path)()
    assert built.modality == built.tokenizer.modality == modality and built.dim == 128
    assert part(READERS[modality]) is built.reader and built.reader().modality == modality


def part(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
