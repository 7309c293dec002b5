"""Plots of a run: what is drawn, that nothing is cut off, and fonts of all scripts."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics
import torch
from helpers.drawing import cut_off, text
from matplotlib.font_manager import fontManager

from dxn.core.display import percent
from dxn.core.marks import Mark
from dxn.report import tables
from dxn.report.classes import confused_pairs, confusion_counts
from dxn.tasks import Categorical, Classify, Names, Number
from dxn.tasks.forecast.futures import Future
from dxn.tokenize import AudioAdapter, SpectrogramOptions
from dxn.viz import curves, fonts
from dxn.viz.charts import error_chart, forecast_charts, scatter_chart, task_charts
from dxn.viz.drawers import FramesDrawer, Shown
from dxn.viz.drawers.audio import AudioDrawer
from dxn.viz.drawers.series import SeriesDrawer
from dxn.viz.drawers.text import TextDrawer
from dxn.viz.figure import new_figure, save, set_title, shortened, wrapped
from dxn.viz.fonts import DEFAULT_FONT, families, legible, text_width
from dxn.viz.sample import answer_line, listed_probabilities
from dxn.viz.search import draw_search

ROWS = [
    {"step": 3, "epoch": 1, "train/loss": 2.0, "lr": 1e-3},
    {"step": 6, "epoch": 1, "validation/loss": 1.9, "validation/accuracy": 0.3},
    {"step": 9, "epoch": 2, "train/loss": 1.5, "lr": 1e-4},
    {"step": 12, "epoch": 2, "validation/loss": 1.4, "validation/accuracy": 0.6},
]


def draw_curves(rows, best=None):
    """Draw the learning curves by title."""
    axes = {}
    for chart in curves.curve_charts(rows, best=best):
        axes[chart.title] = axis = new_figure(*chart.size).subplots()
        chart.draw(axis)
    return axes


def draw(chart):
    axis = new_figure(*chart.size).subplots()
    chart.draw(axis)
    return axis


@pytest.mark.parametrize(("first", "is_from_0"), [(-3.0, False), (2.0, True)])
def test_curves_of_decibels_start_at_0_unless_one_is_lower(first, is_from_0):
    values = enumerate((first, 9.0), start=1)
    rows = [{"step": 5 * i, "epoch": i, "validation/snr": value} for i, value in values]
    (axis,) = [axis for name, axis in draw_curves(rows).items() if "decibels" in name]
    low, _ = axis.get_ylim()
    assert low == 0 if is_from_0 else low < first


def test_curves_have_epochs_on_all_axes_and_mark_the_saved_one():
    best = curves.best_epoch(ROWS, Classify())
    assert best == (2, "accuracy")
    axes = draw_curves(ROWS, best=best)
    assert list(axes) == ["loss", "validation: metrics from 0 to 1"]
    losses, metrics = axes.values()
    assert [axis.get_xlabel() for axis in (losses, metrics)] == ["epoch", "epoch"]
    assert losses.lines[0].get_xydata().tolist() == [[0.5, 2.0], [1.5, 1.5]]
    assert losses.lines[1].get_xydata().tolist() == [[1, 1.9], [2, 1.4]]
    assert metrics.lines[0].get_marker() == "."  # a line of one point is invisible
    labels = [text.get_text() for text in metrics.get_legend().get_texts()]
    assert labels == ["accuracy", "saved: epoch 2, accuracy 0.6"]
    assert all(float(tick).is_integer() for axis in axes.values() for tick in axis.get_xticks())


def test_the_loss_decides_between_epochs_with_equal_metrics():
    figures = [(0.5, 3.0), (0.5, 2.0), (0.5, 4.0), (0.4, 1.0), (0.5, 1.5)]
    rows = [
        {"epoch": i, "validation/accuracy": accuracy, "validation/loss": loss}
        for i, (accuracy, loss) in enumerate(figures, start=1)
    ]
    assert curves.best_epoch(rows, Classify()) == (5, "accuracy")


def test_the_loss_of_short_epochs_is_their_mean():
    rows = [
        {"step": 3, "epoch": 1, "train/epoch_loss": 2.0, "validation/loss": 1.9},
        {"step": 6, "epoch": 2, "train/epoch_loss": 1.5, "validation/loss": 1.4},
    ]
    (losses,) = draw_curves(rows).values()
    assert losses.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 1.5]]
    assert losses.lines[0].get_label() == "train loss"


def test_metrics_of_different_scales_have_panels_of_their_own():
    values = {"bleu": 30.0, "chrf": 55.0, "wer": 0.7, "exact_match": 0.1, "rmse": 9e5, "r2": -0.5}
    values |= {"mase": 1.3, "crps": 6.3}
    row = {"step": 5, "epoch": 1, **{f"validation/{name}": v for name, v in values.items()}}
    shown = {}
    for name, axis in draw_curves([row]).items():
        lines = axis.get_legend().get_texts() if axis.get_legend() else []
        shown[name] = [text.get_text() for text in lines]
    assert shown["validation: score, 0 to 100"] == ["bleu", "chrf"]
    assert shown["validation: error rate"] == ["wer"]
    assert shown["validation: metrics from 0 to 1"] == ["exact_match"]
    assert shown["validation: error, unit of the target"] == ["rmse", "crps"]
    assert shown["validation: error, 1: repeat the last season"] == ["mase"]
    assert shown["validation: R²"] == ["r2"]


@pytest.mark.parametrize("rows", [[], [{"step": 2, "epoch": 1, "train/loss": 2.0}]])
def test_curves_without_validation_are_over_steps_and_have_no_empty_panel(rows):
    assert [axis.get_xlabel() for axis in draw_curves(rows).values()] == ["step"]


def test_a_text_shows_its_true_marks_and_its_predicted_ones():
    words = "x" * 300 + " Ann <b> lives in Bath " + "y" * 900
    start = words.index("Ann")
    marks = [Mark("person", 0, (start, start + 7)), Mark("place", 1, (start + 17, start + 21), 0.5)]
    html = TextDrawer().marked_fragment(text(words), marks)
    true, predicted = html.split("predicted")
    assert ">Ann &lt;b&gt; <span" in true and "person</span>" in true and "Bath <" not in true
    assert ">Bath <span" in predicted and "place</span>" in predicted and "<b>" not in html
    # The end and the start of a long text are left out.
    assert true.count("…") == predicted.count("…") == 2
    assert len(html) < 1200
    only = TextDrawer().marked_fragment(text(words), marks[:1])
    assert "predicted: nothing" in only and "<mark" in only


def test_a_search_has_a_panel_per_option_with_words_in_order(drawn, tmp_path):
    options = {"lr": (0.1, 0.001, 0.01), "dim": ("16", "8", "128")}
    values = [dict(zip(options, each, strict=True)) for each in zip(*options.values(), strict=True)]
    trials = list(zip(values, (0.9, 0.8, 0.7), strict=True))
    path = tmp_path / "trials.png"
    draw_search(trials, list(options), "validation accuracy", path, logs=["lr"])
    (figure,) = drawn
    rates, dims = (axis for axis in figure.axes if axis.get_xlabel())
    assert rates.get_xscale() == "log"
    assert [tick.get_text() for tick in dims.get_xticklabels()] == ["8", "16", "128"]
    # The best one is drawn last, in a color of its own.
    assert dims.collections[0].get_offsets().tolist() == [[2, 0.7], [0, 0.8], [1, 0.9]]
    *others, best = dims.collections[0].get_facecolors().tolist()
    assert best not in others and path.exists()


def test_the_chart_of_a_forecast_names_the_series_and_its_times():
    truth = Future(
        torch.arange(3.0)[:, None],
        history=torch.arange(7.0)[:, None],
        names=["sales"],
        series="north",
        start="2026-01-08",
        stop="2026-01-10",
    )
    answer = {"quantiles": {"0.1": [0, 0, 0], "0.5": [1, 1, 1], "0.9": [2, 2, 2]}}
    (chart,) = forecast_charts([answer], [truth])
    assert chart.title == "north, sales, 2026-01-08 to 2026-01-10"
    assert "2026-01-08 to 2026-01-10" in chart.svg()
    (chart,) = forecast_charts([answer], [replace(truth, series=None, start="", names=())])
    assert chart.title == "forecast 1"


def test_confused_pairs_come_in_the_order_of_their_counts():
    counts = np.array([[9, 1, 4], [4, 9, 0], [0, 2, 9]])
    assert confused_pairs(counts) == [(0, 2), (1, 0), (2, 1), (0, 1)]


def test_a_confusion_matrix_counts_true_classes_in_rows():
    predicted = ["a", "b", "b", "a", "c"]
    truths = ["a", "a", "b", "never seen", "b"]
    counts = confusion_counts(["a", "b", "c"], predicted, truths)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]]
    # As many rows as the accuracy counts, of which the last one is always wrong.
    assert confused_pairs(counts) == [(0, 1), (1, 2), (3, 0)]
    rows = tables.matrix(counts, ["a", "b", "c"])["rows"]
    assert [row["name"] for row in rows] == ["a", "b", "c", "(not in the training split)"]
    assert rows[-1]["cells"][0]["kind"] == "wrong"


def test_a_confusion_matrix_equals_that_of_scikit_learn():
    labels = [f"label {i}" for i in range(5)]
    true, predicted = np.random.default_rng(0).choice(labels, (2, 53))
    expected = sklearn.metrics.confusion_matrix(true, predicted, labels=labels)
    assert confusion_counts(labels, predicted, true).tolist() == expected.tolist()


class Asking:
    """A task with an output space; a prediction is an index of a label, or a number."""

    target = SimpleNamespace(labels=("a", "b"))
    is_supervised = True

    def __init__(self, space):
        self.space = space
        self.answer_kind = None if space is None else space.kind

    def answer(self, prediction):
        by_label = isinstance(self.space, Categorical)
        return {"prediction": self.target.labels[prediction] if by_label else prediction}


@pytest.mark.parametrize(
    ("space", "predicted", "truths", "titles"),
    [
        (Number(None), [3.0, 5.5], [2.0, 6], ["Predicted and true values", "Errors"]),
        (Categorical(Names()), [0, 1, 1], ["a", "b", "a"], []),  # a table shows confusions
        (None, [0], ["a"], []),
        (Number(None), [], [], []),
    ],
)
def test_a_task_gets_the_charts_of_its_answers(space, predicted, truths, titles):
    charts = task_charts(Asking(space), predicted, truths)
    assert [chart.title for chart in charts] == titles


@pytest.mark.parametrize("true", [[3.0, 5.0, 11.0], [7.0], [250_000.0, 1e6]])
def test_a_scatter_plot_has_the_same_range_and_numbers_on_both_axes(true):
    predicted = [value * 1.5 for value in true]
    axis = draw(scatter_chart(predicted, true))
    axis.figure.canvas.draw()
    dots = axis.collections[0].get_offsets()
    assert dots.tolist() == [[t, t * 1.5] for t in true]
    assert axis.get_xlim() == axis.get_ylim() and axis.get_aspect() == 1
    x, y = ([t.get_text() for t in a.get_ticklabels()] for a in (axis.xaxis, axis.yaxis))
    assert x == y and not any("e" in label for label in x)
    assert axis.lines[0].get_xydata().tolist() == [[end, end] for end in axis.get_xlim()]


def test_many_points_are_drawn_as_their_density():
    values = np.random.default_rng(0).normal(size=3000)
    axis = draw(scatter_chart([*values, float("nan")], [*values, 1.0]))
    assert axis.collections[0].get_array().sum() == 3000


def test_drawing_does_not_change_the_global_state_of_matplotlib():
    scatter_chart([3.0], [5.0]).svg()
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_a_chart_is_an_element_of_a_page_in_its_colors():
    svg = scatter_chart([3.0, 4.0], [5.0, 2.0]).svg()
    assert svg.startswith('<svg role="img" aria-label="predictions over true values')
    assert "var(--chart-1)" in svg and "#2b6cb0" not in svg and "predicted = true" in svg
    assert "distribution of the errors, mean 1" in error_chart([0.5, 1.5]).svg()


# Texts


@pytest.fixture
def few_fonts(monkeypatch):
    """Only the fonts that matplotlib includes, so that a test does not depend on the machine."""
    own = [font for font in fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(fontManager, "ttflist", own)
    caches = (fonts._files, fonts._code_points, fonts.font_of, fonts.text_width)
    for function in caches:
        function.cache_clear()
    yield
    for function in caches:
        function.cache_clear()


@pytest.mark.usefixtures("few_fonts")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cup", "a cup"),
        ("सात", "[U+0938…]"),
        ("七 8", "[U+4E03] 8"),
        ("a\nb\x00", "a b "),
        ("a\u200db", "ab"),
        ("مرحبا שלום 😀", "مرحبا שלום 😀"),
        ("", ""),
    ],
)
def test_characters_without_a_font_are_shown_by_their_code_points(text, expected):
    assert legible(text) == expected


@pytest.mark.usefixtures("few_fonts")
def test_a_picture_uses_no_more_fonts_than_its_texts_need():
    assert families("a cup مرحبا") == [DEFAULT_FONT]
    other = families("\u2a0c")  # a sign of formulas
    assert other[0] == DEFAULT_FONT and len(other) <= 2


def test_the_width_of_a_text_grows_with_its_letters_and_its_size():
    assert 0 < text_width("l", 9) < text_width("ll", 9) < text_width("ww", 9)
    assert text_width("word", 18) == pytest.approx(2 * text_width("word", 9), rel=0.05)


def test_labels_are_short_and_printable():
    assert shortened(["a\nb", "x" * 25, "x" * 24]) == ["a b", "x" * 23 + "…", "x" * 24]


def test_a_title_is_wrapped_between_words():
    lines = wrapped("one two three four", 10, 70)
    assert " ".join(lines) == "one two three four" and len(lines) > 1
    assert all(text_width(line, 10) <= 70 for line in lines)


def test_a_long_title_stays_inside_the_picture(tmp_path, drawn):
    figure = new_figure(3, 2)
    figure.subplots()
    set_title(figure, "a long title " * 7, "and $a line$ below it " * 9)
    save(figure, tmp_path / "x.png")
    assert cut_off(figure) < 0.01


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        *((0.982, "98%"), (0.994, "99.4%"), (0.0312, "3.1%")),
        *((0, "0%"), (1, "100%"), (0.9998, ">99.9%"), (0.0002, "<0.1%")),
    ],
)
def test_percentages_near_both_ends_have_a_decimal(share, expected):
    assert percent(share) == expected


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"prediction": "ham", "probabilities": {"ham": 0.9, "spam": 0.1}}, "ham (90%)"),
        ({"prediction": 250_000.0}, "250,000"),
        ({"prediction": ["a", "b"], "probabilities": {"a": 0.5, "b": 0.7}}, "a (50%), b (70%)"),
        ({"prediction": [], "probabilities": {"a": 0.1}}, "none"),
        ({"prediction": "ein Mann"}, "ein Mann"),
        (
            {"prediction": ["B-x"], "entities": [{"text": "Rome", "label": "x"}]},
            "Rome (x)",
        ),
        ({"prediction": ["O"], "entities": []}, "no entities"),
        ({"prediction": "x" * 200}, "x" * 119 + "…"),
    ],
)
def test_an_answer_is_one_line(answer, line):
    assert answer_line(answer) == line


def test_the_largest_probabilities_come_first():
    shares = {f"c{i}": i / 100 for i in range(9)}
    listed = listed_probabilities({"prediction": "c8", "probabilities": shares})
    assert listed == [("c8", 0.08), ("c7", 0.07), ("c6", 0.06), ("c5", 0.05), ("c4", 0.04)]


def test_decoded_frames_have_the_colors_of_the_original():
    grid = SimpleNamespace(reader=SimpleNamespace(grid_size=(2, 3)))
    original = torch.arange(12.0).view(2, 6)
    plain = FramesDrawer().panel(Shown("frames", original, grid)).pixels
    same = FramesDrawer().panel(Shown("frames", original, grid, like=[original])).pixels
    lower = FramesDrawer().panel(Shown("frames", original / 2, grid, like=[original])).pixels
    higher = FramesDrawer().panel(Shown("frames", original * 2, grid)).pixels
    assert np.array_equal(same, plain)
    assert not np.array_equal(lower, plain)
    assert np.array_equal(higher, plain)


def test_values_that_are_compared_are_drawn_in_the_range_of_both():
    wave = torch.linspace(0, 20, 2000).sin()
    options = {"sample_rate": 8000, "spectrogram": SpectrogramOptions(n_mels=16)}
    sound = AudioAdapter(8, **options).tokenizer
    samples = AudioAdapter(8, tokens="waveform", **options).tokenizer
    cases = [
        (SeriesDrawer(), Shown("series", wave[:50, None], None), wave[:50, None] / 10),
        (AudioDrawer(), Shown("audio", wave, sound), wave / 10),
        (AudioDrawer(), Shown("audio", wave, samples), wave / 10),
    ]
    for drawer, plain, lower in cases:
        alone = drawer.panel(replace(plain, raw=lower)).pixels
        assert alone.mean() == pytest.approx(drawer.panel(plain).pixels.mean(), abs=2)
        beside = drawer.panel(replace(plain, raw=lower, like=[plain.raw])).pixels
        assert not np.array_equal(beside, alone)
        # The larger one has the range already.
        same = drawer.panel(replace(plain, like=[lower])).pixels
        assert np.array_equal(same, drawer.panel(plain).pixels)


@pytest.mark.parametrize("value", [0.0, -7.0, 1e20, math.nan])
def test_a_constant_series_is_in_the_middle(value):
    pixels = SeriesDrawer().panel(Shown("series", torch.full((9, 1), value), None)).pixels
    rows = np.flatnonzero((pixels < 100).any((1, 2)))
    if math.isnan(value):
        assert not len(rows)
    else:
        assert rows.mean() == pytest.approx(len(pixels) / 2, rel=0.1)
