"""Process settings are the same wherever dxn is started from."""

import os
import subprocess
import sys

import pytest

from dxn.core import runtime

VARIABLES = (
    "GOMP_SPINCOUNT",
    "MKL_CBWR",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "LRU_CACHE_CAPACITY",
)
KERNELS = [runtime.KERNELS] * 2
OTHERS = ("OMP_WAIT_POLICY",)  # of the user


def run(code, **variables):
    """The output of a fresh Python process, without the variables that this one has set."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES + OTHERS} | variables
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


SHOW = f"import os, sys; print(*map(os.environ.get, {VARIABLES}), 'torch' in sys.modules)"


def test_importing_dxn_changes_nothing_and_does_not_import_torch():
    code = "import os, warnings; before = dict(os.environ), list(warnings.filters); import dxn; "
    code += f"assert before == (dict(os.environ), warnings.filters); {SHOW}"
    assert run(code) == ["None"] * 4 + ["False"]


def test_the_command_line_configures_the_process_the_same_way():
    code = f"from dxn.cli import main; main(['--version']); {SHOW}"
    assert run(code)[-5:] == [runtime.SPINS, "AUTO", *KERNELS, "False"]


def test_only_the_command_line_changes_when_python_searches_for_garbage(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("text,label\na b,x\nc d,y\ne f,x\n", encoding="utf-8")
    code = f"""
import gc, sys
from dxn.cli import main
main(["check", {str(table)!r}])
print(gc.isenabled(), gc.get_freeze_count())
sys.argv[1:] = ["check", {str(table)!r}]
main()
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    output = run(code)
    called = output.index("0")  # the first count
    assert output[called - 1] == "True"
    assert output[-2:] == ["True", "True"]


def test_a_variable_of_the_user_is_kept():
    code = f"from dxn.core.runtime import configure; configure(); {SHOW}"
    assert run(code, GOMP_SPINCOUNT="7") == ["7", "AUTO", *KERNELS, "False"]
    assert run(code, OMP_WAIT_POLICY="ACTIVE") == ["None", "AUTO", *KERNELS, "False"]


def test_the_tests_run_with_the_same_settings():
    assert [os.environ[name] for name in VARIABLES] == [runtime.SPINS, "AUTO", *KERNELS]


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_a_c_library_without_mallopt_is_no_error(monkeypatch, error):
    def missing(name):
        raise error

    monkeypatch.setattr(runtime.ctypes, "CDLL", missing)
    runtime.configure()
