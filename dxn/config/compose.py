"""Compose and check the options of a command, with Hydra."""

from __future__ import annotations

import copy
import functools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dxn.config import signatures
from dxn.config.instantiate import SPECIAL, complete, merge_options, signature_of
from dxn.config.settings import Settings
from dxn.config.signatures import NO_DEFAULT, Parameter, Signature
from dxn.config.values import assign, leaves, lookup, problem, suggestion, value_type
from dxn.config.words import (
    CONF,
    Override,
    Request,
    groups,
    no_such_option,
    node_of,
    options,
    parse,
)
from dxn.core.printable import quoted

if TYPE_CHECKING:
    from dxn.config.command import Command

HOME = "~/"
ENVIRONMENT = "oc.env:"  # as in ${oc.env:NAME}
STORAGE = "storage"  # the URL of a database, which can contain a password, and is not saved
INTERPOLATION = "${"
# ${key}, or ${oc.select:key,default} with a number, a constant or another word.
REFERENCE = re.compile(
    r"\$\{(?:(?P<key>[a-z_][\w.]*)|oc\.select:(?P<optional>[a-z_][\w.]*),"
    r"(?:(?P<constant>\d+(?:\.\d+)?|null|true|false)|(?P<word>(?!inf|nan)[a-z]+)))\}"
)
MAX_REFERENCES = 8  # from one to the next; more are a circle
MAX_OPTIONS = 3  # files that a message suggests


def compose(command: type[Command], words: Sequence[str] = ()) -> Settings:
    """Compose and check the options of a command.

    Args:
        command: The command.
        words: Words of the command line.

    Raises:
        UserError: One line per problem, before any data is read.
    """
    request = parse(command, words)
    saved = command.resumed(request, words)
    if saved is not None:
        return saved
    # Hydra composes only the files. Whether the keys of the other overrides exist is known after
    # that: Hydra itself stops at the first unknown key, and does not suggest the right one.
    values = _compose_files(command, request) if command.options().groups else {}
    for override, value in valid_overrides(command, values, request):
        set_option(values, override.key, value)
    composed = with_defaults(command, values, request)
    values = _resolved(composed, command, request)
    if values != composed:
        with_defaults(command, values, request)  # checks the types of the resolved values
    adapters = values.get("adapters")
    for name, node in adapters.items() if isinstance(adapters, Mapping) else ():
        if not isinstance(node, Mapping) or "_target_" not in node:
            request.problems.append(
                f"adapters.{name}: must be a mapping with a _target_, got {node!r}; "
                "adapters=[text,image] chooses the kinds of inputs"
            )
    if request.problems:
        raise request.error()
    chosen = {override.key for override in request.groups} | {*request.literal}
    chosen |= keys_of_values(request)
    return Settings(
        values,
        tuple(words),
        frozenset(chosen | request.experiment),  # what an experiment sets counts as chosen
        experiment=frozenset(request.experiment - chosen),
        trust=request.trust_all,
        folder_trust=request.trust,
    )


