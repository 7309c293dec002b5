"""Read metadata files in the folder of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.core.untrusted import load_json


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist or has no object.

    Raises:
        UserError: If the file is not valid JSON, or not a regular file.
    """
    if not path.exists():
        return {}
    try:
        # Local copies of public checkpoints often contain links to a cache.
        content = load_json(path, allow_nan=True, allow_links=True)
    except UserError as error:
        raise UserError(f"weights: {error}; download it again") from error
    return content if isinstance(content, dict) else {}
