"""Runs the cases of fuzz.py in forked processes with limits of time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dxn.core.errors import UserError
from dxn.tokenize.base import BadMedia

SECONDS = 5  # of CPU time per case
# A case that waits, for example for a named pipe, takes no CPU time. Other processes can occupy the
# machine, so this limit is higher.
WAIT_SECONDS = 20
MEGABYTES = 500  # more than before the case
ADDRESS_SPACE = 3_000_000_000  # more than before; a larger allocation fails in the process itself
CASES_PER_PROCESS = 500  # then a new process is forked, so that leaks do not add up
REFUSED, RIGHT = "refused clearly", "right answers"
TRACEBACK, WRONG, HANG = "tracebacks", "wrong answers", f"over {SECONDS} s"
MEMORY, CODE, DIED = f"over {MEGABYTES} MB", "code run", "aborts"
FAILURES = (TRACEBACK, WRONG, HANG, MEMORY, CODE, DIED)
MAX_TEXT = 300


class Kind(Protocol):
    """A kind of mutated inputs."""

    name: str

    def prepare(self, folder: Path) -> None:
        """Create valid inputs in a folder, once, before processes are forked."""
        ...

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Write a mutated input to an empty folder, and return its description."""
        ...

    def use(self, folder: Path) -> Any:
        """Read the input with dxn and return the answer.

        Raises:
            UserError, BadMedia: If the input is refused.
            AssertionError: If the answer is wrong.
        """
        ...


@dataclass(frozen=True)
class Outcome:
    """What happened in a case.

    Args:
        case: Number of the case.
        kind: One of the constants above.
        text: Description of the input, and the error.
        seconds: CPU time.
    """

    case: int
    kind: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class _Worker:
    pid: int
    results: int  # file descriptor
    remaining: list[int]
    buffer: bytes = b""
    started: float = field(default_factory=time.monotonic)
    cpu: float = 0.0
    description: str = ""


def random_of(kind: Kind, seed: int, case: int) -> random.Random:
    """Return the random generator of a case."""
    return random.Random(f"{kind.name} {seed} {case}")


def canary() -> Path:
    """Return the path of the file that hostile inputs try to create."""
    return Path(os.environ["DXN_FUZZ_CANARY"])


def run_all(kind: Kind, *, count: int, seed: int, processes: int, folder: Path) -> list[Outcome]:
    """Run the cases 0 to count - 1 of a kind.

    Args:
        kind: The kind, which is prepared.
        count: Number of cases.
        seed: Seed of the mutations.
        processes: Number of processes that run at the same time.
        folder: Folder of scratch files.
    """
    queue = list(range(count))[::-1]
    outcomes: list[Outcome] = []
    workers: list[_Worker] = []
    while queue or workers:
        while queue and len(workers) < processes:
            chunk = [queue.pop() for _ in range(min(CASES_PER_PROCESS, len(queue)))]
            workers.append(_fork(kind, seed, chunk, folder))
        ready, _, _ = select.select([worker.results for worker in workers], [], [], 0.2)
        for worker in list(workers):
            finished = worker.results in ready and not _receive(worker, outcomes)
            if finished or _is_stuck(worker):
                workers.remove(worker)
                outcome = _end(worker, hung=not finished)
                if outcome is not None:
                    outcomes.append(outcome)
                    queue += worker.remaining[:0:-1]  # without the case that failed
    return outcomes


def _receive(worker: _Worker, outcomes: list[Outcome]) -> bool:
    """Read the messages of a worker. False: it has ended."""
    content = os.read(worker.results, 65_536)
    *lines, worker.buffer = (worker.buffer + content).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if "description" in message:
            worker.description = message["description"]
        else:
            worker.remaining.remove(message["case"])
            outcomes.append(Outcome(**message))
    worker.started = time.monotonic()
    worker.cpu = _cpu_seconds(worker.pid)
    return bool(content)


def _is_stuck(worker: _Worker) -> bool:
    if time.monotonic() - worker.started < SECONDS:
        return False
    used = _cpu_seconds(worker.pid) - worker.cpu
    return used > SECONDS or time.monotonic() - worker.started > WAIT_SECONDS


def _end(worker: _Worker, *, hung: bool) -> Outcome | None:
    """Wait for a worker that has ended or hangs; return the outcome of its unfinished case."""
    if hung:
        os.killpg(worker.pid, signal.SIGKILL)
    _, status = os.waitpid(worker.pid, 0)
    os.close(worker.results)
    if not worker.remaining:
        return None
    kind = HANG if hung else DIED
    reason = "" if hung else f": exit code {os.waitstatus_to_exitcode(status)}"
    return Outcome(worker.remaining[0], kind, f"{worker.description}{reason}")


def _fork(kind: Kind, seed: int, cases: list[int], folder: Path) -> _Worker:
    reading, writing = os.pipe()
    sys.stdout.flush()
    # torch has no threads yet that could hold a lock: OMP_NUM_THREADS is 1.
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Worker(pid, reading, list(cases))
    try:
        os.setpgid(0, 0)
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = size + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        warnings.simplefilter("ignore")
        work = folder / f"work-{os.getpid()}"
        os.environ["DXN_FUZZ_CANARY"] = str(folder / f"canary-{os.getpid()}")
        with os.fdopen(writing, "w") as results:
            for message in _cases(kind, seed, cases, work):
                results.write(json.dumps(message) + "\n")
                results.flush()
        shutil.rmtree(work, ignore_errors=True)
    except BaseException:
        with (folder / "errors.txt").open("a") as file:
            traceback.print_exc(file=file)
        os._exit(1)
    finally:
        os._exit(0)


def _cases(kind: Kind, seed: int, cases: list[int], work: Path) -> Iterator[dict[str, Any]]:
    """Run cases in this process, and yield a message before and after each."""
    for case in cases:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        description = kind.mutate(random_of(kind, seed, case), work)
        yield {"description": description[:MAX_TEXT]}
        _reset_peak()
        before = _peak_megabytes()
        cpu = time.process_time()
        outcome, text = _outcome(kind, work)
        seconds = time.process_time() - cpu
        more = _peak_megabytes() - before
        if canary().exists():
            canary().unlink()
            outcome = CODE
        elif seconds > SECONDS and outcome in (REFUSED, RIGHT):
            outcome = HANG
        elif more > MEGABYTES and outcome in (REFUSED, RIGHT):
            outcome, text = MEMORY, f"{more:.0f} MB: {text}"
        text = f"{description[:MAX_TEXT]}: {text}" if outcome in FAILURES else ""
        yield {"case": case, "kind": outcome, "text": text, "seconds": seconds}


def _outcome(kind: Kind, work: Path) -> tuple[str, str]:
    try:
        return RIGHT, str(kind.use(work))[:MAX_TEXT]
    except (UserError, BadMedia) as error:
        text = str(error)
        return (REFUSED if text.strip() else TRACEBACK), text[:MAX_TEXT]
    except AssertionError as error:
        return WRONG, str(error)[:MAX_TEXT]
    # An error in a library in Rust is no Exception but a BaseException.
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
        return TRACEBACK, f"{type(error).__name__}: {str(error)[:MAX_TEXT]} ({where})"


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _reset_peak() -> None:
    # 5 resets the peak of the resident memory, see proc_pid_clear_refs(5).
    Path("/proc/self/clear_refs").write_text("5")


def _peak_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
