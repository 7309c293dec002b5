"""Programs of exported models."""

import contextlib
import sys


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
