"""What each verb does, once its configuration is composed and checked."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from dxn.config import Config, build, compose, saved_overrides
from dxn.data.check import check as check_source
from dxn.data.check import write_bad
from dxn.data.samples import Opened, Samples, open_rows
from dxn.data.tables import IMAGES, SOUNDS, table
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.explain.pictures import token_picture
from dxn.models import count_parameters
from dxn.tokenize import BadMedia
from dxn.tokens import Tokens, join
from dxn.train import bundle, report
from dxn.train.evaluate import Predictions, figures, subsets
from dxn.train.loop import Trainer
from dxn.train.pipeline import build_adapters, build_model, open_source
from dxn.train.progress import duration
from dxn.train.report import console


def train(config: Config) -> int:
    """Train, evaluate on the test split, write the run folder."""
    train_one(config)
    return 0


def train_one(config: Config) -> dict[str, Any]:
    """One training; what metrics.json holds is returned."""
    if config.plain()["resume"]:
        config = _resumed(config)
    c = config.plain()
    trainer: Trainer = build(c["trainer"], key="trainer")
    console.quiet = not trainer.main  # of several processes one speaks and writes
    torch.manual_seed(c["seed"])
    source = build(c["data"], key="data")
    adapters = build_adapters(c, source.columns)
    folder = _run_folder(c, source.columns, main=trainer.main)
    if c["resume"]:  # what was fitted is kept: a tokenizer learned again need not be the same
        for adapter in adapters.values():
            adapter.load(folder / "checkpoints")
    data = open_source(source, adapters)
    report.describe(data)
    model, parts = build_model(c, data, adapters, balance=trainer.balance)
    if not c["resume"] and trainer.main:
        _begin(folder, config, adapters)
    console.print(f"run folder: {folder}", markup=False)
    console.print(f"precision: {trainer.precision_note}; device: {trainer.device}")
    console.print(
        f"model: {count_parameters(model):,} parameters, of them {count_parameters(model.backbone):,} backbone"
    )

    sizes = {name: len(split) for name, split in data.splits.items()}

    def keep(found: Mapping[str, float]) -> None:
        if not trainer.main:
            return
        text = report.card(
            name=folder.parent.name,
            parts=parts,
            target=data.target,
            sizes=sizes,
            figures=found,
            parameters=count_parameters(model),
        )
        bundle.save(folder / "model", model=model, parts=parts, target=data.target, card=text)

    training = _samples(data.splits["train"], adapters, data.target, trainer, training=True)
    if c.get("pretrain") and not c["resume"]:
        pretrain = build(c["pretrain"], key="pretrain")
        for epoch in pretrain(model.to(trainer.device), training, batch_size=trainer.batch_size, bf16=trainer.bf16):
            console.print(
                f"pretraining {epoch.number}/{pretrain.epochs}  loss {epoch.loss:.4f}  guessed {epoch.accuracy:.4f}"
            )
    state = trainer.fit(
        model,
        optimizer=build(c["optimizer"], key="optimizer", model=model),
        schedule=build(c["scheduler"], key="scheduler"),
        train=training,
        validation=_validation(data.splits, adapters, data.target, trainer),
        target=data.target,
        folder=folder,
        keep=keep,
        resume=bool(c["resume"]),
    )
    trainer.accelerator.end_training()
    if not trainer.main:
        return {}
    console.print(f"trained {duration(state.seconds)}, best epoch {state.best_epoch} of {state.epoch}")
    best = bundle.load(folder / "model", device=str(trainer.device))
    split = next(name for name in ("test", "validation", "train") if name in data.splits)
    results = evaluate_subsets(best, data.splits[split], split, folder, batch_size=2 * trainer.batch_size)
    extra = {
        "validation/best": state.best,
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "train_seconds": round(state.seconds, 1),
        "parameters": count_parameters(model),
        "precision": "bf16" if trainer.bf16 else "float32",
        "rows": sizes,
        "skipped": {name: s.skipped for name, s in data.splits.items()},
        "missing": {name: dict(s.missing) for name, s in data.splits.items()},
    }
    report.write_metrics(folder / "metrics.json", _by_split(split, results), extra)
    return json.loads((folder / "metrics.json").read_text())


def sweep(configs: Sequence[Config]) -> int:
    """One training after another, and the mean and deviation of their figures."""
    found = []
    for i, config in enumerate(configs):
        console.rule(f"{i + 1} of {len(configs)}: {' '.join(config.overrides)}", style="none")
        found.append(train_one(config))
    names = [k for k in found[0] if k.startswith("test/") and "[" not in k]
    summary = report.Table(title=f"mean ± sd of {len(found)} runs")
    for heading in ("figure", "mean", "sd", "min", "max"):
        summary.add_column(heading, justify="left" if heading == "figure" else "right")
    for name in names:
        values = [f[name] for f in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells = (statistics.mean(values), spread, min(values), max(values))
        summary.add_row(name, *(f"{v:.4f}" for v in cells))
    console.print(summary)
    return 0


def evaluate(config: Config) -> int:
    """A trained model's figures on a split, or on other data, with modalities withheld."""
    c = config.plain()
    predictor = bundle.load(c["run"], device=_device(c["device"]))
    trained = compose("train", saved_overrides(Path(c["run"])))
    source = build(c.get("data") or trained.plain()["data"], key="data")
    name = c["split"] if c["split"] in source.splits else next(iter(source.splits))
    if c["split"] not in source.splits and len(source.splits) > 1:
        raise UserError(f"split: the data has {', '.join(source.splits)}, got {c['split']}")
    opened = open_rows(source.splits[name], predictor.prepares, on_bad=source.on_bad)
    folder = Path(c["output"] or Path(c["run"]) / "evaluate" / _now())
    folder.mkdir(parents=True, exist_ok=True)
    only = [tuple(c["only"])] if c["only"] else None
    results = evaluate_subsets(predictor, opened, name, folder, batch_size=c["batch_size"], shown=only)
    report.write_metrics(folder / "metrics.json", _by_split(name, results), {"rows": len(opened)})
    console.print(f"written: {folder}", markup=False)
    return 0


