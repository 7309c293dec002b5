"""Rows of bench.py: steps of a training, with equal weights at the start."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import lora
import numpy as np
import torch
import torch.nn.functional as F
from bench_models import (
    BASE,
    VIT_S,
    bert,
    build,
    check_models,
    fitting,
    lengths_of,
    pictures,
    texts,
    vit,
)
from bench_row import OURS, Goal, Options, Row, Work, check_equal, transformer_flop
from parity_cases import NUM_CLASSES, Sizes
from torch import Tensor, nn

from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.tasks.heads import LinearHead, PreHead
from dxn.tokenize import ImageAdapter, TextAdapter
from dxn.training.device import to_device

# Forward and backward pass: the gradients of inputs and of weights cost as much as the output each.
PASSES = 3
SMALL_BERT = Sizes(dim=256, depth=4, heads=4)
SHORT_VIT = Sizes(dim=192, depth=12, heads=3, side=64)
MIXED = Sizes(dim=192, depth=6, heads=3, batch=32)
WORDS = ("red", "blue", "slow", "warm", "plain", "bright", "dog", "river", "house", "tree")


def images(
    options: Options, *, sizes: Sizes, batch: int, patch_size: int = 16, compiled: bool = False
) -> Work:
    """A vision transformer of dxn and of timm."""
    sizes, batch = fitting(options, sizes, batch)
    pair = build(vit(sizes.side, patch_size), options.folder, sizes)
    check_models(pair, *pictures(pair, 2, sizes.side, torch.float32))
    ours, theirs = pictures(pair, batch, sizes.side, torch.float32)
    patches = (sizes.side // patch_size) ** 2
    flop = transformer_flop([patches + 1] * batch, dim=sizes.dim, depth=sizes.depth)
    flop += batch * 2 * patches * 3 * patch_size**2 * sizes.dim
    model, peer = pair.model.to(options.device), pair.peer.to(options.device)
    runs: list[Any] = [model, peer]
    if compiled:
        runs = [torch.compile(module) for module in runs]
    ours, theirs = to_device(ours, options.device), to_device(dict(theirs), options.device)
    labels = (torch.arange(batch) % NUM_CLASSES).to(options.device)
    calls = {
        OURS: make_step(model, lambda: runs[0](ours), labels, options.dtype),
        "timm": make_step(peer, lambda: pair.case.answer(runs[1], theirs), labels, options.dtype),
    }
    return Work(calls, PASSES * flop)


def ragged_texts(
    options: Options,
    *,
    dropout: float,
    sizes: Sizes = SMALL_BERT,
    mean: int = 28,
    longest: int = 60,
    compiled: bool = False,
) -> Work:
    """BERT of dxn and of transformers, for 64 texts of different lengths."""
    batch = 64
    sizes, _ = fitting(options, sizes, batch)
    pair = build(bert(), options.folder, sizes, dropout=dropout)
    lengths = lengths_of(batch, mean=mean, longest=longest)
    ours, theirs = texts(pair, lengths)
    check_models(pair, ours, theirs)
    ours, theirs = to_device(ours, options.device), to_device(dict(theirs), options.device)
    model, peer = pair.model.to(options.device), pair.peer.to(options.device)
    runs: list[Any] = [model, peer]
    if compiled:
        runs = [torch.compile(module) for module in runs]
    labels = (torch.arange(batch) % NUM_CLASSES).to(options.device)
    calls = {
        OURS: make_step(model, lambda: runs[0](ours), labels, options.dtype),
        "transformers": make_step(
            peer, lambda: pair.case.answer(runs[1], theirs), labels, options.dtype
        ),
    }
    flop = transformer_flop(lengths, dim=sizes.dim, depth=sizes.depth)
    return Work(calls, PASSES * flop)


def mixed(options: Options) -> Work:
    """Short texts, pictures and clips of different lengths, packed and padded."""
    from dxn.tokenize import AudioAdapter  # the other rows need no soundfile

    torch.manual_seed(0)
    adapters: dict[str, Any] = {
        "text": TextAdapter(MIXED.dim),
        "image": ImageAdapter(MIXED.dim, patch_size=8, image_size=64),
        "audio": AudioAdapter(MIXED.dim, sample_rate=8000),
    }
    raws = _raws()
    for name, adapter in adapters.items():
        raws[name] = [adapter.tokenizer.reader.read(raw) for raw in raws[name]]
        adapter.fit(raws[name])
    batch: dict[str, Any] = {"#size": MIXED.batch}
    for name, adapter in adapters.items():
        samples = [adapter.tokenizer(raw) for raw in raws[name]]
        batch[name] = adapter.tokenizer.collate(samples)
        batch[name]["rows"] = torch.arange(MIXED.batch)
    model = MultimodalModel(
        adapters,
        inputs={name: name for name in adapters},
        fusion=EarlyFusion(MIXED.dim, inputs=tuple(adapters)),
        backbone=Backbone(MIXED.dim, depth=MIXED.depth, num_heads=MIXED.heads),
        head=LinearHead(PreHead(MIXED.dim, dropout=0.0), NUM_CLASSES),
    ).to(options.device)
    padded = copy.deepcopy(model)
    padded.backbone.packed = False
    batch = to_device(batch, options.device)
    with torch.inference_mode():
        tokens = model.eval().embed(batch)
        check_equal(model(batch), padded.eval()(batch), tolerance=1e-4)
    columns = torch.cat([part.mask for part in tokens], 1)
    labels = (torch.arange(MIXED.batch) % NUM_CLASSES).to(options.device)
    calls = {
        OURS: make_step(model, lambda: model(batch), labels, options.dtype),
        "dxn, padded": make_step(padded, lambda: padded(batch), labels, options.dtype),
    }
    flop = transformer_flop(columns.sum(1).tolist(), dim=MIXED.dim, depth=MIXED.depth)
    facts = {"padding of the columns": 1 - float(columns.float().mean())}
    return Work(calls, PASSES * flop, facts=facts)


def low_rank(options: Options) -> Work:
    """Low-rank updates of all linear layers of a GPT-2, in dxn and in peft, in float32."""
    steps, ids = lora.make_large(options.folder, str(options.device))
    losses = {name: step(ids, 1.0) for name, step in steps.items()}
    check_equal(losses[OURS], losses["peft"], tolerance=1e-5, name="losses")

    def call(name: str) -> None:
        steps[name](ids, 1.0)

    return Work({name: partial(call, name) for name in steps})


def _raws() -> dict[str, list[Any]]:
    """Return raw values by modality: texts of 3 to 40 words, pictures, clips of 0.3 to 4 s."""
    rand = np.random.default_rng(0)
    return {
        "text": [" ".join(rand.choice(WORDS, n)) for n in rand.integers(3, 41, MIXED.batch)],
        "image": [
            rand.integers(0, 256, (h, w, 3), dtype=np.uint8)
            for h, w in rand.integers(24, 65, (MIXED.batch, 2))
        ],
        "audio": [
            (0.1 * rand.standard_normal(n, np.float32), 8000)
            for n in rand.integers(2400, 32000, MIXED.batch)
        ],
    }


def make_step(
    model: nn.Module, logits_of: Callable[[], Tensor], labels: Tensor, dtype: torch.dtype
) -> Callable[[], None]:
    """Create a call that takes one training step.

    Args:
        model: Model to train.
        logits_of: Calls the model and returns its logits (B, K).
        labels: (B,). Target classes.
        dtype: Data type of the matrix products. The weights are in float32.
    """
    model.train()
    # fused: otherwise the time of the optimizer would hide differences between the models.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(labels.device.type, dtype, enabled=dtype != torch.float32):
            logits = logits_of()
        # In float32, as in the trainer of dxn.
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


ROWS = (
    Row(
        "train_vit_s16",
        "ViT-S/16, 32 images",
        "training",
        partial(images, sizes=VIT_S, batch=32),
        (Goal(at_least=1.5),),
    ),
    Row(
        "train_vit_s16_compiled",
        "the same, both compiled",
        "training",
        partial(images, sizes=VIT_S, batch=32, compiled=True),
        (Goal(at_least=1.2),),
    ),
    Row(
        "train_mixed",
        "text, picture and sound of different lengths, early fusion; the peer pads",
        "training",
        mixed,
        (Goal(at_least=2),),
    ),
    Row(
        "train_vit_65",
        "ViT, width 192, depth 12, 64 images of 65 tokens",
        "training",
        partial(images, sizes=SHORT_VIT, batch=64, patch_size=8),
    ),
    Row(
        "train_bert",
        "BERT, width 256, depth 4, 64 texts of up to 60 tokens",
        "training",
        partial(ragged_texts, dropout=0.0),
    ),
    Row(
        "train_vit_s16_batch256",
        "ViT-S/16, 256 images",
        "training",
        partial(images, sizes=VIT_S, batch=256),
        gpu=True,
    ),
    Row(
        "train_vit_s16_batch256_compiled",
        "the same, both compiled",
        "training",
        partial(images, sizes=VIT_S, batch=256, compiled=True),
        gpu=True,
    ),
    Row(
        "train_bert_base",
        "BERT-base, 64 texts of 26 to 263 tokens, mean 88; the peer pads",
        "training",
        partial(ragged_texts, dropout=0.0, sizes=BASE, mean=88, longest=263),
        gpu=True,
    ),
    Row(
        "train_bert_base_compiled",
        "the same, both compiled",
        "training",
        partial(ragged_texts, dropout=0.0, sizes=BASE, mean=88, longest=263, compiled=True),
        gpu=True,
    ),
    Row(
        "train_bert_dropout",
        "BERT, width 256, depth 4, 64 texts of up to 60 tokens, with dropout of 0.1 everywhere",
        "training",
        partial(ragged_texts, dropout=0.1),
    ),
    Row(
        "train_lora",
        "LoRA in float32: GPT-2, width 512, depth 6, rank 8 in all layers, 8 texts of 64 tokens",
        "training",
        low_rank,
        (Goal(at_least=1.3),),
        package="peft",
    ),
)
