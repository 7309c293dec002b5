"""Faults of faults.py: several processes that torchrun starts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_compare import checkpoint_step, sha256, steps_of
from fault_process import SECONDS, TIMEOUT, TINY, Fault, Seen, scratch, wait_until, without_repeats

# Each process draws its own dropout masks, so only a training without dropout is the same with
# another number of processes.
NO_DROPOUT = ("backbone.dropout=0", "head.dropout=0")
LONG = (*TINY, *NO_DROPOUT, "data.num_train=2000")  # 100 steps per epoch
EVERY = "trainer.checkpoint_minutes=1e-9"
MAX_DIFFERENCE = 1e-6
NUMBER = 15  # step at which a training of several processes is disturbed, as a part of an epoch


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    code: int | str
    output: str
    seconds: float

    @property
    def said(self) -> str:
        """Its errors."""
        lines = [line for line in self.output.splitlines() if "dxn:" in line or "Error" in line]
        return " / ".join(lines[-3:])


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    same = f"losses within {MAX_DIFFERENCE}"
    return [
        Fault("none: 2 processes with half of the batch size each", same, _equal),
        Fault("none: 2 processes twice", "equal to the bit", _twice),
        Fault("none: 2 processes, accumulated batches", same, _accumulated),
        Fault("a process killed with kill -9", "ends with an error, no hang", _killed),
        Fault("then resumed with 2 processes", "equal to the bit", _continued(2, "batch_size=10")),
        Fault("then resumed with 1 process", same, _continued(1)),
        Fault("then resumed with 1 process, batch_size=20", same, _continued(1, "batch_size=20")),
        Fault("then resumed with 1 process, batch_size=10", "code 2", _other_batch),
        Fault("1 process killed, resumed with 2, killed, resumed with 1", same, _back_and_forth),
        Fault("--max-restarts=2, one process killed", "continues; equal", _restarted("run")),
        Fault("--max-restarts=2 without run=", "continues; one folder", _restarted("output")),
        Fault("torchrun killed with kill -9", "checkpoint; resumed, equal", _orphans),
        Fault("SIGTERM to torchrun", "checkpoint; resumed, equal", _terminated),
        Fault("2 processes, run folder by date and time", "one folder", _one_folder),
        Fault("10 samples for 2 processes with batches of 4", same, _few_samples),
    ]


def launch(
    number: int,
    *arguments: object,
    launcher: Sequence[str] = (),
    during: Callable[[int], object] | None = None,
) -> Ended:
    """Run `dxn ARGUMENTS` in several processes.

    Args:
        number: Number of processes.
        arguments: The arguments.
        launcher: Further options of torchrun.
        during: Function of the process id of torchrun that is called while it runs.
    """
    log = scratch() / f"ranks-{time.monotonic_ns()}.txt"
    folder = Path(sys.executable).parent
    command = [str(folder / "python"), "-m", "dxn"]
    if number > 1 or launcher:
        torchrun = ["torchrun", "--standalone", "--nproc_per_node", str(number), *launcher]
        command = [str(folder / torchrun[0]), *torchrun[1:], "-m", "dxn"]
    started = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *without_repeats(arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if during is not None:
                during(process.pid)
            code: int | str = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = TIMEOUT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(code, log.read_text(errors="replace"), time.monotonic() - started)


def at_step(folder: Path, step: int, action: Callable[[int], object]) -> Callable[[int], object]:
    """Return a function for `launch` that calls `action` when a training has reached a step."""

    def during(pid: int) -> None:
        gone = Path(f"/proc/{pid}")
        wait_until(lambda: max(steps_of(folder), default=0) >= step or not gone.exists())
        action(pid)

    return during


def kill_one(pid: int) -> None:
    """Kill the last process of a torchrun."""
    os.kill(max(_children(pid)), signal.SIGKILL)


def kill_all(pid: int) -> None:
    """Kill a process and its children."""
    for each in [pid, *_children(pid)]:
        os.kill(each, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()]


def _reference(*options: str) -> Path:
    """Return the folder of an undisturbed training of 1 process."""
    return _cached("one", lambda folder: launch(1, "train", *LONG, *options, f"run={folder}"))


def _pair() -> Path:
    """Return the folder of an undisturbed training of 2 processes."""
    return _cached("two", lambda run: launch(2, "train", *LONG, "batch_size=10", f"run={run}"))


def _interrupted() -> Path:
    """Return the folder of a training of 2 processes of which one was killed in epoch 2."""

    def create(folder: Path) -> Ended:
        command = ("train", *LONG, "batch_size=10", EVERY, f"run={folder}")
        ended = launch(2, *command, during=at_step(folder, 133, kill_one))
        (folder / "ended.json").write_text(json.dumps([ended.code, ended.seconds, ended.said]))
        return ended

    return _cached("interrupted", create)


def _cached(name: str, create: Callable[[Path], Ended]) -> Path:
    folder = scratch() / f"ranks-{name}"
    if not folder.exists():
        ended = create(folder)
        if not folder.exists():
            raise RuntimeError(f"the training failed: {ended.output[-2000:]}")
    return folder


def losses(folder: Path) -> list[tuple[int, str, float]]:
    """Return (step, name, loss) of all lines of metrics.jsonl."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    names = ("train/loss", "validation/loss", "train/epoch_loss", "lr")
    return [(row["step"], name, row[name]) for row in rows for name in names if name in row]


