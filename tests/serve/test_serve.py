"""dxn serve: the HTTP interface, its limits, and requests that are wrong or hostile."""

import asyncio
import base64
import http.client
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import soundfile
import torch
from helpers.runs import PLAIN, SMALL, refused, train
from helpers.serving import client_of, error_of, server_of
from PIL import Image
from starlette.requests import Request

import dxn
from dxn.cli import main
from dxn.commands.options import check_paths
from dxn.commands.serve import Serve
from dxn.core.errors import UserError
from dxn.data.cell_paths import confined
from dxn.serve import server
from dxn.serve.answers import Refusal
from dxn.serve.app import make_app
from dxn.serve.body import _parse_form
from dxn.serve.command import _file_of, _text_of, bind, examples_of, read_examples
from dxn.serve.options import KEY_VARIABLE, ServeOptions, read_key
from dxn.tokenize import SeriesAdapter, VideoAdapter, VideoSampling
from dxn.viz.drawers import Shown, get_drawer

KEY = "a-key-of-this-test"
TEXT = {"text": "seven"}


@pytest.fixture(scope="module")
def run(trained_run):
    """A run with a text, a picture and a sound per row."""
    return trained_run("digits")


@pytest.fixture(scope="module")
def predictor(run):
    return dxn.load(run)


@pytest.fixture(scope="module")
def client(predictor):
    with client_of(predictor, max_body=0.5, max_samples=5, timeout=20) as made:
        yield made


def picture(side=8):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side), 99, np.uint8)).save(file, "PNG")
    return file.getvalue()


def sound():
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(1600) / 9), 8000, format="WAV")
    return file.getvalue()


def encoded(content):
    return {"base64": base64.b64encode(content).decode()}


def probabilities(results):
    return torch.tensor([list(each["probabilities"].values()) for each in results])


# Answers


def test_a_prediction_is_that_of_the_model_in_python(client, predictor):
    samples = [TEXT, {"text": "acht", "image": encoded(picture())}, {"audio": encoded(sound())}]
    answer = client.post("/predict", json={"inputs": samples})
    expected = predictor.predict_many(
        [TEXT, {"text": "acht", "image": picture()}, {"audio": sound()}]
    )
    results = answer.json()["results"]
    assert [each["prediction"] for each in results] == [each["prediction"] for each in expected]
    torch.testing.assert_close(
        probabilities(results), probabilities(expected), atol=1e-5, rtol=1e-5
    )


def test_a_form_with_files_gives_the_same_answer_as_json(client):
    values = {"text": "acht", "image": encoded(picture()), "audio": encoded(sound())}
    as_json = client.post("/predict", json={"inputs": values})
    files = {"image": ("x.png", picture()), "audio": ("x.wav", sound())}
    as_form = client.post("/predict", data={"text": "acht"}, files=files)
    torch.testing.assert_close(
        probabilities(as_form.json()["results"]), probabilities(as_json.json()["results"])
    )


def test_repeated_parts_of_a_form_are_several_samples(client):
    files = [("image", ("a.png", picture(8))), ("image", ("b.png", picture(9)))]
    assert len(client.post("/predict", files=files).json()["results"]) == 2


def test_an_embedding_is_that_of_the_model_in_python(client, predictor):
    answer = client.post("/embed", json={"inputs": [TEXT]})
    vector = torch.tensor(answer.json()["results"][0])
    torch.testing.assert_close(vector, predictor.embed(**TEXT).cpu(), atol=1e-5, rtol=1e-5)


def test_the_shares_of_the_attention_add_up_to_one(client):
    values = {"text": "acht", "image": encoded(picture())}
    (result,) = client.post("/attend", json={"inputs": values}).json()["results"]
    assert sum(result["shares"]) == pytest.approx(1, abs=1e-2)
    assert [each["name"] for each in result["inputs"]] == ["text", "image"]
    assert len(result["tokens"]) == len(result["shares"])


