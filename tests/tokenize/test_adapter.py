"""The adapter protocols: a small adapter of one's own, the defaults, and the registry."""

import importlib
import random

import pytest
import torch
from torch import Tensor, nn

from dxn.core.tokens import Span, Tokens
from dxn.tokenize import ADAPTERS, ImageAdapter, TextAdapter, VocabularyAdapter
from dxn.tokenize import base as adapter
from dxn.tokenize.media import BadMedia


class SeriesPreprocessor:
    """A list of numbers to one sample."""

    modality = "series"

    def read(self, source) -> Tensor:
        try:
            return torch.tensor([float(value) for value in source])
        except (TypeError, ValueError):
            raise BadMedia(f"must be a list of numbers, got {source!r}") from None

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        return {"values": raw}

    def collate(self, samples) -> dict[str, Tensor]:
        lengths = torch.tensor([len(sample["values"]) for sample in samples])
        values = [sample["values"] for sample in samples]
        return {"values": nn.utils.rnn.pad_sequence(values, batch_first=True), "lengths": lengths}


class SeriesAdapter(nn.Module):
    """Numbers to Tokens: one column for each number."""

    modality = "series"

    def __init__(self, dim: int = 8):
        super().__init__()
        self.dim = dim
        self.prepare = SeriesPreprocessor()
        self.proj = nn.Linear(1, dim)

    def forward(self, batch) -> Tokens:
        x = self.proj(batch["values"][..., None])
        mask = torch.arange(x.shape[1]) < batch["lengths"][:, None]
        index = torch.arange(x.shape[1]).float().expand(len(x), -1)[..., None]
        return Tokens(x, mask, (Span("series", "series", 0, x.shape[1], index),))


def test_an_adapter_with_the_required_members_only_becomes_tokens():
    tokens = adapter.to_tokens(SeriesAdapter(7), [[1, 2, 3], ["4"]])
    assert tokens.x.shape == (2, 3, 7) and tokens.mask.sum(1).tolist() == [3, 1]
    with pytest.raises(BadMedia, match="must be a list of numbers, got 'abc'"):
        adapter.to_tokens(SeriesAdapter(7), ["abc"])


def test_every_optional_member_has_a_default(tmp_path):
    series = SeriesAdapter()
    prepare = series.prepare
    raw = prepare.read([1, 2])
    assert not adapter.reads_files(prepare) and not adapter.has_words(prepare)
    assert adapter.num_tokens(prepare, raw) == 1 and adapter.accepts(prepare, [[1, 2]]) == 0
    assert adapter.summarize(prepare, [raw], [[1, 2]]) == ""
    assert adapter.truncated(prepare, prepare(raw)) is None
    assert adapter.describe_columns(series, raw) == ""
    assert adapter.make_masking(series, ratio=0.5) is None
    adapter.fit_adapter(series, [raw])
    adapter.save_adapter(series, tmp_path, "series")
    adapter.load_adapter(series, tmp_path, "series")
    assert not list(tmp_path.iterdir())


def test_the_functions_reach_the_members_of_the_built_in_adapters(tmp_path):
    text = TextAdapter(8, max_len=2)
    adapter.fit_adapter(text, ["the man rows", "the boats"])
    prepare = text.prepare
    assert adapter.has_words(prepare) and not adapter.reads_files(prepare)
    assert adapter.reads_files(ImageAdapter(8).prepare)
    assert adapter.num_tokens(prepare, "the man rows") == 2
    assert adapter.accepts(prepare, ["the man rows"]) == 0.5
    assert adapter.summarize(prepare, ["the man"], ["the man"]).endswith("7 characters")
    assert adapter.truncated(prepare, prepare("the man rows")) is not None
    assert " | " in adapter.describe_columns(text, "the man")
    masking = adapter.make_masking(text, ratio=0.3)
    assert masking is not None and masking.is_classification
    adapter.save_adapter(text, tmp_path, "text")
    again = TextAdapter(8)
    adapter.load_adapter(again, tmp_path, "text")
    assert again.prepare.tokenizer.get_vocab() == prepare.tokenizer.get_vocab()


def test_only_adapters_with_a_tokenizer_have_a_vocabulary():
    assert isinstance(TextAdapter(8), VocabularyAdapter)
    assert not isinstance(ImageAdapter(8), VocabularyAdapter)
    assert not isinstance(SeriesAdapter(), VocabularyAdapter)


@pytest.mark.parametrize(("modality", "path"), ADAPTERS.items())
def test_the_registry_names_an_adapter_of_each_modality(modality, path):
    module, _, name = path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    built = cls()
    assert built.modality == built.prepare.modality == modality and built.dim == 128
