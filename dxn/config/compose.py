"""Compose and check the configuration of a command, with Hydra."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dxn.config.environment import Texts, interpolations, require_no_interpolations, resolve
from dxn.config.groups import CONF, defaults_of, groups, keys_of_experiments, node_of, options
from dxn.config.hints import similar
from dxn.config.instantiate import expand_defaults, merge_options, type_errors
from dxn.config.keys import Keys, assign, known_keys, lookup, top_errors
from dxn.config.overrides import Override, Request, parse_request, typed_value
from dxn.config.paths import expand_home
from dxn.config.targets import check_targets, signature_of
from dxn.core.errors import UserError
from dxn.core.printable import quoted
from dxn.runs.paths import interrupted_run
from dxn.runs.settings import UNUSED_IN_RUN, Settings

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


def compose(verb: str, overrides: Sequence[str] = ()) -> Settings:
    """Compose and check the configuration of a command.

    With `resume=RUN`, the saved configuration of the run is used instead.

    Args:
        verb: Name of the command.
        overrides: Overrides as on the command line.

    Raises:
        UserError: One line per problem, before any data is read.
    """
    request = parse_request(verb, overrides)
    resumed = request.value("resume.run")
    if verb == "train" and resumed is not None:
        folder, note = interrupted_run(str(resumed))
        rest = [line for line in overrides if not line.startswith(("resume=", "resume.run="))]
        settings = settings_of_run(folder, rest, request.trust)
        resume = {**settings.values["resume"], "run": str(folder)}
        values = {**settings.values, "resume": resume, "run": str(folder)}
        notes = () if note is None else (note,)
        return replace(settings, values=values, overrides=tuple(overrides), notes=notes)
    if verb == "train" and request.value("resume.force"):
        request.faults.append(
            "resume.force: has an effect only together with resume=RUN, the run to continue"
        )
    # Hydra composes only the files. Whether the keys of the other overrides exist is known after
    # that: Hydra itself stops at the first unknown key, and does not suggest the right one.
    files = _compose_files(verb, _checked_groups(request, verb), request)
    if files is None:
        request.stop_on_faults()
    files = cast("dict[str, Any]", files)
    base = _expanded(files, request)
    if base is None:
        request.stop_on_faults()
    keys = known_keys(cast("dict[str, Any]", base), request.composed_trust)
    _set_values(files, keys, request)
    for key in request.literal:
        if key.partition(".")[0] not in files:
            request.faults.append(f"{key}: dxn {verb} has no such key")
    values = _expanded(files, request)
    hidden: Texts = {}
    if values is not None:
        values, hidden = _resolve(values, request)
    if values is not None:
        expand_home(values)
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
        hidden=hidden,
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
    request = parse_request("train", overrides, infers=False)
    request.trust = tuple(dict.fromkeys([*request.trust, *trust]))
    saved = Settings.load(folder, request.trust)
    if not request.values and not request.groups:
        request.stop_on_faults()
        used = {k: v for k, v in saved.values.items() if k not in UNUSED_IN_RUN}
        require_no_interpolations(used)
        request.faults += _type_faults(saved.values, request.trust)
        request.stop_on_faults()
        return replace(saved, trust=request.trust, folder_trust=request.trust)
    values = saved.values
    for override in request.groups:
        request.faults.append(
            f"{override.input_line}: the parts of a saved run cannot be changed; change values, "
            "such as trainer.epochs=30, or train a new run"
        )
    keys = known_keys(values, request.trust)
    _check_values(request, keys)
    hidden = interpolations(values)
    for override in request.values:
        key = override.key_or_group
        if key in FIXED_IN_RUN:
            request.faults.append(f"{key}: cannot be changed in a saved run; train a new run")
        # An option of this command may read the environment, unlike one of the folder.
        resolved, texts = resolve({"value": typed_value(override, keys.hint(key))})
        for changed in (key, *DERIVED.get(key, ())):
            path = tuple(changed.split("."))
            if text := texts.get(("value",), hidden.get(path)):
                hidden[path] = text
            assign(values, changed, resolved["value"])
    # Unknown keys first: with them, the types below could not be checked.
    request.stop_on_faults()
    require_no_interpolations({k: v for k, v in values.items() if k not in UNUSED_IN_RUN})
    expand_home(values)
    request.faults += _type_faults(values, request.trust)
    request.stop_on_faults()
    chosen = frozenset(o.key_or_group for o in request.values)
    return Settings(
        values,
        (*saved.overrides, *overrides),
        chosen,
        trust=request.trust,
        folder_trust=request.trust,
        hidden=hidden,
    )


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
            match = similar(item, available)
            hint = f" did you mean {match}?" if match else ""
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
    """Compose files. Returns None after adding to the faults if this is not possible.

    Interpolations are not resolved yet, because they can refer to a value of an override, or to a
    default that only a signature contains.
    """
    # Hydra searches the folder of dxn first, so a file of the user cannot replace one of dxn.
    paths = ",".join(quoted(f"file://{folder}") for folder in request.folders[1:])
    search = [f"hydra.searchpath=[{paths}]"] if paths else []
    # The files of dxn do not change, but those of the user can.
    compose_files = _hydra.__wrapped__ if search else _hydra
    try:
        values = copy.deepcopy(compose_files(verb, (*search, *lines)))
    except (HydraException, OmegaConfBaseException) as error:
        # The messages have several lines, but a line of the faults is one problem.
        request.faults.append(" ".join(str(error).split()))
        return None
    if isinstance(values.get("adapters"), dict):
        # Files of data and backbone also set options of adapters that are not chosen. These have
        # no class, and are removed.
        adapters = values["adapters"]
        values["adapters"] = {k: v for k, v in adapters.items() if v and "_target_" in v}
    return values


# Cached, because Hydra takes a tenth of a second, and the runs of a sweep choose the same files.
@functools.lru_cache(maxsize=64)
def _hydra(verb: str, lines: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of files, with unresolved interpolations."""
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        cfg = hydra_compose(verb, overrides=list(lines))
    return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=False))


