"""References between options are resolved as OmegaConf does, in a hundredth of its time."""

import pytest
from omegaconf import OmegaConf

from dxn.cli import main
from dxn.config.compose import _with_references


@pytest.mark.parametrize(
    "value",
    [
        "${dim}",
        "${oc.select:backbone.depth,4}",
        "${oc.select:backbone.missing,4.5}",
        "${oc.select:missing,pre}",
        "${oc.select:missing,null}",
        "${oc.select:missing,false}",
        "${oc.select:backbone.none,4}",
        "${head.chained}",
        ["${dim}", {"inner": "${backbone.depth}"}],
    ],
)
def test_a_reference_has_the_value_of_omegaconf(value):
    values = {
        "dim": 32,
        "backbone": {"depth": 2, "none": None},
        "head": {"chained": "${backbone.depth}"},
        "value": value,
    }
    resolved = _with_references(values, values)
    assert repr(resolved) == repr(OmegaConf.to_container(OmegaConf.create(values), resolve=True))


@pytest.mark.parametrize("value", ["${dim}x", "${backbone}", "${..dim}", "${circle}", "\\${dim}"])
def test_other_interpolations_are_left_to_omegaconf(value):
    values = {"dim": 32, "backbone": {"depth": 2}, "circle": "${circle}", "value": value}
    with pytest.raises(ValueError):
        _with_references(values["value"], values)


def test_a_reference_to_nothing_is_one_sentence(capsys):
    assert main(["show", "seed=${nothing}"]) == 2
    assert "seed: Interpolation key 'nothing' not found" in capsys.readouterr().err


def test_experiments_that_extend_each_other_are_refused(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        text = f"# @package _global_\ndefaults: [/experiment/{other}]\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    assert main(["show", f"conf_dir={tmp_path}", "experiment=a"]) == 2
    assert "an experiment must not extend itself" in capsys.readouterr().err


def test_a_completion_reads_no_file_of_the_user(tmp_path, capsys):
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "mine.yaml").write_bytes(b"\xff\xfe")
    line = f"dxn train conf_dir={tmp_path} head=m"
    assert main(["--complete", *line.split()]) == 0
    assert "head=mine" in capsys.readouterr().out
