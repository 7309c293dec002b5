"""The image adapter: one token per patch of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Keys, Rate
from dxn.core.randomness import evenly_spaced
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.base import FULL, MASKED, NUM_REAL, Adapter, raws_of
from dxn.tokenize.image.augment import ImageAugment
from dxn.tokenize.image.normalization import (
    ImageNormalization,
    fold_statistics,
    normalized_pixels,
    pixel_contents,
    register_statistics,
    set_statistics,
)
from dxn.tokenize.image.reader import ImageReader
from dxn.tokenize.image.tokenizer import ImageTokenizer, ResizeOptions
from dxn.tokenize.masking import PatchMasking, check_ratio
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import ConvStem, PatchGrid, grid_mask, patch_boxes, patch_mask
from dxn.tokenize.positions import PosEmbed2d, PosEmbedKind
from dxn.tokenize.text.options import EmbeddingNormOptions

ImageStem = Literal["patch", "conv", "residual"]
RESIDUAL_BLOCKS = 2  # after each of the last two convolutions of stem=residual
MASK_RATIO = 0.6  # fraction of the patches that masked pretraining hides by default
MAX_FITTED = 1000  # images are enough for stable statistics


class ImageAdapter(Adapter):
    """Convert images to Tokens: one token per patch (arXiv:2010.11929, section 3.1), row by row.

    The coords of a token are pixels of the raw image, which is reduced to about image_size when it
    is read.

    Args:
        dim: Width D of a token.
        image_size: Size of the resized images in pixels: [height, width], or one number for a
            square. With resize.mode=within, the maximum size. Null: images are not resized.
        patch_size: Height and width of a patch in pixels.
        stride: Distance between consecutive patches in pixels. Default: patch_size, so that patches
            do not overlap.
        stem: Layers that embed a patch: patch (a linear projection), conv (convolutions whose total
            stride is patch_size) or residual (the same, each of the last two followed by two
            residual convolutions).
        in_channels: Number of channels: 3 for color, 1 for gray.
        resize: Options of reading and resizing.
        normalize: Mean and standard deviation of each channel.
        pos_embed: Position embedding of the columns: learned (interpolated to other grid sizes),
            sinusoidal or none.
        norm: Layer norm of the embedded columns. Default: no layer norm.
        dropout: Dropout probability of the embedded columns.
        augment: Augmentation of training images.
    """

    reader = ImageReader
    tokenizer: ImageTokenizer

    def __init__(
        self,
        dim: int = 128,
        *,
        image_size: int | Sequence[int] | None = 224,
        patch_size: int = 16,
        stride: int | None = None,
        stem: ImageStem = "patch",
        in_channels: Literal[1, 3] = 3,
        resize: ResizeOptions = ResizeOptions(),
        normalize: ImageNormalization = ImageNormalization(),
        pos_embed: PosEmbedKind = "learned",
        norm: EmbeddingNormOptions | None = None,
        dropout: Rate = 0.0,
        augment: ImageAugment = ImageAugment(),
    ):
        super().__init__()
        if stem != "patch" and stride not in (None, patch_size):
            raise ValueError(
                f"stem={stem} always has a stride of patch_size={patch_size}: leave out stride, "
                f"got {stride}"
            )
        if stem != "patch" and not resize.pad_end:
            raise ValueError(f"resize.pad_end=false needs stem=patch, got stem={stem}")
        self.dim = dim
        self.patch_size = patch_size
        # Not `stride or patch_size`: PatchGrid must reject a stride of 0.
        stride = patch_size if stride is None else stride
        self.grid = PatchGrid((patch_size, patch_size), (stride, stride), resize.pad_end)
        self.tokenizer = ImageTokenizer(
            image_size=image_size, resize=resize, in_channels=in_channels, augment=augment
        )
        self.is_padded = resize.mode == "pad"
        self.tokenizer.count_columns = partial(_count_columns, self.grid)
        self.mean: Tensor
        self.std: Tensor
        self.known_statistics = register_statistics(self, normalize, in_channels)
        self.stem = None
        if stem == "patch":
            self.proj = nn.Linear(in_channels * patch_size**2, dim)
        else:
            blocks = RESIDUAL_BLOCKS if stem == "residual" else 0
            self.stem = ConvStem(in_channels=in_channels, dim=dim, stride=patch_size, blocks=blocks)
        self.pos_embed = PosEmbed2d(
            pos_embed,
            dim=dim,
            grid=self.tokenizer.position_grid(self.grid),
            antialias=resize.pos_antialias,
        )
        self.norm = nn.Identity() if norm is None else nn.LayerNorm(dim, norm.eps, bias=norm.bias)
        self.dropout = Dropout(dropout)
        self.token_dropout = augment.token_dropout
        # Zeros instead of random numbers, so that the initialization of all later parameters does
        # not depend on this one.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Sequence[Tensor]) -> Self:
        """Compute the mean and standard deviation of each channel if normalize does not set them.

        Args:
            raws: uint8 images (C, H, W) of the training split, as `read` returned them. At most
                1,000 are used, spread over all of them.
        """
        if self.known_statistics:
            return self
        chosen = raws_of(self.tokenizer.reader, evenly_spaced(raws, MAX_FITTED), Tensor)
        set_statistics(self, chosen)
        return self

    def masking(self, *, ratio: float | None = None) -> PatchMasking | None:
        """Create a masking of random patches. Call it after `fit`.

        Args:
            ratio: Fraction of the patches to mask. Default: 0.6.

        Returns:
            None if ratio is 0.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        if not ratio:
            return None
        return PatchMasking(ratio, self.contents(), is_standardized=True)

    def contents(self) -> PatchContents:
        """Return the pixels of the patches."""
        return pixel_contents(self, self.grid)

    def fold(self) -> None:
        """Let the first layer divide by the standard deviation, for a model that is only used."""
        fold_statistics(self, self.proj if self.stem is None else self.stem.convs[0])

    def describe(self, raw: Tensor) -> str:
        """Describe the grid of patches."""
        height, width = self.tokenizer(raw)["pixels"].shape[1:]
        rows, columns = self.grid.count(height, 0), self.grid.count(width, 1)
        patch = f"{self.patch_size}×{self.patch_size}"
        return f"{rows}×{columns} patches of {patch} pixels of {height}×{width} (height×width)"

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D) with N patches, row by row."""
        sizes = batch["sizes"]
        # A graph is for any batch.
        is_full = batch.get(FULL, False) and not torch.compiler.is_exporting()
        x = normalized_pixels(self, batch["pixels"])
        if not is_full:
            # Padding gets 0, the mean of normalized pixels.
            x = x * grid_mask(sizes, x.shape[2], x.shape[3])[:, None]
        if "hidden" in batch:
            # Hidden pixels get 0 too.
            x = x.masked_fill(batch["hidden"][:, None], 0)
        if self.stem is not None:
            x = self.stem(x, sizes)
        else:
            x = self.proj(rearrange(self.grid.unfold(x), "b c h w p q -> b h w (c p q)"))
        height, width = x.shape[1:3]
        grids = None if is_full else self.grid.counts_2d(sizes)
        x = x + self.pos_embed.of_grids(grids, height, width, x.device)
        mask = patch_mask(grids, x)
        num_real = mask.numel() if is_full else batch.get(NUM_REAL)
        locate: Callable[[], Tensor] = partial(
            patch_boxes, self.grid, batch["pixel_map"], sizes, mask
        )
        if self.is_padded:
            locate = partial(_clipped, locate, batch["pixel_map"])
        x = rearrange(x, "b h w d -> b (h w) d")
        mask = rearrange(mask, "b h w -> b (h w)")
        # Masked pretraining needs all patches, because it predicts the hidden ones.
        if self.training and self.token_dropout and MASKED not in batch:
            keys = Keys.of_mask(mask)
            draws = keys.step.draw(keys.tokens, self.dropout.layer)[..., 0]
            is_whole = num_real == mask.numel()
            x, mask, columns = _drop_tokens(x, mask, draws, self.token_dropout)
            num_real = mask.numel() if is_whole else None
            locate = partial(_boxes_of, locate, columns, mask)
        x = self.dropout(self.norm(x), mask=mask)
        if MASKED in batch:
            x = x + batch[MASKED][..., None] * self.mask_embedding.to(x.dtype)
        span = Span(self.modality, self.modality, 0, x.shape[1], locate)
        return Tokens(x, mask, (span,), num_real)


def _count_columns(grid: PatchGrid, batch: Mapping[str, Any]) -> Tensor:
    return grid.counts_2d(batch["sizes"]).prod(1)


def _drop_tokens(
    x: Tensor, mask: Tensor, draws: Tensor, fraction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Drop this fraction of the columns of each sample: those with the largest draws (B, N).

    The columns are removed instead of masked, because shorter sequences make training faster.

    Returns:
        x (B, n, D), the mask, and the columns (B, n) that are left.
    """
    width = max(round(x.shape[1] * (1 - fraction)), 1)  # without waiting for the numbers of a GPU
    counts = (mask.sum(1).double() * (1 - fraction)).round().clamp(min=1)
    # Padding is sorted to the end and dropped first.
    ranks = draws.masked_fill(~mask, 2**63 - 1).argsort(1).argsort(1)
    is_kept = mask & (ranks < counts[:, None])
    # Columns that are kept come first. The sort is stable, so that their order is preserved.
    columns = (~is_kept).int().argsort(dim=1, stable=True)[:, :width]
    x = x.gather(1, columns[..., None].expand(-1, -1, x.shape[2]))
    return x, is_kept.gather(1, columns), columns


def _clipped(locate: Callable[[], Tensor], pixel_map: Tensor) -> Tensor:
    """Return boxes (B, N, 4) that end where the raw images do. They have no area in the padding."""
    return torch.minimum(locate().clamp(min=0), pixel_map[:, None, 4:].tile(2))


def _boxes_of(locate: Callable[[], Tensor], columns: Tensor, mask: Tensor) -> Tensor:
    """Return the boxes of the columns (B, n) that are left."""
    boxes = locate().gather(1, columns[..., None].expand(-1, -1, 4))
    return boxes.masked_fill(~mask[..., None], torch.nan)