def evaluate_subsets(
    predictor: bundle.Predictor,
    opened: Opened,
    split: str,
    folder: Path,
    *,
    batch_size: int,
    shown: Sequence[tuple[str, ...]] | None = None,
) -> dict[str, dict[str, float]]:
    """Figures with every set of modalities ("all" last), printed; predictions.csv and plots/ for all of them."""
    everything = tuple(m for m in predictor.modalities if m in opened.raws)
    results: dict[str, dict[str, float]] = {}
    found: dict[str, tuple[Samples, Predictions]] = {}
    for subset in shown or subsets(everything) or [everything]:
        if unknown := set(subset) - set(everything):
            raise UserError(f"only: the data and the model share {', '.join(everything)}, got {', '.join(unknown)}")
        samples = Samples(opened, predictor.prepares, target=predictor.target, only=subset)
        if len(samples):
            name = "all" if subset == everything else "+".join(subset)
            found[name] = samples, predictor.run(samples, batch_size=batch_size)
            results[name] = figures(found[name][1], samples, predictor.target)
    if not found:
        raise UserError(f"only: no row of {split} has any of {shown}")
    samples, predictions = found[list(found)[-1]]
    answers = [predictor.answer(p) for p in predictions.predicted]
    report.write_predictions(folder / "predictions.csv", predictions, samples, predictor.target, answers)
    report.draw(folder / "plots", predictions, samples, predictor.target, results)
    raws = {m: column[samples.rows[0]] for m, column in opened.raws.items()}
    _draw_tokens(predictor.prepares, raws, predictor.embedded(samples, 0), folder / "plots" / "tokens.png")
    report.figures_table(results, predictor.target, f"{split}: {len(samples):,} rows")
    return results


def predict(config: Config) -> int:
    """Answers for a table, or for one sample."""
    c = config.plain()
    predictor = bundle.load(c["run"], device=_device(c["device"]))
    if isinstance(c["input"], Mapping):
        console.print_json(json.dumps(predictor.predict(**c["input"])))
        return 0
    rows = table(c["input"], **_input_columns(c, predictor)).splits["train"]
    opened = open_rows(rows, predictor.prepares, on_bad=c["on_bad"], need_target=False)
    samples = Samples(opened, predictor.prepares)
    predictions = predictor.run(samples, batch_size=c["batch_size"])
    answers = [predictor.answer(p) for p in predictions.predicted]
    output = Path(c["output"]) if c["output"] else None
    if output is None:
        for i, answer in zip(predictions.rows, answers, strict=True):
            console.print(f"{opened.origin[i]}: {answer['prediction']}", markup=False)
        return 0
    report.write_predictions(output, predictions, samples, predictor.target, answers)
    skipped = f", {opened.skipped} skipped" if opened.skipped else ""
    console.print(f"written: {output} ({len(answers):,} rows{skipped})", markup=False)
    return 0


