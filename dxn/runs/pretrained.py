"""Start inputs from published encoders (`pretrained=`).

A model of one input starts from its checkpoint as with `weights=`. With several inputs, the adapter
of each one gets an encoder, whose output vectors are the tokens of the input.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch

from dxn.config.model_plan import Input
from dxn.config.settings import Settings
from dxn.config.values import is_below, refuse_without_effect
from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.core.processes import from_all, from_first
from dxn.core.randomness import evenly_spaced
from dxn.data.rows import Rows
from dxn.data.rows import Source as DataSource
from dxn.presets.finetuning import MAX_COLUMNS
from dxn.presets.pictures import MODALITY, OF_PARTS
from dxn.presets.preset import Situation
from dxn.runs.encoders import Encoder, NoAnswer, choose_encoder, fetch, table
from dxn.runs.hub import MAX_REASON
from dxn.tasks import Task
from dxn.tasks.space import PER_SAMPLE
from dxn.tokenize.base import Reader

if TYPE_CHECKING:
    from dxn.runs.filling import InitialWeights
    from dxn.weights.public import PublicModel

NONE, AUTO = "none", "auto"
WORDS = (AUTO, "small", "base")
MAX_CELLS = 200  # texts that decide about the language
# Options of an experiment that chooses the parts of its model.
OWN_PARTS = ("adapters", "backbone", "dim", "weights")
# Tasks that write, or whose answers are about parts of an input, for which encoders with the size
# of the table were not compared.
WITHOUT_AUTO = (
    *("generate", "language", "ctc", "any", "codec"),
    *("forecast", "detect", "segment", "masked"),
)
DEPTH = 2  # blocks of the backbone that combines the tokens of several encoders
# Share of the time limit that encoding all rows once may take, without being asked for; and the
# time of it relative to that of a training step.
ENCODING_SHARE, ENCODING_TIME = 0.5, 1 / 3
MAX_NAMES = 5  # inputs in an error message

Config = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What a training starts from.

    Args:
        config: The configuration, with the options that the checkpoints determine.
        weights: The checkpoints. None: random weights.
        lines: Lines to print.
        seconds: What `seconds_per_row` measured. None: it was not measured.
    """

    config: Config
    weights: InitialWeights | None = None
    lines: tuple[str, ...] = ()
    seconds: float | None = None


class Unavailable(Exception):
    """An encoder that is not needed cannot be loaded.

    Args:
        encoder: The encoder.
        reason: Why not.
    """

    def __init__(self, encoder: Encoder, reason: UserError):
        super().__init__(reason)
        self.encoder, self.reason = encoder, reason


@dataclass(frozen=True)
class Source:
    """A checkpoint of an input.

    Args:
        name: What the run records: a file, a folder, or OWNER/NAME@REVISION.
        modality: Modality of the input.
        folder: Its local copy. None: it is read by its name.
        about: What is printed besides its name.
        is_optional: Whether random weights are used if it does not fit the options of the user.
    """

    name: str
    modality: str
    folder: str | None = None
    about: str = ""
    is_optional: bool = False


