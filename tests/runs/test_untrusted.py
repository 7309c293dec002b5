"""An untrusted model folder or run folder cannot run code, import a module or read secrets."""

import io
import os
import re
import shutil
from itertools import product

import pytest
import safetensors.torch
import torch
import yaml
from helpers.runs import attack, refused, train

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.serve.command import read_examples

TINY = [
    "preset=plain",
    "baseline=none",
    "dim=16",
    "backbone.depth=1",
    "trainer.epochs=1",
    "adapters=[text]",
]
CPU = ["trainer.device=cpu", "trainer.precision=float32"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, and a run that was trained on it."""
    folder = tmp_path_factory.mktemp("untrusted")
    rows = "".join(f"{word} {i},{word[0]}\n" for i, word in enumerate(["apple", "banana"] * 20))
    (folder / "table.csv").write_text(f"text,label\n{rows}")
    train(folder / "run", *table(folder), *TINY, *CPU)
    return folder


def table(place):
    return ["data=table", f"data.path={place / 'table.csv'}", "data.text=text", "data.target=label"]


def edit(path, change):
    """Change a YAML file as a stranger could."""
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize("part", ["fusion", "head", "backbone"])
def test_training_from_a_model_folder_runs_nothing_that_it_names(place, tmp_path, capsys, part):
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(place / "run" / "model", model)
    key = "pool" if part == "fusion" else "norm"
    edit(model / "config.yaml", lambda config: config[part].__setitem__(key, attack(canary)))
    write_sums(model)  # as a stranger can
    asked = [f"weights={model}", *table(place), *TINY, *CPU, f"run={tmp_path / 'out'}"]
    assert "os.system" in "".join(refused(capsys, ["train", *asked]))
    assert "os.system" in "".join(refused(capsys, ["embed", f"run={model}", "input.text=fig"]))
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["evaluate", "predict", "embed"])
def test_the_overrides_in_a_run_folder_are_never_composed(place, tmp_path, verb):
    copy, canary = tmp_path / "copy", tmp_path / "canary"
    shutil.copytree(place / "run", copy)
    line = f"+data.holdout={{_target_:os.system,command:'touch {canary}'}}"
    lines = yaml.safe_dump([line, "data._target_=antigravity.fly"])
    (copy / ".hydra" / "overrides.yaml").write_text(lines)
    asked = {
        "evaluate": [f"output={tmp_path / 'out'}"],
        "predict": [f"input={place / 'table.csv'}"],
        "embed": [f"input={place / 'table.csv'}", f"output={tmp_path / 'v.npy'}"],
    }
    assert main([verb, f"run={copy}", *asked[verb]]) == 0
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["evaluate", "resume"])
def test_the_saved_configuration_cannot_name_other_code(place, tmp_path, capsys, verb):
    copy, canary = tmp_path / "copy", tmp_path / "canary"
    shutil.copytree(place / "run", copy)
    config = copy / ".hydra" / "config.yaml"
    edit(config, lambda content: content.__setitem__("data", attack(canary)))
    command = ["evaluate", f"run={copy}"] if verb == "evaluate" else ["train", f"resume={copy}"]
    assert "os.system" in "".join(refused(capsys, command))
    assert not canary.exists()


def test_a_run_folder_cannot_read_the_environment(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "DXN_SECRET", "hunter2")
    copy = tmp_path / "copy"
    shutil.copytree(place / "run", copy)
    config = copy / ".hydra" / "config.yaml"
    edit(config, lambda content: content["data"].__setitem__("path", "${oc.env:DXN_SECRET}"))
    for command in (["evaluate", f"run={copy}"], ["train", f"resume={copy}"]):
        assert "hunter2" not in "".join(refused(capsys, command))


def test_a_run_folder_cannot_decide_that_its_data_leads_outside(place, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(place / "run", copy)
    config = copy / ".hydra" / "config.yaml"
    edit(config, lambda content: content["data"].__setitem__("confine", False))
    command = ["evaluate", f"run={copy}", f"output={tmp_path / 'out'}"]
    assert "set confine=false if you trust this run folder" in refused(capsys, command)[0]
    with pytest.raises(UserError, match="examples=0 hides this line"):
        read_examples(str(copy), dxn.load(copy), 1, ())
    assert main([*command, "confine=false"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert f"dataoftherun:{place / 'table.csv'}" in shown


def test_a_model_folder_without_checksums_is_refused(place, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(place / "run" / "model", model)
    (model / "SHA256SUMS").unlink()
    lines = refused(capsys, ["predict", f"run={model}", "input.text=fig"])
    assert "SHA256SUMS: file not found; copy the whole folder again" in lines[0]


def tensors_of(content):
    return safetensors.torch.load(content)


def without_first(content):
    tensors = tensors_of(content)
    del tensors[min(tensors)]
    return safetensors.torch.save(tensors)


def with_another(content):
    return safetensors.torch.save({**tensors_of(content), "another": torch.zeros(3)})


def with_nan(content):
    tensors = tensors_of(content)
    tensors[min(tensors)].fill_(float("nan"))
    return safetensors.torch.save(tensors)


def pickled(content):
    file = io.BytesIO()
    torch.save(tensors_of(content), file)
    return file.getvalue()


# Each file of a model folder, how a stranger or a broken disk changes it, and the message.
BROKEN = {
    "a pickle instead of safetensors": ("model.safetensors", pickled, "damaged or truncated"),
    "empty": ("model.safetensors", lambda content: b"", "damaged or truncated"),
    "truncated": ("model.safetensors", lambda content: content[:-1], "damaged or truncated"),
    "a tensor too many": ("model.safetensors", with_another, "does not match config.yaml"),
    "a tensor missing": ("model.safetensors", without_first, "does not match config.yaml"),
    "a header of 2^60 bytes": (
        "model.safetensors",
        lambda content: (2**60).to_bytes(8, "little") + content[8:],
        "damaged or truncated",
    ),
    "no YAML": ("config.yaml", lambda content: b"a: [", "not valid YAML"),
    "YAML that is not UTF-8": ("config.yaml", lambda content: b"a: \xff", "as UTF-8 text"),
    "no JSON": ("labels.json", lambda content: b"{", "invalid JSON"),
    "labels of another type": (
        "labels.json",
        lambda content: b'{"task": "classify", "labels": [1, {"a": 2}]}',
        "labels.0 must be a text, got 1; labels.1 must be a text",
    ),
    "labels of another task": (
        "labels.json",
        lambda content: b'{"task": "regress", "mean": 0, "std": 1}',
        "was saved for the task 'regress'",
    ),
    "nested labels": ("labels.json", lambda content: b"[" * 100_000, "nested too deeply"),
    "a model of a million dimensions": (
        "config.yaml",
        lambda content: content.replace(b"dim: 16", b"dim: 1000000"),
        "backbone.dim must be at most 65,536",
    ),
    "a model that is larger than its weights": (
        "config.yaml",
        lambda content: content.replace(b"dim: 16", b"dim: 16384"),
        "does not match config.yaml",
    ),
    "a million blocks": (
        "config.yaml",
        lambda content: content.replace(b"depth: 1", b"depth: 1000000"),
        "depth must be at most 1,000, got 1000000",
    ),
    "the path of another file": (
        "config.yaml",
        lambda content: content.replace(b"path: null", b"path: /etc/passwd", 1),
        "path must be null in a model folder, got '/etc/passwd'",
    ),
    "no heads": (
        "config.yaml",
        lambda content: re.sub(rb"num_heads: \d+", b"num_heads: 0", content),
        "num_heads",
    ),
    "weights that are not numbers": ("model.safetensors", with_nan, "NaN or infinite"),
    "no tokenizer": ("tokenizer.json", lambda content: b"{}", "tokenizer.json"),
    "checksums of another file": (
        "SHA256SUMS",
        lambda content: b"0" * 64 + b"  /dev/zero\n",
        "the name of a file in this folder",
    ),
    "checksums without the weights": (
        "SHA256SUMS",
        lambda content: b"".join(
            line for line in content.splitlines(keepends=True) if b"safetensors" not in line
        ),
        "must list model.safetensors",
    ),
    "no checksums": ("SHA256SUMS", lambda content: b"", "must list config.yaml"),
    "checksums that are not UTF-8": ("SHA256SUMS", lambda content: b"\xff", "as UTF-8 text"),
}

# A training that starts from a model loads the tensors that it needs, and ignores others. It has a
# task of its own, and checks the options of the model like its own options.
NOT_IN_A_TRAINING = [
    ("a tensor too many", "train"),
    ("labels of another task", "train"),
    ("a model that is larger than its weights", "train"),
    ("no heads", "train"),
]


@pytest.mark.parametrize(
    ("case", "verb"),
    [pair for pair in product(BROKEN, ["embed", "train"]) if pair not in NOT_IN_A_TRAINING],
)
def test_a_broken_model_folder_is_one_sentence_per_problem(place, tmp_path, capsys, case, verb):
    name, change, message = BROKEN[case]
    model = tmp_path / "model"
    shutil.copytree(place / "run" / "model", model)
    content = (place / "run" / "model" / name).read_bytes()
    (model / name).write_bytes(change(content))
    if name != "SHA256SUMS":
        write_sums(model)  # the reader of the file itself must refuse it
    start = [f"weights={model}", *table(place), *TINY, *CPU, f"run={tmp_path / 'out'}"]
    arguments = {"embed": [f"run={model}", "input.text=fig"], "train": start}
    lines = refused(capsys, [verb, *arguments[verb]])
    assert all(line.startswith("dxn: ") and str(model) in line for line in lines)
    if verb == "embed":
        assert all(message in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_a_link_out_of_the_model_folder_is_refused(place, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(place / "run" / "model", model)
    (tmp_path / "labels.json").write_bytes((model / "labels.json").read_bytes())
    (model / "labels.json").unlink()
    (model / "labels.json").symlink_to(tmp_path / "labels.json")
    (line,) = refused(capsys, ["embed", f"run={model}", "input.text=fig"])
    assert "must not be a link to a file outside of its folder" in line
