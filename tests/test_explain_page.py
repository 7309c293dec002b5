"""The page of attention: what is in it, that it needs nothing else, that no text breaks it."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dxn.explain.page as page
from dxn.explain.attention import rollout
from dxn.explain.page import write_page
from dxn.tokens import Span, Tokens

H, DEPTH, D = 3, 2, 5
NASTY = "</script><img src=x onerror=alert(1)> & \"quoted\" 'so' <!-- مرحبا שלום 😀 \u2028 {{data}} \\u003c"


class Reader(HTMLParser):
    """Every start tag, and the text of each script."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts = [], []

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
    places = torch.arange(n)[:, None] + torch.tensor([0.0, 1])
    places = torch.cat([places, torch.full((padding, 2), torch.nan)])
    mask = torch.tensor([[True] * n + [False] * padding])
    return Tokens(torch.zeros(1, n + padding, D), mask, (Span("text", 0, n + padding, places[None]),))


def maps_of(n, depth=DEPTH, heads=H):
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(1, heads, n, n, generator=draw).mul(5).softmax(-1) for _ in range(depth)]


def assert_close(packed, expected):
    """Half a step of 255, of each row's largest, and what float32 adds."""
    assert (np.abs(unpacked(packed) - expected) <= expected.max(1, keepdims=True) / 509).all()


def unpacked(packed):
    largest = np.frombuffer(base64.b64decode(packed["largest"]), "<f4")
    steps = np.frombuffer(base64.b64decode(packed["steps"]), np.uint8)
    return steps.reshape(len(largest), -1) / 255 * largest[:, None]


def test_the_weights_come_back_block_by_block_and_head_by_head(tmp_path):
    n, maps = 7, maps_of(7)
    assert write_page(maps, text_tokens(n), ["t"] * n, {"text": "x" * n}, tmp_path / "a.html") == []
    data, _, _ = read(tmp_path / "a.html")
    assert (data["depth"], data["heads"], len(data["maps"]), len(data["tokens"])) == (DEPTH, H, DEPTH * H, n)
    for block in range(DEPTH):
        for head in range(H):
            assert_close(data["maps"][block * H + head], maps[block][0, head].numpy())
    assert_close(data["rollout"], rollout(maps)[0].numpy())


def test_padding_is_left_out(tmp_path):
    maps = maps_of(7)
    write_page(maps, text_tokens(5, padding=2), [*"abcde", "", ""], {"text": "abcde"}, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert [token["name"] for token in data["tokens"]] == list("abcde")
    found = unpacked(data["maps"][0])
    np.testing.assert_allclose(found, maps[0][0, 0, :5, :5].numpy(), rtol=0, atol=0.01)
    assert found.shape == (5, 5)


def test_no_text_breaks_the_page(tmp_path):
    n = 3
    write_page(maps_of(n), text_tokens(n), [NASTY, "</SCRIPT>", "<!--<script>"], {"text": NASTY}, tmp_path / "a.html")
    write_page(maps_of(n), text_tokens(n), ["a", "b", "c"], {"text": "abc"}, tmp_path / "plain.html")
    data, code, tags = read(tmp_path / "a.html")
    assert data["text"] == NASTY
    assert [token["name"] for token in data["tokens"]] == [NASTY, "</SCRIPT>", "<!--<script>"]
    _, plain_code, plain_tags = read(tmp_path / "plain.html")
    assert tags == plain_tags and code == plain_code


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_any_text_comes_back_as_it_was(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("page") / "a.html"
    write_page(maps_of(2), text_tokens(2), [text, "b"], {"text": text}, path)
    content = path.read_bytes().decode("utf-8")
    inside = re.findall(r'<script type="application/json" id="data">(.*?)</script>', content, re.S)
    assert json.loads(inside[0])["text"] == text
    assert content.count("<") == page.TEMPLATE.read_text(encoding="utf-8").count("<")


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    write_page(maps_of(2), text_tokens(2), ["a", "b"], {"text": "ab"}, tmp_path / "a.html")
    _, code, tags = read(tmp_path / "a.html")
    assert not [tag for tag in tags if "src" in tag[1] or "href" in tag[1]]
    assert re.findall(r"https?://[^\"]+", code) == ["http://www.w3.org/2000/svg"]  # a name, nothing is fetched
    assert "innerHTML" not in code and "fetch(" not in code
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_pictures_and_sounds_are_in_the_page_with_their_places(tmp_path):
    boxes = torch.tensor([[[0.0, 0, 600, 350], [0, 350, 600, 701], [torch.nan] * 4]])
    frames = torch.tensor([[[0.0, 0.3], [0.25, 0.5]]])
    nowhere = torch.full((1, 1, 1), torch.nan)
    spans = Span("class", 0, 1, nowhere), Span("image", 1, 4, boxes), Span("audio", 4, 6, frames)
    mask = torch.tensor([[True, True, True, False, True, True]])
    tokens = Tokens(torch.zeros(1, 6, D), mask, spans)
    raw = {
        "image": torch.full((1, 601, 701), 90, dtype=torch.uint8),
        "audio": (torch.sin(torch.arange(4000) / 3), 8000),
    }
    write_page(maps_of(6), tokens, ["class 1", "image 1", "image 2", "", "0.00 s", ""], raw, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert data["tokens"] == [
        {"name": "class 1", "modality": "class", "place": None},
        {"name": "image 1", "modality": "image", "place": [0, 0, 600, 350]},
        {"name": "image 2", "modality": "image", "place": [0, 350, 600, 701]},
        {"name": "0.00 s", "modality": "audio", "place": [0, 0.3]},
        {"name": "audio 2", "modality": "audio", "place": [0.25, 0.5]},
    ]
    assert (data["image"]["width"], data["image"]["height"]) == (701, 601)
    assert (data["audio"]["seconds"], data["audio"]["kilohertz"]) == (0.5, 4.0)
    for name, largest in (("image", 512), ("audio", 900)):
        kind, _, content = data[name]["source"].partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
            assert max(picture.size) <= largest
            if name == "image":
                assert picture.getpixel((5, 5)) == (90, 90, 90)


@pytest.mark.parametrize(
    ("room", "depth", "heads", "count", "note"),
    [
        (7 * 7 * DEPTH * H, DEPTH, H, DEPTH * H, []),
        (7 * 7 * DEPTH * H - 1, DEPTH, 0, DEPTH, ["beyond 293 weights, so only the mean of each block's heads"]),
        (7 * 7 * DEPTH - 1, 0, 0, 0, ["the means alone are beyond 97 weights, so only the rollout"]),
    ],
)
def test_too_many_weights_are_left_out_and_told(tmp_path, monkeypatch, room, depth, heads, count, note):
    monkeypatch.setattr(page, "MAX_WEIGHTS", room)
    maps = maps_of(7)
    notes = write_page(maps, text_tokens(7), ["t"] * 7, {"text": "x" * 7}, tmp_path / "a.html")
    data, _, _ = read(tmp_path / "a.html")
    assert notes == data["notes"] == [f"attention.html: {line}" for line in note]
    assert (data["depth"], data["heads"], len(data["maps"])) == (depth, heads, count)
    if count == DEPTH:
        np.testing.assert_allclose(unpacked(data["maps"][1]), maps[1][0].mean(0).numpy(), rtol=0, atol=0.005)
    assert unpacked(data["rollout"]).shape == (7, 7)
