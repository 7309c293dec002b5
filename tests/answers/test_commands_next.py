"""A command that dxn prints as the next one runs as it is printed, in a POSIX shell."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.newcomer import printed
from helpers.runs import PLAIN, SMALL, TINY_DIGITS, interrupt
from PIL import Image

from dxn.cli import main

QUICK = [*PLAIN, *SMALL, "trainer.epochs=1", "report=false"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The current folder, whose name needs quotes in a shell."""
    folder = tmp_path / "it's a place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write_texts(path, *, text="it's a $HOME film; number {}", sep=",", encoding="utf-8"):
    lines = [f"{text.format(i)}{sep}{'ab'[i % 2]}\n" for i in range(30)]
    Path(path).write_text("".join([f"text{sep}label\n", *lines]), encoding=encoding)
    return path


def next_of(output):
    lines = output.splitlines()
    return [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]


def follow(capsys, *command, depth=1):
    """Run a command and those that it prints, down to a depth, and return the verbs of these."""
    verbs = []
    for line in next_of(printed(capsys, *command)):
        program, *words = shlex.split(line)
        assert program == "dxn"
        assert 'on_bad="' not in line  # a plain word needs no quotes
        verbs.append(words[0])
        if depth > 1:
            verbs += follow(capsys, *words, depth=depth - 1)
        else:
            printed(capsys, *words)
    return verbs


def test_after_a_training_on_texts_and_after_each_of_the_next_commands(place, capsys):
    table = write_texts(place / "it's a table.csv")
    verbs = follow(capsys, "train", table, "target=label", *QUICK, "output=my runs", depth=2)
    assert verbs == ["attend", "evaluate", "predict"]
    assert len(Path("answers.csv").read_text().splitlines()) == 31


def test_after_a_training_on_the_built_in_data_and_an_index_of_it(capsys):
    quick = [*TINY_DIGITS, "trainer.epochs=1", "trainer.device=cpu", "report=false", "run=digits"]
    assert follow(capsys, "train", *quick) == ["attend", "evaluate", "predict"]
    index = ["index", "run=digits", "output=my index"]
    assert follow(capsys, *index, depth=2) == ["search", "search"]
    assert follow(capsys, "embed", "run=digits", "input.text=it's") == ["embed"]
    assert Path("vector.npy").exists() and Path("found.csv").exists()


def test_after_the_prediction_of_many_rows(capsys):
    table = write_texts("texts.csv")
    printed(capsys, "train", table, "target=label", *QUICK, "run=run")
    assert follow(capsys, "predict", "run=run", table) == ["predict"]
    assert Path("answers.csv").exists()


