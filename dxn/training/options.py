"""The options of a training that the loop reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from accelerate import Accelerator

from dxn.training.trackers import Tracker

Compile: TypeAlias = bool | Literal["auto"]


class Options(Protocol):
    """The options of a training. `Trainer` describes them."""

    epochs: int
    seed: int
    max_grad_norm: float
    grad_accum_steps: int
    patience: float
    patience_below: float | None
    max_minutes: float | None
    ema_decay: float
    mixup: float
    mixup_below: float | None
    r_drop: float
    log_every: int
    checkpoint_every: int
    checkpoint_minutes: float
    max_skipped_steps: int
    compile: Compile
    tracker: Tracker | Sequence[Tracker]
    accelerator: Accelerator
    bf16: bool
    main: bool
