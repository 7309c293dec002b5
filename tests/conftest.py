"""Process settings and seeds of all tests."""

import os
from pathlib import Path

from dxn.core.runtime import configure

configure()  # before torch is imported
# Also for processes that tests start: no test asks the hub, or finds a model in the user's cache.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_CACHE"] = str(Path(__file__).with_name("no_cache"))

import copy  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402
import hashlib  # noqa: E402
import pickle  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from importlib.metadata import entry_points, version  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from helpers.browser import browser_path  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from trained_runs import TrainedRuns  # noqa: E402

from dxn.config import compose, signatures  # noqa: E402

# Shells start background jobs with SIGINT ignored, and nohup ignores SIGHUP. The processes of the
# tests would inherit both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine fails no test.
settings.register_profile("dxn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dxn")

# Until the tests are collected: importing them creates many objects, and none of them is garbage.
gc.disable()


# Processes take whole files; the longest first, so that none is left for one process at the end.
LONG_FILES = (
    "training/test_processes.py",
    "test_architecture.py",
    "export/test_export.py",
    "tasks/test_any.py",
    "docs/test_docs.py",
    "runs/test_report.py",
    "tasks/test_judge.py",
    "runs/test_bulk.py",
    "serve/test_page.py",
    "weights/test_translators.py",
    "data/test_known.py",
    "answers/test_trees.py",
    "answers/test_files_statistics.py",
    "answers/test_commands_next.py",
    "docs/test_extend.py",
    "viz/test_explain.py",
    "runs/test_conclusion.py",
    "runs/test_tune.py",
    "runs/test_resume.py",
    "runs/test_streaming.py",
    "runs/test_masked.py",
    "tasks/test_detect.py",
    "runs/test_chats.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching all imported modules again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def stored_signatures() -> None:
    """The file with the signatures of the parts, without which a command imports torch."""
    signatures.update()


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedRuns]:
    """A function from a name of trained_runs.py to the folder of that run, not to be changed."""
    trained = TrainedRuns(tmp_path_factory.mktemp("trained"))
    yield trained
    trained.check_unchanged()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of the system, which needs no display."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright; run make setup")
    path = browser_path()
    # A microphone that beeps, and no question whether a page may use it.
    flags = [f"--use-fake-{name}-for-media-stream" for name in ("device", "ui")]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *flags])
        yield started
        started.close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved in a test, as objects."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    savefig = Figure.savefig

    def keep(figure: Any, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.fixture(autouse=True, scope="module")
def _no_extras(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs without pictures and report.html, which take most of the time of a tiny run.

    A module whose tests need them says so with DRAWS_PICTURES = True or WRITES_REPORTS = True.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "DRAWS_PICTURES", False):
            patch.setattr("dxn.runs.evaluation.evaluate.draw_tokens", lambda *_, **__: None)
        if not getattr(request.module, "WRITES_REPORTS", False):
            patch.setattr("dxn.runs.evaluation.after_training.try_report", lambda *_, **__: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _files_are_not_synchronized() -> Iterator[None]:
    """Waiting for the disk takes ten milliseconds per file, and the tests write thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _files_of_groups_are_composed_once(
    tmp_path_factory: pytest.TempPathFactory, testrun_uid: str
) -> Iterator[None]:
    """Hydra takes 80 ms for the same files of dxn, a third of the time of a tiny training."""
    composed: dict[Any, dict[str, Any]] = {}
    original = compose._compose_files
    # The processes of one run of pytest share what they have composed.
    shared = tmp_path_factory.getbasetemp().parent / f"composed-{testrun_uid}"
    shared.mkdir(exist_ok=True)

    def compose_files(command: Any, request: Any) -> dict[str, Any]:
        if request.folders[1:]:  # files of a user can change
            return original(command, request)
        key = command, *(override.line for override in request.groups)
        file = shared / hashlib.sha256(repr((command.verb(), *key[1:])).encode()).hexdigest()
        if key not in composed and file.exists():
            composed[key] = pickle.loads(file.read_bytes())
        if key not in composed:
            before = list(request.problems)
            values = original(command, request)
            if request.problems != before:
                return values
            composed[key] = values
            written = file.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps(values))
            written.replace(file)
        return copy.deepcopy(composed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "_compose_files", compose_files)
        yield


@pytest.fixture(autouse=True, scope="session")
def _installed_packages_are_read_once() -> Iterator[None]:
    """Commands read the metadata of all packages, a tenth of the time of a tiny training."""
    read = functools.cache(lambda path, group: entry_points(group=group))
    with pytest.MonkeyPatch.context() as patch:
        # A test can install a package, which changes the path.
        patch.setattr("dxn.config.words.entry_points", lambda group: read(tuple(sys.path), group))
        patch.setattr("dxn.runs.record.version", functools.cache(version))
        yield


@pytest.fixture(autouse=True, scope="session")
def _precision_is_float32() -> Iterator[None]:
    """precision=auto is float32, whatever else runs on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "dxn.training.parallel.choose_bf16", lambda device: (False, "float32: in tests")
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _garbage_is_not_collected_for_memory() -> Iterator[None]:
    """After a batch that does not fit, the collector searches all objects of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dxn.core.runtime.gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Randomness that a test does not ask for would make it fail only sometimes."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _archives_are_extracted_to_a_folder_of_the_tests(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
