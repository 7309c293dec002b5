"""The pages about any input from the others, and about codecs, work from first to last command."""

import shlex

from helpers.pages import DOCS, blocks, commands, run_python, scripts

from dxn.cli import main

# Short trainings with few rows. The values are those of the page otherwise.
FAST = ["trainer.epochs=1", "trainer.device=cpu", "dim=16"]
ROWS = 60
FEW_ROWS = [f"data.num_train={ROWS}", "data.num_validation=20", "data.num_test=20"]


def shortened(words):
    """The words of a command. A training has few epochs and few rows."""
    if words[0] != "train":
        return words
    short = [*FAST, *(FEW_ROWS if any(word.startswith("data=") for word in words) else [])]
    keys = {word.partition("=")[0] for word in short}
    return [*(word for word in words if word.partition("=")[0] not in keys), *short]


def test_the_commands_of_the_pages_create_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The second page uses the files and the model of the first one.
    names = {}
    for block in [*blocks(DOCS / "any-to-any.md"), *blocks(DOCS / "codecs.md")]:
        for script in scripts(block):
            few = script.read_text(encoding="utf-8").replace("range(1000)", f"range({ROWS})")
            exec(compile(few, script.name, "exec"), {})
        if block.kind in ("python", "py"):
            run_python(block, names, "any-to-any.md or codecs.md")
        for command in commands(block):
            words = shlex.split(command)[1:]
            if words[0] == "serve":  # it does not end, see tests/serve/test_creating.py
                continue
            assert main(shortened(words)) == 0, command
    assert (tmp_path / "red.png").exists()
    assert len(list((tmp_path / "ellipses").glob("*.png"))) == 4
    assert (tmp_path / "created" / "created.csv").read_text().count(".png") == 2
    assert len((tmp_path / "captions.csv").read_text().splitlines()) == ROWS + 1
