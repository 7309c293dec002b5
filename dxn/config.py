"""Compose and check the configuration of a command. Only this module imports Hydra."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dxn.conf_files import (
    CONF,
    add_folders,
    defaults_of,
    groups,
    installed_folders,
    keys_of_experiments,
    node_of,
    options,
)
from dxn.errors import UserError
from dxn.hints import fits, suggestion
from dxn.instantiate import check_targets, expand_defaults, resolve, type_errors
from dxn.keys import Keys, assign, known_keys, top_errors
from dxn.run.settings import Settings
from dxn.signatures import parameters

# Keys whose value is taken literally: numbers, brackets and ${...} in it are text.
LITERAL = ("input", "prompt", "token")
# Keys that contain an interpolation of another key, such as batch_size: ${batch_size}. In a saved
# run it has already been resolved, so changing the key must change these too.
DERIVED = {"batch_size": ("trainer.batch_size",)}
# Keys that determine the weights or the splits. They cannot be changed when a run is resumed.
FIXED_IN_RUN = ("dim", "seed")
MAX_OPTIONS = 3  # files that a message suggests


def _value_or(key: str, default: Any, *, _root_: DictConfig) -> Any:
    """Resolve `${value_or:KEY,DEFAULT}`: the value of a key, or a default if there is no such key.

    A decoder copies options of the backbone with it, and not every backbone has them.
    """
    return OmegaConf.select(_root_, key, default=default)


OmegaConf.register_new_resolver("value_or", _value_or, replace=True)


@dataclass
class Request:
    """The parsed overrides of one command.

    Args:
        folders: Folders of YAML files. That of dxn is the first.
        trust: Packages that this command names, by trust= or conf_dir=. Any folder may use them.
        installed: Packages with an entry point. The composed configuration may use them, but a
            loaded folder may not: it could come from a stranger.
        literal: Text of each key in LITERAL, and of keys below them such as input.image.
        groups: Overrides that choose files.
        values: Overrides that set keys.
        faults: The problems so far, one line each. They are collected, so that the user can correct
            all of them at once.
    """

    folders: list[Path]
    trust: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    literal: dict[str, str] = field(default_factory=dict)
    groups: list[Override] = field(default_factory=list)
    values: list[Override] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def composed_trust(self) -> tuple[str, ...]:
        """Packages that the composed configuration may use."""
        return (*self.trust, *self.installed)

    def stop_on_faults(self) -> None:
        """Raise UserError with all faults, if there are any."""
        # Several steps can find the same fault, so duplicates are removed.
        if self.faults:
            raise UserError("\n".join(dict.fromkeys(self.faults)))


def compose(verb: str, overrides: Sequence[str] = ()) -> Settings:
    """Compose and check the configuration of a command.

    With `resume=RUN`, the saved configuration of the run is used instead.

    Args:
        verb: Name of the command.
        overrides: Overrides as on the command line.

    Raises:
        UserError: One line per problem, before any data is read.
    """
    request = _parse_request(overrides)
    resumed = next((o.value() for o in request.values if o.key_or_group == "resume"), None)
    if verb == "train" and resumed is not None:
        rest = [line for line in overrides if not line.startswith("resume=")]
        settings = settings_of_run(Path(str(resumed)), rest, request.trust)
        values = {**settings.values, "resume": str(resumed), "run": str(resumed)}
        return replace(settings, values=values, overrides=tuple(overrides))
    # Composed twice: first only the files, to learn which keys exist, then with the values. Hydra
    # itself stops at the first unknown key, and does not suggest the right one.
    group_lines = _checked_groups(request, verb)
    base = _compose_files(verb, group_lines, request)
    if base is None:
        request.stop_on_faults()
    base = cast("dict[str, Any]", base)
    keys = known_keys(base, request.composed_trust)
    value_lines = _checked_values(request, keys)
    for key in request.literal:
        if key.partition(".")[0] not in base:
            request.faults.append(f"{key}: dxn {verb} has no such key")
    values = _compose_files(verb, [*group_lines, *value_lines], request)
    if values is not None:
        values = _resolve(values, request)
    if values is not None:
        request.faults += _type_faults(values, request.composed_trust)
    request.stop_on_faults()
    overridden = [o.key_or_group for o in (*request.groups, *request.values)]
    chosen = {*overridden, *request.literal, *_experiment_keys(request)}
    return Settings(
        cast("dict[str, Any]", values),
        tuple(overrides),
        frozenset(chosen),
        trust=request.composed_trust,
        folder_trust=request.trust,
    )


def settings_of_run(
    folder: Path, overrides: Sequence[str] = (), trust: Sequence[str] = ()
) -> Settings:
    """Return the saved configuration of a run, with the values of overrides.

    Args:
        folder: The run folder. It may come from a stranger, so nothing in it is composed or
            resolved again.
        overrides: Overrides of values.
        trust: Top-level packages besides dxn whose code the run may use.

    Raises:
        UserError: If it is not a run folder, a `_target_` is not trusted, or an override is wrong.
    """
    request = _parse_request(overrides)
    request.trust = tuple(dict.fromkeys([*request.trust, *trust]))
    saved = Settings.load(folder, request.trust)
    if not request.values and not request.groups:
        request.stop_on_faults()
        return replace(saved, trust=request.trust, folder_trust=request.trust)
    values = saved.values
    for override in request.groups:
        request.faults.append(
            f"{override.input_line}: the parts of a saved run cannot be changed; change values, "
            "such as trainer.epochs=30, or train a new run"
        )
    keys = known_keys(values, request.trust)
    _checked_values(request, keys)
    for override in request.values:
        key = override.key_or_group
        if key in FIXED_IN_RUN:
            request.faults.append(f"{key}: cannot be changed in a saved run; train a new run")
        for changed in (key, *DERIVED.get(key, ())):
            assign(values, changed, _typed_value(override, keys.hint(key)))
    # Unknown keys first: with them, the types below could not be checked.
    request.stop_on_faults()
    request.faults += _type_faults(values, request.trust)
    request.stop_on_faults()
    chosen = frozenset(o.key_or_group for o in request.values)
    return Settings(
        values,
        (*saved.overrides, *overrides),
        chosen,
        trust=request.trust,
        folder_trust=request.trust,
    )


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Expand overrides such as `key=a,b` (Hydra's sweep grammar) to all combinations.

    Args:
        overrides: Overrides as on the command line.

    Returns:
        The overrides of each run. The values of the last key change fastest.

    Raises:
        UserError: If an override cannot be parsed, or is a range instead of a list.
    """
    request = Request([CONF])
    parsed = _parse(overrides, request, sweep=True)
    request.stop_on_faults()
    alternatives = []
    for override in parsed:
        if not override.is_sweep_override():
            alternatives.append([str(override.input_line)])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            alternatives.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise UserError(
                f"{override.input_line}: only lists of values can be swept, such as "
                f"{override.key_or_group}=1,2,3"
            )
    return [list(combination) for combination in itertools.product(*alternatives)]


