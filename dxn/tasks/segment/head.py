"""The heads of segmentation: logits of each pixel, or a class and a mask of each learned query.

Large pictures are divided into tiles that overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.core.tokens import Tokens
from dxn.models.pooling import registers_of
from dxn.tasks.segment.target import tile_of
from dxn.tasks.space import Batch
from dxn.tokenize.base import pad
from dxn.tokenize.image.normalization import normalize_pixels
from dxn.tokenize.patches import PatchGrid, ResidualConv, activated, grid_mask

if TYPE_CHECKING:
    from dxn.tasks.segment.task import Segment

KEYS = ("pixels", "sizes", "pixel_map")  # of a prepared picture
MAX_TILES = 16  # that are encoded at once
MIN_OVERLAP = 0.25  # of neighbouring tiles, as a fraction of their length
EPSILON = 1e-6  # of the weights, where a picture is padding
MAX_LEVELS = 2  # halvings of the resolution of the features of pixels
BLOCKS = 2  # residual convolutions at each lower resolution
NORM_EPS = 1e-6


class TiledHead(nn.Module):
    """A head of which large pictures are divided into tiles outside of a training.

    Args:
        task: The task, whose target is fitted.
    """

    min_overlap = MIN_OVERLAP

    def __init__(self, task: Segment):
        super().__init__()
        self.input = task.target.input
        self.tile = task.tile

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return logits (B, K, H, W), outside of a training as means over tiles that overlap.

        Args:
            batch: Whole pictures.
            output_of: Function that returns the logits of a batch.
        """
        if self.training or not self.tile:
            return output_of(batch)
        part = batch[self.input]
        height, width = part["pixels"].shape[-2:]
        if max(height, width) <= self.tile:
            return output_of(batch)
        sizes = part["sizes"].tolist()
        places = [
            (i, top, left)
            for i, (h, w) in enumerate(sizes)
            for top in starts(h, self.tile, self.min_overlap)
            for left in starts(w, self.tile, self.min_overlap)
        ]
        total = weights = None
        for first in range(0, len(places), MAX_TILES):
            chosen = places[first : first + MAX_TILES]
            samples = []
            for i, top, left in chosen:
                picture = {key: part[key][i] for key in KEYS}
                # Without the padding of the batch.
                picture["pixels"] = picture["pixels"][:, : sizes[i][0], : sizes[i][1]]
                samples.append(tile_of(picture, top, left, self.tile))
            tiles = pad(samples, {})
            tiles["rows"] = torch.arange(len(samples), device=part["rows"].device)
            logits = output_of({"#size": len(samples), self.input: tiles})
            if total is None or weights is None:
                total = logits.new_zeros(batch["#size"], logits.shape[1], height, width)
                weights = logits.new_full((batch["#size"], 1, height, width), EPSILON)
            for (i, top, left), sample, tile_logits in zip(chosen, samples, logits, strict=True):
                h, w = sample["pixels"].shape[-2:]
                row = part["rows"][i]
                weight = (
                    self.tile_weight(h, tile_logits)[:, None] * self.tile_weight(w, tile_logits)
                )[None]
                total[row, :, top : top + h, left : left + w] += weight * tile_logits[:, :h, :w]
                weights[row, :, top : top + h, left : left + w] += weight
        assert total is not None and weights is not None
        return total / weights

    def tile_weight(self, length: int, like: Tensor) -> Tensor:
        """Return the weight (length,) of the pixels of a tile: those in the middle know more."""
        index = torch.arange(length, device=like.device)
        return torch.minimum(index + 1, length - index).to(like.dtype) / length