def close(folder: Path, expected: Path, ended: Ended, *, exact: bool = False) -> Seen:
    """Compare the losses of a training with those of another one."""
    if ended.code:
        return Seen(False, f"code {ended.code}: {ended.said}")
    own, other = losses(folder), losses(expected)
    if [row[:2] for row in own] != [row[:2] for row in other]:
        return Seen(False, f"{len(own)} metrics instead of {len(other)}")
    differences = [abs(a[2] - b[2]) for a, b in zip(own, other, strict=True)]
    text = f"{len(own)} metrics, largest difference {max(differences):.1e}"
    if exact:
        same = sha256(folder) == sha256(expected)
        return Seen(same and own == other, f"{text}; same model: {same}")
    return Seen(max(differences) <= MAX_DIFFERENCE, text)


def _equal(folder: Path) -> Seen:
    return close(_pair(), _reference(), Ended(0, "", 0))


def _twice(folder: Path) -> Seen:
    ended = launch(2, "train", *LONG, "batch_size=10", f"run={folder / 'run'}")
    return close(folder / "run", _pair(), ended, exact=True)


def _accumulated(folder: Path) -> Seen:
    short = (*TINY, *NO_DROPOUT, "trainer.grad_accum_steps=3")
    launch(1, "train", *short, f"run={folder / 'one'}")
    ended = launch(2, "train", *short, "batch_size=10", f"run={folder / 'two'}")
    return close(folder / "two", folder / "one", ended)


def _few_samples(folder: Path) -> Seen:
    # The last batch of an epoch has 2 samples and then 1 sample per process.
    few = (*TINY, *NO_DROPOUT, "data.num_train=13", "data.num_validation=5", "data.num_test=5")
    launch(1, "train", *few, "batch_size=4", f"run={folder / 'one'}")
    ended = launch(2, "train", *few, "batch_size=2", f"run={folder / 'two'}")
    return close(folder / "two", folder / "one", ended)


def _killed(folder: Path) -> Seen:
    code, seconds, said = json.loads((_interrupted() / "ended.json").read_text())
    saved = checkpoint_step(_interrupted())
    passed = code not in (0, TIMEOUT) and saved is not None
    return Seen(passed, f"code {code} after {seconds:.0f} s; checkpoint at {saved}; {said}")


