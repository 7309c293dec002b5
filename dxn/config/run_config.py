"""The pydantic model of the saved configuration of a run."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from dxn.core.schema import Strict


class Part(Strict):
    """A part of a training: the class, and its arguments, which its signature checks."""

    model_config = ConfigDict(extra="allow")

    target: str = Field(alias="_target_", max_length=300)


class Resume(Strict):
    """The keys of a resume."""

    run: str | None
    force: bool


class Pretrain(Strict):
    """The keys of pretraining."""

    epochs: int
    lr: float
    warmup: float
    task: Part


class RunConfig(Strict):
    """The keys that a resumed training reads. The types of numbers are checked when it resumes."""

    baseline: Any
    ensemble: Any
    dim: Any
    seed: Any
    batch_size: Any
    name: Any
    output: Any
    run: Any
    share_adapters: Any
    share_backbone: Any
    resume: Resume
    weights: dict[str, Any]
    trust: list[str]
    adapters: dict[str, Part]
    fusion: Part
    head: Part
    backbone: Part
    optimizer: Part
    scheduler: Part
    trainer: Part
    loader: Part
    finetune: Part
    data: Part
    pretrain: Pretrain | None = None
