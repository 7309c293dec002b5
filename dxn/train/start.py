"""What a training starts from: public weights or an earlier run's, which decide the shape of the parts they fill."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Backbone
from dxn.tokenize import TargetTokenizer
from dxn.weights import Public, read_public
from dxn.weights.family import Parts
from dxn.weights.own import OF_DATA, pieces, target_tokenizer

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
# Of an adapter of our own, also how its input is cut and normalised, and what is added to its columns.
OWN_FIXED = FIXED | {
    "subwords",
    "vocab_size",
    "lowercase",
    "scale",
    "ngrams",
    "ngram_buckets",
    "ngram_columns",
    "conv_kernel",
    "normalize",
    "mean",
    "std",
}
NECK = ("hidden", "norm", "norm_eps")  # of a head, what stands before its last linear
# Of a backbone; dim is set apart.
FREE = frozenset({"dim", "dropout", "attn_dropout", "mlp_dropout", "drop_path", "checkpointing"})
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

    def prepare_writing(self, writing: TargetTokenizer) -> None:
        """Let texts be written with the tokenizer of a model of our own that writes, unless one is given."""
        if self.main is not None and self.main.family.own and writing.tokenizer is None and not writing.share:
            tokenizer = target_tokenizer(self.main.checkpoint)
            if tokenizer is not None:
                writing.use(tokenizer)

    def fill(self, model: nn.Module, target: Target) -> list[str]:
        """Put the weights into model, whose head answers to this target; what a user should know of it."""
        notices = []
        for modality, public in self.adapters.items():
            found = public.fill(model, only=(f"adapters.{modality}.",), strict=self.strict)
            notices += _left_out(public, found.missing, found.unexpected)
        if self.main is not None:
            own = [f"adapters.{m}." for m in self.main.parts.adapters if m not in self.adapters]
            # A way to meet of the user's own starts anew.
            new = _new(self, model) if self.main.family.own else []
            meeting = [name for name in self.main.table if name.startswith("fusion.") and name not in new]
            head, notice = (_own_head if self.main.family.own else _public_head)(self.main, model, target)
            found = self.main.fill(model, only=(*own, *meeting, "backbone.", *head), strict=self.strict)
            notices += [*_left_out(self.main, [*new, *found.missing], found.unexpected), *notice]
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
            fixed = OWN_FIXED if public.family.own else FIXED
            for key, value in public.parts.adapters[modality].items():
                put(f"adapters.{modality}.{key}", value, fixed=key in fixed)
    if start.main is not None:
        parts = start.main.parts
        if not any(_is_chosen(c, m) for m in parts.adapters):
            raise UserError(f"adapters: the weights are of {', '.join(parts.adapters)}, which is not chosen")
        # A projection to another width stands before no classifier: heads have no such layer.
        backbone, fusion, head = {**_structure(), **parts.backbone}, parts.fusion, parts.head
        if "hidden_dim" in head:
            head = {}
        if start.main.family.own:
            _take_own(c, parts, default, asked)
            backbone, head = parts.backbone, {key: head[key] for key in NECK if key in head}
            fusion = fusion if fusion["_target_"] == c["fusion"]["_target_"] else {}
        for key, value in backbone.items():
            put(f"backbone.{key}", value, fixed=key not in FREE)
        for group, found in (("fusion", fusion), ("head", head)):
            for key, value in found.items():
                put(f"{group}.{key}", value, fixed=False)
    if faults:
        raise UserError("\n".join(faults))
    return c


def _take_own(c: dict[str, Any], parts: Parts, default: Plain, asked: Sequence[str]) -> None:
    """Put the parts of a model of our own in the place of the default's, where these are of another class.

    UserError where a user chose a backbone of another class; another fusion is the user's.
    """
    for group, own in (("backbone", parts.backbone), ("fusion", parts.fusion)):
        target, theirs = c[group]["_target_"], own["_target_"]
        if target == theirs:
            continue
        if group not in asked and target == default[group]["_target_"]:
            c[group] = {"dim": parts.dim, **own}
        elif group == "backbone":
            had, got = (name.rpartition(".")[2] for name in (theirs, target))
            raise UserError(f"backbone: the weights have {had}, got {got}; leave it out")
    decoder, own = c["head"].get("decoder") or {}, parts.head.get("decoder") or {}
    same = own and decoder.get("_target_") == own["_target_"]
    if same and not any(key.startswith("head.decoder") for key in asked):
        c["head"]["decoder"] = copy.deepcopy(own)


def _public_head(public: Public, model: nn.Module, target: Target) -> tuple[list[str], list[str]]:
    """Beginnings of the names that are taken, and what to say: of a head of other classes all but its last linear."""
    labels = public.parts.labels
    if target.kind == "class" and list(target.names) == labels:
        return ["head.neck.", "head.out."], []
    said = f"weights: the head of {len(labels or ())} classes is replaced by one for these targets"
    return ["head.neck."], [said] if labels is not None else []


def _own_head(public: Public, model: nn.Module, target: Target) -> tuple[list[str], list[str]]:
    """The same of a model of our own, whose head is taken as a whole or not at all."""
    parts = public.parts
    wanted = {n: t.shape for n, t in model.state_dict().items() if n.startswith("head.") and n not in OF_DATA}
    theirs = {n: public.checkpoint.tensors[n].shape for n in public.table if n.startswith("head.")}
    names = list(target.names)
    if target.writing is not None and target.writing.tokenizer is not None:
        names = pieces(target.writing.tokenizer)
    if parts.kind != target.kind:
        reason = f"theirs is for {parts.kind}, here it is {target.kind}"
    elif parts.labels != names:
        reason = "theirs knows other names"
    elif wanted != theirs:
        reason = "theirs is of another shape"
    else:
        return ["head."], []
    return [], [f"weights: {public.checkpoint.source}: the head starts at random: {reason}"] if wanted else []


def _new(start: Start, model: nn.Module) -> list[str]:
    """What a model of our own does not bring: adapters by their names, and tensors of the fusion."""
    assert start.main is not None
    had = {name: tensor.shape for name, tensor in start.main.checkpoint.tensors.items()}
    meeting = [n for n, t in model.state_dict().items() if n.startswith("fusion.") and had.get(n) != t.shape]
    adapters: Any = model.adapters
    return [*(f"adapters.{m}" for m in adapters if start.of(m) is None), *meeting]


def _structure() -> dict[str, Any]:
    """A backbone's arguments but for those that any weights go with, as they are where a family does not say."""
    known = inspect.signature(Backbone).parameters.values()
    return {p.name: p.default for p in known if p.name not in FREE and p.default is not p.empty}


def _is_chosen(c: Plain, modality: str) -> bool:
    return "_target_" in (c["adapters"].get(modality) or {})


def _set_dims(c: dict[str, Any], dim: int) -> None:
    parts = [*(c["adapters"].get(m) or {} for m in MODALITIES), c["fusion"], c["backbone"], c["head"]]
    while parts:  # a head may hold a decoder, which holds a backbone
        part = parts.pop()
        if "dim" in part:
            part["dim"] = dim
        parts += [inner for inner in part.values() if isinstance(inner, dict)]


def _left_out(public: Public, missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    lines = []
    if missing:
        lines.append(f"weights: {public.checkpoint.source} lacks {', '.join(missing)}: these start at random")
    if unexpected:
        lines.append(f"weights: {public.checkpoint.source} has {', '.join(unexpected)}: these are not used")
    return lines