def starts(length: int, tile: int, min_overlap: float = MIN_OVERLAP) -> list[int]:
    """Return where tiles start that cover a length and overlap by at least a share of a tile."""
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile * (1 - min_overlap))) + 1
    return [i * (length - tile) // (count - 1) for i in range(count)]


class SegmentHead(TiledHead):
    """Maps the tokens of pictures to logits of classes at each pixel.

    Convolutions of the pixels have features at 1, 1/2 and 1/4 of the resolution. Each token is
    mapped to features of the cells of its patch at the lowest resolution, which are added. From
    there to the pixels, the features are doubled in height and width, and those of the pixels are
    added again, as in a U-Net (arXiv:1505.04597). So the edges of areas are as sharp as those of
    the picture, and each token needs few features.

    If each input is encoded alone, the vector of the sample is added to each token, so that other
    inputs also have an effect.

    Args:
        task: The task, whose target is fitted.
        dim: Width D of a token.
        adapter: Adapter of the pictures.
        pooled_dim: Width of the vector of a sample that is added to each token. 0: none is.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, task: Segment, dim: int, adapter: Any, pooled_dim: int = 0):
        super().__init__(task)
        self.grid = adapter.grid
        # Copies, because those of the adapter change in a model that is only used.
        self.register_buffer("mean", adapter.mean.detach().clone())
        self.register_buffer("std", adapter.std.detach().clone())
        self.context = nn.Linear(pooled_dim, dim) if pooled_dim else None
        self.dropout = Dropout(task.dropout)
        self.levels = levels_of(self.grid)
        widths = [task.channels * 2**level for level in range(self.levels + 1)]
        self.cells = (self.grid.stride[0] >> self.levels, self.grid.stride[1] >> self.levels)
        self.features = nn.Linear(dim, widths[-1] * self.cells[0] * self.cells[1])
        # The bias keeps the brightness, which a norm alone would remove.
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2 if i else 1, padding=1)
            for i, (a, b) in enumerate(pairwise([len(self.mean), *widths]))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.blocks = nn.ModuleList(
            nn.ModuleList(ResidualConv(width, (3, 3), (1, 1)) for _ in range(BLOCKS if i else 1))
            for i, width in enumerate(widths)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths))
        self.out = nn.Conv2d(task.channels, len(task.target.labels), 3, padding=1)

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return logits (B, K, H, W) of each pixel of the prepared pictures."""
        part = batch[self.input]
        pixels, sizes, rows = part["pixels"], part["sizes"], part["rows"]
        height, width = pixels.shape[-2:]
        x = tokens.select(self.input).x
        if self.context is not None:
            x = x + self.context(pooled)[:, None]
        x = self.dropout(x).index_select(0, rows)
        # The patches are the last columns; there can be class tokens before them.
        down, across = self.grid.count(height, 0), self.grid.count(width, 1)
        x = self.features(x[:, x.shape[1] - down * across :])
        p, q = self.cells
        x = rearrange(x, "b (h w) (p q c) -> b c (h p) (w q)", h=down, p=p, q=q)
        plain = normalize_pixels(pixels, self.mean, self.std)
        # Padding is 0 in each layer, so that other samples have no effect.
        inside = grid_mask(sizes, height, width)[:, None]
        y = (plain * inside).to(x.dtype).contiguous(memory_format=torch.channels_last)
        levels: list[tuple[Tensor, Tensor]] = []  # features and their mask at each level
        for level, (conv, norm) in enumerate(zip(self.down, self.norms, strict=True)):
            if level:
                sizes = (sizes + 1) // 2  # kernel size 3, stride 2 and padding 1
            y = conv(y)
            inside = grid_mask(sizes, y.shape[2], y.shape[3])[:, None]
            y = activated(y, norm, inside)
            levels.append((y, inside))
        x = y + self._fitted(x, y.shape[2], y.shape[3]) * inside
        for level in reversed(range(len(levels))):
            y, inside = levels[level]
            if level < self.levels:
                x = self.up[level](x)[:, :, : y.shape[2], : y.shape[3]] * inside + y
            for block in cast("nn.ModuleList", self.blocks[level]):
                x = block(x, inside)
        x = self.out(x)
        return x.new_zeros(batch["#size"], *x.shape[1:]).index_copy(0, rows, x)

    def _fitted(self, x: Tensor, height: int, width: int) -> Tensor:
        """Return the features (B, C, height, width) of the cells at the lowest resolution.

        Overlapping patches have features at their centers, so that the edges are repeated.
        """
        pads: list[int] = []
        for axis, length in ((1, width), (0, height)):  # F.pad expects the last axis first
            before = (self.grid.size[axis] - self.grid.stride[axis]) // 2 >> self.levels
            pads += [before, max(length - before - x.shape[2 + axis], 0)]
        if any(pads):
            x = F.pad(x, pads, mode="replicate")
        return x[:, :, :height, :width]


def levels_of(grid: PatchGrid) -> int:
    """Return how often the resolution is halved: the stride of patches must be a multiple of it."""
    return next(n for n in range(MAX_LEVELS, -1, -1) if not any(s % 2**n for s in grid.stride))


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
        task: The task, whose target is fitted.
        dim: Width D of a token.
    """

    # As in training, all pixels of a tile count alike.
    min_overlap = 0.0

    def __init__(self, task: Segment, dim: int):
        super().__init__(task)
        self.instances = task.instances
        self.grid = task.target.grid
        self.queries = task.queries
        self.dropout = Dropout(task.dropout)
        self.classes = nn.Linear(dim, len(task.target.labels) + 1)
        self.masks = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        self.upscale = nn.ModuleList(Upscale(dim) for _ in range(task.upscale))

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor | MaskQueries:
        """Return the output of the queries, or that of the pixels.

        Raises:
            UserError: If the fusion has fewer registers than there are queries.
        """
        output = self.queried(tokens, batch)
        return output if self.training or self.instances else self.per_pixel(output, batch)

    def queried(self, tokens: Tokens, batch: Batch) -> MaskQueries:
        """Return the classes and the masks of the queries."""
        part = batch[self.input]
        height, width = part["pixels"].shape[-2:]
        queries = registers_of(tokens, self.input, self.queries, option="head.queries").x
        queries = self.dropout(queries)
        patches = tokens.select(self.input)
        # The patches are the last columns; there can be class tokens before them.
        down, across = self.grid.count(height, 0), self.grid.count(width, 1)
        x = self.dropout(patches.x)[:, patches.x.shape[1] - down * across :]
        x = rearrange(x, "b (h w) d -> b d h w", h=down)
        inside = None
        if not patches.has_no_padding:
            inside = patches.mask[:, patches.x.shape[1] - down * across :].unflatten(
                1, (down, across)
            )
        for layer in self.upscale:
            x, inside = layer(x, inside)
        masks = torch.einsum("b m d, b d h w -> b m h w", self.masks(queries), x)
        if inside is not None:
            masks = repeated_edges(masks, inside)
        return MaskQueries(self.classes(queries), masks)

    def per_pixel(self, output: MaskQueries, batch: Batch) -> Tensor:
        """Return the logarithm (B, K, H, W) of the scores of the classes of each pixel."""
        size = batch[self.input]["pixels"].shape[-2:]
        masks = at_pixels(output.masks, self.grid, len(self.upscale), size).sigmoid()
        classes = output.classes.float().softmax(-1)[..., :-1]
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
