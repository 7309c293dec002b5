"""The architecture: import directions, where names are known, and that every YAML file works."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wording
from helpers.data import EXAMPLES

import dxn.models
import dxn.tasks
import dxn.tokenize
from dxn.commands import MODULES, VERBS, all_commands
from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.config.instantiate import build, complete, resolve
from dxn.config.words import CONF, file_of, further_folders, groups, node_of, options
from dxn.tasks.task import TASKS
from dxn.tokenize.base import ADAPTERS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dxn"
FILES = sorted(PACKAGE.rglob("*.py"))
# The folders of YAML files: those of dxn, and those of the example package.
FOLDERS = [CONF, *further_folders([str(ROOT / "examples")], [])[0]]

# Where a modality may be named: its own module, its checkpoints, its drawings, its generated data.
KNOW_MODALITIES = (
    "tokenize",
    "weights",
    "viz/drawers",
    "datasets",
    "presets",
    "stacking/features.py",
    "export/programs",
    "export/examples.py",
    "export/recipes.py",
    "data/sources/annotated.py",
    "data/sources/picture_files.py",
)
# "category" is also a usual name of a target column, "image" of a folder, "text" a data source, a
# suffix of files, and a key of an entity and of OpenAI's API.
COLUMN_NAMES = {
    ("tasks/detect/objects.py", "category"),
    ("data/tables/squad.py", "text"),
    ("data/columns/choose.py", "category"),
    ("data/series/layouts.py", "series"),
    ("data/series/steps.py", "series"),
    ("data/sources/detect.py", "image"),
    ("data/sources/detect.py", "text"),
    ("data/sources/tar_rows.py", "text"),
    ("runs/predictor/table.py", "text"),
    ("serve/openai.py", "text"),
    ("tasks/entities.py", "text"),
    ("tasks/infer.py", "text"),
    ("tasks/span/target.py", "text"),
    ("tasks/span/task.py", "text"),
}
TRUST = ["dxn_examples"]
MAX_PARAMETERS = 12

# What a user must type for options that have no default.
NEEDED = {
    "data=annotated": ["data.path=x"],
    "data=folder": ["data.path=x"],
    "data=spoken": ["data.path=x"],
    "data=text": ["data.path=x"],
    "data=ts": ["data.path=x"],
    "data=timeline": ["data.path=x"],
    "data=hub": ["data.name=x"],
    "experiment=fsdd_speakers": ["data.holdout.speaker=ann"],
}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(node: ast.AST) -> Iterator[str]:
    """Full names that are imported anywhere below a node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports must be absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


def documentation(module: ast.Module) -> set[int]:
    """The ids of the docstrings' nodes."""
    found = set()
    for node in ast.walk(module):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            found.add(id(first.value))
    return found


def strings(node: ast.AST) -> Iterator[ast.Constant]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child


# Modules of `dxn train` and `dxn predict`, and the packages that they need only later, or never.
NOT_IMPORTED = {
    "dxn.runs.train": (
        "dxn.runs.evaluation dxn.runs.predictor dxn.runs.ensemble dxn.runs.tune dxn.runs.index "
        "dxn.runs.saved dxn.runs.weights dxn.report dxn.stacking dxn.viz "
        "dxn.weights dxn.serve matplotlib"
    ),
    "dxn.runs.saved.loading": (
        "dxn.runs.evaluation dxn.runs.train dxn.runs.prepare dxn.runs.weights dxn.presets "
        "dxn.report dxn.stacking dxn.viz dxn.weights dxn.training.loop "
        "dxn.data.sources.table dxn.runs.predictor.captured"
    ),
}


# torch imports its compiler for the first optimizer, which takes longer than all of dxn.
TAKE_STEPS = """
import sys, torch
from dxn.training.optim import adamw, muon
model = torch.nn.Linear(9, 11)
for make in (adamw(), muon()):
    optimizer = make(model)
    model(torch.randn(2, 9)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""
# Each module is imported by a process of its own, which shares torch with the others.
LIST_IMPORTS = (
    """
import importlib, os, sys, torch
for module in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(module)
        print(module, *sys.modules, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
    + TAKE_STEPS
)