def write_pictures():
    for i in range(24):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        path = Path("my pictures", "ab"[i % 2], f"no {i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return ["adapters=[image]", "adapters.image.image_size=8", "adapters.image.patch_size=4"]


def test_after_a_training_on_a_folder_of_pictures(capsys):
    options = write_pictures()
    verbs = follow(capsys, "train", "my pictures", *options, *QUICK)
    assert verbs == ["attend", "evaluate", "predict"]
    assert len(Path("answers.csv").read_text().splitlines()) == 25


def test_after_a_training_on_an_archive_of_pictures(capsys):
    options = write_pictures()
    shutil.make_archive("pictures", "zip", "my pictures")
    verbs = follow(capsys, "train", "pictures.zip", *options, *QUICK)
    assert verbs == ["attend", "evaluate", "predict"]


# Options of the table, the text of its rows, and the verbs of the next commands.
TABLES = {
    "another separator": (
        {"text": "größe {}", "sep": ";", "encoding": "cp1252"},
        ["data.sep=;"],
        "predict",
    ),
    "a text with an equals sign": ({"text": "a=b {}"}, [], "predict"),
    "several tables": ({}, ["data.path=[texts.csv,texts.csv]", "data=table"], "predict"),
    "an encoder without attention": ({}, ["backbone=gru"], "predict"),
    "files outside its folder": ({}, ["data.confine=false"], "predict"),
    "rows that cannot be read": ({}, ["data.on_bad=skip"], "predict"),
    "a model without answers": ({}, ["head=masked"], "embed"),
    "a language model": ({}, ["head=language", "backbone.causal=true"], "generate"),
}


@pytest.mark.parametrize("name", TABLES)
def test_after_a_training_on_a_table_with(name, capsys):
    about, options, verb = TABLES[name]
    data = [write_texts("texts.csv", **about), f"data.encoding={about.get('encoding', 'utf-8')}"]
    if any(word.startswith("data.path=") for word in options):
        del data[0]
    # These options belong to an encoder with attention.
    quick = [word for word in QUICK if "gru" not in str(options) or "backbone." not in word]
    verbs = follow(capsys, "train", *data, "data.target=label", "adapters=[text]", *quick, *options)
    assert verbs[-1] == verb
    has_attention = verb == "predict" and "backbone=gru" not in options
    assert ("attend" in verbs) == has_attention


@pytest.fixture
def conf_dir(place):
    """Configuration files of a package that dxn finds only with conf_dir."""
    (place / "ruled/conf/backbone").mkdir(parents=True)
    code = "from dxn.models import Backbone\n\n\nclass Ruled(Backbone):\n    pass\n"
    (place / "ruled/__init__.py").write_text(code)
    node = "dim: 16\nbackbone:\n  _target_: ruled.Ruled\n  dim: ${dim}\n"
    (place / "ruled/conf/backbone/ruled.yaml").write_text(f"# @package _global_\n# Own.\n{node}")
    yield "conf_dir=ruled/conf"
    sys.path[:] = [path for path in sys.path if path != str(place)]
    sys.modules.pop("ruled", None)


def test_after_commands_with_a_package_of_the_user(conf_dir, capsys, monkeypatch):
    table = write_texts("texts.csv")
    options = ["backbone=ruled", *QUICK]
    data = [conf_dir, table, "target=label"]
    verbs = follow(capsys, "train", *data, *options, "run=run", depth=2)
    assert verbs == ["attend", "evaluate", "predict"]
    assert follow(capsys, "index", conf_dir, "run=run", depth=2) == ["search", "search"]
    assert follow(capsys, "predict", conf_dir, "run=run", table) == ["predict"]
    with interrupt(monkeypatch, step=1):
        assert main(["train", *data, *options, "run=other"]) == 130
    line = capsys.readouterr().err.splitlines()[-1].partition("continue with: ")[2]
    printed(capsys, *shlex.split(line)[1:])


def test_after_a_training_with_an_installed_package_which_run_folders_may_not_use(
    conf_dir, place, capsys, monkeypatch
):
    class Entry:
        name = "ruled"
        value = "ruled"

    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr("dxn.config.words.entry_points", lambda group: [Entry])
    table = write_texts("texts.csv")
    verbs = follow(capsys, "train", table, "target=label", "backbone=ruled", *QUICK, "run=run")
    assert verbs == ["attend", "evaluate", "predict"]


@pytest.mark.parametrize(
    "options",
    [
        ["data.target=label"],
        ["data.exclude=[label]", "head=masked"],
        ["data.exclude=[label]", "head=language", "backbone.causal=true"],
    ],
    ids=["a target", "a task without a target", "a language model"],
)
def test_after_a_check(options, capsys):
    check = ["check", write_texts("my texts.csv"), "adapters=[text]", *options]
    (line,) = next_of(printed(capsys, *check))
    words = shlex.split(line)
    assert words == ["dxn", "train", *check[1:]]
    printed(capsys, *words[1:], *QUICK, "run=run")


def test_after_a_check_of_a_table_without_a_target(capsys):
    Path("words.csv").write_text("\n".join(["text", *(f"film number {i}" for i in range(30))]))
    (line,) = next_of(printed(capsys, "check", "words.csv"))
    assert line == "dxn train words.csv head=masked"
    printed(capsys, *shlex.split(line)[1:], *QUICK, "run=run")


def test_a_check_finds_that_the_inputs_do_not_fit_the_task(capsys):
    write_texts("texts.csv")
    assert main(["check", "texts.csv", "data.exclude=label", "head=contrastive"]) == 1
    output = capsys.readouterr().out
    assert "head=contrastive: needs at least two inputs, got text" in output
    assert not next_of(output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["data.exclude=label", "head=language"], "set backbone.causal=true"),
        (["fusion.pool=cls", "backbone.causal=true"], "backbone.causal: class tokens"),
        (["head=classify", "share_backbone=false"], "share_backbone: must be true"),
        (["target=label", "pretrain=masked", "pretrain.epochs=0"], "pretrain.epochs: must be"),
        (["target=label", "pretrain=masked", "pretrain.epochs=x"], "pretrain.epochs: must be"),
        (
            ["target=label", "pretrain=masked", "pretrain.epochs=1.5"],
            "pretrain.epochs: must be a whole number, got 1.5",
        ),
        (
            ["target=label", "pretrain=masked", "pretrain.epochs=true"],
            "pretrain.epochs: must be at least 1, got True",
        ),
        (
            ["target=label", "pretrain=masked", "pretrain.lr=inf"],
            "pretrain.lr: must be at least 0 and finite, got inf",
        ),
    ],
)
def test_a_check_refuses_the_options_that_a_training_refuses(options, message, capsys):
    write_texts("texts.csv")
    assert main(["train", "texts.csv", *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["check", "texts.csv", *options]) == 1
    output = capsys.readouterr().out
    assert f"error: {message}" in output or message in output
    assert "train: 24 rows" in output


@pytest.mark.parametrize("verb", ["check", "evaluate"])
def test_generated_data_is_read_by_commands_without_the_options_of_a_training(verb, capsys):
    sizes = [f"data.num_{split}=20" for split in ("train", "validation", "test")]
    data = ["data=digits", *sizes]
    if verb == "check":
        assert next_of(printed(capsys, "check", *data)) == [shlex.join(["dxn", "train", *data])]
        return
    printed(capsys, "train", *data, *QUICK, "run=run")
    assert "test: 20 rows" in printed(capsys, "evaluate", "run=run", *data)


@pytest.mark.exhaustive
def test_after_an_export(capsys):
    table = write_texts("texts.csv")
    printed(capsys, "train", table, "target=label", *QUICK, "run=my run")
    (line,) = next_of(printed(capsys, "export", "run=my run"))
    program, *words = shlex.split(line)
    assert program == "python"
    subprocess.run([sys.executable, *words], check=True, timeout=120)


def test_names_of_compared_runs_may_have_spaces_quotes_and_brackets(capsys):
    table = write_texts("texts.csv")
    printed(capsys, "train", table, "target=label", *QUICK, "run=first")
    names = ("my run", "it's", "[a] {b}")
    for name in names:
        shutil.copytree("first", name)
    for name in names:
        printed(capsys, "compare", f'run=["{name}",first]')
