"""Options and inputs of commands that were accepted or refused by mistake."""

import pytest
from helpers.runs import PLAIN, SMALL, refused, table_of, train

from dxn.cli import main


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["push", "run=x", "repo=a/b", "private=maybe"], "private"),
        (["push", "run=x", "repo=a/b", "message=[1]"], "message"),
        (["push", "run=x", "repo=a/b", "license=[1]"], "license"),
        (["export", "run=x", "format=[1,2]"], "format"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(command, key, capsys):
    (line,) = refused(capsys, command)
    assert line.startswith(f"dxn: {key}: must be ")


def test_a_text_that_is_no_path_is_predicted(tmp_path, capsys):
    (tmp_path / "fruit.csv").write_text(table_of(40))
    options = [*PLAIN, *SMALL, "trainer.epochs=1", "report=false"]
    train(tmp_path / "run", str(tmp_path / "fruit.csv"), *options)
    for text in ("apple number " * 60, "apple\nnumber", "..."):
        assert main(["predict", f"run={tmp_path / 'run'}", f'input="{text}"']) == 0
