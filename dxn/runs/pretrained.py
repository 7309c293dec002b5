"""Start inputs from published encoders (`pretrained=`).

A model of one input starts from its checkpoint as with `weights=`. With several inputs, the adapter
of each one gets an encoder, whose output vectors are the tokens of the input.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dxn.weights
from dxn.config.model_plan import Input
from dxn.config.settings import Settings
from dxn.config.values import is_below, refuse_without_effect
from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.runs.filling import InitialWeights
from dxn.runs.weights import read_initial_weights, with_weights
from dxn.tokenize.base import Reader
from dxn.weights.public import PublicModel

NONE = "none"
DEPTH = 2  # blocks of the backbone that combines the tokens of several encoders
MAX_NAMES = 5  # inputs in an error message

Config = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What a training starts from.

    Args:
        config: The configuration, with the options that the checkpoints determine.
        weights: The checkpoints. None: random weights.
        lines: Lines to print.
    """

    config: Config
    weights: InitialWeights | None = None
    lines: tuple[str, ...] = ()


def start_pretrained(
    settings: Settings,
    inputs: Mapping[str, Input],
    nodes: Mapping[str, str],
    readers: Mapping[str, Reader],
) -> Start:
    """Return what a training with the option `pretrained` starts from.

    Args:
        settings: The settings.
        inputs: The inputs of the model.
        nodes: Key of the options of each adapter, by its key in the model.
        readers: Readers by adapter key in the configuration.

    Raises:
        UserError: If a key is no input, or a checkpoint cannot be used.
    """
    config = copy.deepcopy(settings.values)
    wanted: Mapping[str, str] = config["pretrained"]
    keys = {name: nodes[spec.adapter] for name, spec in inputs.items()}
    _check_names(wanted, inputs, {name: readers[key].tabular for name, key in keys.items()})
    sources: dict[str, str] = {}  # by the key of the adapter in the configuration
    modalities: dict[str, str] = {}
    for name, spec in inputs.items():
        key = keys[name]
        if name in wanted and name != key:
            if name in config["adapters"]:
                raise UserError(
                    f"pretrained.{name}: {name} is also the name of an adapter; rename the column"
                )
            # An adapter with the name of an input is only for this one.
            config["adapters"][name] = copy.deepcopy(config["adapters"][key])
            key = name
        source = wanted.get(name, wanted.get(spec.modality, NONE))
        if source != NONE:
            sources[key], modalities[key] = source, spec.modality
    config["pretrained"] = sources or NONE
    if not sources:
        return Start(config)
    if len(inputs) == 1:
        (source,) = sources.values()
        place, revision = split_revision(source)
        # The same configuration as with weights=.
        config["weights"] |= {"source": place, "revision": revision}
        config["pretrained"] = NONE
        weights = read_initial_weights(replace(settings, values=config))
    else:
        publics = {
            key: _read(key, source, modalities[key], settings) for key, source in sources.items()
        }
        dim = _combine(config, settings, list(publics.values()))
        encoders = {key: dxn.weights.as_encoder(public, dim) for key, public in publics.items()}
        weights = InitialWeights(adapters=encoders)
    config = with_weights(replace(settings, values=config), weights)
    refuse_without_effect(config, settings.overrides)
    lines = [
        f"pretrained: {key}={source} ({public.family.name})"
        for (key, source), public in zip(sources.items(), weights.checkpoints, strict=True)
    ]
    return Start(config, weights, tuple(lines))


def _combine(config: Config, settings: Settings, publics: Sequence[PublicModel]) -> int:
    """Set options of the backbone that combines the tokens of encoders, and return its width D."""
    if not any(is_below(key, ["backbone"]) for key in settings.chosen):
        config["backbone"]["depth"] = DEPTH
    dims = {public.architecture.dim for public in publics}
    if len(dims) > 1 or "dim" in settings.chosen or "backbone" in settings.chosen:
        return config["dim"]
    # The heads of a published model divide its width.
    heads = publics[0].architecture.backbone.get("num_heads")
    if heads and "backbone.num_heads" not in settings.chosen:
        config["backbone"]["num_heads"] = heads
    return dims.pop()


def split_revision(source: str) -> tuple[str, str | None]:
    """Return the repository and the revision of OWNER/NAME@REVISION; of a path, it and None."""
    place, _, revision = source.partition("@")
    is_hub = place.count("/") == 1 and revision and not Path(source).exists()
    return (place, revision) if is_hub else (source, None)


def _check_names(
    wanted: Mapping[str, str], inputs: Mapping[str, Input], is_tabular: Mapping[str, bool]
) -> None:
    """Refuse names that are neither an input nor the modality of one, and those of cells."""
    for key in wanted:
        names = [name for name, spec in inputs.items() if key in (name, spec.modality)]
        if not names:
            listed = [f"{name} ({spec.modality})" for name, spec in inputs.items()]
            raise UserError(
                f"pretrained.{key}: no input has this name or modality; the inputs are "
                f"{list_names(listed, MAX_NAMES)}"
            )
        if any(is_tabular[name] for name in names) and wanted[key] != NONE:
            raise UserError(
                f"pretrained.{key}: there is no encoder for a {inputs[names[0]].modality}, got "
                f"{wanted[key]}; leave it out"
            )


def _read(key: str, source: str, modality: str, settings: Settings) -> PublicModel:
    """Read the checkpoint of an adapter.

    Raises:
        UserError: If it cannot be read, or is for another modality.
    """
    place, revision = split_revision(source)
    # A checkpoint such as CLIP has one tower per modality.
    public = dxn.weights.read_public(
        place, revision=revision, part=modality, trust=settings.folder_trust
    )
    if public.adapter_key(key, modality) is None:
        has = ", ".join(public.architecture.adapters)
        raise UserError(f"pretrained.{key}: {source} reads {has}, and the input is a {modality}")
    return public
