"""Draw the codes of a codec: in pages as the value that they stand for."""

from __future__ import annotations

from dxn.tokenize.codes import CodeTokenizer
from dxn.viz.drawers.audio import AudioDrawer
from dxn.viz.drawers.drawer import Drawer, Shown
from dxn.viz.drawers.frames import FramesDrawer
from dxn.viz.drawers.image import ImageDrawer
from dxn.viz.drawers.series import SeriesDrawer
from dxn.viz.drawers.video import VideoDrawer

CONTENTS: dict[str, Drawer] = {
    "image": ImageDrawer(),
    "audio": AudioDrawer(),
    "series": SeriesDrawer(),
    "frames": FramesDrawer(),
    "video": VideoDrawer(),
}


class CodesDrawer(Drawer):
    """Draws codes (M, R) as numbered cells, because a code belongs to no place of its value.

    Pages and files have the value that the codes were read from, or, without a source, the one that
    is decoded from them.
    """

    def fragment(self, shown: Shown) -> str:
        content = _content(shown)
        return CONTENTS[content.modality].fragment(content)

    def file(self, shown: Shown) -> bytes | None:
        content = _content(shown)
        return CONTENTS[content.modality].file(content)


def _content(shown: Shown) -> Shown:
    assert isinstance(shown.preprocessor, CodeTokenizer)
    codec, source = shown.preprocessor.codec, shown.source
    raw = codec.decode(shown.raw) if source is None else codec.reader.read(source)
    return Shown(codec.tokenizer.drawing, raw, codec.tokenizer, source=source, name=shown.name)
