"""Options and inputs of commands that were accepted or refused by mistake."""

from pathlib import Path

import pytest
import yaml
from helpers.runs import PLAIN, SMALL, refused, table_of, train
from PIL import Image

import dxn
from dxn.cli import main
from dxn.commands import all_commands
from dxn.runs.attend import list_pictures, remove_pictures

CONF = Path(dxn.__file__).parent / "conf"
# Parts with types of their own, and values of any type.
PARTS = {"adapters", "input", "prompt", "token"}


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["push", "run=x", "repo=a/b", "private=maybe"], "private"),
        (["push", "run=x", "repo=a/b", "message=[1]"], "message"),
        (["push", "run=x", "repo=a/b", "license=[1]"], "license"),
        (["export", "run=x", "format=[1,2]"], "format"),
        (["serve", "run=x", "compile=maybe"], "compile"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(command, key, capsys):
    (line,) = refused(capsys, command)
    assert line.startswith(f"dxn: {key}: must be ")


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_key_of_a_command_has_a_type(path):
    node = yaml.safe_load(path.read_text())
    known = {key for each in all_commands().values() for key in each.options().parameters}
    assert {name for name in node if name != "defaults"} <= known


def test_a_text_that_is_no_path_is_predicted(tmp_path, capsys):
    (tmp_path / "fruit.csv").write_text(table_of(40))
    options = [*PLAIN, *SMALL, "trainer.epochs=1", "report=false"]
    train(tmp_path / "run", str(tmp_path / "fruit.csv"), *options)
    for text in ("apple number " * 60, "apple\nnumber", "..."):
        assert main(["predict", f"run={tmp_path / 'run'}", f'input="{text}"']) == 0


def test_frames_of_an_earlier_video_are_removed(tmp_path):
    picture = Image.new("RGB", (2, 2))
    picture.save(tmp_path / "frames.png")
    picture.save(tmp_path / "holiday.png")
    list_pictures(tmp_path, [tmp_path / "frames.png"])
    remove_pictures(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.png"]
