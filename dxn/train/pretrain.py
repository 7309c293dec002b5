"""What a model can learn from the training split's inputs alone, before it learns the task in the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dxn.data.samples import BatchOrder, Samples, make_loader
from dxn.data.targets import Target
from dxn.models import Model
from dxn.models.hiding import Hiding
from dxn.models.masked import Masked as Head
from dxn.models.masked import guess_figures
from dxn.train.evaluate import to_device
from dxn.train.optim import adamw, cosine


@dataclass(frozen=True)
class Epoch:
    """One pass over the training split: its number, each modality's mean loss over what was hidden of it, and the
    share of hidden subwords guessed right, none without text."""

    number: int
    losses: Mapping[str, float]
    accuracy: float | None

    def __str__(self) -> str:
        shown = {name: f"{name} {loss:.4f}" for name, loss in self.losses.items()}
        if self.accuracy is not None:
            shown["text"] += f" (guessed {self.accuracy:.4f})"
        return "  ".join(shown.values())


class Masked:
    """Lets adapters, fusion and backbone guess what is hidden of every modality, as `dxn.models.Masked` has it.

    Args:
        epochs: passes over the training split.
        hiding: how much of each modality.
        lr: highest learning rate; it rises, then falls like half a cosine.
        warmup: share of the steps in which the rate rises from 0.
    """

    def __init__(
        self,
        *,
        epochs: int = 10,
        hiding: Hiding | None = None,
        lr: float = 1e-3,
        warmup: float = 0.1,
    ):
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        self.hiding = hiding or Hiding()
        self.epochs, self.lr, self.schedule = epochs, lr, cosine(warmup=warmup)

    def check(self, adapters: Mapping[str, Any]) -> None:
        """UserError where nothing would be hidden of what these adapters take, or could not be."""
        self.hiding.check(adapters, key="pretrain")

    def __call__(self, model: Model, samples: Samples, *, batch_size: int, bf16: bool) -> Iterator[Epoch]:
        """Train model in place on what samples have of its modalities, without their targets; each epoch's figures."""
        device = next(model.parameters()).device
        self.check(model.adapters)
        masked = self.model(model).to(device)
        optimizer = adamw(masked, lr=self.lr)
        prepares = {name: adapter.prepare for name, adapter in model.adapters.items()}
        order = BatchOrder(
            Samples(samples.opened, prepares, target=Target("masked"), seed=samples.seed, augment=True),
            batch_size,
            seed=samples.seed,
            shuffle=True,
        )
        loader = make_loader(order)
        masked.train()
        if "image" in model.adapters:
            model.adapters["image"].eval()  # its token_dropout would leave out patches that are asked for
        for epoch in range(self.epochs):
            order.epoch, sums = epoch, torch.zeros(3, 3, dtype=torch.float64)
            for step, batch in enumerate(loader):
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * self.schedule((epoch * len(order) + step + 1) / (self.epochs * len(order)))
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    found = masked(to_device(batch, device))
                masked.head.loss(found).backward()
                nn.utils.clip_grad_norm_(masked.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                sums += found.detach().cpu()
            figures = guess_figures(sums)
            losses = {name.removeprefix("loss_"): x for name, x in figures.items() if name.startswith("loss_")}
            yield Epoch(epoch + 1, losses, figures.get("accuracy"))

    def model(self, model: Model) -> Model:
        """The model's own adapters, fusion and backbone, with a head that guesses what is hidden."""
        head = Head(next(iter(model.adapters.values())).dim, hiding=self.hiding)
        return Model(model.adapters, fusion=model.fusion, backbone=model.backbone, head=head)
