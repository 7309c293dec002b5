"""Programs of exported models."""

import contextlib
import functools
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dxn.cli import main


@contextlib.contextmanager
def imports(folder):
    """Import the modules of a folder, and forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name.startswith(("prepare_", "run_graph")):
                del sys.modules[name]


@contextlib.contextmanager
def exported(run, folder):
    """Export a run for torch, and give what describes it and a function that answers samples."""
    assert main(["export", f"run={run}", "format=torch", f"output={folder}"]) == 0
    with imports(folder):
        about = json.loads((folder / "preprocess.json").read_text())
        (part,) = about["parts"]
        prepare = importlib.import_module("prepare_inputs").prepare_sample
        answer = importlib.import_module("run_graph").load(folder / part["file"])
        yield about, lambda sample: answer(prepare(sample, about, part["inputs"]))


# Starts a process for each line of its input. Importing torch takes most of the time of an example,
# so one process imports it, never imports dxn, and forks the others. It does not import onnxruntime
# either, which starts a thread: a process with threads must not be forked.
EXAMPLES = """
import json, os, runpy, sys
import tokenizers, torch
import torch._export.serde.serialize, torch.fx.experimental.symbolic_shapes

sys.modules["dxn"] = None
for line in sys.stdin:
    folder, arguments, *outputs = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.argv = ["example.py", *arguments]
        runpy.run_path("example.py", run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@functools.cache
def examples():
    """The process that starts the examples, which ends with this one."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", EXAMPLES], **pipes)


def example(folder, *arguments):
    """What example.py of an exported folder prints, in a process that cannot import dxn."""
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [Path(scratch, name) for name in ("stdout", "stderr")]
        request = [str(folder), arguments, *map(str, outputs)]
        examples().stdin.write(f"{json.dumps(request)}\n")
        examples().stdin.flush()
        code = int(examples().stdout.readline())
        return subprocess.CompletedProcess(arguments, code, *(p.read_text() for p in outputs))


def probabilities(folder, *arguments):
    """The probabilities by label that example.py of an exported folder prints."""
    result = example(folder, *arguments)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
    return {label: float(probability) for probability, label in rows}


def assert_answers_are_equal(model, folder, question, context):
    """The program of an exported folder finds the same part of a text as the model."""
    expected = model.predict(question=question, context=context)
    result = example(folder, f"question={question}", f"context={context}")
    assert result.returncode == 0, result.stderr
    first, *places = result.stdout.splitlines()
    score, _, text = first.partition("  ")
    assert float(score) == pytest.approx(expected["score"], abs=2e-4)
    if not expected["prediction"]:
        assert (text, places) == ("no answer", [])
        return
    assert text == expected["prediction"]
    assert places == [f"characters {expected['start']} to {expected['end']} of context"]
