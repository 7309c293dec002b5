"""dxn serve: pictures and texts that a model of head=any creates, or that a codec restores."""

import asyncio
import base64
import http.client
import io
import json
import time
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from helpers.serving import client_of, error_of, server_of
from helpers.shades import train_any, train_codec
from PIL import Image

import dxn
from dxn.models.decoding.generation import Generation
from dxn.runs.predictor.writing import Text
from dxn.serve.prepare import value_data
from dxn.tokenize.audio.reader import AudioReader
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.video.reader import VideoReader

NAMED = {"text": "a light one"}
DRAWN = {"inputs": [NAMED], "create": "image"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("creating")
    train_codec(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    train_any(folder, "any", "trainer.epochs=2")
    return dxn.load(folder / "any")


@pytest.fixture(scope="module")
def client(model):
    with client_of(model, max_samples=5) as made:
        yield made


def pixels_of(content):
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def file_of(value):
    assert value["type"] == "image/png"
    return base64.b64decode(value["generated"]["base64"])


def events_of(client, body):
    with client.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_created_pictures_are_those_of_the_model_in_python(client, model):
    options = {"count": 2, "seed": 3, "guidance": 1.5, "temperature": 0.9, "top_k": 20}
    samples = [NAMED, {"text": "a dark one"}]
    expected = model.create("image", samples, **options)
    body = {"inputs": samples, "create": "image", **options}
    results = client.post("/generate", json=body).json()["results"]
    for result, picture in zip(results, expected, strict=True):
        assert np.array_equal(pixels_of(file_of(result)), picture.movedim(0, -1).numpy())


@pytest.mark.parametrize("accept", ["image/png", "image/png;q=0.9, */*"])
def test_a_created_picture_can_be_the_answer_itself(client, accept):
    whole = client.post("/generate", json=DRAWN).json()["results"][0]
    form = {"text": (None, NAMED["text"]), "create": (None, "image")}
    answer = client.post("/generate", files=form, headers={"Accept": accept})
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == file_of(whole)


def test_an_option_of_a_form_occurs_once(client):
    files = [("text", (None, "a light one")), ("seed", (None, "1")), ("seed", (None, "2"))]
    assert "seed: must be one part" in error_of(client.post("/generate", files=files), 400)


def test_a_text_is_created_from_a_created_picture(client, model):
    picture = client.post("/generate", json=DRAWN).json()["results"][0]["generated"]
    body = {"inputs": {"image": picture}, "temperature": 0}  # the text is the only one left
    given = {"image": base64.b64decode(picture["base64"])}
    expected = model.create("text", given, temperature=0)
    assert client.post("/generate", json=body).json() == {"results": [{"generated": expected[0]}]}
    *parts, last = events_of(client, body)
    assert last == {"index": 0, "generated": expected[0]}
    assert "".join(part["delta"] for part in parts) == expected[0]


def test_a_stream_shows_unfinished_pictures(client, monkeypatch):
    monkeypatch.setattr("dxn.runs.predictor.writing.PARTS", 1)  # after each step
    whole = client.post("/generate", json=DRAWN).json()["results"][0]
    *parts, last = events_of(client, DRAWN)
    assert last == {"index": 0, **whole}
    assert 1 <= len(parts) <= 5  # of 4 tokens with 2 codes each; fewer if they are read slowly
    for part in parts:
        shape = pixels_of(base64.b64decode(part["partial"]["base64"])).shape
        assert shape == pixels_of(file_of(whole)).shape


def test_a_client_that_reads_nothing_does_not_fill_the_memory(client, monkeypatch):
    monkeypatch.setattr("dxn.runs.predictor.writing.PARTS", 1)  # after each step

    async def unread():
        texts = [Text(create="image") for _ in range(2)]
        parts = await client.service.stream(lambda: texts, [NAMED] * 2, count=2)
        while not all(text.is_complete for text in texts):
            await asyncio.sleep(0.01)
        return [part async for part in parts]

    parts = client.portal.call(unread)
    assert sorted(index for index, part in parts if isinstance(part, Text)) == [0, 1]
    assert len(parts) < 8  # and not all of 5 unfinished pictures of each


@pytest.mark.parametrize("count", [1, 3])
def test_the_model_stops_when_the_client_of_a_stream_leaves(model, count, monkeypatch):
    monkeypatch.setattr("dxn.runs.predictor.writing.PARTS", 1)
    step = Generation.step
    steps = []

    def slowly(self):
        time.sleep(0.3)
        steps.append(len(self.samples))
        step(self)

    def write_slowly(*arguments):
        time.sleep(0.1)  # so that the client leaves while the second picture is written
        return value_data(*arguments)

    monkeypatch.setattr(Generation, "step", slowly)
    monkeypatch.setattr("dxn.serve.app.value_data", write_slowly)
    with server_of(model) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        body = {**DRAWN, "count": count, "stream": True}
        connection.request("POST", "/generate", json.dumps(body))
        assert connection.getresponse().read(20).startswith(b"data: ")
        connection.close()
        # The model is free for the next request.
        connection.request("POST", "/embed", json.dumps({"inputs": [NAMED]}))
        assert connection.getresponse().status == 200
        connection.close()
    assert len(steps) < 4


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (
            {"create": "sound"},
            422,
            "sound cannot be created; the inputs that can be created are text, image",
        ),
        ({"inputs": [{"text": None}], "create": None}, 422, "set create=text or create=image"),
        ({"create": "text"}, 422, "needs another input than text in each sample"),
        ({"count": 6}, 413, "count: at most 5 samples per request, got 6"),
        ({"guidance": 2e6}, 422, "guidance: must be at most 1e+06"),
        ({"guidance": -1}, 422, "guidance: must be at least 0, got -1"),
        ({"max_new": 3}, 400, "'max_new': there is no such key"),
        ({"inputs": [{"text": ["x"], "no": 1}]}, 422, "'no': there is no such input"),
    ],
)
def test_wrong_requests_are_refused(client, change, status, message):
    assert message in error_of(client.post("/generate", json={**DRAWN, **change}), status)