def test_the_description_names_the_inputs_and_what_the_model_does(client):
    facts = client.get("/model").json()
    assert [each["name"] for each in facts["inputs"]] == ["text", "image", "audio"]
    accepted = [each["accept"] for each in facts["inputs"]]
    assert accepted == ["", "image/*", "audio/*"]
    assert facts["predicts"]
    assert not facts["generates"]
    assert client.get("/health").json()["status"] == "ok"
    assert client.head("/health").status_code == client.head("/").status_code == 200


def test_the_openapi_description_lists_every_path_and_every_status(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/embed", "/attend", "/model", "/health", "/metrics"} | {
        "/v1/embeddings",
        "/v1/models",
    }
    post = paths["/predict"]["post"]
    assert set(post["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    items = post["requestBody"]["content"]["application/json"]["schema"]["properties"]["inputs"]
    assert set(items["items"]["properties"]) == {"text", "image", "audio"}
    assert {"200", "413", "422", "503", "504"} <= set(post["responses"])


def test_the_metrics_count_requests_by_path_and_status(predictor):
    with client_of(predictor) as client:
        client.post("/predict", json={"inputs": TEXT})
        client.post("/predict", content=b"{")
        client.get("/no-such-page")
        page = client.get("/metrics").text
    assert 'dxn_requests_total{path="/predict",status="200"} 1.0' in page
    assert 'dxn_requests_total{path="/predict",status="400"} 1.0' in page
    assert 'dxn_requests_total{path="other",status="404"} 1.0' in page
    assert "dxn_batch_samples_count 1.0" in page


def test_requests_of_several_clients_are_computed_together(predictor):
    with client_of(predictor) as client:
        sizes = []
        client.service.engine.on_batch = lambda size, seconds: sizes.append(size)
        started, opened = hold(client.service.engine)
        threads = [
            threading.Thread(target=client.post, args=("/predict",), kwargs={"json": {"inputs": t}})
            for t in [TEXT] * 6
        ]
        threads[0].start()
        assert started.wait(10)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: client.service.engine.waiting == 5)
        opened.set()
        for thread in threads:
            thread.join(10)
    assert sizes == [1, 5]


def hold(engine):
    """Let the model thread wait for an event before it computes."""
    started, opened = threading.Event(), threading.Event()
    compute = engine.compute

    def wait_and_compute(kind, jobs):
        started.set()
        assert opened.wait(20)
        return compute(kind, jobs)

    engine.compute = wait_and_compute
    return started, opened


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_long_request_gets_the_same_answer_as_a_short_one(predictor):
    """Long bodies are parsed and prepared in other threads."""
    with client_of(predictor) as client:
        padded = json.dumps({"inputs": TEXT}) + " " * 300_000
        long = client.post("/predict", content=padded).json()["results"]
        many = client.post("/predict", json={"inputs": [{"text": "seven" * 999}]})
        short = client.post("/predict", json={"inputs": TEXT}).json()["results"]
    assert long == short
    assert many.status_code == 200


# Wrong requests

WRONG = [
    (b"{", 400, "not valid JSON"),
    (b"[" * 100_000, 400, "not valid JSON"),
    (b'{"inputs": [{"text": ' + b"9" * 5000 + b"}]}", 400, "not valid JSON"),
    (b"[1]", 400, 'must be an object with the key "inputs"'),
    (b'{"inputs": []}', 400, "must be a list of at least one object"),
    (b'{"inputs": ["seven"]}', 400, "must be a list of at least one object"),
    (b'{"inputs": {}, "stream": true}', 400, "'stream': there is no such key"),
    (b'{"inputs": [{}]}', 422, "no input"),
    (b'{"inputs": [{"word": "a"}]}', 422, "the inputs are text, image, audio"),
    (b'{"inputs": [{"text": {"path": "a"}}]}', 422, "with the content of a file"),
    (b'{"inputs": [{"text": ["a", "b"]}]}', 422, "must be one text"),
    (b'{"inputs": [{"text": "\\ud800"}]}', 422, "surrogate"),
    (b'{"inputs": [{"\\ud800": 1}]}', 422, "there is no such input"),
    (b'{"inputs": [{"image": {"base64": "?"}}]}', 422, "valid base64"),
    (b'{"inputs": [{"image": {"base64": "aGVsbG8="}}]}', 422, "image: "),
    (b'{"inputs": [{"image": 7}]}', 422, "image: "),
    (b'{"inputs": [{"image": ["/etc/passwd"]}]}', 422, "a list must contain numbers"),
    (b'{"inputs": [{"image": [[[[[[1]]]]]]}]}', 422, "nested"),
    (b'{"inputs": [{"text": "a"}, {"image": {"base64": ""}}]}', 422, "sample 2: image: empty"),
]


@pytest.mark.parametrize(("body", "status", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_request_is_refused_with_a_reason(client, body, status, message, capsys):
    assert message in error_of(client.post("/predict", content=body), status)
    assert capsys.readouterr().err == ""


SECRETS = [
    "{path}",
    "file://{path}",
    "http://127.0.0.1:{port}/secret.png",
    "https://example.org/x.png",
    "../../{path}",
]


@pytest.mark.parametrize("value", SECRETS)
@pytest.mark.parametrize("name", ["image", "audio"])
def test_a_path_or_url_in_a_request_is_never_opened(client, tmp_path, name, value, monkeypatch):
    path = tmp_path / "secret.png"
    path.write_bytes(picture())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        text = value.format(path=path, port=listener.getsockname()[1])
        monkeypatch.setattr("dxn.tokenize.media.Path.is_file", lambda path: pytest.fail(str(path)))
        bodies = [{"json": {"inputs": {name: text}}}, {"files": {name: (None, text)}}]
        for body in bodies:
            message = error_of(client.post("/predict", **body), 422)
            assert "never opened" in message
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='/etc/passwd'/></svg>",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 99,
        b"RIFF\xff\xff\xff\xffWAVEfmt " + b"\xff" * 99,
        b"",
    ],
)
@pytest.mark.parametrize("name", ["image", "audio"])
def test_a_broken_or_hostile_file_is_refused(client, name, content):
    message = error_of(client.post("/predict", files={name: ("/etc/passwd", content)}), 422)
    assert message.startswith(f"{name}: ")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(client):
    # A white picture: the size in its header is far above the limit, but the file is small.
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    message = error_of(client.post("/predict", files={"image": ("x.png", file.getvalue())}), 422)
    assert "pixels" in message


def test_a_text_file_is_a_text(client):
    answer = client.post("/predict", files={"text": ("x.txt", "größer".encode())})
    assert answer.status_code == 200
    assert "UTF-8" in error_of(client.post("/predict", files={"text": ("x", b"\xff\xfe\x00")}), 422)


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(client):
    body = b'{"inputs": "' + b"a" * 600_000
    assert "max_body" in error_of(client.post("/predict", content=body), 413)
    chunks = (body[i : i + 9999] for i in range(0, len(body), 9999))
    assert "max_body" in error_of(client.post("/predict", content=chunks), 413)
    assert client.post("/predict", json={"inputs": TEXT}).status_code == 200


def test_too_many_samples_and_uneven_forms_are_refused(client):
    assert "at most 5" in error_of(client.post("/predict", json={"inputs": [TEXT] * 6}), 413)
    files = [("image", ("a", picture())), ("image", ("b", picture())), ("text", (None, "a"))]
    assert "same number of parts" in error_of(client.post("/predict", files=files), 400)
    many = [("text", (None, "a"))] * 99
    assert "form" in error_of(client.post("/predict", files=many), 400)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "image/png"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "multipart/form-data"}, 400),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "[::1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "https://127.0.0.1", "host": "127.0.0.1:8000"}, 403),
        ({"transfer-encoding": "chunked", "content-length": "3"}, 400),
    ],
)
def test_a_request_with_a_wrong_header_is_refused(client, headers, status):
    body = json.dumps({"inputs": TEXT})
    error_of(client.post("/predict", content=body, headers=headers), status)


