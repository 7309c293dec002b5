"""Several processes that train one model, without the time that torchrun needs to start them.

One process imports torch, and forks the others. Tests of torchrun itself start torchrun.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = """
import importlib, os, runpy, signal, sys

count, modules, *words = sys.argv[1:]
for module in modules.split():
    importlib.import_module(module)
ranks = set()
for rank in range(int(count)):
    pid = os.fork()
    if not pid:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = words
        runpy.run_path(words[0])
        sys.exit()
    ranks.add(pid)
failed = 0
while ranks:
    pid, status = os.wait()
    ranks.discard(pid)
    if status and not failed:
        failed = 1
        # The others may wait for this one.
        for each in ranks:
            os.kill(each, signal.SIGKILL)
sys.exit(failed)
"""


def start_ranks(script, folder, *words, count=2, modules="dxn.training.loop", **options):
    """Start processes that run a script, and return the one that started them.

    Args:
        script: Text of the script.
        folder: Folder for its file, and the first argument of the script.
        words: Further arguments.
        count: Number of processes.
        modules: Modules that are imported once, before the processes are forked.
        options: Further arguments of `subprocess.Popen`.
    """
    path = folder / "script.py"
    path.write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "TORCHELASTIC_RUN_ID": "ranks",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", START, str(count), modules, str(path), str(folder), *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}, **options)


def run_ranks(script, folder, *words, **options):
    """Run a script in several processes, and return what they printed to stdout and stderr."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = start_ranks(script, folder, *words, **options, **pipes)
    output, errors = started.communicate(timeout=300)
    assert started.returncode == 0, errors[-6000:]
    return output, errors
