"""Kill one of two Ray nodes in the middle of dxn predict, and measure the speed of engine=ray.

    python benchmarks/speed/ray_nodes.py [--rows 20000] [--more 100000] [--rounds 5]

The script trains a small model in a temporary folder and predicts tables of generated texts. Both
nodes are on this machine, and listen on 127.0.0.1 only.

- nodes: the second node gets SIGKILL after a quarter of the parts. Every row must be answered
  exactly once, with the answers of one process.
- speed: dxn predict with engine=local and with engine=ray, alternately, on a table of `rows` rows
  and on one of `more`. The difference of the two tables is the time of the additional rows, without
  the start and the end of a command. Both engines have the same cores and write Parquet. CPU
  seconds are those of all processes that a command starts; other work on the machine affects them
  less than the seconds of the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow.parquet

WORDS = ("film", "plot", "story", "actors", "fine", "lovely", "great", "dull", "awful", "boring")
MODEL = ("dim=64", "backbone.depth=2", "trainer.epochs=1", "preset=plain", "baseline=none")
PART_ROWS = 1024  # 16 batches of 64 rows
STORE = 200_000_000  # bytes of the objects of a node


def main() -> None:
    """Run the measurements, and print their results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--more", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    # Before Ray is imported.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    # By default, Ray gives way to other work on the machine (15), which a single process does not.
    os.environ |= {"RAY_worker_niceness": "0"}
    with tempfile.TemporaryDirectory(prefix="ray_nodes_") as name:
        os.chdir(name)
        write_table(Path("train.csv"), 1000)
        write_table(Path("rows.csv"), options.rows)
        write_table(Path("more.csv"), options.more)
        dxn("train", "data.path=train.csv", "target=label", *MODEL, "run=run")
        dxn("predict", "run=run", "input=rows.csv", "output=local.parquet")
        kill_a_node(options.rows)
        if options.rounds:
            compare(options.rounds, options.more - options.rows)


def compare(rounds: int, rows: int) -> None:
    """Print the rates of both engines, and their ratio, for the additional rows."""
    engines = {"local": "local.parquet", "ray": "ray"}
    found: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
    for i in range(rounds):
        for engine, output in engines.items():
            short, long = (
                measure(f"input={table}.csv", f"output={i}{table}{output}", f"engine={engine}")
                for table in ("rows", "more")
            )
            found[engine].append((long[0] - short[0], long[1] - short[1]))
            print(f"{engine}: {short[0]:.1f} and {long[0]:.1f} s, ", end="")
            print(f"{short[1]:.1f} and {long[1]:.1f} CPU s; load {os.getloadavg()[0]:.1f}")
    for k, unit in enumerate(("s", "CPU s")):
        local, ray = (statistics.median(pair[k] for pair in found[engine]) for engine in engines)
        print(
            f"{rows:,} rows: one process {local:.1f} {unit} ({rows / local:,.0f} rows/{unit}), "
            f"Ray {ray:.1f} {unit} ({rows / ray:,.0f} rows/{unit}); ratio {local / ray:.2f}"
        )


def measure(*words: str) -> tuple[float, float]:
    """Run dxn predict, and return its seconds and the CPU seconds of all of its processes."""
    start = time.perf_counter()
    used: dict[int, float] = {}
    command = [sys.executable, "-m", "dxn", "predict", "run=run", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for each in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        used[each.pid] = sum(each.cpu_times()[:2])
            time.sleep(0.1)
        assert process.wait() == 0, "dxn predict failed"
    return time.perf_counter() - start, sum(used.values())


def write_table(path: Path, count: int) -> None:
    """Write texts of 10 to 60 words."""
    rand = random.Random(count)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "text", "label"])
        for i in range(count):
            text = " ".join(rand.choices(WORDS, k=rand.randint(10, 60)))
            writer.writerow([f"r{i}", text, "ab"[i % 2]])


def dxn(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "dxn", *words], check=True, stdout=subprocess.DEVNULL)


def kill_a_node(rows: int) -> None:
    """Predict on two nodes, of which one is killed, and compare the answers."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    cluster.wait_for_nodes()
    words = ("input=rows.csv", "output=nodes", "engine=ray", f"ray.address={cluster.address}")
    command = [sys.executable, "-m", "dxn", "predict", "run=run", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        parts = Path("nodes", "progress")
        while process.poll() is None and len(list(parts.glob("*"))) < rows / PART_ROWS / 4:
            time.sleep(0.05)
        done = len(list(parts.glob("*")))
        cluster.remove_node(node, allow_graceful=False)
        assert process.wait() == 0, "dxn predict failed"
    cluster.shutdown()
    ours = pyarrow.parquet.read_table("nodes/answers")
    theirs = pyarrow.parquet.read_table("local.parquet")
    keys = ours["key"].to_pylist()
    assert sorted(keys) == sorted(set(keys)) and len(keys) == rows, "a row is missing or repeated"
    same = ours["prediction"].equals(theirs["prediction"]) and keys == theirs["key"].to_pylist()
    assert same, "the answers differ"
    print(f"nodes: killed one of two after {done} parts; {len(keys):,} rows answered once")


if __name__ == "__main__":
    main()
