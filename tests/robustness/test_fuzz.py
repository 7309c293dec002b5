"""A few mutated inputs of each kind that is cheap to prepare; fuzz/fuzz.py tries thousands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive
PROGRAM = Path(__file__).parent / "fuzz" / "fuzz.py"


@pytest.mark.parametrize("kind", ["tables", "pictures", "sounds"])
def test_a_mutated_input_is_refused_clearly_or_read_rightly(kind):
    command = [sys.executable, str(PROGRAM), kind, "--count", "50", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
