"""The example package: from a clone and as an installed package, as its page says."""

import re
import shlex
import sys

import pytest
from helpers.data import EXAMPLES
from helpers.pages import ROOT, blocks, commands

from dxn.cli import main
from dxn.commands import all_commands
from dxn.config.completion import complete

PROJECT = ROOT / "examples"
PAGE = PROJECT / "README.md"
TINY = ["data.num_train=29", "data.num_validation=11", "data.num_test=13", "report=false"]
TINY += ["trainer.epochs=1", "dim=16", "backbone.depth=1", "backbone.num_heads=2"]


def lines_of_the_page():
    """The commands of the page."""
    return [
        command for block in blocks(PAGE) if block.kind == "console" for command in commands(block)
    ]


def shortened(words):
    """A command of the page, with options for a small model unless it sets them itself."""
    typed = {word.partition("=")[0] for word in words}
    tiny = [option for option in TINY if option.partition("=")[0] not in typed]
    return [*words, *(tiny if words[1] == "train" else [])]


@pytest.fixture
def hidden(monkeypatch):
    """Commands find the package only in their folders, and not on the path of the tests."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(PROJECT)])
    before = {name: sys.modules.pop(name) for name in imported()}
    yield
    for name in imported():
        del sys.modules[name]
    sys.modules.update(before)


def imported():
    """The names of the modules of the package that are imported."""
    return [name for name in sys.modules if name.partition(".")[0] == "dxn_examples"]


def test_the_page_shows_the_files_of_the_package():
    shown = PAGE.read_text(encoding="utf-8").partition("```")[0]
    names = set(re.findall(r"\w+\.(?:py|toml)", shown))
    modules = {path.name for path in (PROJECT / "dxn_examples").glob("*.py")}
    assert names == modules | {"pyproject.toml"}


def test_the_commands_of_the_page_run_in_a_clone(hidden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(PROJECT)
    # The last command needs the installed package.
    for command in lines_of_the_page()[:-1]:
        words = shlex.split(command)
        assert main(shortened(words)[1:]) == 0, command
    assert (tmp_path / "outputs/waves/metrics.json").is_file()


def test_the_last_command_of_the_page_needs_no_folder_once_the_package_is_installed(
    hidden, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(lines_of_the_page()[-1])
    assert not any(word.startswith("conf_dir=") for word in words)
    place = tmp_path / "packages"
    info = place / "dxn_examples-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: dxn-examples\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[dxn.conf]\ndxn_examples = dxn_examples\n")
    (place / "dxn_examples").symlink_to(PROJECT / "dxn_examples")
    sys.path.append(str(place))
    assert main(shortened(words)[1:]) == 0
    assert main(["help", "data"]) == 0
    assert "data=waves" in capsys.readouterr().out
    assert (tmp_path / "outputs/waves/metrics.json").is_file()


def test_the_help_and_the_completion_list_the_files_of_the_package(capsys):
    assert main(["help", EXAMPLES, "data"]) == 0
    assert "data=waves" in capsys.readouterr().out
    assert complete(f"dxn train {EXAMPLES} data=wa", all_commands()) == ["data=waves"]
    assert complete("dxn train data=wa", all_commands()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project", "pyproject.toml: "),
        ('[project.entry-points."dxn.conf"]\nx = "missing"\n', "conf_dir: folder not found: "),
        ('[project.entry-points]\n"dxn.conf" = ["toy"]\n', "dxn.conf must be a table with lines"),
        ('[project.entry-points."dxn.conf"]\nx = 1\n', "such as NAME = \"PACKAGE\", got {'x': 1}"),
        ("project = 3\n", "dxn.conf must be a table with lines such as NAME"),
    ],
)
def test_a_wrong_project_is_refused_in_one_line(text, message, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text(text)
    assert main(["show", f"conf_dir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


def test_a_project_without_entry_points_is_a_folder_of_files(tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "short.yaml").write_text("epochs: 1\n")
    assert main(["help", f"conf_dir={tmp_path}", "trainer"]) == 0
    assert "trainer=short" in capsys.readouterr().out
