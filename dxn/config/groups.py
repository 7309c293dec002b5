"""Find and read YAML files: those of dxn, of the user, and of installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from dxn.config.signatures import CONF
from dxn.config.values import leaves
from dxn.core.errors import UserError, similar

ENTRY_POINTS = "dxn.conf"


def options(group: str, folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of a group's files: the possible values of `group=`."""
    names = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
    # A file such as head/_decoder.yaml is included by others, and cannot be chosen.
    return sorted(name for name in names if not name.startswith("_"))


def groups(folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of all groups."""
    names: set[str] = set()
    for folder in folders:
        # A folder without YAML files, such as __pycache__, is not a group.
        names |= {path.parent.name for path in folder.glob("*/*.yaml")}
    return sorted(names)


def no_such_option(group: str, option: str, available: Sequence[str]) -> str:
    """Return the sentence about an option that a group does not have."""
    match = similar(option, available)
    hint = f" did you mean {match}?" if match else ""
    if "," in option:
        hint = f" a list is written {group}=[{option}];"
    return f"{group}={option}: no such option;{hint} options: {', '.join(available)}"


def file_of(group: str, option: str, folders: Sequence[Path] = (CONF,)) -> Path:
    """Return the file of an option that exists, see `options`."""
    return next(p for f in folders if (p := f / group / f"{option}.yaml").is_file())


def node_of(group: str, option: str, folders: Sequence[Path] = (CONF,)) -> dict[str, Any]:
    """Return the node that a file contains, without resolving interpolations.

    Most files contain only the node. A file with `# @package _global_` contains it under the name
    of the group, and a file of the group `adapters` under the name of the adapter. Included files
    are inserted.
    """
    # Hydra could compose the node, but only as part of a complete configuration.
    path = file_of(group, option, folders)
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    for entry in content.pop("defaults", ()):
        # Hydra's syntax FILE@KEY inserts another file under a key.
        if isinstance(entry, str) and "@" in entry:
            included, _, key = entry.partition("@")
            file = path.with_name(f"{included}.yaml")
            content[key] = yaml.safe_load(file.read_text(encoding="utf-8"))
    if "@package _global_" in text:
        return content.get(group, {})
    if "_target_" not in content and isinstance(content.get(option), dict):
        return content[option]
    return content


def keys_of_experiment(name: str, folders: Sequence[Path]) -> set[str]:
    """Return the keys and groups that an experiment sets, including the experiments it extends.

    None if there is no such experiment.
    """
    remaining = [name] if name in options("experiment", folders) else []
    keys: set[str] = set()
    while remaining:
        # An experiment can extend another one by NAME or by /experiment/NAME.
        path = file_of("experiment", remaining.pop().rpartition("/")[2], folders)
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in values.pop("defaults", ()):
            if isinstance(entry, Mapping):
                # An entry such as {"override /data": "table"} chooses a file of the group data.
                keys |= {key.rpartition("/")[2] for key in entry}
            elif entry != "_self_":
                remaining.append(entry)
        keys |= set(leaves(values))
    return keys


def folders_of(conf_dirs: Sequence[str]) -> list[Path]:
    """Return the folders of YAML files that values of conf_dir= mean.

    A value is such a folder, the folder of a package that contains it as `conf`, or the folder of a
    project, whose pyproject.toml names its packages in the same entry points that
    `installed_folders` reads once it is installed.

    Raises:
        UserError: If a pyproject.toml is not valid.
    """
    folders: list[Path] = []
    for value in conf_dirs:
        folder = Path(value).expanduser().absolute()
        project = folder / "pyproject.toml"
        packages: dict[str, str] = {}
        if project.is_file():
            import tomllib  # most commands do not need it

            try:
                content: Any = tomllib.loads(project.read_text(encoding="utf-8"))
                packages = content["project"]["entry-points"][ENTRY_POINTS]
            except KeyError:
                pass  # the project of a folder that has the YAML files itself
            except ValueError as error:
                raise UserError(f"conf_dir: {project}: {error}") from error
        folders += [_yaml_folder(folder / name.replace(".", "/")) for name in packages.values()]
        folders += [] if packages else [_yaml_folder(folder)]
    return folders


def _yaml_folder(package: Path) -> Path:
    """Return the folder of YAML files of a package: its folder conf, if it has one."""
    return package / "conf" if (package / "conf").is_dir() else package


def installed_folders() -> list[Path]:
    """Return the folders of YAML files that installed packages register by an entry point.

    Raises:
        UserError: If the module of an entry point does not exist.
    """
    folders = []
    for entry in entry_points(group=ENTRY_POINTS):
        # find_spec does not run the module: importing every installed extension would be slow.
        spec = find_spec(entry.value)
        if spec is None or spec.origin is None:
            raise UserError(
                f"entry point {entry.name} of {ENTRY_POINTS}: module {entry.value} not found; "
                "install the package again or uninstall it"
            )
        folders.append(_yaml_folder(Path(spec.origin).parent))
    return folders


def add_folders(folders: Sequence[Path], problems: list[str]) -> tuple[str, ...]:
    """Check the user's folders, make their modules importable, and return the packages they use.

    The configuration may use these packages: the user installed them, or named them by conf_dir.

    Args:
        folders: The folders.
        problems: List to which problems are appended, one line each.
    """
    # A dict, because a set would lose the order.
    packages: dict[str, None] = {}
    for folder in folders:
        if not folder.is_dir():
            problems.append(f"conf_dir: folder not found: {folder}")
            continue
        if not groups([folder]):
            problems.append(
                f"conf_dir: {folder}: has no YAML file of a group, such as head/NAME.yaml; set "
                "conf_dir to the folder that contains the folders of the groups"
            )
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder)
            if (CONF / name).exists():
                problems.append(f"conf_dir: {path}: dxn already has a file {name}; rename yours")
            # A search in the text finds a `_target_` at any depth of the file.
            text = path.read_text(encoding="utf-8")
            packages |= dict.fromkeys(re.findall(r"_target_:\s*[\"']?(\w+)\.", text))
        # Files can name a module next to the folder, or the package that contains the folder,
        # without installing it. At the end of sys.path it cannot shadow an installed module.
        root = folder.parent
        while (root / "__init__.py").is_file():
            root = root.parent
        if str(root) not in sys.path:
            sys.path.append(str(root))
    packages.pop("dxn", None)
    return tuple(packages)
