"""Dropout and stochastic depth, with masks that do not depend on the rest of the batch.

A mask is a hash of the training step, the sample, the token and the layer. So a sample gets the
same mask in a batch of any size, with any amount of padding, and in any of several processes.

Each part of the features of a token has a key: a hash that is computed once per step. The draw of
a layer is the product of the key and a random constant of the layer, modulo 2^64. As in a
multiplicative congruential generator, the upper bits of such products are uniform and independent
for random keys, unless small multiples of two constants are equal.
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

Rate = Annotated[float, Interval(ge=0, lt=1)]  # probability of a dropout in a configuration
# Random numbers of a step: ROWS rows of WIDTH numbers. Each token and each WIDTH of its features
# use one of the rows, so a step needs few random numbers, however many features are dropped.
ROWS = 1024  # 2^10
ROW_SHIFT = 64 - 10  # the upper 10 bits of an int64 select a row
WIDTH = 64
COUNT = ROWS * WIDTH  # constants that all steps share
MAX_SEED = 2**62
# Layers have different constants, and COUNT / MAX_LAYERS branches of each layer have too.
MAX_LAYERS = 2048

# Odd multipliers that spread consecutive numbers over all 64 bits.
ROW_FACTOR = 0x1E3779B97F4A7C15
TOKEN_FACTOR = 0x5851F42D4C957F2D
INDEX_FACTOR = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True)
class Noise:
    """The random numbers of a training step.

    Args:
        rows: (B,) int64. A random number per sample of the batch.
        step: () int64. An odd random number.
        constants: (COUNT,) int64. Odd random numbers that do not depend on the step.
        cache: Results of `factors`.
    """

    rows: Tensor
    step: Tensor
    constants: Tensor
    cache: dict[tuple[float, torch.dtype], Tensor] = field(default_factory=dict)

    @classmethod
    def of_step(cls, samples: Tensor, seed: int, device: torch.device | None = None) -> Noise:
        """Create the random numbers of a step.

        Args:
            samples: (B,) int64. A number that identifies each sample, on the CPU.
            seed: Seed of the step, from 0 to MAX_SEED - 1.
            device: Device of the masks. Default: the CPU.
        """
        device = device or samples.device
        # Hashed before the transfer: the GPU need not start kernels for so few numbers, and the
        # processor need not wait for it.
        rows = mix(samples * ROW_FACTOR + seed).to(device, non_blocking=True)
        step = torch.full((), random.Random(seed).getrandbits(63) | 1, device=device)
        return cls(rows, step, _constants(device))

    @classmethod
    def random(cls, count: int, device: torch.device) -> Noise:
        """Create random numbers for `count` samples from the global random generator."""
        return cls.of_step(torch.arange(count), int(torch.randint(MAX_SEED, ())), device)

    def salts(self, size: int) -> Tensor:
        """Return (size,) int64: a constant for each of the numbers from 0 to size - 1."""
        return self.constants[:size] if size <= COUNT else _hashes(size, self.constants.device)

    def draw(self, keys: Tensor, layer: int) -> Tensor:
        """Return a random int64 for each of the keys (...) int64, which are random themselves."""
        return keys * self.constants[layer % COUNT]

    def factors(self, rate: float, dtype: torch.dtype) -> Tensor:
        """Return random factors (ROWS, WIDTH): 0 with probability `rate`, otherwise 1 / (1 - rate).

        Calls with the same rate return the same numbers.
        """
        key = rate, dtype
        # In a compiled model, the result becomes part of a kernel. A check of the cache would
        # compile it again.
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and key in self.cache:
            return self.cache[key]
        factors = _keep_factors(self.constants.view(ROWS, WIDTH) * self.step, rate, dtype)
        if not is_compiling:
            self.cache[key] = factors
        return factors


@dataclass(frozen=True, slots=True)
class Keys:
    """The numbers that select the masks of the tokens of a batch.

    Args:
        noise: Random numbers of the step.
        tokens: (...) int64. A random number per token. The shape is that of the tensor without its
            features.
        rows: int64, broadcastable to the shape of `tokens`. A random number per sample.
        cache: Results of `parts`.
    """

    noise: Noise
    tokens: Tensor
    rows: Tensor
    cache: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: torch.Size, device: torch.device) -> Keys:
        """Return the keys of a tensor whose axes before the features are shape (B, ...).

        Samples have the numbers of the step in progress (see `keyed`), or random ones outside of a
        step. The other axes are counted.

        Raises:
            ValueError: If the first axis is not the batch of the step in progress.
        """
        noise = Noise.random(shape[0], device) if _noise is None else _noise
        if len(noise.rows) != shape[0]:
            raise ValueError(
                f"the first axis of a tensor must be the batch of {len(noise.rows)} samples, got "
                f"the shape {(*shape, 'D')}: apply the dropout before samples and tokens share an "
                "axis, or pass the keys of the tokens"
            )
        rows = noise.rows.view(-1, *[1] * (len(shape) - 1))
        tokens = rows
        for axis, size in enumerate(shape[1:], 1):
            salts = noise.salts(size).view(-1, *[1] * (len(shape) - 1 - axis))
            tokens = mix(tokens + salts)
        return cls(noise, tokens, rows)

    @classmethod
    def of_mask(cls, mask: Tensor) -> Keys:
        """Return the keys of sequences with mask (B, N) bool: padding does not count as a token."""
        keys = cls.of(mask.shape[:1], mask.device)
        rows = keys.rows[:, None]
        return cls(keys.noise, mix(rows + mask.cumsum(1) * TOKEN_FACTOR), rows)

    def flatten(self) -> Keys:
        """Return the keys of all tokens in one axis."""
        rows = self.rows.expand_as(self.tokens).flatten()
        return Keys(self.noise, self.tokens.flatten(), rows)

    def select(self, index: Tensor) -> Keys:
        """Return the keys of the tokens of index (T,), among all tokens in one axis."""
        keys = self.flatten()
        return Keys(self.noise, keys.tokens[index], keys.rows[index])

    def parts(self, width: int) -> Tensor:
        """Return keys (..., P) int64 of the parts of WIDTH features of tokens with `width` ones.

        All layers use them, so each of them starts fewer kernels.
        """
        count = -(-width // WIDTH)
        parts = self.cache.get(count)
        if parts is None:
            parts = mix(self.tokens[..., None] + self.noise.salts(count))
            if not torch.compiler.is_compiling():
                self.cache[count] = parts
        return parts


class Dropout(nn.Module):
    """Sets each element to zero with probability `rate` in training (arXiv:1207.0580).

    The distribution is that of `torch.nn.Dropout`. On a CPU, it takes a fraction of the time.
    """

    def __init__(self, rate: float):
        super().__init__()
        check_rate("dropout", rate)
        self.rate = rate
        self.layer = next(_layers)

    def forward(
        self,
        x: Tensor,
        keys: Keys | None = None,
        *,
        mask: Tensor | None = None,
        branch: int = 0,
    ) -> Tensor:
        """Apply dropout to x (..., D).

        Args:
            x: (B, ..., D), or a tensor whose axes before the last are those of `keys`.
            keys: Keys of the tokens. Default: `Keys.of` the shape of x.
            mask: (B, N) bool. False at padding between the tokens of x (B, N, D).
            branch: Number of the tensor, if a model applies the module to several of them.
        """
        if not self.training or self.rate == 0:
            return x
        if mask is not None:
            keys = Keys.of_mask(mask)
        return drop(x, self.rate, keys, layer=self.layer + MAX_LAYERS * branch)

    def extra_repr(self) -> str:
        """Show the rate when the module is printed."""
        return f"{self.rate}"


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch for random samples in training.

    The branch of the other samples is scaled to keep the expected value. See arXiv:1603.09382.
    """

    def __init__(self, rate: float):
        super().__init__()
        check_rate("drop_path", rate)
        self.rate = rate
        self.layer = next(_layers)

    def forward(self, x: Tensor, keys: Keys | None = None, *, branch: int = 0) -> Tensor:
        """Apply stochastic depth to the output x (B, ..., D) of a branch.

        Args:
            x: (B, ..., D), or a tensor whose axes before the last are those of `keys`.
            keys: Keys of the tokens. Default: `Keys.of` the shape of x.
            branch: Number of the branch.
        """
        if not self.training or self.rate == 0:
            return x
        if keys is None:
            keys = Keys.of(x.shape[:-1], x.device)
        # One draw per sample, which applies to all of its tokens.
        draws = keys.noise.draw(keys.rows, self.layer + MAX_LAYERS * branch)
        return x * _keep_factors(draws, self.rate, x.dtype)[..., None]


