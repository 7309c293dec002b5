"""The attention page: what is in it, that it needs nothing else, that no text breaks it."""

import base64
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import soundfile
import torch
from helpers.drawing import audio, image, text
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dxn.viz.page as page
from dxn.core.tokens import Span, Tokens
from dxn.viz.drawers import Shown
from dxn.viz.figure import HEAT_COLORS
from dxn.viz.page import attention_page
from dxn.viz.rollout import rollout
from dxn.viz.sample import SampleView

H, DEPTH, D = 3, 2, 5
NASTY = (
    "</script><img src=x onerror=alert(1)> & \"quoted\" 'so' <!-- مرحبا שלום 😀 \u2028 "
    "{{data}} \\u003c"
)


class Reader(HTMLParser):
    """Every start tag, and the text of each script."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.scripts = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        if tag == "script":
            self.tags.append(("/script", {}))


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    data, code = reader.scripts
    return json.loads(data), code, reader.tags


def text_tokens(n, padding=0):
    coords = torch.arange(n)[:, None] + torch.tensor([0.0, 1])
    coords = torch.cat([coords, torch.full((padding, 2), torch.nan)])
    mask = torch.tensor([[True] * n + [False] * padding])
    span = Span("text", "text", 0, n + padding, coords[None])
    return Tokens(torch.zeros(1, n + padding, D), mask, (span,))


def maps_of(n, depth=DEPTH, heads=H):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(1, heads, n, n, generator=generator).mul(5).softmax(-1) for _ in range(depth)
    ]


HEADING = {"answer": "", "probabilities": [], "sample": "", "model": "", "note": ""}


def view_of(tokens, names, inputs):
    view = SampleView(tokens, inputs)
    view.__dict__["names"] = names
    return view


def write(maps, tokens, names, inputs, path, **options):
    """Write a page whose tokens all have the same share."""
    shares = np.full(len(names), 1 / len(names))
    view = view_of(tokens, names, inputs)
    return attention_page(view, shares, maps, path, **{"heading": HEADING, **options})


def unpacked(packed):
    largest = np.frombuffer(base64.b64decode(packed["largest"]), "<f4")
    steps = np.frombuffer(base64.b64decode(packed["steps"]), np.uint8)
    return steps.reshape(len(largest), -1) / 255 * largest[:, None]


def assert_close(packed, expected):
    """Half a step of 255 of each row's largest weight, and the rounding of float32."""
    error = np.abs(unpacked(packed) - expected)
    assert (error <= expected.max(1, keepdims=True) / 509).all()


def test_the_weights_can_be_read_back_block_by_block_and_head_by_head(tmp_path):
    n = 7
    maps = maps_of(n)
    notes = write(maps, text_tokens(n), ["t"] * n, {"text": text("x" * n)}, tmp_path / "a.html")
    assert notes == []
    data, _, _ = read(tmp_path / "a.html")
    assert (data["depth"], data["heads"]) == (DEPTH, H)
    assert (len(data["maps"]), len(data["tokens"])) == (DEPTH * H, n)
    for block in range(DEPTH):
        for head in range(H):
            assert_close(data["maps"][block * H + head], maps[block][0, head].numpy())
    assert_close(data["rollout"], rollout(maps)[0].numpy())


