"""The drawer of each modality: the built-in drawers, and those of installed packages."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.metadata import entry_points

from dxn.viz.drawers.drawer import Drawer

# Group of entry points. The name of an entry point is a modality, its value is a drawer class.
GROUP = "dxn.drawers"

# Import paths instead of classes, because drawers import matplotlib: see `dxn.viz`.
DRAWERS: dict[str, str] = {
    "text": "dxn.viz.drawers.text.TextDrawer",
    "image": "dxn.viz.drawers.image.ImageDrawer",
    "audio": "dxn.viz.drawers.audio.AudioDrawer",
    "video": "dxn.viz.drawers.video.VideoDrawer",
    "series": "dxn.viz.drawers.series.SeriesDrawer",
    "number": "dxn.viz.drawers.cell.CellDrawer",
    "category": "dxn.viz.drawers.cell.CellDrawer",
    "date": "dxn.viz.drawers.cell.CellDrawer",
}
GENERIC = "dxn.viz.drawers.generic.GenericDrawer"


def get_drawer(modality: str) -> Drawer:
    """Return the drawer of a modality, or a `GenericDrawer` if the modality has none."""
    installed = _installed()
    if modality not in DRAWERS and modality in installed:
        return installed[modality]()
    module, _, name = DRAWERS.get(modality, GENERIC).rpartition(".")
    return getattr(import_module(module), name)()


@functools.cache
def _installed() -> dict[str, type[Drawer]]:
    """Load the drawers of installed packages."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}
