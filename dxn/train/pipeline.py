"""From a composed configuration to opened data and a built model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dxn.config import build
from dxn.data.rows import Rows, Source
from dxn.data.samples import Opened, open_rows
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Model
from dxn.models.fusion import WITH_CLASS
from dxn.models.heads import HEADS
from dxn.tokenize import TargetTokenizer

MODALITIES = ("text", "image", "audio")
OF_INPUT = {"Language": "next", "Masked": "masked"}  # heads whose target is in the input
Plain = Mapping[str, Any]


@dataclass(frozen=True)
class Data:
    """A source, its splits opened, and what is to be predicted."""

    source: Source
    splits: Mapping[str, Opened]
    target: Target


def build_adapters(config: Plain, columns: Mapping[str, str]) -> dict[str, Any]:
    """The adapters, not yet fitted, of the modalities that are in the data and in the configuration."""
    chosen = [m for m in MODALITIES if "_target_" in (config["adapters"].get(m) or {})]
    used = [m for m in chosen if m in columns]
    if not used:
        raise UserError(f"adapters: {', '.join(chosen) or 'none'} chosen, but the data has {_listed(columns)}")
    return {m: build(config["adapters"][m], key=f"adapters.{m}") for m in used}


def open_source(source: Source, adapters: Mapping[str, Any], writing: TargetTokenizer, kind: str) -> Data:
    """Read every file once, then fit on the training split: adapters and target, whose texts `writing` cuts."""
    prepares = {name: adapter.prepare for name, adapter in adapters.items()}
    splits = {
        name: open_rows(rows, prepares, on_bad=source.on_bad, need_target=kind not in ("next", "masked"))
        for name, rows in source.splits.items()
        if len(rows)
    }
    train = splits["train"]
    targets = train.targets or ()
    written = kind == "text"
    if written and writing.share and "text" not in adapters:
        raise UserError("target_text.share: there is no text that is read to share it with; leave it out")
    for name, adapter in adapters.items():
        present = [raw for raw in train.raws[name] if raw is not None]
        if not present:
            raise UserError(f"adapters.{name}: no row of the training split has any {name}; leave it out")
        shared = written and writing.share and name == "text"
        adapter.fit([*present, *targets] if shared else present)
        if shared:
            writing.use(adapter.prepare.tokenizer)
    return Data(source, splits, Target.fit(kind, targets, writing))


def target_kind(config: Plain, source: Source) -> str:
    """What is to be predicted: what the data says, the text's own next token, or what is hidden of the input."""
    return OF_INPUT.get(config["head"]["_target_"].rpartition(".")[2], source.target_kind)


def without_target(source: Source) -> Source:
    """The source as if its table had no target."""
    splits = {
        name: Rows({column: cells for column, cells in rows.cells.items() if column != "target"}, rows.origin)
        for name, rows in source.splits.items()
    }
    columns = {name: column for name, column in source.columns.items() if name != "target"}
    return replace(source, splits=splits, columns=columns, target_kind="none")


def head_node(config: Plain, target: Target, train: Opened, *, balance: bool) -> dict[str, Any]:
    """The head's node with what the data decides filled in, whichever way it was chosen."""
    node = dict(config["head"])
    cls = HEADS[target.kind]
    chosen = node["_target_"].rpartition(".")[2]
    if chosen == "default_head":
        node["_target_"] = f"dxn.models.{cls.__name__}"
    elif chosen in {head.__name__ for head in HEADS.values()} and chosen != cls.__name__:
        kind = next(kind for kind, head in HEADS.items() if head.__name__ == chosen)
        raise UserError(
            f"head: {chosen} predicts {kind}, but the target is {target.kind}; set head=auto or data.kind={kind}"
        )
    found: dict[str, Any] = {"num_classes": len(target.names), "mean": target.mean, "std": target.std}
    if target.writing is not None:
        node["decoder"] = {**node["decoder"], "vocab_size": target.writing.size}
    elif balance and target.kind not in ("number", "next", "masked"):
        assert train.targets is not None
        found["class_weights"] = target.balanced_weights(train.targets)
    known = inspect.signature(cls).parameters
    return {k: v for k, v in {**node, **found}.items() if k in known or k == "_target_"}


def build_model(config: Plain, data: Data, adapters: Mapping[str, Any], *, balance: bool) -> tuple[Model, dict]:
    """The model and the nodes it was built from, as the model folder keeps them."""
    _refuse_what_cannot_be(config, data, adapters)
    fusion = {**config["fusion"], "modalities": list(adapters)}
    meeting = build(fusion, key="fusion")
    head = head_node(config, data.target, data.splits["train"], balance=balance)
    if data.target.kind not in ("tags", "text", "next", "masked"):
        head["dim"] = meeting.width
    model = Model(
        adapters,
        fusion=meeting,
        backbone=build(config["backbone"], key="backbone"),
        head=build(head, key="head"),
    )
    parts = {
        "adapters": {name: config["adapters"][name] for name in adapters},
        "fusion": fusion,
        "backbone": config["backbone"],
        "head": head,
    }
    return model, parts


def _refuse_what_cannot_be(config: Plain, data: Data, adapters: Mapping[str, Any]) -> None:
    if data.target.kind == "next":
        _refuse_what_no_language_model_can_be(config, adapters)
    if data.target.kind == "masked":
        _refuse_what_cannot_be_hidden(config, adapters)
    if data.target.kind == "tags" and "text" not in adapters:
        raise UserError("head: tags belong to words, but no text adapter is in use; add adapters=[text]")
    if config.get("pretrain"):
        build(config["pretrain"], key="pretrain").check(adapters)
    first = config["fusion"].get("pool") in WITH_CLASS or "num_tokens" in config["fusion"]
    if first and config["backbone"].get("causal"):
        raise UserError(
            "backbone.causal: the class and the shared tokens come first and would read nothing; leave it out"
        )


def _refuse_what_cannot_be_hidden(config: Plain, adapters: Mapping[str, Any]) -> None:
    build(config["head"], key="head").hiding.check(adapters, key="head")
    if config["trainer"]["mixup"]:
        raise UserError("trainer.mixup: what is hidden of two samples cannot be mixed; set trainer.mixup=0")
    if "image" in adapters and config["adapters"]["image"]["token_dropout"]:
        raise UserError("adapters.image.token_dropout: not for head=masked, which asks for each patch; leave it out")


def _refuse_what_no_language_model_can_be(config: Plain, adapters: Mapping[str, Any]) -> None:
    if list(adapters) != ["text"]:
        raise UserError(f"head=language: guesses text from text alone, got {', '.join(adapters)}; set adapters=[text]")
    if not config["backbone"].get("causal"):
        raise UserError("head=language: the backbone would see what it has to guess; set backbone.causal=true")
    node = config["adapters"]["text"]
    for key in ("conv_kernel", "ngram_columns", "token_dropout", "token_mask", "subword_dropout"):
        if node[key]:
            raise UserError(f"adapters.text.{key}: not for head=language, which guesses each token; leave it out")


def _listed(columns: Mapping[str, str]) -> str:
    found = [m for m in MODALITIES if m in columns]
    return ", ".join(found) or "no text, image or audio column"
