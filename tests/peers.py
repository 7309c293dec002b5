"""benchmarks/parity.py, whose public models are the tests' peers too."""

import importlib.util
import sys
from pathlib import Path


def _benchmark():
    spec = importlib.util.spec_from_file_location("parity", Path(__file__).parents[1] / "benchmarks" / "parity.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


parity = _benchmark()
