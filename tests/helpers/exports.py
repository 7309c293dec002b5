"""Programs of exported models."""

import contextlib
import importlib
import json
import subprocess
import sys

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


def example(folder, *arguments):
    """What example.py of an exported folder prints, in a process that cannot import dxn."""
    code = (
        "import runpy, sys; sys.modules['dxn'] = None; sys.argv = sys.argv[1:]; "
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(folder / "example.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