def test_a_request_of_the_own_page_is_answered(client):
    for host, origin in (
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
    ):
        headers = {"host": host, "origin": origin}
        assert client.post("/predict", json={"inputs": TEXT}, headers=headers).status_code == 200


def test_other_names_of_the_server_can_be_allowed(predictor):
    with client_of(predictor, allowed_hosts=("dxn.example",)) as client:
        headers = {"host": "dxn.example", "origin": "https://dxn.example"}
        assert client.get("/model", headers=headers).status_code == 200
        headers["origin"] = "https://dxn.example:8443"
        assert client.get("/model", headers=headers).status_code == 200
        error_of(client.get("/model", headers={"host": "other.example"}), 421)
    with client_of(predictor, allowed_hosts=("dxn.example:8443",)) as client:
        for port, status in ((444, 403), (8443, 200)):
            headers["origin"] = f"https://dxn.example:{port}"
            assert client.get("/model", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("GET", "/nothing", 404), ("DELETE", "/generate", 405)],
)
def test_another_path_or_method_is_refused_in_the_same_format(client, method, path, status):
    assert "openapi.json" in error_of(client.request(method, path), status)


def test_a_request_that_the_model_cannot_answer_names_another_one(client):
    message = error_of(client.post("/generate", json={"inputs": [{"text": "a"}]}), 404)
    assert "whose task is classify; use POST /predict" in message


