"""Loads a file of benchmarks/, whose folders contain scripts, not packages."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2] / "benchmarks"
FOLDERS = [ROOT, ROOT / "speed", ROOT / "studies"]


def load(name: str) -> ModuleType:
    """The module NAME.py of benchmarks/. Benchmarks import each other by their names."""
    sys.path += [str(folder) for folder in FOLDERS if str(folder) not in sys.path]
    return importlib.import_module(name)
