"""The files that `dxn attend` writes, so that a later call can remove them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError

# Names, and endings of the names with several inputs of a kind: front_cells.png.
PICTURES = (
    "heads.png",
    "shares.png",
    "arcs.png",
    "across.png",
    "alignment.png",
    "cells.png",
    "time.png",
    "strip.png",
    "frames.png",
)
SOFTWARE = "dxn"  # stored in each PNG


def remove_pictures(folder: Path) -> None:
    """Remove the pictures of an earlier call from a folder.

    Other pictures can have such a name, so only those that dxn drew are removed.
    """
    for path in folder.glob("*.png"):
        if path.name.endswith(PICTURES) and _is_drawn_by_dxn(path):
            path.unlink()


def _is_drawn_by_dxn(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            return picture.info.get("Software") == SOFTWARE
    except (OSError, UnidentifiedImageError):
        return False
