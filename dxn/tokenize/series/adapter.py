"""The series adapter: one token per patch of consecutive time steps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.base import FULL, MASKED, TIME_MAP, Adapter, raws_of
from dxn.tokenize.masking import SPAN, PatchMasking, check_ratio
from dxn.tokenize.moments import Moments
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import CellPatches, ConvStem, PatchGrid, ResidualStem, divided
from dxn.tokenize.positions import PosEmbed1d, PosEmbedKind
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.series.tokenizer import (
    USUAL_FRAMES,
    USUAL_TOKENS,
    SeriesAugment,
    SeriesChannels,
    SeriesNormalization,
    SeriesPatchOptions,
    SeriesStem,
    SeriesTokenizer,
    channel_statistics,
    usual_patch_size,
)

MASK_RATIO = 0.4  # fraction of the patches that masked pretraining hides by default (PatchTST)
MAX_FITTED = 10_000  # series are enough for stable statistics
# Larger numbers in a model folder from an untrusted source would fill the memory.
MAX_CHANNELS = 100_000
MAX_PATCH_VALUES = 10_000_000


class SeriesAdapter(Adapter):
    """Convert series to Tokens (patches of time steps as in PatchTST, arXiv:2211.14730).

    The channels of a series can be the cells of frames, such as a map of rain at each time. A token
    is then a tubelet: a square patch of the cells of `patch_size` frames. In a forecast, the future
    tubelets are tokens, too, which start as the last tubelet of their place.

    Args:
        dim: Width D of a token.
        patch_size: Number of consecutive time steps of a token. Default: a power of two that gives
            a training series of the median length about 32 tokens, and frames about 4.
        stride: Distance between consecutive patches in time steps. Default: patch_size, so that
            patches do not overlap.
        channels: Content of a token: joint (all channels of a patch), independent (one channel of
            a patch, with an embedding of the channel) or separate (one channel of a patch, and the
            backbone encodes each channel as a series of its own, for any number of channels). It
            has no effect on frames.
        normalize: Statistics that give each channel mean 0 and standard deviation 1: train (those
            of the training split), sample (those of each series by itself) or none. Default: sample
            for a forecast, otherwise train.
        stem: Layers that embed a patch: patch (a linear projection), conv (strided convolutions,
            for a patch_size of 2, 4, 8, 16 or 32 without overlap) or residual (a hidden layer, and
            a linear projection that is added).
        patch: Further options of the patches.
        pos_embed: Position embedding of the patches: learned, sinusoidal or none.
        max_len: Maximum number of patches along time. Longer series are truncated.
        dropout: Dropout probability of the embedded columns.
        augment: Augmentation of training series.
    """

    reader = SeriesReader
    tokenizer: SeriesTokenizer
    cell_order: Tensor

    def __init__(
        self,
        dim: int = 128,
        *,
        patch_size: Annotated[int, Ge(1)] | None = None,
        stride: Annotated[int, Ge(1)] | None = None,
        channels: SeriesChannels = "joint",
        normalize: SeriesNormalization | None = None,
        stem: SeriesStem = "patch",
        patch: SeriesPatchOptions = SeriesPatchOptions(),
        pos_embed: PosEmbedKind = "sinusoidal",
        max_len: Annotated[int, Ge(1)] = 1024,
        dropout: Rate = 0.0,
        augment: SeriesAugment = SeriesAugment(),
    ):
        super().__init__()
        if stride is not None and (patch_size is None or stride > patch_size):
            raise ValueError(
                f"stride must be at most patch_size, got {stride} and patch_size={patch_size}"
            )
        added = {"end_token": patch.end_token, "fill_start": patch.fill_start}
        for name, value in added.items():
            if value and channels != "separate":
                raise ValueError(f"patch.{name} needs channels=separate, got channels={channels}")
        self.dim = dim
        self.patch_size = patch_size
        self.stride = stride
        self.is_joint = channels == "joint"
        self.is_separate = channels == "separate"
        self.patch = patch
        self.cells: CellPatches | None = None
        self.stem_kind = stem
        self.hidden_dim = patch.hidden_dim or 4 * dim
        self.tokenizer = SeriesTokenizer(
            normalize=normalize, max_len=max_len, augment=augment, patch=patch
        )
        self.fitted = False  # set by _create_layers
        self.channel_embedding: nn.Parameter | None = None
        self.grid: PatchGrid
        self.pos_embed = PosEmbed1d(pos_embed, dim=dim, max_len=max_len)
        self.dropout = Dropout(dropout)
        # Zeros instead of random numbers, so that the initialization of all later parameters does
        # not depend on this one.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))
        self.end_token = nn.Parameter(0.02 * torch.randn(dim)) if patch.end_token else None
        # Nothing depends on the data.
        if self.is_separate and patch_size is not None and normalize == "sample":
            self._create_layers(0, patch_size, torch.zeros(0), torch.ones(0))
        if stem == "conv":  # raises an error for a wrong size before any data is read
            self._check_conv(patch_size)

    def fit(self, raws: Sequence[Tensor]) -> Self:
        """Learn the number of channels, their statistics and the default patch size.

        Args:
            raws: Series (T, C) of the training split. At most 10,000 are used, spread over all of
                them.
        """
        if self.fitted and len(self.tokenizer.mean):
            return self
        tokenizer = self.tokenizer
        (first,) = raws_of(tokenizer.reader, raws[:1], Tensor)
        num_channels = first.shape[1]
        moments = Moments(tokenizer.alike(first).shape[1])
        lengths: list[int] = []
        for raw in raws_of(tokenizer.reader, evenly_spaced(raws, MAX_FITTED), Tensor):
            moments.add(tokenizer.alike(raw))
            lengths.append(len(raw))
        usual = USUAL_TOKENS if tokenizer.reader.grid_size is None else USUAL_FRAMES
        patch_size = self.patch_size or usual_patch_size(statistics.median(lengths), usual)
        mean, std = (x.expand(num_channels).clone() for x in channel_statistics(moments))
        self._create_layers(num_channels, patch_size, mean, std)
        return self

    @property
    def parts(self) -> int:
        """Number of equal parts of the columns, the channels, that are encoded alone."""
        return self.tokenizer.reader.num_channels if self.is_separate else 1

    def masking(self, *, ratio: float | None = None) -> PatchMasking | None:
        """Create a masking of runs of patches. Call it after `fit`.

        Args:
            ratio: Fraction of the patches to mask. Default: 0.4.

        Returns:
            None if ratio is 0.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        if not ratio:
            return None
        if self.is_separate:
            raise UserError(
                "adapters.series.channels: masked pretraining needs joint or independent, got "
                "separate"
            )
        return PatchMasking(ratio, self.contents(), span=SPAN)

    def contents(self) -> PatchContents:
        """Return the values of the patches, in the unit of the series with normalize=train.

        Raises:
            UserError: If the channels are cells, whose patches can overlap.
        """
        if self.cells is not None:
            raise UserError(
                "frames of cells: masked pretraining and head=codec cannot read them; choose "
                "head=forecast, or read the cells as channels (time steps, rows * columns)"
            )
        mean, std = self.tokenizer.mean, self.tokenizer.std
        if self.tokenizer.normalize != "train":
            mean, std = torch.zeros_like(mean), torch.ones_like(std)
        return PatchContents(
            grid=self.grid,
            read=_value_contents,
            channels=1,
            shift=mean,
            scale=std,
            restore=_whole_series,
        )

    def state(self) -> dict[str, Any]:
        """Return what `fit` learned."""
        return {
            "num_channels": self.tokenizer.reader.num_channels,
            "grid_size": self.tokenizer.reader.grid_size,
            "decimal": self.tokenizer.reader.decimal,
            "patch_size": self.tokenizer.patch_size,
            "mean": self.tokenizer.mean.tolist(),
            "std": self.tokenizer.std.tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Use what `state` returned."""
        channels, patch_size = state["num_channels"], state["patch_size"]
        grid_size = state["grid_size"]
        mean = torch.tensor(state["mean"], dtype=torch.float32)
        std = torch.tensor(state["std"], dtype=torch.float32)
        valid = all(type(n) is int and 0 < n <= MAX_CHANNELS for n in (channels, patch_size))
        valid = valid and channels * patch_size <= MAX_PATCH_VALUES
        valid = valid and mean.shape == std.shape == (channels,) and bool((std > 0).all())
        if not (valid and bool(mean.isfinite().all() and std.isfinite().all())):
            raise ValueError("must have num_channels, patch_size, and a mean and std per channel")
        if state["decimal"] not in ("", ".", ","):
            raise ValueError("decimal must be a point, a comma or empty")
        self.tokenizer.reader.decimal = state["decimal"]
        if grid_size is not None:
            height, width = grid_size
            if not all(type(n) is int and n > 0 for n in grid_size) or height * width != channels:
                raise ValueError(
                    f"grid_size must be two sizes with {channels} cells, got {grid_size!r}"
                )
            self.tokenizer.reader.grid_size = (height, width)
        self._create_layers(channels, patch_size, mean, std)

    def describe(self, raw: Tensor) -> str:
        """Describe the number and size of the columns."""
        steps = len(self.tokenizer(raw)["values"])
        channels = raw.shape[1]
        count = self.grid.count(steps, 0)
        missing = f", {raw.isnan().float().mean():.1%} missing" if bool(raw.isnan().any()) else ""
        if self.cells is not None:
            size, (height, width) = self.cells.size, self.cells.grid_size
            tubelets = "×".join(map(str, (count, *self.cells.counts)))
            return (
                f"{tubelets} patches of {self.grid.size[0]} time steps × {size}×{size} cells; "
                f"{steps} time steps of {height}×{width} cells{missing}"
            )
        parts = "" if self.is_joint or channels == 1 else f" × {channels} channels"
        plural = "s" if channels > 1 else ""
        return (
            f"{count} patches of {self.grid.size[0]} time steps{parts}; "
            f"{steps} time steps, {channels} channel{plural}{missing}"
        )

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D).

        The columns are ordered by time. With channels=independent, the columns of all channels at
        the same time follow each other, and with separate all columns of a channel do. A patch
        without any value is masked. Patches of cells are channels; `tokenizer.horizon` steps of
        them follow, which have no values.
        """
        if not self.fitted:
            raise ValueError("the series adapter does not know its channels yet: call fit(series)")
        observed, values = batch["observed"], batch["values"]
        lengths = batch["lengths"]
        if self.cells is not None:
            observed, values = (divided(x, self.cell_order) for x in (observed, values))
        visible = observed
        if "hidden" in batch:
            visible = observed & ~batch["hidden"][..., None]
        # Two features per value: the value, and whether it is known.
        features = torch.stack([values * visible, visible.to(values)], 1)
        x = self._conv(features, lengths) if self.stem_kind == "conv" else self._linear(features)
        num_past, groups = x.shape[1:3]
        if self.num_ahead:
            # They start as the last tubelets of their places, which attention would have to find.
            future = x[:, -1:] + self.mask_embedding.to(x.dtype)
            x = torch.cat([x, future.expand(-1, self.num_ahead, -1, -1)], 1)
        steps = x.shape[1]
        codes = self.pos_embed(steps, x.device)
        x = x + (codes[:, None] if codes.ndim else codes)
        if self.channel_embedding is not None:
            x = x + self.channel_embedding
        # (B, t, c): a patch is a token if it has a value, also if masking hides it.
        mask = self.grid.unfold(observed[:, None])[:, 0].flatten(3).any(-1)
        # In a padded batch, overlapping patches go on after the last patch of a short series.
        counts = self.grid.counts(lengths, 0)
        is_inside = torch.arange(num_past, device=x.device) < counts[:, None]
        mask = mask & is_inside[..., None]
        if self.num_ahead:
            mask = F.pad(mask, (0, 0, 0, self.num_ahead), value=True)
        if self.end_token is not None:
            end = self.end_token.to(x.dtype).expand(len(x), 1, groups, -1)
            x, mask = torch.cat([x, end], 1), F.pad(mask, (0, 0, 0, 1), value=True)
        if self.is_separate:
            assert groups == self.parts
            x, mask = x.transpose(1, 2), mask.transpose(1, 2)
        x, mask = x.flatten(1, 2), mask.flatten(1)
        num_real = mask.numel() if batch.get(FULL, False) else None
        locate = partial(self._coords, batch, steps, groups, mask)
        x = self.dropout(x)
        if MASKED in batch:
            x = x + batch[MASKED][..., None] * self.mask_embedding.to(x.dtype)
        span = Span(self.modality, self.modality, 0, x.shape[1], locate)
        return Tokens(x, mask, (span,), num_real)

    def _create_layers(self, num_channels: int, patch_size: int, mean: Tensor, std: Tensor) -> None:
        """Create the layers for a number of channels, and set the statistics."""
        stride = self.stride or patch_size
        width = num_channels if self.is_joint else 1
        grid_size = self.tokenizer.reader.grid_size
        if grid_size is not None:
            if self.is_separate or self.stem_kind == "conv" or stride < patch_size:
                raise UserError(
                    "adapters.series: frames of cells need channels=joint, stem=patch or residual, "
                    "and no stride"
                )
            patch = self.patch
            self.cells = CellPatches.of(
                grid_size, patch.cells, patch.margin, periodic=patch.periodic
            )
            width = self.cells.width**2
            self.register_buffer("cell_order", self.cells.order(), persistent=False)
        self.grid = PatchGrid((patch_size, width), (stride, width))
        tokenizer = self.tokenizer
        tokenizer.reader.num_channels = num_channels
        tokenizer.mean, tokenizer.std = mean, std
        tokenizer.patch_size, tokenizer.stride = patch_size, stride
        if self.stem_kind == "conv":
            self._check_conv(patch_size)
            self.stem = ConvStem(
                in_channels=2 * width, dim=self.dim, stride=patch_size, width=self.dim, axes=1
            )
        elif self.stem_kind == "residual":
            self.stem = ResidualStem(2 * patch_size * width, self.dim, self.hidden_dim)
        else:
            self.proj = nn.Linear(2 * patch_size * width, self.dim)
        groups = num_channels if self.cells is None else len(self.cells)
        if self.cells is not None or not (self.is_joint or self.is_separate):
            self.channel_embedding = nn.Parameter(torch.empty(groups, self.dim))
            # 0.02 is the standard deviation of BERT and ViT: small compared with the embeddings.
            nn.init.trunc_normal_(self.channel_embedding, std=0.02)
            if self.cells is not None:
                self.channel_embedding.data += self.cells.codes(self.dim)
        self.fitted = True

    @property
    def num_ahead(self) -> int:
        """Number of future tokens of a patch of cells."""
        return self.grid.count(self.tokenizer.horizon, 0) if self.tokenizer.horizon else 0

    def _linear(self, features: Tensor) -> Tensor:
        """Embed features (B, 2, T, C) as (B, t, c, D), where c is 1 with joint channels.

        With patches of cells, c is their number.
        """
        patches = self.grid.unfold(features)
        project = self.stem if self.stem_kind == "residual" else self.proj
        return project(rearrange(patches, "b k t c p q -> b t c (k p q)"))

    def _conv(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Embed features (B, 2, T, C) as (B, t, c, D) by convolutions along time."""
        channels = features.shape[3]
        if self.is_joint:
            x = rearrange(features, "b k t c -> b (k c) t 1")
        else:
            x = rearrange(features, "b k t c -> (b c) k t 1")
            lengths = lengths.repeat_interleave(channels)
        x = self.stem(x, torch.stack([lengths, torch.ones_like(lengths)], 1))
        if self.is_joint:
            return x
        return rearrange(x, "(b c) t 1 d -> b t c d", c=channels)

    def _coords(self, batch: Mapping[str, Tensor], steps: int, groups: int, mask: Tensor) -> Tensor:
        """Return start and stop of each token in time steps (B, N, 2), NaN at padding.

        The time steps are those of the series before augmentation. Without channels=joint, the
        index of the channel is the third number. Patches of cells have top, left, bottom and right
        instead.
        """
        lengths = batch["lengths"] + self.tokenizer.horizon
        start = torch.arange(steps, device=lengths.device) * self.grid.stride[0]
        stop = torch.minimum(start + self.grid.size[0], lengths[:, None])
        coords = torch.stack([start.expand_as(stop), stop], -1).float()
        if TIME_MAP in batch:
            first, rate = batch[TIME_MAP][:, None].split(1, -1)
            coords = first + rate * coords
        if self.end_token is not None:
            coords = F.pad(coords, (0, 0, 0, 1), value=torch.nan)
        coords = repeat(coords, "b t k -> b t c k", c=groups)
        if self.cells is not None:
            boxes = self.cells.boxes().to(coords).expand(*coords.shape[:3], 4)
            coords = torch.cat([coords, boxes], -1)
        elif not self.is_joint:
            index = torch.arange(groups, device=lengths.device).to(coords)
            index = index[:, None].expand(*coords.shape[:3], 1)
            coords = torch.cat([coords, index], -1)
        if self.is_separate:
            coords = coords.transpose(1, 2)
        return coords.flatten(1, 2).masked_fill(~mask[..., None], torch.nan)

    def _check_conv(self, patch_size: int | None) -> None:
        size = 2 if patch_size is None else patch_size
        if size not in (2, 4, 8, 16, 32) or self.stride not in (None, patch_size):
            raise ValueError(
                "stem=conv needs a patch_size of 2, 4, 8, 16 or 32 and no stride, "
                f"got patch_size={patch_size} and stride={self.stride}"
            )


def _whole_series(x: Tensor) -> Tensor:
    """Return the series (T, C) of values (1, 1, T, C)."""
    return x[0, 0]


def _value_contents(sample: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the values (1, 1, T, C), and which are known."""
    return sample["values"][None, None], sample["observed"][None, None]
