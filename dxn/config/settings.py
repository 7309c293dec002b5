"""The composed configuration of one command, and how it is saved in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dxn.config.instantiate import check_targets
from dxn.core.errors import UserError
from dxn.core.files import CONFIG, write_text
from dxn.core.untrusted import load_any_yaml, load_yaml

FOLDER = ".hydra"  # the name in the output folders of other programs that use Hydra


@dataclass(frozen=True)
class Settings:
    """A composed and checked configuration.

    Args:
        values: Value of every key, with resolved interpolations and all defaults.
        overrides: The overrides as the user typed them.
        chosen: Dotted keys and groups that the user or the experiment set.
        experiment: Those of them that only the experiment set.
        trust: Top-level packages besides dxn whose code the configuration itself may use.
        folder_trust: Those that a loaded run, model or checkpoint folder may use as well: only the
            packages that the command names, because the folder may come from an untrusted source.
        notes: Lines to print, such as the run that `resume=latest` means.
        metrics: Metrics of a Python program by name, which cannot be saved.
    """

    values: dict[str, Any]
    overrides: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()
    experiment: frozenset[str] = frozenset()
    trust: tuple[str, ...] = ()
    folder_trust: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)

    @property
    def is_resumed(self) -> bool:
        """Whether the settings are those of a run that continues."""
        return bool(self.values["resume"]["run"])

    def save(self, folder: Path) -> None:
        """Write .hydra/config.yaml (the values) and .hydra/overrides.yaml in a run folder."""
        directory = folder / FOLDER
        write_text(directory / CONFIG, dump_yaml(self.values))
        write_text(directory / "overrides.yaml", dump_yaml(list(self.overrides)))

    @classmethod
    def load(cls, folder: Path, trust: Sequence[str] = ()) -> Settings:
        """Read the files of `save`, from a run folder that may come from an untrusted source.

        Nothing is composed again. The values are read as plain data, so interpolations are not
        resolved. The overrides are only for display.

        Raises:
            UserError: If it is not a run folder, its configuration is damaged, or a `_target_`
                belongs neither to dxn nor to a trusted package.
        """
        path = folder / FOLDER / CONFIG
        if not path.is_file():
            raise UserError(f"{folder}: not a run folder, it has no {FOLDER}/{CONFIG}")
        values = load_yaml(path)
        # Imported here, because pydantic takes time to import, and most commands do not need it.
        from dxn.config.model_plan import RunConfig
        from dxn.core.schema import validated

        validated(RunConfig, values, path)
        try:
            check_targets(values, trust)
        except UserError as error:
            # The keys alone would not tell that the problem is in the saved file.
            lines = [f"{path}: {line}" for line in str(error).splitlines()]
            raise UserError("\n".join(lines)) from error
        overrides = _read_overrides(path.with_name("overrides.yaml"))
        return cls(values, overrides=overrides, trust=tuple(trust))


def merge_overrides(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of a run and those of its resume. The last one of a key counts."""
    lines = {line.partition("=")[0]: line for line in (*old, *new) if not line.startswith("resume")}
    return tuple(lines.values())


# As SAFE_LOADER: in C, if PyYAML contains it.
SAFE_DUMPER: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML, without aliases and with the keys in their order."""
    # A copy: YAML would write an object that occurs twice as an alias, which `load_yaml` refuses.
    content = plain(data)
    return yaml.dump(content, Dumper=SAFE_DUMPER, sort_keys=False, allow_unicode=True, width=100)


def _read_overrides(path: Path) -> tuple[str, ...]:
    """Read the overrides of a run; none if the file is missing or damaged."""
    # A damaged file is not an error, because the overrides are only displayed.
    if not path.is_file():
        return ()
    try:
        lines = load_any_yaml(path)
    except UserError:
        return ()
    return tuple(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ()


def plain(value: Any) -> Any:
    """Return a deep copy in which mappings are dicts and sequences are lists, as YAML needs it."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
