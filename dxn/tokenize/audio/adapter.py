"""The audio adapter: one token per log-mel frames, spectrogram patch or waveform frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.randomness import evenly_spaced
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.audio.augment import AudioAugment
from dxn.tokenize.audio.reader import AudioReader
from dxn.tokenize.audio.spectrogram import SpectrogramOptions
from dxn.tokenize.audio.tokenizer import (
    AudioNormalization,
    AudioTokenizer,
    AudioTokens,
    PatchOptions,
    bins_and_frames,
)
from dxn.tokenize.audio.waveform_stem import WaveformStem
from dxn.tokenize.base import FULL, MASKED, NUM_REAL, Adapter, raws_of
from dxn.tokenize.masking import SPAN, PatchMasking, check_ratio
from dxn.tokenize.media import MIN_RATE
from dxn.tokenize.moments import Moments, in_blocks
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import ConvStem, PatchGrid, WhisperStem
from dxn.tokenize.positions import PosEmbed1d, PosEmbed2d, PosEmbedKind

StemKind = Literal["patch", "conv", "residual", "whisper", "wav2vec"]

RESIDUAL_BLOCKS = 1  # after each of the last two convolutions of stem=residual
RESIDUAL_WIDTH = 32  # channels after its first convolution, of which each has all mel bins
MASK_RATIO = 0.4  # fraction of the columns that masked pretraining hides by default
MAX_FITTED = 1000  # clips are enough for stable statistics
MIN_STD = 1e-3  # bins above the bandwidth of the recordings are constant: avoid a division by 0


class AudioAdapter(Adapter):
    """Convert audio clips to Tokens.

    Args:
        dim: Width D of a token.
        tokens: Content of a token: frames (frame_size consecutive log-mel frames), patches (a patch
            of the spectrogram) or waveform (frame_size consecutive samples).
        sample_rate: Sample rate in hertz. Clips with another sample rate are resampled.
        spectrogram: Options of the log-mel spectrogram.
        frame_size: Number of log-mel frames per token. With tokens=waveform, number of samples.
        patch: Options of the patches for tokens=patches.
        stem: Layers that embed a token: patch (a linear projection), conv (strided convolutions
            over time, or over both axes of square tokens=patches), residual (strided convolutions
            over time and mel bins, each of the last two followed by a residual convolution, for
            tokens=frames or square tokens=patches), whisper (Whisper's convolutions over time, for
            tokens=frames with frame_size=2) or wav2vec (the convolutions of wav2vec 2.0, which also
            add positions, for tokens=waveform; patch.wav2vec replaces frame_size).
        normalize: Normalization of the features.
        pos_embed: Position embedding of the columns: learned, sinusoidal or none.
        max_len: Number of learned positions along time. With tokens=patches, all patches at the
            same time share one position.
        dropout: Dropout probability of the embedded columns.
        augment: Augmentation of training clips.
    """

    reader = AudioReader
    tokenizer: AudioTokenizer

    def __init__(
        self,
        dim: int = 128,
        *,
        tokens: AudioTokens = "frames",
        sample_rate: Annotated[int, Ge(MIN_RATE)] = 16000,
        spectrogram: SpectrogramOptions = SpectrogramOptions(),
        frame_size: Annotated[int, Ge(1)] = 4,
        patch: PatchOptions = PatchOptions(),
        stem: StemKind = "patch",
        normalize: AudioNormalization = AudioNormalization(),
        pos_embed: PosEmbedKind = "sinusoidal",
        max_len: int = 1024,
        dropout: Rate = 0.0,
        augment: AudioAugment = AudioAugment(),
    ):
        super().__init__()
        self.dim = dim
        self.tokenizer = AudioTokenizer(
            tokens=tokens,
            sample_rate=sample_rate,
            spectrogram=spectrogram,
            normalize=normalize.kind,
            augment=augment,
        )
        num_features = self.tokenizer.num_features
        self.grid = _patch_grid(tokens, num_features, frame_size, patch)
        if stem == "wav2vec":
            if tokens != "waveform":
                raise ValueError(f"stem=wav2vec needs tokens=waveform, got tokens={tokens}")
            self.stem = WaveformStem(patch.wav2vec, dim)
            self.grid = self.stem.grid
        else:
            self.stem = _make_stem(stem, tokens, self.grid, num_features, dim)
        self.bands = self.grid.count(num_features, 1)  # number of patches along the mel axis
        self.window_frames = (spectrogram.num_frames or 0) if spectrogram.windows else 0
        if self.window_frames and (tokens != "frames" or self.window_frames % frame_size):
            raise ValueError(
                "spectrogram.windows=true needs tokens=frames and a spectrogram.num_frames that is "
                f"a multiple of frame_size, got tokens={tokens}, num_frames={self.window_frames} "
                f"and frame_size={frame_size}"
            )
        self.window = self.window_frames // frame_size
        self.pads_windows = bool(self.window) and spectrogram.pad
        self.tokenizer.count_columns = partial(_count_columns, self.grid, self.bands)
        self.mean: Tensor
        self.std: Tensor
        self.known_statistics = normalize.mean is not None
        self.register_buffer("mean", torch.full((num_features,), normalize.mean or 0.0))
        self.register_buffer("std", torch.full((num_features,), normalize.std or 1.0))
        if self.stem is None:
            self.proj = nn.Linear(self.grid.size[0] * self.grid.size[1], dim)
        if tokens == "patches":
            # The other kinds have no parameters, so they do not use the number of steps.
            steps = max_len if pos_embed == "learned" else 1
            grid = (steps, self.bands)
            self.pos_embed = PosEmbed2d(pos_embed, dim=dim, grid=grid, is_time=True)
        else:
            self.pos_embed = PosEmbed1d(pos_embed, dim=dim, max_len=max_len)
        self.dropout = Dropout(dropout)
        # Zeros instead of random numbers, so that the initialization of all later parameters does
        # not depend on this one.
        self.mask_embedding = nn.Parameter(torch.zeros(dim))

    def fit(self, raws: Sequence[Tensor]) -> Self:
        """Compute the mean and standard deviation of each bin if normalize.kind=dataset.

        Args:
            raws: Clips (T,) of the training split. At most 1,000 are used, spread over all of them.
        """
        if self.tokenizer.normalize != "dataset" or self.known_statistics:
            return self
        moments = Moments(len(self.mean))
        clips = raws_of(self.tokenizer.reader, evenly_spaced(raws, MAX_FITTED), Tensor)
        for features in in_blocks(map(self.tokenizer.real_features, clips)):
            moments.add(features)
        if moments.count.any():
            self.mean.copy_(moments.mean)
            self.std.copy_(moments.std.clamp(min=MIN_STD))
        return self

    def masking(self, *, ratio: float | None = None) -> PatchMasking | None:
        """Create a masking of runs of columns. Call it after `fit`.

        Args:
            ratio: Fraction of the columns to mask. Default: 0.4.

        Returns:
            None if ratio is 0.
        """
        ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        if not ratio:
            return None
        pads_end = isinstance(self.stem, ConvStem | WhisperStem)
        return PatchMasking(ratio, self.contents(), span=SPAN, stem_pads_end=pads_end)

    def contents(self) -> PatchContents:
        """Return the features of the columns: mel bins, or samples of the waveform."""
        mean, std = self.mean.detach().cpu().clone(), self.std.detach().cpu().clone()
        spectrogram = self.tokenizer.spectrogram
        has_waveform = spectrogram is None or spectrogram.has_waveform
        return PatchContents(
            grid=self.grid,
            read=partial(_feature_contents, mean=mean, std=std),
            channels=1,
            shift=mean,
            scale=std,
            restore=self.tokenizer.waveform if has_waveform else None,
        )

    def describe(self, raw: Tensor) -> str:
        """Describe the number and duration of the columns and the duration of the clip."""
        steps = self.grid.count(len(self.tokenizer(raw)["features"]), 0)
        bands = f" × {self.bands} bands" if self.bands > 1 else ""
        duration = self.grid.size[0] * self.tokenizer.seconds
        rate = self.tokenizer.sample_rate
        return f"{steps} frames of {duration:.3g} s{bands}, {len(raw) / rate:.2f} s at {rate} Hz"

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D).

        The columns are ordered by time. Patches at the same time are ordered from low to high mel
        bins.
        """
        lengths = batch["lengths"]
        # A graph is for any batch.
        is_graph = torch.compiler.is_exporting()
        is_full = batch.get(FULL, False) and not is_graph
        features = (batch["features"] - self.mean) / self.std
        # Normalization turns the zeros of the padding into other values, so it is zeroed again.
        if not is_full or "hidden" in batch:
            visible = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
            if "hidden" in batch:
                visible = visible & ~batch["hidden"]
            features = features * visible[..., None]
        size = features.shape[0]
        window_lengths = lengths
        num_frames = features.shape[1]
        # Without padding, shorter clips are one window. A graph is only for those.
        if not is_graph and (self.pads_windows or 0 < self.window_frames < num_frames):
            # The windows of a clip are embedded alone.
            missing = -num_frames % self.window_frames
            features = F.pad(features, (0, 0, 0, missing))
            is_full = is_full and not missing
            features = rearrange(features, "b (w t) f -> (b w) t f", t=self.window_frames)
            starts = self.window_frames * torch.arange(len(features) // size, device=lengths.device)
            window_lengths = (lengths[:, None] - starts).clamp(0, self.window_frames).flatten()
        if isinstance(self.stem, WaveformStem):
            x = self.stem(features, None if is_full else lengths)[:, :, None]
        elif self.stem is not None:
            x = self._stem(features, window_lengths)
        else:
            patches = self.grid.unfold(features[:, None])
            # (time, mel bins) to (mel bins, time): the order of the weights in public checkpoints.
            x = self.proj(rearrange(patches, "b 1 t f q p -> b t f (p q)"))
        x = x + self._positions(x.shape[1], x.device)
        x = rearrange(x, "(b w) t f d -> b (w t f) d", b=size)
        steps = x.shape[1] // self.bands
        if is_full:
            mask = x.new_ones(x.shape[:2], dtype=torch.bool)
        else:
            # The number of columns of a sample follows from its length, not from the padded batch.
            counts = self.grid.counts(lengths, 0)
            mask = torch.arange(steps, device=x.device) < counts[:, None]
            mask = mask.repeat_interleave(self.bands, 1)
        num_real = mask.numel() if is_full else batch.get(NUM_REAL)
        locate = partial(self._coords, batch, steps, mask)
        x = self.dropout(x)
        if MASKED in batch:
            x = x + batch[MASKED][..., None] * self.mask_embedding.to(x.dtype)
        span = Span(self.modality, self.modality, 0, x.shape[1], locate)
        return Tokens(x, mask, (span,), num_real)

    def _stem(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Embed features (B, T, F) as (B, t, f, D)."""
        if isinstance(self.stem, WhisperStem):
            return rearrange(self.stem(features, lengths), "b t d -> b t 1 d")
        assert isinstance(self.stem, ConvStem)
        # Frames: the mel bins are channels. Patches: time and mel bins are the axes of an image.
        pattern = "b t f -> b f t 1" if self.stem.axes == 1 else "b t f -> b 1 t f"
        x = rearrange(features, pattern)
        return self.stem(x, torch.stack([lengths, torch.full_like(lengths, x.shape[3])], 1))

    def _positions(self, steps: int, device: torch.device) -> Tensor:
        """Return position embeddings (steps, 1 or bands, D), or a scalar 0 without positions."""
        if isinstance(self.pos_embed, PosEmbed1d):
            codes = self.pos_embed(steps, device)
            return codes[:, None] if codes.ndim else codes
        return self.pos_embed(steps, self.bands, device)

    def _coords(self, batch: Mapping[str, Tensor], steps: int, mask: Tensor) -> Tensor:
        """Return start and stop of each token in seconds (B, N, 2), NaN at padding."""
        lengths = batch["lengths"]
        start = torch.arange(steps, device=lengths.device) * self.grid.stride[0]
        stop = torch.minimum(start + self.grid.size[0], lengths[:, None])
        first, rate = self.tokenizer.time_map(batch)[:, None].split(1, -1)  # (B, 1, 1)
        coords = first + torch.stack([start.expand_as(stop), stop], -1) * rate
        coords = coords.repeat_interleave(self.bands, 1)  # all bands have the same time
        return coords.masked_fill(~mask[..., None], torch.nan)


def _feature_contents(
    sample: Mapping[str, Tensor], mean: Tensor, std: Tensor
) -> tuple[Tensor, None]:
    """Return the normalized features (1, 1, T, F)."""
    return ((sample["features"] - mean) / std)[None, None], None


def _count_columns(grid: PatchGrid, bands: int, batch: Mapping[str, Any]) -> Tensor:
    return grid.counts(batch["lengths"], 0) * bands


def _patch_grid(
    tokens: AudioTokens, num_features: int, frame_size: int, patch: PatchOptions
) -> PatchGrid:
    """Express all kinds of tokens as patches (time, mel bins); frames cover all mel bins."""
    if tokens != "patches":
        size = (frame_size, num_features)
        return PatchGrid(size, size, patch.pad_end)
    bins, frames = bins_and_frames(patch.size, "patch size")
    if patch.stride is None:
        return PatchGrid((frames, bins), (frames, bins), patch.pad_end)
    bin_stride, frame_stride = bins_and_frames(patch.stride, "patch stride")
    return PatchGrid((frames, bins), (frame_stride, bin_stride), patch.pad_end)


def _make_stem(
    kind: StemKind, tokens: AudioTokens, grid: PatchGrid, num_features: int, dim: int
) -> ConvStem | WhisperStem | None:
    """Create the stem. None: tokens are embedded by a linear projection."""
    if kind == "patch":
        return None
    frames, bins = grid.size
    if kind == "whisper":
        if tokens != "frames" or frames != 2:
            raise ValueError(
                "stem=whisper needs tokens=frames and frame_size=2, "
                f"got tokens={tokens} and frame_size={frames}"
            )
        return WhisperStem(num_features, dim)
    if tokens == "frames" and kind == "conv":
        # All layers have the full width: the mel bins are channels already, so there is no second
        # axis whose size decreases while the number of channels increases.
        return ConvStem(in_channels=num_features, dim=dim, stride=frames, width=dim, axes=1)
    is_square = frames == bins and grid.stride == grid.size
    if tokens != "frames" and (tokens != "patches" or not is_square):
        raise ValueError(
            f"stem={kind} needs tokens=frames, or tokens=patches with square patches and no "
            f"stride, got tokens={tokens} with patches of {(bins, frames)} and stride "
            f"{grid.stride[::-1]}"
        )
    if kind == "conv":
        return ConvStem(in_channels=1, dim=dim, stride=frames)
    # A token of frames contains the cells of all mel bins.
    merged = -(-bins // frames) if tokens == "frames" else 1
    return ConvStem(
        in_channels=1,
        dim=dim,
        stride=frames,
        width=RESIDUAL_WIDTH,
        blocks=RESIDUAL_BLOCKS,
        merged=merged,
    )
