"""Kill one of two Ray nodes in the middle of dxn predict, and measure the speed of engine=ray.

    python benchmarks/speed/ray_nodes.py [--rows 20000] [--rounds 3]

The script trains a small model in a temporary folder and predicts a table of generated texts. Both
nodes are on this machine, and listen on 127.0.0.1 only.

- nodes: the second node gets SIGKILL after a quarter of the parts. Every row must be answered
  exactly once, with the answers of one process.
- speed: the whole command with engine=local and with engine=ray on the same cores, alternately. The
  rate of Ray without its start is that between the first and the last part that it writes. It must
  not be compared with the rate of a whole command, which has a start of several seconds.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet

WORDS = ("film", "plot", "story", "actors", "fine", "lovely", "great", "dull", "awful", "boring")
MODEL = ("dim=64", "backbone.depth=2", "trainer.epochs=1", "preset=plain", "baseline=none")
PART_ROWS = 1024  # 16 batches of 64 rows
STORE = 200_000_000  # bytes of the objects of a node


def main() -> None:
    """Run the measurements, and print their results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # Before Ray is imported.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with tempfile.TemporaryDirectory(prefix="ray_nodes_") as name:
        os.chdir(name)
        write_table(Path("train.csv"), 1000)
        write_table(Path("rows.csv"), options.rows)
        dxn("train", "data.path=train.csv", "target=label", *MODEL, "run=run")
        seconds: dict[str, list[float]] = {"local": [], "ray": []}
        rates: list[float] = []
        predict("output=local.parquet")
        kill_a_node(options.rows)
        if not options.rounds:
            return
        for i in range(options.rounds):
            seconds["local"].append(predict(f"output=local{i}.parquet"))
            seconds["ray"].append(predict(f"output=ray{i}", "engine=ray"))
            rates.append(rate_of(Path(f"ray{i}"), options.rows))
        local, whole = (statistics.median(each) for each in seconds.values())
        print(f"one process: {local:.1f} s, {options.rows / local:.0f} rows/s (whole command)")
        print(f"ray: {whole:.1f} s, {options.rows / whole:.0f} rows/s (whole command)")
        rate = statistics.median(rates)
        print(f"ray after its start: {rate:.0f} rows/s")
        print(f"rounds: {seconds}, rates {rates}; load {os.getloadavg()}, {os.cpu_count()} cores")


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


def predict(*words: str) -> float:
    """Run dxn predict on the table, and return its seconds."""
    start = time.perf_counter()
    dxn("predict", "run=run", "input=rows.csv", *words)
    return time.perf_counter() - start


def rate_of(folder: Path, rows: int) -> float:
    """Return the rows per second after the first part was written."""
    times = sorted(file.stat().st_mtime for file in (folder / "progress").iterdir())
    return (rows - PART_ROWS) / (times[-1] - times[0])


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
