"""Configuration that cannot fail silently: the only file that knows Hydra."""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dxn.errors import UserError

CONF = Path(__file__).parent / "conf"
FROM_DATA = frozenset({"num_classes", "class_weights", "mean", "std", "modalities", "kind", "model", "vocab_size"})


@dataclass(frozen=True)
class Config:
    """A composed and checked configuration, and the overrides that made it."""

    cfg: DictConfig
    overrides: Sequence[str]

    def plain(self) -> dict[str, Any]:
        """As dicts and lists, interpolations resolved."""
        return typing.cast("dict[str, Any]", OmegaConf.to_container(self.cfg, resolve=True))

    def yaml(self) -> str:
        """As YAML, interpolations resolved."""
        return OmegaConf.to_yaml(self.cfg, resolve=True)

    def asked(self) -> list[str]:
        """The keys that the overrides name."""
        return [override.key_or_group for override in _parse([_spelled_out(o) for o in self.overrides])[0]]

    def save(self, folder: Path) -> None:
        """.hydra/config.yaml and .hydra/overrides.yaml in folder."""
        place = folder / ".hydra"
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.yaml").write_text(self.yaml())
        (place / "overrides.yaml").write_text(yaml.safe_dump(list(self.overrides), allow_unicode=True))


def saved_config(folder: Path) -> dict[str, Any]:
    """The resolved configuration that `Config.save` wrote in a run folder.

    The folder may come from a stranger, so the file is read as plain data: interpolations such as
    ${oc.env:TOKEN} are not resolved, and `build` refuses targets that are not dxn's own.
    """
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder}: not a run folder, it has no .hydra/config.yaml")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: must be a mapping, got {type(found).__name__}")
    return found


def saved_overrides(folder: Path) -> list[str]:
    """The overrides that `Config.save` wrote in a run folder.

    The folder may come from a stranger: an override that names a `_target_` or holds an interpolation
    is refused, because composing it could import a module or read the environment.
    """
    path = folder / ".hydra" / "overrides.yaml"
    if not path.exists():
        raise UserError(f"{folder}: not a run folder, it has no .hydra/overrides.yaml")
    found = yaml.safe_load(path.read_text()) or []
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise UserError(f"{path}: must be a list of overrides key=value")
    for line in found:
        if "_target_" in line or "${" in line:
            raise UserError(f"{path}: {line!r} is refused: a run folder cannot name code or read the environment")
    return found


def compose(verb: str, overrides: Sequence[str] = (), *, conf_dir: Path = CONF) -> Config:
    """The configuration of a verb. UserError lists every fault, a line each, before any data is read."""
    parsed, faults = _parse([_spelled_out(line) for line in overrides])
    groups, values = _apart(parsed, conf_dir)
    with initialize_config_dir(str(conf_dir.absolute()), version_base="1.3"):
        good_groups = []
        for override in groups:
            if override.value() is None and _is_left_out(verb, override.key_or_group):
                continue  # experiment=null asks for what is so anyway
            found = _group_faults(override, conf_dir)
            faults += found
            if not found:
                good_groups.append(override.input_line)
        base = _composed(verb, good_groups, faults)
        if base is not None:
            known = _keys(base)
            good = []
            for override in values:
                found = _key_faults(override, known, base)
                faults += found
                if not found:
                    good.append(_line(override, known))
            cfg = _composed(verb, [*good_groups, *good], faults)
            if cfg is not None:
                faults += _value_faults(cfg)
                if not faults:
                    return Config(cfg, list(overrides))
    raise UserError("\n".join(dict.fromkeys(faults)))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Each way to choose one value of every `key=a,b`, in order: Hydra's sweep grammar (choice, range)."""
    parsed, faults = _parse(overrides, sweep=True)
    if faults:
        raise UserError("\n".join(faults))
    ways = []
    for override in parsed:
        if not override.is_sweep_override():
            ways.append([override.input_line])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            ways.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise UserError(f"{override.input_line}: give the values, e.g. {override.key_or_group}=1,2,3")
    return [list(way) for way in itertools.product(*ways)]