def check_rate(name: str, rate: float) -> None:
    """Raise a ValueError if the dropout probability `name` is outside [0, 1)."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {rate}")


def drop(x: Tensor, rate: float, keys: Keys | None = None, *, layer: int = 0) -> Tensor:
    """Set each element of x (B, ..., D) to zero with probability `rate`, and scale the others.

    The factor 1 / (1 - rate) keeps the expected value.

    Args:
        x: (B, ..., D), or a tensor whose axes before the last are those of `keys`.
        rate: Probability in [0, 1).
        keys: Keys of the tokens. Default: `Keys.of` the shape of x.
        layer: Number of the layer. Layers with different numbers have different masks.
    """
    if rate == 0:
        return x
    if keys is None:
        keys = Keys.of(x.shape[:-1], x.device)
    select = _select_op if _is_compiling_for_cpu(x) else _select
    draws = keys.noise.draw(keys.parts(x.shape[-1]), layer)
    factors = select(keys.noise.factors(rate, x.dtype), draws)
    return x * factors[..., : x.shape[-1]]


def threshold(rate: float) -> int:
    """Return the number below which a random int64 is with probability `rate`, in (0, 1)."""
    return int(rate * 2**64) - 2**63


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
    layers = (m for m in model.modules() if isinstance(m, Dropout | DropPath))
    for number, module in enumerate(layers):
        module.layer = number


@contextmanager
def keyed(noise: Noise) -> Iterator[None]:
    """Use these random numbers for all dropouts inside of the context.

    The backward pass belongs to the context, because activation checkpointing computes layers
    again there.
    """
    # Not a context variable: torch runs the backward pass of a GPU in another thread.
    global _noise
    before, _noise = _noise, noise
    try:
        yield
    finally:
        _noise = before


@contextmanager
def selected(rows: Tensor, salt: int = 0) -> Iterator[None]:
    """Inside of the context, a batch consists of these rows (b,) of the batch.

    Args:
        rows: Indices of the samples.
        salt: A number below COUNT that makes the masks differ from those of other selections.
    """
    if _noise is None:
        yield
        return
    with keyed(replace(_noise, rows=mix(_noise.draw(_noise.rows[rows], salt)))):
        yield


def _keep_factors(draws: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Return 0 where random int64 numbers select the dropout, otherwise 1 / (1 - rate)."""
    return (draws >= threshold(rate)).to(dtype) * (1 / (1 - rate))


