"""The drawer of each modality: the built-in drawers, and those of installed packages."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from dxn.explain.drawers.audio import AudioDrawer
from dxn.explain.drawers.drawer import Drawer
from dxn.explain.drawers.generic import GenericDrawer
from dxn.explain.drawers.image import ImageDrawer
from dxn.explain.drawers.text import TextDrawer

# Group of entry points. The name of an entry point is a modality, its value is a drawer class.
GROUP = "dxn.drawers"

DRAWERS: dict[str, type[Drawer]] = {
    "text": TextDrawer,
    "image": ImageDrawer,
    "audio": AudioDrawer,
}


def get_drawer(modality: str) -> Drawer:
    """Return the drawer of a modality, or a `GenericDrawer` if the modality has none."""
    drawer = DRAWERS.get(modality) or _installed().get(modality)
    return drawer() if drawer is not None else GenericDrawer()


@functools.cache
def _installed() -> dict[str, type[Drawer]]:
    """Load the drawers of installed packages."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}