def build(node: Mapping[str, Any], *, key: str, **found: Any) -> Any:
    """Call node's _target_ with its values and, of `found`, what its signature takes.

    A ValueError of the constructor becomes a UserError that names the key.
    """
    target = own_object(node["_target_"], key=key)
    parameters = inspect.signature(target).parameters
    arguments = {
        name: build(value, key=f"{key}.{name}") if isinstance(value, Mapping) and "_target_" in value else value
        for name, value in node.items()
        if name != "_target_"
    }
    arguments |= {name: value for name, value in found.items() if name in parameters}
    try:
        return target(**arguments)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error


def own_object(name: Any, *, key: str) -> Callable:
    """The class or function of dxn that `name` names.

    A `_target_` can come from a folder that somebody else made, and importing a module runs it. So
    anything outside dxn is refused before it is imported.
    """
    if not isinstance(name, str) or not re.fullmatch(r"dxn(\.\w+)+", name):
        raise UserError(f"{key}: {name!r} is not one of dxn's own parts, it will not be run")
    module, _, attribute = name.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError:
        target = None
    if not callable(target) or getattr(target, "__module__", "").partition(".")[0] != "dxn":
        raise UserError(f"{key}: dxn has no part {name}")
    return target


def options(group: str, conf_dir: Path = CONF) -> list[str]:
    """The names that `group=` may take."""
    return sorted(path.stem for path in (conf_dir / group).glob("*.yaml"))


def groups(conf_dir: Path = CONF) -> list[str]:
    """The groups there are."""
    return sorted(path.name for path in conf_dir.iterdir() if path.is_dir() and any(path.glob("*.yaml")))


def _spelled_out(line: str) -> str:
    """weights=PATH is short for weights.source=PATH."""
    return f"weights.source={line.removeprefix('weights=')}" if line.startswith("weights=") else line


def _parse(overrides: Sequence[str], *, sweep: bool = False) -> tuple[list[Override], list[str]]:
    """What can be parsed, and a fault for each of the rest.

    A value that Hydra's grammar cannot read, or reads as a sweep where none was asked for, is taken as the text
    it is: paths and sentences hold commas, brackets and quotes.
    """
    parsed, faults = [], []
    for line in overrides:
        override = _parsed(line)
        if override is None or (override.is_sweep_override() and not sweep):
            key, _, value = line.partition("=")
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            override = _parsed(f'{key}="{escaped}"') if value else None
        if override is None:
            faults.append(f"{line}: not an override; write key=value")
        else:
            parsed.append(override)
    return parsed, faults