def _parse_request(overrides: Sequence[str]) -> Request:
    """Parse overrides, and sort them into folders, literal texts, groups and values."""
    installed = installed_folders()
    folders: list[Path] = []
    literal: dict[str, str] = {}
    lines: list[str] = []
    for line in overrides:
        key, _, value = line.partition("=")
        if key == "conf_dir" and value:
            folders.append(Path(value).expanduser().absolute())
        elif key.partition(".")[0] in LITERAL and "=" in line:
            literal[key] = value
        else:
            # weights=PATH is short for weights.source=PATH.
            lines.append(f"weights.source={value}" if key == "weights" and value else line)
    existing = [folder for folder in (*installed, *folders) if folder.is_dir()]
    request = Request([CONF, *existing], literal=literal)
    request.installed = add_folders(installed, request.faults)
    request.trust = add_folders(folders, request.faults)
    parsed = _parse(lines, request)
    known = set(groups(request.folders))
    for override in parsed:
        # A mapping, such as backbone={dropout: 0.1}, sets values of the part instead.
        is_group = override.key_or_group in known and not isinstance(override.value(), dict)
        (request.groups if is_group else request.values).append(override)
        # Needed now: composing the files already imports the parts that they name.
        if override.key_or_group == "trust":
            value = override.value()
            trusted = value if isinstance(value, list) else [value]
            request.trust = (*request.trust, *(str(name) for name in trusted if name))
    return request


