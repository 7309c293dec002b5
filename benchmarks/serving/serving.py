"""Measure the throughput, latency and memory of `dxn serve`, and inject faults.

    python benchmarks/serving/serving.py [--clients 64] [--seconds 30] [--requests 20000]

The script trains a model on the built-in data set in a temporary folder, and starts servers on this
machine. Clients send texts of 1 to 12 words over connections that stay open. Each of them sends its
next request after the answer to the last one.

- single: the time of a request of one client over that of one `predict` in Python, alternately,
  and the latencies of 1, 8 and 64 clients, for a small text classifier. The processor's time is
  that of the server alone.
- load: requests per second and latencies, with dynamic batching (the default options) and one by
  one (batch_size=1, max_wait=0), alternately. Every request must be answered with status 200.
- memory: the resident memory of a server over many requests, after the first tenth of them.
- faults: clients that are slow or vanish, files that are too large, broken or cut off, a full queue
  and SIGTERM in the middle of the load. The server must refuse each of them with the right status,
  and answer the other clients. tests/serve/test_serve.py kills the model thread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving_faults import FAULTS
from serving_requests import Connection, json_request, texts
from serving_single import compare_single, train_nano

OPTIONS = ("data.num_train=200", "data.num_validation=50", "data.num_test=50", "trainer.epochs=1")
MODEL = ("dim=256", "backbone.depth=6", "backbone.num_heads=4", "adapters.text.tokenizer.kind=word")
PLAIN = ("trainer.precision=float32", "preset=plain", "baseline=none", "report=false")
SERVERS = {"batched": (), "one by one": ("batch_size=1", "max_wait=0")}
ROUNDS = 2  # of both servers, alternately
PARTS = ("single", "load", "memory", "faults")
CLIENTS = (1, 8, 64)
LATENCY_ROUNDS = 3
LATENCY_SECONDS = 2
START_SECONDS = 120
KILOBYTE = 1024


@dataclass
class Load:
    """What the clients saw.

    Args:
        seconds: Latency of each answer.
        statuses: Number of answers by status code.
        lost: Number of requests without an answer.
        duration: Seconds of the whole load.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    duration: float = 0.0

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return self.statuses[200] / self.duration if self.duration else 0.0

    def percentile(self, share: float) -> float:
        """Return a percentile of the latency in milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> int:
    """Run all parts, and print their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--requests", type=int, default=20_000, help="of the memory test")
    parser.add_argument("--run", type=Path, help="run folder (default: train a model)")
    parser.add_argument("--only", choices=PARTS, nargs="*")
    chosen = parser.parse_args()
    parts = chosen.only or PARTS
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        if "single" in parts:
            is_good &= measure_single(chosen.run or train_nano(Path(folder)))
        if parts == ["single"]:
            return 0 if is_good else 1
        run = chosen.run or train(Path(folder) / "run")
        if "load" in parts:
            is_good &= measure_load(run, chosen.clients, chosen.seconds)
        if "memory" in parts:
            is_good &= measure_memory(run, chosen.clients, chosen.requests)
        if "faults" in parts:
            is_good &= asyncio.run(inject_faults(run))
    return 0 if is_good else 1


def train(folder: Path) -> Path:
    """Train a small model, and return its run folder."""
    command = [sys.executable, "-m", "dxn", "train", *OPTIONS, *MODEL, *PLAIN]
    subprocess.run([*command, f"run={folder}"], check=True, stdout=subprocess.DEVNULL)
    return folder


