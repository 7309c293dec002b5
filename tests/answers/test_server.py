"""dxn serve under unusual or hostile requests, and its description of itself."""

import asyncio
import json
import shutil
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from helpers.runs import PLAIN, SMALL, train
from helpers.serving import client_of, error_of, server_of

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.core.files import write_sums
from dxn.serve.answers import json_answer
from dxn.serve.app import make_app
from dxn.serve.command import bind
from dxn.serve.guard import Guard
from dxn.serve.operations import Operations
from dxn.serve.options import ServeOptions
from dxn.serve.server import Protocol, Server, configure
from dxn.serve.service import Service

QUOTED = 'so-called "name"'


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a text and a number in a column with quotes, and a class that reverses text."""
    folder = tmp_path_factory.mktemp("server")
    rows = [
        {
            "text": f"{['fine', 'dull'][i % 2]} film {i}",
            QUOTED: i % 7 + 0.5,
            "label": ["good", "\u202ebad"][i % 2],
        }
        for i in range(40)
    ]
    table = folder / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    options = [*SMALL, *PLAIN, "trainer.epochs=1", "report=false", "target=label"]
    train(folder / "run", str(table), *options)
    return folder / "run"


@pytest.fixture(scope="module")
def predictor(run):
    return dxn.load(run)


@pytest.fixture(scope="module")
def client(predictor):
    with client_of(predictor) as made:
        yield made


def test_a_kept_connection_sends_each_answer_at_once():
    """Without TCP_NODELAY, each answer waits for an acknowledgement of the client."""

    async def option_of_a_connection():
        found = asyncio.get_running_loop().create_future()

        async def connected(_, writer):
            own = writer.get_extra_info("socket")
            found.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await found

    assert asyncio.run(option_of_a_connection())


@pytest.mark.parametrize(
    "content",
    [
        b'{"inputs": [' + b"{}," * 1_000_001 + b"{}]}",
        b'{"inputs": {"text": ' + b"[" * 1_000_001 + b"]" * 1_000_001 + b"}}",
        b'{"inputs": [{' + b'"a":1,' * 1_000_001 + b'"b":1}]}',
        b'{"inputs": [{"text": "' + b"1," * 1_000_001 + b'1"}]}',
    ],
    ids=["empty objects", "nested lists", "keys", "numbers in a text"],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(content, client, monkeypatch):
    monkeypatch.setattr("dxn.serve.body._parse_json", None)
    message = error_of(client.post("/predict", content=content), 413)
    assert message.startswith("the body has more than 1,000,000 values; send several requests")


def test_a_body_of_many_bytes_and_few_values_is_parsed(client):
    text = "fine film " * 100_000
    answer = client.post("/predict", json={"inputs": [{"text": text}]})
    # The text is longer than this model reads; the body itself is accepted.
    assert answer.status_code in (200, 422) and "values" not in answer.text


ENCODED = b'{"inputs": {"text": "a"}, "encoder": "\\ud800"}'


def test_half_of_a_character_in_a_message_is_json(client):
    assert "got '\\ud800'" in error_of(client.post("/attend", content=ENCODED), 422)
    assert json.loads(json_answer(["\ud800"]).body) == ["\ud800"]


def exchange(url, content):
    """What a connection receives that first sends everything, and then reads."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=20) as connection:
        connection.sendall(content)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.rpartition(b"\r\n\r\n")
    return head, json.loads(body)["error"]


