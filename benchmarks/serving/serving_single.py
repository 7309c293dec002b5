"""The time of one answer: a server with one client against `predict`, and latencies of clients."""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from serving_requests import HOST, json_request, texts

import dxn

COUNT = 100  # rows of a round
ROUNDS = 15  # of both sides, alternately
WARM = 300  # rows before the first round


def train_nano(folder: Path) -> Path:
    """Train a small text classifier, as a user would, and return its run folder."""
    table, run = folder / "texts.csv", folder / "nano"
    rows = [f"{text},{'long' if len(text.split()) > 6 else 'short'}" for text in texts(400)]
    table.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    options = ["backbone=nano", "pretrained=none", "trainer.epochs=1", "report=false"]
    command = [sys.executable, "-m", "dxn", "train", str(table), f"run={run}", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def compare_single(run: Path, port: int, process: int) -> None:
    """Print the time of a request of one client on a kept connection, over that of `predict`.

    Args:
        run: Run folder of the model.
        port: Port of its server.
        process: Process of the server.
    """
    model = dxn.load(str(run))
    samples = [{"text": text} for text in texts(256)]
    payloads = [json_request({"inputs": [sample]}) for sample in samples]
    with socket.create_connection((HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def predict(i: int) -> None:
            model.predict(**samples[i % len(samples)])

        def ask(i: int) -> None:
            connection.sendall(payloads[i % len(payloads)])
            _check_answer(connection)

        for i in range(WARM):
            predict(i)
            ask(i)
        rounds = [
            (_measure(predict, time.process_time), _measure(ask, lambda: seconds_of(process)))
            for _ in range(ROUNDS)
        ]
    print(f"\none answer: medians of {ROUNDS} rounds of {COUNT} rows\n")
    print("| time | predict ms | request ms | request / predict |\n|---|---|---|---|")
    for name, kind in (("clock", 0), ("processor", 1)):
        ours = [1000 * request[kind] for _, request in rounds]
        plain = [1000 * prediction[kind] for prediction, _ in rounds]
        ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
        medians = f"{statistics.median(plain):.3f} | {statistics.median(ours):.3f}"
        print(f"| {name} | {medians} | {ratio:.2f} |", flush=True)


def seconds_of(process: int) -> float:
    """Return the seconds of the processor that all threads of a process have used."""
    # With nanoseconds, unlike /proc/PID/stat. Threads that have ended are not counted.
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="utf-8").split()[0]) for task in tasks) / 1e9


def _measure(call: Callable[[int], None], processor: Callable[[], float]) -> Sequence[float]:
    """Return the seconds of a call, on the clock and of the processor."""
    start, used = time.perf_counter(), processor()
    for i in range(COUNT):
        call(i)
    return (time.perf_counter() - start) / COUNT, (processor() - used) / COUNT


def _check_answer(connection: socket.socket) -> None:
    """Receive an answer, which must be complete and have status 200."""
    content = b""
    while not content.endswith(b"]}"):  # the end of the list of results
        part = connection.recv(1 << 16)
        if not part:
            raise RuntimeError("the server has closed the connection")
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or len(json.loads(body)["results"]) != 1:
        raise RuntimeError(f"wrong answer: {content[:200]!r}")