def _continued(number: int, *more: str) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        run = folder / "run"
        shutil.copytree(_interrupted(), run)
        ended = launch(number, "train", f"resume={run}", *more)
        return close(run, _pair(), ended, exact=number == 2)

    return inject


def _other_batch(folder: Path) -> Seen:
    run = folder / "run"
    shutil.copytree(_interrupted(), run)
    ended = launch(1, "train", f"resume={run}", "batch_size=10")
    # The saved option is 10 samples per process, so this is not a change: the batches stay.
    if ended.code == 0:
        return close(run, _pair(), ended)
    return Seen(ended.code == 2 and "batch_size" in ended.said, f"{ended.code}: {ended.said}")


def _back_and_forth(folder: Path) -> Seen:
    run = folder / "run"
    command = ("train", *LONG, EVERY, f"run={run}")
    launch(1, *command, during=at_step(run, 47, kill_all))
    first = checkpoint_step(run)
    launch(2, "train", f"resume={run}", during=at_step(run, 133, kill_all))
    second = checkpoint_step(run)
    ended = launch(1, "train", f"resume={run}")
    seen = close(run, _reference(), ended)
    return Seen(seen.passed, f"checkpoints at {first} and {second}; {seen.text}")


def _restarted(key: str) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        def kill_when_running(pid: int) -> None:
            wait_until(
                lambda: bool(steps_of(_run(folder, key))) or not Path(f"/proc/{pid}").exists()
            )
            at_step(_run(folder, key), 133, kill_one)(pid)

        ended = launch(
            2,
            *("train", *LONG, "batch_size=10", EVERY, f"{key}={folder / key}"),
            launcher=["--max-restarts=2"],
            during=kill_when_running,
        )
        folders = list((folder / "output").glob("*/*"))
        seen = close(_run(folder, key), _pair(), ended, exact=True)
        passed = seen.passed and (key == "run" or len(folders) == 1)
        return Seen(passed, f"code {ended.code}, {ended.seconds:.0f} s; {seen.text}; {ended.said}")

    return inject


def _run(folder: Path, key: str) -> Path:
    """Return the run folder below a folder."""
    return next((folder / key).glob("*/*"), folder) if key == "output" else folder / key


def _terminated(folder: Path) -> Seen:
    run = folder / "run"

    def terminate(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)

    command = ("train", *LONG, "batch_size=10", f"run={run}")
    ended = launch(2, *command, during=at_step(run, 133, terminate))
    at = max(steps_of(run))
    saved = checkpoint_step(run)
    again = launch(2, "train", f"resume={run}")
    seen = close(run, _pair(), again, exact=True)
    passed = ended.code not in (0, TIMEOUT) and saved == at and seen.passed
    return Seen(passed, f"code {ended.code}; step {at}, checkpoint at {saved}; {seen.text}")


def _orphans(folder: Path) -> Seen:
    run = folder / "run"
    ranks: list[int] = []

    def kill_launcher(pid: int) -> None:
        ranks.extend(_children(pid))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _running(ranks))

    command = ("train", *LONG, "batch_size=10", f"run={run}")
    launch(2, *command, during=at_step(run, 133, kill_launcher))
    left, at, saved = _running(ranks), max(steps_of(run)), checkpoint_step(run)
    seen = close(run, _pair(), launch(2, "train", f"resume={run}"), exact=True)
    passed = not left and saved == at and seen.passed
    return Seen(passed, f"step {at}, checkpoint at {saved}; left: {left}; {seen.text}")


def _running(pids: Sequence[int]) -> list[int]:
    # A process that has ended, but that its parent has not noticed yet, has no program.
    return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def _one_folder(folder: Path) -> Seen:
    options = (*TINY, "batch_size=10", "trainer.epochs=1")
    ended = launch(2, "train", *options, f"output={folder / 'output'}")
    folders = [path.name for path in (folder / "output").glob("*/*")]
    return Seen(ended.code == 0 and len(folders) == 1, f"code {ended.code}; {folders}")