def test_a_client_that_sends_its_whole_body_first_reads_why_it_is_refused(predictor):
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n"
    with server_of(predictor, max_body=0.1) as url:
        body = b" " * 9_000_000
        received, error = exchange(url, head + b"Connection: close\r\n\r\n" + body)
        assert received.startswith(b"HTTP/1.1 413") and error["type"] == "too_large"
        # A body that is not needed is not read as the next request.
        first = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nabc"
        last = b"POST /none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        received, _ = exchange(url, first + last)
        assert received.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 404" in received
        # Where this one ends is not known.
        both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        received, _ = exchange(url, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + both)
        assert received.startswith(b"HTTP/1.1 400") and b"connection: close" in received
        # This one sends its body only if it is welcome.
        received, _ = exchange(url, head + b"Expect: 100-continue\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 413") and b"connection: close" in received


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"GET /health\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000, 431, "headers_too_large"),
    ],
)
def test_what_is_not_http_is_refused_in_the_form_of_other_errors(predictor, content, status, kind):
    with server_of(predictor) as url:
        head, error = exchange(url, content)
        assert head.startswith(b"HTTP/1.1 %d" % status) and error["type"] == kind
        assert f'{{path="other",status="{status}"}} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_server_with_too_many_connections_is_busy_and_healthy(predictor, monkeypatch):
    monkeypatch.setattr("dxn.serve.service.MAX_CONNECTIONS", 0)
    with server_of(predictor) as url:
        answer = httpx.get(f"{url}/v1/models")
        assert error_of(answer, 503).startswith("too many connections")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_client_that_does_not_read_its_answer_is_disconnected(predictor, monkeypatch):
    lost = threading.Event()
    monkeypatch.setattr("dxn.serve.server.CLIENT_SECONDS", 0.2)
    connection_lost = Protocol.connection_lost

    def record(self, error):
        lost.set()
        connection_lost(self, error)

    monkeypatch.setattr(Protocol, "connection_lost", record)
    examples = [{"texts": {}, "files": {"text": bytes(30_000_000)}, "target": ""}]
    with server_of(predictor, examples=examples) as url:
        address = ("127.0.0.1", urlsplit(url).port)
        with socket.create_connection(address, timeout=20) as connection:
            connection.sendall(b"GET /examples/0/text HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(9) == b"HTTP/1.1 "
            assert lost.wait(20)


def test_a_path_with_another_slash_is_not_found(client):
    assert "openapi.json" in error_of(client.post("/predict/", json={"inputs": [{}]}), 404)


def test_the_health_is_answered_while_large_bodies_are_refused(predictor):
    with client_of(predictor, max_body=0.001) as client:
        guard = find_guard(client)
        guard.num_bytes = 10**9
        assert client.get("/health").status_code == 200
        assert client.get("/model").status_code == 200
        assert client.post("/predict", json={"inputs": [{"text": "x"}]}).status_code == 503
        guard.num_bytes = 0


def find_guard(client):
    """The part of the application that counts the bytes of all bodies."""
    layer = client.app.middleware_stack
    while not hasattr(layer, "num_bytes"):
        layer = layer.app
    return layer


def test_a_client_that_leaves_a_stream_while_bodies_are_refused_ends_it_cleanly(predictor):
    """The message that the client has gone is not the part of a body."""
    guard = find_guard_of(predictor)
    sent = []

    async def talk():
        messages = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message["type"])

        scope = {"type": "http", "path": "/x", "method": "POST", "headers": []}
        guard.num_bytes = 10**12
        await guard({**scope, "headers": [(b"host", b"127.0.0.1")]}, receive, send)

    asyncio.run(talk())
    assert sent == ["http.response.start", "http.response.body"]


