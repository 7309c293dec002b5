"""Pictures of videos: a strip of frames, with the box of each token in its frame."""

import numpy as np
import torch

from dxn.tokenize import VideoAdapter
from dxn.viz.drawers import Shown, get_drawer
from dxn.viz.drawers.strip import PER_ROW, VideoDrawer, _starts
from dxn.viz.figure import new_figure


def shown_of(raw, **options):
    adapter = VideoAdapter(8, patch_size=8, image_size=32, **options)
    coords = adapter(adapter.tokenizer.collate([adapter.tokenizer(raw)])).spans[0].coords[0].numpy()
    return Shown("video", raw, adapter.tokenizer, adapter), coords


def clip(length=7, height=24, width=32):
    frames = torch.arange(length).view(-1, 1, 1, 1).expand(-1, 3, height, width)
    return (10 * frames).to(torch.uint8)


def test_a_strip_shows_the_first_frame_of_each_step():
    shown, _ = shown_of(clip(), tubelet_frames=3)
    assert _starts(shown).tolist() == [0, 3, 6]
    pixels = VideoDrawer().panel(shown).pixels
    gap = 2
    assert pixels.shape == (24, 3 * 32 + 2 * gap, 3)
    assert [int(pixels[5, (32 + gap) * i + 5, 0]) for i in range(3)] == [0, 30, 60]
    assert int(pixels[5, 33, 0]) == 255


def test_the_box_of_a_token_lies_in_its_frame():
    shown, coords = shown_of(clip(11), tubelet_frames=1)
    drawer = get_drawer("video")
    assert isinstance(drawer, VideoDrawer)
    boxes = drawer.boxes(shown, coords)
    pixels = drawer.panel(shown).pixels
    assert len(pixels) == 2 * 24 + 2  # eleven frames in rows of eight
    for box, (start, *_) in zip(boxes, coords, strict=True):
        top, left, bottom, right = box.astype(int)
        assert (pixels[top:bottom, left:right] == 10 * start).all()
    assert PER_ROW == 8


def test_padding_has_no_box_and_no_name():
    shown, coords = shown_of(clip())
    coords = np.concatenate([coords, np.full((1, 6), np.nan)])
    drawer = VideoDrawer()
    assert np.isnan(drawer.boxes(shown, coords)[-1]).all()
    names = drawer.token_names(shown, coords)
    assert names[0] == "frame 1, row 1, col 1"
    assert names[-2:] == ["frame 7, row 3, col 4", None]


def test_a_clip_is_drawn_and_shown_in_a_page():
    shown, coords = shown_of(clip(), tubelet_frames=3)
    drawer = VideoDrawer()
    axis = new_figure(7, 3).subplots()
    note = drawer.draw_tokens(axis, shown, coords)
    assert note == ", 3 steps of 3 frames, the first one is drawn, 12 tokens each"
    width, _ = drawer.size(shown)
    assert width == 7
    page = drawer.page(shown)
    assert page["kind"] == "boxes" and page["width"] == 100
