"""The commands of docs/cluster.md, the files of examples/jobs, and the Dockerfile."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib

import pytest
import yaml
from helpers.pages import DOCS, ROOT, blocks, check_command, commands, run_python

PAGE = DOCS / "cluster.md"
JOBS = ROOT / "examples" / "jobs"
BILLION_PAIRS = ROOT / "benchmarks" / "studies" / "billion_pairs.md"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
# Waits for a signal, as torchrun does, whose exit code after it is 1.
SRUN = """#!/bin/bash
trap 'exit 1' TERM
echo "$*" >> launched
[ -e fails ] && exit 1
for _ in $(seq 200); do sleep 0.05; [ -e done ] && exit 0; done
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'node7\\nnode8\\n'; else echo "$*" >> requeued; fi
"""


def job(name):
    return (JOBS / name).read_text(encoding="utf-8")


def manifests():
    return list(yaml.safe_load_all(job("several_machines.yaml")))


def launches():
    """Every torchrun command of the page and the jobs: its words, and those after `-m dxn`."""
    texts = [block.text for block in blocks(PAGE) if block.kind == "sh"]
    for text in [*texts, job("several_machines.sbatch"), job("several_machines.yaml")]:
        text = text.replace("\\\n", " ")
        options = re.search(r"options=\((.*)\)", text)
        for launch, training in re.findall(r"(torchrun .*?) -m dxn (.*)", text):
            if options is not None:
                training = training.replace('"${options[@]}"', options[1]).removesuffix(" &")
            yield launch, training


def test_the_training_of_each_launch_composes():
    trainings = [training for _, training in launches()]
    assert len(trainings) >= 5
    for training in trainings:
        assert len(check_command(f"dxn {training}")) == 1


# The second process is killed at its first start. The first one waits, as for a gradient.
RANK = """
import os, sys, time
from pathlib import Path
from dxn.core.processes import from_all, launch
from dxn.training.parallel import connect

connect("cpu")
started, rank = launch(), os.environ["RANK"]
words = rank, started.is_restart, os.environ["TORCHELASTIC_RESTART_COUNT"]
file = Path(sys.argv[1], "-".join(map(str, words)))
file.write_text(started.id)
assert from_all(lambda: 1) == ([1, 1] if rank == "0" else [])
if not started.is_restart:
    if rank == "1":
        os.kill(os.getpid(), 9)
    time.sleep(60)
"""


@pytest.mark.exhaustive
def test_two_machines_find_each_other_with_the_command_of_the_page_also_after_a_kill(tmp_path):
    (launch,) = (launch for launch, _ in launches() if "node0" in launch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    launch = launch.replace("node0:29500", address).replace("per_node=8", "per_node=1")
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", *shlex.split(launch)[1:]]
    command += [str(tmp_path / "rank.py"), str(tmp_path)]
    machines = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [machine.wait(timeout=60) for machine in machines] == [0, 0]
    # The machine of the first process counts no restart, because none of its processes failed.
    names = ["0-False-0", "0-True-0", "1-False-0", "1-True-1"]
    files = {path.name: path.read_text() for path in tmp_path.glob("*-*")}
    assert sorted(files) == names
    # Both starts belong to the same torchrun, whose run folder they share.
    assert len(set(files.values())) == 1


@pytest.fixture
def slurm(tmp_path):
    """A folder with the script for several machines, and programs that stand for those of Slurm."""
    (tmp_path / "train.sbatch").write_text(job("several_machines.sbatch"))
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(folder):
    """Start the script, and wait until it has started its step."""
    variables = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[7-8]"}
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, **variables, "PATH": path}
    process = subprocess.Popen(["bash", "train.sbatch"], cwd=folder, env=environment)
    while not (folder / "launched").exists():
        time.sleep(0.01)
    return process


def test_a_slurm_job_that_is_stopped_early_is_queued_again(slurm):
    process = start(slurm)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=20) == 128 + signal.SIGUSR1
    assert (slurm / "requeued").read_text() == "requeue 17\n"
    launched = (slurm / "launched").read_text()
    assert "--nnodes=2" in launched and "--rdzv_endpoint=node7:29500 --rdzv_id=17-1" in launched
    assert launched.endswith("-m dxn train reviews.csv target=label run=outputs/reviews\n")


def test_a_slurm_job_that_finds_a_checkpoint_continues_and_ends(slurm):
    (slurm / "outputs/reviews/checkpoints/step-000000007").mkdir(parents=True)
    process = start(slurm)
    (slurm / "done").touch()
    assert process.wait(timeout=20) == 0
    assert (slurm / "launched").read_text().endswith("-m dxn train resume=outputs/reviews\n")
    assert not (slurm / "requeued").exists()


def test_a_slurm_job_tries_three_times_if_a_process_fails(slurm):
    (slurm / "fails").touch()
    assert start(slurm).wait(timeout=20) == 1
    ids = re.findall(r"--rdzv_id=(\S+)", (slurm / "launched").read_text())
    assert ids == ["17-1", "17-2", "17-3"]
    assert not (slurm / "requeued").exists()


def test_the_jobs_for_one_machine_start_and_continue_the_same_run():
    (manifest,) = yaml.safe_load_all(job("one_machine.yaml"))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    (command,) = re.findall(r"^srun (.*)$", job("one_machine.sbatch"), re.MULTILINE)
    assert container["command"] == command.split()
    assert len(check_command(command)) == 1 and command.endswith("resume=auto")
    subprocess.run(["bash", "-n"], input=job("one_machine.sbatch"), text=True, check=True)


def test_the_pods_of_the_manifest_find_the_first_one():
    service, pods = manifests()
    name, pod = pods["metadata"]["name"], pods["spec"]["template"]["spec"]
    assert pods["spec"]["completions"] == pods["spec"]["parallelism"] == 2
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    (container,) = pod["containers"]
    script = container["args"][0]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert (
        f"--nnodes=2 --nproc_per_node={container['resources']['limits']['nvidia.com/gpu']}"
        in script
    )
    assert f"--rdzv_endpoint={name}-0.{pod['subdomain']}:29500" in script
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    # The user of the image.
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == [
        str(pod["securityContext"]["runAsUser"])
    ]


def test_the_image_copies_what_its_context_contains():
    context = (ROOT / ".dockerignore").read_text().splitlines()
    for sources in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists() and f"!{source}" in context


def test_the_image_installs_groups_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'^ARG EXTRAS="(.*)"$', DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_each_run_line_of_the_image_is_a_correct_script():
    lines = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        script = re.sub(r"--mount=\S+", "", line)
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_the_needs_of_a_billion_pairs_are_computed_as_the_study_says():
    parts = list(blocks(BILLION_PAIRS))
    (computed,) = (block for block in parts if block.kind == "python")
    assert run_python(computed, {}, BILLION_PAIRS.name) == computed.output
    assert [check_command(command) for block in parts for command in commands(block)]


def test_the_measured_times_are_those_of_the_benchmarks():
    benchmarks = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8").splitlines()
    page = BILLION_PAIRS.read_text(encoding="utf-8")
    rows = re.findall(r"\| (\S+ ms) \| H100, `(\w+)`", page)
    assert len(rows) == 2
    for duration, row in rows:
        assert any(f"| {duration} |" in line and f"`{row}`" in line for line in benchmarks), row
        assert f"/ {float(duration.split()[0]) / 1000:.4f}" in page  # the Python uses it