@contextlib.contextmanager
def serving(run: Path, options: Sequence[str] = ()) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start `dxn serve`, and yield its port and process."""
    command = [sys.executable, "-m", "dxn", "serve", f"run={run}", "port=0", *options]
    server = subprocess.Popen([*command, "examples=0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line.startswith("serving on "):
            raise RuntimeError(f"the server did not start: {line}")
        yield int(line.split()[2].rpartition(":")[2]), server
    finally:
        server.terminate()
        try:
            server.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


async def send_load(
    port: int, clients: int, *, seconds: float | None = None, requests: int | None = None
) -> Load:
    """Let clients send requests for a time, or a number of them."""
    load = Load()
    payloads = [json_request({"inputs": [{"text": text}]}) for text in texts(256)]
    start = time.perf_counter()
    left = requests

    def goes_on() -> bool:
        nonlocal left
        if left is not None:
            left -= 1
            return left >= 0
        return seconds is None or time.perf_counter() - start < seconds

    async def client(number: int) -> None:
        try:
            async with Connection(port) as connection:
                i = number
                while goes_on() and not connection.is_closing:
                    begin = time.perf_counter()
                    load.lost += 1  # until the answer is there
                    status, _ = await connection.ask(payloads[i % len(payloads)])
                    load.lost -= 1
                    load.seconds.append(time.perf_counter() - begin)
                    load.statuses[status] += 1
                    i += clients
        except (OSError, EOFError):
            return

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.duration = time.perf_counter() - start
    return load


def measure_single(run: Path) -> bool:
    """Compare a request of one client with `predict`, and print the latencies of more clients."""
    loads: dict[int, list[Load]] = {count: [] for count in CLIENTS}
    with serving(run) as (port, server):
        compare_single(run, port, server.pid)
        for _ in range(LATENCY_ROUNDS):
            for count in CLIENTS:
                loads[count].append(asyncio.run(send_load(port, count, seconds=LATENCY_SECONDS)))
    print(f"\nlatencies: medians of {LATENCY_ROUNDS} rounds of {LATENCY_SECONDS} s\n")
    print("| clients | p50 ms | p99 ms | requests/s |\n|---|---|---|---|")
    for count, rounds in loads.items():
        p50, p99 = (statistics.median(x.percentile(share) for x in rounds) for share in (0.5, 0.99))
        rate = statistics.median(load.rate for load in rounds)
        print(f"| {count} | {p50:.2f} | {p99:.2f} | {rate:.0f} |", flush=True)
    every = [load for rounds in loads.values() for load in rounds]
    return not any(load.lost or load.statuses.total() - load.statuses[200] for load in every)


def measure_load(run: Path, clients: int, seconds: float) -> bool:
    """Compare dynamic batching with serving one by one."""
    rates: dict[str, list[float]] = {name: [] for name in SERVERS}
    is_good = True
    print(f"\nload: {clients} clients, {seconds:g} s per row\n")
    print("| server | requests/s | p50 ms | p95 ms | p99 ms | answers | errors | lost |")
    print("|---|---|---|---|---|---|---|---|")
    for _ in range(ROUNDS):
        for name, options in SERVERS.items():
            with serving(run, options) as (port, _):
                asyncio.run(send_load(port, clients, requests=20 * clients))  # warm up
                load = asyncio.run(send_load(port, clients, seconds=seconds))
            rates[name].append(load.rate)
            errors = load.statuses.total() - load.statuses[200]
            is_good &= not errors and not load.lost
            times = " | ".join(f"{load.percentile(share):.1f}" for share in (0.5, 0.95, 0.99))
            counts = f"{load.statuses.total():,} | {errors} | {load.lost}"
            print(f"| {name} | {load.rate:.0f} | {times} | {counts} |", flush=True)
    ratio = statistics.mean(rates["batched"]) / statistics.mean(rates["one by one"])
    print(f"\nbatched / one by one: {ratio:.2f}")
    return is_good


def measure_memory(run: Path, clients: int, requests: int) -> bool:
    """Print the resident memory of a server while it answers many requests."""
    print(f"\nmemory: {requests:,} requests\n\n| requests | resident MB |\n|---|---|")
    lost = 0
    with serving(run) as (port, server):
        for step in range(11):
            count = requests // 10 if step else 20 * clients
            load = asyncio.run(send_load(port, clients, requests=count))
            lost += load.lost + load.statuses.total() - load.statuses[200]
            print(f"| {step * (requests // 10):,} | {resident(server.pid):.1f} |", flush=True)
    return not lost


def resident(process: int) -> float:
    """Return the resident memory of a process in megabytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * KILOBYTE / 1e6


async def inject_faults(run: Path) -> bool:
    """Inject each fault while other clients send requests, and print what happened."""
    print("\n| fault | answer | other clients: answers | errors | lost |\n|---|---|---|---|---|")
    is_good = True
    with serving(run, ["max_body=1", "timeout=3", "max_queue=64"]) as (port, server):
        for name, fault in FAULTS.items():
            async with background(port) as load:
                answer, is_right = await fault(port)
            errors = load.statuses.total() - load.statuses[200]
            # A full queue is the only fault that others may notice, as status 503.
            is_fine = is_right and not load.lost and errors == load.statuses[503]
            is_good &= is_fine
            counts = f"{load.statuses.total():,} | {errors} | {load.lost}"
            mark = "" if is_fine else " **wrong**"
            print(f"| {name} | {answer}{mark} | {counts} |", flush=True)
        is_good &= await stop_under_load(port, server)
    return is_good


@contextlib.asynccontextmanager
async def background(port: int) -> AsyncIterator[Load]:
    """Send requests of 4 clients while something else happens."""
    result = Load()
    task = asyncio.create_task(send_load(port, 4, seconds=5))
    await asyncio.sleep(0.2)
    yield result
    load = await task
    result.statuses, result.lost = load.statuses, load.lost


async def stop_under_load(port: int, server: subprocess.Popen[str]) -> bool:
    """Send SIGTERM while clients wait for answers."""
    task = asyncio.create_task(send_load(port, 16, seconds=4))
    await asyncio.sleep(1)
    server.send_signal(signal.SIGTERM)
    load = await task
    code = await asyncio.to_thread(server.wait, 30)
    answered = load.statuses[200] == load.statuses.total()
    counts = f"{load.statuses.total():,} | 0 | {load.lost}"
    print(f"| SIGTERM under load | exit code {code} | {counts} |")
    return code == 0 and answered and not load.lost


if __name__ == "__main__":
    sys.exit(main())
