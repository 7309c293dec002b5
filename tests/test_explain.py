"""Pictures of tokens and plots of a run: what is drawn, and that nothing is cut."""

import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.explain import plots
from dxn.explain.pictures import COLUMNS, MAX_LINES, token_picture
from dxn.tokens import Span, Tokens, join

NAN = float("nan")


@pytest.fixture
def drawn(monkeypatch):
    """The figures saved so far, looked at as objects."""
    figures, savefig = [], Figure.savefig

    def keep(figure, *args, **kwargs):
        figures.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def tokens(modality, places, *, dim=7):
    """One sample (1, N, dim) whose columns stand for these places."""
    x = torch.randn(1, len(places), dim)
    span = Span(modality, 0, len(places), torch.tensor([places], dtype=torch.float32))
    return Tokens(x, torch.ones(1, len(places), dtype=torch.bool), (span,))


def grid(height, width, patch):
    return [(y, x, y + patch, x + patch) for y in range(0, height, patch) for x in range(0, width, patch)]


def frames(count, hop, length):
    return [(i * hop, i * hop + length) for i in range(count)]


def boxes(axis):
    return [patch for patch in axis.patches if isinstance(patch, Rectangle)]


def characters(axis):
    """Texts drawn in an axis, its title aside."""
    return [text.get_text() for text in axis.texts]


def cut(figure):
    """Inches by which what is drawn reaches over the picture's edges."""
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return max(-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)


def size(path):
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return image.size


def test_the_three_modalities_and_their_matrix_are_drawn(tmp_path, drawn):
    joined = join(
        [
            tokens("text", [(NAN, NAN), (0, 3), (3, 5)]),
            tokens("image", grid(4, 6, 2)),
            tokens("audio", frames(5, 0.01, 0.025)),
        ]
    )
    raw = {
        "text": "seven",
        "image": torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8),
        "audio": (torch.randn(521), 8009),
    }
    token_picture(raw, joined, tmp_path / "all.png")
    text, image, audio, matrix = drawn[0].axes[:4]
    assert [a.get_title(loc="left") for a in (text, image, audio)] == [
        "text: 3 tokens",
        "image: 6 tokens",
        "audio: 5 tokens",
    ]
    assert matrix.get_title(loc="left") == "matrix D×N = 7×14: text 3 + image 6 + audio 5"
    assert characters(matrix) == ["text", "image", "audio"]
    shown = np.asarray(matrix.images[0].get_array())
    for part, columns in zip(joined.split(), (slice(0, 3), slice(3, 9), slice(9, 14)), strict=True):
        scale = np.quantile(part.matrix[0].abs(), 0.99)  # a modality of small numbers must not look empty
        np.testing.assert_allclose(shown[:, columns], part.matrix[0] / scale, rtol=1e-5)
    assert matrix.images[0].get_clim() == (-1, 1)
    assert cut(drawn[0]) < 0.01
    assert size(tmp_path / "all.png")[0] == 990


def test_text_has_a_box_a_subword_where_its_characters_stand(tmp_path, drawn):
    token_picture({"text": "ab cde"}, tokens("text", [(NAN, NAN), (0, 2), (2, 6)]), tmp_path / "text.png")
    axis = drawn[0].axes[0]
    assert [(b.get_x(), b.get_width()) for b in boxes(axis)] == [(0, 2), (2, 4)]
    assert boxes(axis)[0].get_facecolor() != boxes(axis)[1].get_facecolor()
    assert characters(axis) == list("abcde")


def test_a_token_over_the_end_of_a_line_goes_on_in_the_next(tmp_path, drawn):
    token_picture({"text": "x" * (COLUMNS + 5)}, tokens("text", [(COLUMNS - 2, COLUMNS + 3)]), tmp_path / "x.png")
    found = [(b.get_x(), round(b.get_y()), b.get_width()) for b in boxes(drawn[0].axes[0])]
    assert found == [(COLUMNS - 2, 0, 2), (0, 1, 3)]


def test_words_are_drawn_joined_by_spaces(tmp_path, drawn):
    token_picture({"text": ["big", "cat"]}, tokens("text", [(0, 3), (4, 7)]), tmp_path / "words.png")
    assert characters(drawn[0].axes[0]) == list("bigcat")


def test_a_long_text_is_drawn_as_far_as_said(tmp_path, drawn):
    count = COLUMNS * MAX_LINES + 11
    token_picture({"text": "y" * count}, tokens("text", [(0, count)]), tmp_path / "long.png")
    title = drawn[0].axes[0].get_title(loc="left")
    assert title == f"text: 1 tokens, first {count - 11:,} of {count:,} characters drawn"
    assert len(characters(drawn[0].axes[0])) == count - 11


@pytest.mark.parametrize("text", ["", "七つ नौ 여덟 😀", "$x^{", "a\x00\t\u200bb\n", "سبعة שבע"])
def test_text_of_any_script_is_drawn_without_a_warning(tmp_path, text):
    token_picture({"text": text}, tokens("text", [(0, len(text))]), tmp_path / "any.png")
    assert size(tmp_path / "any.png")


def test_a_picture_has_a_box_a_patch_in_its_own_pixels(tmp_path, drawn):
    image = torch.zeros(1, 6, 10, dtype=torch.uint8)
    token_picture({"image": image}, tokens("image", grid(6, 10, 2)), tmp_path / "image.png")
    axis = drawn[0].axes[0]
    paths = axis.collections[0].get_paths()
    assert len(paths) == 15
    corners = paths[5].get_extents()  # the second row's first patch; pixel centres are whole numbers
    assert (corners.x0, corners.y0, corners.x1, corners.y1) == (-0.5, 1.5, 1.5, 3.5)


