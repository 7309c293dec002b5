"""The video adapter: one token per tubelet of a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.randomness import evenly_spaced
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.base import FULL, MASKED, NUM_REAL, Adapter, raws_of
from dxn.tokenize.image.normalization import (
    ImageNormalization,
    fold_statistics,
    normalized_pixels,
    pixel_contents,
    register_statistics,
    set_statistics,
)
from dxn.tokenize.image.tokenizer import ResizeOptions
from dxn.tokenize.masking import PatchMasking, check_ratio
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import ConvStem, PatchGrid, grid_mask, patch_boxes, patch_mask
from dxn.tokenize.positions import PosEmbed1d, PosEmbed2d, PosEmbedKind
from dxn.tokenize.video.reader import VideoReader, VideoSampling
from dxn.tokenize.video.tokenizer import CHANNELS, VideoAugment, VideoTokenizer

VideoPosEmbed = Literal["learned", "sinusoidal", "none", "sequence"]
MASK_RATIO = 0.75  # fraction of the patches that masked pretraining hides by default
MAX_FITTED = 200  # clips are enough for stable statistics


class VideoAdapter(Adapter):
    """Convert clips to Tokens: one token per tubelet (arXiv:2103.15691, section 3.2).

    A tubelet is a patch of several consecutive frames. Tokens are ordered by time, and at the same
    time row by row. The coords of a token are the start and stop in frames of the raw clip, and
    top, left, bottom and right in pixels of the raw clip. Both are reduced when a clip is read.

    Args:
        dim: Width D of a token.
        image_size: Size of the resized frames in pixels: [height, width], or one number for a
            square. With resize.mode=within, the maximum size.
        patch_size: Height and width of a patch in pixels.
        tubelet_frames: Number of consecutive frames per token.
        sampling: Options of the frames that are read from a clip.
        stem: Layers that embed the patches of a frame: patch (a linear projection) or conv
            (convolutions whose total stride is patch_size).
        resize: Options of reading and resizing frames.
        normalize: Mean and standard deviation of each channel.
        pos_embed: Position embedding: the sum of one for the time and one for the place (learned or
            sinusoidal), none, or sequence (sinusoidal, of the number of the token in the clip, for
            frames of one size).
        dropout: Dropout probability of the embedded columns.
        augment: Augmentation of training clips.
    """

    reader = VideoReader
    tokenizer: VideoTokenizer

    def __init__(
        self,
        dim: int = 128,
        *,
        image_size: int | Sequence[int] = 96,
        patch_size: int = 16,
        tubelet_frames: Annotated[int, Ge(1)] = 2,
        sampling: VideoSampling = VideoSampling(),
        stem: Literal["patch", "conv"] = "patch",
        resize: ResizeOptions = ResizeOptions(),
        normalize: ImageNormalization = ImageNormalization(),
        pos_embed: VideoPosEmbed = "learned",
        dropout: Rate = 0.0,
        augment: VideoAugment = VideoAugment(),
    ):
        super().__init__()
        self.dim = dim
        self.patch_size = patch_size
        self.tubelet_frames = tubelet_frames
        self.grid = PatchGrid((patch_size, patch_size), (patch_size, patch_size))
        self.tokenizer = VideoTokenizer(
            image_size=image_size, sampling=sampling, resize=resize, augment=augment
        )
        self.mean: Tensor
        self.std: Tensor
        self.sequence_embed: Tensor | None
        self.known_statistics = register_statistics(self, normalize, CHANNELS)
        self.stem = None
        cell = CHANNELS * patch_size**2  # values per patch and frame
        if stem == "conv":
            self.stem = ConvStem(in_channels=CHANNELS, dim=dim, stride=patch_size)
            cell = dim
        self.proj = nn.Linear(tubelet_frames * cell, dim)
        size = self.tokenizer.image.image_size
        steps = -(-sampling.num_frames // tubelet_frames)  # rounded up
        kind: PosEmbedKind = "none" if pos_embed == "sequence" else pos_embed
        self.pos_embed = PosEmbed2d(
            kind,
            dim=dim,
            grid=self.tokenizer.image.position_grid(self.grid),
            antialias=resize.pos_antialias,
        )
        self.time_embed = PosEmbed1d(kind, dim=dim, max_len=steps)
        positions = None
        if pos_embed == "sequence":
            if size is None or not resize.is_fixed:
                raise ValueError(
                    "pos_embed=sequence needs frames of one size: set resize.mode to stretch, "
                    f"crop or pad, got {resize.mode}"
                )
            shape = steps, self.grid.count(size[0], 0), self.grid.count(size[1], 1)
            positions = sequence_positions(math.prod(shape), dim).unflatten(0, shape)
        self.register_buffer("sequence_embed", positions, persistent=False)
        self.tokenizer.count_columns = partial(_count_columns, self.grid, tubelet_frames)
        self.dropout = Dropout(dropout)
        # Zeros instead of random numbers, so that the initialization of all later parameters does
        # not depend on this one.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Sequence[Tensor]) -> Self:
        """Compute the mean and standard deviation of each channel if normalize does not set them.

        Args:
            raws: uint8 clips (T, C, H, W) of the training split, as `read` returned them. At most
                200 are used, spread over all of them.
        """
        if not self.known_statistics:
            chosen = raws_of(self.tokenizer.reader, evenly_spaced(raws, MAX_FITTED), Tensor)
            set_statistics(self, (raw.movedim(1, 0) for raw in chosen))
        return self

    def masking(self, *, ratio: float | None = None) -> PatchMasking | None:
        """Create a masking of random patches in all frames. Call it after `fit`.

        Args:
            ratio: Fraction of the patches to mask. Default: 0.75.

        Returns:
            None if ratio is 0.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        if not ratio:
            return None
        return PatchMasking(ratio, self.contents(), is_standardized=True)

    def contents(self) -> PatchContents:
        """Return the pixels of the tubelets."""
        return pixel_contents(self, self.grid, self.tubelet_frames)

    def fold(self) -> None:
        """Let the first layer divide by the standard deviation, for a model that is only used."""
        fold_statistics(self, self.proj if self.stem is None else self.stem.convs[0])

    def describe(self, raw: Tensor) -> str:
        """Describe the grid of tokens."""
        length, _, height, width = self.tokenizer(raw)["pixels"].shape
        steps = -(-length // self.tubelet_frames)
        frames = f"{length} frames of {height}×{width} pixels (height×width)"
        rows, columns = self.grid.count(height, 0), self.grid.count(width, 1)
        tubelet = f"{self.tubelet_frames} frames × {self.patch_size}×{self.patch_size} pixels"
        return f"{steps}×{rows}×{columns} tubelets of {tubelet}, {frames}"

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D), by time and then row by row."""
        sizes, lengths = batch["sizes"], batch["lengths"]
        # A graph is for any batch.
        is_full = batch.get(FULL, False) and not torch.compiler.is_exporting()
        cells = self._cells(batch, is_full=is_full)
        x = self.proj(cells)  # (B, t, h, w, D)
        steps, height, width = x.shape[1:4]
        grids = None if is_full else self.grid.counts_2d(sizes)
        places = patch_mask(grids, x[:, 0])
        counts = -(-lengths // self.tubelet_frames)
        time_mask = torch.arange(steps, device=x.device) < counts[:, None]
        place = self.pos_embed.of_grids(grids, height, width, x.device)
        x = x + (place[:, None] if place.ndim else place)
        if self.sequence_embed is not None:
            x = x + self.sequence_embed[:steps]
        mask = time_mask[:, :, None] & places.flatten(1)[:, None]
        x = rearrange(x, "b t h w d -> b t (h w) d")
        times = self.time_embed(steps, x.device)
        x = rearrange(x + (times[:, None] if times.ndim else times), "b t p d -> b (t p) d")
        num_real = mask.numel() if is_full else batch.get(NUM_REAL)
        locate = partial(self._coords, batch, places, mask)
        mask = mask.flatten(1)
        x = self.dropout(x, mask=mask)
        if MASKED in batch:
            x = x + batch[MASKED][..., None] * self.mask_embedding.to(x.dtype)
        span = Span(self.modality, self.modality, 0, x.shape[1], locate)
        return Tokens(x, mask, (span,), num_real)

    def _cells(self, batch: Mapping[str, Any], *, is_full: bool) -> Tensor:
        """Return the contents of the tubelets (B, t, h, w, K) of a batch."""
        pixels, sizes, hidden = batch["pixels"], batch["sizes"], batch.get("hidden")
        num_frames = pixels.shape[1]
        x = normalized_pixels(self, pixels)
        is_frame = torch.arange(num_frames, device=x.device) < batch["lengths"][:, None]
        # Padding gets 0, the mean of normalized pixels, and so do hidden pixels.
        if hidden is not None or not is_full:
            visible = grid_mask(sizes, x.shape[3], x.shape[4])
            if hidden is not None:
                visible = visible & ~hidden
            x = x * (visible[:, None] & is_frame[:, :, None, None])[:, :, None]
        x = rearrange(x, "b t c h w -> (b t) c h w")
        if self.stem is None:
            x = rearrange(self.grid.unfold(x), "n c h w p q -> n h w c (p q)")
        else:
            x = self.stem(x, repeat(sizes, "b s -> (b t) s", t=num_frames))[..., None, :]
        x = rearrange(x, "(b t) h w c k -> b t h w c k", t=num_frames)
        if self.stem is not None:
            # The biases of the stem make missing frames nonzero.
            x = x * is_frame[:, :, None, None, None, None]
        missing = -num_frames % self.tubelet_frames
        if torch.compiler.is_compiling() or missing:
            x = F.pad(x, (0, 0) * 4 + (0, missing))
        # The order of the weights of a three-dimensional convolution.
        return rearrange(x, "b (t f) h w c k -> b t h w (c f k)", f=self.tubelet_frames)

    def _coords(self, batch: Mapping[str, Any], patch_mask: Tensor, mask: Tensor) -> Tensor:
        """Return the coords (B, N, 6) of tokens, NaN at padding.

        Args:
            batch: The collated batch.
            patch_mask: (B, h, w). True at real patches of a time step.
            mask: (B, t, p). True at real tokens.
        """
        times, lengths = batch["times"], batch["lengths"]
        boxes = patch_boxes(
            self.grid, batch["pixel_map"], batch["sizes"], patch_mask
        )  # (B, h w, 4)
        steps, places = mask.shape[1:]
        first = torch.arange(steps, device=times.device) * self.tubelet_frames
        # Padded steps get an index inside of the clip, and are overwritten below.
        end = torch.minimum(first + self.tubelet_frames, lengths[:, None])
        start = times.gather(1, torch.minimum(first.expand_as(end), lengths[:, None] - 1))
        stop = times.gather(1, end - 1) + 1
        interval = repeat(torch.stack([start, stop], -1), "b t k -> b t p k", p=places)
        box = repeat(boxes, "b p k -> b t p k", t=steps)
        coords = torch.cat([interval.to(box.dtype), box], -1)
        return coords.masked_fill(~mask[..., None], torch.nan).flatten(1, 2)


def sequence_positions(count: int, dim: int) -> Tensor:
    """Return sinusoidal positions (count, dim) of tokens, with alternating sines and cosines.

    Raises:
        ValueError: If dim is odd.
    """
    if dim % 2:
        raise ValueError(f"dim must be even for sinusoidal positions, got {dim}")
    # float64, because the last tokens of a clip have large angles.
    frequency = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    angle = torch.arange(count, dtype=torch.float64)[:, None] / 10000**frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


def _count_columns(grid: PatchGrid, frames: int, batch: Mapping[str, Any]) -> Tensor:
    return -(-batch["lengths"] // frames) * grid.counts_2d(batch["sizes"]).prod(1)