def find_guard_of(predictor):
    async def streams(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        await send({"type": "http.response.body", "body": b""})

    return Guard(streams, Service(predictor, ServeOptions(), set()), None)


def test_connections_that_wait_when_the_server_stops_are_answered(predictor):
    async def stop_with_waiting_connections():
        options = ServeOptions(port=0)
        config = configure(make_app(predictor, options), options)
        listener = bind(options.host, 0)
        config.load()
        server = Server(config, lambda: None)
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        for each in clients:
            each.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        # Nothing was awaited since, so the server has not accepted any of them.
        stopping = asyncio.create_task(server.shutdown([listener]))
        answers = [await asyncio.to_thread(each.recv, 100) for each in clients]
        await stopping
        for each in [*clients, listener]:
            each.close()
        return answers

    answers = asyncio.run(stop_with_waiting_connections())
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


def test_a_client_that_leaves_before_its_answer_is_not_computed_for(predictor, monkeypatch):
    release = threading.Event()
    computed = []
    original = Operations.__call__

    def slow(self, kind, jobs):
        computed.extend(job.size for job in jobs)
        assert release.wait(20)
        return original(self, kind, jobs)

    monkeypatch.setattr(Operations, "__call__", slow)
    one, seven = ({"inputs": [{"text": "fine"}] * count} for count in (1, 7))
    with server_of(predictor) as url:

        def has_noticed():
            return 'path="/predict",status="400"' in httpx.get(f"{url}/metrics").text

        options = {"json": one, "timeout": 20}
        first = threading.Thread(target=httpx.post, args=(f"{url}/predict",), kwargs=options)
        first.start()
        wait_until(lambda: computed)
        # The model is busy, so this request waits, and its client does not.
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/predict", json=seven, timeout=0.3)
        wait_until(has_noticed)
        release.set()
        first.join()
        assert httpx.post(f"{url}/predict", **options).status_code == 200
    assert set(computed) == {1}  # and never 7


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_headers_that_are_too_large_are_refused_however_they_arrive(predictor):
    with server_of(predictor) as url:
        headers = {f"x-{i}": "1" * 50 for i in range(1_000)}
        answer = httpx.get(f"{url}/health", headers=headers)
        assert answer.status_code in (400, 431)


def test_a_small_number_of_headers_above_the_limit_names_it(client):
    message = error_of(client.get("/health", headers={"x-long": "1" * 40_000}), 431)
    assert message == "the headers have more than 32,000 bytes; send shorter ones"


def test_the_description_has_the_media_type_and_the_status_codes_of_every_path(predictor):
    with client_of(predictor, key="a-key-of-this-test") as client:
        headers = {"Authorization": "Bearer a-key-of-this-test"}
        described = client.get("/openapi.json", headers=headers).json()
    paths = described["paths"]
    success = paths["/metrics"]["get"]["responses"]["200"]["content"]
    assert list(success) == ["text/plain; version=0.0.4"]
    assert {"200", "401", "403", "421", "431", "500"} <= paths["/model"]["get"]["responses"].keys()
    assert "503" in paths["/health"]["get"]["responses"]
    for path in ("/predict", "/embed", "/attend"):
        codes = paths[path]["post"]["responses"].keys()
        assert {"400", "401", "403", "408", "413", "415", "421", "422", "431"} <= codes
        assert {"500", "503", "504"} <= codes
        assert paths[path]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert paths["/health"]["get"]["security"] == []
    assert described["components"]["securitySchemes"].keys() == {"bearer", "header"}


def test_without_a_key_the_description_has_no_security(client):
    described = client.get("/openapi.json").json()
    assert "securitySchemes" not in described.get("components", {})


@pytest.mark.parametrize("name", [QUOTED, QUOTED.replace('"', "%22")])
def test_a_form_can_name_a_column_with_quotes_as_browsers_do(name, client, predictor):
    (own,) = [each for each in predictor.inputs if predictor.columns[each] == QUOTED]
    part = own if name == QUOTED else own.replace('"', "%22")
    answer = client.post("/predict", files={part: (None, "3"), "text": (None, "fine")})
    assert answer.status_code == 200, answer.text


def test_a_server_for_other_machines_says_that_any_host_name_is_answered(run, monkeypatch, capsys):
    def stop_at_once(app, options, listener, *, ready):
        ready("http://x")
        listener.close()

    monkeypatch.setattr("dxn.serve.server.run", stop_at_once)
    assert main(["serve", f"run={run}", "host=0.0.0.0", "port=0"]) == 0
    assert "set allowed_hosts=[NAME] to the names of this server" in capsys.readouterr().out
    assert main(["serve", f"run={run}", "host=0.0.0.0", "port=0", "allowed_hosts=[a.org]"]) == 0
    assert "allowed_hosts" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *[("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True)],
        *[("127.example.com", False), ("0.0.0.0", False), ("127.0.0.1.example.com", False)],
    ],
)
def test_only_addresses_of_this_machine_are_local(host, is_local):
    assert ServeOptions(host=host).is_local == is_local


def test_a_file_of_very_many_empty_tensors_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dxn.core.tensors.MAX_TENSORS", 99)
    tensors = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100)}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert main(["embed", f"weights={path}", "input.text=x"]) == 2
    assert "at most 99 tensors are read, got 100" in capsys.readouterr().err


def test_a_hidden_option_in_a_model_folder_is_refused_when_it_is_loaded(run, tmp_path):
    folder = shutil.copytree(run / "model", tmp_path / "model")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["head"]["_partial_"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_sums(folder)
    with pytest.raises(UserError, match="_partial_ is not an option of a model folder"):
        dxn.load(folder)
