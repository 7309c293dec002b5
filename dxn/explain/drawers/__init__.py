"""Drawers of raw inputs, one module per modality."""

from dxn.explain.drawers.drawer import Drawer, InputAttention, Shown, Thumbnails, is_file
from dxn.explain.drawers.registry import DRAWERS, get_drawer

__all__ = ["DRAWERS", "Drawer", "InputAttention", "Shown", "Thumbnails", "get_drawer", "is_file"]