def _parse(lines: Sequence[str], request: Request, *, sweep: bool = False) -> list[Override]:
    """Parse overrides. Those that cannot be parsed are added to the faults.

    A value that is not valid in Hydra's grammar is taken as text, and so is a list of values
    outside of a sweep: paths and sentences contain commas, brackets and quotes.
    """
    parsed = []
    for line in lines:
        override = _parse_override(line)
        if override is None or (override.is_sweep_override() and not sweep):
            key, _, value = line.partition("=")
            override = _parse_override(f"{key}={_quoted(value)}") if value else None
        if override is None:
            request.faults.append(f"{line}: not an override; write key=value")
        elif override.is_delete():
            # Every part takes its defaults from a signature, so a deleted key would come back.
            request.faults.append(f"{line}: a key cannot be deleted; set it to null")
        else:
            parsed.append(override)
    return parsed


def _parse_override(line: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(line)
    except HydraException:
        return None


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _checked_groups(request: Request, verb: str) -> list[str]:
    """Return the overrides that choose existing files. Wrong ones are added to the faults."""
    defaults = defaults_of(verb)
    lines = []
    for override in request.groups:
        name, value = override.key_or_group, override.value()
        available = options(name, request.folders)
        if name not in defaults:
            listed = ", ".join(defaults) or "none"
            request.faults.append(f"{name}: dxn {verb} has no such group; groups: {listed}")
            continue
        if value is None and defaults[name] is None:
            continue  # experiment=null is the default
        chosen = value if isinstance(value, list) else [value]
        wrong = [str(item) for item in chosen if str(item) not in available]
        for item in wrong:
            hint = suggestion(item, available)
            if "," in item:
                hint = f" a list is written {name}=[{item}];"
            listed = ", ".join(available)
            request.faults.append(f"{name}={item}: no such option;{hint} options: {listed}")
        if not wrong:
            # Users of Hydra type +experiment=NAME, but Hydra refuses the + for groups that are in
            # the defaults, as all groups of dxn are.
            lines.append(str(override.input_line).lstrip("+"))
    return lines


def _compose_files(verb: str, lines: Sequence[str], request: Request) -> dict[str, Any] | None:
    """Compose files and overrides, and add the defaults of all signatures.

    Interpolations are not resolved yet, because they can refer to a default that Hydra does not
    know. Returns None after adding to the faults if the files cannot be composed.
    """
    # Hydra searches the folder of dxn first, so a file of the user cannot replace one of dxn.
    paths = ",".join(_quoted(f"file://{folder}") for folder in request.folders[1:])
    search = [f"hydra.searchpath=[{paths}]"] if paths else []
    try:
        with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
            cfg = hydra_compose(verb, overrides=[*search, *lines])
        composed = OmegaConf.to_container(cfg, resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        # The messages have several lines, but a line of the faults is one problem.
        request.faults.append(" ".join(str(error).split()))
        return None
    values = cast("dict[str, Any]", composed)
    if isinstance(values.get("adapters"), dict):
        # Files of data and backbone also set options of adapters that are not chosen. These have
        # no class, and are removed.
        adapters = values["adapters"]
        values["adapters"] = {k: v for k, v in adapters.items() if v and "_target_" in v}
    try:
        check_targets(values, request.composed_trust)
        return expand_defaults(values, request.composed_trust)
    except UserError as error:
        request.faults += str(error).splitlines()
        return None


def _checked_values(request: Request, keys: Keys) -> list[str]:
    """Return the overrides of known keys in Hydra's syntax. Others are added to the faults."""
    lines = []
    for override in request.values:
        key = override.key_or_group
        if not keys.has(key):
            request.faults.append(f"{key}: no such key;{_advice(key, keys, request)}")
            continue
        value = str(override.input_line).partition("=")[2]
        if _is_text(override, keys.hint(key)):
            value = _quoted(value)
        # ++ sets a key whether the YAML files contain it or only the signature.
        lines.append(f"++{key}={value}")
    return lines


def _is_text(override: Override, hint: Any) -> bool:
    """Whether a number or Boolean is meant as text, such as the name of a column 2024."""
    value = override.value()
    is_scalar = isinstance(value, bool | int | float)
    return is_scalar and not fits(value, hint) and fits("", hint)


def _typed_value(override: Override, hint: Any) -> Any:
    """Return the value of an override in the type that its key expects."""
    if _is_text(override, hint):
        return str(override.input_line).partition("=")[2]
    return override.value()


def _advice(key: str, keys: Keys, request: Request) -> str:
    """Return how to set an unknown key: with another file of its group, or by its right name."""
    group, _, rest = key.partition(".")
    first = rest.partition(".")[0]
    if rest and group in groups(request.folders) and f"{group}.{first}" not in keys.types:
        names = _options_with(group, first, tuple(request.folders), request.composed_trust)
        # The next part of an adapter's key is its name, and not an argument.
        if names and group != "adapters":
            return f" {' or '.join(f'{group}={option}' for option in names)} has it"
    return keys.suggestion(key) or " dxn show prints all keys"


# Cached, because each unknown key would read all files of the group again.
@functools.cache
def _options_with(
    group: str, name: str, folders: tuple[Path, ...], trust: tuple[str, ...]
) -> list[str]:
    """Return the first files of a group whose part has an argument `name`."""
    names = []
    for option in options(group, folders):
        target = node_of(group, option, folders).get("_target_")
        if target and name in parameters(resolve(target, key=group, trust=trust)):
            names.append(option)
    return names[:MAX_OPTIONS]


def _resolve(values: dict[str, Any], request: Request) -> dict[str, Any] | None:
    """Resolve interpolations and set literal texts. Returns None after adding to the faults."""
    # A literal key has a value, so it must not count as missing (???).
    for key in request.literal:
        assign(values, key, None)
    cfg = OmegaConf.create(values)
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        request.faults += [f"{key}: needs a value, {key}=..." for key in missing]
        if missing:
            return None
        resolved = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException as error:
        # OmegaConf puts the key in the lines after the message.
        message, _, details = str(error).partition("\n")
        key = re.search(r"full_key: (\S+)", details)
        request.faults.append(f"{key[1]}: {message}" if key else message)
        return None
    # After resolving, so that ${...} in a text is not an interpolation.
    for key, text in request.literal.items():
        assign(resolved, key, text)
    return resolved


def _type_faults(values: Mapping[str, Any], trust: Sequence[str]) -> list[str]:
    """Return one line per value of a wrong type."""
    top = top_errors(values)
    # A wrong `seed` is also a wrong data.seed and trainer.seed, which the user did not type.
    nested = [
        fault
        for fault in type_errors(values, trust)
        if not any(fault.endswith(f".{top_fault}") for top_fault in top)
    ]
    return [*top, *nested]


def _experiment_keys(request: Request) -> set[str]:
    """Return the keys that the chosen experiment sets: they count as chosen by the user."""
    chosen = [o.value() for o in request.groups if o.key_or_group == "experiment"]
    names = [str(name) for name in chosen if name]
    return keys_of_experiments(names, request.folders)
