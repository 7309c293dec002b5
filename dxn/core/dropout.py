"""Dropout and stochastic depth, with masks that do not depend on the rest of the batch.

A mask is a hash of the training step, the sample, the token and the layer. So a sample gets the
same mask in a batch of any size, with any amount of padding, and in any of several processes.

Each token has a key: a hash that is computed once per step. The draw of a layer for a part of the
features is the product of the key and a random constant of the layer and the part, modulo 2^64. As
in a multiplicative congruential generator, the upper bits of such products are uniform and
independent for random keys, unless small multiples of two constants are equal.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor, nn

from dxn.core.schema import checked

Rate = Annotated[float, Interval(ge=0, lt=1)]  # probability of a dropout in a configuration
# The patterns of a step: ROWS rows of WIDTH factors. Each token and each WIDTH of its features use
# one of the rows, so a step needs few random numbers, however many features are dropped.
ROWS = 1024  # 2^10
ROW_SHIFT = 64 - 10  # the upper 10 bits of an int64 select a row
WIDTH = 64
# Numbers of layers and of parts of WIDTH features that have constants of their own.
LAYERS = 1024
FEATURE_PARTS = 256
MAX_SEED = 2**62

# Odd multipliers that spread consecutive numbers over all 64 bits.
SAMPLE_FACTOR = 0x1E3779B97F4A7C15
TOKEN_FACTOR = 0x5851F42D4C957F2D
INDEX_FACTOR = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True)
class Step:
    """The random numbers of a training step.

    Args:
        samples: (B,) int64. A random number per sample of the batch.
        factor: () int64. An odd random number.
        constants: (LAYERS, FEATURE_PARTS) int64. Odd random numbers that do not depend on the step.
        patterns: (ROWS, WIDTH) factors for each rate and dtype that was used.
    """

    samples: Tensor
    factor: Tensor
    constants: Tensor
    patterns: dict[tuple[float, torch.dtype], Tensor] = field(default_factory=dict)

    def draw(self, numbers: Tensor, layer: int, count: int = 1) -> Tensor:
        """Return `count` random int64 (..., count) for each random number (...) int64."""
        constants = self.constants[layer % LAYERS]
        if count > FEATURE_PARTS:
            constants = constants.repeat(-(-count // FEATURE_PARTS))
        return numbers[..., None] * constants[:count]


@dataclass(frozen=True, slots=True)
class Keys:
    """The numbers that select the masks of the tokens of a batch.

    Args:
        step: The step.
        samples: int64, broadcastable to the shape of `tokens`. A random number per sample.
        tokens: (...) int64. A random number per token. The shape is that of the tensor without its
            features.
    """

    step: Step
    samples: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, shape: torch.Size, device: torch.device) -> Keys:
        """Return the keys of a tensor whose axes before the features are shape (B, ...).

        Samples have the numbers of the step in progress (see `keyed`), or random ones outside of a
        step. The other axes are counted.

        Raises:
            ValueError: If the first axis is not the batch of the step in progress.
        """
        step = _step
        if step is None:
            step = _start(torch.arange(shape[0]), int(torch.randint(MAX_SEED, ())), device)
        if len(step.samples) != shape[0]:
            raise ValueError(
                f"the first axis of a tensor must be the batch of {len(step.samples)} samples, got "
                f"the shape {(*shape, 'D')}: apply the dropout before samples and tokens share an "
                "axis, or pass the keys of the tokens"
            )
        tokens = step.samples
        for size in shape[1:]:
            # From 1, so that the tokens of sequences without padding have the keys of `of_mask`.
            numbers = torch.arange(1, size + 1, device=device)
            tokens = mix(tokens[..., None] + numbers * TOKEN_FACTOR)
        return cls(step, step.samples.view(-1, *[1] * (len(shape) - 1)), tokens)

    @classmethod
    def of_mask(cls, mask: Tensor, index: Tensor | None = None) -> Keys:
        """Return the keys of the real tokens of sequences with mask (B, N) bool.

        Padding does not count as a token.

        Args:
            mask: True at real tokens.
            index: (T,). Tokens that are selected among all B N tokens. Default: (B, N), all tokens.
        """
        keys = cls.of(mask.shape[:1], mask.device)
        samples = keys.samples[:, None]
        tokens = mix(samples + mask.cumsum(1) * TOKEN_FACTOR)
        if index is None:
            return cls(keys.step, samples, tokens)
        return cls(keys.step, samples.expand_as(mask).flatten()[index], tokens.flatten()[index])


class Dropout(nn.Module):
    """Sets each element to zero with probability `rate` in training (arXiv:1207.0580).

    The distribution is that of `torch.nn.Dropout`. On a CPU, it takes a fraction of the time.

    Args:
        rate: Probability that an element becomes zero. The others are scaled to keep the expected
            value.
        drop_path: Probability that all elements of a sample become zero, for a residual branch
            (stochastic depth, arXiv:1603.09382).
    """

    @checked
    def __init__(self, rate: Rate, drop_path: Rate = 0.0):
        super().__init__()
        self.rate = rate
        self.drop_path = drop_path
        self.layer = next(_layers)

    def forward(self, x: Tensor, keys: Keys | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Apply dropout to x (..., D).

        Args:
            x: (B, ..., D), or a tensor whose axes before the last are those of `keys`.
            keys: Keys of the tokens. Default: `Keys.of` the shape of x.
            mask: (B, N) bool. False at padding between the tokens of x (B, N, D), without keys.
        """
        if not self.training or not (self.rate or self.drop_path):
            return x
        if mask is not None:
            keys = Keys.of_mask(mask)
        elif keys is None:
            keys = Keys.of(x.shape[:-1], x.device)
        x = drop(x, self.rate, keys, self.layer)
        if self.drop_path:
            # One draw per sample, which applies to all of its tokens.
            draws = keys.step.draw(keys.samples, self.layer)
            x = x * (keep_mask(draws, self.drop_path).to(x.dtype) * (1 / (1 - self.drop_path)))
        return x

    def extra_repr(self) -> str:
        """Show the rates when the module is printed."""
        return f"{self.rate}" + (f", drop_path={self.drop_path}" if self.drop_path else "")


