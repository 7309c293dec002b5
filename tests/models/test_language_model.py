"""A causal model of one input as a decoder: its caches, its maximum length, and generation."""

import pytest
import torch
from helpers.language import MAX_LEN, V, model_of
from helpers.reference import assert_same

from dxn.models import LanguageModel, beam_search, generate

END = 1


def reference_logits(model, ids):
    """Logits of the last token of ids (n,), without a cache."""
    adapter = model.adapter("some input")
    tokens = adapter(
        {
            "ids": ids[None],
            "mask": torch.ones(1, len(ids), dtype=torch.bool),
            "coords": torch.zeros(1, len(ids), 2),
        }
    )
    return (model.backbone(tokens).x @ adapter.embedding.weight.T)[0, -1]


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("pieces", [(1, 1, 1, 1, 1), (3, 2)])
def test_logits_with_a_cache_equal_those_without(position, pieces):
    model = model_of(position=position)
    language_model = LanguageModel(model)
    caches, ids, offset = language_model.caches(), torch.randint(V, (2, 5)), 0
    for size in pieces:
        new = ids[:, offset : offset + size]
        offset += size
        mask = torch.ones(2, offset, dtype=torch.bool)
        logits = language_model(new, mask, None, caches)
        assert logits.shape == (2, size, V)
        for row in range(2):
            assert_same(logits[row, -1], reference_logits(model, ids[row, :offset]))


def test_beyond_max_len_it_continues_from_the_last_half():
    model = model_of()
    language_model = LanguageModel(model)
    caches, ids, start = language_model.caches(), torch.randint(V, (1, 13)), 0
    for n in range(1, 14):
        mask = torch.ones(1, n, dtype=torch.bool)
        logits = language_model(ids[:, n - 1 : n], mask, None, caches)
        if n - start > MAX_LEN:
            start = n - MAX_LEN // 2
        assert_same(logits[0, -1], reference_logits(model, ids[0, start:n]))


def test_greedy_generation_chooses_the_most_probable_token_at_each_step():
    model = model_of()
    prompt = torch.randint(2, V, (3, 2))
    for row, hypothesis in enumerate(
        generate(LanguageModel(model), None, prompt=prompt, end=None, max_new=5)
    ):
        ids = prompt[row].tolist()
        for _ in range(5):
            ids.append(int(reference_logits(model, torch.tensor(ids[-MAX_LEN:])).argmax()))
        assert hypothesis.ids == ids[2:]


def test_beam_search_with_one_beam_is_greedy():
    language_model = LanguageModel(model_of())
    options = {"prompt": torch.randint(2, V, (3, 2)), "end": END, "max_new": 9}
    beams = beam_search(language_model, None, beams=1, **options)
    assert [h.ids for h in beams] == [h.ids for h in generate(language_model, None, **options)]


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"vocabulary": False},
        {"inputs": {"title": "text", "body": "text"}},
        {"inputs": {"title": "text", "body": "other"}},
    ],
    ids=str,
)
def test_other_models_raise_a_clear_error(options):
    with pytest.raises(ValueError, match="only a model with one input, whose adapter has a voc"):
        LanguageModel(model_of(**options))
