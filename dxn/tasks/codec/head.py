"""The head of a codec: encoded tokens become codes, and codes become the values of the patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import Keys
from dxn.core.tokens import Tokens
from dxn.tasks.space import Batch
from dxn.tokenize.patches import ResidualConv
from dxn.tokenize.positions import PosEmbed1d

if TYPE_CHECKING:
    from dxn.tasks.codec.task import Codec, CodecTarget

MAX_CODES = 2**20  # of one stage
FEATURES = 16  # of a cell of a patch
CONVS = 2  # before the layer whose outputs are values


class FiniteScalars(nn.Module):
    """Rounds each of d numbers to one of a few levels (FSQ, arXiv:2309.15505, section 3.1).

    A number is limited to -1 to 1 by tanh, and rounded to one of L levels with equal distances.
    The levels of all numbers together are a code. Gradients pass the rounding unchanged. With
    several stages, each rounds what the previous one left over, on a grid that is finer by the
    factor L - 1, so that the first codes alone are a coarse version.

    Args:
        levels: Number of levels L of each of the d numbers.
        stages: Number R of codes per vector.

    Raises:
        ValueError: If a number of levels is below 2, or below 3 with several stages, or there are
            too many codes.
    """

    counts: Tensor
    factors: Tensor

    def __init__(self, levels: Sequence[int], *, stages: int = 1):
        super().__init__()
        check_levels(levels, stages)
        self.stages = stages
        self.num_codes = math.prod(levels)
        steps = torch.tensor(list(levels))
        self.register_buffer("counts", steps, persistent=False)
        factors = torch.cat([torch.ones(1).long(), steps.cumprod(0)[:-1]])
        self.register_buffer("factors", factors, persistent=False)

    @property
    def width(self) -> int:
        """Number d of numbers of a vector."""
        return len(self.counts)

    def forward(self, z: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rounded vectors (..., d), from -1 to 1, and their codes (..., R).

        Args:
            z: Any numbers (..., d).
            noise: (..., d). Numbers from -1 to 1, by which numbers are moved by up to half a level
                of the last stage before they are rounded. None: they are not moved.
        """
        x = z.tanh()
        highest = self.counts - 1
        rest = x.detach()
        if noise is not None:
            rest = (rest + noise * highest.to(x.dtype) ** -self.stages).clamp(-1, 1)
        total = torch.zeros_like(rest)
        codes: list[Tensor] = []
        for stage in range(self.stages):
            scale = highest.to(x.dtype) ** -stage
            index = ((rest / scale + 1) / 2 * highest).round()
            index = index.clamp(torch.zeros_like(highest), highest)
            value = (2 * index / highest - 1) * scale
            total, rest = total + value, rest - value
            codes.append((index.long() * self.factors).sum(-1))
        return x + (total - x.detach()), torch.stack(codes, -1)

    def distance(self, z: Tensor) -> Tensor:
        """Return the distance of each number (..., d) from its middle level, before the rounding.

        The unit is a level of the first stage, and distances are fractions of it too. The middle of
        an even number of levels is the upper one of the two in the middle.
        """
        half = (self.counts - 1) / 2
        return (z.tanh() * half - (self.counts // 2 - half)).abs()

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the rounded vectors (..., d) of codes (..., R)."""
        highest = self.counts - 1
        index = codes[..., None] // self.factors % self.counts  # (..., R, d)
        stage = torch.arange(codes.shape[-1], device=codes.device)[:, None]
        scale = highest.float() ** -stage
        return ((2 * index / highest - 1) * scale).sum(-2)


def check_levels(levels: Sequence[int], stages: int) -> None:
    """Check the numbers of levels.

    Raises:
        ValueError: If a number is below 2, or below 3 with several stages, or there are too many
            codes.
    """
    if not levels or min(levels) < 2 or math.prod(levels) > MAX_CODES:
        raise ValueError(
            f"levels must be numbers of at least 2 with a product of at most {MAX_CODES:,}, got "
            f"{list(levels)}"
        )
    # The grid of a second stage is finer by the factor L - 1, which is 1 with two levels.
    if stages > 1 and min(levels) < 3:
        raise ValueError(
            f"levels must be at least 3 with stages={stages}, because a second stage of two levels "
            f"is no more exact than the first one, got {list(levels)}"
        )


@dataclass(frozen=True, slots=True)
class Coded:
    """Output of the head.

    Args:
        values: (B, N, K). Normalized values of the patches.
        codes: (B, M, R). Codes, of which those of padding have no meaning.
        mask: (B, M) bool. True at real codes.
        distance: (B,). Distances of all numbers of the codes of a sample from their middle level.
    """

    values: Tensor
    codes: Tensor
    mask: Tensor
    distance: Tensor


class PatchDecoder(nn.Module):
    """Maps tokens to the values of their patches.

    A linear layer gives each cell of a patch, such as a pixel, a few features. Convolutions over
    the joined patches follow, so that outlines go on across patches.

    Args:
        dim: Width D of a token.
        target: The values of the patches. Its size is that of the largest sample.
    """

    def __init__(self, dim: int, target: CodecTarget):
        super().__init__()
        self.target = target
        self.contents = target.contents
        self.features = nn.Linear(dim, FEATURES * math.prod(self.contents.grid.size))
        self.convs = nn.ModuleList(ResidualConv(FEATURES, (3, 3), (1, 1)) for _ in range(CONVS))
        self.out = nn.Conv2d(FEATURES, self.contents.channels, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the normalized values (B, N, K).

        Args:
            x: (B, N, D).
            mask: (B, N) bool. True at the real patches.
        """
        grid, (_, height, width) = self.contents.grid, self.target.size
        across = grid.count(width, 1)
        # Pictures and frames have one size. Other samples are joined along time, whatever the
        # length of the longest one of the batch is.
        is_picture = self.contents.peak is not None
        down = grid.count(height, 0) if is_picture else x.shape[1] // across
        sizes = {"h": down, "w": across, "p": grid.size[0], "q": grid.size[1]}
        x = rearrange(self.features(x), "b (g h w) (f p q) -> (b g) f (h p) (w q)", **sizes)
        inside = repeat(mask, "b (g h w) -> (b g) 1 (h p) (w q)", **sizes)
        # Padding is 0 in each layer, so that other samples have no effect.
        x = x.contiguous(memory_format=torch.channels_last) * inside
        for conv in self.convs:
            x = conv(x, inside)
        x = self.out(x)
        return rearrange(
            x, "(b g) c (h p) (w q) -> b (g h w) (c p q)", b=len(mask), **sizes
        ).float()


class CodecHead(nn.Module):
    """Rounds encoded tokens to codes, and decodes these by a second transformer.

    Args:
        task: The task, whose target is bound to the input.
        dim: Width D of a token.
    """

    def __init__(self, task: Codec, dim: int):
        super().__init__()
        self.input = task.target.input
        self.scalars = FiniteScalars(task.levels, stages=task.stages)
        self.down = nn.Linear(dim, self.scalars.width)
        self.up = nn.Linear(self.scalars.width, dim)
        # Sinusoids reach any number of columns, and a linear layer of them is as free as a table.
        self.codes_embed = PosEmbed1d("sinusoidal", dim=dim, max_len=0)
        self.places = nn.Linear(dim, dim)
        self.decoder = task.decoder()
        self.out = PatchDecoder(dim, task.target)

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Coded:
        """Return the decoded values and the codes."""
        coded = tokens.select(self.input)
        z = self.down(coded.x).float()
        noise = None
        if self.training:
            # So a code does not depend on small changes of the value, and is easier to predict.
            keys = Keys.of_mask(coded.mask)
            noise = keys.step.draw(keys.tokens, 0, z.shape[-1]).to(z.dtype) / 2**63
        vectors, codes = self.scalars(z, noise)
        distance = (self.scalars.distance(z) * coded.mask[..., None]).sum((1, 2))
        return Coded(self._decoded(vectors, coded), codes, coded.mask, distance)

    def codes(self, tokens: Tokens) -> Tensor:
        """Return the codes (B, M, R) of encoded tokens."""
        return self.scalars(self.down(tokens.select(self.input).x).float())[1]

    def values(self, codes: Tensor, mask: Tensor) -> Tensor:
        """Return the normalized values (B, N, K) of the patches.

        Args:
            codes: (B, M, R). With fewer than R codes of a token, the result is coarser.
            mask: (B, N) bool. True at the real patches.
        """
        return self._decoded(self.scalars.vectors(codes), Tokens(codes, mask))

    def _decoded(self, vectors: Tensor, coded: Tokens) -> Tensor:
        x = self.up(vectors.to(self.up.weight.dtype))
        x = x + self.places(self.codes_embed(x.shape[1], x.device).to(x.dtype))
        return self.out(self.decoder(Tokens(x, coded.mask, (), coded.num_real)).x, coded.mask)
