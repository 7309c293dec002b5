"""benchmarks/gpu.py: its parts on a CPU, its limits, and what it says about parts that fail."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers import varlen
from helpers.benchmarks import load
from runs.test_captured import record

from dxn.models import compiling
from dxn.models.decoding import generation
from dxn.runs.predictor import captured
from dxn.training.loop import Fit

pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")

gpu, row = load("gpu"), load("bench_row")
paths, steps = load("bench_paths"), load("bench_steps")
CPU = torch.device("cpu")
TIMM_IS_MISSING = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
def find_others(cls, name, *args):
    return None if name.split(".")[0] == "timm" else find(name, *args)
PathFinder.find_spec = classmethod(find_others)
"""
# In place of bench.py: each row behaves as its name says.
FAKE = """
import json, subprocess, sys, time

name, path = (sys.argv[sys.argv.index(option) + 1] for option in ("--only", "--json"))
print(f"output of {name}")
if name == "path_fsdp":
    time.sleep(60)
if name == "path_int8":
    raise ModuleNotFoundError("No module named 'numpy'")
gap = {"path_loss": 1e-7, "path_low_muon": 0.3}.get(name, float("nan"))
values, ratios = {"dxn": 0.002, "plain": 0.003}, {"plain": 1.5}
facts = {"relative difference of the answers": gap, "allowed difference": 0.05}
record = {"name": name, "title": f"title of {name}", "kind": "path", "values": values}
record |= {"ratios": ratios, "facts": facts, "machine": {"device": "a GPU"}}
if name == "path_prefetch":
    record = {"name": name, "kind": "path", "error": "no stream"}
with open(path, "w") as file:
    json.dump(record, file)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs parts with FAKE; it returns the exit code and the log."""
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    monkeypatch.setattr(gpu, "BENCH", fake)
    monkeypatch.setattr(gpu, "MOST", 5.0)

    def call(*parts, minutes=8):
        log = tmp_path / "gpu.log"
        only = ["--only", *parts, "--minutes", str(minutes)]
        code = gpu.main(["--device", "cpu", "--log", str(log), *only])
        return code, log.read_text(encoding="utf-8")

    return call


def test_every_path_is_a_part_and_every_part_is_a_row():
    rows = {each.name: each for each in load("bench").ROWS}
    assert set(gpu.ROWS) <= set(rows)
    assert len(set(gpu.ROWS)) == len(gpu.ROWS)
    assert {name for name, each in rows.items() if each.kind == "path"} <= set(gpu.ROWS)
    assert (paths.GAP, paths.ALLOWED) == (gpu.GAP, gpu.ALLOWED)
    assert any(gpu.MARK in path.read_text() for path in Path("tests/models").glob("*.py"))


def test_a_path_with_the_answers_of_the_plain_one_is_in_the_table(run):
    code, log = run("path_loss")
    assert code == 0
    assert "output of path_loss" in log
    assert "| title of path_loss | yes (1.0e-07)      | 3.00      | 2.00     | 1.50  |" in log
    assert '"device": "a GPU"' in log


@pytest.mark.parametrize("part", ["path_low_muon", "path_low_adapter"])
def test_a_path_with_other_answers_or_nan_is_a_failure(run, part):
    code, log = run(part)
    assert code == 1
    assert f"| title of {part} | NO (" in " ".join(log.split("\n"))


def test_a_part_that_fails_or_takes_too_long_does_not_stop_the_others(run, monkeypatch):
    code, log = run("path_fsdp", "path_int8", "path_prefetch", "path_loss")
    assert code == 1
    assert "title of path_loss | yes" in log
    table = log[log.index("| left out") :]
    assert "not complete after 5 s" in table
    assert "FAILED: ModuleNotFoundError: No module named 'numpy'" in table
    assert "FAILED: no stream" in table


def test_no_part_begins_without_time(run):
    code, log = run("path_loss", minutes=0.1)
    assert code == 0
    assert "output of" not in log
    assert "| path_loss | no time was left |" in log


