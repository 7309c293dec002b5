"""Read the checkpoints of `weights=...`, and set the options that they determine.

A checkpoint determines the options that its tensors depend on, such as the depth: setting one of
them to another value is an error. For options that are independent of the tensors, such as the
image size, the checkpoint only has default values, which the user can override.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import dxn.weights
from dxn.config.instantiate import completed, merge_options
from dxn.config.settings import Settings
from dxn.config.values import assign, is_below, leaves, lookup
from dxn.core.errors import UserError
from dxn.runs.decide import readers_of
from dxn.runs.filling import InitialWeights
from dxn.weights.public import PublicModel

# Options of an adapter that its weights determine. The user can override all others, such as the
# image size, augmentation and dropout. An entry includes all options below it.
FIXED = (
    "tokens",
    "patch_size",
    "patch",
    "tubelet_frames",
    "stride",
    "stem",
    "channels",
    "in_channels",
    "spectrogram.n_mels",
    "spectrogram.frontend",
    "frame_size",
    "pos_embed",
    "embedding.scale",
    "norm",
)
# A model trained by dxn also saves how its inputs are tokenized and normalized. The config.json of
# most public checkpoints does not contain these options, so there the defaults of dxn apply.
FIXED_BY_DXN_MODEL = (
    *FIXED,
    "vocab_size",
    "tokenizer.kind",
    "tokenizer.lowercase",
    "tokenizer.special_tokens",
    "conv_kernel",
    "normalize",
)
# Options of a backbone that its weights do not depend on. `dim` is here because it is checked once
# for all parts, in `with_weights`.
FREE = (
    "dim",
    "dropout",
    "drop_path",
    "block.attn_dropout",
    "block.mlp_dropout",
    "activation_checkpointing",
)
# Options of the layers of a head that do not depend on the classes, and of its tokens.
PRE_HEAD = (
    "hidden",
    "hidden_dim",
    "norm",
    "norm_eps",
    "quantiles",
    "steps",
    "output",
    "share_tokenizer",
    "max_len",
    "marks",
)

# Options of the head of a public checkpoint that its weights determine.
FIXED_HEAD = ("output", "share_tokenizer", "steps", "quantiles")

# Default of adapters.text.max_len with public language models, whose windows of up to 131,072
# tokens do not fit into the memory of most trainings.
MAX_WINDOW = 2048

Config = dict[str, Any]


def read_initial_weights(settings: Settings) -> InitialWeights:
    """Read the checkpoints that `weights` names.

    Raises:
        UserError: If one cannot be read, or belongs to an adapter that is not chosen.
    """
    weights = settings.values["weights"]
    trust = settings.trust
    main = None
    if weights["source"]:
        main = dxn.weights.read_public(
            weights["source"],
            revision=weights["revision"],
            part=weights["part"],
            prompt=weights["prompt"],
            trust=settings.folder_trust,
            strict=weights["strict"],
        )
    adapters: dict[str, PublicModel] = {}
    modalities = {key: p.modality for key, p in readers_of(settings.values, trust).items()}
    for key, source in weights.get("adapters", {}).items():
        if not source:  # null cancels the value of an experiment
            continue
        if key not in modalities:
            raise UserError(
                f"weights.adapters.{key}: the adapter {key} is not used; add it to adapters=[...]"
            )
        # A checkpoint such as CLIP has one tower per modality.
        public = dxn.weights.read_public(
            source,
            part=modalities[key],
            trust=settings.folder_trust,
            strict=weights["strict"],
        )
        if public.adapter_key(key, modalities[key]) is None:
            has = ", ".join(public.architecture.adapters)
            raise UserError(
                f"weights.adapters.{key}: {source} has weights only for the modality {has}"
            )
        adapters[key] = public
    return InitialWeights(main=main, adapters=adapters, strict=weights["strict"])


def with_weights(settings: Settings, start: InitialWeights) -> Config:
    """Return the configuration with the options that the checkpoints determine.

    Raises:
        UserError: One line for each option that the user set to another value.
    """
    merger = _OptionMerger(settings)
    # The residual stream has one width, so every checkpoint must fit all other parts.
    dims = {p.checkpoint.source: p.architecture.dim for p in start.checkpoints}
    if len(set(dims.values())) > 1:
        got = ", ".join(f"{dim} ({source})" for source, dim in dims.items())
        raise UserError(f"weights: all checkpoints must have the same dim, got {got}")
    dim = next(iter(dims.values()))
    merger.set("dim", dim, fixed=True)
    _set_dims(merger.values, dim)
    _set_adapter_options(merger, start, settings.trust)
    if start.main is not None:
        _set_main_options(merger, start.main)
    # All conflicts at once, so that the user can correct the command in one step.
    if merger.faults:
        raise UserError("\n".join(merger.faults))
    # The nodes of a checkpoint contain only the options that differ from the defaults.
    return completed(merger.values, settings.trust)


class _OptionMerger:
    """Merges the options of checkpoints into a configuration.

    Args:
        settings: The settings of the training. Its values are copied.

    Attributes:
        values: The merged configuration.
        faults: Conflicts with values that the user chose, one line each.
    """

    def __init__(self, settings: Settings):
        self.values: Config = copy.deepcopy(dict(settings.values))
        self.chosen = settings.chosen
        self.faults: list[str] = []
        parts = {key: self.values[key] for key in ("adapters", "fusion", "backbone", "head")}
        # The defaults of the signatures tell which values of a YAML file differ from them.
        bare = {key: _bare(node) for key, node in parts.items()}
        self.defaults: Config = completed(bare, settings.trust)

    def set(self, path: str, value: Any, *, fixed: bool) -> None:
        """Set an option to the value of a checkpoint.

        Args:
            path: Dotted key of the option.
            value: Value of the checkpoint.
            fixed: Whether the tensors depend on the option. If the user chose another value, this
                is a fault. Otherwise the value that the user chose is kept.
        """
        exists, current = lookup(self.values, path)
        is_chosen = exists and self.is_chosen(path, current)
        if is_chosen and fixed and not _equal(current, value):
            self.faults.append(f"{path}: the weights have {value}, got {current}; leave it out")
        if fixed or not is_chosen:
            assign(self.values, path, value)

    def is_chosen(self, path: str, value: Any) -> bool:
        """Whether an option was set by the user, an experiment, or a file that the user chose."""
        names = path.split(".")
        prefixes = [".".join(names[: i + 1]) for i in range(len(names))]
        group = names[0]
        # A prefix such as adapters.text={...} sets everything below it. The name of a group alone,
        # such as backbone=tiny, sets only the values in its file; the last lines find these.
        if any(prefix in self.chosen and (prefix != group or group == path) for prefix in prefixes):
            return True
        if group in ("backbone", "dim") and "backbone" not in self.chosen:
            return False  # backbone=nano, the default: any checkpoint may replace it
        if path == "dim":
            return True  # every file of the group backbone sets it
        # A value that differs from the signature's default comes from a YAML file.
        has_default, default = lookup(self.defaults, path)
        return has_default and not _equal(value, default)


def _set_adapter_options(
    merger: _OptionMerger, start: InitialWeights, trust: Sequence[str]
) -> None:
    """Set the options of all adapters that have a checkpoint.

    Raises:
        UserError: If the main checkpoint has weights for none of the adapters.
    """
    modalities = {k: p.modality for k, p in readers_of(merger.values, trust).items()}
    if start.main is not None:
        saved = start.main.architecture.adapters
        if not any(start.main.adapter_key(key, m) for key, m in modalities.items()):
            raise UserError(
                f"adapters: the weights are for {', '.join(saved)}, got {', '.join(modalities)}"
            )
    for key, modality in modalities.items():
        public = start.source(key, modality)
        if public is None:
            continue
        fixed = FIXED_BY_DXN_MODEL if public.family.is_dxn else FIXED
        node = public.architecture.adapters[public.adapter_key(key, modality) or ""]
        # The options of an adapter with an encoder are those of the adapter that reads the input.
        options = node.get("adapter") or node
        replaced: Config = {}
        if not _has_decoder(merger.values["head"], public):
            replaced = public.architecture.encoder.get(public.adapter_key(key, modality) or "", {})
        for name in _leaves(options):
            _, value = lookup(options, name)
            is_language_model = public.architecture.writes and not public.architecture.decoder
            if name == "max_len" and is_language_model:
                value = value if public.family.is_dxn else min(value, MAX_WINDOW)
            value = replaced.get(name, value)
            merger.set(f"adapters.{key}.{name}", value, fixed=is_below(name, fixed))
        for name in replaced.keys() - set(_leaves(options)):
            merger.set(f"adapters.{key}.{name}", replaced[name], fixed=False)
        if options is not node:
            inner = {**merger.values["adapters"][key], "dim": options["dim"]}
            dim = public.architecture.dim
            merger.values["adapters"][key] = {**copy.deepcopy(node), "dim": dim, "adapter": inner}


def _set_main_options(merger: _OptionMerger, main: PublicModel) -> None:
    """Set the options of backbone, fusion and head that the main checkpoint determines."""
    parts = main.architecture
    backbone, fusion, head = parts.backbone, parts.fusion, parts.head
    if main.family.is_dxn:
        _use_own_classes(merger, main)
        # The other options of a head, such as label_smoothing, belong to the new training.
        head = {name: head[name] for name in PRE_HEAD if name in head}
        if fusion["_target_"] != merger.values["fusion"]["_target_"]:
            fusion = {}  # the options of one class of fusion mean nothing to another
    else:
        # A family lists only the options in which it differs from the defaults of the signature.
        # All others are fixed as well: backbone.norm.kind=rms would compute another function.
        structure = completed({"_target_": merger.values["backbone"]["_target_"]})
        backbone = merge_options(structure, backbone)
        if parts.decoder:
            _use_decoder(merger, main.plan().head)
        if "hidden_dim" in head and not parts.decoder:
            head = {}  # CLIP's projection to the embedding space; a classifier has no such layer
    for name in _leaves(backbone):
        if name != "dim":
            _, value = lookup(backbone, name)
            merger.set(f"backbone.{name}", value, fixed=not is_below(name, FREE))
    for group, options in (("fusion", fusion), ("head", head)):
        for name in _leaves(options):
            _, value = lookup(options, name)
            # Not every task has a hidden layer in its head.
            if group != "head" or lookup(merger.values, f"head.{name}")[0]:
                wanted = ("output",) if main.family.is_dxn else FIXED_HEAD
                fixed = group == "head" and is_below(name, wanted)
                merger.set(f"{group}.{name}", value, fixed=fixed)


def _use_own_classes(merger: _OptionMerger, main: PublicModel) -> None:
    """Use the backbone, fusion and decoder of a model of dxn if the user did not choose others.

    Raises:
        UserError: If the user chose a backbone of another class.
    """
    parts = main.architecture
    values = merger.values
    for group, node in (("backbone", parts.backbone), ("fusion", parts.fusion)):
        target = values[group]["_target_"]
        if target == node["_target_"]:
            continue
        if group not in merger.chosen:
            values[group] = {"dim": parts.dim, **copy.deepcopy(node)}
        elif group == "backbone":
            saved = node["_target_"].rpartition(".")[2]
            got = target.rpartition(".")[2]
            raise UserError(f"backbone: the weights have {saved}, got {got}; leave it out")
    # The decoder is not a group of its own but an option of the head, so it is compared separately.
    if not any(key.startswith("head.decoder") for key in merger.chosen):
        _use_decoder(merger, parts.head)


def _has_decoder(head: Config, public: PublicModel) -> bool:
    """Whether a head of the configuration has the class of a checkpoint with a decoder."""
    if not public.architecture.decoder or public.family.is_dxn:
        return False
    return head["_target_"] == public.plan().head["_target_"]


def _use_decoder(merger: _OptionMerger, saved: Config) -> None:
    """Use the decoder of a checkpoint's head if the head has one of the same class.

    A head of the same class whose decoder is optional gets that of the checkpoint, too.
    """
    head = merger.values["head"]
    decoder = saved.get("decoder") or {}
    current = head.get("decoder") or {}
    is_missing = not current and head["_target_"] == saved.get("_target_")
    if not decoder or not (is_missing or current.get("_target_") == decoder.get("_target_")):
        return
    head["decoder"] = copy.deepcopy(decoder)
    for path in sorted(merger.chosen):
        name = path.removeprefix("head.decoder.")
        exists, value = lookup(current, name)
        if name == path or not exists:
            continue
        if is_below(name.removeprefix("backbone."), FREE):
            assign(merger.values, path, value)
        elif not _equal(value, lookup(decoder, name)[1]):
            merger.faults.append(
                f"{path}: the weights have {lookup(decoder, name)[1]}, got {value}; leave it out"
            )


def _bare(node: Any) -> Any:
    """Return a node, or a mapping of nodes, with nothing but their `_target_`s."""
    if not isinstance(node, Mapping):
        return node
    if "_target_" in node:
        return {"_target_": node["_target_"]}
    return {key: _bare(value) for key, value in node.items()}


def _leaves(options: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of nested options, without the `_target_`s of option groups."""
    return [name for name in leaves(options) if not name.endswith("_target_")]


def _equal(value: Any, other: Any) -> bool:
    """Whether two values of an option have the same meaning.

    A signature contains tuples where YAML contains lists, and a single size is the same as equal
    sides: 16 and [16, 16].
    """
    if isinstance(value, tuple | list) and isinstance(other, tuple | list):
        return list(value) == list(other)
    if isinstance(value, tuple | list):
        return bool(value) and all(item == other for item in value)
    return _equal(other, value) if isinstance(other, tuple | list) else value == other


def _set_dims(values: Config, dim: int) -> None:
    """Set every `dim` of the parts, also in the decoder of a head and in its backbone."""
    # Files set dim: ${dim}, but here the interpolations have already been resolved.
    # The encoder of an adapter has a width of its own.
    for node in values["adapters"].values():
        if node and "dim" in node:
            node["dim"] = dim
    parts = [values[key] for key in ("fusion", "backbone", "head")]
    while parts:
        part = parts.pop()
        if "dim" in part:
            part["dim"] = dim
        parts += [inner for inner in part.values() if isinstance(inner, dict)]
