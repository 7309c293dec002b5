"""The command `dxn tokenize`: describe and draw the D×N matrix of one sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dxn import viz
from dxn.core.errors import UserError
from dxn.core.randomness import named_draws
from dxn.core.tokens import join
from dxn.runs.build import build_adapters
from dxn.runs.evaluation.printing import print_line
from dxn.runs.plan import adapter_nodes, readers_of
from dxn.runs.predictor.option import read_sample
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings
from dxn.tokenize.media import BadMedia


def run(settings: Settings) -> int:
    """Convert one sample to its D×N matrix, and draw it."""
    # Unlike the other commands, this one works without a trained model.
    predictor = load_predictor(settings) if settings.values["run"] else None
    for line in tokenize_sample(settings, predictor):
        print_line(line)
    return 0


@torch.inference_mode()
def tokenize_sample(settings: Settings, predictor: Predictor | None) -> list[str]:
    """Convert one sample to its D×N matrix, and draw it.

    Args:
        settings: Settings of the command.
        predictor: Trained model whose adapters to use. None: use the adapters of the settings, with
            random weights and fitted on this sample.

    Returns:
        Lines to print.

    Raises:
        UserError: If an input is unknown or cannot be read.
    """
    values = settings.values
    if predictor is not None:
        sample = read_sample(values["input"], predictor.reads.readers, predictor.columns)
        adapters = {name: predictor.adapters[name] for name in predictor.inputs if name in sample}
    else:
        readers = readers_of(values, settings.trust)
        sample = read_sample(values["input"], readers)
        nodes = adapter_nodes(values)
        used = {name: nodes[name] for name in nodes if name in sample}
        adapters: dict[str, Any] = build_adapters(used, settings.trust, seed=values["seed"])
    if not sample:
        raise UserError("input: needs a value, such as input=photo.jpg or input.NAME=...")
    lines: list[str] = []
    parts = []
    raws: dict[str, Any] = {}
    for name, adapter in adapters.items():
        if predictor is None:
            adapter.tokenizer.reader.learn([sample[name]])
        raw = raws[name] = _read(adapter, name, sample[name])
        if raw is None:
            raise UserError(
                f"input.{name}: {sample[name]!r} means that there is no value; set another one, or "
                "leave the input out"
            )
        # A tokenizer that is trained on one text contains exactly the tokens of this text.
        if predictor is None:
            with named_draws(values["seed"], f"fit of adapters.{name}"):
                adapter.fit([raw])
        adapter.eval()  # without dropout, the same command draws the same picture
        tokens = adapter(adapter.tokenizer.collate([adapter.tokenizer(raw)])).renamed(name)
        parts.append(tokens)
        about = adapter.describe(raw)  # such as the subwords of a text
        lines.append(f"{name}: {adapter.dim}×{tokens.x.shape[1]}  {about}")
    joined = join(parts)
    lines.append(f"matrix: {joined.x.shape[2]}×{joined.x.shape[1]}, one column per token")
    described = viz.sample.describe_sample(sample)
    about = f"{described}; model: {values['run']}" if values["run"] else described
    view = viz.sample.SampleView.of(joined, adapters, raws, sample)
    viz.tokens.token_picture(view, Path(values["output"]), about=about)
    return [*lines, f"picture: {values['output']}"]


def _read(adapter: Any, name: str, source: Any) -> Any:
    try:
        return adapter.tokenizer.reader.read(source)
    except BadMedia as error:
        raise UserError(f"input.{name}: {source}: {error}") from error