def start_pretrained(
    settings: Settings,
    task: Task,
    source: DataSource,
    inputs: Mapping[str, Input],
    nodes: Mapping[str, str],
    readers: Mapping[str, Reader],
    device: torch.device,
    *,
    members: int = 1,
    seconds: float | None = None,
) -> Start:
    """Return what a training with the option `pretrained` starts from.

    Args:
        settings: The settings.
        task: The task.
        source: The data source, whose texts choose an encoder.
        inputs: The inputs of the model.
        nodes: Key of the options of each adapter, by its key in the model.
        readers: Readers by adapter key in the configuration.
        device: Device of the training, whose speed is measured.
        members: Number of models that share the time limit.
        seconds: What was measured for the first one of them. None: it is measured.

    Raises:
        UserError: If a key is no input, or a checkpoint cannot be used.
    """
    wanted = settings.values["pretrained"]
    scratch = Start({**settings.values, "pretrained": NONE})
    if wanted == NONE or (wanted == AUTO and not _is_open(settings)):
        return scratch
    if wanted == AUTO and task.name in WITHOUT_AUTO:
        pictures = [name for name, spec in inputs.items() if spec.modality == MODALITY]
        if task.answer_kind not in OF_PARTS or not pictures:
            return scratch
        name = pictures[0]
        reason = f"no encoder was compared for such targets; pretrained.{name}=small uses one"
        return replace(scratch, lines=(_random(name, reason),))
    config = copy.deepcopy(settings.values)
    # A word is for modalities, and not for a column with the name of one.
    by_name: Mapping[str, str] = wanted if isinstance(wanted, Mapping) else {}
    if isinstance(wanted, str):
        modalities = dict.fromkeys(spec.modality for spec in inputs.values())
        wanted = {name: wanted for name in modalities if name in table()}
        if not wanted and config["pretrained"] != AUTO:
            raise UserError(
                f"pretrained: there are encoders only of {', '.join(table())}, and the inputs are "
                f"{', '.join(modalities)}; leave it out"
            )
    keys = {name: nodes[spec.adapter] for name, spec in inputs.items()}
    _check_names(by_name, inputs, {name: readers[key].tabular for name, key in keys.items()})
    words: dict[str, str] = {}  # by the key of the adapter in the configuration
    columns: dict[str, list[str]] = {}
    for name, spec in inputs.items():
        key = keys[name]
        if name in by_name and name != key:
            if name in config["adapters"]:
                raise UserError(
                    f"pretrained.{name}: {name} is also the name of an adapter; rename the column"
                )
            # An adapter with the name of an input is only for this one.
            config["adapters"][name] = copy.deepcopy(config["adapters"][key])
            key = name
        words[key] = by_name.get(name, wanted.get(spec.modality, NONE))
        columns.setdefault(key, []).append(name)

    def find() -> tuple[dict[str, Source], list[str]]:
        found: dict[str, Source] = {}
        missing: dict[str, dict[str, str]] = {}  # repositories by key, by the reason
        no_answer: NoAnswer | None = None
        for key, word in words.items():
            if word == NONE:
                continue
            names = columns[key]
            modality = inputs[names[0]].modality
            try:
                found[key] = _find(key, word, modality, source.splits["train"], names, no_answer)
            except Unavailable as error:
                no_answer = error.reason if isinstance(error.reason, NoAnswer) else no_answer
                missing.setdefault(str(error.reason), {})[key] = error.encoder.source
        lines = []
        for reason, places in missing.items():
            what = " and ".join(dict.fromkeys(places.values()))
            lines.append(_random(", ".join(places), _lacks(what, reason)))
        return found, lines

    lines: list[str] = []
    for key, word in words.items():
        # Before an encoder is copied to an input, its adapter has another key.
        own = _own_option(settings, keys[columns[key][0]], is_single=len(inputs) == 1)
        if word == AUTO and own is not None:
            words[key] = NONE
            lines.append(_random(key, f"{own} is set"))
    # The first process downloads, and all use the same ones.
    sources, missing = from_first(find)
    lines += missing
    if not sources:
        return replace(scratch, lines=tuple(lines))
    config["pretrained"] = {key: found.name for key, found in sources.items()}
    start, problem = None, None
    new = replace(settings, values=config)
    is_single = len(inputs) == 1
    is_optional = all(found.is_optional for found in sources.values())
    is_pooled = task.answer_kind in PER_SAMPLE
    try:
        start = _start(new, sources, is_single=is_single, is_pooled=is_pooled)
    except UserError as error:
        if not is_optional:
            raise
        problem = shorten(str(error).partition("\n")[0], MAX_REASON)
    # Another machine may have no copy, and all processes must start from the same weights.
    problems = from_all(lambda: problem)
    problem = from_first(lambda: next(filter(None, problems), None))
    if start is None or problem is not None:
        line = _random(", ".join(sources), f"the encoders cannot be used: {problem}")
        return replace(scratch, lines=(*lines, line))
    situation = Situation(
        start.config,
        settings.chosen,
        task,
        source,
        {name: key for key, names in columns.items() for name in names},
        {key: readers[keys[names[0]]] for key, names in columns.items()},
        device,
        settings.trust,
        weights=start.weights,
        members=members,
        measured=seconds,
    )
    seconds = from_first(lambda: situation.seconds)
    situation = replace(situation, measured=seconds)
    facts = situation.finetuning
    rows = sum(map(len, source.splits.values()))
    minutes = ENCODING_TIME * seconds * rows / 60
    # All members of an ensemble read what is encoded once.
    if is_optional and facts.minutes is not None and minutes > ENCODING_SHARE * facts.minutes:
        reason = (
            f"encoding {rows:,} rows takes about {minutes:,.0f} of {facts.minutes:g} minutes "
            "(trainer.max_minutes)"
        )
        return replace(scratch, lines=(*lines, _random(", ".join(sources), reason)))
    # Of a single input, finetune.freeze=all asks for the published backbone itself.
    is_new = not is_single or (is_pooled and not facts.is_kind_chosen)
    if situation.is_frozen and is_new:
        # Its tokens are computed once, and a small backbone of the usual width learns from them.
        start = _start(new, sources, is_single=False, is_pooled=is_pooled, is_small=True)
    return replace(start, lines=(*start.lines, *lines), seconds=seconds)