@pytest.mark.parametrize("path", ["../app.py", "%2e%2e/app.py", "/etc/passwd", "..%2fapp.py"])
def test_only_files_of_the_page_are_served(client, path):
    assert client.get(f"/static/{path}").status_code == 404


def test_an_unexpected_error_has_no_details_for_the_client(predictor, monkeypatch, capsys):
    with client_of(predictor) as client:

        def fail(kind, jobs):
            raise RuntimeError("secret details")

        monkeypatch.setattr(client.service.engine, "compute", fail)
        message = error_of(client.post("/predict", json={"inputs": TEXT}), 500)
        assert "secret" not in message
        assert "RuntimeError: secret details" in capsys.readouterr().err


# Limits


def test_a_request_that_finds_the_queue_full_is_told_to_come_back(predictor):
    with client_of(predictor, max_queue=3) as client:
        started, opened = hold(client.service.engine)
        answers = []
        body = {"json": {"inputs": [TEXT] * 3}}
        thread = threading.Thread(target=lambda: answers.append(client.post("/predict", **body)))
        thread.start()
        assert started.wait(10)
        full = client.post("/predict", json={"inputs": TEXT})
        assert "max_queue" in error_of(full, 503)
        assert full.headers["retry-after"] == "1"
        opened.set()
        thread.join(10)
        assert answers[0].status_code == 200
        assert client.post("/predict", json={"inputs": TEXT}).status_code == 200
        assert client.service.admitted == 0


def test_an_answer_that_takes_too_long_is_given_up_and_the_server_goes_on(predictor):
    with client_of(predictor, timeout=0.2) as client:
        _, opened = hold(client.service.engine)
        assert "0.2 seconds" in error_of(client.post("/predict", json={"inputs": TEXT}), 504)
        opened.set()
        wait_until(lambda: client.service.engine.busy_since is None)
        assert client.post("/predict", json={"inputs": TEXT}).status_code == 200


def test_a_model_that_is_stuck_makes_the_server_unhealthy(predictor):
    with client_of(predictor, timeout=0.05) as client:
        _, opened = hold(client.service.engine)
        client.post("/predict", json={"inputs": TEXT})
        wait_until(lambda: client.get("/health").status_code == 503)
        opened.set()
        wait_until(lambda: client.get("/health").status_code == 200)


