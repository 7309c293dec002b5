"""A raw input as a part of an HTML page, drawn by the drawer of its modality."""

from __future__ import annotations

from dxn.viz.drawers import Shown, get_drawer
from dxn.viz.drawers.html import escaped, paragraph, text_of


def fragment(shown: Shown) -> str:
    """Return a raw input as HTML without scripts, in which everything from data is escaped.

    The drawer of the modality draws it in its optional method `fragment(shown) -> str`. Without
    this method, the data of its method `page` is used.
    """
    drawer = get_drawer(shown.modality)
    draw = getattr(drawer, "fragment", None)
    if draw is not None:
        return draw(shown)
    page = drawer.page(shown)
    if page["kind"] == "characters":
        return paragraph(text_of(page))
    if page["kind"] == "boxes":
        alt = f"{shown.name or shown.modality} as a picture"
        return f'<img class="picture" src="{escaped(page["source"])}" alt="{escaped(alt)}">'
    return f'<p class="note">no preview of the kind {escaped(shown.modality)}</p>'
