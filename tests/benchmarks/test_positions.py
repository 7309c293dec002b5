"""The study of positions: its tasks, its errors, stretched positions, its output."""

from dataclasses import replace

import pytest
import torch
from helpers.benchmarks import load

positions = load("positions")


def small(kind, vocab_size=7):
    torch.manual_seed(0)
    return positions.Predictor(kind, vocab_size=vocab_size, dim=16, depth=1).eval()


def test_the_answer_is_the_letter_a_fixed_number_of_positions_before():
    ids, answers = positions.shifted(3, 11, torch.Generator().manual_seed(0))
    for b in range(3):
        for n in range(11):
            assert answers[b, n] == (ids[b, n - positions.SHIFT] if n >= positions.SHIFT else -1)


def test_the_same_text_is_at_each_distance_from_the_beginning():
    task = positions.language("".join(chr(97 + i * i % 23) for i in range(40_000)))
    ids, answers = task.test
    assert torch.equal(ids[:, 1:], answers[:, :-1])
    assert torch.equal(ids[1:, : positions.BIN], ids[:-1, positions.BIN : 2 * positions.BIN])


def test_an_error_is_the_mean_over_its_positions_without_those_that_have_no_answer():
    model, length = small(positions.KINDS[-1]), 3 * positions.BIN
    answers = torch.randint(7, (5, length))
    answers[:, :13] = -1
    task = replace(positions.copying(), test=(torch.zeros(5, length, dtype=torch.long), answers))
    task = replace(task, errors=lambda logits, wanted: wanted.float())
    errors = positions.errors_by_position(model, task, length)
    for n, error in enumerate(errors.tolist()):
        own = answers[:, n * positions.BIN : (n + 1) * positions.BIN]
        assert error == pytest.approx(own[own >= 0].float().mean().item(), abs=1e-6)


def test_stretched_positions_begin_and_end_with_those_of_the_training():
    model = small(positions.KINDS[0])
    before = model.pos_embed.weight.detach().clone()
    model.stretch(positions.LENGTH)
    assert torch.equal(model.pos_embed.weight, before[: positions.LENGTH])
    model.stretch(2 * positions.LENGTH - 1)  # every second position is one of the training
    after = model.pos_embed.weight
    assert torch.allclose(after[::2], before[: positions.LENGTH], atol=1e-6)
    assert torch.allclose(after[1], (before[0] + before[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("kind", positions.KINDS, ids=lambda kind: kind.name)
def test_no_kind_sees_the_tokens_that_it_has_to_predict(kind):
    model, ids = small(kind), torch.randint(7, (2, 19))
    changed = ids.clone()
    changed[:, 11:] = (ids[:, 11:] + 1) % 7
    assert torch.allclose(model(ids)[:, :11], model(changed)[:, :11], atol=1e-5)
    assert not torch.allclose(model(ids)[:, 11:], model(changed)[:, 11:], atol=1e-5)


def test_learned_positions_reach_the_longest_test():
    model = small(positions.KINDS[0])
    model(torch.zeros(1, 256, dtype=torch.long))
    with pytest.raises(ValueError, match="learned positions reach 256 tokens, got 257"):
        model(torch.zeros(1, 257, dtype=torch.long))


def test_every_kind_has_a_row_in_the_table_and_a_line_in_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "train", lambda kind, task, seed: small(kind, task.vocab_size))
    task = positions.copying()
    task = replace(task, test=tuple(side[:3] for side in task.test))
    errors = positions.measure(task, 1)
    rows = positions.table(task, errors).splitlines()[2:]
    assert [row.split(" |")[0][2:] for row in rows] == [kind.name for kind in positions.SHOWN]
    assert all(row.count("±") == len(positions.MULTIPLES) and "nan" not in row for row in rows)
    positions.draw([(task, errors)], tmp_path / "positions.png")
    assert (tmp_path / "positions.png").stat().st_size > 10_000