def test_if_the_model_thread_is_killed_the_next_request_is_answered(predictor):
    with client_of(predictor) as client:
        compute = client.service.engine.compute

        def killed(kind, jobs):
            client.service.engine.compute = compute
            raise SystemExit

        client.service.engine.compute = killed
        assert "ended" in error_of(client.post("/predict", json={"inputs": TEXT}), 500)
        assert client.post("/predict", json={"inputs": TEXT}).status_code == 200
        assert "dxn_model_restarts 1.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    "head",
    [
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b"POST /predict HTTP/1.1\r\nHost: 127.0",
        b"",
    ],
)
def test_a_slow_client_is_disconnected(predictor, head, monkeypatch):
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.3)
    with server_of(predictor, timeout=0.3) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(head)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert not answer or b"408" in answer.splitlines()[0]
        with urllib.request.urlopen(f"{url}/health", timeout=20) as healthy:
            assert healthy.status == 200


def test_a_signal_stops_the_server_after_the_running_requests(predictor):
    options = ServeOptions(port=0)
    app = make_app(predictor, options)
    started, opened = hold(app.state.service.engine)
    answers = []

    def ask(url):
        body = json.dumps({"inputs": TEXT}).encode()
        with urllib.request.urlopen(f"{url}/predict", body, timeout=20) as answer:
            answers.append((answer.status, answer.headers["connection"]))

    def ready(url):
        threading.Thread(target=ask, args=(url,)).start()

    def stop():
        assert started.wait(20)
        signal.raise_signal(signal.SIGTERM)
        opened.set()

    thread = threading.Thread(target=stop)
    thread.start()
    server.run(app, options, bind("127.0.0.1", 0), ready=ready)
    thread.join(20)
    wait_until(lambda: answers == [(200, "close")])


def test_a_request_that_takes_longer_than_the_stop_is_told_to_come_back(predictor, capfd):
    options = ServeOptions(port=0, timeout=1.9)  # the server waits 1 second for its requests
    app = make_app(predictor, options)
    started, opened = hold(app.state.service.engine)
    answers = []

    def ask(url):
        try:
            urllib.request.urlopen(f"{url}/predict", json.dumps({"inputs": TEXT}).encode(), 20)
        except urllib.error.HTTPError as error:
            message = json.load(error)["error"]["message"]
            answers.append((error.code, message, app.state.service.engine.busy_since is not None))
        opened.set()

    def ready(url):
        threading.Thread(target=ask, args=(url,)).start()
        threading.Thread(target=lambda: started.wait(20) and signal.raise_signal(15)).start()

    server.run(app, options, bind("127.0.0.1", 0), ready=ready)
    wait_until(lambda: answers)
    # The answer does not wait for the model.
    assert answers == [(503, "the server is being stopped; send the request again", True)]
    assert "Traceback" not in capfd.readouterr().err


def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered(predictor, monkeypatch):
    monkeypatch.setattr(server, "DRAIN_SECONDS", 1.0)
    options = ServeOptions(port=0)
    listener = bind("127.0.0.1", 0)
    address = listener.getsockname()
    answers = []

    def is_refused():
        try:
            socket.create_connection(address, timeout=20).close()
        except ConnectionRefusedError:
            return True
        return False

    def ask():
        connection = http.client.HTTPConnection(*address, timeout=20)
        for path in ("/health", "/model"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read() != b"", answer.headers["connection"]))
            if path == "/health":
                signal.raise_signal(signal.SIGTERM)
                wait_until(is_refused)  # from here on, open connections are closed

    thread = threading.Thread(target=ask)
    server.run(make_app(predictor, options), options, listener, ready=lambda _: thread.start())
    thread.join(20)
    assert answers == [(200, True, None), (200, True, "close")]


# The API key


