"""The house itself: which room imports which, that every YAML fits its constructor, that the pages are current."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dxn.models
import dxn.tokenize
from dxn.config import CONF, build, compose, expand, options, schema_faults
from dxn.train.pipeline import MODALITIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dxn"
MAY_IMPORT = {
    "tokens": set(),
    "errors": set(),
    "tokenize": {"tokens", "errors"},
    "models": {"tokens", "errors"},
    "data": {"tokens", "errors", "tokenize"},
    "weights": {"tokens", "errors", "tokenize", "models"},
    "explain": {"tokens", "errors", "tokenize", "models", "data"},
    "config": {"errors"},
    "train": {"tokens", "errors", "tokenize", "models", "weights", "data", "explain", "config"},
}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(path: Path) -> set[str]:
    """Rooms of dxn that a file imports, wherever in it the import stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the import out"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {room(name) for name in names if name.split(".")[0] == "dxn"}


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_imports_point_one_way(name):
    files = [PACKAGE / f"{name}.py"] if (PACKAGE / f"{name}.py").exists() else sorted((PACKAGE / name).glob("*.py"))
    assert files
    for path in files:
        assert imported(path) <= MAY_IMPORT[name] | {name}, path


def test_only_config_knows_hydra():
    knowing = [
        p.name for p in PACKAGE.rglob("*.py") if re.search(r"^\s*(import|from) (hydra|omegaconf)", p.read_text(), re.M)
    ]
    assert knowing == ["config.py"]


def test_no_import_hides_behind_type_checking():
    assert not [p for p in PACKAGE.rglob("*.py") if "TYPE_CHECKING" in p.read_text()]


def test_help_does_not_wait_for_torch():
    code = "import sys; from dxn.cli import main; main(['-h']); main(['train', '-h']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def every_choice():
    for folder in sorted(p for p in CONF.iterdir() if p.is_dir()):
        for option in options(folder.name):
            yield folder.name, option


def asked_of(experiment):
    """What an experiment leaves to its user."""
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text()
    held_out = ["data.holdout.speaker=ann"] if experiment == "fsdd_speakers" else []
    return [*([] if "# Data: none" in text else ["data.path=there"]), *held_out]


@pytest.mark.parametrize(("group", "option"), list(every_choice()), ids=lambda value: value)
def test_every_yaml_holds_exactly_its_constructors_arguments(group, option):
    chosen = f"{group}=[{option}]" if group == "adapters" else f"{group}={option}"
    if group == "debug":
        assert schema_faults(compose("train", [chosen]).cfg) == []
        return
    path = ["data.path=there"]
    sources = {"folder": path, "spoken": path, "text": path, "hub": ["data.name=there"]}
    needed = sources.get(option, []) if group == "data" else []
    if group == "experiment":
        needed = asked_of(option)
    assert schema_faults(compose("train", [chosen, *needed]).cfg) == []


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_builds_its_parts(name):
    config = compose("train", [f"experiment={name}", *asked_of(name)]).plain()
    chosen = [m for m in MODALITIES if "_target_" in config["adapters"].get(m, {})]
    assert chosen
    for modality in chosen:
        assert build(config["adapters"][modality], key="adapters").dim == config["dim"]
    assert build(config["backbone"], key="backbone").dim == config["dim"]
    build(config["fusion"], key="fusion", modalities=chosen)
    build(config["trainer"], key="trainer")
    assert config["name"] == name


@pytest.mark.parametrize("name", options("experiment"))
def test_an_experiment_opens_with_command_cost_and_result(name):
    head = [line for line in (CONF / "experiment" / f"{name}.yaml").read_text().splitlines() if line.startswith("# ")]
    text = "\n".join(head)
    assert f"experiment={name}" in text
    for word in ("Data:", "Cost:", "Result:"):
        assert word in text, f"{name}.yaml does not say {word}"


def load_reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_page_is_current():
    assert load_reference().page() == (ROOT / "docs" / "config.md").read_text(encoding="utf-8"), "run make docs"


def test_readme_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def commands():
    """Every dxn command in a fenced block of README and docs."""
    for page in [ROOT / "README.md", ROOT / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if line.removeprefix("$ ").startswith("dxn "):
                    yield page.name, line.removeprefix("$ ").partition("  #")[0].strip()


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_every_command_of_the_pages_composes(page, command):
    _, verb, *rest = shlex.split(command)
    if "--help" in rest:
        return
    overrides = [o for o in rest if o != "-m"]
    for way in expand(overrides) if "-m" in rest else [overrides]:
        compose(verb, way)


def test_exported_names_are_documented():
    for module in (dxn.tokenize, dxn.models):
        for name in module.__all__:
            assert getattr(module, name).__doc__, f"{module.__name__}.{name}"
