"""torch.compile in a training: equal results, and a machine that cannot compile."""

import copy
import pickle

import pytest
import torch
from helpers.runs import checkpoint_of, interrupt, same_tensors
from helpers.training import fit, make_model, make_task

from dxn.core.dropout import keyed, number_layers
from dxn.models import Backbone, BlockOptions, NormOptions, compiling
from dxn.models.blocks import Block, set_compiled
from dxn.training.loop import Fit


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch):
    """Trace the compiled functions, but run them without generated code, which takes long."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    _forget()
    yield
    _forget()


def _forget():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiling._compiled.cache_clear()
    compiling._failures.clear()


def _run(model, lengths, seed):
    """Return the output and the gradients of a batch of sequences with these lengths."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*mask.shape, 24, generator=generator, requires_grad=True)
    model.zero_grad()
    with keyed(torch.arange(len(lengths)), seed):
        out = model.run(x, mask)
    out.square().sum().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"dropout": 0.3, "drop_path": 0.2}, marks=pytest.mark.exhaustive),
        {"dropout": 0.3, "activation_checkpointing": True},
        {"norm": NormOptions(kind="rms", place="post"), "block": BlockOptions(mlp="swiglu")},
    ],
    ids=["plain", "dropout", "checkpointing", "post-norm"],
)
def test_compiled_blocks_compute_the_same_as_eager_ones(options, monkeypatch):
    if "drop_path" in options:  # once with the graph of the backward pass, which takes longer
        monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch.manual_seed(0)
    eager = Backbone(24, depth=2, num_heads=2, **options).train()
    number_layers(eager)
    compiled = copy.deepcopy(eager)
    set_compiled(compiled, True)
    for seed, lengths in enumerate([[7, 5, 2], [11, 3], [13, 13, 1, 6, 2]]):
        expected, expected_grads = _run(eager, lengths, seed)
        out, grads = _run(compiled, lengths, seed)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(grads, expected_grads, atol=1e-4, rtol=1e-4)
    assert not compiling._failures


@pytest.mark.exhaustive
def test_all_blocks_and_ragged_batches_share_one_compilation():
    model = Backbone(24, depth=6, num_heads=2, dropout=0.1, drop_path=0.3).train()
    number_layers(model)
    set_compiled(model, True)
    _run(model, [9, 4, 2], 0)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for seed in range(1, 8):
        lengths = torch.randint(2, 30, (2 + seed,), generator=torch.manual_seed(seed)).tolist()
        _run(model, lengths, seed)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    # The first block has no drop path, and the others do.
    assert before <= 3


def test_names_of_weights_copies_and_pickles_do_not_change():
    model = make_model(make_task())
    names = list(model.state_dict())
    set_compiled(model, True)
    assert list(model.state_dict()) == names
    assert list(pickle.loads(pickle.dumps(model)).state_dict()) == names
    assert list(copy.deepcopy(model).state_dict()) == names


@pytest.mark.exhaustive
def test_a_compiled_training_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    options = {"compile": True, "epochs": 2, "checkpoint_every": 2, "ema_decay": 0.9}
    whole, _, _ = fit(tmp_path / "whole", **options)
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", **options)
    _forget()
    resumed, _, _ = fit(tmp_path / "cut", resume=True, **options)
    assert not compiling._failures
    assert same_tensors(whole.state_dict(), resumed.state_dict())
    assert same_tensors(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
    blocks = [module for module in resumed.modules() if isinstance(module, Block)]
    assert blocks and not any(block.compiled for block in blocks)


@pytest.mark.exhaustive
def test_the_whole_model_is_compiled_on_other_devices(tmp_path, monkeypatch):
    options = {"epochs": 1, "count": 45}  # four batches of eleven samples, and one of a sample
    _, expected, _ = fit(tmp_path / "eager", **options)
    monkeypatch.setattr(Fit, "compiles_model", True)
    _, state, _ = fit(tmp_path / "compiled", compile=True, **options)
    assert not compiling._failures
    assert state.best_loss == pytest.approx(expected.best_loss, abs=1e-4)
    # One batch has a single column. The single sample needs no graph of its own.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_without_a_compiler_the_training_continues_with_a_note(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(compiling, "BACKEND", _broken)
    model, _, _ = fit(tmp_path / "broken", compile=True, epochs=1)
    assert "note: training without torch.compile: " in capfd.readouterr().out
    expected, _, _ = fit(tmp_path / "eager", compile=False, epochs=1)
    assert same_tensors(model.state_dict(), expected.state_dict())


def _broken(graph, inputs):
    raise RuntimeError("no C++ compiler found")


def test_a_training_step_compiles_if_torch_cannot_trace_whether_there_is_autocast(
    tmp_path, monkeypatch
):
    # torch 2.11 cannot. A function that is not traced is an error in a whole graph.
    untraced = torch.compiler.disable(torch.amp.is_autocast_available)
    monkeypatch.setattr(torch.amp, "is_autocast_available", untraced)
    monkeypatch.setattr(Fit, "compiles_model", True)
    fit(tmp_path / "run", compile=True, epochs=1, count=22)
    assert not compiling._failures
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"]
