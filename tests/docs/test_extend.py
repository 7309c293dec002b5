"""The commands of docs/extend.md work in a copy of examples/extending, whose files it shows."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from helpers.pages import DOCS, ROOT
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.functional import to_tensor

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.export.examples import EXAMPLES
from dxn.export.folder import program_of
from dxn.export.recipes import INPUTS
from dxn.weights import families

PAGE = (DOCS / "extend.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "extending"
FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = dict(FILE.findall(PAGE))
MAX_LINES = 40  # of Python, without blank lines


def commands() -> list[list[str]]:
    """The commands of the page in their order, each as a list of words."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def install(folder: Path) -> None:
    """Install the package as `pip install -e .` does: its metadata is found on sys.path."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(folder))
    families._installed_families.cache_clear()


def forget(path: list[str]) -> None:
    """Make the next command start like a new process: with this sys.path, without the package."""
    sys.path[:] = path
    for name in [name for name in sys.modules if name.split(".")[0] == "weather"]:
        del sys.modules[name]


def shortened(arguments: list[str]) -> list[str]:
    """A command of the page, for a small model unless the page shows an answer of it."""
    if arguments[0] != "train" or "run=outputs/ordinal" in arguments:
        return arguments
    return [*arguments, "dim=32", "backbone.depth=1", "optimizer.lr=3e-3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files of the page, in which all commands have been run."""
    folder = tmp_path_factory.mktemp("extend")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        path = before
        for program, *arguments in commands():
            forget(path)
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
            elif program == "pip":
                install(folder)
                path = list(sys.path)
            else:
                assert (program, main(shortened(arguments))) == ("dxn", 0), arguments
        yield folder
    forget(before)
    families._installed_families.cache_clear()


@pytest.fixture
def installed(place, monkeypatch):
    """The same folder, where the package of the page is still installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    return place


def test_the_page_uses_each_kind_of_file_and_of_command():
    names = {path.relative_to(EXAMPLE).as_posix() for path in EXAMPLE.rglob("weather/**/*.yaml")}
    assert names and all(name.removeprefix("weather/conf/") in PAGE for name in names)
    verbs = {words[1] for words in commands() if words[0] == "dxn"}
    assert verbs >= {"train", "evaluate", "predict", "tokenize", "check", "embed"}


def test_the_page_shows_the_files_as_they_are():
    assert {name: (EXAMPLE / name).read_text(encoding="utf-8") for name in SHOWN} == SHOWN
    assert PAGE.count("```python") + PAGE.count("```yaml") == len(SHOWN)


@pytest.mark.parametrize("name", ["curve", "ordinal", "focal", "cumulative"])
def test_a_modality_a_task_and_a_space_are_short(name):
    text = (EXAMPLE / "weather" / f"{name}.py").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("run", ["wind", "ordinal", "focal", "cumulative", "logbook"])
def test_a_run_of_the_page_learns(run, place):
    metrics = json.loads((place / "outputs" / run / "metrics.json").read_text())
    # A third of the days has each level; the levels overlap in the data.
    assert metrics["test/accuracy"] > 0.6


def test_predictions_of_the_task_are_levels(place):
    header, *rows = (place / "answers.csv").read_text().splitlines()
    assert header == "file,row,speeds,prediction" and len(rows) == 200
    assert {row.rpartition(",")[2] for row in rows} == {"calm", "breezy", "stormy"}


def test_the_loss_of_the_page_ignores_unknown_classes(installed):
    from weather.focal import Focal

    output, target = torch.randn(3, 2), torch.tensor([0, 1, -100])
    known = Focal(gamma=0.0).loss(output[:2], {"target": target[:2]})
    every = Focal(gamma=0.0).loss(output, {"target": target})
    expected = torch.nn.functional.cross_entropy(output, target, reduction="sum")
    torch.testing.assert_close((known.total, every.total), (expected, expected))


def test_a_record_without_a_note_is_used(place):
    metrics = json.loads((place / "outputs/logbook/metrics.json").read_text())
    assert metrics["data"]["missing"]["train"]["note"] > 0
    assert {"test/mae[wind]", "test/mae[note]"} <= metrics.keys()


def test_the_curve_adapter_masks_padding_and_skips_missing_numbers(installed):
    from weather.curve import CurveAdapter

    adapter = CurveAdapter(10, patch=3)
    raws = [adapter.tokenizer.reader.read(cell) for cell in ("1 2 3 4 5", "nan 7")]
    tokens = adapter(adapter.tokenizer.collate([adapter.tokenizer(raw) for raw in raws]))
    assert tokens.mask.tolist() == [[True, True], [True, False]]
    assert tokens.spans[0].coords[0].tolist() == [[0, 3], [3, 6]]
    assert tokens.spans[0].coords[1, 1].isnan().all()
    assert tokens.x.isfinite().all()
    assert adapter.describe(raws[0]) == ""


@pytest.mark.parametrize(
    ("key", "cell", "message"),
    [
        ("speeds", "1.5 strong", "must be numbers separated by spaces, got '1.5 strong'"),
        ("day", "windy", "must be one of calm, breezy, stormy, got 'windy'"),
    ],
)
def test_a_wrong_cell_is_refused_with_its_row(key, cell, message, installed):
    row = {"speeds": "1 2", "day": "calm", key: cell}
    bad = installed / "bad.csv"
    good = "3 4,calm\n" * 9
    bad.write_text(f"speeds,day\n{row['speeds']},{row['day']}\n{good}")
    chosen = ["adapters=[curve]", "head=ordinal", "head.levels=[calm,breezy,stormy]"]
    data = ["data=table", f"data.path={bad}", "data.curve=speeds", "data.target=day"]
    assert main(["check", *chosen, *data, f"output={installed / 'bad_files.csv'}"]) == 1
    listed = (installed / "bad_files.csv").read_text()
    assert message in listed and "bad.csv row 2" in listed


def test_the_probabilities_of_higher_levels_never_increase(installed):
    from weather.cumulative import CumulativeHead

    output = CumulativeHead(5, 4)(None, torch.randn(7, 5), {})
    assert output.shape == (7, 3) and (output.diff(dim=1) <= 0).all()


def test_levels_must_be_set(installed, capsys):
    chosen = ["adapters=[curve]", "head=ordinal", "data=table", "data.path=x"]
    assert main(["train", f"conf_dir={installed / 'weather/conf'}", *chosen]) == 2
    assert "head.levels: needs a value" in capsys.readouterr().err


def test_the_family_computes_what_the_original_model_computes(installed):
    original = runpy.run_path(str(installed / "make_patchnet.py"))["PatchNet"]().eval()
    original.load_state_dict(load_file(installed / "patchnet.safetensors"))
    picture = installed / "sky.png"
    with torch.inference_mode():
        expected = original(to_tensor(Image.open(picture))[None]).softmax(-1)[0]
    model = dxn.from_public(str(installed / "patchnet.safetensors"))
    probabilities = model.predict(image=str(picture))["probabilities"]
    assert list(probabilities) == ["clear", "cloudy"]
    torch.testing.assert_close(torch.tensor(list(probabilities.values())), expected)


def test_python_needs_trust_to_load_a_model_with_parts_of_the_package(installed):
    folder = str(installed / "outputs" / "ordinal")
    with pytest.raises(UserError, match=r"trust=\[weather\]"):
        dxn.load(folder)
    model = dxn.load(folder, trust=["weather"])
    # The page's own example and its answer.
    example = re.search(r'model\.predict\(speeds="(.*?)"\)  # (.*)', PAGE)
    assert example is not None
    assert model.predict(speeds=example[1]) == json.loads(example[2])


def test_an_installed_package_is_not_trusted_by_a_loaded_folder(installed, capsys):
    run = f"run={installed / 'outputs' / 'ordinal'}"
    command = ["predict", run, "input.speeds=14.2 15.9 17.1 15.5 16.0 14.8 15.3 16.6"]
    assert main(command) == 2
    assert "trust=[weather]" in capsys.readouterr().err
    assert main([*command, "trust=[weather]"]) == 0


STRIPS = """
import numpy as np