@pytest.mark.parametrize(("device", "part"), [("cpu", "tests"), ("cpu", "path_graph_image")])
def test_a_part_that_needs_a_gpu_is_refused_on_a_cpu(device, part, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--device", device, "--only", part])
    assert f"{part} is no part for {device}" in capsys.readouterr().err


def test_the_packages_are_printed_with_their_versions(capsys):
    assert gpu.main(["--packages"]) == 0
    out = capsys.readouterr().out
    assert f"torch=={torch.__version__.partition('+')[0]}\n" in out
    assert "pydantic-core==" in out and "# missing" not in out


@pytest.mark.exhaustive
def test_a_missing_package_stops_only_the_parts_that_need_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(TIMM_IS_MISSING)
    log = tmp_path / "gpu.log"
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--log", str(log)]
    command += ["--only", "path_loss", "vit_b16_batch1"]
    before = Path("benchmarks/speed/results.json").read_bytes()
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    text = log.read_text(encoding="utf-8")
    assert ended.returncode == 1
    assert "need pip install timm" in text[text.index("| left out") :]
    assert "loss in chunks: 8,192 tokens over 50,304 words | yes" in text
    assert Path("benchmarks/speed/results.json").read_bytes() == before


def build(name, tmp_path):
    """The work of a row with small sizes, after one call of both sides."""
    built = next(each for each in (*paths.ROWS, *steps.ROWS) if each.name == name)
    work = built.build(row.Options(tmp_path, CPU, torch.float32, tiny=True))
    for call in work.calls.values():
        assert call() is None
    return work.facts[paths.GAP], work.facts[paths.ALLOWED]


@pytest.mark.parametrize("name", ["path_graph_image", "path_graph_texts"])
def test_predictions_as_graphs(name, tmp_path, monkeypatch):
    with pytest.raises(row.Unequal, match="no graph was recorded"):
        build(name, tmp_path)
    monkeypatch.setattr(captured, "record_on_cuda", lambda device, call: record(call))
    gap, allowed = build(name, tmp_path)
    assert gap <= allowed


@pytest.mark.parametrize("name", ["path_graph_writing", "path_graph_beams"])
def test_texts_of_captured_steps(name, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "capture", lambda *args: None)
    with pytest.raises(row.Unequal, match="no step was captured"):
        build(name, tmp_path)
    capture = mock.Mock(side_effect=lambda step, device, generators: step)
    monkeypatch.setattr(generation, "capture", capture)
    assert build(name, tmp_path) == (0, 0)
    assert capture.call_count == 3  # not of the plain side


@pytest.mark.parametrize("name", ["path_kernel_texts", "path_kernel_training"])
def test_attention_without_padding(name, tmp_path, monkeypatch):
    monkeypatch.setattr("dxn.models.packing.has_kernel", lambda x, head_dim: True)
    varlen.calls.clear()
    gap, allowed = build(name, tmp_path)
    assert varlen.calls and gap <= allowed


@pytest.mark.parametrize(
    "name",
    ["path_prefetch", "path_int8", "path_low_adapter", "path_skipped_steps", "path_low_muon"],
)
def test_other_paths(name, tmp_path):
    gap, allowed = build(name, tmp_path)
    assert gap <= allowed


def test_a_path_with_wrong_answers_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "linear_cross_entropy", lambda *args: (args[0] @ args[1].T).sum())
    gap, allowed = build("path_loss", tmp_path)
    assert gap > allowed


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["path_compiled_images", "path_compiled_texts", "path_fsdp"])
def test_a_step_is_compiled_as_a_whole(name, tmp_path, monkeypatch):
    """As on a GPU, but without generated code, which takes long."""
    monkeypatch.setattr(Fit, "compiles_model", property(lambda fit: fit.trainer.compile))
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    compiling._compiled.cache_clear()
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    try:
        gap, allowed = build(name, tmp_path)
    finally:
        compiling._compiled.cache_clear()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert gap <= allowed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
