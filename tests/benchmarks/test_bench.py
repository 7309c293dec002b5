"""The frame of benchmarks/speed/bench.py: goals, equal outputs, rounds, and its table."""

import pytest
import torch
from helpers.benchmarks import load
from helpers.exhaustive import exhaustive_except

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

row, measuring, report = load("bench_row"), load("bench_measure"), load("bench_report")
CPU = torch.device("cpu")


def measured(tmp_path, ours=2.0, goals=(), kind="input", **peers):
    """The result of a row whose calls return these numbers."""
    calls = {
        "dxn": lambda: ours,
        **{name: lambda value=value: value for name, value in peers.items()},
    }
    built = row.Row("a", "some work", kind, lambda options: row.Work(calls), tuple(goals))
    return measuring.measure(built, row.Options(tmp_path), 3)


def test_the_ratio_is_the_time_of_the_peer_divided_by_ours(tmp_path):
    result = measured(tmp_path, ours=2.0, timm=3.0, goals=[row.Goal(at_least=1.4)])
    assert result.values == {"dxn": 2.0, "timm": 3.0}
    assert result.ratios == {"timm": 1.5}
    assert result.goals == {"1.4 times timm": True}


def test_a_goal_without_a_peer_refers_to_the_fastest_one(tmp_path):
    result = measured(tmp_path, ours=2.0, slow=9.0, fast=2.5, goals=[row.Goal(at_least=1.4)])
    assert result.goals == {"1.4 times fast": False}


def test_a_maximum_refers_to_the_value_or_to_a_peer(tmp_path):
    assert measured(tmp_path, ours=0.2, goals=[row.Goal(at_most=0.1)]).goals == {
        "at most 0.1 s": False
    }
    goals = [row.Goal(at_most=3, peer="batch")]
    assert measured(tmp_path, ours=2.0, batch=1.0, goals=goals).goals == {
        "at most 3 of batch": True
    }


@pytest.mark.parametrize("value", [1.1, float("nan")])
def test_different_outputs_are_an_error(value):
    with pytest.raises(row.Unequal, match="outputs: the largest difference"):
        row.check_equal(torch.tensor([value]), torch.ones(1), tolerance=0.01)


def test_different_shapes_are_an_error():
    with pytest.raises(row.Unequal, match="shapes"):
        row.check_equal(torch.ones(2), torch.ones(3), tolerance=1)


def test_only_real_tokens_count_as_useful_work():
    # A sequence of 1 token: 24 D² for the layers and 4 D for attention.
    assert row.transformer_flop([1], dim=7, depth=1) == 24 * 49 + 4 * 7
    assert row.transformer_flop([1, 1], dim=7, depth=3) == 6 * (24 * 49 + 4 * 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_limit_is_a_goal_in_bf16_only(tmp_path, monkeypatch, dtype):
    dtypes = []

    def make_product(dtype, device):
        dtypes.append(dtype)
        return lambda: 2.0

    monkeypatch.setattr(measuring, "make_product", make_product)
    work = row.Work({"dxn": lambda: 4.0}, flop=1e9)
    built = row.Row("a", "some work", "inference", lambda options: work)
    result = measuring.measure(built, row.Options(tmp_path, CPU, dtype), 3)
    assert dtypes == [dtype]
    # 1e9 operations in 4 seconds, of a rate of 2 * 2048³ operations in 2 seconds.
    assert result.fraction == pytest.approx(1e9 / 4 / 2048**3)
    goals = {"at least 0.65 of the limit": False} if dtype == torch.bfloat16 else {}
    assert result.goals == goals


def test_long_rows_have_three_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MAX_SECONDS", 0)
    work = row.Work({"dxn": lambda: 2.0, "timm": lambda: 3.0})
    built = row.Row("a", "some work", "input", lambda options: work)
    assert measuring.measure(built, row.Options(tmp_path), 9).rounds == measuring.MIN_ROUNDS
    assert measuring.measure(built, row.Options(tmp_path), 2).rounds == 2


def test_the_summary_counts_comparisons_with_other_libraries_only(tmp_path):
    records = []
    for name, device, peers in [
        ("fast", "A", {"timm": 3.0, "peft": 4.0}),
        ("fast", "B", {"timm": 2.5}),
        ("even", "A", {"timm": 2.05}),
        ("slow", "A", {"timm": 4.0, "peft": 1.0}),
        ("cost", "A", {"import torch": 1.0}),
        ("memory", "A", {}),
    ]:
        record = measured(tmp_path, ours=2.0, **peers).as_dict()
        machine = {**report.machine(CPU, "float32"), "device": device}
        records.append({**record, "name": name, "machine": machine})
    lines = report.summary(records).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("- 4 comparisons with the fastest other library on 2 machines")
    assert lines[1:4] == [
        "- **Faster** in 2: `fast` 1.25 to 1.50.",
        "- **Equal** in 1: `even` 1.02.",
        "- **Slower** in 1: `slow` 0.50.",
    ]
    _, costs = report.tables(records[:1] + records[2:]).split("### Costs without another library")
    assert "`cost`" in costs
    assert "`memory`" in costs
    assert "`even`" not in costs


def test_the_table_keeps_the_results_of_other_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(report, "REPORT", tmp_path / "BENCHMARKS.md")
    first = measured(tmp_path, ours=2.0, timm=3.0).as_dict()
    first["machine"] = report.machine(CPU, "float32")
    report.write([first], order=["a", "b"])
    text = report.REPORT.read_text()
    report.REPORT.write_text(text + "\nWhat was tried.\n")
    report.write([{**first, "name": "b", "title": "other work"}], order=["a", "b"])
    text = report.REPORT.read_text()
    assert "some work | 2 s | timm 3 s | 1.50" in text
    assert "other work" in text
    assert text.endswith("What was tried.\n")


def test_mean_and_longest_of_the_drawn_lengths_are_those_of_the_row():
    lengths = load("bench_models").lengths_of(64, mean=88, longest=263)
    assert max(lengths) == 263
    assert abs(sum(lengths) / 64 - 88) < 2


def test_every_row_has_a_name_of_its_own():
    names = [one.name for one in load("bench").ROWS]
    assert len(set(names)) == len(names) > 20


@pytest.mark.parametrize("dropout", exhaustive_except([0.0, 0.1], 0.1))
def test_a_training_step_changes_both_sides(tmp_path, monkeypatch, dropout):
    training = load("bench_training")
    monkeypatch.setattr(training, "SMALL_BERT", training.Sizes(dim=44, depth=2, heads=2))
    monkeypatch.setattr(training, "check_models", lambda *_: None if dropout else 0.0)
    models = []
    make_step = training.make_step

    def recorded(model, *args):
        models.append(model)
        return make_step(model, *args)

    monkeypatch.setattr(training, "make_step", recorded)
    work = training.ragged_texts(row.Options(tmp_path), dropout=dropout)
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    for call in work.calls.values():
        call()
    for model, old in zip(models, before, strict=True):
        pairs = zip(model.parameters(), old, strict=True)
        assert any(not torch.equal(new, one) for new, one in pairs)
