"""Mistakes in a package of the user are one plain sentence, before the training starts."""

import sys
from pathlib import Path

import pytest
from helpers.newcomer import TINY, printed, refused, write_csv

from dxn.commands import all_commands
from dxn.config.completion import complete

TASK = """
import torch

from dxn.tasks import LinearHead, LossSum, Metric, PreHead, Space, Target, Task


class Angles(Target):
    def read(self, cell, origin, raws):
        return float(cell)

    def encode(self, value, sample, rand=None):
        return torch.tensor([value])


class Line(Space):
    def loss(self, output, batch):
        return LossSum.of((output - batch["target"]).square())

    def decode(self, output, batch):
        return {"angle": output}


class Error(Metric):
    monitored = "mae"

    def rows(self, predictions, targets):
        errors = torch.cat(list(predictions)) - torch.tensor(targets)
        return torch.stack([torch.ones_like(errors), errors.abs()], 1).double()

    def value(self, sums):
        return {"mae": sums[..., 1] / sums[..., 0]}


class Angle(Task):
    name = "angle"

    def __init__(self):
        self.target, self.space, self.metric = Angles(), Line(), Error()

    def make_head(self, dim, pooled_dim, adapters):
        return LinearHead(PreHead(pooled_dim), 1)
"""
READER = """
import torch
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.tokenize import Adapter, Reader, Tokenizer


class GaugeReader(Reader):
    modality = "gauge"

    def read(self, cell):
        return float(cell)

    def score(self, cells):
        assert "N/A" not in cells
        return 1 / sum(cell == "nowhere" for cell in cells)


class GaugeTokenizer(Tokenizer):
    reader = GaugeReader()

    def __call__(self, raw, rand=None):
        return {"value": torch.tensor([raw])}


class GaugeAdapter(Adapter):
    reader = GaugeReader

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.tokenizer, self.proj = dim, GaugeTokenizer(), nn.Linear(1, dim)
"""
DATA = ["table.csv", "target=angle", "data.on_bad=skip", "conf_dir=wrong_parts"]
TRAIN = ["train", *DATA, *TINY, "report=false"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package wrong_parts in the current folder, beside a table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "wrong_parts"
    for group, name, text in (
        ("head", "angle", "_target_: wrong_parts.task.Angle\n"),
        ("adapters", "gauge", "gauge:\n  _target_: wrong_parts.gauge.GaugeAdapter\n  dim: 12\n"),
    ):
        (folder / "conf" / group).mkdir(parents=True)
        (folder / "conf" / group / f"{name}.yaml").write_text(text)
    (folder / "__init__.py").touch()
    (folder / "task.py").write_text(TASK)
    (folder / "gauge.py").write_text(READER)
    rows = [["N/A" if i == 5 else f"{i}.5 m", str(i % 9)] for i in range(40)]
    write_csv("table.csv", ["wind", "angle"], rows)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "wrong_parts"]:
        del sys.modules[name]


def changed(folder: Path, old: str, new: str) -> None:
    text = (folder / "task.py").read_text()
    assert text.count(old) == 1
    (folder / "task.py").write_text(text.replace(old, new))


def test_the_folder_of_a_package_stands_for_its_yaml_files(package, capsys):
    output = printed(capsys, "help", "conf_dir=wrong_parts", "head")
    assert "head=angle" in output
    assert complete("dxn train conf_dir=wrong_parts head=ang", all_commands()) == ["head=angle"]


def test_a_folder_without_groups_is_refused(package, capsys):
    (package / "conf" / "head").rename(package / "head")
    (package / "conf" / "adapters").rename(package / "adapters")
    error = refused(capsys, *TRAIN, "head=angle")
    assert "has no YAML file of a group, such as head/NAME.yaml" in error


def test_a_monitored_metric_of_a_task_that_does_not_exist_is_refused(package, capsys):
    changed(package, 'monitored = "mae"', 'monitored = "mea"')
    error = refused(capsys, *TRAIN, "head=angle", "adapters=[number]")
    assert "Error.monitored: head=angle has no metric 'mea'; choose one of loss, mae" in error
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('    name = "angle"\n', "", "head: Angle has no name; every task needs"),
        ("Line(), Error()", "Line(), None\n        del self.metric", "head: Angle has no metric"),
        (
            'LossSum.of((output - batch["target"]).square())',
            '(output - batch["target"]).square().mean()',
            "head=angle: Line.loss must return a LossSum, such as LossSum.of(losses), got Tensor",
        ),
    ],
)
def test_a_task_with_a_missing_or_wrong_part_is_refused(old, new, message, package, capsys):
    changed(package, old, new)
    assert message in refused(capsys, *TRAIN, "head=angle", "adapters=[number]")
    assert not Path("outputs").exists()


def test_a_score_that_fails_names_the_reader_and_the_column(package, capsys):
    error = refused(capsys, *TRAIN, "adapters=[gauge,number]")
    assert "column 'wind': GaugeReader.score failed: ZeroDivisionError('division by zero')" in error