def _parsed(line: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(line)
    except HydraException:
        return None


def _apart(parsed: Sequence[Override], conf_dir: Path) -> tuple[list[Override], list[Override]]:
    known = set(groups(conf_dir))
    is_group = [o.key_or_group in known and not isinstance(o.value(), dict) for o in parsed]
    pairs = list(zip(parsed, is_group, strict=True))
    return [o for o, group in pairs if group], [o for o, group in pairs if not group]


def _group_faults(override: Override, conf_dir: Path) -> list[str]:
    name, value = override.key_or_group, override.value()
    available = options(name, conf_dir)
    chosen = value if isinstance(value, list) else [value]
    return [
        f"{name}={v}: no such option;{_meant(str(v), available)} options: {', '.join(available)}"
        for v in chosen
        if str(v) not in available
    ]


def _is_left_out(verb: str, group: str) -> bool:
    """Whether the verb's own defaults choose nothing of this group."""
    choices = hydra_compose(verb, return_hydra_config=True).hydra.runtime.choices
    return group in choices and choices[group] in (None, "null")


def _composed(verb: str, overrides: Sequence[str], faults: list[str]) -> DictConfig | None:
    try:
        return hydra_compose(verb, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        faults.append(" ".join(str(error).split()))
        return None


def _keys(cfg: DictConfig) -> list[str]:
    found: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key in node:
            path = f"{prefix}{key}"
            found.append(path)
            child = node._get_node(key)
            if OmegaConf.is_dict(child) and not child._is_none() and not child._is_missing():
                walk(child, f"{path}.")

    walk(cfg, "")
    return found


def _key_faults(override: Override, known: Sequence[str], base: DictConfig) -> list[str]:
    key = override.key_or_group
    if override.is_add() or key in known or _is_open(key, known, base):
        return []
    return [f"{key}: no such key;{_meant(key, known) or ' dxn show prints them all'}"]


def _line(override: Override, known: Sequence[str]) -> str:
    """As Hydra wants it: a key that is new below an empty one is added, not set."""
    line = str(override.input_line)
    return line if override.is_add() or override.key_or_group in known else f"+{line}"


def _is_open(key: str, known: Sequence[str], base: DictConfig) -> bool:
    """Whether key lies below a value that is empty so far (data.holdout.speaker), not below a part's own keys."""
    parent = key.rpartition(".")[0]
    return parent in known and not OmegaConf.is_dict(OmegaConf.select(base, parent, throw_on_missing=False))


def _meant(wrong: str, known: Sequence[str]) -> str:
    visible = [k for k in known if not k.endswith("_target_")]
    last = wrong.rpartition(".")[2]
    same_last = [k for k in visible if k.rpartition(".")[2] == last]
    close = same_last or difflib.get_close_matches(wrong, visible, 1, 0.6)
    if not close:
        lasts = {k.rpartition(".")[2]: k for k in visible}
        close = [lasts[name] for name in difflib.get_close_matches(last, list(lasts), 1, 0.6)]
    return f" did you mean {close[0]}?" if close else ""


def _value_faults(cfg: DictConfig) -> list[str]:
    """Missing values, interpolations that lead nowhere, values of the wrong type: all of them."""
    faults = [f"{key}: needs a value, {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    if faults:
        return faults
    try:
        plain = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        return [" ".join(str(error).split())]
    return _node_faults(typing.cast("dict[str, Any]", plain), "")


def _node_faults(node: Mapping[str, Any], prefix: str) -> list[str]:
    faults = []
    hints = _hints(node["_target_"]) if "_target_" in node else {}
    for name, value in node.items():
        key = f"{prefix}{name}"
        if name in hints and not (value is None and name in FROM_DATA):
            faults += [f"{key}: {fault}" for fault in _type_faults(value, hints[name])]
        if isinstance(value, Mapping):
            faults += _node_faults(value, f"{key}.")
    return faults


def schema_faults(cfg: DictConfig) -> list[str]:
    """Keys that a part's constructor does not take, and arguments it needs that its YAML lacks."""
    faults: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        if "_target_" in node:
            parameters = _parameters(node["_target_"])
            faults.extend(
                f"{prefix}{k}: {node['_target_']} takes no such argument"
                for k in node
                if k not in parameters and k != "_target_"
            )
            faults.extend(
                f"{prefix}{n}: {node['_target_']} has this argument, the YAML lacks it"
                for n in parameters
                if n not in node and n not in FROM_DATA
            )
        for key in node:
            child = node._get_node(key)
            if OmegaConf.is_dict(child) and not child._is_none() and not child._is_missing():
                walk(child, f"{prefix}{key}.")

    walk(cfg, "")
    return faults


def _target(name: str) -> Callable:
    target = own_object(name, key="_target_")
    return target.__init__ if inspect.isclass(target) else target


def _hints(name: str) -> dict[str, Any]:
    return typing.get_type_hints(_target(name))


def _parameters(name: str) -> list[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    signature = inspect.signature(_target(name)).parameters
    return [p.name for p in signature.values() if p.name != "self" and p.kind not in kinds]


def _type_faults(value: Any, hint: Any) -> list[str]:
    if _fits(value, hint):
        return []
    choices = [c for h in _members(hint) if typing.get_origin(h) is Literal for c in typing.get_args(h)]
    if choices:
        meant = _meant(str(value), [str(c) for c in choices])
        return [f"must be one of {', '.join(map(str, choices))}, got {value!r}{';' + meant if meant else ''}"]
    return [f"must be {_named(hint)}, got {value!r}"]


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, h) for h in arguments)
    if hint is type(None) or hint is None:
        return value is None
    if origin is Literal:
        return any(value == c and type(value) is type(c) for c in arguments)
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    outer = origin or hint
    if isinstance(outer, type) and issubclass(outer, Mapping):
        return isinstance(value, Mapping)
    if isinstance(outer, type) and issubclass(outer, Sequence):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list) and all(_fits(v, inner) for v in value)
    return isinstance(value, Mapping) or value is None or not isinstance(hint, type)


def _named(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return " or ".join(
        words.get(h, "a list" if issubclass(typing.get_origin(h) or object, Sequence) else str(h))
        for h in _members(hint)
    )