def _expanded(values: dict[str, Any], request: Request) -> dict[str, Any] | None:
    """Add the defaults of all signatures. Returns None after adding to the faults."""
    try:
        check_targets(values, request.composed_trust)
        return expand_defaults(values, request.composed_trust)
    except UserError as error:
        request.faults += str(error).splitlines()
        return None


def _set_values(files: dict[str, Any], keys: Keys, request: Request) -> None:
    """Set the overrides of known keys in place. Others are added to the faults."""
    for override in _check_values(request, keys):
        key = override.key_or_group
        value = typed_value(override, keys.hint(key))
        _, old = lookup(files, key)
        # A mapping, such as backbone={dropout: 0.1}, changes only the keys that it contains.
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = merge_options(old, value)
        assign(files, key, value)


def _check_values(request: Request, keys: Keys) -> list[Override]:
    """Return the overrides whose keys can be set. Others are added to the faults."""
    known = []
    for override in request.values:
        key = override.key_or_group
        if keys.has(key):
            known.append(override)
        else:
            request.faults.append(f"{key}: no such key;{_advice(key, keys, request)}")
    return known


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
        if target and name in signature_of(target, key=group, trust=trust).parameters:
            names.append(option)
    return names[:MAX_OPTIONS]


def _resolve(values: dict[str, Any], request: Request) -> tuple[dict[str, Any] | None, Texts]:
    """Resolve interpolations and set literal texts.

    Returns:
        The values, or None after adding to the faults; and the interpolations of values from the
        environment, by path.
    """
    # A literal key has a value, so it must not count as missing (???).
    for key in request.literal:
        assign(values, key, None)
    try:
        # The search for missing values resolves all interpolations, so it is skipped if possible.
        missing = _missing_keys(values) if "???" in str(values) else []
        request.faults += [f"{key}: needs a value, {key}=..." for key in missing]
        if missing:
            return None, {}
        resolved, hidden = resolve(values)
    except UserError as error:
        request.faults.append(str(error))
        return None, {}
    except OmegaConfBaseException as error:
        # OmegaConf puts the key in the lines after the message.
        message, _, details = str(error).partition("\n")
        key = re.search(r"full_key: (\S+)", details)
        request.faults.append(f"{key[1]}: {message}" if key else message)
        return None, {}
    # After resolving, so that ${...} in a text is not an interpolation.
    for key, text in request.literal.items():
        assign(resolved, key, text)
    return resolved, hidden


def _missing_keys(values: dict[str, Any]) -> list[str]:
    """Return the keys without a value (???)."""
    return sorted(OmegaConf.missing_keys(OmegaConf.create(values)))


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
