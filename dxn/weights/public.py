"""From a public checkpoint to our parts, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from safetensors.torch import save_file
from torch import Tensor, nn

from dxn.errors import UserError
from dxn.models.fusion import Pooling
from dxn.weights.bert import BERT
from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.clip import CLIP_IMAGE, CLIP_TEXT
from dxn.weights.dinov2 import DINOV2, DINOV2_REGISTERS
from dxn.weights.distilbert import DISTILBERT
from dxn.weights.family import Family, Parts, Table, Take
from dxn.weights.gpt2 import GPT2
from dxn.weights.hf_vit import HF_VIT
from dxn.weights.modernbert import MODERNBERT
from dxn.weights.own import OWN
from dxn.weights.roberta import ROBERTA
from dxn.weights.spectrogram import AST
from dxn.weights.vit import VIT
from dxn.weights.whisper import WHISPER

FAMILIES: tuple[Family, ...] = (
    VIT,
    HF_VIT,
    DINOV2,
    DINOV2_REGISTERS,
    BERT,
    ROBERTA,
    DISTILBERT,
    MODERNBERT,
    GPT2,
    AST,
    WHISPER,
    CLIP_IMAGE,
    CLIP_TEXT,
)
ADAPTERS = {
    "text": "dxn.tokenize.TextAdapter",
    "image": "dxn.tokenize.ImageAdapter",
    "audio": "dxn.tokenize.AudioAdapter",
}
SHOWN = 8  # names in one message


@dataclass(frozen=True)
class Filled:
    """What became of the tensors: ours that got none, theirs that none took, and what was left to start anew."""

    missing: Sequence[str]
    unexpected: Sequence[str]
    replaced: Sequence[str]


@dataclass(frozen=True)
class Public:
    """A checkpoint whose family is known."""

    checkpoint: Checkpoint
    family: Family
    parts: Parts
    table: Table

    def nodes(self) -> dict[str, Any]:
        """Our parts as a model folder's config.yaml has them: a _target_ and its arguments each.

        UserError for a model that dxn trained, which is loaded whole.
        """
        if self.family.own:
            raise UserError(f"weights: {self.checkpoint.source}: dxn trained this model; use it by run=")
        p, dim = self.parts, {"dim": self.parts.dim}
        head = {"_target_": "dxn.models.Embed", "dim": self.width, **p.head}
        if p.labels is not None:
            head |= {"_target_": "dxn.models.Classify", "num_classes": len(p.labels)}
        return {
            "adapters": {name: {"_target_": ADAPTERS[name], **dim, **found} for name, found in p.adapters.items()},
            "fusion": {"_target_": "dxn.models.EarlyFusion", **dim, "modalities": list(p.adapters), **p.fusion},
            "backbone": {"_target_": "dxn.models.Backbone", **dim, **p.backbone},
            "head": head,
        }

    @property
    def width(self) -> int:
        """Of the pooled vector."""
        fusion = {"pool": "mean", "registers": 0, **self.parts.fusion}
        return Pooling(fusion["pool"], self.parts.dim, registers=fusion["registers"]).width

    def prepare(self, adapters: Mapping[str, Any]) -> None:
        """Give the text adapter the checkpoint's own tokenizer."""
        if "text" not in adapters or "text" not in self.parts.adapters:
            return
        tokenizer = self.checkpoint.tokenizer()
        if tokenizer is None:
            raise UserError(
                f"weights: {self.checkpoint.source}: no tokenizer.json, vocab.txt, or vocab.json with merges.txt "
                "beside the weights; without it nobody knows which row is whose"
            )
        adapters["text"].use(tokenizer)

    @torch.no_grad()
    def fill(self, model: nn.Module, *, only: Iterable[str] = ("",), strict: bool = True) -> Filled:
        """Put the checkpoint's weights into model, whose names begin with one of `only`.

        Places of another size of picture are interpolated, a vocabulary's unused rows and places beyond max_len
        left out. A head that does not fit keeps its own weights. UserError lists what is
        missing and what is unexpected, unless strict is False.
        """
        state = {name: t for name, t in model.state_dict().items() if name.startswith(tuple(only))}
        wanted = {name for name in state if self._is_asked(name)}
        missing, replaced = [], []
        for name in sorted(wanted):
            take = self.table.get(name)
            made = self._made(take) if take is not None else None
            if made is not None:
                made = fitted(name, made, state[name].shape, antialias=self.family.antialias)
            if made is not None and made.shape == state[name].shape:
                state[name].copy_(made)
            elif name.startswith("head."):
                replaced.append(name)
            elif made is None:
                missing.append(name)
            else:
                theirs, got, want = " + ".join(take.names if take else ()), tuple(made.shape), tuple(state[name].shape)
                raise UserError(f"weights: {self.checkpoint.source}: {theirs} makes {got}, but {name} is {want}")
        unexpected = sorted(set(self.checkpoint.tensors) - self._known())
        if strict and (missing or unexpected):
            raise UserError(self._complaint(missing, unexpected))
        return Filled(missing, unexpected, replaced)

    def _is_asked(self, name: str) -> bool:
        if name in self.table:
            return True
        if name.endswith((".mean", ".std")) and name.startswith("adapters."):
            return False  # of the pixels: arguments, not weights
        if name.startswith(("fusion.embedding", "head.")):
            return False  # which modality a column is of: no checkpoint of one modality knows
        other = name.startswith("adapters.") and name.split(".")[1] not in self.parts.adapters
        return not other

    def _made(self, take: Take) -> Tensor | None:
        found = []
        for name in take.names:
            tensor = self.checkpoint.tensors.get(name)
            if tensor is None:
                weight = self.checkpoint.tensors.get(re.sub(r"bias$", "weight", name))
                if weight is None or not name.endswith(tuple(self.family.no_bias) or ("\0",)):
                    return None
                tensor = weight.new_zeros(len(weight))
            found.append(tensor.double() if tensor.is_floating_point() else tensor)  # sums are rounded once
        return take.make(*found)

    def _known(self) -> set[str]:
        tensors = self.checkpoint.tensors
        taken = {name for take in self.table.values() for name in take.names}
        return taken | {n for n in tensors if any(re.match(p, n) for p in self.family.ignored)}

    def _complaint(self, missing: Sequence[str], unexpected: Sequence[str]) -> str:
        theirs = [" + ".join(self.table[n].names) if n in self.table else n for n in missing]
        lines = []
        if missing:
            lines.append(f"{len(missing)} of the tensors that {self.family.name} has are missing: {_listed(theirs)}")
        if unexpected:
            lines.append(f"{len(unexpected)} are none of {self.family.name}'s: {_listed(unexpected)}")
        return f"weights: {self.checkpoint.source}: {'; '.join(lines)}; weights.strict=false goes on without them"


