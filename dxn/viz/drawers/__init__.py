"""Drawers of raw inputs, one module per modality."""

from dxn.viz.drawers.drawer import Drawer, InputAttention, Shown, Thumbnails, is_file
from dxn.viz.drawers.registry import DRAWERS, get_drawer

__all__ = ["DRAWERS", "Drawer", "InputAttention", "Shown", "Thumbnails", "get_drawer", "is_file"]
