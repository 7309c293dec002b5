"""Read metadata files in the folder of the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dxn.errors import UserError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist or has no object.

    Raises:
        UserError: If the file is not valid JSON.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # invalid JSON, or bytes that are not UTF-8
        raise UserError(f"weights: {path}: invalid JSON ({error}); download it again") from error
    return content if isinstance(content, dict) else {}
