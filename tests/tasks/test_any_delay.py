"""The delay pattern of codes: several stages are written at once, each one step later."""

from functools import partial

import pytest
import torch

from dxn.core.tensors import without_values
from dxn.core.tokens import Tokens
from dxn.models import Backbone
from dxn.models.decoding.decoder import Decoder, Memory
from dxn.models.decoding.search import BatchSampler, make_sampler
from dxn.tasks import WriteAny
from dxn.tasks.any.vocabulary import UNWRITTEN, Vocabulary, Writing
from dxn.tasks.target import IGNORED

D = 16


class Numbers(Writing):
    """Values that are whole numbers (M, R)."""

    def __init__(self, size, stages, max_len, *, fixed, vectors=False):
        self.size, self.stages, self.max_len = size, stages, max_len
        self.length = max_len if fixed else 0
        self.vectors = torch.arange(size)[:, None] / size if vectors else None

    def ids(self, sample):
        return sample["codes"]

    def value(self, ids):
        return ids

    def unfinished(self, ids):
        return ids


def vocabulary():
    """Values with one, three and two numbers per token, and with one that shares its ids."""
    writings = {
        "word": Numbers(7, 1, 5, fixed=False),
        "sound": Numbers(11, 3, 13, fixed=False, vectors=True),
        "picture": Numbers(5, 2, 6, fixed=True, vectors=True),
        "title": Numbers(7, 1, 5, fixed=False),
    }
    return Vocabulary(writings, {name: name for name in writings} | {"title": "word"})


def test_a_model_of_many_codes_can_be_loaded():
    sound = Numbers(1024, 2, 13, fixed=False, vectors=True)
    many = Vocabulary(
        {"word": Numbers(70, 1, 5, fixed=False), "sound": sound}, {"word": "word", "sound": "sound"}
    )
    backbone = Backbone(256, depth=1, num_heads=2, causal=True, cross=True)
    with without_values():
        vectors = many.vectors()
        Decoder(backbone, vocab_size=many.size, vectors=vectors)
    assert vectors.shape == (many.size, 2)
    for stage, ids in enumerate(many.ids("sound")):
        assert torch.equal(vectors[ids.start : ids.stop, stage], sound.vectors[:, 0])


def setting():
    """A task and an untrained head."""
    torch.manual_seed(0)
    backbone = partial(Backbone, D, depth=2, num_heads=2, causal=True, cross=True)
    task = WriteAny(decoder=lambda **options: Decoder(backbone(), **options))
    task.target.vocabulary = vocabulary()
    task.target.kinds = dict.fromkeys(task.target.vocabulary.writings, True)
    head = task.make_head(D, D, {}).double().eval()
    return task, head


def memory(samples):
    x = torch.randn(samples, 3, D, generator=torch.Generator().manual_seed(1)).double()
    mask = torch.ones(samples, 3, dtype=torch.bool)
    mask[0, 2] = False
    return Tokens(x, mask)


def create(name, tokens, *, temperature=1.0, guidance=1.0):
    task, head = setting()
    samplers = [make_sampler(temperature, seed=i) for i in range(len(tokens.x))]
    sampler = BatchSampler(samplers)
    return task.create(head, tokens, name, sampler=sampler, guidance=guidance)


def test_each_stage_has_ids_of_its_own():
    words = vocabulary()
    parts = [ids for name in ("word", "sound", "picture") for ids in words.ids(name)]
    assert sorted(i for ids in parts for i in ids) == list(range(words.end + 1, words.size))
    assert words.ids("title") == words.ids("word")
    assert [i for stage in words.stages for i in stage] == list(range(words.size))
    for name in words.writings:
        for stage, ids in zip(words.stages, words.ids(name), strict=False):
            assert ids.start in stage and ids[-1] in stage
    # The vectors of different stages are in different columns.
    assert words.vectors().shape == (words.size, 5)
    assert (words.vectors() != 0).sum(1).max() == 1


@pytest.mark.parametrize("name", ["word", "sound", "picture"])
def test_tokens_and_labels_are_the_delayed_values(name):
    words = vocabulary()
    writing = words.writings[name]
    stages = writing.stages
    for count in [writing.max_len] if writing.length else range(1, writing.max_len + 1):
        codes = torch.randint(writing.size, (count, stages))
        tokens, labels = words.encode(name, {"codes": codes})
        # A value of the maximum length may have been cut, so it has no end token.
        has_end = not writing.length and count < writing.max_len
        # A step per row after the begin tokens: M + R - 1, or one more for the end of one stage.
        assert len(tokens) - 1 == max(count + stages - 1, count + has_end)
        assert len(tokens) <= words.max_len
        for stage in range(stages):
            start = words.ids(name)[stage].start
            for i in range(count):
                assert tokens[1 + i + stage, stage] == codes[i, stage] + start
        assert (tokens[0, :stages] == words.begin(name)).all()
        assert (tokens[:, stages:] == IGNORED).all()
        known = labels != IGNORED
        starts = torch.tensor([ids.start for ids in words.stages])
        assert torch.equal((labels + starts)[known], tokens[known])
        assert known.sum() == codes.numel() + has_end
        rows = [[i for i in column if i != words.end] for column in tokens[1:, :stages].T.tolist()]
        assert torch.equal(words.decode(name, rows), codes)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("name", ["word", "sound", "picture"])
