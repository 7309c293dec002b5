"""A request that waits for no other: the event loop of dxn serve computes it itself."""

import json
import warnings
from asyncio import selector_events

import httpx
import pytest
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import client_of, server_of

import dxn
from dxn.core.errors import UserError
from dxn.serve.engine import Engine

# A private class, which every connection of asyncio has on this system.
TRANSPORT = vars(selector_events)["_SelectorSocketTransport"]
ROWS = [
    {
        "text": f"{['fine', 'dull'][i % 2]} film {i}",
        "size": i % 7 + 0.5,
        "color": ["red", "blue", "green"][i % 3],
        "label": ["good", "bad"][i % 2],
    }
    for i in range(40)
]
SAMPLES = [
    {"text": "a fine film", "size": 2.5, "color": "red"},
    {"size": 3, "text": "dull"},
    {"color": "green"},
    {"text": None, "size": "1.5"},
]
# Unusual or wrong: the sample is opened, which finds out the problem.
OTHERS = [
    {"color": "pink"},
    {"size": "large"},
    {"text": "\u200b"},
    {"text": "", "size": 1},
    {"text": ["a", "b"]},
    {"size": None},
    {},
]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    """A model of a text, a number and a category."""
    folder = tmp_path_factory.mktemp("lone")
    table = folder / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, ROWS)))
    options = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", "target=label"]
    train(folder / "run", str(table), *options)
    return dxn.load(folder / "run")


@pytest.fixture
def fast(monkeypatch):
    """All models count as fast, however busy this machine is."""
    monkeypatch.setattr("dxn.serve.engine.SHORT", 60.0)


@pytest.fixture
def submitted(monkeypatch):
    """The jobs of the model thread."""
    jobs = []
    submit = Engine.submit

    def record(*job):
        jobs.append(job)
        return submit(*job)

    monkeypatch.setattr(Engine, "submit", record)
    return jobs


def ask_until_idle(client, submitted):
    """Let the thread compute the first request, which measures it, and wait until it is idle."""
    count = -1
    while len(submitted) != count:
        count = len(submitted)
        assert client.post("/predict", json={"inputs": SAMPLES[0]}).status_code == 200


@pytest.mark.usefixtures("fast")
def test_a_lone_request_has_the_answer_of_python_without_the_model_thread(predictor, submitted):
    with server_of(predictor) as url, httpx.Client(base_url=url, timeout=30) as client:
        ask_until_idle(client, submitted)
        submitted.clear()
        answers = [client.post("/predict", json={"inputs": sample}) for sample in SAMPLES]
    assert [answer.json()["results"] for answer in answers] == [
        [predictor.predict(**sample)] for sample in SAMPLES
    ]
    assert not submitted


@pytest.mark.usefixtures("fast")
def test_an_unusual_or_wrong_lone_request_has_the_answer_of_any_other(predictor, submitted):
    with server_of(predictor) as url, httpx.Client(base_url=url, timeout=30) as client:
        ask_until_idle(client, submitted)
        posted = [client.post("/predict", json={"inputs": sample}) for sample in OTHERS]
        lone = [(answer.status_code, answer.json()) for answer in posted]
    with client_of(predictor) as client:  # which always uses the thread
        posted = [client.post("/predict", json={"inputs": sample}) for sample in OTHERS]
        assert lone == [(answer.status_code, answer.json()) for answer in posted]
    assert {status for status, _ in lone} == {200, 422}


@pytest.mark.usefixtures("fast")
def test_an_error_in_a_lone_request_does_not_stop_the_server(
    predictor, submitted, monkeypatch, capsys
):
    def broken(*batch):
        raise RuntimeError("broken")

    with server_of(predictor) as url, httpx.Client(base_url=url, timeout=30) as client:
        ask_until_idle(client, submitted)
        with monkeypatch.context() as patched:
            patched.setattr("dxn.serve.operations.Operations.predict", broken)
            assert client.post("/predict", json={"inputs": SAMPLES[0]}).status_code == 500
        assert client.post("/predict", json={"inputs": SAMPLES[0]}).status_code == 200
    assert "RuntimeError: broken" in capsys.readouterr().err


def test_a_single_prediction_is_that_of_several_samples(predictor):
    assert [predictor.predict(**sample) for sample in SAMPLES] == [
        predictor.predict_many([sample])[0] for sample in SAMPLES
    ]


def outcome(call):
    """The answer, and the warnings or the error of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = call()
        except UserError as error:
            answer = str(error)
    return answer, [str(each.message) for each in caught]


@pytest.mark.parametrize("sample", [*OTHERS, {"word": "a"}], ids=str)
def test_an_unusual_or_wrong_single_sample_has_the_warning_or_error_of_several(predictor, sample):
    one = outcome(lambda: predictor.predict(**sample))
    assert one == outcome(lambda: predictor.predict_many([sample])[0])


def test_the_head_of_an_answer_is_sent_together_with_its_body(predictor, monkeypatch):
    parts = []
    with server_of(predictor) as url, httpx.Client(base_url=url, timeout=30) as client:
        write = TRANSPORT.write

        def record(self, data):
            parts.append(bytes(data))
            write(self, data)

        monkeypatch.setattr(TRANSPORT, "write", record)
        client.get("/health")
    sent = [part for part in parts if part]
    assert len(sent) == 1
    assert sent[0].startswith(b"HTTP/1.1 200") and sent[0].endswith(b"}")
