"""Completion of the command line, and what installs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dxn.cli import main
from dxn.commands import VERBS, all_commands
from dxn.config.completion import complete as complete_line

SCRIPT = Path("dxn/config/shells/bash").absolute()


pytestmark = pytest.mark.usefixtures("stored_signatures")


def complete(line):
    return complete_line(line, all_commands())


# Executes the completion of bash for a line, and prints what it offers.
ASK_BASH = """
source "$1"
COMP_LINE="$2"; COMP_POINT=${#2}
read -ra COMP_WORDS <<< "$2"; COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
compopt() { :; }
_dxn
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dxn tra", ["train"]),
        ("dxn --v", ["--version"]),
        ("dxn --completion f", ["fish"]),
        ("dxn train trainer.pat", ["trainer.patience="]),
        ("dxn train backbone=gru backbone.bid", ["backbone.bidirectional="]),
        ("dxn train adapters.text.tokenizer.k", ["adapters.text.tokenizer.kind="]),
        ("dxn train adapters=[text,im", ["adapters=[text,image", "adapters=[text,image_codes"]),
        ("dxn train report=t", ["report=true"]),
        ("dxn train targ", ["target="]),
        ("dxn predict run=lat", ["run=latest"]),
        ("dxn predict run=a output=b dev", ["device="]),
        ("dxn help backb", ["backbone"]),
        ("dxn nothing ", []),
        ('dxn train "my ta', ["my table.csv"]),
        ("dxn train data.path=fol", ["data.path=folder/"]),
        ("dxn train folder/", ["folder/photo.jpg"]),
        ("dxn train missing/", []),
    ],
)
def test_the_end_of_a_line_is_completed(line, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo.jpg").touch()
    (tmp_path / "my table.csv").touch()
    assert complete(line) == expected


def test_all_commands_are_offered():
    assert set(VERBS) < set(complete("dxn "))


def test_every_command_offers_its_own_keys():
    for verb in VERBS:
        keys = all_commands()[verb].options().by_key
        assert {f"{key}=" for key in keys} <= set(complete(f"dxn {verb} "))


def test_completion_imports_neither_torch_nor_hydra():
    code = (
        "import sys; from dxn.cli import main; main(['--complete', 'dxn train trainer.pr']); "
        "assert not {'torch', 'hydra', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["trainer.precision="]


@pytest.mark.parametrize(
    ("line", "expected"), [("dxn tra", "train"), ("dxn train backbone=gr", "gru")]
)
def test_bash_replaces_only_the_word_that_it_completes(line, expected, tmp_path):
    assert offered_by_bash(line, tmp_path).split() == [expected]


@pytest.mark.parametrize("name", ["x$(touch y).csv", "x`touch y`.csv", "x;y.csv", "it's.csv"])
def test_bash_never_runs_the_name_of_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("text,label\n")
    (offered,) = offered_by_bash(f"dxn check {name[0]}", tmp_path).splitlines()
    done = subprocess.run(
        ["bash", "-c", f"echo {offered}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{name}\n"
    assert not Path("y").exists()


def offered_by_bash(line, tmp_path):
    program = tmp_path / "dxn"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dxn "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", ASK_BASH, "bash", SCRIPT, line],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell, capsys):
    assert main(["--completion", shell]) == 0
    assert "dxn --complete" in capsys.readouterr().out.replace('"${words[1]}"', "dxn").replace(
        '"${COMP_WORDS[0]}"', "dxn"
    )


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_an_unknown_shell_is_refused(words, capsys):
    assert main(["--completion", *words]) == 2
    assert "must be one of bash, zsh, fish, got" in capsys.readouterr().err


def test_doctor_prints_versions_devices_and_formats(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in (
        "dxn: ",
        "torch ",
        "cpu: ",
        "images: JPEG",
        "extra serve",
        "sound files: WAV",
        "precision: ",
    ):
        assert word in out


def test_version_prints_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dxn ")
