"""The data type of a model in use: what auto chooses, and what the commands say about it."""

import json

import pytest
import torch
from helpers.runs import TINY_DIGITS, refused
from torch import nn

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.models.inference import Int8Linear, PackedLinear
from dxn.runs.saved import dtypes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny model of digits, whose linear layers are wide enough for int8."""
    folder = tmp_path_factory.mktemp("dtypes") / "run"
    options = [*TINY_DIGITS, "dim=128", "trainer.device=cpu", "trainer.epochs=1"]
    assert main(["train", "data=digits", *options, f"run={folder}"]) == 0
    return folder


@pytest.fixture
def large(monkeypatch):
    """Every model counts as large, and the device has instructions for bf16."""
    monkeypatch.setattr(dtypes, "MIN_WEIGHTS", 1)
    monkeypatch.setattr(dtypes, "choose_bf16", lambda device: (True, ""))


def kinds(predictor):
    return {type(module) for module in predictor.model.backbone.modules()}


def dtypes_of(predictor):
    return {parameter.dtype for parameter in predictor.model.backbone.parameters()}


def test_a_small_model_is_used_as_it_was_saved(run):
    predictor = dxn.load(run)
    assert predictor.dtype == "float32"
    assert nn.Linear in kinds(predictor)
    assert PackedLinear not in kinds(predictor)


@pytest.mark.usefixtures("large")
def test_a_large_model_has_packed_bf16_weights(run):
    predictor = dxn.load(run)
    assert predictor.dtype == "bf16"
    # Processors without AVX-512 have no layout for bf16.
    has_layout = PackedLinear.supports(nn.Linear(128, 128, dtype=torch.bfloat16))
    assert (PackedLinear in kinds(predictor)) == has_layout
    assert dtypes_of(predictor) == {torch.bfloat16}
    assert repr(predictor).endswith("parameters in bf16)")


@pytest.mark.usefixtures("large")
def test_auto_keeps_float32_where_bf16_is_not_faster(run, monkeypatch):
    monkeypatch.setattr(dtypes, "choose_bf16", lambda device: (False, ""))
    predictor = dxn.load(run)
    assert predictor.dtype == "float32"
    assert PackedLinear not in kinds(predictor)


@pytest.mark.usefixtures("large")
def test_auto_keeps_float32_for_code_of_others(run, monkeypatch):
    monkeypatch.setattr("dxn.models.inference.foreign_parts", lambda model: ["theirs.Head"])
    assert dxn.load(run).dtype == "float32"
    assert dxn.load(run, dtype="bf16").dtype == "bf16"


@pytest.mark.parametrize("dtype", ["float32", "bf16", "int8"])
def test_every_dtype_gives_nearly_the_same_probabilities(run, dtype):
    predictor = dxn.load(run, dtype=dtype)
    assert predictor.dtype == dtype
    assert (Int8Linear in kinds(predictor)) == (dtype == "int8")
    expected = dxn.load(run, dtype="float32")
    answers = [each.predict(text="seven")["probabilities"] for each in (predictor, expected)]
    assert list(answers[0].values()) == pytest.approx(list(answers[1].values()), abs=0.05)


def test_an_unknown_dtype_is_refused(run):
    with pytest.raises(UserError, match="dtype: must be one of auto, float32, bf16"):
        dxn.load(run, dtype="half")


def test_int8_is_refused_for_a_model_without_wide_layers(run, monkeypatch):
    monkeypatch.setattr(Int8Linear, "supports", staticmethod(lambda linear: False))
    with pytest.raises(UserError, match="dtype: int8 needs a transformer"):
        dxn.load(run, dtype="int8")


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_evaluate_prints_the_difference_to_float32(run, tmp_path, capsys, dtype):
    assert main(["evaluate", f"run={run}", f"dtype={dtype}", f"output={tmp_path / 'out'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith(f"{dtype} minus float32, 17 rows: "))
    assert "accuracy " in line
    assert "loss " in line
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["dtype"] == dtype


def test_evaluate_compares_nothing_in_float32(run, tmp_path, capsys):
    assert main(["evaluate", f"run={run}", "dtype=float32", f"output={tmp_path / 'out'}"]) == 0
    assert "minus float32" not in capsys.readouterr().out


def test_a_wrong_dtype_on_the_command_line_is_refused(run, capsys):
    lines = refused(capsys, ["predict", f"run={run}", "input.text=seven", "dtype=fp8"])
    assert any("dtype" in line and "fp8" in line for line in lines)


@pytest.mark.usefixtures("large")
def test_the_commands_name_the_dtype_once_on_stderr(run, capfd):
    sample = "input.text=a three"
    assert main(["predict", f"run={run}", sample, "device=cpu"]) == 0
    out, err = capfd.readouterr()
    assert err.count("dtype: bf16") == 1
    assert "dtype" not in out
    assert main(["predict", f"run={run}", sample, "device=cpu", "dtype=float32"]) == 0
    assert "dtype" not in capfd.readouterr().err
