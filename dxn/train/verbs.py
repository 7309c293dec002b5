"""What each verb does, once its configuration is composed and checked."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dxn.config import Config, build, saved_config
from dxn.data.check import check as check_source
from dxn.data.check import write_bad
from dxn.data.samples import Opened, Samples, open_rows
from dxn.data.tables import IMAGES, SOUNDS, table
from dxn.errors import UserError
from dxn.models.decoder import picking
from dxn.tokenize import BadMedia
from dxn.tokens import join
from dxn.train import bundle, report
from dxn.train.outcome import by_split, draw_attention, draw_tokens, evaluate_subsets, split_for_figures
from dxn.train.pipeline import build_adapters
from dxn.train.report import console, now
from dxn.train.training import train_one


def train(config: Config) -> int:
    """Train, evaluate on the test split, write the run folder."""
    train_one(config)
    return 0


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
    predictor = _predictor(c)
    if c["run"] is None and not c.get("data"):
        raise UserError("data: a public checkpoint brings no data to evaluate it on, data=table data.path=...")
    data = c.get("data") or _data_of(Path(str(c["run"])))
    source = build(data, key="data")
    name = c["split"] or split_for_figures(source.splits)
    if not source.splits.get(name):
        having = ", ".join(split for split, rows in source.splits.items() if rows)
        raise UserError(f"split: the data has {having}, got {name}")
    need_target = predictor.target.kind not in ("next", "masked")
    opened = open_rows(source.splits[name], predictor.prepares, on_bad=source.on_bad, need_target=need_target)
    if opened.targets is not None and predictor.target.unknown(opened.targets) == len(opened):
        known = ", ".join(predictor.target.names[:5])
        raise UserError(f"data: the model knows no class of {name}, only {known} ...; name them as it does")
    folder = Path(c["output"] or Path(c["run"] or "outputs") / "evaluate" / now())
    only = [tuple(c["only"])] if c["only"] else None
    results = evaluate_subsets(predictor, opened, name, folder, batch_size=c["batch_size"], shown=only)
    report.write_metrics(folder / "metrics.json", by_split(name, results), {"rows": len(opened)})
    console.print(f"written: {folder}", markup=False)
    return 0


def predict(config: Config) -> int:
    """Answers for a table, or for one sample."""
    c = config.plain()
    predictor = _predictor(c)
    if isinstance(c["input"], Mapping):
        console.print_json(json.dumps(predictor.predict(**c["input"])))
        return 0
    if predictor.target.kind == "next":
        raise UserError("input: a language model answers no table: let it go on with a text, dxn generate prompt=...")
    opened = _opened_table(c, predictor)
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


def generate(config: Config) -> int:
    """Texts of a language model, or of what a model that writes is given."""
    c = config.plain()
    predictor = _predictor(c)
    if c["count"] < 1 or c["max_new"] < 1:
        raise UserError(f"count and max_new: must be at least 1, got {c['count']} and {c['max_new']}")
    if c["input"] is not None and not isinstance(c["input"], Mapping):
        raise UserError("input: name what it is, input.text=... input.image=... or input.audio=...")
    try:
        pick = picking(c["temperature"], top_k=c["top_k"], top_p=c["top_p"], seed=c["seed"], device=predictor.device)
    except ValueError as error:
        raise UserError(f"temperature, top_k, top_p: {error}") from error
    texts = predictor.write(
        prompt=str(c["prompt"]), given=c["input"], count=c["count"], max_new=c["max_new"], pick=pick
    )
    for i, text in enumerate(texts):
        if i:
            console.rule(style="none")
        console.print(text, markup=False)
    return 0


def embed(config: Config) -> int:
    """Vectors for a table, or for one sample."""
    c = config.plain()
    predictor = _predictor(c)
    if isinstance(c["input"], Mapping):
        console.print_json(json.dumps(predictor.embed(**c["input"]).tolist()))
        return 0
    output = Path(c["output"]) if c["output"] else None
    if output is None or output.suffix not in (".npy", ".csv"):
        raise UserError(f"output: a table's vectors go to a .npy or .csv file, got {c['output']}")
    opened = _opened_table(c, predictor)
    rows, vectors = predictor.vectors(Samples(opened, predictor.prepares), batch_size=c["batch_size"])
    report.write_vectors(output, [opened.origin[i] for i in rows], vectors)
    skipped = f", {opened.skipped} skipped" if opened.skipped else ""
    console.print(f"written: {output} ({len(rows):,} rows of {vectors.shape[1]}{skipped})", markup=False)
    return 0


def attend(config: Config) -> int:
    """One sample's attention by block and head, words against words, by rollout what counted, and a page of it all."""
    c = config.plain()
    predictor = _predictor(c | {"device": "cpu"})
    folder = Path(c["output"])
    found, written, notes = draw_attention(predictor, _raw_inputs(c), folder)
    for modality, share in found.items():
        console.print(f"{modality}: {share:.1%} of what counted")
    for note in notes:
        console.print(note, markup=False)
    console.print(f"written: {folder}: {', '.join(path.name for path in written)}", markup=False)
    return 0


