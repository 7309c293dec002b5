"""One fault in a real training; faults/faults.py injects hundreds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.exhaustive
PROGRAM = Path(__file__).parent / "faults" / "faults.py"


def test_a_killed_training_is_resumed_to_the_same_weights(tmp_path):
    words = ["kills", "--count", "1", "--scratch", str(tmp_path)]
    command = [sys.executable, str(PROGRAM), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
