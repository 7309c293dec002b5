"""What a training starts from: public weights, which decide the shape of the parts they fill."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dxn.errors import UserError
from dxn.models import Backbone
from dxn.weights import Public, read_public

MODALITIES = ("text", "image", "audio")
# Of an adapter, what its weights decide; the rest (sizes, augmentation, dropout) is anyone's to change.
FIXED = frozenset(
    {
        "tokens",
        "patch_size",
        "stride",
        "pad_end",
        "stem",
        "in_channels",
        "n_mels",
        "frame_size",
        "frontend",
        "position",
        "norm",
        "norm_eps",
        "norm_bias",
    }
)
FREE = frozenset({"dim", "dropout", "attn_dropout", "drop_path", "checkpointing"})  # of a backbone; dim is set apart
Plain = Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """The checkpoint of the backbone and what it brings, and those of single adapters; none of them need be."""

    main: Public | None = None
    adapters: Mapping[str, Public] = field(default_factory=dict)
    strict: bool = True

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self.main is not None or bool(self.adapters)

    def of(self, modality: str) -> Public | None:
        """Whose weights the adapter of this modality gets."""
        main = self.main if self.main is not None and modality in self.main.parts.adapters else None
        return self.adapters.get(modality, main)

    def prepare(self, adapters: Mapping[str, Any]) -> None:
        """Give a text adapter its checkpoint's tokenizer."""
        for modality, adapter in adapters.items():
            if (public := self.of(modality)) is not None:
                public.prepare({modality: adapter})

    def fill(self, model: nn.Module, *, names: Sequence[str] | None) -> list[str]:
        """Put the weights into model, whose head answers with these names; what a user should know of it."""
        notices = []
        for modality, public in self.adapters.items():
            found = public.fill(model, only=(f"adapters.{modality}.",), strict=self.strict)
            notices += _left_out(public, found.missing, found.unexpected)
        if self.main is not None:
            own = [f"adapters.{m}." for m in self.main.parts.adapters if m not in self.adapters]
            same = names is not None and list(names) == self.main.parts.labels
            # A way to meet of the user's own starts anew, and of a head of other classes only the last linear.
            meeting = [name for name in self.main.table if name.startswith("fusion.")]
            only = (*own, *meeting, "backbone.", "head.neck.", *(["head.out."] if same else []))
            found = self.main.fill(model, only=only, strict=self.strict)
            notices += _left_out(self.main, found.missing, found.unexpected)
            if self.main.parts.labels is not None and not same:
                notices.append(
                    f"weights: the head of {len(self.main.parts.labels)} classes is replaced by one for these targets"
                )
        return notices

    def came(self, model: nn.Module) -> set[str]:
        """Names of the model's tensors that a checkpoint brings, the head's aside."""
        found = set()
        for name in model.state_dict():
            part, _, rest = name.partition(".")
            public = self.of(rest.partition(".")[0]) if part == "adapters" else self.main
            if public is not None and part != "head" and name in public.table:
                found.add(name)
        return found


def read_start(c: Plain) -> Start:
    """The checkpoints that weights.* names."""
    w = c["weights"]
    known = {"revision": w["revision"], "part": w["part"]}
    main = read_public(w["source"], **known) if w["source"] else None
    adapters = {m: read_public(w[m], part=m) for m in MODALITIES if w[m]}
    for modality, public in adapters.items():
        if modality not in public.parts.adapters:
            raise UserError(f"weights.{modality}: {w[modality]}: its weights are of {', '.join(public.parts.adapters)}")
        if not _is_chosen(c, modality):
            raise UserError(f"adapters: weights.{modality} is given, but {modality} is not chosen")
    return Start(main=main, adapters=adapters, strict=w["strict"])


def with_weights(c: Plain, start: Start, default: Plain, asked: Sequence[str]) -> dict[str, Any]:
    """The configuration with what the checkpoints decide.

    What a user chose (a key that was asked for, or that differs from the default) stays where weights do not hang
    on it; where they do, UserError lists every key that says otherwise.
    """
    c, faults = copy.deepcopy(dict(c)), []

    def put(path: str, value: Any, *, fixed: bool) -> None:
        node, plain = c, default
        *parents, last = path.split(".")
        for parent in parents:
            node, plain = node.setdefault(parent, {}), plain.get(parent) or {}
        chosen = path in asked or (last in node and node[last] != plain.get(last))
        if chosen and fixed and node.get(last) != value:
            faults.append(f"{path}: the weights have {value}, got {node.get(last)}; leave it out")
        if not chosen or fixed:
            node[last] = value

    publics = [start.main, *start.adapters.values()]
    dims = {public.checkpoint.source: public.parts.dim for public in publics if public is not None}
    if len(set(dims.values())) > 1:
        raise UserError(f"weights: one matrix has one width: {', '.join(f'{d} in {s}' for s, d in dims.items())}")
    dim = next(iter(dims.values()))
    put("dim", dim, fixed=True)
    _set_dims(c, dim)
    for modality in MODALITIES:
        if (public := start.of(modality)) is not None and _is_chosen(c, modality):
            for key, value in public.parts.adapters[modality].items():
                put(f"adapters.{modality}.{key}", value, fixed=key in FIXED)
    if start.main is not None:
        parts = start.main.parts
        if not any(_is_chosen(c, m) for m in parts.adapters):
            raise UserError(f"adapters: the weights are of {', '.join(parts.adapters)}, which is not chosen")
        for key, value in {**_structure(), **parts.backbone}.items():
            put(f"backbone.{key}", value, fixed=True)
        # A projection to another width stands before no classifier: heads have no such layer.
        head = {} if "hidden_dim" in parts.head else parts.head
        for group, found in (("fusion", parts.fusion), ("head", head)):
            for key, value in found.items():
                put(f"{group}.{key}", value, fixed=False)
    if faults:
        raise UserError("\n".join(faults))
    return c


def _structure() -> dict[str, Any]:
    """A backbone's arguments but for those that any weights go with, as they are where a family does not say."""
    known = inspect.signature(Backbone).parameters.values()
    return {p.name: p.default for p in known if p.name not in FREE and p.default is not p.empty}


def _is_chosen(c: Plain, modality: str) -> bool:
    return "_target_" in (c["adapters"].get(modality) or {})


def _set_dims(c: dict[str, Any], dim: int) -> None:
    for part in (*(c["adapters"].get(m) or {} for m in MODALITIES), c["fusion"], c["backbone"], c["head"]):
        if "dim" in part:
            part["dim"] = dim


def _left_out(public: Public, missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    lines = []
    if missing:
        lines.append(f"weights: {public.checkpoint.source} lacks {', '.join(missing)}: these start at random")
    if unexpected:
        lines.append(f"weights: {public.checkpoint.source} has {', '.join(unexpected)}: these are not used")
    return lines