def keep_mask(draws: Tensor, rate: float) -> Tensor:
    """Return False where random int64 numbers select the dropout, with probability `rate`."""
    return draws >= int(rate * 2**64) - 2**63


def drop(x: Tensor, rate: float, keys: Keys, layer: int = 0) -> Tensor:
    """Set each element of x (..., D) to zero with probability `rate`, and scale the others.

    The factor 1 / (1 - rate) keeps the expected value.

    Args:
        x: A tensor whose axes before the last are those of `keys`.
        rate: Probability in [0, 1).
        keys: Keys of the tokens.
        layer: Number of the layer. Layers with different numbers have different masks.
    """
    if rate == 0:
        return x
    step = keys.step
    is_compiling = torch.compiler.is_compiling()
    # In a compiled model, the patterns become part of a kernel. A look into the dictionary would
    # compile it again.
    patterns = None if is_compiling else step.patterns.get((rate, x.dtype))
    if patterns is None:
        numbers = step.constants.view(-1)[: ROWS * WIDTH].view(ROWS, WIDTH) * step.factor
        patterns = keep_mask(numbers, rate).to(x.dtype) * (1 / (1 - rate))
        if not is_compiling:
            step.patterns[rate, x.dtype] = patterns
    draws = step.draw(keys.tokens, layer, -(-x.shape[-1] // WIDTH))
    select = _select_op if is_compiling and x.device.type == "cpu" else _select
    return x * select(patterns, draws)[..., : x.shape[-1]]


def mix(keys: Tensor) -> Tensor:
    """Hash int64 numbers to numbers from 0 to 2^63 - 1. Similar numbers have unrelated hashes.

    These are the multiplications and shifts of SplitMix64 (doi:10.1145/2714064.2660195, figure 15).
    Overflows are intended. A shift repeats the sign, so the last line removes it.
    """
    keys = (keys ^ (keys >> 30)) * -0x40A7B892E31B1A47
    keys = (keys ^ (keys >> 27)) * -0x6B2FB644ECCEEE15
    return keys ^ (keys >> 31)


def number_layers(model: nn.Module) -> None:
    """Number the dropouts of a model, so that the masks do not depend on other models."""
    layers = (module for module in model.modules() if isinstance(module, Dropout))
    for number, module in enumerate(layers):
        module.layer = number


@contextmanager
def keyed(samples: Tensor, seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Draw all dropouts inside of the context from the numbers of a training step.

    The backward pass belongs to the context, because activation checkpointing computes layers
    again there.

    Args:
        samples: (B,) int64. A number that identifies each sample, on the CPU.
        seed: Seed of the step, from 0 to MAX_SEED - 1.
        device: Device of the masks. Default: the CPU.
    """
    with _use(_start(samples, seed, device or samples.device)):
        yield


@contextmanager
def selected(rows: Tensor, salt: int = 0) -> Iterator[None]:
    """Inside of the context, a batch consists of these rows (b,) of the batch.

    Args:
        rows: Indices of the samples.
        salt: A number that makes the masks differ from those of other selections.
    """
    if _step is None:
        yield
        return
    with _use(replace(_step, samples=mix(_step.samples[rows] + salt))):
        yield


@contextmanager
def _use(step: Step) -> Iterator[None]:
    # Not a context variable: torch runs the backward pass of a GPU in another thread.
    global _step
    before, _step = _step, step
    try:
        yield
    finally:
        _step = before


def _start(samples: Tensor, seed: int, device: torch.device) -> Step:
    # Hashed before the transfer: the GPU need not start kernels for so few numbers, and the
    # processor need not wait for it.
    samples = mix(samples * SAMPLE_FACTOR + seed).to(device, non_blocking=True)
    factor = torch.full((), random.Random(seed).getrandbits(63) | 1, device=device)
    return Step(samples, factor, _constants(device))


def _select(patterns: Tensor, draws: Tensor) -> Tensor:
    """Return (..., P WIDTH): rows of patterns (ROWS, WIDTH), as random int64 (..., P) say."""
    # A shift repeats the sign.
    index = (draws >> ROW_SHIFT) & (ROWS - 1)
    return patterns.index_select(0, index.flatten()).view(*draws.shape[:-1], -1)


# torch.compile cannot look into an operator, so it calls this one as it is. Inside of a kernel, it
# would compute the row of a token again for each of its features, which takes a CPU long. On other
# devices, the whole dropout is part of the kernel before or after it.
@torch.library.custom_op("dxn::select", mutates_args=())
def _select_op(patterns: Tensor, draws: Tensor) -> Tensor:
    return _select(patterns, draws)


@_select_op.register_fake
def _(patterns: Tensor, draws: Tensor) -> Tensor:
    return patterns.new_empty(*draws.shape[:-1], draws.shape[-1] * WIDTH)


@cache
def _constants(device: torch.device) -> Tensor:
    """Return odd random numbers (LAYERS, FEATURE_PARTS) for a device."""
    with torch.inference_mode(False):
        numbers = mix(torch.arange(1, LAYERS * FEATURE_PARTS + 1) * INDEX_FACTOR) * 2 + 1
        return numbers.view(LAYERS, FEATURE_PARTS).to(device)


# Each layer has another number at first, see `number_layers`.
_layers = itertools.count()
_step: Step | None = None
