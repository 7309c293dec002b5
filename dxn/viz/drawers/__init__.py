"""Drawers of raw inputs: one module per modality, and the base class for any other modality."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from dxn.viz.drawers.audio import AudioDrawer
from dxn.viz.drawers.cell import CellDrawer
from dxn.viz.drawers.drawer import Drawer, Shown, is_file
from dxn.viz.drawers.image import ImageDrawer
from dxn.viz.drawers.panel import Panel, PanelDrawer
from dxn.viz.drawers.series import SeriesDrawer
from dxn.viz.drawers.strip import FramesDrawer, VideoDrawer
from dxn.viz.drawers.text import TextDrawer

__all__ = [
    "DRAWERS",
    "Drawer",
    "Panel",
    "PanelDrawer",
    "Shown",
    "get_drawer",
    "is_file",
]

# Group of entry points. The name of an entry point is a modality, its value is a drawer class.
GROUP = "dxn.drawers"

DRAWERS: dict[str, type[Drawer]] = {
    "text": TextDrawer,
    "image": ImageDrawer,
    "audio": AudioDrawer,
    "video": VideoDrawer,
    "series": SeriesDrawer,
    "frames": FramesDrawer,
    "number": CellDrawer,
    "category": CellDrawer,
    "date": CellDrawer,
}


def get_drawer(modality: str) -> Drawer:
    """Return the built-in drawer of a modality, or that of a package; otherwise `Drawer`."""
    return {**_installed(), **DRAWERS}.get(modality, Drawer)()


@functools.cache
def _installed() -> dict[str, type[Drawer]]:
    """Load the drawers of installed packages."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}