def read(value, options):
    return np.array([float(word) for word in value.split()], np.float32)


def prepare(raws, options):
    patch = options["patch"]
    padded = [np.pad(r, (0, -len(r) % patch), constant_values=np.nan) for r in raws]
    return {"patches": np.stack([row.reshape(-1, patch) for row in padded])}
"""


def random_curves(tokenizer, count, rand):
    return [torch.rand(rand.randint(1, 40)) for _ in range(count)]


@pytest.mark.exhaustive
def test_an_export_has_the_program_of_a_package(installed, monkeypatch, capfd):
    (installed / "weather" / "strips.py").write_text(STRIPS)
    recipe = {"prepare": "weather.strips", "patch": 4}
    monkeypatch.setitem(INPUTS, "curve", lambda tokenizer: recipe)
    monkeypatch.setitem(EXAMPLES, "curve", random_curves)
    monkeypatch.chdir(installed)
    options = ["conf_dir=weather/conf", "format=torch", "output=exported"]
    assert main(["export", "run=outputs/wind", *options]) == 0
    speeds = "speeds=14.2 15.9 17.1 15.5 16.0 14.8 15.3 16.6"
    program = [sys.executable, "example.py", speeds]
    done = subprocess.run(program, cwd="exported", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stormy" in done.stdout


@pytest.mark.parametrize("name", ["nopackage.strips", "weather.nothing"])
def test_a_program_of_a_recipe_that_does_not_exist_is_one_sentence(name, installed):
    with pytest.raises(UserError, match=f"a recipe names the module {name}, which does not exist"):
        program_of(name)


def test_without_a_choice_of_adapters_those_of_the_package_are_in_use_too(place, monkeypatch):
    monkeypatch.chdir(place)
    options = ["conf_dir=weather/conf", "data=table", "data.path=wind.csv", "data.curve=speeds"]
    assert main(["check", *options, "data.target=day"]) == 0
