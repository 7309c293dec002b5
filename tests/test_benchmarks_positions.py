"""The pieces of benchmarks/positions.py: what it asks, where it tests, and how it stretches and draws."""

from dataclasses import replace

import pytest
import torch
from benchmark import load

positions = load("positions")


def small(kind, vocab_size=7):
    torch.manual_seed(0)
    return positions.Guesser(kind, vocab_size=vocab_size, dim=16, depth=1).eval()


def test_the_answer_is_the_letter_so_many_places_before():
    ids, answers = positions.shifted(3, 11, torch.Generator().manual_seed(0))
    for b in range(3):
        for n in range(11):
            assert answers[b, n] == (ids[b, n - positions.SHIFT] if n >= positions.SHIFT else -1)


def test_the_same_text_stands_at_each_distance_from_the_beginning():
    task = positions.language("".join(chr(97 + i * i % 23) for i in range(40_000)))
    ids, answers = task.test
    assert torch.equal(ids[:, 1:], answers[:, :-1])
    assert torch.equal(ids[1:, : positions.BIN], ids[:-1, positions.BIN : 2 * positions.BIN])


def test_a_figure_is_the_mean_of_its_places_and_leaves_out_those_without_an_answer():
    model, length = small(positions.KINDS[-1]), 3 * positions.BIN
    answers = torch.randint(7, (5, length))
    answers[:, :13] = -1
    task = replace(positions.copying(), test=(torch.zeros(5, length, dtype=torch.long), answers))
    task = replace(task, wrong=lambda logits, wanted: wanted.float())
    found = positions.by_place(model, task, length)
    for n, figure in enumerate(found.tolist()):
        place = answers[:, n * positions.BIN : (n + 1) * positions.BIN]
        assert figure == pytest.approx(place[place >= 0].float().mean().item(), abs=1e-6)


def test_stretched_places_begin_and_end_with_those_of_training():
    model = small(positions.KINDS[0])
    before = model.places.table.detach().clone()
    model.stretch(positions.LENGTH)
    assert torch.equal(model.places.table, before[: positions.LENGTH])
    model.stretch(2 * positions.LENGTH - 1)  # every second place is one of training
    assert torch.allclose(model.places.table[::2], before[: positions.LENGTH], atol=1e-6)
    assert torch.allclose(model.places.table[1], (before[0] + before[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("kind", positions.KINDS, ids=lambda kind: kind.name)
def test_no_kind_sees_what_it_has_to_guess(kind):
    model, ids = small(kind), torch.randint(7, (2, 19))
    changed = ids.clone()
    changed[:, 11:] = (ids[:, 11:] + 1) % 7
    assert torch.allclose(model(ids)[:, :11], model(changed)[:, :11], atol=1e-5)
    assert not torch.allclose(model(ids)[:, 11:], model(changed)[:, 11:], atol=1e-5)


def test_learned_places_end_at_the_longest_test():
    with pytest.raises(ValueError, match="learned positions reach 256 tokens, got 257: raise max_len"):
        small(positions.KINDS[0])(torch.zeros(1, 257, dtype=torch.long))


def test_every_kind_has_its_row_and_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "train", lambda kind, task, seed: small(kind, task.vocab_size))
    task = positions.copying()
    task = replace(task, test=tuple(side[:3] for side in task.test))
    found = positions.measure(task, 1)
    rows = positions.table(task, found).splitlines()
    assert [row.split(" |")[0][2:] for row in rows[2:]] == [kind.name for kind in positions.SHOWN]
    assert all(row.count("±") == len(positions.MULTIPLES) and "nan" not in row for row in rows[2:])
    positions.draw([(task, found)], tmp_path / "positions.png")
    assert (tmp_path / "positions.png").stat().st_size > 10_000
