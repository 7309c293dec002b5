"""The pages about any input from the others, and about codecs, work from first to last command."""

import shlex

from helpers.pages import DOCS, blocks, commands, run_python

from dxn.cli import main

# Short trainings. The values are those of the page otherwise.
FAST = ["trainer.epochs=1", "trainer.device=cpu", "dim=16"]


def test_the_commands_of_the_pages_create_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The second page uses the files and the model of the first one.
    names = {}
    for block in [*blocks(DOCS / "any-to-any.md"), *blocks(DOCS / "codecs.md")]:
        if block.kind in ("python", "py"):
            run_python(block, names, "any-to-any.md or codecs.md")
        for command in commands(block):
            words = shlex.split(command)[1:]
            if words[0] == "serve":  # it does not end, see tests/serve/test_creating.py
                continue
            assert main([*words, *(FAST if words[0] == "train" else [])]) == 0, command
    assert (tmp_path / "red.png").exists()
    assert len(list((tmp_path / "ellipses").glob("*.png"))) == 4
    assert (tmp_path / "created" / "created.csv").read_text().count(".png") == 2
    assert len((tmp_path / "captions.csv").read_text().splitlines()) == 1001