def neighbors(config: Config) -> int:
    """The subwords whose vectors lie closest to one's own, by the cosine of the angle between them."""
    c = config.plain()
    if c["count"] < 1:
        raise UserError(f"count: must be at least 1, got {c['count']}")
    found = _predictor(c | {"device": "cpu"}).neighbors(str(c["token"]), count=c["count"])
    shown = report.Table()
    shown.add_column("subword")
    shown.add_column("cosine", justify="right")
    for piece, cosine in found:
        shown.add_row(report.plain(piece), f"{cosine:.3f}")
    console.print(shown)
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
    draw_tokens({name: adapter.prepare for name, adapter in adapters.items()}, raws, joined, Path(c["output"]))
    console.print(f"picture: {c['output']}", markup=False)
    return 0


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


def _predictor(c: Mapping[str, Any]) -> bundle.Predictor:
    """The trained model that run names, or the public one that weights does."""
    w = c["weights"]
    if (c["run"] is None) == (w["source"] is None):
        raise UserError("run: give either run=RUN, a trained model, or weights=..., a public checkpoint")
    device = _device(c["device"])
    if c["run"] is not None:
        return bundle.load(c["run"], device=device)
    return bundle.from_public(device=device, **w)


def _opened_table(c: Mapping[str, Any], predictor: bundle.Predictor) -> Opened:
    rows = table(c["input"], **_input_columns(c, predictor)).splits["train"]
    return open_rows(rows, predictor.prepares, on_bad=c["on_bad"], need_target=False)


def _input_columns(c: Mapping[str, Any], predictor: bundle.Predictor) -> dict[str, Any]:
    """The columns of a table that the model was trained on, by the names they had then; of a model folder that
    was taken out of its run folder those names are not known, and the columns are inferred."""
    folder = Path(c["run"] or "")
    run = next((p for p in (folder, folder.parent) if c["run"] and (p / ".hydra").exists()), None)
    trained = _data_of(run) if run is not None else {}
    named = {m: trained[m] for m in predictor.modalities if trained.get(m)}
    return {**named, "fractions": (1.0,)}


def _data_of(run: Path) -> Mapping[str, Any]:
    """The data section of a run's saved configuration."""
    data = saved_config(run).get("data")
    if not isinstance(data, Mapping) or "_target_" not in data:
        raise UserError(f"{run}: its saved configuration has no data section; name the data, data=table data.path=...")
    return data


def _read(adapter: Any, name: str, source: Any) -> Any:
    try:
        return adapter.prepare.read(source)
    except BadMedia as error:
        raise UserError(f"input.{name}: {source}: {error}") from error


def show(config: Config) -> int:
    """The composed configuration."""
    console.print(config.yaml(), markup=False)
    return 0


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