def set_option(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. A mapping, such as {dropout: 0.1}, changes only the keys in it."""
    _, old = lookup(values, key)
    is_merged = isinstance(value, Mapping) and isinstance(old, Mapping)
    assign(values, key, merge_options(old, value) if is_merged else value)


def keys_of_values(request: Request) -> set[str]:
    """Return the dotted keys that the user set, and for a mapping those in it."""
    return {key for o in request.values for key in leaves({o.key: o.value})}


def valid_overrides(
    command: type[Command], values: Mapping[str, Any], request: Request
) -> list[tuple[Override, Any]]:
    """Return the overrides of known keys with their values. Others are added to the problems.

    Args:
        command: The command.
        values: The configuration, with or without its defaults.
        request: The parsed words.
    """
    parameters = command.options().parameters
    overrides = []
    for override in request.values:
        key = override.key
        annotation = type_of(key, values, parameters, request.trust_all)
        if annotation is None:
            advice = _advice(key, command, values, request)
            request.problems.append(f"{key}: no such key;{advice}")
        else:
            value = override.value
            # A number or Boolean can be meant as text, such as the name of a column 2024.
            is_scalar = isinstance(value, bool | int | float)
            if is_scalar and problem(value, annotation) and not problem("", annotation):
                value = override.line.partition("=")[2]
            overrides.append((override, value))
    return overrides


def with_defaults(
    command: type[Command], values: Mapping[str, Any], request: Request
) -> dict[str, Any]:
    """Return values with all defaults. What is wrong in them is added to the problems."""
    options = command.options()
    problems: list[str] = []
    of_command = Signature(f"dxn {command.verb()}", parameters=options.parameters)
    result = complete(values, request.trust_all, problems=problems, signature=of_command)
    for name, parameter in options.parameters.items():
        if name in options.groups and not options.groups[name].is_part:
            del result[name]
        # The class of a group of options of the command itself, such as weights, is always known.
        elif parameter.group is not None and isinstance(result.get(name), dict):
            result[name].pop("_target_", None)
    # A wrong `seed` is also a wrong data.seed and trainer.seed, which the user did not type.
    request.problems += [
        line for line in problems if not any(line.endswith(f".{shorter}") for shorter in problems)
    ]
    return result


def type_of(
    key: str, values: Mapping[str, Any], parameters: Mapping[str, Parameter], trust: Sequence[str]
) -> Any:
    """Return the type of a key that can be set; None if there is no such key.

    Args:
        key: Dotted name.
        values: The configuration, with or without its defaults.
        parameters: Parameters of the command, which describe the top-level keys.
        trust: Top-level packages besides dxn whose code may be used.
    """
    node: Any = values
    signature: Signature | None = Signature("", parameters=parameters)
    annotation: Any = None
    path = ""
    for name in key.split("."):
        parameter = None
        if signature is not None:
            parameter = signature.parameters.get(name)
            if parameter is None and signature.others is not None:
                names = _columns(values, trust)
                parameter = signature.others if names is None or name in names else None
            annotation = None if parameter is None else parameter.type
            if name in SPECIAL and path:
                annotation = Any
        elif value_type(annotation) is not None:
            annotation = value_type(annotation)
        elif isinstance(node, Mapping) and (name in node or (path and not node)):
            # A mapping without a class, such as adapters or pretrain. An empty one of a YAML file
            # is to be filled.
            annotation = Any
        elif annotation is not Any or node is not None:  # a new node of a mapping can have any key
            return None
        if annotation is None:
            return None
        node = node.get(name) if isinstance(node, Mapping) else None
        if node is None and parameter is not None and isinstance(parameter.default, Mapping):
            node = parameter.default
        path = f"{path}.{name}" if path else name
        target = node.get("_target_") if isinstance(node, Mapping) else None
        target = target or (None if parameter is None else parameter.group)
        signature = None if target is None else signature_of(target, key=path, trust=trust)
    return annotation


def all_keys(
    values: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    trust: Sequence[str],
    prefix: str = "",
) -> Iterator[str]:
    """Yield all keys that can be set, for a suggestion. See `type_of` for the arguments."""
    for name in dict.fromkeys([*values, *parameters]):
        if name in SPECIAL:
            continue
        path, value = f"{prefix}{name}", values.get(name)
        yield path
        group = parameters[name].group if name in parameters else None
        if value is None and group is not None:
            # Setting an option of a group whose default is null turns the group on, so the options
            # of the group are keys too.
            value = {"_target_": group}
        if isinstance(value, Mapping):
            target = value.get("_target_", group)
            below = {} if target is None else signature_of(target, key=path, trust=trust).parameters
            yield from all_keys(value, below, trust, f"{path}.")


def _columns(values: Mapping[str, Any], trust: Sequence[str]) -> set[str] | None:
    """Return the names of the columns that a table can have: its inputs and their modalities.

    They differ if two adapters read the same modality, such as text and title. None: any name,
    because the command has no adapters.
    """
    adapters = values.get("adapters")
    if not isinstance(adapters, Mapping):
        return None
    names = set(adapters)
    for name, node in adapters.items():
        if isinstance(node, Mapping) and "_target_" in node:
            signature = signature_of(node["_target_"], key=f"adapters.{name}", trust=trust)
            # A class attribute in dxn, but the protocol also allows an attribute of the instance.
            names |= {signature.modality} if signature.modality is not None else set()
    return names


def expand_home(value: Any) -> Any:
    """Return plain data in which texts that start with "~/" start with the home folder."""
    if isinstance(value, str) and value.startswith(HOME):
        return str(Path(value).expanduser())
    if isinstance(value, Mapping):
        return {name: expand_home(item) for name, item in value.items()}
    return [expand_home(item) for item in value] if isinstance(value, list) else value


def _compose_files(command: type[Command], request: Request) -> dict[str, Any]:
    """Compose the files of the groups of a command.

    Interpolations are not resolved yet, because they can refer to a value of an override, or to a
    default that only a signature contains.
    """
    lines = _checked_groups(request, command) if request.groups else []
    stored = signatures.read()
    name = " ".join([command.verb(), *lines])
    if stored.is_current and name in stored.composed and request.folders == [CONF]:
        return copy.deepcopy(stored.composed[name])
    return _compose_with_hydra(command, lines, request)


def compositions(commands: Iterable[type[Command]]) -> dict[str, dict[str, Any]]:
    """Return what Hydra composes for each command and kind of data, to be stored."""
    composed: dict[str, dict[str, Any]] = {}
    for command in commands:
        groups = command.options().groups
        kinds = options("data") if "data" in groups else []
        for lines in ([], *([f"data={kind}"] for kind in kinds)) if groups else ():
            name = " ".join([command.verb(), *lines])
            composed[name] = _compose_with_hydra(command, lines, Request([CONF]))
    return composed


def _compose_with_hydra(
    command: type[Command], lines: Sequence[str], request: Request
) -> dict[str, Any]:
    """Compose files.

    Args:
        command: The command.
        lines: Overrides that choose other files than the default ones.
        request: The parsed words, with the folders of the files.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException

    # The defaults of the command instead of a file of its own. `_self_` comes first: a file of a
    # group can change them, such as the preset.
    root: dict[str, Any] = {"defaults": ["_self_"]}
    for name, group in command.options().groups.items():
        names: Any = group.default
        if isinstance(names, tuple):  # also files of the user: a new kind of input
            names = [*names, *(n for n in options(name, request.folders[1:]) if n not in names)]
        root["defaults"].append({name: names})
    for key, parameter in command.options().by_key.items():
        if parameter.default is not NO_DEFAULT:
            assign(root, key, parameter.default)
    primary = f"dxn_{command.verb()}"
    ConfigStore.instance().store(name=primary, node=root)
    # Hydra searches the folder of dxn first, so a file of the user cannot replace one of dxn.
    paths = ",".join(quoted(f"file://{folder}") for folder in request.folders[1:])
    search = [f"hydra.searchpath=[{paths}]"] if paths else []
    omegaconf = _omegaconf()
    try:
        with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
            composed = hydra_compose(primary, overrides=[*search, *lines])
        values = omegaconf.OmegaConf.to_container(composed, resolve=False)
    except (HydraException, omegaconf.errors.OmegaConfBaseException, yaml.YAMLError) as error:
        # The messages have several lines, but a line of the problems is one problem.
        raise request.error(" ".join(str(error).split())) from error
    # Files of generated data also set options of a training, which other commands do not have.
    if "trainer" not in command.options().groups:
        values = {n: value for n, value in values.items() if n in command.options().parameters}
    if isinstance(values.get("adapters"), dict):
        # Files of data and backbone also set options of adapters that are not chosen. These have
        # no class, and are removed.
        adapters = values["adapters"]
        values["adapters"] = {k: v for k, v in adapters.items() if v and "_target_" in v}
    return values


# Imported late, because Hydra and OmegaConf take a tenth of a second, and most commands need
# neither of them.
@functools.cache
def _omegaconf() -> Any:
    """Return the module, with the function of interpolations that files of dxn use."""
    import omegaconf

    # An option that is the opposite of another one: ${dxn.not:${oc.select:head.parallel,false}}.
    omegaconf.OmegaConf.register_new_resolver("dxn.not", operator.not_, replace=True)
    return omegaconf


def _checked_groups(request: Request, command: type[Command]) -> list[str]:
    """Return the overrides that choose existing files. Wrong ones are added to the problems."""
    lines = []
    for override in request.groups:
        name, value = override.key, override.value
        available = options(name, request.folders)
        if value is None and command.options().groups[name].default is None:
            continue  # experiment=null is the default
        chosen = value if isinstance(value, list) else [value]
        if len(chosen) > 1 and not isinstance(command.options().groups[name].default, tuple):
            request.problems.append(f"{name}: must be one of {', '.join(available)}, got {value}")
            continue
        names = ["null" if item is None else str(item) for item in chosen]
        wrong = [item for item in names if item not in available]
        request.problems += [no_such_option(name, item, available) for item in wrong]
        if not wrong:
            # Users of Hydra type +experiment=NAME, but Hydra refuses the + for groups that are in
            # the defaults, as all groups of dxn are.
            lines.append(override.line.lstrip("+"))
    return lines


def _resolved(values: dict[str, Any], command: type[Command], request: Request) -> dict[str, Any]:
    """Resolve interpolations, and set texts that are not parsed."""
    # Such a key has a value, so it must not count as missing (???).
    for key in request.literal:
        assign(values, key, None)
    parameters = command.options().parameters
    missing = [n for n, p in parameters.items() if p.required and n not in values]
    text = str(values)
    if ENVIRONMENT in text:
        texts = {key: str(lookup(values, key)[1]) for key in leaves(values)}
        secret = [key for key in texts if ENVIRONMENT in texts[key] and key != STORAGE]
        sentence = "because options are saved and shown, and a variable can be a secret"
        if secret:
            raise request.error(
                *(f"{k}: cannot be {texts[k]}, {sentence}; write the value itself" for k in secret)
            )
    try:
        # The search for missing values resolves all interpolations, so it is skipped if possible.
        if "???" in text:
            nodes = _omegaconf().OmegaConf
            missing += sorted(nodes.missing_keys(nodes.create(values)))
        if missing and command.needs_values:
            raise request.error(*(f"{key}: needs a value, {key}=..." for key in missing))
        resolved: Any = dict(values)
        if INTERPOLATION in text:
            try:
                resolved = _with_references(values, values)
            except ValueError:
                nodes = _omegaconf().OmegaConf
                resolved = nodes.to_container(nodes.create(values), resolve=True)
    except _omegaconf().errors.OmegaConfBaseException as error:
        # OmegaConf puts the key in the lines after the message.
        message, _, details = str(error).partition("\n")
        key = re.search(r"full_key: (\S+)", details)
        raise request.error(f"{key[1]}: {message}" if key else message) from error
    if HOME in str(resolved):
        resolved = expand_home(resolved)
    # After resolving, so that ${...} in a text is not an interpolation.
    for key, text in request.literal.items():
        # A text can also start with "~/".
        path = expand_home(text)
        assign(resolved, key, path if path != text and _exists(path) else text)
    return resolved


def _with_references(value: Any, values: Mapping[str, Any], depth: int = 0) -> Any:
    """Return plain data with resolved references, without the nodes that OmegaConf makes.

    Args:
        value: All options, or a part of them.
        values: All options, to which references such as ${dim} refer.
        depth: Number of references that led to the value.

    Raises:
        ValueError: There are other interpolations than references to single values.
    """
    if isinstance(value, Mapping):
        return {name: _with_references(item, values, depth) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_references(item, values, depth) for item in value]
    if not (isinstance(value, str) and INTERPOLATION in value):
        return value
    match = REFERENCE.fullmatch(value)
    if not match or depth == MAX_REFERENCES:
        raise ValueError(value)
    exists, referred = lookup(values, match["key"] or match["optional"])
    if not exists and match["optional"]:
        return match["word"] or json.loads(match["constant"])
    if not exists or isinstance(referred, Mapping | list | tuple):
        raise ValueError(value)
    return _with_references(referred, values, depth + 1)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a text is longer than a path can be
        return False


def _advice(key: str, command: type[Command], values: Mapping[str, Any], request: Request) -> str:
    """Return how to set an unknown key: with another file of its group, or by its right name."""
    trust, parameters = request.trust_all, command.options().parameters
    group, _, rest = key.partition(".")
    first = rest.partition(".")[0]
    is_known = type_of(f"{group}.{first}", values, parameters, trust) is not None
    if rest and group in groups(request.folders) and not is_known:
        names = _options_with(group, first, tuple(request.folders), trust)
        # The next part of an adapter's key is its name, and not an argument.
        if names and group != "adapters":
            return f" {' or '.join(f'{group}={option}' for option in names)} has it"
    if hint := suggestion(key, list(all_keys(values, parameters, trust))):
        return hint
    has_parts = "trainer" in parameters
    shown = "show prints" if has_parts else f"{command.verb()} --help lists"
    return f" dxn {shown} all keys"


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
