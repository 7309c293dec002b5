"""dxn serve engine=ray: the answers of one server, from copies of the model in other processes."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers.runs import PLAIN, SMALL, TEXT, refused, table_of, train

import dxn
from dxn.serve import command
from dxn.serve.options import KEY_VARIABLE

KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    (folder / "t.csv").write_text(table_of(40))
    data = [f"data.path={folder / 't.csv'}", "data.target=label"]
    train(folder / "run", *data, *TEXT, *PLAIN, *SMALL, "trainer.epochs=1", "report=false")
    return folder / "run"


def ask(url, body=None, key=KEY):
    """Return the status and the content of an answer."""
    headers = {"Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def listening(pid):
    """The addresses on which a process and those that it started accept connections."""
    psutil = pytest.importorskip("psutil")
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.ip


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the optional libraries of dxn[ray]"
)
def test_copies_on_ray_answer_as_one_server_until_a_signal_arrives(run):
    options = ["port=0", "engine=ray", "ray.replicas=1"]
    words = [sys.executable, "-m", "dxn", "serve", f"run={run}", *options]
    # Of a cluster that ran on this machine: without ray.address, it is not used.
    own = {KEY_VARIABLE: KEY, "RAY_ADDRESS": "192.0.2.1:6379"}
    with subprocess.Popen(
        words, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            lines = iter(server.stdout.readline, "")
            url = next(line for line in lines if line.startswith("serving on ")).split()[2]
            status, content = ask(f"{url}/predict", {"inputs": [{"text": "a red apple"}]})
            (result,) = json.loads(content)["results"]
            expected = dxn.load(run).predict(text="a red apple")
            assert status == 200 and result["prediction"] == expected["prediction"]
            assert result["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
            assert ask(url) == (
                200,
                Path(command.__file__).with_name("static").joinpath("index.html").read_bytes(),
            )
            status, content = ask(f"{url}/predict", {"inputs": [{"txt": "x"}]})
            assert status == 422 and b"there is no such input" in content
            assert ask(f"{url}/predict", {"inputs": []}, key="wrong")[0] == 401
            assert set(listening(server.pid)) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        finally:
            server.send_signal(signal.SIGINT)
        output, errors = server.communicate(timeout=60)
    # The line about the key may have been read already.
    assert output.splitlines()[-1] == "stopped" and "raylet" not in output
    assert errors == "" and server.returncode == 0


def test_without_ray_one_sentence_says_what_to_install(run, monkeypatch, capsys):
    monkeypatch.setattr("dxn.runs.engine.cluster.find_spec", lambda name: None)
    expected = "dxn: engine: ray is not installed; run pip install 'dxn[ray]'"
    assert refused(capsys, ["serve", f"run={run}", "engine=ray"]) == [expected]
