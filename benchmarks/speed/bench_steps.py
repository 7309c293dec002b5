"""Rows of bench.py: what dxn does on a GPU only, beside the plain path: training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from bench_paths import BASE, LOW, PLAIN, SMALL, Size, beside, check_kernel, images, texts
from bench_row import OURS, Options, Row, Unequal, Work
from torch import Tensor, distributed

import dxn
from dxn.models import compiling
from dxn.models.blocks import set_compiled
from dxn.models.losses import linear_cross_entropy
from dxn.training import optim
from dxn.training.device import to_device
from dxn.training.loop import Fit
from dxn.training.optim import adamw, cosine
from dxn.training.parallel import Sharded
from dxn.training.trainer import Trainer

STEPS = 3  # before the weights are compared


class Training:
    """A training that takes the same step again and again, as `dxn train` does.

    Args:
        model: Model, which is copied.
        rows: Rows of the batch.
        options: Options of the measurement.
        name: Name of its folder.
        context: Context in which it takes its steps.
        trainer: Further options of the trainer.
    """

    def __init__(
        self,
        model: dxn.Model,
        rows: list[Any],
        options: Options,
        name: str,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **trainer: Any,
    ):
        self.context = context
        model = copy.deepcopy(model)
        precision = "bf16" if options.dtype == torch.bfloat16 else "float32"
        settings: dict[str, Any] = {"batch_size": len(rows), "precision": precision, **trainer}
        self.fit = Fit(
            Trainer(device=options.device.type, **settings),  # pyright: ignore[reportArgumentType]
            model,
            model.task,
            optimizer=adamw()(model),
            schedule=cosine(),
            train=model.train()._samples(rows),
            validation=None,
            folder=options.folder / name,
            keep=lambda metrics: None,
        )
        self.device = options.device
        self.batch = to_device(next(iter(self.fit.loader)), self.device)
        self.fit.parallel.wrapped.train()
        # As at the start of an epoch: on a CPU, only the blocks are compiled.
        is_of_blocks = self.fit.trainer.compile and not self.fit.compiles_model
        set_compiled(self.fit.parallel.trained, is_of_blocks)

    def step(self) -> None:
        """Take a step."""
        self.fit.state.batch = 0  # as if the epoch began, because it has one batch only
        with self.context():
            self.fit.train_step(iter([self.batch]))

    def gradients(self) -> Tensor:
        """Take a step, and return all gradients as one vector."""
        # Not the weights: Adam takes a step of full length also for a gradient of rounding errors.
        self.step()
        return self._vector(p.grad for p in self.fit.parameters if p.grad is not None)

    def weights(self) -> Tensor:
        """Take some steps, and return all weights after them as one vector."""
        for _ in range(STEPS):
            self.step()
        return self._vector(p.detach() for p in self.fit.parameters)

    def _vector(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.fit.parallel.whole(each).flatten() for each in tensors])


def trained(
    path: Training,
    plain: Training,
    options: Options,
    *,
    answer: Callable[[Training], Tensor] = Training.gradients,
) -> Work:
    """Return the work of two trainings, of which the first steps are compared.

    Args:
        path: The training of the path.
        plain: The other one.
        options: Options of the measurement.
        answer: Takes the first steps, and returns what is compared.
    """
    work = beside(partial(answer, path), partial(answer, plain), options)
    if compiling._failures:
        raise Unequal(f"nothing was compiled: {compiling._failures[0]}")
    return Work({OURS: path.step, PLAIN: plain.step}, facts=work.facts)


def compiled(options: Options, *, make: Any, size: Size, count: int) -> Work:
    """Training steps that are one graph from the adapters to the loss."""
    model, rows = make(options, size, count)
    plain = Training(model, rows, options, "plain")
    return trained(Training(model, rows, options, "path", compile=True), plain, options)


def packed_training(options: Options, *, size: Size, count: int) -> Work:
    """Training steps without padding, by the kernel for sequences of different lengths."""
    model, rows = texts(options, size, count)
    check_kernel(model, options)
    padded = copy.deepcopy(model)
    padded.backbone.packed = False
    plain = Training(padded, rows, options, "plain")
    return trained(Training(model, rows, options, "path"), plain, options)


def skipped(options: Options, *, size: Size, count: int) -> Work:
    """Training steps that need no answer from the GPU, because its optimizer can skip a step."""
    model, rows = images(options, size, count)
    path = Training(model, rows, options, "path")
    if options.device.type != "cpu" and not path.fit.skips_on_device:
        raise Unequal("the optimizer does not skip steps by itself")
    asks = partial(mock.patch.object, Fit, "skips_on_device", False)
    plain = Training(model, rows, options, "plain", context=asks)
    return trained(path, plain, options, answer=Training.weights)


def divided(options: Options, *, size: Size, count: int) -> Work:
    """Compiled training steps with divided weights (FSDP2), for which one process is enough."""
    model, rows = images(options, size, count)
    whole = compiling.call

    def call(function: Callable[..., Any], *args: Any, fullgraph: bool = False) -> Any:
        return whole(function, *args)  # as with several processes

    several = partial(mock.patch.object, compiling, "call", call)
    plain, path = (
        Training(model, rows, options, name, context=several, compile=True)
        for name in ("plain", "path")
    )
    backend = "nccl" if options.device.type == "cuda" else "gloo"
    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    fit = path.fit
    fit.parallel = Sharded(fit.model, options.device, fit.optimizer)
    fit.parameters = list(fit.parallel.trained.parameters())
    fit.parallel.wrapped.train()
    return trained(path, plain, options)


def orthogonalized(options: Options) -> Work:
    """The iteration of Muon in bf16, beside float32."""
    shape = (2, 32, 64) if options.tiny else (24, 768, 3072)
    x = torch.randn(shape, device=options.device)

    def plain() -> Tensor:
        with mock.patch("torch.cuda.is_bf16_supported", lambda including_emulation: False):
            return optim.orthogonalized(x)

    return beside(lambda: optim.orthogonalized(x), plain, options, allowed=LOW)


def loss(options: Options) -> Work:
    """The loss over a vocabulary in chunks, with its gradients, beside that of all logits."""
    tokens, dim, vocab_size = (16, 32, 64) if options.tiny else (8192, 768, 50_304)
    device = options.device
    x = torch.randn(tokens, dim, device=device, requires_grad=True)
    embedding = (torch.randn(vocab_size, dim, device=device) / dim**0.5).requires_grad_()
    targets = torch.randint(vocab_size, (tokens,), device=device)

    def run(total_of: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, options.dtype, enabled=options.dtype == torch.bfloat16):
            total = total_of()
        return total.detach(), *torch.autograd.grad(total, (x, embedding))

    def all_logits() -> Tensor:
        return F.cross_entropy((x @ embedding.T).float(), targets, reduction="sum")

    path = partial(run, lambda: linear_cross_entropy(x, embedding, targets))
    return beside(path, partial(run, all_logits), options)


ROWS = tuple(
    Row(name, title, "path", partial(build, **arguments), rounds=5, gpu=True)
    for name, title, build, arguments in (
        ("path_compiled_images", "compiled training step: ViT-S/16, 32 images", compiled,
         {"make": images, "size": SMALL, "count": 32}),
        ("path_compiled_texts", "compiled training step: BERT-base, 64 texts", compiled,
         {"make": texts, "size": BASE, "count": 64}),
        ("path_kernel_training", "attention without padding: training of BERT-base, 64 texts",
         packed_training, {"size": BASE, "count": 64}),
        ("path_skipped_steps", "optimizer that skips a step by itself: ViT-S/16, 32 images",
         skipped, {"size": SMALL, "count": 32}),
        ("path_fsdp", "FSDP2 of one process, compiled (saves memory, not time): ViT-S/16",
         divided, {"size": SMALL, "count": 32}),
        ("path_loss", "loss in chunks: 8,192 tokens over 50,304 words", loss, {}),
        ("path_low_muon", "Muon in bf16: 24 matrices of 768×3072", orthogonalized, {}),
    )
)  # fmt: skip
