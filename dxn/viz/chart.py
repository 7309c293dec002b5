"""A chart, and its drawing as an SVG in the colors of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.text import Text

from dxn.viz.figure import BLUE, COLORS, GREY, LINE, ORANGE, new_figure
from dxn.viz.html import escaped

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


def finish(axis: Axes, *, grid: bool = True, legend: Any = "best") -> None:
    """Draw the grid and the legend (at a place, or None) of a chart, and no box around it."""
    if grid:
        axis.grid(color=LINE, linewidth=0.6)
        axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if legend is not None:
        axis.legend(frameon=False, fontsize=8, loc=legend)


def _font(match: re.Match[str]) -> str:
    """Return the size of a font without its family, which is that of the page."""
    size = SIZE_OF_FONT.match(match[0])
    return f"font-size: {size[1]}px" if size else "font-family: inherit"
