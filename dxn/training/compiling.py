"""The choice whether a training uses torch.compile, by measuring what it saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from dxn.core.display import duration
from dxn.core.dropout import Keys
from dxn.models import compiling
from dxn.models.blocks import Block, blocks_of, set_compiled
from dxn.training.options import Options
from dxn.training.state import State

# The first steps take longer, for example because memory is allocated.
WARMUP_STEPS = 5
TIMED_STEPS = 20
# A trial takes about a minute, so it costs at most 2 % of the time that is left.
MIN_SECONDS = 3600.0
# Timings per variant in a trial. The minimum hardly changes when other processes load the machine.
REPEATS = 10
# A smaller gain is within the error of the measurement.
MIN_SPEEDUP = 1.03


@dataclass(frozen=True)
class Trial:
    """Durations of the compiled part of one block, forward and backward, in seconds."""

    eager: float
    compiled: float
    compilation: float


class Compiling:
    """Turns torch.compile on and off in a training.

    Args:
        model: Model that is trained.
        settings: Options of the training.
        report: Function that prints a line.
    """

    def __init__(self, model: nn.Module, settings: Options, *, report: Callable[[str], None]):
        self.model = model
        self.settings = settings
        self.report = report
        self.is_on = False
        self.has_failed = False
        self.steps = 0  # steps of this process, for which no decision was taken
        self.started = 0.0
        self.seconds = 0.0  # time per step
        # Inputs of `Block.finish` in a batch, for a trial.
        self.inputs: tuple[Tensor, Tensor, Keys | None] | None = None

    def before_batch(self, state: State) -> None:
        """Turn torch.compile on if it is configured or was decided."""
        wanted = state.compiled if self.settings.compile == "auto" else self.settings.compile
        if bool(wanted) != self.is_on:
            self.is_on = bool(wanted)
            set_compiled(self.model, self.is_on)
        if self.is_on and compiling.failure() and not self.has_failed:
            self.has_failed = True
            self.report(f"note: training without torch.compile: {compiling.failure()}")

    def after_step(self, state: State, num_steps: int, *, num_batches: int) -> None:
        """Decide for compile=auto, as soon as it is known how long the training takes.

        The checkpoints contain the decision, so a resumed training does not decide again.

        Args:
            state: State of the training.
            num_steps: Number of steps of the whole training.
            num_batches: Number of forward passes per step.
        """
        if self.settings.compile != "auto" or state.compiled is not None:
            return
        self.steps += 1
        if self.steps == WARMUP_STEPS:
            self.started = time.monotonic()
        elif self.steps == WARMUP_STEPS + TIMED_STEPS:
            self.seconds = (time.monotonic() - self.started) / TIMED_STEPS
            # All processes must take the same way, so the clock of the first one decides.
            (left,) = broadcast_object_list([self._seconds_left(state, num_steps)])
            blocks = blocks_of(self.model)
            if left < MIN_SECONDS or not blocks:
                state.compiled = False
            else:
                self._record(blocks[len(blocks) // 2])
        elif self.inputs is not None:
            left = self._seconds_left(state, num_steps)
            (decision,) = broadcast_object_list([self._decide(left, num_batches)])
            state.compiled, reason = decision
            self.report(f"compile: {reason}")
            self.inputs = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Compute without torch.compile: validation would need other variants of the kernels."""
        set_compiled(self.model, False)
        try:
            yield
        finally:
            set_compiled(self.model, self.is_on)

    def close(self) -> None:
        """Turn torch.compile off."""
        set_compiled(self.model, False)

    def _seconds_left(self, state: State, num_steps: int) -> float:
        minutes = self.settings.max_minutes
        limit = math.inf if minutes is None else 60 * minutes
        return min(limit, (num_steps - state.step) * self.seconds)

    def _record(self, block: Block) -> None:
        """Keep the inputs of `block.finish` in the next batch."""

        def finish(x: Tensor, branch: Tensor, keys: Keys | None = None) -> Tensor:
            self.inputs = x.detach(), branch.detach(), keys
            vars(block).pop("finish", None)
            return block.finish(x, branch, keys)

        # An attribute of the object hides the method.
        vars(block)["finish"] = finish
        self.block = block

    def _decide(self, left: float, num_batches: int) -> tuple[bool, str]:
        """Compare both variants of a block, and say which one to use."""
        assert self.inputs is not None
        trial = measure(self.block, *self.inputs, bf16=self.settings.bf16)
        if trial is None:
            return False, f"off, {compiling.failure()}"
        per_step = (trial.eager - trial.compiled) * len(blocks_of(self.model)) * num_batches
        saved = per_step / self.seconds * left
        speedup = trial.eager / trial.compiled
        # The blocks may need a second variant, for example if the first block has no norm.
        is_worth = speedup >= MIN_SPEEDUP and saved > trial.compilation
        gain = f"would save {duration(saved)}" if saved > 0 else "would save nothing"
        return is_worth, (
            f"{'on' if is_worth else 'off'}, torch.compile {gain} of the {duration(left)} that are "
            f"left and took {duration(trial.compilation)}"
        )


def measure(
    block: Block, x: Tensor, branch: Tensor, keys: Keys | None, *, bf16: bool
) -> Trial | None:
    """Measure `Block.finish` with and without torch.compile, forward and backward.

    Args:
        block: Block of the model, which does not change.
        x: Argument of `Block.finish`.
        branch: Argument of `Block.finish`.
        keys: Argument of `Block.finish`.
        bf16: Compute matrix products in bf16.

    Returns:
        The durations, or None if this machine cannot compile.
    """
    block = deepcopy(block)  # its weights get gradients
    device = x.device

    def seconds(finish: Callable[..., Tensor], *first: Any) -> float:
        inputs = [part.clone().requires_grad_() for part in (x, branch)]
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            out = finish(*first, *inputs, keys)
        out.float().sum().backward()
        if device.type != "cpu":
            # A GPU computes asynchronously.
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        compilation = seconds(compiling.finish, block)
        if compiling.failure():
            return None
        eager: list[float] = []
        compiled: list[float] = []
        # In turns, so that a short load affects both.
        for _ in range(REPEATS):
            eager.append(seconds(block.finish))
            compiled.append(seconds(compiling.finish, block))
    return Trial(min(eager), min(compiled), compilation)
