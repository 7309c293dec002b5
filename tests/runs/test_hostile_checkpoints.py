"""Untrusted run folders: the checksums are right, but the content of a checkpoint is not."""

import json
import shutil

import pytest
import torch
from helpers.runs import TINY_DIGITS, interrupt, refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dxn.cli import main
from dxn.core.files import write_sums
from dxn.training.checkpoint import FILE, all_checkpoints

OPTIONS = [*TINY_DIGITS, "adapters=[text]", "trainer.epochs=2"]
WEIGHT = "model/head.out.bias"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was interrupted in its second epoch."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch, interrupt(patch, step=6):
        assert main(["train", *OPTIONS, f"run={folder}"]) == 130
    return folder


@pytest.fixture
def copy(killed, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    return folder


def without(*names):
    return lambda tensors, state: [tensors.pop(name) for name in names]


def with_tensor(name, change):
    return lambda tensors, state: tensors.update({name: change(tensors.get(name))})


def with_state(**fields):
    return lambda tensors, state: state.update(fields)


def with_names(change):
    """Change the names of all tensors of the state of the optimizer."""

    def apply(tensors, state):
        for name in [name for name in tensors if name.startswith("optimizer/")]:
            tensors[change(name)] = tensors.pop(name)

    return apply


def with_averages(change):
    """Change the averages of all gradients."""

    def apply(tensors, state):
        names = [name for name in tensors if name.endswith("/exp_avg")]
        tensors.update({name: change(tensors[name]) for name in names})

    return apply


NAN = torch.tensor(torch.nan)
SPOILED = {
    "a missing weight": (without(WEIGHT), "head.out.bias is missing"),
    "a surplus weight": (with_tensor("model/x", lambda _: NAN), "x is unexpected"),
    "a weight of another shape": (with_tensor(WEIGHT, lambda t: t[:3]), "(3,) float32 instead"),
    "a weight of another type": (with_tensor(WEIGHT, lambda t: t.long()), "int64 instead of"),
    "a weight that is NaN": (with_tensor(WEIGHT, lambda t: t * NAN), "bias has values that are"),
    "an index that is a word": (
        with_names(lambda name: name.replace("/0/", "/zero/")),
        "must start with the index of a parameter",
    ),
    "an index that is too large": (
        with_names(lambda name: name.replace("/0/", "/90000/")),
        "the state of the optimizer does not fit",
    ),
    "no averages": (
        lambda tensors, state: [tensors.pop(n) for n in list(tensors) if n.endswith("/exp_avg")],
        "the state of the optimizer does not fit",
    ),
    "an average of another shape": (
        with_averages(lambda t: t[..., :1]),
        "the state of the optimizer does not fit",
    ),
    "an average that is infinite": (
        with_averages(lambda t: t + torch.inf),
        "/exp_avg has values that are NaN or infinite",
    ),
    "averages of another type": (
        with_averages(lambda t: t.double()),
        "the state of the optimizer does not fit",
    ),
    "no generator": (without("generators/cpu"), "generators/cpu: must have one state per row"),
    "a short generator": (with_tensor("generators/cpu", lambda t: t[:, :9]), "one state per row"),
    "a generator of zeros": (
        with_tensor("generators/cpu", torch.zeros_like),
        "generators: not a state of a generator",
    ),
    "no losses": (without("log/losses"), "log/losses: must be a list of numbers"),
    "losses that are not list": (with_tensor("log/losses", lambda _: NAN), "log/losses: must be"),
    "sizes that are fractions": (with_tensor("log/sizes", lambda t: t / 2), "log/sizes: must be"),
    "more sizes than losses": (
        with_tensor("log/sizes", lambda t: torch.ones(3, dtype=t.dtype)),
        "one number per loss",
    ),
    "an epoch that is a text": (with_state(epoch="two"), "epoch must be an integer, got 'two'"),
    "a negative step": (with_state(step=-1), "step must be at least 0"),
    "a huge step": (with_state(step=10**30), "step must be at most"),
    "too many parts": (with_state(parts=12), "parts: must be at most batch_size"),
    "a missing field": (lambda tensors, state: state.pop("worse"), "worse is missing"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_hostile_checkpoint_with_valid_checksums_is_refused(copy, capsys, name):
    change, expected = SPOILED[name]
    for folder in all_checkpoints(copy / "checkpoints"):
        rewrite(folder / FILE, change)
        write_sums(folder)
    message = " ".join(refused(capsys, ["train", f"resume={copy}"]))
    assert FILE in message
    assert expected in message


@pytest.mark.parametrize("metadata", ["[]", "3", "{}", '"text"', "[" * 5000])
def test_a_hostile_state_of_a_checkpoint_is_refused(copy, capsys, metadata):
    for folder in all_checkpoints(copy / "checkpoints"):
        save_file(load_file(folder / FILE), folder / FILE, {"state": metadata})
        write_sums(folder)
    assert FILE in " ".join(refused(capsys, ["train", f"resume={copy}"]))


def rewrite(path, change):
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    tensors = load_file(path)
    change(tensors, state)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, {"state": json.dumps(state)})


START = {
    "plan.json": ["[]", "{}", "text"],
    "labels.json": ["[]", "{}", '{"task": "classify", "labels": [1, 2]}'],
    "tokenizer.json": ["{}", "[]", "text"],
}
CASES = [(name, text) for name, texts in START.items() for text in texts]
PLAN = [
    ("precision", "float64"),
    ("batch_size", 0),
    ("config", {"batch_size": 11}),
    ("config", {"data": {"path": "/etc/passwd"}}),
    ("data", {"train": 3}),
    ("data", {"train": {"rows": 1, "columns": []}}),
    ("data", {}),
    ("loaded", 3),
    ("loaded", [1]),
    ("inputs", []),
    ("inputs", {"text": {"column": "text", "modality": "text", "adapter": 1, "node": "text"}}),
]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_hostile_start_with_valid_checksums_is_refused(copy, capsys, name, text):
    start = copy / "checkpoints" / "start"
    (start / name).write_text(text)
    write_sums(start)
    refused(capsys, ["train", f"resume={copy}"])


@pytest.mark.parametrize(("name", "value"), PLAN)
def test_a_hostile_plan_with_valid_checksums_is_refused(copy, capsys, name, value):
    start = copy / "checkpoints" / "start"
    plan = json.loads((start / "plan.json").read_text())
    assert name in plan
    (start / "plan.json").write_text(json.dumps({**plan, name: value}))
    write_sums(start)
    refused(capsys, ["train", f"resume={copy}"])


def test_the_lock_of_a_hostile_run_folder_overwrites_no_file(copy, tmp_path, capsys):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    (copy / ".lock").unlink()
    (copy / ".lock").symlink_to(notes)
    (line,) = refused(capsys, ["train", f"resume={copy}"])
    assert ".lock: must not be a link out of" in line
    assert notes.read_text() == "mine"
