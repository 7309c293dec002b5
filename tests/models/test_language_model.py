"""A causal model of one input as a decoder: its caches, its maximum length, and generation."""

import pytest
import torch
from helpers.language import MAX_LEN, Adapter, D, V, model_of
from helpers.reference import assert_same, backbone_of, lively
from torch import nn

from dxn.core.tokens import Span, Tokens, join
from dxn.models import EarlyFusion, LanguageModel, MultimodalModel, beam_search, generate
from dxn.models.decoding.generation import Generation
from dxn.models.decoding.language_model import prefix_of
from dxn.models.decoding.search import SampleSearch, greedy

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
    with pytest.raises(ValueError, match="writes no text: that needs head=generate"):
        LanguageModel(model_of(**options))


# Other inputs before the text


class Columns(nn.Module):
    """An input that has its columns already."""

    def forward(self, batch):
        x = batch["x"]
        return Tokens(x, batch["mask"], (Span("seen", "seen", 0, x.shape[1], batch["coords"]),))


def seeing(position="rotary"):
    """A model of a text after an input `seen`."""
    head = nn.Identity()
    head.input = "text"
    torch.manual_seed(0)
    inputs = {"seen": "seen", "text": "text"}
    model = MultimodalModel(
        {"seen": Columns(), "text": Adapter()},
        inputs=inputs,
        fusion=EarlyFusion(D, inputs=tuple(inputs)),
        backbone=backbone_of(D, depth=2, num_heads=2, causal=True, position=position),
        head=head,
    )
    return lively(model).requires_grad_(False)


def seen(*lengths, rows=None, size=None):
    """A batch of samples with so many columns each, before a text that is not there."""
    columns = max(lengths)
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), columns, D, generator=torch.Generator().manual_seed(5))
    rows = torch.arange(len(lengths)) if rows is None else torch.tensor(rows)
    part = {"x": x, "mask": mask, "coords": torch.zeros(*mask.shape, 1), "rows": rows}
    return {"#size": size or len(lengths), "seen": part}


def next_logits(model, batch, row, ids):
    """Logits after ids (n,) of one row of a batch, without a cache and without padding."""
    text = {"ids": ids[None], "mask": torch.ones(1, len(ids)) > 0, "rows": torch.arange(1)}
    parts = model.embed({"#size": 1, "text": {**text, "coords": torch.zeros(1, len(ids), 2)}})
    rows = batch["seen"]["rows"].tolist()
    if row in rows:
        (tokens,) = model.embed({**batch, "#size": batch["#size"]})
        x = tokens.x[row : row + 1, tokens.mask[row]]
        span = Span("seen", "seen", 0, x.shape[1], torch.zeros(1, x.shape[1], 1))
        parts = [Tokens(x, torch.ones(x.shape[:2]) > 0, (span,)), *parts]
    encoded = model.backbone(join(model.fusion.input_embedding(parts)))
    return (encoded.x @ model.adapter("text").embedding.weight.T)[0, -1]


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_texts_after_other_inputs_of_different_lengths(position, side):
    model = seeing(position)
    batch = seen(3, 1, 5, rows=[0, 2, 3], size=4)  # the second sample lacks the input
    prompts = [[2, 3], [4], [5, 6, 7], [8]]
    ids, mask = torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 3, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        columns = slice(3 - len(prompt), 3) if side == "left" else slice(0, len(prompt))
        ids[row, columns], mask[row, columns] = torch.tensor(prompt), True
    found = generate(
        LanguageModel(model), prefix_of(model, batch), prompt=ids, mask=mask, end=END, max_new=4
    )
    for row, prompt in enumerate(prompts):
        expected = list(prompt)
        while len(expected) < len(prompt) + 4:
            token = int(next_logits(model, batch, row, torch.tensor(expected)).argmax())
            if token == END:
                break
            expected.append(token)
        assert found[row].ids == expected[len(prompt) :]


