"""Writes dxn/conf/signatures.json when a package is built, see dxn/config/signatures.py."""

import os
import subprocess
import sys

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SignaturesHook(BuildHookInterface):
    """Write the stored signatures, if this environment can import dxn."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Write the file. Without it, commands only start slower."""
        command = [sys.executable, "-m", "dxn.config.signatures"]
        # An isolated build has no torch. Then a file that `make` has written is used.
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": self.root},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            self.app.display_info("signatures.json was not written: dxn cannot be imported here")