def tokenize(config: Config) -> int:
    """One raw input as its D×N matrix: what the columns are, and a picture."""
    c = config.plain()
    raws = _raw_inputs(c)
    torch.manual_seed(c["seed"])
    if c["run"]:
        adapters: Any = bundle.load(c["run"]).model.adapters
    else:
        adapters = build_adapters(c, raws)
    parts = []
    for name, adapter in adapters.items():
        if name not in raws:
            continue
        raw = raws[name] = _read(adapter, name, raws[name])
        if not c["run"]:
            adapter.fit([raw])
        adapter.eval()
        with torch.inference_mode():
            tokens = adapter(adapter.prepare.collate([adapter.prepare(raw)]))
        parts.append(tokens)
        console.print(f"{name}: {adapter.dim}×{tokens.x.shape[1]}  {adapter.describe(raw)}", markup=False)
    if not parts:
        raise UserError(f"input: the model takes {', '.join(adapters)}, got {', '.join(raws)}")
    joined = join(parts)
    console.print(f"matrix: {joined.x.shape[2]}×{joined.x.shape[1]}, a column a token")
    _draw_tokens({name: adapter.prepare for name, adapter in adapters.items()}, raws, joined, Path(c["output"]))
    console.print(f"picture: {c['output']}", markup=False)
    return 0


def _draw_tokens(prepares: Mapping[str, Any], raws: Mapping[str, Any], tokens: Tokens, path: Path) -> None:
    """One sample's raw inputs, read already, with its tokens."""
    shown = {name: raw for name, raw in raws.items() if raw is not None and name in prepares}
    if "audio" in shown:
        shown["audio"] = shown["audio"], prepares["audio"].sample_rate
    token_picture(shown, tokens, path)


def check(config: Config) -> int:
    """Open everything; exit 1 where anything is bad."""
    c = config.plain()
    source = build(c["data"], key="data")
    prepares = {n: build(node, key=f"adapters.{n}").prepare for n, node in c["adapters"].items() if "_target_" in node}
    found = check_source(source, prepares)
    for line in found.lines():
        console.print(line, markup=False)
    if not found.bad:
        return 0
    write_bad(found, Path(c["output"]))
    console.print(f"{len(found.bad)} bad: listed in {c['output']}", markup=False)
    return 1


def _raw_inputs(c: Mapping[str, Any]) -> dict[str, Any]:
    """input=... by the modality it must be, or input.text=... input.image=... as they are."""
    given = c["input"]
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - {"text", "image", "audio"}):
            raise UserError(f"input.{unknown[0]}: no such modality; use input.text, input.image or input.audio")
        return dict(given)
    suffix = Path(str(given)).suffix.lower()
    if suffix in IMAGES:
        return {"image": given}
    if suffix in SOUNDS:
        return {"audio": given}
    return {"text": Path(given).read_text(encoding="utf-8") if suffix == ".txt" else str(given)}


def _input_columns(c: Mapping[str, Any], predictor: bundle.Predictor) -> dict[str, Any]:
    """The columns of a table that the model was trained on, by the names they had then."""
    trained = compose("train", saved_overrides(Path(c["run"]))).plain()["data"]
    named = {m: trained[m] for m in predictor.modalities if trained.get(m)}
    return {**named, "fractions": (1.0,)}


def _read(adapter: Any, name: str, source: Any) -> Any:
    try:
        return adapter.prepare.read(source)
    except BadMedia as error:
        raise UserError(f"input.{name}: {source}: {error}") from error


def show(config: Config) -> int:
    """The composed configuration."""
    console.print(config.yaml(), markup=False)
    return 0


def _samples(
    opened: Opened, adapters: Mapping[str, Any], target: Target, trainer: Trainer, *, training: bool
) -> Samples:
    prepares = {name: adapter.prepare for name, adapter in adapters.items()}
    samples = Samples(
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
    folder = Path(c["run"]) if c["run"] else Path(c["output"]) / (c["name"] or columns.get("target", "run")) / _now()
    if main and not c["resume"] and (folder / "metrics.jsonl").exists():
        raise UserError(f"run: {folder} holds a run already; go on with it (resume={folder}) or name another")
    return folder


def _begin(folder: Path, config: Config, adapters: Mapping[str, Any]) -> None:
    """Make the run folder, only now that data and model are known to be good."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    config.save(folder)
    for adapter in adapters.values():
        adapter.save(folder / "checkpoints")


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-4]


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _by_split(split: str, results: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {split if shown == "all" else f"{split}/{shown}": found for shown, found in results.items()}
