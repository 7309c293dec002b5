"""A line in the output of a notebook cell that is replaced again and again."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dxn.viz.notebook.templates import render


def is_notebook() -> bool:
    """Whether the process is the kernel of a notebook, such as Jupyter, VS Code or Colab."""
    # IPython on a terminal has another shell, and a terminal shows a bar already.
    if "IPython" not in sys.modules or "ipykernel" not in sys.modules:
        return False
    shell: Any = importlib.import_module("IPython").get_ipython()
    return hasattr(shell, "kernel")


class LiveLine:
    """Shows how far a piece of work is in the output of a notebook cell."""

    def __init__(self):
        self.handle: Any = None

    def update(self, title: str, done: int, total: int, status: str) -> None:
        """Show the progress, in place of what was shown before."""
        html = render("progress", title=title, done=done, total=total, status=status)
        if self.handle is None:
            display: Any = importlib.import_module("IPython.display").display
            self.handle = display(_Fragment(html), display_id=True)
        else:
            self.handle.update(_Fragment(html))

    def close(self) -> None:
        """Remove the progress."""
        if self.handle is not None:
            self.handle.update(_Fragment(""))


class _Fragment:
    """An HTML fragment. Frontends without HTML show an empty text, not the name of the class."""

    def __init__(self, html: str):
        self.html = html

    def __repr__(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        return self.html
