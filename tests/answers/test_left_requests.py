"""dxn serve stops to compute an answer when its client has left."""

import threading
import time

import httpx
import pytest
from helpers.runs import PLAIN, SMALL, TEXT, train
from helpers.serving import server_of

import dxn
from dxn.runs.predictor.writing import Writer, pass_on
from dxn.serve.operations import Operations

SECONDS = 20  # limit of each wait
WORDS = ["apple", "pear", "plum", "cherry"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writing")
    rows = [f"{WORDS[i % 4]} number {i},{WORDS[i // 4 % 4]} no {i}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["text,written", *rows]))
    options = [*SMALL, *PLAIN, *TEXT, "head=generate", "trainer.epochs=1", "report=false"]
    train(folder / "run", f"data.path={folder}/pairs.csv", "target=written", *options)
    return dxn.load(folder / "run")


def wait_for_refusal(url, path):
    end = time.monotonic() + SECONDS
    while f'path="{path}",status="400"' not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_texts_are_not_generated_after_the_client_has_left(translator, monkeypatch):
    may_go_on = threading.Event()
    sizes, num_tokens = [], []
    write = Writer._for_samples

    def counted(self, texts):
        sizes.append(len(texts))
        return write(self, texts)

    def slow(texts, decode, new):
        num_tokens.append(len(texts))
        assert may_go_on.wait(SECONDS)
        pass_on(texts, decode, new)

    monkeypatch.setattr(Writer, "_for_samples", counted)
    monkeypatch.setattr("dxn.runs.predictor.writing.pass_on", slow)
    body = {"inputs": [{"text": "apple number 1"}] * 6, "max_new": 50, "temperature": 0}
    with server_of(translator, batch_size=2) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/generate", json=body, timeout=0.5)
        wait_for_refusal(url, "/generate")
        may_go_on.set()
        body["inputs"] = body["inputs"][:1]
        assert httpx.post(f"{url}/generate", json=body, timeout=SECONDS).status_code == 200
    # The first batch ends at its first token, and the others do not begin.
    assert sizes == [2, 1]
    assert num_tokens[:2] == [2, 1]


def test_the_attention_of_a_client_that_has_left_is_not_drawn(translator, monkeypatch):
    may_go_on = threading.Event()
    compute = Operations.__call__
    drawn = []

    def slow(self, kind, jobs):
        assert may_go_on.wait(SECONDS)
        return compute(self, kind, jobs)

    monkeypatch.setattr(Operations, "__call__", slow)
    monkeypatch.setattr("dxn.serve.service.attention_data", lambda *_: drawn.append(1) or {})
    body = {"inputs": [{"text": "apple number 1"}]}
    with server_of(translator) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/attend", json=body, timeout=0.5)
        wait_for_refusal(url, "/attend")
        may_go_on.set()
        assert httpx.post(f"{url}/attend", json=body, timeout=SECONDS).status_code == 200
    assert drawn == [1]