def test_valid_values_are_written(name, temperature, guidance):
    writing = vocabulary().writings[name]
    values = create(name, memory(17), temperature=temperature, guidance=guidance)
    assert len(values) == 17
    for value in values:
        assert value.shape[1] == writing.stages
        assert 1 <= len(value) <= writing.max_len
        assert len(value) == writing.length or not writing.length
        assert value.min() >= 0 and value.max() < writing.size


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_values_of_different_lengths_do_not_depend_on_the_batch(guidance):
    tokens = memory(17)
    values = create("sound", tokens, guidance=guidance)
    # Samples that are finished were removed from the batch.
    assert len({len(value) for value in values}) > 3
    task, head = setting()
    for i in (0, 5, 16):
        part = Tokens(tokens.x[i : i + 1], tokens.mask[i : i + 1])
        sampler = BatchSampler([make_sampler(1.0, seed=i)])
        alone = task.create(head, part, "sound", sampler=sampler, guidance=guidance)[0]
        assert torch.equal(alone, values[i])


def test_unfinished_values_are_the_codes_so_far():
    task, head = setting()
    sampler = BatchSampler([make_sampler(1.0, seed=i) for i in range(3)])
    shown = []

    def keep(value):
        shown.append(value(1))

    values = task.create(head, memory(3), "sound", sampler=sampler, on_step=keep)
    # At first, only the first stage of the first token is known.
    assert (shown[0] != UNWRITTEN).tolist() == [[True, False, False]]
    assert torch.equal(shown[-1], values[1])
    for part in shown:
        whole = values[1][: len(part)]
        assert torch.equal(part, whole.where(part != UNWRITTEN, UNWRITTEN))


@pytest.mark.parametrize("name", ["sound", "picture"])
def test_a_stage_needs_one_step_and_not_as_many_as_there_are_tokens(name, monkeypatch):
    calls = []
    states = Decoder.states

    def counted(*args, **options):
        calls.append(args)
        return states(*args, **options)

    monkeypatch.setattr(Decoder, "states", counted)
    writing = vocabulary().writings[name]
    longest = max(len(value) for value in create(name, memory(17)))
    # The end token of the last stage, unless the maximum length is reached.
    end = 0 if longest == writing.max_len else 1
    assert len(calls) == longest + writing.stages - 1 + end


@pytest.mark.parametrize("name", ["word", "sound", "picture"])
def test_steps_with_caches_read_and_compute_what_the_training_does(name, monkeypatch):
    tokens = memory(1)
    steps = []
    states = Decoder.states

    def recorded(self, ids, *args, **options):
        found = states(self, ids, *args, **options)
        steps.append((ids.clone(), found))
        return found

    task, head = setting()
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "states", recorded)
        sampler = BatchSampler([make_sampler(1.0, seed=3)])
        value = task.create(head, tokens, name, sampler=sampler, guidance=1.0)[0]
    words = task.target.vocabulary
    stages = words.writings[name].stages
    # The last step can be one whose tokens are known: the end token after the maximum length, which
    # is not written, or that of the last stage, which is no label.
    steps = steps[: len(value) + stages - 1]
    assert len(value) > 1
    ids = words.encode(name, {"codes": value})[0][None, : len(steps)]
    read = torch.cat([each.view(1, 1, -1) for each, _ in steps], 1)
    assert torch.equal(read, ids[..., :stages])
    real = torch.ones(ids.shape[:2], dtype=torch.bool)
    with torch.no_grad():
        whole = head.decoder.output(states(head.decoder, ids, real, Memory.from_tokens(tokens)))
        cached = head.decoder.output(torch.cat([each for _, each in steps], 1))
    torch.testing.assert_close(cached, whole, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_loss_is_that_of_a_choice_among_the_tokens_of_each_stage():
    task, head = setting()
    words = task.target.vocabulary
    names = ["picture", "word", "sound"]
    targets = []
    for name in names:
        writing = words.writings[name]
        codes = torch.randint(writing.size, (writing.max_len, writing.stages))
        tokens, labels = words.encode(name, {"codes": codes})
        index = words.begin(name)
        targets.append({"index": index, "ids": tokens[:-1], "labels": labels[1:]})
    batch = {"target": task.target.collate(targets)}
    tokens = memory(3)
    found = head(tokens, tokens.x, batch)
    for i, (name, target) in enumerate(zip(names, targets, strict=True)):
        part = Memory(tokens.x[i : i + 1], tokens.mask[i : i + 1, None, None])
        real = torch.ones(1, len(target["ids"]), dtype=torch.bool)
        logits = head.decoder(target["ids"][None], real, part)[0]
        loss = count = 0.0
        for row, labels in zip(logits, target["labels"].tolist(), strict=True):
            for stage, label in zip(words.stages, labels, strict=True):
                if label != IGNORED:
                    loss -= float(row[stage.start : stage.stop].log_softmax(0)[label])
                    count += 1
        result = found[i, words.begin(name)]
        assert result[0] == pytest.approx(loss, rel=1e-5)
        assert result[1] == count
        assert found[i].sum(0)[1] == count