def _is_open(settings: Settings) -> bool:
    """Whether the settings leave open what a training starts from."""
    values = settings.values
    # Generated data is solved from random weights, and an experiment names all that it needs.
    is_generated = str(values["data"].get("_target_")).startswith("dxn.datasets.")
    is_complete = any(is_below(key, OWN_PARTS) for key in settings.experiment)
    # The learning rate of preset=plain, also that of a short try with debug, is for random weights.
    is_plain = values["preset"] == "plain" and "pretrained" not in settings.chosen
    return not (is_generated or is_complete or is_plain)


def _random(key: str, reason: str) -> str:
    """Return the line about inputs that start from random weights."""
    return f"pretrained: {key}: random weights, because {reason}; pretrained=none hides this line"


def _lacks(sources: str, reason: object) -> str:
    return f"the local cache has no copy of {sources}, and the hub cannot be used ({reason})"


def _own_option(settings: Settings, key: str, *, is_single: bool) -> str | None:
    """Return an option of the user that chooses what an encoder determines; None: there is none.

    Args:
        settings: The settings.
        key: Key of the adapter in the configuration.
        is_single: Whether the encoder is also the backbone.
    """
    # Another adapter than that of the modality, such as one for codes, is an own one.
    parts = [f"adapters.{key}" if key in table() else "adapters"]
    parts += ("dim", "backbone") if is_single else ()
    keys = [name for name in settings.chosen if is_below(name, parts)]
    if keys:
        from dxn.runs.weights import FREE

        free = [f"adapters.{key}.augment", *(f"backbone.{name}" for name in FREE)]
        keys = [name for name in keys if not is_below(name, free)]
    return min(keys, default=None)


def _find(
    key: str,
    word: str,
    modality: str,
    source: Rows,
    names: Sequence[str],
    no_answer: NoAnswer | None,
) -> Source:
    """Return the checkpoint of an adapter.

    Args:
        key: Key of the adapter in the configuration.
        word: Value of the option: auto, small, base or a checkpoint.
        modality: Modality of its inputs.
        source: Rows of the training split.
        names: Its inputs.
        no_answer: Why the hub is not asked again.

    Raises:
        UserError: If it cannot be loaded.
        Unavailable: If it cannot be loaded, and need not be.
    """
    if word not in WORDS:
        return Source(word, modality)
    if modality not in table():
        raise UserError(
            f"pretrained.{key}: there is no encoder of a {modality} in the table, got {word}; name "
            "a checkpoint"
        )
    texts: list[Any] = []
    for name in names:
        cells = [cell for cell in source.cells.get(name, ()) if cell is not None]
        texts += evenly_spaced(cells, MAX_CELLS)
    is_auto = word == AUTO
    encoder = choose_encoder(modality, "small" if is_auto else word, texts)
    about = [f"{encoder.megabytes} MB", encoder.license, *filter(None, [encoder.languages])]
    try:
        folder, is_cached = fetch(encoder, no_answer)
    except UserError as error:
        if is_auto:
            raise Unavailable(encoder, error) from None
        raise UserError(
            f"pretrained.{key}: {_lacks(encoder.source, error)}; name a local folder"
        ) from error
    about.append("from the local cache" if is_cached else "downloaded")
    return Source(encoder.name, modality, str(folder), ", ".join(about), is_auto)


