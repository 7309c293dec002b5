"""The pictures that `dxn attend` writes, so that a later call can remove them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dxn.core.files import write_text
from dxn.core.untrusted import load_json

SOFTWARE = "dxn"  # stored in each PNG
LIST = ".attend.json"  # names of the pictures of the last call; those of drawers are not known here


def remove_pictures(folder: Path) -> None:
    """Remove the pictures of an earlier call from a folder, and no others.

    Raises:
        UserError: If the list of these pictures is damaged.
    """
    path = folder / LIST
    names = load_json(path) if path.exists() else []
    for name in names if isinstance(names, list) else []:
        # The folder may come from a stranger, so a name may not lead out of it.
        if isinstance(name, str) and name.endswith(".png") and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def list_pictures(folder: Path, files: Sequence[Path]) -> None:
    """Write the names of the pictures of this call for `remove_pictures`."""
    write_text(folder / LIST, json.dumps([file.name for file in files]))
