"""Pictures of tokens and their drawers: what is drawn, and that nothing is cut off."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.drawing import (
    NAN,
    audio,
    cut_off,
    frames,
    grid,
    headline,
    image,
    text,
    texts,
    title,
    tokens_at,
)
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.core.tokens import Tokens, join
from dxn.tokenize import AudioAdapter
from dxn.tokenize.audio.tokenizer import PatchOptions
from dxn.viz import drawers
from dxn.viz.drawers import DRAWERS, Drawer, Shown, get_drawer
from dxn.viz.drawers.panel import overlaps
from dxn.viz.drawers.text import lay_out
from dxn.viz.figure import pack
from dxn.viz.sample import SampleView
from dxn.viz.tokens import token_picture


def boxes(axis):
    """The boxes behind the tokens of a text, as (left, width)."""
    collection = next(c for c in axis.collections if type(c) is PatchCollection)
    extents = [path.get_extents() for path in collection.get_paths()]
    return [(e.x0, e.width) for e in extents], collection.get_facecolors()


def words(axis):
    """The drawn words of a text, as paths."""
    return next(c for c in axis.collections if type(c) is PathCollection).get_paths()


def size(path):
    with Image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG"
        return picture.size


# Pictures of tokens


def test_the_inputs_and_their_matrix_are_drawn(tmp_path, drawn):
    joined = join(
        [
            tokens_at("text", [(NAN, NAN), (0, 3), (3, 5)]),
            tokens_at("image", grid(4, 6, 2)),
            tokens_at("audio", frames(5, 0.025, 0.025)),
        ]
    )
    inputs = {
        "text": text("seven"),
        "image": image(torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8)),
        "audio": audio(torch.randn(1009), 8009),
    }
    token_picture(SampleView(joined, inputs), tmp_path / "all.png", about="sample 7")
    axes = {title(axis): axis for axis in drawn[0].axes if title(axis)}
    matrix_title = "matrix D×N = 7×14: text 3 + image 6 + audio 5"
    assert list(axes) == [
        "text: 3 tokens, 1 without a position",
        "image: 6 tokens, 2×3 patches of 2×2 pixels",
        "audio: 5 tokens",
        matrix_title,
    ]
    assert headline(drawn[0]) == "One sample as 14 tokens of 7 numbers | sample 7"
    matrix = axes[matrix_title]
    shown = np.asarray(matrix.images[0].get_array())
    columns = (slice(0, 3), slice(3, 9), slice(9, 14))
    for part, own in zip(joined.split(), columns, strict=True):
        scale = np.quantile(part.matrix[0].abs(), 0.99)  # an input of small numbers is visible too
        np.testing.assert_allclose(shown[:, own], part.matrix[0] / scale, rtol=1e-5)
    assert matrix.images[0].get_clim() == (-1, 1)
    assert cut_off(drawn[0]) < 0.01
    assert size(tmp_path / "all.png")[0] > 1000


def test_the_name_of_a_narrow_input_is_above_its_columns(tmp_path, drawn):
    joined = join([tokens_at("text", [(0, 1)]), tokens_at("audio", frames(300, 0.01, 0.01))])
    token_picture(SampleView(joined, {"text": text("7")}), tmp_path / "part.png")
    matrix = next(axis for axis in drawn[0].axes if title(axis).startswith("matrix"))
    top = matrix.child_axes[0]
    assert [label.get_text() for label in top.get_xticklabels()] == ["text", "audio"]
    assert title(matrix).endswith("text 1 + audio 300")


@pytest.mark.parametrize(("count", "summary"), [(12, " + column of a long name 11 1"), (13, None)])
def test_the_columns_of_a_wide_table_have_one_label(tmp_path, drawn, count, summary):
    names = [f"column of a long name {i}" for i in range(count)]
    cells = [tokens_at(name, [(NAN, NAN)], modality="number") for name in names]
    joined = join([*cells, tokens_at("text", [(0, 4)])])
    inputs = {name: Shown("number", 2.5, None, name=name) for name in names}
    token_picture(SampleView(joined, inputs | {"text": text("four")}), tmp_path / "wide.png")
    matrix = next(axis for axis in drawn[0].axes if title(axis).startswith("matrix"))
    labels = [label.get_text() for label in matrix.child_axes[0].get_xticklabels()]
    if summary is None:
        assert labels == ["13 columns", "text"]
        assert title(matrix).endswith("7×14: 13 columns + text 1")
    else:
        assert labels == [*names, "text"]
        assert summary in title(matrix).replace("\n", " ")
    # Nothing overlaps, also below a title of several lines and above upright names.
    assert cut_off(drawn[0]) < 0.01
    assert not drawn[0].axes[0].get_window_extent().overlaps(matrix.get_tightbbox())


def test_several_inputs_of_one_modality_are_drawn_separately(tmp_path, drawn):
    joined = join(
        [
            tokens_at("title", [(0, 3)], modality="text"),
            tokens_at("price / $unit", [(0, 2), (2, 5)], modality="text"),
            tokens_at("back", grid(4, 6, 2), modality="image"),
        ]
    )
    picture = torch.zeros(1, 4, 6, dtype=torch.uint8)
    inputs = {"title": text("mug"), "price / $unit": text("abcde"), "back": image(picture)}
    token_picture(SampleView(joined, inputs), tmp_path / "named.png")
    titles = [title(axis) for axis in drawn[0].axes if title(axis)]
    assert titles[:2] == ["title: 1 token", "price / $unit: 2 tokens"]
    assert titles[2].startswith("back: 6 tokens")
    assert titles[3].endswith("title 1 + price / $unit 2 + back 6")


def test_text_has_a_box_behind_the_letters_of_each_subword(tmp_path, drawn):
    tokens = tokens_at("text", [(NAN, NAN), (0, 1), (1, 6)])
    token_picture(SampleView(tokens, {"text": text("ab cde")}), tmp_path / "text.png")
    (first, second, third), colors = boxes(drawn[0].axes[0])
    ab, cde = lay_out("ab cde", 500)
    assert (ab.text, cde.text) == ("ab", "cde")
    assert first == pytest.approx((0, ab.part(0, 1)[1]), abs=1e-4)
    # A token that continues in the next word has a box in each of them.
    assert second == pytest.approx(ab.part(1, 2), abs=1e-4)
    assert third == pytest.approx((cde.x, cde.width), abs=1e-4)
    assert not np.array_equal(colors[0], colors[1])
    np.testing.assert_array_equal(colors[1], colors[2])
    assert len(words(drawn[0].axes[0])) == 2


def test_lines_are_broken_between_words():
    text_of_words = "one two three four five six seven eight nine ten"
    laid_out = lay_out(text_of_words, 100)
    assert " ".join(word.text for word in laid_out) == text_of_words
    assert laid_out[-1].line >= 2
    assert all(word.x + word.width <= 100 for word in laid_out)
    lines = {word.line: word.text for word in reversed(laid_out)}
    assert len(lines) == laid_out[-1].line + 1


@pytest.mark.parametrize("raw", ["x" * 300, "七" * 100])
def test_only_words_without_a_break_are_broken(raw):
    laid_out = lay_out(raw, 100)
    assert "".join(word.raw for word in laid_out) == raw
    assert all(word.width <= 100 for word in laid_out)


def test_a_new_line_in_a_text_is_a_new_line():
    assert [word.line for word in lay_out("a b\nc", 100)] == [0, 0, 1]


def test_a_text_from_right_to_left_starts_at_the_right():
    first, second = lay_out("سلام שלום", 200)
    assert first.x > second.x
    assert first.x + first.width == pytest.approx(200)
    start, _ = first.part(0, 1)
    end, _ = first.part(3, 4)
    assert start > end


def test_words_are_drawn_joined_by_spaces(tmp_path, drawn):
    tokens = tokens_at("text", [(0, 3), (4, 7)])
    token_picture(SampleView(tokens, {"text": text(["big", "cat"])}), tmp_path / "words.png")
    assert len(words(drawn[0].axes[0])) == 2


def test_a_long_text_is_cut_and_the_title_says_where(tmp_path, drawn):
    raw = "yes " * 2000
    token_picture(
        SampleView(tokens_at("text", [(0, 3)]), {"text": text(raw)}), tmp_path / "long.png"
    )
    note = title(drawn[0].axes[0])
    assert note.startswith("text: 1 token, first ")
    assert note.endswith(" of 8,000 characters drawn")


@pytest.mark.parametrize("raw", ["", "七つ नौ 여덟 😀", "$x^{", "a\x00\t\u200bb\n", "سبعة שבע"])
def test_text_of_any_script_is_drawn_without_a_warning(tmp_path, caplog, raw):
    token_picture(
        SampleView(tokens_at("text", [(0, len(raw))]), {"text": text(raw)}), tmp_path / "any.png"
    )
    assert size(tmp_path / "any.png")
    assert caplog.records == []


def test_an_image_has_a_box_per_patch_in_its_own_pixels(tmp_path, drawn):
    pixels = torch.zeros(1, 6, 10, dtype=torch.uint8)
    tokens = tokens_at("image", grid(6, 10, 2))
    token_picture(SampleView(tokens, {"image": image(pixels)}), tmp_path / "image.png")
    axis = drawn[0].axes[0]
    paths = axis.collections[0].get_paths()
    assert len(paths) == 15
    corners = paths[5].get_extents()  # the first patch of the second row
    assert (corners.x0, corners.y0, corners.x1, corners.y1) == (0, 2, 2, 4)
    assert axis.images[0].get_extent() == [0, 10, 6, 0]


def test_overlapping_patches_are_counted_by_their_centers(tmp_path, drawn):
    places = [(y, x, y + 4, x + 4) for y in (0, 2) for x in (0, 2, 4)]
    tokens = tokens_at("image", places)
    picture = image(torch.zeros(1, 6, 8, dtype=torch.uint8))
    token_picture(SampleView(tokens, {"image": picture}), tmp_path / "overlap.png")
    axis = drawn[0].axes[0]
    assert "2×3 patches of 4×4 pixels, they overlap" in title(axis)
    assert axis.lines[0].get_xydata().tolist() == [[2, 2], [4, 2], [6, 2], [2, 4], [4, 4], [6, 4]]
    filled = next(patch for patch in axis.patches if isinstance(patch, Rectangle))
    assert (filled.get_width(), filled.get_height()) == (4, 4)


@pytest.mark.parametrize(
    ("places", "expected"),
    [(grid(4, 6, 2), False), ([(0, 0, 2, 3), (0, 2, 2, 5)], True), ([(0, 0, 9, 9)], False)],
)
def test_boxes_that_only_touch_do_not_overlap(places, expected):
    assert overlaps(np.array(places, dtype=float)) is expected


def test_sound_is_drawn_as_the_spectrogram_that_the_tokens_are_made_of(tmp_path, drawn):
    adapter = AudioAdapter(8, tokens="patches", sample_rate=8000).eval()
    raw = torch.randn(8000)
    tokens = adapter.tokens([(raw.numpy(), 8000)])
    shown = Shown("audio", raw, adapter.tokenizer, adapter)
    with torch.no_grad():
        token_picture(SampleView(tokens, {"audio": shown}), tmp_path / "patches.png")
    axis = drawn[0].axes[0]
    features = adapter.tokenizer.features(raw)
    assert axis.images[0].get_array().shape == (64, len(features), 3)
    assert title(axis) == "audio: 28 tokens, 7 frames × 4 bands"
    # The first four patches are at the same time, from low to high frequencies.
    extents = [path.get_extents() for path in axis.collections[0].get_paths()[:4]]
    assert [(e.y0, e.y1) for e in extents] == [(48, 64), (32, 48), (16, 32), (0, 16)]
    assert [(e.x0, e.x1) for e in extents] == [pytest.approx((0, 0.16))] * 4
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["100", "200", "500", "1k", "2k"]
    assert axis.get_xlabel() == "seconds"


def test_overlapping_bands_are_drawn_where_they_are():
    adapter = AudioAdapter(
        8, tokens="patches", sample_rate=8000, patch=PatchOptions(size=16, stride=12)
    ).eval()
    raw = torch.randn(4000)
    shown = Shown("audio", raw, adapter.tokenizer, adapter)
    with torch.no_grad():
        tokens = adapter.tokens([(raw.numpy(), 8000)])
    found = get_drawer("audio").boxes(shown, tokens.spans[0].coords[0].numpy())
    assert found[:5, [0, 2]].tolist() == [[48, 64], [36, 52], [24, 40], [12, 28], [0, 16]]


def test_a_waveform_is_drawn_where_tokens_are_samples(tmp_path, drawn):
    adapter = AudioAdapter(6, tokens="waveform", sample_rate=8000, frame_size=400).eval()
    raw = torch.sin(torch.arange(4000) / 9)
    shown = Shown("audio", raw, adapter.tokenizer, adapter)
    with torch.no_grad():
        tokens = adapter.tokens([(raw.numpy(), 8000)])
        token_picture(SampleView(tokens, {"audio": shown}), tmp_path / "wave.png")
    assert drawn[0].axes[0].get_ylabel() == "amplitude"


def test_many_frames_are_thinned_with_a_note(tmp_path, drawn):
    inputs = {"audio": audio(torch.randn(997 * 83), 8300)}
    token_picture(
        SampleView(tokens_at("audio", frames(997, 0.01, 0.01)), inputs), tmp_path / "audio.png"
    )
    axis = drawn[0].axes[0]
    assert title(axis) == "audio: 997 tokens, every 9th is outlined"
    assert len(axis.collections[0].get_paths()) == 111


def test_padding_is_not_drawn(tmp_path, drawn):
    padded = tokens_at("text", [(0, 2), (2, 5), (NAN, NAN)])
    padded = Tokens(padded.x, torch.tensor([[True, True, False]]), padded.spans)
    token_picture(SampleView(padded, {"text": text("seven")}), tmp_path / "padded.png")
    assert title(drawn[0].axes[0]) == "text: 2 tokens"
    matrix = next(axis for axis in drawn[0].axes if title(axis).startswith("matrix"))
    assert matrix.images[0].get_array().shape == (7, 2)


def test_small_panels_share_a_row_and_a_wide_one_has_its_own():
    assert pack([(4, 1), (5, 1), (2, 1), (20, 1), (3, 1)], 10) == [[0, 1], [2], [3], [4]]


# The drawers of other modalities


def test_an_unknown_modality_is_drawn_as_a_strip_of_numbered_cells(tmp_path, drawn):
    tokens = tokens_at("price", [(0,), (1,), (NAN,)], modality="gauge")
    shown = Shown("gauge", [3.5, 4.0], None)
    token_picture(SampleView(tokens, {"price": shown}), tmp_path / "strip.png")
    axis = drawn[0].axes[0]
    assert title(axis) == "price: 3 tokens, 1 without a position"
    assert [(patch.get_x(), patch.get_y()) for patch in axis.patches] == [(0, 0), (1, 0)]
    assert texts(axis) == ["1", "2"]


def test_every_drawer_says_what_a_token_is_called():
    for modality in [*DRAWERS, "unknown"]:
        drawer = get_drawer(modality)
        assert isinstance(drawer, Drawer)
        assert drawer.unit


class GaugeDrawer(Drawer):
    unit = "gauge"


def test_a_modality_gets_its_drawer_from_the_registry_or_an_entry_point(monkeypatch):
    assert type(get_drawer("gauge")) is Drawer
    point = EntryPoint("gauge", f"{__name__}:GaugeDrawer", drawers.GROUP)
    monkeypatch.setattr(drawers, "entry_points", lambda group: [point])
    drawers._installed.cache_clear()
    assert type(get_drawer("gauge")).__name__ == "GaugeDrawer"
    monkeypatch.setitem(DRAWERS, "sketch", GaugeDrawer)
    assert type(get_drawer("sketch")).__name__ == "GaugeDrawer"
    # The next test has the installed drawers again.
    drawers._installed.cache_clear()


def test_the_tokens_of_an_image_are_named_by_row_and_column():
    coords = np.array([*grid(4, 6, 2), (NAN,) * 4])
    names = get_drawer("image").token_names(image(torch.zeros(1, 4, 6)), coords)
    assert names[0] == "row 1, col 1" and names[5] == "row 2, col 3" and names[6] is None


def test_the_bytes_of_one_character_are_named_by_the_character():
    prepared = text("a é", ["a", "�", "�"])
    coords = np.array([(0, 1), (2, 3), (2, 3)], dtype=float)
    assert get_drawer("text").token_names(prepared, coords) == ["a", "é 1/2", "é 2/2"]


def test_an_image_is_drawn_from_its_file_with_more_pixels_at_the_same_place(tmp_path, drawn):
    Image.fromarray(np.zeros((60, 90, 3), np.uint8)).save(tmp_path / "photo.png")
    raw = torch.zeros(3, 6, 9, dtype=torch.uint8)
    shown = Shown("image", raw, SimpleNamespace(), None, str(tmp_path / "photo.png"))
    token_picture(
        SampleView(tokens_at("image", grid(6, 9, 3)), {"image": shown}), tmp_path / "x.png"
    )
    drawn_image = drawn[0].axes[0].images[0]
    assert drawn_image.get_array().shape == (60, 90, 3)
    assert drawn_image.get_extent() == [0, 9, 6, 0]
