"""benchmarks/speed/parity.py, whose public models are also the peers that tests compare with."""

import sys
from pathlib import Path

# benchmarks/ is a folder of scripts that import each other, not a package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "speed"))

import parity
import parity_cases as cases

CASES = {case.name: case for case in cases.CASES}

__all__ = ["CASES", "cases", "parity"]
