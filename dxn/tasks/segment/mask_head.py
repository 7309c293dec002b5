"""The head of segmentation with learned queries: each has a class and a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.models.pooling import registers_of
from dxn.tasks.segment.tiles import TiledHead
from dxn.tasks.space import Batch
from dxn.tokenize.patches import PatchGrid

NORM_EPS = 1e-6


class MaskQueries(NamedTuple):
    """The output of the queries.

    Args:
        classes: (B, M, K + 1). Logits of the classes of each query; the last one is no segment.
        masks: (B, M, h, w). Logits of whether each part of the picture belongs to the query.
    """

    classes: Tensor
    masks: Tensor


class MaskHead(TiledHead):
    """Maps each of the last registers of the fusion to a class and a mask (arXiv:2503.19108).

    A mask is the product of a query and the tokens of the picture, whose resolution is increased.
    In training, and if the segments are objects, the output is `MaskQueries`. Otherwise, it is the
    logarithm (B, K, H, W) of the sum over the queries of the probability of their class times that
    of the pixel.

    Args:
        dim: Width D of a token.
        num_classes: Number K of classes.
        input: Name of the input.
        grid: Patches of the input.
        queries: Number M of registers.
        upscale: How often the resolution of the tokens is doubled.
        tile: See `TiledHead`.
        instances: Whether the segments are objects.
        dropout: Dropout probability of the tokens and queries.
    """

    # As in training, all pixels of a tile count alike.
    min_overlap = 0.0

    def __init__(
        self,
        dim: int,
        *,
        num_classes: int,
        input: str,
        grid: PatchGrid,
        queries: int,
        upscale: int = 2,
        tile: int = 0,
        instances: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__(input, tile)
        self.instances = instances
        self.grid = grid
        self.queries = queries
        self.dropout = Dropout(dropout)
        self.classes = nn.Linear(dim, num_classes + 1)
        self.masks = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        self.upscale = nn.ModuleList(Upscale(dim) for _ in range(upscale))

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor | MaskQueries:
        """Return the output of the queries, or that of the pixels.

        Raises:
            UserError: If the fusion has fewer registers than there are queries.
        """
        found = self.found(tokens, batch)
        return found if self.training or self.instances else self.per_pixel(found, batch)

    def found(self, tokens: Tokens, batch: Batch) -> MaskQueries:
        """Return the classes and the masks of the queries."""
        part = batch[self.input]
        height, width = part["pixels"].shape[-2:]
        queries = registers_of(tokens, self.input, self.queries, option="head.queries").x
        queries = self.dropout(queries)
        own = tokens.select(self.input)
        # The patches are the last columns; there can be class tokens before them.
        down, across = self.grid.count(height, 0), self.grid.count(width, 1)
        x = self.dropout(own.x)[:, own.x.shape[1] - down * across :]
        x = rearrange(x, "b (h w) d -> b d h w", h=down)
        inside = None
        if not own.has_no_padding:
            inside = own.mask[:, own.x.shape[1] - down * across :].unflatten(1, (down, across))
        for layer in self.upscale:
            x, inside = layer(x, inside)
        masks = torch.einsum("b m d, b d h w -> b m h w", self.masks(queries), x)
        if inside is not None:
            masks = repeated_edges(masks, inside)
        return MaskQueries(self.classes(queries), masks)

    def per_pixel(self, found: MaskQueries, batch: Batch) -> Tensor:
        """Return the logarithm (B, K, H, W) of the scores of the classes of each pixel."""
        size = batch[self.input]["pixels"].shape[-2:]
        masks = at_pixels(found.masks, self.grid, len(self.upscale), size).sigmoid()
        classes = found.classes.float().softmax(-1)[..., :-1]
        scores = torch.einsum("b m k, b m h w -> b k h w", classes, masks)
        return scores.clamp(min=torch.finfo(scores.dtype).tiny).log()

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return the logarithm of the mean of the scores of tiles that overlap."""
        if self.training or not self.tile:
            return output_of(batch)
        scores = super().over_parts(batch, lambda tiles: output_of(tiles).exp())
        return scores.clamp(min=torch.finfo(scores.dtype).tiny).log()

    def tile_weight(self, length: int, like: Tensor) -> Tensor:
        """Return the same weight (length,) for all pixels of a tile."""
        return like.new_ones(length)


class Upscale(nn.Module):
    """Doubles the resolution of features (B, D, h, w)."""

    def __init__(self, dim: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        self.mix = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS)

    def forward(self, x: Tensor, inside: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return features (B, D, 2h, 2w), and where they are no padding.

        Args:
            x: (B, D, h, w).
            inside: (B, h, w) bool. False at padding. None: there is none.
        """
        x = F.gelu(self.up(x))
        if inside is not None:
            inside = inside.repeat_interleave(2, 1).repeat_interleave(2, 2)
            # Padding is 0 before the convolution, so that other samples have no effect.
            x = x * inside[:, None]
        x = self.mix(x).movedim(1, -1)
        return self.norm(x).movedim(-1, 1), inside


def covered(masks: Tensor, grid: PatchGrid, upscale: int) -> tuple[int, int]:
    """Return the height and width in pixels that masks (..., h, w) cover."""
    height, width = masks.shape[-2:]
    return height * grid.stride[0] >> upscale, width * grid.stride[1] >> upscale


def at_pixels(masks: Tensor, grid: PatchGrid, upscale: int, size: Sequence[int]) -> Tensor:
    """Return masks (B, M, h, w) with the height and width of the pictures of a batch."""
    whole = covered(masks, grid, upscale)
    pixels = F.interpolate(masks.float(), whole, mode="bilinear", align_corners=False)
    return pixels[..., : size[0], : size[1]]


def repeated_edges(masks: Tensor, inside: Tensor) -> Tensor:
    """Return masks (B, M, h, w) whose padding is that of the nearest part of the picture.

    Args:
        masks: The masks.
        inside: (B, h, w) bool. False at padding, which is at the end.
    """
    for axis in (1, 2):
        count = inside.any(3 - axis).sum(1)
        index = torch.arange(inside.shape[axis], device=masks.device)
        index = torch.minimum(index, count[:, None].clamp(min=1) - 1)
        index = index[:, None, :, None] if axis == 1 else index[:, None, None]
        # Not take_along_dim, which makes the number of samples a constant of an exported graph.
        masks = masks.gather(axis + 1, index.expand_as(masks))
    return masks
