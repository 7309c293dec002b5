"""Draw events below their sound, clip or series: the true ones above the predicted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dxn.core.display import percent
from dxn.core.marks import Mark
from dxn.core.printable import printable
from dxn.viz.html import escaped
from dxn.viz.marks import color_of, is_light


def timeline(marks: Sequence[Mark], length: float, unit: str) -> str:
    """Return bars of events as HTML, and the names of their colors.

    Args:
        marks: True and predicted events. Their boxes have the start and the stop.
        length: End of the time axis, which starts at 0. Infinity: it is not known.
        unit: Unit of the time axis, such as seconds.
    """
    kinds = {
        "true": [mark for mark in marks if mark.score is None],
        "predicted": [mark for mark in marks if mark.score is not None],
    }
    if not math.isfinite(length):
        length = max(mark.box[1] for mark in marks)
    parts: list[str] = []
    for kind, events in kinds.items():
        lanes = "".join(
            f'<div class="lane">{"".join(_bar(mark, length, unit) for mark in row)}</div>'
            for row in _rows(events) or [[]]
        )
        listed = "; ".join(_line(mark, unit) for mark in events) or "none"
        parts.append(
            f'<p class="note">{kind}</p>'
            f'<div role="img" aria-label="{escaped(f"{kind}: {listed}")}">{lanes}</div>'
        )
    axis = f'<p class="ends note"><span>0</span><span>{length:.4g} {escaped(unit)}</span></p>'
    names = {mark.label: mark.number for mark in sorted(marks, key=lambda mark: mark.number)}
    items = "".join(
        f'<li><span class="swatch" style="background:{color_of(number)}"></span>'
        f"{escaped(printable(label))}</li>"
        for label, number in names.items()
    )
    return f'<div class="timeline">{"".join(parts)}{axis}</div><ul class="legend">{items}</ul>'


def _rows(events: Sequence[Mark]) -> list[list[Mark]]:
    """Return events in rows, so that none covers another one."""
    rows: list[list[Mark]] = []
    for event in sorted(events, key=lambda event: event.box):
        row = next((row for row in rows if row[-1].box[1] <= event.box[0]), None)
        if row is None:
            rows.append([event])
        else:
            row.append(event)
    return rows


def _bar(mark: Mark, length: float, unit: str) -> str:
    start, stop = (min(max(place / length, 0), 1) * 100 for place in mark.box)
    color = color_of(mark.number)
    place = f"left:{start:.2f}%;width:{stop - start:.2f}%"
    ink = "#000" if is_light(color) else "#fff"
    return (
        f'<span class="event" style="{place};background:{color};color:{ink}" '
        f'title="{escaped(_line(mark, unit))}">{escaped(printable(mark.label))}</span>'
    )


def _line(mark: Mark, unit: str) -> str:
    """Return an event as a line, such as "bell 93%, 0.5 to 1.5 seconds"."""
    score = "" if mark.score is None else f" {percent(mark.score)}"
    start, stop = mark.box
    return f"{printable(mark.label)}{score}, {start:.4g} to {stop:.4g} {unit}"
