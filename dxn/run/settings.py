"""The composed configuration of one command, and how it is saved in a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dxn.errors import UserError
from dxn.targets import check_targets, load_plain

FOLDER = ".hydra"  # the name in the output folders of other programs that use Hydra


@dataclass(frozen=True)
class Settings:
    """A composed and checked configuration.

    Args:
        values: Value of every key, with resolved interpolations and all defaults.
        overrides: The overrides as the user typed them.
        chosen: Dotted keys and groups that the user or the experiment set.
        trust: Top-level packages besides dxn whose code the configuration itself may use.
        folder_trust: Those that a loaded run, model or checkpoint folder may use as well: only the
            packages that the command names, because the folder may come from a stranger.
        notes: Lines to print, such as the run that `resume=latest` means.
    """

    values: dict[str, Any]
    overrides: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()
    trust: tuple[str, ...] = ()
    folder_trust: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def yaml(self) -> str:
        """Return the values as YAML, in the order of composition."""
        return dump_yaml(self.values)

    def save(self, folder: Path) -> None:
        """Write .hydra/config.yaml (the values) and .hydra/overrides.yaml in a run folder."""
        directory = folder / FOLDER
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.yaml").write_text(self.yaml(), encoding="utf-8")
        (directory / "overrides.yaml").write_text(dump_yaml(list(self.overrides)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, trust: Sequence[str] = ()) -> Settings:
        """Read the files of `save`, from a run folder that may come from a stranger.

        Nothing is composed again. The values are read as plain data, so interpolations are not
        resolved. The overrides are only for display.

        Raises:
            UserError: If it is not a run folder, or a `_target_` belongs neither to dxn nor to a
                trusted package.
        """
        path = folder / FOLDER / "config.yaml"
        if not path.is_file():
            raise UserError(f"{folder}: not a run folder, it has no {FOLDER}/config.yaml")
        values = load_plain(path)
        try:
            check_targets(values, trust)
        except UserError as error:
            # The keys alone would not tell that the problem is in the saved file.
            lines = [f"{path}: {line}" for line in str(error).splitlines()]
            raise UserError("\n".join(lines)) from error
        overrides = _read_overrides(path.with_name("overrides.yaml"))
        return cls(values, overrides=overrides, trust=tuple(trust))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write an object in full each time it occurs, because `load_plain` refuses aliases."""
        return True


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML, without aliases and with the keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _read_overrides(path: Path) -> tuple[str, ...]:
    """Read the overrides of a run; none if the file is missing or damaged."""
    # A damaged file is no error, because the overrides are only displayed.
    if not path.is_file():
        return ()
    try:
        lines = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError):
        return ()
    return tuple(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ()


def plain(value: Any) -> Any:
    """Return a deep copy in which mappings are dicts and sequences are lists, as YAML needs it."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