def test_with_a_key_only_the_pages_and_the_health_are_open(predictor):
    with client_of(predictor, key=KEY) as client:
        for path in ("/", "/docs", "/health", "/static/app.js"):
            assert client.get(path).status_code == 200, path
        for path in ("/model", "/metrics", "/openapi.json", "/examples/0/image", "/nothing"):
            assert "API key" in error_of(client.get(path), 401)
        for value in (f"Bearer {KEY}x", KEY, "Bearer ", "Basic abc"):
            error_of(client.get("/model", headers={"Authorization": value}), 401)
        body = {"json": {"inputs": TEXT}}
        error_of(client.post("/predict", **body), 401)
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}):
            assert client.post("/predict", **body, headers=headers).status_code == 200


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_key() is None
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert read_key() == KEY
    for wrong in ("", "short", "with a line\nbreak in it"):
        monkeypatch.setenv(KEY_VARIABLE, wrong)
        with pytest.raises(UserError, match=KEY_VARIABLE):
            read_key()


# The command


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("batch_size=0", "batch_size: must be at least 1"),
        ("port=70000", "port: must be at most 65535"),
        ("timeout=0", "timeout: must be greater than 0"),
        ("max_wait=2", "max_wait: must be at most 1"),
        ("max_body=-1", "max_body: must be greater than 0"),
        ("examples=-1", "examples: must be at least 0"),
        ("max_wait=soon", "max_wait"),
        ("host=192.0.2.1", "cannot listen on 192.0.2.1"),
    ],
)
def test_a_wrong_option_is_refused(run, capsys, option, message):
    lines = refused(capsys, ["serve", f"run={run}", "port=0", option])
    assert message in lines[0]


