"""Figures: how they are created, titled and saved, and the colors that all pictures share."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, MaxNLocator

from dxn.viz.fonts import DEFAULT_FONT, families, legible, text_width
from dxn.viz.numbers import number
from dxn.viz.written import SOFTWARE

BLUE = "#2b6cb0"
ORANGE = "#dd6b20"
GREY = "#718096"

# The colors of attention, from none to the largest share. Black text is readable on all of them,
# and no grey picture contains them. page.html has the same colors.
HEAT_COLORS = ("#ffffff", "#fff1bf", "#fed66f", "#fd9d43", "#ee3f1e")
TITLE_SIZE = 11
ABOUT_SIZE = 8.5
LARGE = 10_000  # numbers from here on have a suffix: 10k
MAX_LAYOUTS = 12  # most figures need one or two
MARGIN = 0.12  # inches on each side of the title


@functools.cache
def heat_colors() -> Colormap:
    """Return the color map of attention."""
    return LinearSegmentedColormap.from_list("attention", HEAT_COLORS)


def heat_scale(values: np.ndarray) -> Normalize:
    """Return the scale that maps shares or weights to the colors of attention.

    It reaches at least twice the mean: if all shares are equal, all tokens have the middle color,
    and not that of strong attention.
    """
    # initial: an input may have no tokens. `or 1`: all shares may be 0.
    largest = max(float(values.max(initial=0)), 2 * float(values.mean()) if values.size else 0)
    return Normalize(0, largest or 1.0)


def color_bar(figure: Figure | SubFigure, axes: Any, scale: Normalize, label: str) -> None:
    """Draw the color bar of attention beside one axis or several, with percentages."""
    colors = ScalarMappable(scale, heat_colors())
    bar = figure.colorbar(colors, ax=axes, pad=0.015, fraction=0.03, aspect=25)
    # Above the bar, because the bar beside a line of text is shorter than the label.
    bar.ax.set_title(label, fontsize=7, loc="right", linespacing=1.1)
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))


def new_figure(width: float, height: float) -> Figure:
    """Create a figure with this size in inches."""
    # Without pyplot: pyplot keeps every figure in memory until it is closed.
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def set_title(figure: Figure, title: str, about: str = "") -> None:
    """Write a title, and below it a smaller line about the run or the sample.

    Both are wrapped at the width of the figure.
    """
    width = (figure.get_figwidth() - 2 * MARGIN) * 72
    lines = wrapped(title, TITLE_SIZE, width)
    small = wrapped(about, ABOUT_SIZE, width) if about else []
    # A title of several sizes is several texts. Constrained layout reserves space for one only, so
    # the title that it knows holds the empty lines of the second one.
    height = figure.get_figheight()
    blank = "\n" * len(small)
    x = MARGIN / figure.get_figwidth()
    figure.suptitle("\n".join(lines) + blank, fontsize=TITLE_SIZE, x=x, ha="left")
    if small:
        # 1.3: the height of a line relative to its font size. 3 points: the margin of the layout.
        y = 1 - (3 + 1.3 * TITLE_SIZE * len(lines)) / 72 / height
        style = {"fontsize": ABOUT_SIZE, "color": GREY, "va": "top", "ha": "left"}
        figure.text(x, y, "\n".join(small), linespacing=1.35, **style)


def plain_numbers(largest: float) -> Formatter:
    """Return the format of the numbers of an axis: plain, or from 10,000 on as 10k and 2.5M."""
    if largest >= LARGE:
        return EngFormatter(sep="")
    return FuncFormatter(lambda value, _: number(value))


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Break a text between words into lines of at most `width` points."""
    lines: list[str] = []
    for word in legible(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, in fonts that have all of its characters."""
    texts: list[Text] = figure.findobj(Text)  # pyright: ignore[reportAssignmentType]
    names = families("".join(text.get_text() for text in texts))
    for text in texts:
        # Names of columns and classes are no formulas, whatever signs are in them.
        text.set_parse_math(False)
        if names != [DEFAULT_FONT]:
            text.set_fontfamily(names)
    _lay_out(figure)
    figure.savefig(path, metadata={"Software": SOFTWARE})


def _lay_out(figure: Figure) -> None:
    """Repeat the layout until no label is cut off.

    A label moves when its axes are resized, and axes of a fixed aspect ratio need several rounds.
    """
    layout = figure.get_layout_engine()
    assert layout is not None, "new_figure sets a layout"
    for _ in range(MAX_LAYOUTS):
        layout.execute(figure)
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        if box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height:
            break
    # Saving would repeat the layout, which takes most of the time of a picture.
    figure.set_layout_engine("none")


def is_dark(color: tuple[float, ...]) -> bool:
    """Return whether white text is easier to read on a color (RGB, 0 to 1) than black text."""
    # Relative luminance (ITU-R BT.709), without the gamma correction, which is accurate enough.
    return float(np.dot(color[:3], (0.2126, 0.7152, 0.0722))) < 0.5
