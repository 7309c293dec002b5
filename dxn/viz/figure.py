"""Figures and charts: how they are created, titled and saved, and the colors of all pictures."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter

from dxn.core.display import number
from dxn.viz.fonts import DEFAULT_FONT, families, legible, text_width
from dxn.viz.html import escaped

BLUE = "#2b6cb0"
ORANGE = "#dd6b20"
GREY = "#718096"
LINE = "#e2e8f0"
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")  # the cycle of matplotlib

# The colors of attention, from none to the largest share. Black text is readable on all of them,
# and no grey picture contains them.
HEAT_COLORS = ("#ffffff", "#fff1bf", "#fed66f", "#fd9d43", "#ee3f1e")
TITLE_SIZE = 11
ABOUT_SIZE = 8.5
LARGE = 10_000  # numbers from here on have a suffix: 10k
MAX_LAYOUTS = 12  # most figures need one or two
MARGIN = 0.12  # inches on each side of the title
MAX_LABEL = 24  # characters of a label; longer labels would take most of the picture
PACKED_WIDTH = 10.4  # inches of a picture of several panels
TITLE_INCHES = 0.7  # height of the title of such a picture
SPACE = (0.9, 0.7)  # inches for the labels beside a panel, and for the title above it
SOFTWARE = "dxn"  # stored in each PNG
# Colors in the files of matplotlib, and those of the page that replace them (style.css), so that a
# chart is readable in light and dark.
REPLACED = {
    **{color: f"var(--chart-{i + 1})" for i, color in enumerate(COLORS)},
    BLUE: "var(--chart-1)",
    ORANGE: "var(--chart-2)",
    GREY: "var(--muted)",
    LINE: "var(--line)",
    "#000000": "currentColor",
}
# Ids of groups repeat in every chart, and nothing refers to them.
GROUP_ID = re.compile(r' id="(?:figure|axes|patch|text|line2d|matplotlib|xtick|ytick|legend)[^"]*"')
FONT = re.compile(r"font(?:-family)?: [^;\"]*")
SIZE_OF_FONT = re.compile(r"font: (?:[a-z]+ )*?([\d.]+)px")


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
        # Names of columns and classes are not formulas, whatever signs are in them.
        text.set_parse_math(False)
        if names != [DEFAULT_FONT]:
            text.set_fontfamily(names)
    _lay_out(figure)
    figure.savefig(path, format="png", metadata={"Software": SOFTWARE})


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


def shortened(words: Sequence[str], length: int = MAX_LABEL) -> list[str]:
    """Convert words to labels that can be drawn, and cut long ones."""
    labels: list[str] = []
    for word in words:
        label = legible(word)
        labels.append(label if len(label) <= length else f"{label[: length - 1].rstrip()}…")
    return labels


def pack(sizes: Sequence[tuple[float, float]], width: float = PACKED_WIDTH) -> list[list[int]]:
    """Distribute panels over rows, in their order.

    Args:
        sizes: Width and height of each panel in inches.
        width: Width of a row in inches. A wider panel has a row of its own.

    Returns:
        The indices of the panels of each row.
    """
    rows: list[list[int]] = []
    room = 0.0
    for i, (needed, _) in enumerate(sizes):
        if rows and needed <= room:
            rows[-1].append(i)
        else:
            rows.append([i])
            room = width
        room -= needed
    return rows


def packed_axes(
    sizes: Sequence[tuple[float, float]], *, stretch_last: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with one axis per panel, packed into rows.

    Args:
        sizes: Width and height of each panel in inches, without labels.
        stretch_last: Whether the last panel takes the rest of its row.
    """
    outer = [(width + SPACE[0], height + SPACE[1]) for width, height in sizes]
    rows = pack(outer)
    heights = [max(outer[i][1] for i in row) for row in rows]
    width = min(max(sum(outer[i][0] for i in row) for row in rows), PACKED_WIDTH)
    figure = new_figure(max(width, 6.0), sum(heights) + TITLE_INCHES)
    parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    axes: dict[int, Axes] = {}
    for part, row in zip(parts, rows, strict=True):
        widths = [outer[i][0] for i in row]
        # A row that is not full ends with an empty axis, so that panels keep their size.
        rest = width - sum(widths)
        if stretch_last and row is rows[-1]:
            widths[-1] += rest
        elif rest > 0.5:
            widths.append(rest)
        grid = part.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        for axis in grid[len(row) :]:
            axis.set_axis_off()
        axes |= dict(zip(row, grid, strict=False))
    return figure, [axes[i] for i in range(len(sizes))]


@dataclass(frozen=True)
class Chart:
    """A chart with one axis.

    Args:
        title: Title above the chart.
        alt: Description for readers who do not see it.
        draw: Function that draws it in an axis.
        size: Width and height in inches. On the screen of a phone, a chart of the default width has
            letters of normal size.
    """

    title: str
    alt: str
    draw: Callable[[Axes], None]
    size: tuple[float, float] = (4.3, 2.9)

    def svg(self) -> Markup:
        """Return the chart as an SVG element without its title, in the colors of the page."""
        figure = new_figure(*self.size)
        self.draw(figure.subplots())
        # Text stays text, so that a screen reader and the search of the browser find it. A constant
        # salt makes equal charts equal files.
        labels: list[Text] = figure.findobj(Text)  # pyright: ignore[reportAssignmentType]
        for label in labels:
            label.set_parse_math(False)  # a name with two dollar signs is not a formula
        options: Any = {"svg.fonttype": "none", "svg.hashsalt": "dxn"}
        file = io.StringIO()
        with mpl.rc_context(options):
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        text = file.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = GROUP_ID.sub("", text)
        text = FONT.sub(_font, text)
        for color, variable in REPLACED.items():
            text = text.replace(color, variable)
        # The size is that of the box around it, and the ratio that of the figure.
        for _ in range(2):
            text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
        # Escaped by matplotlib (names of metrics) and by `escaped`.
        start = f'<svg role="img" aria-label="{escaped(self.alt)}" class="chart"'
        return Markup(text.replace("<svg", start, 1))


def finish(axis: Axes, *, grid: Literal["both", "y"] | None = "both", legend: Any = "best") -> None:
    """Draw the grid and the legend (at a place, or None) of a chart, and no box around it."""
    if grid is not None:
        axis.grid(axis=grid, color=LINE, linewidth=0.6)
        axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if legend is not None:
        axis.legend(frameon=False, fontsize=8, loc=legend)


def _font(match: re.Match[str]) -> str:
    """Return the size of a font without its family, which is that of the page."""
    size = SIZE_OF_FONT.match(match[0])
    return f"font-size: {size[1]}px" if size else "font-family: inherit"