def read_public(source: str, *, revision: str | None = None, part: str | None = None) -> Public:
    """A checkpoint of one of the families, from a file, a folder or the hub; or a model that dxn trained.

    part: text or image, of a checkpoint that holds a tower for each. UserError where nobody knows it.
    """
    checkpoint = read_checkpoint(source, revision=revision)
    known = [OWN] if OWN.knows(checkpoint) else [family for family in FAMILIES if family.knows(checkpoint)]
    if not known:
        names = ", ".join(family.name for family in FAMILIES)
        some = _listed(sorted(checkpoint.tensors))
        raise UserError(f"weights: {source}: of no family that dxn knows ({names}); its tensors are {some}")
    if len(known) > 1:
        chosen = [family for family in known if part is not None and part in family.name]
        if len(chosen) != 1:
            raise UserError(
                f"weights: {source}: it holds {' and '.join(f.name for f in known)}; say weights.part=text or image"
            )
        known = chosen
    try:
        parts = known[0].parts(checkpoint)
        table = known[0].table(checkpoint, parts)
    except KeyError as error:
        raise UserError(f"weights: {source}: neither its tensors nor its config.json has {error}") from error
    return Public(checkpoint, known[0], parts, table)


@torch.no_grad()
def save_public(public: Public, model: nn.Module, path: str | Path) -> None:
    """The model's weights under the family's own names, as one safetensors file that the peer reads."""
    if public.family.back is None:
        raise UserError(f"weights: no way back is known to {public.family.name}")
    ours = {name: t.detach().cpu() for name, t in model.state_dict().items()}
    theirs = {}
    for name, take in public.table.items():
        if name in ours and take.undo is not None:
            theirs |= dict(zip(take.names, take.undo(ours[name]), strict=True))
    theirs |= public.family.back(ours, public.checkpoint, public.parts)
    theirs = {name: t for name, t in theirs.items() if name in public.checkpoint or bool(t.any())}
    save_file({name: t.contiguous().clone() for name, t in theirs.items()}, path, {"format": "pt"})


def fitted(name: str, tensor: Tensor, shape: Sequence[int], *, antialias: bool = True) -> Tensor:
    """Places for another grid interpolated (bicubic), and so for longer sounds (linear, from frame to frame); rows of
    tables that nothing asks for left out."""
    if tensor.shape == torch.Size(shape):
        return tensor
    if name.endswith("position.table") and tensor.ndim == len(shape) == 3:
        grid = rearrange(tensor, "h w d -> 1 d h w")
        grid = F.interpolate(grid, tuple(shape[:2]), mode="bicubic", antialias=antialias, align_corners=False)
        return rearrange(grid, "1 d h w -> h w d")
    if name.endswith(("position.table", "table.weight")) and tensor.ndim == 2 and len(tensor) > shape[0]:
        return tensor[: shape[0]]
    if name == "adapters.audio.position.table" and tensor.ndim == len(shape) == 2:
        line = F.interpolate(tensor.T[None], shape[0], mode="linear", align_corners=True)
        return rearrange(line, "1 d n -> n d")
    return tensor


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
