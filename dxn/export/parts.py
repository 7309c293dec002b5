"""The graphs that a model consists of, by what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dxn.core.errors import UserError
from dxn.export.examples import Example, Tensors, make_examples
from dxn.export.graph import Graph
from dxn.export.trace import Part, make_graph, reference_of, trace
from dxn.export.writing import (
    DecoderGraph,
    EncoderGraph,
    LanguageGraph,
    check_backbones,
    decoder_cases,
    language_cases,
    memory_of,
)
from dxn.models.decoding.decoder import Decoder, Memory
from dxn.models.model import Ensemble
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks.segment.head import TiledHead

SEED = 0  # of the random examples


def check_exportable(predictor: Predictor) -> None:
    """Check what can be checked before tracing, which takes long.

    Raises:
        UserError: If the model cannot be exported.
    """
    check_backbones(predictor.network)
    if predictor.task.creates:
        raise UserError(
            "export: a model of head=any cannot be exported; use dxn generate or dxn serve, or "
            "dxn.load in Python"
        )
    writes = predictor.task.writes
    if writes:
        _decoder(predictor)
    if (writes or predictor.task.target.source == "stream") and isinstance(
        predictor.network, Ensemble
    ):
        raise UserError("export: an ensemble of models that write cannot be exported")
    if any(adapter.is_separate for adapter in predictor.adapters.values()):
        raise UserError(
            "export: a series with adapters.series.channels=separate, such as that of Chronos-Bolt,"
            " cannot be exported; use dxn predict or dxn serve"
        )
    modules = predictor.network.modules()
    if any(isinstance(module, TiledHead) and module.tile for module in modules):
        raise UserError(
            "export: a model with head.tile, which divides large pictures, cannot be exported; use "
            "dxn predict or dxn serve, or train with head.tile=0"
        )
    if predictor.task.target.source == "stream" and len(predictor.inputs) > 1:
        raise UserError(
            "export: a language model with other inputs than a text cannot be exported, got "
            f"{', '.join(predictor.inputs)}"
        )


def _decoder(predictor: Predictor) -> Decoder:
    """Return the decoder of a model that writes.

    Raises:
        UserError: If it is of another class.
    """
    decoder = predictor.model.head.decoder
    if not isinstance(decoder, Decoder):
        raise UserError(
            f"export: the decoder must be dxn.models.Decoder, got {type(decoder).__name__}"
        )
    return decoder


def make_parts(predictor: Predictor) -> tuple[list[Part], str]:
    """Trace all graphs of a model.

    Returns:
        The graphs, and the name of the module in dxn/export/templates/ that shows how to use them.

    Raises:
        UserError: If the model cannot be exported.
    """
    check_exportable(predictor)
    if predictor.task.target.source == "stream":
        return [_language(predictor)], "continue_text"
    examples = make_examples(predictor.model, SEED, required=predictor.task.target.required)
    graph = make_graph(predictor.network, predictor.task, examples)
    cases = [{name: tensors[name] for name in graph.used} for _, tensors in examples]
    if predictor.task.writes:
        return _encoder_and_decoder(predictor, graph, examples, cases), "write"
    reference = reference_of(predictor.network, predictor.task, examples)
    part = trace("model", graph, cases, reference=reference, network=predictor.network)
    return [part], "predict"


def _language(predictor: Predictor) -> Part:
    cases = language_cases(predictor.model)
    graph = LanguageGraph(predictor.model).eval()
    return trace(
        "decoder", graph, cases, reference=_itself(graph, cases), network=predictor.network
    )


def _encoder_and_decoder(
    predictor: Predictor, graph: Graph, examples: Sequence[Example], cases: Sequence[Tensors]
) -> list[Part]:
    model = predictor.model
    decoder = _decoder(predictor)

    def encoded(number: int) -> Tensors:
        tokens, _ = model.encode(model.embed(examples[number][0]))
        return memory_of(Memory.from_tokens(tokens), decoder)

    network = predictor.network
    encoder = trace(
        "encoder", EncoderGraph(graph, decoder).eval(), cases, reference=encoded, network=network
    )
    with torch.no_grad():
        memories = [encoded(number) for number in range(len(examples))]
    steps = decoder_cases(decoder, memories)
    step = DecoderGraph(decoder).eval()
    reference = _itself(step, steps)
    return [encoder, trace("decoder", step, steps, reference=reference, network=network)]


def _itself(module: Any, cases: Sequence[Tensors]) -> Callable[[int], Tensors]:
    """Return the reference of a module that computes as the model does."""
    return lambda number: module(dict(cases[number]))
