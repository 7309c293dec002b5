"""Rows of bench.py: inference. Both sides hold their weights in the same data type."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from bench_models import (
    BASE,
    VIT_B,
    ast,
    bert,
    build,
    check_models,
    fitting,
    lengths_of,
    pictures,
    sounds,
    texts,
    vit,
    without_gradients,
)
from bench_row import OURS, Goal, Options, Row, Work, check_equal, transformer_flop
from parity import Pair

from dxn.models import MultimodalModel
from dxn.models.inference import convert
from dxn.runs.predictor.captured import capture
from dxn.training.device import to_device

# Of the outputs, relative to the largest one. Both sides round differently in every block.
TOLERANCES = {torch.bfloat16: 0.1, torch.float32: 1e-3}
FRAMES_PER_SECOND = 100


def for_use(model: Any, dtype: torch.dtype, *, compiled: bool) -> Any:
    """Prepare a model for inference, that of dxn as `dxn.load` does."""
    model = model.eval()
    if isinstance(model, MultimodalModel):
        convert(model, dtype)
    else:
        model = model.to(dtype)
    return torch.compile(model, dynamic=True) if compiled else model


def images(options: Options, *, batch: int, compiled: bool = False) -> Work:
    """ViT-B/16 of dxn and of timm."""
    sizes, batch = fitting(options, VIT_B, batch)
    pair = build(vit(sizes.side), options.folder, sizes)
    check_models(pair, *pictures(pair, 2, sizes.side, torch.float32))
    ours, theirs = pictures(pair, batch, sizes.side, options.dtype)
    patches = (sizes.side // 16) ** 2
    flop = transformer_flop([patches + 1] * batch, dim=sizes.dim, depth=sizes.depth)
    flop += batch * 2 * patches * 3 * 16**2 * sizes.dim  # the projection of the patches
    return _work(pair, ours, theirs, flop, options, peer="timm", compiled=compiled)


def ragged_texts(options: Options, *, batch: int = 64, compiled: bool = False) -> Work:
    """BERT-base of dxn and of transformers, for texts of different lengths."""
    sizes, _ = fitting(options, BASE, batch)  # few texts cannot have the mean length
    pair = build(bert(), options.folder, sizes)
    check_models(pair, *texts(pair, [7, 31]))
    lengths = lengths_of(batch, mean=88, longest=263)
    ours, theirs = texts(pair, lengths)
    flop = transformer_flop(lengths, dim=sizes.dim, depth=sizes.depth)
    return _work(pair, ours, theirs, flop, options, peer="transformers", compiled=compiled)


def clips(options: Options) -> Work:
    """AST of dxn, which needs no padding, and of transformers, which pads to 10.24 s."""
    pair = build(ast(), options.folder, BASE)
    # Only padded clips have equal outputs, because AST attends to its padding.
    check_models(pair, *sounds(pair, [300, 1024], torch.float32, padded=True))
    frames = [round(FRAMES_PER_SECOND * s) for s in torch.linspace(1, 10, 8).tolist()]
    ours, theirs = sounds(pair, frames, options.dtype, padded=False)
    # Patches of 16 bins × 16 frames every 10, and two leading tokens. Ends of clips are dropped.
    lengths = [2 + 12 * ((n - 16) // 10 + 1) for n in frames]
    flop = transformer_flop(lengths, dim=BASE.dim, depth=BASE.depth)
    return _work(pair, ours, theirs, flop, options, peer="transformers", same=False)


def _work(
    pair: Pair,
    ours: dict,
    theirs,
    flop: float,
    options: Options,
    *,
    peer: str,
    compiled: bool = False,
    same: bool = True,
) -> Work:
    """Move both models and batches to the device, and compare their outputs."""
    device, dtype = options.device, options.dtype
    ours = to_device(ours, device)
    # dxn takes the raw input, and normalizes it itself. Ids and masks stay integers.
    theirs = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        for name, value in theirs.items()
    }
    model = for_use(pair.model.to(device), dtype, compiled=compiled)
    other = for_use(pair.peer.to(device), dtype, compiled=compiled)
    facts = {}
    if same:
        with torch.inference_mode():
            expected = pair.case.answer(other, theirs)
            gap = check_equal(model(ours), expected, tolerance=TOLERANCES[dtype])
        facts = {"largest difference of the outputs": gap}
    calls = {
        OURS: without_gradients(lambda: model(ours)),
        peer: without_gradients(lambda: pair.case.answer(other, theirs)),
    }
    if device.type == "cuda" and not compiled:
        capture(model, writes=False)  # as `dxn.load` does
        fastest: Any = torch.compile(other, mode="reduce-overhead")
        calls[f"{peer}, compiled"] = without_gradients(lambda: pair.case.answer(fastest, theirs))
    return Work(calls, flop, facts)


ROWS = (
    Row(
        "vit_b16_batch16",
        "ViT-B/16, 16 images",
        "inference",
        partial(images, batch=16),
        (Goal(at_least=1.35),),
    ),
    Row(
        "vit_b16_batch16_compiled",
        "the same, both compiled",
        "inference",
        partial(images, batch=16, compiled=True),
        (Goal(at_least=1.15),),
    ),
    Row(
        "vit_b16_batch1",
        "ViT-B/16, 1 image",
        "inference",
        partial(images, batch=1),
        (Goal(at_least=1.3),),
    ),
    Row(
        "vit_b16_batch1_compiled",
        "the same, both compiled",
        "inference",
        partial(images, batch=1, compiled=True),
        (Goal(at_least=1.1),),
    ),
    Row(
        "bert_texts",
        "BERT-base, 64 texts of 26 to 263 tokens, mean 88; the peer pads",
        "inference",
        ragged_texts,
        (Goal(at_least=3),),
    ),
    Row(
        "bert_texts_compiled",
        "the same, both compiled",
        "inference",
        partial(ragged_texts, compiled=True),
        (Goal(at_least=2.5),),
    ),
    Row(
        "vit_b16_batch256",
        "ViT-B/16, 256 images",
        "inference",
        partial(images, batch=256),
        gpu=True,
    ),
    Row(
        "bert_512_texts",
        "BERT-base, 512 texts of up to 263 tokens, mean 88; the peer pads",
        "inference",
        partial(ragged_texts, batch=512),
        gpu=True,
    ),
    Row(
        "ast_clips",
        "AST, 8 clips of 1 to 10 s; the peer pads to 10.24 s",
        "inference",
        clips,
        (Goal(at_least=3),),
        rounds=5,
    ),
)
