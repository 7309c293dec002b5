"""Programs of exported models."""

import contextlib
import importlib
import json
import sys

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