def test_a_sound_is_shaded_by_turns_and_thinned_where_tokens_are_many(tmp_path, drawn):
    for count in (4, 997):
        raw = {"audio": (torch.randn(count * 83), 8300)}
        token_picture(raw, tokens("audio", frames(count, 0.01, 0.025)), tmp_path / "audio.png")
    few, many = (figure.axes[0] for figure in drawn)
    assert [(round(b.get_x(), 3), round(b.get_width(), 3)) for b in boxes(few)] == [(0.0, 0.01), (0.02, 0.01)]
    assert few.get_title(loc="left") == "audio: 4 tokens"
    assert many.get_title(loc="left") == "audio: 997 tokens, a mark every 9"
    assert len(boxes(many)) <= 60
    assert few.get_xlim() == (0, 0.04)


def test_padding_is_not_drawn(tmp_path, drawn):
    padded = tokens("text", [(0, 2), (2, 5), (NAN, NAN)])
    padded = Tokens(padded.x, torch.tensor([[True, True, False]]), padded.spans)
    token_picture({"text": "seven"}, padded, tmp_path / "padded.png")
    assert drawn[0].axes[0].get_title(loc="left") == "text: 2 tokens"
    assert drawn[0].axes[1].images[0].get_array().shape == (7, 2)


def test_a_modality_without_its_raw_input_is_in_the_matrix_only(tmp_path, drawn):
    joined = join([tokens("text", [(0, 1)]), tokens("audio", frames(300, 0.01, 0.01))])
    token_picture({"text": "7"}, joined, tmp_path / "part.png")
    assert drawn[0].axes[1].get_title(loc="left").endswith("text 1 + audio 300")
    assert characters(drawn[0].axes[1]) == ["audio"]  # no room for the name of a single column


def test_curves_show_losses_by_step_and_figures_by_epoch(tmp_path, drawn):
    rows = [
        {"step": 3, "epoch": 1, "train/loss": 2.0, "lr": 1e-3},
        {"step": 5, "epoch": 1, "validation/loss": 1.9, "validation/accuracy": 0.3},
        {"step": 7, "epoch": 2, "train/loss": 1.5, "lr": 1e-4},
    ]
    plots.curves(rows, tmp_path / "curves.png")
    losses, figures = drawn[0].axes
    assert [line.get_label() for line in losses.lines] == ["train loss", "validation loss"]
    assert losses.lines[0].get_xydata().tolist() == [[3, 2.0], [7, 1.5]]
    assert figures.lines[0].get_xydata().tolist() == [[1, 0.3]]
    assert figures.lines[0].get_marker() == "."  # a line of one point is nothing to see
    assert cut(drawn[0]) < 0.01


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
def test_a_confusion_shows_every_label_there_is_room_for(tmp_path, drawn, labels, ticks, numbers):
    counts = np.eye(len(labels), dtype=int) * 13
    plots.confusion(counts, labels, tmp_path / "confusion.png")
    axis = drawn[0].axes[0]
    assert len(axis.get_xticks()) == len(axis.get_yticks()) == ticks
    assert characters(axis) == (["13"] * len(labels) if numbers else [])
    assert cut(drawn[0]) < 0.01


def test_a_confusion_is_coloured_by_share_of_the_true_class(tmp_path, drawn):
    plots.confusion(np.array([[3, 1, 0], [0, 0, 0], [5, 5, 10]]), ["a", "b", "c"], tmp_path / "confusion.png")
    shares = drawn[0].axes[0].images[0].get_array()
    assert shares.tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0.25, 0.5]]


def test_bars_go_from_one_modality_to_all_and_from_low_to_high(tmp_path, drawn):
    scores = {"all": 0.9, "text+image": 0.8, "image": 0.5, "text": 0.6, "image+audio": 0.7}
    plots.modality_bars(scores, "accuracy", tmp_path / "bars.png")
    axis = drawn[0].axes[0]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["image", "text", "image+audio", "text+image", "all"]
    assert characters(axis) == ["0.500", "0.600", "0.700", "0.800", "0.900"]
    assert cut(drawn[0]) < 0.01


@pytest.mark.parametrize("scores", [{"text": -0.7, "all": 0.2}, {"text": -0.7, "all": -0.1}, {"text": 0.0, "all": 0.0}])
def test_bars_below_zero_are_inside_the_picture(tmp_path, drawn, scores):
    plots.modality_bars(scores, "r2", tmp_path / "bars.png")
    low, high = drawn[0].axes[0].get_xlim()
    assert low <= min(scores.values()) and max(scores.values()) < high
    assert cut(drawn[0]) < 0.01


@pytest.mark.parametrize("true", [[3.0, 5.0, 11.0], [7.0]])
def test_predictions_are_drawn_over_the_truth(tmp_path, drawn, true):
    predicted = [value + 1 for value in true]
    plots.predicted_vs_true(predicted, true, tmp_path / "numbers.png")
    dots = drawn[0].axes[0].collections[0].get_offsets()
    assert dots.tolist() == [[t, t + 1] for t in true]
    assert cut(drawn[0]) < 0.01


def test_drawing_leaves_nothing_in_matplotlibs_global_state(tmp_path):
    plots.predicted_vs_true([3.0], [5.0], tmp_path / "numbers.png")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
