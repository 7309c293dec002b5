"""Trainings from the command line, and interruptions of them."""

import json
import shutil
from contextlib import contextmanager

import torch
from safetensors.torch import load_file, save_file

from dxn.cli import main
from dxn.core.files import write_sums
from dxn.training.checkpoint import all_checkpoints, read
from dxn.training.loop import Fit

# Options of a run without the parts that are chosen or fitted from the data.
PLAIN = ["preset=plain", "baseline=none"]
# A model that trains in a second, with the built-in data, and with a text input.
SMALL = [
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32"),
    *("trainer.device=cpu", "batch_size=11"),
]
SMALL_IMAGES = [
    *("adapters=[image]", "adapters.image.image_size=48", "adapters.image.patch_size=8"),
    *("dim=16", "backbone.depth=1", "trainer.epochs=1", "trainer.device=cpu"),
]
TINY_DIGITS = [
    *("data.num_train=47", "data.num_validation=13", "data.num_test=17", "batch_size=11"),
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.precision=float32"),
    "baseline=none",  # it takes half of the time of such a training
]
TEXT = ["adapters=[text]", "adapters.text.tokenizer.kind=word"]


def table_of(count):
    """A table of texts with two classes, which their first words tell apart."""
    words = ["apple", "pear", "plum", "cherry"]
    rows = [f"{words[i % 4]} number {i},{'ab'[i % 2]}" for i in range(count)]
    return "\n".join(["text,label", *rows])


@contextmanager
def interrupt(monkeypatch, *, step):
    """Stop the training after this many optimizer steps, as Ctrl+C does."""
    count = 0
    take_step = Fit.train_step

    def counted(run, parts):
        nonlocal count
        take_step(run, parts)
        count += 1
        if count == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "train_step", counted)
        yield


def same_tensors(left, right):
    """Whether two state dicts have the same names and the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def train(folder, *overrides):
    """Run `dxn train` and return what metrics.json holds."""
    assert main(["train", *overrides, f"run={folder}"]) == 0
    return metrics_of(folder)


def metrics_of(folder):
    """What metrics.json of a run holds."""
    return json.loads((folder / "metrics.json").read_text())


def log_of(folder):
    """The rows of metrics.jsonl, without the speed, which differs from run to run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "samples/s"} for row in rows]


def weights_of(folder):
    """The tensors of a run's model."""
    return load_file(folder / "model" / "model.safetensors")


def changed_stack(run, tmp_path, change):
    """A copy of the model folder of a run, after change(entry, tensors) of its stacked model."""
    folder = tmp_path / "model"
    shutil.copytree(run / "model", folder)
    content = json.loads((folder / "stack.json").read_text())
    tensors = {
        name.removeprefix("0."): tensor.clone()
        for name, tensor in load_file(folder / "stack.safetensors").items()
    }
    change(content["members"][0], tensors)
    (folder / "stack.json").write_text(json.dumps(content))
    save_file({f"0.{n}": t for n, t in tensors.items()}, folder / "stack.safetensors")
    write_sums(folder)
    return folder


def checkpoint_of(folder):
    """The tensors of a run's last checkpoint."""
    tensors, _ = read(all_checkpoints(folder / "checkpoints")[0])
    return tensors


def refused(capsys, arguments):
    """The lines of the error that a command ends with."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()


def attack(canary):
    """A node of a configuration that writes a file if it is built."""
    return {"_target_": "os.system", "command": f"touch {canary}"}
