"""Pictures of tokens and plots of a run: what is drawn, and that nothing is cut off."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import sklearn.metrics
import torch
from helpers.drawing import NAN, audio, frames, grid, image, pixels_of, text, tokens_at
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.explain import plots
from dxn.explain.drawers import DRAWERS, Shown, get_drawer, registry
from dxn.explain.drawers.generic import GenericDrawer
from dxn.explain.drawers.text import COLUMNS, MAX_LINES
from dxn.explain.labels import file_names
from dxn.explain.pictures import token_picture
from dxn.tokens import Tokens, join


@pytest.fixture
def drawn(monkeypatch):
    """The figures saved so far, as objects."""
    figures = []
    savefig = Figure.savefig

    def keep(figure, *args, **kwargs):
        figures.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def boxes(axis):
    return [patch for patch in axis.patches if isinstance(patch, Rectangle)]


def characters(axis):
    """Texts drawn in an axis, without its title."""
    return [text.get_text() for text in axis.texts]


def title(axis):
    return axis.get_title(loc="left")


def cut_off(figure):
    """Inches by which the drawing exceeds the edges of the picture."""
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return max(-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)


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
            tokens_at("audio", frames(5, 0.01, 0.025)),
        ]
    )
    inputs = {
        "text": text("seven"),
        "image": image(torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8)),
        "audio": audio(torch.randn(521), 8009),
    }
    token_picture(inputs, joined, tmp_path / "all.png")
    *raw, matrix = drawn[0].axes[:4]
    assert [title(a) for a in raw] == ["text: 3 tokens", "image: 6 tokens", "audio: 5 tokens"]
    assert title(matrix) == "matrix D×N = 7×14: text 3 + image 6 + audio 5"
    assert characters(matrix) == ["text", "image", "audio"]
    shown = np.asarray(matrix.images[0].get_array())
    columns = (slice(0, 3), slice(3, 9), slice(9, 14))
    for part, own in zip(joined.split(), columns, strict=True):
        scale = np.quantile(part.matrix[0].abs(), 0.99)  # an input of small numbers is visible too
        np.testing.assert_allclose(shown[:, own], part.matrix[0] / scale, rtol=1e-5)
    assert matrix.images[0].get_clim() == (-1, 1)
    assert cut_off(drawn[0]) < 0.01
    assert size(tmp_path / "all.png")[0] == 990


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
    token_picture(inputs, joined, tmp_path / "named.png")
    expected = ["title: 1 tokens", "price / $unit: 2 tokens", "back: 6 tokens"]
    assert [title(axis) for axis in drawn[0].axes[:3]] == expected
    assert [characters(axis) for axis in drawn[0].axes[:2]] == [list("mug"), list("abcde")]
    assert title(drawn[0].axes[3]).endswith("title 1 + price / $unit 2 + back 6")


def test_text_has_a_box_per_subword_at_its_characters(tmp_path, drawn):
    tokens = tokens_at("text", [(NAN, NAN), (0, 2), (2, 6)])
    token_picture({"text": text("ab cde")}, tokens, tmp_path / "text.png")
    axis = drawn[0].axes[0]
    assert [(b.get_x(), b.get_width()) for b in boxes(axis)] == [(0, 2), (2, 4)]
    assert boxes(axis)[0].get_facecolor() != boxes(axis)[1].get_facecolor()
    assert characters(axis) == list("abcde")


def test_a_token_across_a_line_break_has_two_boxes(tmp_path, drawn):
    tokens = tokens_at("text", [(COLUMNS - 2, COLUMNS + 3)])
    token_picture({"text": text("x" * (COLUMNS + 5))}, tokens, tmp_path / "x.png")
    drawn_boxes = [(b.get_x(), round(b.get_y()), b.get_width()) for b in boxes(drawn[0].axes[0])]
    assert drawn_boxes == [(COLUMNS - 2, 0, 2), (0, 1, 3)]


def test_words_are_drawn_joined_by_spaces(tmp_path, drawn):
    tokens = tokens_at("text", [(0, 3), (4, 7)])
    token_picture({"text": text(["big", "cat"])}, tokens, tmp_path / "words.png")
    assert characters(drawn[0].axes[0]) == list("bigcat")


def test_a_long_text_is_cut_and_the_title_says_where(tmp_path, drawn):
    count = COLUMNS * MAX_LINES + 11
    tokens = tokens_at("text", [(0, count)])
    token_picture({"text": text("y" * count)}, tokens, tmp_path / "long.png")
    axis = drawn[0].axes[0]
    assert title(axis) == f"text: 1 tokens, first {count - 11:,} of {count:,} characters drawn"
    assert len(characters(axis)) == count - 11


@pytest.mark.parametrize("raw", ["", "七つ नौ 여덟 😀", "$x^{", "a\x00\t\u200bb\n", "سبعة שבע"])
def test_text_of_any_script_is_drawn_without_a_warning(tmp_path, raw):
    token_picture({"text": text(raw)}, tokens_at("text", [(0, len(raw))]), tmp_path / "any.png")
    assert size(tmp_path / "any.png")


def test_an_image_has_a_box_per_patch_in_its_own_pixels(tmp_path, drawn):
    pixels = torch.zeros(1, 6, 10, dtype=torch.uint8)
    tokens = tokens_at("image", grid(6, 10, 2))
    token_picture({"image": image(pixels)}, tokens, tmp_path / "image.png")
    paths = drawn[0].axes[0].collections[0].get_paths()
    assert len(paths) == 15
    # The first patch of the second row; the centers of pixels are whole numbers.
    corners = paths[5].get_extents()
    assert (corners.x0, corners.y0, corners.x1, corners.y1) == (-0.5, 1.5, 1.5, 3.5)


def test_a_waveform_is_shaded_alternately_and_many_tokens_are_thinned(tmp_path, drawn):
    for count in (4, 997):
        inputs = {"audio": audio(torch.randn(count * 83), 8300)}
        tokens = tokens_at("audio", frames(count, 0.01, 0.025))
        token_picture(inputs, tokens, tmp_path / "audio.png")
    few, many = (figure.axes[0] for figure in drawn)
    marks = [(round(b.get_x(), 3), round(b.get_width(), 3)) for b in boxes(few)]
    assert marks == [(0.0, 0.01), (0.02, 0.01)]
    assert title(few) == "audio: 4 tokens"
    assert title(many) == "audio: 997 tokens, a mark for every 9 tokens"
    assert len(boxes(many)) <= 60
    assert few.get_xlim() == (0, 0.04)


def test_padding_is_not_drawn(tmp_path, drawn):
    padded = tokens_at("text", [(0, 2), (2, 5), (NAN, NAN)])
    padded = Tokens(padded.x, torch.tensor([[True, True, False]]), padded.spans)
    token_picture({"text": text("seven")}, padded, tmp_path / "padded.png")
    assert title(drawn[0].axes[0]) == "text: 2 tokens"
    assert drawn[0].axes[1].images[0].get_array().shape == (7, 2)


def test_an_input_without_a_raw_value_is_in_the_matrix_only(tmp_path, drawn):
    joined = join([tokens_at("text", [(0, 1)]), tokens_at("audio", frames(300, 0.01, 0.01))])
    token_picture({"text": text("7")}, joined, tmp_path / "part.png")
    assert title(drawn[0].axes[1]).endswith("text 1 + audio 300")
    assert characters(drawn[0].axes[1]) == ["audio"]  # one column has no room for a name


# The drawers of other modalities


def test_an_unknown_modality_is_drawn_as_a_strip_of_numbered_cells(tmp_path, drawn):
    tokens = tokens_at("price", [(0,), (1,), (NAN,)], modality="number")
    shown = Shown("number", [3.5, 4.0], None)
    token_picture({"price": shown}, tokens, tmp_path / "strip.png")
    axis = drawn[0].axes[0]
    assert title(axis) == "price: 3 tokens"
    assert [(b.get_x(), b.get_y()) for b in boxes(axis)] == [(0, 0), (1, 0)]
    assert characters(axis) == ["1", "2"]


def test_a_generic_strip_is_stronger_for_a_larger_share(tmp_path):
    drawer = GenericDrawer()
    figure = plots.new_figure(4, 2)
    shown = Shown("number", None, None)
    drawer.draw_shares(figure.subplots(), shown, np.zeros((2, 1)), np.array([0.2, 1.0]))
    alphas = [box.get_facecolor()[3] for box in boxes(figure.axes[0])]
    assert alphas == pytest.approx([0.18, 0.9])


def test_every_drawer_offers_what_the_protocol_asks_for():
    names = ["draw_tokens", "draw_shares", "draw_thumbnail", "draw_reading", "token_names", "page"]
    for drawer in [*(cls() for cls in DRAWERS.values()), GenericDrawer()]:
        assert all(callable(getattr(drawer, name)) for name in [*names, "height"])
        assert drawer.reading_file.endswith(".png")
        assert isinstance(drawer.reads_words, bool)


class NumberDrawer(GenericDrawer):
    reading_file = "number.png"


def test_a_modality_gets_its_drawer_from_the_registry_or_an_entry_point(monkeypatch):
    assert type(get_drawer("number")) is GenericDrawer
    point = EntryPoint("number", f"{__name__}:NumberDrawer", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    registry._installed.cache_clear()
    assert type(get_drawer("number")).__name__ == "NumberDrawer"
    registry._installed.cache_clear()
    monkeypatch.setitem(DRAWERS, "sketch", NumberDrawer)
    assert type(get_drawer("sketch")) is NumberDrawer


def test_file_names_carry_the_input_only_where_several_share_a_file():
    assert file_names(["text"], "time.png") == {"text": "time.png"}
    names = ["front", "price / unit", "price _ unit", "a.b"]
    assert file_names(names, "cells.png") == {
        "front": "front_cells.png",
        "price / unit": "price_unit_cells.png",
        "price _ unit": "price___unit_cells.png",
        "a.b": "a.b_cells.png",
    }
    assert len(set(file_names(["a b", "a_b", "a/b"], "x.png").values())) == 3


# Plots of a run


def test_curves_show_losses_by_step_and_metrics_by_epoch(tmp_path, drawn):
    rows = [
        {"step": 3, "epoch": 1, "train/loss": 2.0, "lr": 1e-3},
        {"step": 5, "epoch": 1, "validation/loss": 1.9, "validation/accuracy": 0.3},
        {"step": 7, "epoch": 2, "train/loss": 1.5, "lr": 1e-4},
    ]
    plots.curves(rows, tmp_path / "curves.png")
    losses, metrics = drawn[0].axes
    assert [line.get_label() for line in losses.lines] == ["train loss", "validation loss"]
    assert losses.lines[0].get_xydata().tolist() == [[3, 2.0], [7, 1.5]]
    assert metrics.lines[0].get_xydata().tolist() == [[1, 0.3]]
    assert metrics.lines[0].get_marker() == "."  # a line of one point is invisible
    assert cut_off(drawn[0]) < 0.01


@pytest.mark.parametrize("rows", [[], [{"step": 2, "epoch": 1, "train/loss": 2.0}]])
def test_curves_without_validation_have_no_empty_panel(tmp_path, drawn, rows):
    plots.curves(rows, tmp_path / "curves.png")
    assert len(drawn[0].axes) == 1


@pytest.mark.parametrize(
    ("labels", "ticks", "numbers"),
    [
        (["no", "yes"], 2, True),
        (["a label that is really much too long", "7"], 2, True),
        (["七", "$5{", "ثمانية"], 3, True),
        ([f"label {i}" for i in range(83)], 28, False),
    ],
)
def test_a_confusion_matrix_shows_every_label_that_has_room(
    tmp_path, drawn, labels, ticks, numbers
):
    counts = np.eye(len(labels), dtype=int) * 13
    plots.confusion(counts, labels, tmp_path / "confusion.png")
    axis = drawn[0].axes[0]
    assert len(axis.get_xticks()) == len(axis.get_yticks()) == ticks
    assert characters(axis) == (["13"] * len(labels) if numbers else [])
    assert cut_off(drawn[0]) < 0.01


def test_a_confusion_matrix_is_colored_by_share_of_the_true_class(tmp_path, drawn):
    counts = np.array([[3, 1, 0], [0, 0, 0], [5, 5, 10]])
    plots.confusion(counts, ["a", "b", "c"], tmp_path / "confusion.png")
    shares = drawn[0].axes[0].images[0].get_array()
    assert shares.tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0.25, 0.5]]


def test_a_confusion_matrix_counts_true_classes_in_rows():
    predicted = ["a", "b", "b", "a", "c"]
    truths = ["a", "a", "b", "never seen", "b"]
    counts = plots.confusion_counts(["a", "b", "c"], predicted, truths)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_a_confusion_matrix_equals_that_of_scikit_learn():
    labels = [f"label {i}" for i in range(5)]
    true, predicted = np.random.default_rng(0).choice(labels, (2, 53))
    expected = sklearn.metrics.confusion_matrix(true, predicted, labels=labels)
    assert plots.confusion_counts(labels, predicted, true).tolist() == expected.tolist()


class Asking:
    """A task that asks for a plot; a prediction is an index of a label, or a number."""

    name = "asking"
    labels = ("a", "b")

    def __init__(self, plot):
        self.plots = plot

    def answer(self, prediction):
        by_label = self.plots == "confusion"
        return {"prediction": self.labels[prediction] if by_label else prediction}


@pytest.mark.parametrize(
    ("plot", "predicted", "truths", "file"),
    [
        ("confusion", [0, 1, 1], ["a", "b", "a"], "confusion.png"),
        ("scatter", [3.0, 5.5], [2.0, 6], "predicted_vs_true.png"),
        (None, [0], ["a"], None),
        ("scatter", [], [], None),
    ],
)
def test_a_task_gets_the_plot_that_it_asks_for(tmp_path, plot, predicted, truths, file):
    path = plots.draw_task(Asking(plot), predicted, truths, tmp_path)
    assert path == (file and tmp_path / file)
    assert [p.name for p in tmp_path.iterdir()] == ([file] if file else [])


def test_a_plot_that_does_not_exist_is_an_error(tmp_path):
    message = r"^asking\.plots must be one of confusion, scatter, got 'pie'$"
    with pytest.raises(ValueError, match=message):
        plots.draw_task(Asking("pie"), [0], ["a"], tmp_path)


def test_bars_are_sorted_from_single_inputs_to_all_and_from_low_to_high(tmp_path, drawn):
    scores = {"all": 0.9, "text+image": 0.8, "image": 0.5, "text": 0.6, "all but text": 0.7}
    plots.input_bars(scores, "accuracy", tmp_path / "bars.png")
    axis = drawn[0].axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["image", "text", "all but text", "text+image", "all"]
    assert characters(axis) == ["0.500", "0.600", "0.700", "0.800", "0.900"]
    assert cut_off(drawn[0]) < 0.01


@pytest.mark.parametrize(
    "scores",
    [{"text": -0.7, "all": 0.2}, {"text": -0.7, "all": -0.1}, {"text": 0.0, "all": 0.0}],
)
def test_bars_below_zero_are_inside_the_picture(tmp_path, drawn, scores):
    plots.input_bars(scores, "r2", tmp_path / "bars.png")
    low, high = drawn[0].axes[0].get_xlim()
    assert low <= min(scores.values()) and max(scores.values()) < high
    assert cut_off(drawn[0]) < 0.01


@pytest.mark.parametrize("true", [[3.0, 5.0, 11.0], [7.0]])
def test_a_scatter_plot_has_the_predictions_over_the_true_numbers(tmp_path, drawn, true):
    predicted = [value + 1 for value in true]
    plots.scatter(predicted, true, tmp_path / "numbers.png")
    dots = drawn[0].axes[0].collections[0].get_offsets()
    assert dots.tolist() == [[t, t + 1] for t in true]
    assert cut_off(drawn[0]) < 0.01


def test_drawing_does_not_change_the_global_state_of_matplotlib(tmp_path):
    plots.scatter([3.0], [5.0], tmp_path / "numbers.png")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_pictures_are_drawn_on_white(tmp_path):
    plots.scatter([3.0], [5.0], tmp_path / "numbers.png")
    assert pixels_of(tmp_path / "numbers.png")[0, 0].tolist() == [255, 255, 255]