def _start(
    settings: Settings,
    sources: Mapping[str, Source],
    *,
    is_single: bool,
    is_pooled: bool,
    is_small: bool = False,
) -> Start:
    """Return what a training with these checkpoints starts from.

    Args:
        settings: The settings.
        sources: The checkpoints by the key of the adapter in the configuration.
        is_single: Whether the checkpoint of the only input becomes the backbone.
        is_pooled: Whether encoded inputs have few columns.
        is_small: Whether a new backbone is that of a training from random weights, instead of one
            with the width of the encoders.
    """
    import dxn.weights  # slow to import, and without an encoder it is not needed
    from dxn.runs.filling import InitialWeights
    from dxn.runs.weights import read_initial_weights, with_weights

    config = copy.deepcopy(settings.values)
    settings = replace(settings, values=config)
    if is_single:
        (found,) = sources.values()
        place, revision = split_revision(found.name)
        # The same configuration as with weights=.
        config["pretrained"] = NONE
        local = {"source": _place(found), "revision": None if found.folder else revision}
        config["weights"] = {**config["weights"], **local}
        with _naming(next(iter(sources))):
            weights = read_initial_weights(settings)
        config["weights"] |= {"source": place, "revision": revision}
    else:
        publics = {key: _read(key, found, settings) for key, found in sources.items()}
        dim = config["dim"]
        if not is_small:
            dim = _combine(config, settings, list(publics.values()))
        limits = {key: MAX_COLUMNS.get(found.modality) for key, found in sources.items()}
        encoders: dict[str, PublicModel] = {}
        for key, public in publics.items():
            limit = limits[key] if is_pooled else None
            with _naming(key):
                encoders[key] = dxn.weights.as_encoder(public, dim, max_columns=limit)
        weights = InitialWeights(adapters=encoders)
    config = with_weights(settings, weights)
    refuse_without_effect(config, settings.overrides)
    lines: list[str] = []
    for (key, found), public in zip(sources.items(), weights.checkpoints, strict=True):
        about = ", ".join([public.family.name, *filter(None, [found.about])])
        end = "; pretrained=none turns it off" if found.is_optional else ""
        lines.append(f"pretrained: {key}={found.name} ({about}){end}")
    return Start(config, weights, tuple(lines))


def _place(found: Source) -> str:
    # Another machine has no folder of the first process.
    is_here = found.folder is not None and Path(found.folder).exists()
    return str(found.folder) if is_here else found.name


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
    """Refuse names that no input uses, and those of cells."""
    for key in wanted:
        names = [name for name, spec in inputs.items() if key in (name, spec.modality)]
        if not names:
            listed = [f"{name} ({spec.modality})" for name, spec in inputs.items()]
            raise UserError(
                f"pretrained.{key}: no input has this name or modality; the inputs are "
                f"{list_names(listed, MAX_NAMES)}"
            )
        # The name of an input says more than its modality.
        if wanted[key] != NONE and key not in inputs and all(name in wanted for name in names):
            others = " and ".join(f"pretrained.{name}" for name in names[:MAX_NAMES])
            raise UserError(
                f"pretrained.{key}: no input uses {wanted[key]}, because {others} already "
                f"{'says' if len(names) == 1 else 'say'} what each of them starts from; remove it"
            )
        if any(is_tabular[name] for name in names) and wanted[key] != NONE:
            raise UserError(
                f"pretrained.{key}: there is no encoder for a {inputs[names[0]].modality}, got "
                f"{wanted[key]}; leave it out"
            )


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Let the errors of a checkpoint name the option of its input in place of `weights`."""
    try:
        yield
    except UserError as error:
        reason = str(error)
        if not reason.startswith("weights: "):
            raise
        raise UserError(f"pretrained.{key}: {reason.removeprefix('weights: ')}") from error


def _read(key: str, found: Source, settings: Settings) -> PublicModel:
    """Read the checkpoint of an adapter.

    Raises:
        UserError: If it cannot be read, or is for another modality.
    """
    import dxn.weights

    place, revision = split_revision(_place(found))
    # A checkpoint such as CLIP has one tower per modality.
    with _naming(key):
        public = dxn.weights.read_public(
            place, revision=revision, part=found.modality, trust=settings.folder_trust
        )
    if public.adapter_key(key, found.modality) is None:
        has = ", ".join(public.architecture.adapters)
        raise UserError(
            f"pretrained.{key}: {found.name} reads {has}, and the input is of the modality "
            f"{found.modality}"
        )
    return public