def test_a_port_in_use_and_a_missing_library_are_reported(run, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert "in use" in refused(capsys, ["serve", f"run={run}", f"port={port}"])[0]
    monkeypatch.setattr("dxn.serve.command.find_spec", lambda name: None)
    assert "pip install 'dxn[serve]'" in refused(capsys, ["serve", f"run={run}"])[0]


def test_the_command_serves_until_a_signal_arrives(run, monkeypatch, capsys):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    start = server.run

    def serve(app, options, listener, *, ready):
        def ready_and_stop(url):
            ready(url)
            signal.raise_signal(signal.SIGINT)

        start(app, options, listener, ready=ready_and_stop)

    monkeypatch.setattr(server, "run", serve)
    assert main(["serve", f"run={run}", "port=0", "examples=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("serving on http://127.0.0.1:")
    assert lines[-1] == "stopped"


def test_the_examples_are_test_rows_that_can_be_sent_back(run, predictor):
    examples = read_examples(str(run), predictor, 3, ())
    assert len(examples) == 3
    with client_of(predictor, examples=examples) as client:
        listed = client.get("/model").json()["examples"]
        assert [each["files"] for each in listed] == [["image", "audio"]] * 3
        for i, each in enumerate(listed):
            files = {n: client.get(f"/examples/{i}/{n}").content for n in each["files"]}
            answer = client.post("/predict", data=each["texts"], files=files)
            assert answer.status_code == 200, answer.text
        for path in (
            "/examples/3/image",
            "/examples/-1/image",
            "/examples/x/image",
            "/examples/0/nothing",
        ):
            assert client.get(path).status_code == 404


@pytest.mark.parametrize("kind", ["tags", "answers"])
def test_the_target_of_an_example_is_no_list_of_tags_or_positions(tmp_path, kind):
    tags = ["B-person", "O", "B-place"]
    rows = [{"words": ["Ada", "left", f"Rome{i}"], "tags": tags} for i in range(20)]
    if kind == "answers":
        texts = [" ".join(row["words"]) for row in rows]
        rows = [
            {"question": f"where {i}", "text": t, "answers": [{"text": t[9:], "answer_start": 9}]}
            for i, t in enumerate(texts)
        ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", f"target={kind}"]
    train(tmp_path / "run", f"{tmp_path}/rows.jsonl", *options)
    (example,) = read_examples(str(tmp_path / "run"), dxn.load(tmp_path / "run"), 1, ())
    place = example["texts"]["words" if kind == "tags" else "text"].split()[-1]
    assert example["target"] == (place if kind == "answers" else f"Ada (person), {place} (place)")


@pytest.mark.parametrize("fps", [None, 12.5])
def test_the_file_of_a_generated_clip_has_its_frames(fps):
    prepare = VideoAdapter(8, image_size=32, sampling=VideoSampling(fps=fps)).tokenizer
    clip = torch.zeros(11, 3, 32, 32, dtype=torch.uint8)
    for i, frame in enumerate(clip):
        frame[:, :, 2 * i : 2 * i + 8] = 250
    content = get_drawer("video").file(Shown("video", clip, prepare))
    again = prepare.reader.read(content)
    assert again.shape == clip.shape
    # Losses at the edges of the bright bar are small.
    assert (again.float() - clip.float()).abs().mean() < 3


def test_the_numbers_of_an_example_are_readable():
    prepare = SeriesAdapter(8).tokenizer
    assert _text_of(np.array([[0.1234567891, 20.0]]), prepare) == "[[0.123457, 20]]"


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs": [{"text": "seven", "text": "acht"}]}',
        '{"inputs": [{"text": "seven"}], "inputs": [{"text": "acht"}]}',
    ],
)
def test_a_key_that_occurs_twice_is_refused(client, body):
    assert "occurs twice" in error_of(client.post("/predict", content=body), 400)


def test_a_form_does_not_mix_an_input_with_the_option_of_its_name():
    async def receive():
        part = b'--x\r\nContent-Disposition: form-data; name="seed"\r\n\r\n1\r\n--x--\r\n'
        return {"type": "http.request", "body": part}

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    request = Request({"type": "http", "headers": headers}, receive)
    with pytest.raises(Refusal, match="seed: is an input and an option"):
        asyncio.run(_parse_form(request, ["seed"], ["seed"], 9))


FORM = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nabc\r\n--x--\r\n'


@pytest.mark.parametrize("charsets", ["charset=punycode", "charset=utf-8; charset=punycode"])
def test_other_codecs_of_a_form_are_refused(client, charsets):
    kind = f"multipart/form-data; boundary=x; {charsets}"
    answer = client.post("/predict", content=FORM, headers={"Content-Type": kind})
    assert "charset must be utf-8, got 'punycode'" in error_of(answer, 415)


def test_no_part_of_a_form_is_left_out_because_its_end_is_missing(client, caplog):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    part = FORM.removesuffix(b"--x--\r\n")
    answer = client.post("/predict", content=part + part, headers=headers)
    assert "the form ends before its last boundary" in error_of(answer, 400)
    error_of(client.post("/predict", content=b"no form", headers=headers), 400)
    assert not caplog.records


def test_an_origin_that_is_no_url_is_refused(client):
    assert client.get("/health", headers={"Origin": "http://["}).status_code == 403


def test_an_example_never_contains_a_file_outside_the_data_folder_or_of_another_kind(
    predictor, tmp_path
):
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    (tmp_path / "secret.png").write_text("not a picture")
    prepare = predictor.tokenizers["image"]
    for name, is_offered in (("picture.png", True), ("secret.png", False)):
        path = str(tmp_path / name)
        assert (_file_of("image", path, prepare) is not None) == is_offered
    outside = confined(str(tmp_path / "picture.png"), tmp_path / "data")
    assert _file_of("image", outside, prepare) is None


def test_test_rows_are_not_shown_to_other_machines_by_default(run, predictor, capsys):
    values = [f"run={run}", "host=0.0.0.0"]
    for extra, count in (([], 0), (["examples=2"], 2)):
        options = check_paths(Serve.compose([*values, *extra]))
        examples = examples_of(str(run), predictor, options, is_chosen=bool(extra), trust=())
        assert len(examples) == count
    assert "note: the page shows no test rows" in capsys.readouterr().out


def test_the_command_imports_no_torch_for_its_help():
    code = "import sys; from dxn.cli import main; main(['serve', '--help']); "
    code += "print('torch' in sys.modules or 'fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