def _select(table: Tensor, draws: Tensor) -> Tensor:
    """Return (..., P WIDTH): rows of table (ROWS, WIDTH), as random int64 draws (..., P) say."""
    # A shift repeats the sign.
    index = (draws >> ROW_SHIFT) & (ROWS - 1)
    return table.index_select(0, index.flatten()).view(*draws.shape[:-1], -1)


# torch.compile cannot look into an operator, so it calls this one as it is. Inside of a kernel, it
# would compute the row of a token again for each of its features, which takes a CPU long. On other
# devices, the whole dropout is part of the kernel before or after it.
@torch.library.custom_op("dxn::select", mutates_args=())
def _select_op(table: Tensor, draws: Tensor) -> Tensor:
    return _select(table, draws)


@_select_op.register_fake
def _(table: Tensor, draws: Tensor) -> Tensor:
    return table.new_empty(*draws.shape[:-1], draws.shape[-1] * WIDTH)


@cache
def _constants(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _hashes(COUNT, torch.device("cpu")).to(device)


def _hashes(size: int, device: torch.device) -> Tensor:
    """Return odd random numbers (size,), which depend only on their index."""
    return mix(torch.arange(1, size + 1, device=device) * INDEX_FACTOR) * 2 + 1


def _is_compiling_for_cpu(x: Tensor) -> bool:
    return torch.compiler.is_compiling() and x.device.type == "cpu"


# Each layer has another number at first, see `number_layers`.
_layers = itertools.count()
_noise: Noise | None = None
