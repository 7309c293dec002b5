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