def test_beams_keep_the_inputs_before_their_text():
    model, batch = seeing(), seen(3, 1, 5)
    options = {"prompt": torch.tensor([[2], [3], [4]]), "end": END, "max_new": 5}
    together = beam_search(LanguageModel(model), prefix_of(model, batch), beams=3, **options)
    for row in range(3):
        part = {key: value[row : row + 1] for key, value in batch["seen"].items() if key != "rows"}
        alone = {"#size": 1, "seen": {**part, "rows": torch.arange(1)}}
        options["prompt"] = torch.tensor([[row + 2]])
        (single,) = beam_search(LanguageModel(model), prefix_of(model, alone), beams=3, **options)
        assert single.ids == together[row].ids
        assert single.score == pytest.approx(together[row].score, abs=1e-5)
        score = 0.0
        for i, token in enumerate([*single.ids, END][:5]):
            logits = next_logits(model, batch, row, torch.tensor([row + 2, *single.ids[:i]]))
            score += float(logits.log_softmax(-1)[token])
        assert single.score == pytest.approx(score, abs=1e-4)


def test_beyond_max_len_the_inputs_before_the_text_are_kept():
    model, batch = seeing(), seen(2)
    memory = prefix_of(model, batch)
    (found,) = generate(
        LanguageModel(model), memory, prompt=torch.tensor([[2]]), end=None, max_new=12
    )
    ids, start = [2], 0
    for _ in range(12):
        if len(ids) - start > MAX_LEN:
            start = len(ids) - MAX_LEN // 2
        ids.append(int(next_logits(model, batch, 0, torch.tensor(ids[start:])).argmax()))
    assert found.ids == ids[1:]


def test_logits_of_all_tokens_after_other_inputs():
    model, batch = seeing(), seen(3, 1)
    ids = torch.tensor([[2, 3, 4], [5, 6, 7]])
    mask = torch.tensor([[True] * 3, [True, True, False]])
    logits = LanguageModel(model)(ids, mask, prefix_of(model, batch))
    for row, length in ((0, 3), (1, 2)):
        for i in range(length):
            assert_same(logits[row, i], next_logits(model, batch, row, ids[row, : i + 1]))


def test_without_any_input_before_the_text_there_is_no_memory():
    assert prefix_of(seeing(), {"#size": 2}) is None


def rows_of(batch, rows):
    """The parts of a batch of these samples."""
    parts = {key: value[rows] for key, value in batch["seen"].items() if key != "rows"}
    return {"#size": len(rows), "seen": {**parts, "rows": torch.arange(len(rows))}}


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("is_static", [False, True])
def test_samples_that_join_others_continue_as_if_they_were_alone(position, is_static, monkeypatch):
    """They have other inputs before them or not, and become longer than max_len or not."""
    model, batch = seeing(position), seen(3, 1, 5)
    language = LanguageModel(model)
    if is_static:  # as on a GPU
        monkeypatch.setattr("dxn.models.decoding.generation.GROWTH", 64)
    prompts = [[2, 3], [4, 5, 6, 7, 8], [9], [3, 4, 5], [6]]
    memories = [prefix_of(model, rows_of(batch, [row])) for row in range(3)] + [None, None]
    counts = [3, 20, 9, 14, 25]  # max_len is 7

    def begin(row):
        prompt = torch.tensor([prompts[row]])
        options = {"sampler": greedy, "ends": (), "max_new": counts[row], "device": prompt.device}
        return Generation(language, memories[row], SampleSearch(1, 1, **options), prompt)

    expected = [begin(row).run()[0].ids for row in range(5)]
    assert [len(ids) for ids in expected] == counts
    found = {row: [] for row in range(5)}
    running = begin(3)
    numbers = [3]

    def pass_on():
        for number, ids in running.new_tokens().items():
            found[numbers[number]] += ids
        finished = running.search.finished.tolist()
        if running.removes(finished) and not all(finished):
            running.remove(finished)

    for step in range(60):
        if step in (2, 5, 6, 17):
            numbers.append([4, 0, 1, 2][len(numbers) - 1])
            running.join(begin(numbers[-1]))
            assert len(running.samples) <= 4
        pass_on()
        running.step()
    pass_on()
    assert [found[row] for row in range(5)] == expected