def test_a_path_imports_only_what_it_uses_and_a_training_step_no_compiler():
    command = [sys.executable, "-c", LIST_IMPORTS, *NOT_IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert imported.keys() == NOT_IMPORTED.keys()
    for module, names in NOT_IMPORTED.items():
        unused = tuple(names.split())
        assert [name for name in imported[module] if name.startswith(unused)] == [], module


def test_only_two_modules_import_hydra():
    knowing = [
        name_of(path)
        for path in FILES
        if any(name.split(".")[0] in ("hydra", "omegaconf") for name in imports(tree(path)))
    ]
    assert knowing == ["config/compose.py", "config/words.py"]


def test_no_module_names_a_modality_that_is_not_its_own():
    found = []
    for path in FILES:
        if name_of(path).startswith(KNOW_MODALITIES):
            continue
        module = tree(path)
        docs = documentation(module)
        for node in strings(module):
            is_column = (name_of(path), node.value) in COLUMN_NAMES
            if node.value in ADAPTERS and id(node) not in docs and not is_column:
                found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []


def test_no_module_outside_tasks_compares_with_the_name_of_a_task():
    old = {"class", "labels", "number", "tags", "next"}
    found = []
    for path in FILES:
        if name_of(path).startswith("tasks"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Compare):
                hits = [s for s in strings(node) if s.value in {*TASKS, *old}]
                found += [f"{name_of(path)}:{s.lineno} {s.value}" for s in hits]
            if isinstance(node, ast.match_case):
                hits = [s for s in strings(node.pattern) if s.value in TASKS]
                found += [f"{name_of(path)}:{s.lineno} {s.value}" for s in hits]
    assert found == []


def test_no_constructor_takes_more_than_twelve_parameters():
    found = []
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                count = len(node.args.args) + len(node.args.kwonlyargs) - 1
                if count > MAX_PARAMETERS:
                    found.append(f"{name_of(path)}:{node.lineno}: {count}")
    assert found == []


def test_banned_wording_is_absent():
    hits = [(place, wording.banned(text)) for place, text in wording.texts(ROOT, tree)]
    assert [hit for hit in hits if hit[1]] == []


def test_help_does_not_import_torch(stored_signatures):
    code = "import sys; from dxn.cli import main; main(['-h']); main(['train', '-h']); "
    code += "print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_command_with_plain_words_does_not_import_hydra(stored_signatures):
    code = "import sys; from dxn.cli import main; main(['show', 'data=digits', 'trainer.epochs=3'])"
    code += "; print({'hydra', 'omegaconf'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def every_option() -> Iterator[str]:
    for group in groups(FOLDERS):
        yield from (f"{group}={option}" for option in options(group, FOLDERS))


def needed(choice: str) -> list[str]:
    """What the user must add to a choice, so that it composes."""
    group, _, option = choice.partition("=")
    extra = NEEDED.get(choice, [])
    if group == "backbone":
        return ["data=table"]  # the default data shapes the adapters for its own small inputs
    if group != "experiment":
        return extra
    text = file_of(group, option, FOLDERS).read_text(encoding="utf-8")
    return extra if "# Data: generated" in text else [*extra, "data.path=x"]


def combined(choices: list[str]) -> Iterator[tuple[str, ...]]:
    """All experiments, and combinations of options of other groups: each option is once."""
    # A backbone of public weights has options for the head that it was published with.
    groups_of: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for choice in choices:
        group = choice.partition("=")[0]
        if group in ("experiment", "debug"):  # they choose options of other groups
            yield (choice,)
        else:
            with_data = group in ("adapters", "data", "head")
            groups_of[with_data].setdefault(group, []).append(choice)
    for columns in groups_of.values():
        for row in itertools.zip_longest(*columns.values()):
            yield tuple(filter(None, row))


@functools.cache
def composed(choices: tuple[str, ...]) -> dict:
    """The configuration of options of different groups."""
    words = [EXAMPLES]
    for choice in choices:
        group, _, option = choice.partition("=")
        words.append(f"{group}=[{option}]" if group == "adapters" else choice)
        words += needed(choice)
    return compose(Train, words).values


COMBINED = list(combined(list(every_option())))


@pytest.mark.parametrize("choices", COMBINED, ids=" ".join)
def test_every_yaml_composes_without_errors(choices):
    problems: list[str] = []
    complete(composed(choices), TRUST, problems=problems)
    assert problems == []


def written_nodes(node, prefix: str = "") -> Iterator[tuple[str, dict]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield prefix, node
        for name, value in node.items():
            yield from written_nodes(value, f"{prefix}.{name}")


# An experiment states its decisions, also those that are defaults.
PARTS = [each for each in every_option() if not each.startswith(("experiment=", "debug="))]


@pytest.mark.parametrize("choice", PARTS)
def test_a_yaml_holds_only_what_differs_from_the_signature(choice):
    group, _, option = choice.partition("=")
    repeated = []
    for key, node in written_nodes(node_of(group, option, FOLDERS), group):
        parameters = inspect.signature(resolve(node["_target_"], key=key, trust=TRUST)).parameters
        for name, value in node.items():
            default = parameters[name].default if name in parameters else inspect.Parameter.empty
            if type(default) is type(value) and default == value:
                repeated.append(f"{key}.{name}")
    assert repeated == []


@pytest.mark.parametrize("choices", COMBINED, ids=" ".join)
def test_every_yaml_builds_its_parts(choices):
    config = composed(choices)
    if config["dim"] > 256:
        config = shrunk(config)
    for key, node in config["adapters"].items():
        if key.endswith("_codes"):  # they need the run of a codec
            continue
        assert build(node, key=f"adapters.{key}").dim == config["dim"]
    assert build(config["backbone"], key="backbone").dim == config["dim"]
    build(config["fusion"], key="fusion", inputs=list(config["adapters"]))
    for key in ("head", "trainer", "loader", "finetune", "optimizer", "scheduler"):
        build(config[key], key=key)
    if config.get("pretrain"):
        build(config["pretrain"]["task"], key="pretrain.task")


def shrunk(config: dict) -> dict:
    """The configuration with one block: a large backbone takes seconds and gigabytes."""
    return {**config, "backbone": {**config["backbone"], "depth": 1}}


@pytest.mark.parametrize("name", options("experiment", FOLDERS))
def test_an_experiment_begins_with_its_command_data_and_cost(name):
    lines = file_of("experiment", name, FOLDERS).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith("# "))
    assert f"experiment={name}" in text
    for word in ("Data:", "Cost:"):
        assert word in text


@pytest.mark.parametrize("name", options("experiment", FOLDERS))
def test_an_experiment_gives_its_name_to_the_run_folder(name):
    assert composed((f"experiment={name}",))["name"] == name


@pytest.mark.parametrize(
    "path",
    sorted(p for folder in FOLDERS for p in folder.rglob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_the_comment_of_a_key_stands_alone(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        comment = line.partition(" # ")[2]
        assert not re.match(r"(of|in place of|from the)\b", comment), line


@pytest.mark.parametrize("package", [dxn, dxn.tokenize, dxn.models, dxn.tasks])
def test_exported_names_exist_and_are_documented(package):
    # Packages that import their modules on first use list the names there.
    for name in vars(package).get("__all__") or vars(package)["_MODULES"]:
        assert getattr(package, name).__doc__, f"{package.__name__}.{name}"


@pytest.mark.parametrize("target", [*ADAPTERS.values(), *TASKS.values()])
def test_a_registered_name_is_a_part_that_can_be_built(target):
    assert callable(resolve(target, key="registry"))


@pytest.mark.parametrize("registry", [("adapters", ADAPTERS), ("head", TASKS)], ids=lambda r: r[0])
def test_every_registered_modality_and_task_has_a_yaml(registry):
    group, names = registry
    assert set(names) <= set(options(group))


def test_every_command_is_in_the_list_and_describes_its_options():
    modules = {path.stem for path in (PACKAGE / "commands").glob("*.py")}
    assert modules - {"__init__", "options"} == set(VERBS) - set(MODULES)
    for verb, command in all_commands().items():
        assert command.verb() == verb
        assert command.usage
        for key, parameter in command.options().parameters.items():
            assert parameter.meaning or parameter.group, f"{verb} {key}"
