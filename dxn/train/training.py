"""One training, from a composed configuration to the figures in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dxn.config import Config, build, compose, saved_overrides
from dxn.data.samples import Opened, Samples
from dxn.data.stream import samples_of
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Model, count_parameters
from dxn.train import bundle, report
from dxn.train.loop import State, Trainer
from dxn.train.outcome import by_split, evaluate_subsets, split_for_figures
from dxn.train.pipeline import Data, build_adapters, build_model, open_source, target_kind, without_target
from dxn.train.pretrain import Masked
from dxn.train.progress import duration
from dxn.train.report import console, now
from dxn.train.start import Start, read_start, with_weights


@dataclass(frozen=True)
class Prepared:
    """All that a training needs, built and checked: nothing was written before this stood."""

    folder: Path
    data: Data
    adapters: Mapping[str, Any]
    model: Model
    parts: Mapping[str, Any]

    @property
    def sizes(self) -> dict[str, int]:
        """Rows by split."""
        return {name: len(split) for name, split in self.data.splits.items()}


def train_one(config: Config) -> dict[str, Any]:
    """One training; what metrics.json holds is returned."""
    if config.plain()["resume"]:
        config = _resumed(config)
    c = config.plain()
    trainer: Trainer = build(c["trainer"], key="trainer")
    console.quiet = not trainer.main  # of several processes one speaks and writes
    torch.manual_seed(c["seed"])
    prepared = _prepare(config, trainer)
    state = _learn(c, trainer, prepared)
    trainer.accelerator.end_training()
    return _finish(trainer, prepared, state) if trainer.main else {}


def _prepare(config: Config, trainer: Trainer) -> Prepared:
    """Read the data, fit on it, build the model, and only then make the run folder."""
    start = read_start(config.plain())
    c = _decided(config, start)
    source = build(c["data"], key="data")
    kind = target_kind(c, source)
    if kind == "masked":
        source = without_target(source)
    if kind == "text" and c["head"]["_target_"].endswith("default_head"):
        c = _decided(compose("train", [*config.overrides, "head=generate"]), start)
    if kind != "text" and (idle := next((key for key in config.asked() if key.startswith("target_text")), None)):
        guessed = {"next": "the text's own next token", "masked": "what is hidden"}.get(kind, f"of kind {kind}")
        raise UserError(
            f"{idle}: no text is written here, the target is {guessed}; leave it out, or set data.kind=text"
        )
    adapters, writing = build_adapters(c, source.columns), build(c["target_text"], key="target_text")
    start.prepare(adapters)
    start.prepare_writing(writing)
    folder = _run_folder(c, source.columns, main=trainer.main)
    if c["resume"]:  # what was fitted is kept: a tokenizer learned again need not be the same
        for adapter in adapters.values():
            adapter.load(folder / "checkpoints")
        if kind == "text":
            writing.load(folder / "checkpoints")
    data = open_source(source, adapters, writing, kind)
    report.describe(data)
    model, parts = build_model(c, data, adapters, balance=trainer.balance)
    if start.given and not c["resume"]:
        for notice in start.fill(model, data.target):
            console.print(notice, markup=False)
    build(c["finetune"], key="finetune")(model, start.came(model))
    if not c["resume"] and trainer.main:
        _begin(folder, config, adapters, data.target)
    console.print(f"run folder: {folder}", markup=False)
    console.print(f"precision: {trainer.precision_note}; device: {trainer.device}")
    total, trained = count_parameters(model), count_parameters(model, trained=True)
    part = f"; trained: {trained:,}" if trained < total else ""
    console.print(f"model: {total:,} parameters, of them {count_parameters(model.backbone):,} backbone{part}")
    return Prepared(folder, data, adapters, model, parts)


def _decided(config: Config, start: Start) -> dict[str, Any]:
    """The configuration, with what the weights decide that it starts from."""
    if not start.given:
        return config.plain()
    # Its own data's YAML changes the adapters; a table's leaves them as they are.
    default = compose("train", ["data=table", "data.path=any"]).plain()
    return with_weights(config.plain(), start, default, config.asked())


def _learn(c: Mapping[str, Any], trainer: Trainer, run: Prepared) -> State:
    """Pretraining where it is asked for, then the training itself, keeping the best epoch in model/."""
    training = _samples(run.data.splits["train"], run.adapters, run.data.target, trainer, training=True)
    if c.get("pretrain") and not c["resume"]:
        _pretrain(build(c["pretrain"], key="pretrain"), trainer, run.model, training)

    def keep(found: Mapping[str, float]) -> None:
        if trainer.main:
            bundle.save(
                run.folder / "model",
                model=run.model,
                parts=run.parts,
                target=run.data.target,
                card=report.card(
                    name=run.folder.parent.name,
                    parts=run.parts,
                    target=run.data.target,
                    sizes=run.sizes,
                    figures=found,
                    parameters=count_parameters(run.model),
                ),
            )

    return trainer.fit(
        run.model,
        optimizer=build(c["optimizer"], key="optimizer", model=run.model),
        schedule=build(c["scheduler"], key="scheduler"),
        train=training,
        validation=_validation(run.data.splits, run.adapters, run.data.target, trainer),
        target=run.data.target,
        folder=run.folder,
        keep=keep,
        resume=bool(c["resume"]),
    )


def _pretrain(pretrain: Masked, trainer: Trainer, model: Model, samples: Samples) -> None:
    for epoch in pretrain(model.to(trainer.device), samples, batch_size=trainer.batch_size, bf16=trainer.bf16):
        console.print(f"pretraining {epoch.number}/{pretrain.epochs}  {epoch}")


def _finish(trainer: Trainer, run: Prepared, state: State) -> dict[str, Any]:
    """Evaluate what was kept, loaded as a user would load it; what metrics.json holds is returned."""
    console.print(f"trained {duration(state.seconds)}, best epoch {state.best_epoch} of {state.epoch}")
    splits = run.data.splits
    best = bundle.load(run.folder / "model", device=str(trainer.device))
    split = split_for_figures(splits)
    results = evaluate_subsets(best, splits[split], split, run.folder, batch_size=2 * trainer.batch_size)
    extra = {
        "validation/best": state.best,
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "train_seconds": round(state.seconds, 1),
        "parameters": count_parameters(run.model),
        "precision": "bf16" if trainer.bf16 else "float32",
        "rows": run.sizes,
        "skipped": {name: s.skipped for name, s in splits.items()},
        "missing": {name: dict(s.missing) for name, s in splits.items()},
    }
    report.write_metrics(run.folder / "metrics.json", by_split(split, results), extra)
    return json.loads((run.folder / "metrics.json").read_text())


def _samples(
    opened: Opened, adapters: Mapping[str, Any], target: Target, trainer: Trainer, *, training: bool
) -> Samples:
    prepares = {name: adapter.prepare for name, adapter in adapters.items()}
    samples = samples_of(target)(
        opened,
        prepares,
        target=target,
        seed=trainer.seed,
        augment=training and not trainer.overfit,
        modality_dropout=trainer.modality_dropout if training else 0.0,
    )
    if trainer.overfit:
        samples.rows = samples.rows[: trainer.overfit]
    return samples


def _validation(splits: Mapping[str, Opened], adapters, target: Target, trainer: Trainer) -> Samples | None:
    """The samples that decide which epoch is best; with overfit, those that are trained on."""
    if trainer.overfit:
        return _samples(splits["train"], adapters, target, trainer, training=False)
    if "validation" not in splits:
        return None
    return _samples(splits["validation"], adapters, target, trainer, training=False)


def _resumed(config: Config) -> Config:
    """The configuration of the run to go on with, and on top what is asked for now."""
    folder = Path(config.plain()["resume"])
    asked = [o for o in config.overrides if not o.startswith("resume=")]
    return compose("train", [*saved_overrides(folder), *asked, f"resume={folder}", f"run={folder}"])


def _run_folder(c: Mapping[str, Any], columns: Mapping[str, str], *, main: bool) -> Path:
    folder = Path(c["run"]) if c["run"] else Path(c["output"]) / (c["name"] or columns.get("target", "run")) / now()
    if main and not c["resume"] and (folder / "metrics.jsonl").exists():
        raise UserError(f"run: {folder} holds a run already; go on with it (resume={folder}) or name another")
    return folder


def _begin(folder: Path, config: Config, adapters: Mapping[str, Any], target: Target) -> None:
    """Make the run folder, only now that data and model are known to be good."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    config.save(folder)
    for adapter in adapters.values():
        adapter.save(folder / "checkpoints")
    if target.writing is not None:
        target.writing.save(folder / "checkpoints")