def test_padding_is_left_out(tmp_path):
    maps = maps_of(7)
    tokens = text_tokens(5, padding=2)
    write(maps, tokens, [*"abcde", "", ""], {"text": text("abcde")}, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert [token["name"] for token in data["tokens"]] == list("abcde")
    weights = unpacked(data["maps"][0])
    np.testing.assert_allclose(weights, maps[0][0, 0, :5, :5].numpy(), rtol=0, atol=0.01)
    assert weights.shape == (5, 5)


def test_no_text_breaks_the_page(tmp_path):
    n = 3
    names = [NASTY, "</SCRIPT>", "<!--<script>"]
    write(maps_of(n), text_tokens(n), names, {"text": text(NASTY)}, tmp_path / "a.html")
    plain = tmp_path / "plain.html"
    write(maps_of(n), text_tokens(n), ["a", "b", "c"], {"text": text("abc")}, plain)
    data, code, tags = read(tmp_path / "a.html")
    assert data["inputs"][0]["text"] == NASTY
    assert [token["name"] for token in data["tokens"]] == names
    _, plain_code, plain_tags = read(plain)
    assert tags == plain_tags and code == plain_code


def test_no_name_of_an_input_breaks_the_page(tmp_path):
    coords = torch.zeros(1, 2, 2)
    tokens = Tokens(
        torch.zeros(1, 2, D),
        torch.ones(1, 2, dtype=torch.bool),
        (Span(NASTY, "text", 0, 2, coords),),
    )
    write(maps_of(2), tokens, ["a", "b"], {NASTY: text("ab")}, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert data["inputs"][0]["name"] == data["tokens"][0]["input"] == NASTY


@settings(max_examples=30, deadline=None)
@given(raw=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_any_text_is_in_the_page_unchanged(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("page") / "a.html"
    write(maps_of(2), text_tokens(2), [raw, "b"], {"text": text(raw)}, path)
    content = path.read_bytes().decode("utf-8")
    pattern = r'<script type="application/json">(.*?)</script>'
    inside = re.findall(pattern, content, re.S)
    assert json.loads(inside[0])["inputs"][0]["text"] == raw


def test_the_page_needs_no_other_file(tmp_path):
    write(maps_of(2), text_tokens(2), ["a", "b"], {"text": text("ab")}, tmp_path / "a.html")
    _, code, tags = read(tmp_path / "a.html")
    assert not [tag for tag in tags if "src" in tag[1] or "href" in tag[1]]
    # The only address is the name of a namespace; nothing is fetched from it.
    assert re.findall(r"https?://[^\"]+", code) == ["http://www.w3.org/2000/svg"]
    assert "innerHTML" not in code and "fetch(" not in code
    policy = next(
        attrs["content"]
        for tag, attrs in tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")


def test_the_page_knows_kinds_of_inputs_and_no_modality():
    # The element <audio> is not a modality.
    script = page.SCRIPT.read_text(encoding="utf-8").replace('make(box, "audio"', "")
    assert not re.search(r"[\"'](text|image|audio)[\"']", script)


def test_images_and_sounds_are_in_the_page_with_the_coordinates_of_their_tokens(tmp_path):
    boxes = torch.tensor([[[0.0, 0, 600, 350], [0, 350, 600, 701], [torch.nan] * 4]])
    frames = torch.tensor([[[0.0, 0.3], [0.25, 0.5]]])
    spans = (
        Span("class", "class", 0, 1, torch.full((1, 1, 1), torch.nan)),
        Span("front", "image", 1, 4, boxes),
        Span("audio", "audio", 4, 6, frames),
    )
    mask = torch.tensor([[True, True, True, False, True, True]])
    tokens = Tokens(torch.zeros(1, 6, D), mask, spans)
    inputs = {
        "front": image(torch.full((1, 601, 701), 90, dtype=torch.uint8)),
        "audio": audio(torch.sin(torch.arange(4000) / 3), 8000),
    }
    names = ["class 1", "front 1", "front 2", "", "0.00 s", ""]
    write(maps_of(6), tokens, names, inputs, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert data["tokens"] == [
        {"name": "class 1", "input": "class", "coords": None},
        {"name": "front 1", "input": "front", "coords": [0, 0, 600, 350]},
        {"name": "front 2", "input": "front", "coords": [0, 350, 600, 701]},
        {"name": "0.00 s", "input": "audio", "coords": [0, 0, 129, 0.3]},
        {"name": "audio 2", "input": "audio", "coords": [0, 0.25, 129, 0.5]},
    ]
    picture, sound = data["inputs"]
    assert (picture["name"], picture["modality"], picture["kind"]) == ("front", "image", "boxes")
    assert (picture["width"], picture["height"]) == (701, 601)
    assert (sound["name"], sound["kind"]) == ("audio", "boxes")
    assert (sound["width"], sound["height"]) == (0.5, 129)
    assert [label for _, label in sound["x_ticks"]] == ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]
    for shown in (picture, sound):
        kind, _, content = shown["source"].partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as opened:
            assert max(opened.size) <= 640
            if shown is picture:
                assert opened.getpixel((5, 5)) == (90, 90, 90)


def test_a_sound_can_be_played(tmp_path):
    span = Span("call", "audio", 0, 1, torch.tensor([[[0.0, 0.5]]]))
    tokens = Tokens(torch.zeros(1, 1, D), torch.ones(1, 1, dtype=torch.bool), (span,))
    samples = torch.sin(torch.arange(4000) / 3)
    write(maps_of(1), tokens, ["0.00 s"], {"call": audio(samples, 8000)}, tmp_path / "a.html")
    data, _, tags = read(tmp_path / "a.html")
    kind, _, content = data["inputs"][0]["sound"].partition(",")
    assert kind == "data:audio/flac;base64"
    played, rate = soundfile.read(io.BytesIO(base64.b64decode(content)))
    assert rate == 8000
    np.testing.assert_allclose(played, samples, atol=1e-4)
    policy = [attrs["content"] for _, attrs in tags if "http-equiv" in attrs]
    assert "media-src data:" in policy[0]


def test_the_page_begins_with_the_answer_and_its_shares(tmp_path):
    tokens = text_tokens(3, padding=1)
    heading = {
        "answer": "ham (90%)",
        "probabilities": [("ham", 0.9), ("spam", 0.1)],
        "sample": "text: “abc”",
        "model": "outputs/x",
        "note": "",
    }
    shares = np.array([0.5, 0.25, 0.25, 0])
    inputs = {"text": text("abc")}
    names = [*"abc", ""]
    view = view_of(tokens, names, inputs)
    attention_page(view, shares, maps_of(4), tmp_path / "a.html", heading=heading)
    data, code, _ = read(tmp_path / "a.html")
    assert data["heading"] == {
        "answer": "ham (90%)",
        "probabilities": [["ham", 0.9], ["spam", 0.1]],
        "sample": "text: “abc”",
        "model": "outputs/x",
        "note": "",
    }
    assert data["shares"] == [0.5, 0.25, 0.25]
    assert "rollout: true, pinned: null" in code  # nothing is selected, so the shares are shown


def test_the_page_has_the_colors_of_the_pictures(tmp_path):
    write(maps_of(2), text_tokens(2), ["a", "b"], {"text": text("ab")}, tmp_path / "a.html")
    assert read(tmp_path / "a.html")[0]["colors"] == list(HEAT_COLORS)


def test_an_unknown_modality_is_listed_by_its_tokens(tmp_path):
    span = Span("price", "gauge", 0, 2, torch.zeros(1, 2, 1))
    tokens = Tokens(torch.zeros(1, 2, D), torch.ones(1, 2, dtype=torch.bool), (span,))
    inputs = {"price": Shown("gauge", 3.5, None)}
    write(maps_of(2), tokens, ["price 1", "price 2"], inputs, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    expected = {"name": "price", "modality": "gauge", "unit": "token", "kind": "list"}
    assert data["inputs"] == [expected]


@pytest.mark.parametrize(
    ("limit", "depth", "heads", "count", "note"),
    [
        (7 * 7 * DEPTH * H, DEPTH, H, DEPTH * H, []),
        (
            7 * 7 * DEPTH * H - 1,
            DEPTH,
            0,
            DEPTH,
            ["more than 293 weights; only the mean of the heads is kept"],
        ),
        (
            7 * 7 * DEPTH - 1,
            0,
            0,
            0,
            ["more than 97 weights in the means of the heads; only the rollout is kept"],
        ),
    ],
)
def test_too_many_weights_are_left_out_with_a_note(
    tmp_path, monkeypatch, limit, depth, heads, count, note
):
    monkeypatch.setattr(page, "MAX_WEIGHTS", limit)
    maps = maps_of(7)
    inputs = {"text": text("x" * 7)}
    notes = write(maps, text_tokens(7), ["t"] * 7, inputs, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert notes == data["notes"] == [f"attention.html: {line}" for line in note]
    assert (data["depth"], data["heads"], len(data["maps"])) == (depth, heads, count)
    if count == DEPTH:
        mean = maps[1][0].mean(0).numpy()
        np.testing.assert_allclose(unpacked(data["maps"][1]), mean, rtol=0, atol=0.005)
    assert unpacked(data["rollout"]).shape == (7, 7)


def test_the_page_has_what_a_written_answer_reads_by_block_and_head(tmp_path, monkeypatch):
    mask = torch.tensor([[True, False, True]])
    span = Span("text", "text", 0, 3, torch.zeros(1, 3, 2))
    tokens = Tokens(torch.zeros(1, 3, D), mask, (span,))
    weights = torch.rand(3, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    words = ["x", "</script>", "y", "[EOS]"]
    inputs = {"text": text("a b")}
    path = tmp_path / "attention.html"

    def write_again():
        return write([], tokens, ["a", "", "b"], inputs, path, written=(words, weights))

    assert write_again() == []
    data = read(path)[0]["written"]
    assert (data["names"], data["depth"], data["heads"]) == (words, 3, 2)
    assert len(data["maps"]) == 6
    for packed, head in zip(data["maps"], weights.flatten(0, 1)[..., [0, 2]].numpy(), strict=True):
        np.testing.assert_allclose(unpacked(packed), head, rtol=0, atol=1 / 509)
    monkeypatch.setattr(page, "MAX_WEIGHTS", 47)
    note = "attention.html: the answer has more than 47 weights; only their mean is kept"
    assert write_again() == [note]
    data = read(path)[0]["written"]
    assert (data["depth"], data["heads"], len(data["maps"])) == (1, 1, 1)
    mean = weights[..., [0, 2]].mean((0, 1)).numpy()
    np.testing.assert_allclose(unpacked(data["maps"][0]), mean, rtol=0, atol=1 / 509)


def opened(browser, path):
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(path.as_uri())
    assert errors == []
    return page


def test_the_heading_of_an_input_and_the_text_have_the_same_percentage(tmp_path, browser):
    coords = torch.tensor([[[0.0, 1], [1, 2]]])
    spans = (Span("title", "text", 0, 2, coords), Span("body", "text", 2, 4, coords))
    tokens = Tokens(torch.zeros(1, 4, D), torch.ones(1, 4, dtype=torch.bool), spans)
    # 49.46% becomes 49.5% and then 50% if it is rounded twice.
    shares = np.array([0.2473, 0.2473, 0.2527, 0.2527])
    view = view_of(tokens, [*"abcd"], {"title": text("ab"), "body": text("cd")})
    attention_page(view, shares, maps_of(4), tmp_path / "a.html", heading=HEADING)
    page = opened(browser, tmp_path / "a.html")
    headings = page.locator("h3").all_inner_texts()
    reads = page.locator("#reads").inner_text()
    assert {"title (text): 49% of the attention", "body (text): 51% of the attention"} < {*headings}
    assert reads.startswith("title 49%, body 51%. ")


def test_special_tokens_with_most_of_the_attention_leave_the_words_their_colors(tmp_path, browser):
    nan = math.nan
    coords = torch.tensor([[[nan, nan], [0.0, 1], [1, 2]]])
    tokens = replace(text_tokens(3), spans=(Span("text", "text", 0, 3, coords),))
    view = view_of(tokens, ["[CLS]", "a", "b"], {"text": text("ab")})
    path = tmp_path / "a.html"
    attention_page(view, np.array([0.94, 0.01, 0.05]), maps_of(3), path, heading=HEADING)
    page = opened(browser, path)
    assert "6.0% or more per token" in page.locator(".legend").nth(1).inner_text()
    colors = page.locator(".shaded").evaluate_all("all => all.map(one => one.style.background)")
    hottest = ", ".join(str(int(HEAT_COLORS[-1][i : i + 2], 16)) for i in (1, 3, 5))
    assert colors[0] == f"rgb({hottest})"
    assert len({*colors}) == 3


def test_each_head_has_a_map_of_its_own_that_a_click_enlarges(tmp_path, browser):
    n = 7
    write(maps_of(n), text_tokens(n), [*"abcdefg"], {"text": text("x" * n)}, tmp_path / "a.html")
    page = opened(browser, tmp_path / "a.html")
    small = page.locator("#heads button")
    names = [small.nth(i).get_attribute("aria-label") for i in range(small.count())]
    assert names == [
        f"block {block}, {head}"
        for block in (1, 2)
        for head in ("head 1", "head 2", "head 3", "mean of the heads")
    ]
    # The largest weights have the darkest colors.
    colors = "map => [...map.getContext('2d').getImageData(0, 0, 7, 7).data]"
    pixels = np.array(small.nth(5).locator("canvas").evaluate(colors)).reshape(7, 7, 4)
    weights = maps_of(n)[1][0, 1].numpy()
    order = np.argsort(weights, axis=None)
    assert (np.diff(pixels[..., 0].ravel()[order]) <= 1).all()
    assert page.locator("#title").inner_text() == "rollout of all blocks"
    small.nth(5).click()
    assert page.locator("#title").inner_text() == "block 2, head 2"
    assert small.nth(5).get_attribute("aria-pressed") == "true"


def written_page(path, inputs, tokens, names, words, weights):
    write([], tokens, names, inputs, path, written=(words, weights))


def test_a_translation_has_its_alignment(tmp_path, browser):
    weights = torch.full((1, 1, 3, 4), 0.1)
    for row, column in enumerate((3, 0, 2)):
        weights[..., row, column] = 0.7
    path = tmp_path / "a.html"
    written_page(
        path, {"text": text("abcd")}, text_tokens(4), [*"abcd"], ["x", "y", "[EOS]"], weights
    )
    page = opened(browser, path)
    assert page.locator("#alignment .left span").all_inner_texts() == ["x", "y", "[EOS]"]
    assert page.locator("#alignment .top span").all_inner_texts() == [*"abcd"]
    colors = "map => [...map.getContext('2d').getImageData(0, 0, 4, 3).data]"
    pixels = np.array(page.locator("#alignment canvas").evaluate(colors)).reshape(3, 4, 4)
    assert pixels[..., 0].argmin(1).tolist() == [3, 0, 2]  # dark: attended
    page.locator("#alignment .left span").nth(1).click()
    assert page.locator("#what").inner_text() == "What “y” attends to"


def test_a_caption_has_the_picture_with_the_attended_cells_for_each_word(tmp_path, browser):
    cells = [(y, x, y + 5, x + 5) for y in (0, 5) for x in (0, 5)]
    span = Span("photo", "image", 0, 4, torch.tensor([cells], dtype=torch.float32))
    tokens = Tokens(torch.zeros(1, 4, D), torch.ones(1, 4, dtype=torch.bool), (span,))
    picture = image(torch.full((3, 10, 10), 220, dtype=torch.uint8))
    words = ["a", "cup", "[EOS]"]
    weights = torch.zeros(1, 1, 3, 4)
    for row, column in enumerate((0, 3, 1)):
        weights[..., row, column] = 1
    path = tmp_path / "a.html"
    written_page(path, {"photo": picture}, tokens, ["1", "2", "3", "4"], words, weights)
    page = opened(browser, path)
    figures = page.locator("#wordPictures figure")
    assert figures.locator("figcaption").all_inner_texts() == words
    hottest = [int(HEAT_COLORS[-1][i : i + 2], 16) for i in (1, 3, 5)]
    read = """copy => [[.25, .25], [.75, .25], [.25, .75], [.75, .75]].map(([x, y]) =>
        [...copy.getContext('2d').getImageData(x * copy.width, y * copy.height, 1, 1).data])"""
    for i, cell in enumerate((0, 3, 1)):
        colors = figures.nth(i).locator("canvas").evaluate(read)
        assert [color[:3] == hottest for color in colors] == [k == cell for k in range(4)]
