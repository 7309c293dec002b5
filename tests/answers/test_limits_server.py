"""The model thread of dxn serve computes only what somebody waits for, and draws nothing."""

import threading
import time

import httpx
import pytest
from helpers.data import write_table
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import server_of

import dxn
from dxn.serve.operations import Operations
from dxn.viz.drawers import get_drawer

SECONDS = 20  # limit of each wait


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    rows = [
        {"text": f"{['fine', 'dull'][i % 2]} film {i}", "label": "ab"[i % 2]} for i in range(40)
    ]
    table = write_table(folder / "rows.csv", rows)
    options = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", "target=label"]
    train(folder / "run", str(table), *options)
    return dxn.load(folder / "run")


def post(url, path, texts, timeout=SECONDS):
    body = {"inputs": [{"text": text} for text in texts]}
    return httpx.post(url + path, json=body, timeout=timeout)


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_prediction_does_not_wait_for_the_drawing_of_another_sample(predictor, monkeypatch):
    may_draw, is_drawing = threading.Event(), threading.Event()
    drawn = []
    text_drawer = type(get_drawer("text"))
    page = text_drawer.page

    def slow(self, shown):
        is_drawing.set()
        assert may_draw.wait(SECONDS)
        return page(self, shown)

    monkeypatch.setattr(text_drawer, "page", slow)
    with server_of(predictor) as url:
        thread = threading.Thread(
            target=lambda: drawn.append(post(url, "/attend", ["a fine film"]))
        )
        thread.start()
        assert is_drawing.wait(SECONDS)
        answer = post(url, "/predict", ["a fine film"], timeout=5)
        may_draw.set()
        thread.join()
    assert answer.json()["results"][0]["prediction"] in ("a", "b")
    (result,) = drawn[0].json()["results"]
    words = "".join(token["name"] for token in result["tokens"])
    assert "fine" in words and "film" in words
    assert result["inputs"][0]["text"] == "a fine film"
    assert sum(result["shares"]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("path", "name"), [("/predict", "_predict"), ("/embed", "_embed")])
def test_the_rest_of_a_large_request_is_not_computed_after_its_client_has_left(
    path, name, predictor, monkeypatch
):
    may_go_on = threading.Event()
    computed = []
    compute = getattr(Operations, name)

    def slow(self, prepared, **options):
        computed.append(len(prepared))
        assert may_go_on.wait(SECONDS)
        return compute(self, prepared, **options)

    monkeypatch.setattr(Operations, name, slow)
    with server_of(predictor, batch_size=2) as url:
        with pytest.raises(httpx.ReadTimeout):
            post(url, path, ["fine"] * 12, timeout=0.5)
        wait_until(lambda: f'path="{path}",status="400"' in httpx.get(f"{url}/metrics").text)
        may_go_on.set()
        assert post(url, path, ["dull"]).status_code == 200
    assert computed in ([2, 1], [2])  # a lone request is computed at once
