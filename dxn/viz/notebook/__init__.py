"""What notebooks show of results: HTML fragments, written from the templates of this package."""

from __future__ import annotations

from dxn.viz.notebook.live import LiveLine, is_notebook
from dxn.viz.notebook.pictures import heatmap
from dxn.viz.notebook.templates import render

__all__ = ["LiveLine", "heatmap", "is_notebook", "render"]
