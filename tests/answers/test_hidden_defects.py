"""What belongs to one thread does not change others, and neither metrics nor defects are hidden."""

import base64
import hashlib
import math
import os
import re
import threading
from pathlib import Path

import pandas
import pytest
from helpers.runs import SMALL
from omegaconf import OmegaConf

import dxn
from dxn.cli import main
from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.sklearn import Classifier

OPTIONS = [*SMALL, "preset=plain", "baseline=none", "trainer.epochs=1", "report=false"]
TINY = {"dim": 16, "backbone.depth": 1, "backbone.num_heads": 2, "preset": "plain"}


def in_another_thread(function):
    """The result of a function that runs in another thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_other_threads_read_the_environment_while_a_command_is_composed(monkeypatch):
    monkeypatch.setenv("DXN_TEST_NAME", "apple")
    texts = OmegaConf.create({"name": "${oc.env:DXN_TEST_NAME}"})
    read = []

    def probe():
        read.append(in_another_thread(lambda: texts.name))
        return "out"

    OmegaConf.register_new_resolver("probe", probe)
    try:
        settings = compose(Train, ["data=digits", "output=${probe:}"])
    finally:
        OmegaConf.clear_resolver("probe")
    assert settings.values["output"] == "out"
    assert set(read) == {"apple"}


@pytest.fixture
def frame():
    return pandas.DataFrame({"text": [f"film {i}" for i in range(12)]})


def test_a_silent_estimator_silences_only_its_own_thread(frame, capsys, monkeypatch):
    train = dxn.train

    def spying(*arguments, **options):
        in_another_thread(lambda: print("from another thread"))
        return train(*arguments, **options)

    monkeypatch.setattr(dxn, "train", spying)
    labels = ["a", "b"] * 6
    Classifier(epochs=1, options=TINY).fit(frame, labels)
    assert capsys.readouterr() == ("from another thread\n", "")
    Classifier(epochs=1, options=TINY, verbose=True).fit(frame, labels)
    assert "train: 12 rows" in capsys.readouterr().out


@pytest.mark.parametrize("epochs", [1, 2])
def test_figures_that_are_not_defined_are_no_problem_of_a_run(epochs, frame, tmp_path, capsys):
    train = frame.assign(y=range(12))
    # R² of equal targets is not defined.
    equal = frame.assign(text=frame["text"] + " again", y=[3.0 + epochs] * 12)
    dxn.train(
        {"train": train, "validation": equal, "test": equal},
        *OPTIONS,
        target="y",
        run=tmp_path / "run",
        **{"trainer.epochs": epochs},
        metrics={"undefined": lambda predictions, targets: math.nan},
    )
    assert main(["verify", f"run={tmp_path / 'run'}"]) == 0
    assert "no problems found" in capsys.readouterr().out


def page_of(run, folder, text):
    """The attention page of a text."""
    assert main(["attend", f"run={run}", f"output={folder}", f"input.text={text}"]) == 0
    return folder / "attention.html"


def test_the_attention_page_runs_no_script_but_its_own_and_is_replaced_as_a_whole(frame, tmp_path):
    labels = frame.assign(label=["a", "b"] * 6)
    dxn.train(labels, *OPTIONS, target="label", run=tmp_path / "run")
    for text in ("good film", "{{digest}} <script>alert(1)</script> {{data}}"):
        page = page_of(tmp_path / "run", tmp_path / "attend", text)
        html = page.read_text()
        (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\"" in html
    # The old page stays complete until the new one is.
    before = page.read_text()
    os.link(page, tmp_path / "old.html")
    page_of(tmp_path / "run", tmp_path / "attend", "bad film")
    assert (tmp_path / "old.html").read_text() == before != page.read_text()


def fail_with(monkeypatch, error):
    """Let `dxn train` fail with this error."""

    def fails(settings):
        raise error

    monkeypatch.setattr("dxn.commands.train.Train.execute", fails)


@pytest.mark.parametrize("name", [str(Path(dxn.__file__).parent / "page.html"), 3, None])
def test_an_error_about_a_file_of_dxn_is_not_reported_as_one_of_the_user(name, monkeypatch):
    fail_with(monkeypatch, FileNotFoundError(2, "No such file or directory", name))
    with pytest.raises(FileNotFoundError):
        main(["train", "data=digits"])


@pytest.mark.parametrize("name", ["out.csv", b"out.csv", "/full/out.csv"])
def test_an_error_about_a_file_of_the_user_is_one_sentence(name, monkeypatch, capsys):
    fail_with(monkeypatch, PermissionError(13, "Permission denied", name))
    assert main(["train", "data=digits"]) == 2
    assert "out.csv: Permission denied; with DXN_DEBUG=1" in capsys.readouterr().err
