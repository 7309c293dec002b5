"""A modality and a task of a user's own, in the user's package, go through every verb."""

import csv
import json
import math
import random
import sys

import pytest
import torch
from helpers.runs import interrupt, same_tensors
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.core.errors import UserError

MODALITY = """
import torch
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.tokenize import Adapter, BadMedia, Masking, Reader, Tokenizer


class GaugeReader(Reader):
    modality = "gauge"

    def read(self, cell):
        try:
            return float(cell)
        except (TypeError, ValueError):
            raise BadMedia(f"must be a number, got {cell!r}") from None

    def score(self, cells):
        return sum(str(v).lstrip("-").replace(".", "", 1).isdigit() for v in cells) / len(cells)


class GaugeTokenizer(Tokenizer):
    reader = GaugeReader()

    def __call__(self, raw, rand=None):
        return {"value": torch.tensor([raw])}


class GaugeMasking(Masking):
    num_outputs = 1

    def __call__(self, sample, rand):
        masked = torch.tensor([rand.random() < 0.5])
        target = sample["value"][masked][:, None]
        hidden = torch.where(masked, 0.0, sample["value"])
        valid = torch.ones_like(target, dtype=torch.bool)
        return {"value": hidden, "masked": masked, "masked_target": target, "masked_valid": valid}


class GaugeAdapter(Adapter):
    reader = GaugeReader

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.tokenizer, self.proj = dim, GaugeTokenizer(), nn.Linear(1, dim)

    def masking(self, *, ratio=None):
        return None if ratio == 0 else GaugeMasking()

    def forward(self, batch):
        x = self.proj(batch["value"][..., None].float())
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        coords = torch.zeros(*x.shape[:2], 1, device=x.device)
        return Tokens(x, mask, (Span("gauge", "gauge", 0, x.shape[1], coords),))
"""