def test_other_paths_say_what_to_do(client):
    assert "use POST /embed or POST /generate" in error_of(
        client.post("/predict", json={"inputs": [NAMED]}), 404
    )
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert "use POST /generate" in error_of(client.post(path, json={}), 404)


def test_the_description_lists_what_can_be_created(client):
    post = client.get("/openapi.json").json()["paths"]["/generate"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["create"]["enum"] == ["text", "image"]
    assert {"count", "guidance", "seed", "stream"} <= set(schema["properties"])
    assert client.get("/model").json()["creates"] == ["text", "image"]


def test_a_codec_answers_with_what_it_decodes(folder, model):
    picture = (folder / "3.png").read_bytes()
    codec = model.adapters["image"].codec
    codes = codec.encode([codec.reader.read(picture)])[0]
    with client_of(dxn.load(folder / "codec")) as client:
        files = [("image", ("x.png", each)) for each in (picture, (folder / "4.png").read_bytes())]
        result, other = client.post("/predict", files=files).json()["results"]
        assert "use POST /predict" in error_of(client.post("/generate", json=DRAWN), 404)
        assert client.get("/model").json()["predicts"]
    assert result["prediction"] == codes.tolist() and result["num_codes"] == 25
    assert result["restored_in"] == "image" and result["type"] == "image/png"
    decoded = pixels_of(base64.b64decode(result["restored"]["base64"]))
    # Rounded to half precision before.
    expected = codec.decode(codes).movedim(0, -1).numpy()
    assert np.abs(decoded.astype(int) - expected).max() <= 1
    assert other["prediction"] != result["prediction"]


def test_values_of_all_kinds_are_json_data():
    sound = value_data("x", torch.zeros(80), AudioReader())
    assert sound["type"] == "audio/wav"
    assert base64.b64decode(sound["x"]["base64"]).startswith(b"RIFF")
    clip = value_data("x", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), VideoReader())
    assert clip["type"] == "image/gif"
    assert value_data("x", torch.ones(2, 1), SeriesReader()) == {"x": [[1.0], [1.0]]}