TASK = '''
import math

import torch

from dxn.core.errors import UserError
from dxn.tasks import LinearHead, LossSum, Metric, PreHead, Space, Target, Task


class Angles(Target):
    def read(self, cell, origin, raws):
        if not -360 <= float(cell) <= 360:
            raise UserError(f"{origin}: an angle must be between -360 and 360, got {cell}")
        return float(cell)

    def encode(self, value, sample, rand=None):
        angle = math.radians(value)
        return torch.tensor([math.cos(angle), math.sin(angle)])


class Circle(Space):
    def loss(self, output, batch):
        return LossSum.of((output.float() - batch["target"]).square().mean(-1))

    def decode(self, output, batch):
        return {"angle": torch.rad2deg(torch.atan2(output[:, 1], output[:, 0]))}


class Direction(Task):
    """An angle in degrees, predicted as a point on the unit circle."""

    name = "direction"

    def __init__(self):
        self.target, self.space, self.metric = Angles(), Circle(), Metric()

    def make_head(self, dim, pooled_dim, adapters):
        return LinearHead(PreHead(pooled_dim), 2)
'''
TINY = [
    *("dim=12", "backbone.depth=1", "backbone.num_heads=2", "batch_size=7"),
    *("trainer.device=cpu", "trainer.precision=float32", "trainer.epochs=2"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the user's package, its YAML files, and a table."""
    folder = tmp_path_factory.mktemp("extend")
    (folder / "toy_gauge.py").write_text(MODALITY)
    (folder / "toy_direction.py").write_text(TASK)
    for group, name, text in (
        ("adapters", "gauge", "gauge:\n  _target_: toy_gauge.GaugeAdapter\n  dim: ${dim}\n"),
        ("head", "direction", "_target_: toy_direction.Direction\n"),
    ):
        (folder / "conf" / group).mkdir(parents=True)
        (folder / "conf" / group / f"{name}.yaml").write_text(text)
    rand = random.Random(0)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["wind", "gust", "note", "angle"])
        for i in range(40):
            angle = rand.randrange(-90, 90)
            wind = "" if i % 9 == 4 else f"{angle / 90:.3f}"
            gust = "" if i % 5 == 2 else f"{math.sin(angle):.3f}"
            writer.writerow([wind, gust, f"word{i % 4} and more", angle])
    yield folder
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    for name in ("toy_gauge", "toy_direction"):
        sys.modules.pop(name, None)


def options(place, *more):
    return [
        f"conf_dir={place / 'conf'}",
        *("data=table", f"data.path={place / 'table.csv'}", "data.target=angle"),
        *("adapters=[gauge,text]", "head=direction", *TINY, *more),
    ]


@pytest.fixture(scope="module")
def run(place):
    """A run that was pretrained on masked inputs and then trained."""
    folder = place / "run"
    more = ["pretrain=masked", "pretrain.epochs=1", f"run={folder}"]
    assert main(["train", *options(place, *more)]) == 0
    return folder


@pytest.mark.parametrize("text", [MODALITY, TASK])
def test_the_files_of_the_user_are_short(text):
    assert len([line for line in text.splitlines() if line.strip()]) <= 40


def test_training_writes_metrics_for_inputs_of_the_new_modality(run):
    metrics = json.loads((run / "metrics.json").read_text())
    for shown in ("", "[wind]", "[gust]", "[note]", "[note+wind]", "[note+gust]", "[wind+gust]"):
        assert math.isfinite(metrics[f"test/loss{shown}"])
    assert len((run / "predictions.csv").read_text().splitlines()) == 5
    pretraining = [json.loads(r) for r in (run / "pretrain/metrics.jsonl").read_text().splitlines()]
    assert {"validation/loss_wind", "validation/loss_gust"} & pretraining[-1].keys()


def test_a_resumed_run_has_the_same_bits(place, run, monkeypatch):
    folder = place / "cut"
    more = ["pretrain=masked", "pretrain.epochs=1", f"run={folder}"]
    with interrupt(monkeypatch, step=7):
        assert main(["train", *options(place, *more)]) == 130
    resume = ["train", f"resume={folder}"]
    assert main(resume) == 2  # nobody has said that the packages of this folder may run
    assert main([*resume, f"conf_dir={place / 'conf'}"]) == 0
    model = "model/model.safetensors"
    assert same_tensors(load_file(folder / model), load_file(run / model))


def test_evaluating_again_gives_the_metrics_of_the_run(run, tmp_path, capsys):
    assert main(["evaluate", f"run={run}", f"output={tmp_path}"]) == 2
    assert "toy_gauge" in capsys.readouterr().err
    trust = "trust=[toy_gauge,toy_direction]"
    assert main(["evaluate", f"run={run}", trust, f"output={tmp_path}"]) == 0
    before, again = (json.loads((f / "metrics.json").read_text()) for f in (run, tmp_path))
    assert again["test/loss"] == pytest.approx(before["test/loss"])


def test_one_sample_and_a_table_are_predicted(run, place, tmp_path, capsys):
    trust = "trust=[toy_gauge,toy_direction]"
    asked = ["input.wind=0.5", "input.note=word1", f"output={tmp_path / 'one.json'}"]
    assert main(["predict", f"run={run}", trust, *asked]) == 0
    (told,) = json.loads((tmp_path / "one.json").read_text())
    model = dxn.load(run, trust=["toy_gauge", "toy_direction"])
    expected = pytest.approx(told["prediction"], rel=1e-3)  # a GPU adds in another order
    assert model.predict(wind=0.5, note="word1")["prediction"] == expected
    asked = [f"input={place / 'table.csv'}", f"output={tmp_path / 'all.jsonl'}"]
    assert main(["predict", f"run={run}", trust, *asked]) == 0
    assert "columns: note, wind, gust" in capsys.readouterr().out
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 40
    with pytest.raises(UserError, match="gust: must be a number, got 'strong'"):
        model.predict(gust="strong")


def test_a_folder_that_is_not_trusted_runs_none_of_its_code(run, monkeypatch):
    for name in ("toy_gauge", "toy_direction"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UserError, match=r"trust=\[toy_gauge\]"):
        dxn.load(run)
    assert "toy_gauge" not in sys.modules


def test_check_reports_bad_cells_of_the_new_modality_and_task(place, tmp_path, capsys):
    lines = (place / "table.csv").read_text().splitlines()
    (tmp_path / "bad.csv").write_text(
        "\n".join([*lines, "strong,0.1,a word,5", "0,0.1,a word,999"])
    )
    asked = options(place)
    asked[2] = f"data.path={tmp_path / 'bad.csv'}"
    asked = [line for line in asked if not line.startswith(("backbone.", "trainer.", "batch_size"))]
    named = ["data.gauge=[wind,gust]", f"output={tmp_path / 'bad_files.csv'}"]
    assert main(["check", *asked, *named]) == 1
    listed = (tmp_path / "bad_files.csv").read_text()
    assert "must be a number, got 'strong'" in listed
    assert "an angle must be between -360 and 360" in listed


def test_tokenize_draws_the_matrix(place, tmp_path, capsys):
    asked = [f"conf_dir={place / 'conf'}", "adapters=[gauge]", "input.gauge=4", "dim=12"]
    assert main(["tokenize", *asked, f"output={tmp_path / 'tokens.png'}"]) == 0
    assert "matrix: 12×1" in capsys.readouterr().out
    assert (tmp_path / "tokens.png").exists()


def test_attend_draws_an_input_without_a_drawer(run, tmp_path, capsys):
    trust = "trust=[toy_gauge,toy_direction]"
    asked = ["input.wind=0.5", "input.gust=1", "input.note=word1 and more"]
    assert main(["attend", f"run={run}", trust, *asked, f"output={tmp_path}"]) == 0
    assert (tmp_path / "attention.html").exists()
    assert "wind: " in capsys.readouterr().out


def test_the_task_can_also_be_pretrained_by_a_run_of_its_own(place, tmp_path):
    base = [o for o in options(place) if not o.startswith("head=")]
    assert main(["train", *base, "head=masked", f"run={tmp_path / 'masked'}"]) == 0
    weights = [f"weights={tmp_path / 'masked'}", "finetune.freeze=all", "trainer.epochs=1"]
    run = tmp_path / "run"
    assert main(["train", *options(place), *weights, f"run={run}"]) == 0
    old, new = (load_file(f / "model/model.safetensors") for f in (tmp_path / "masked", run))
    kept = [name for name in new if not name.startswith("head.")]
    assert kept and all(torch.equal(new[name], old[name]) for name in kept)
