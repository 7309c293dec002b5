"""Images to Tokens: patches, overlapping patches or a convolutional grid."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.tokenize.media import read_image
from dxn.tokenize.positions import PositionKind, Positions2d
from dxn.tokenize.randomness import torch_seeded
from dxn.tokenize.stem import ConvStem, grid_mask
from dxn.tokens import Span, Tokens

Resize = Literal["within", "stretch", "crop"]
Interpolation = Literal["bilinear", "bicubic"]


class ImageAugment:
    """Changes to a training picture, drawn anew for each epoch.

    Args:
        crop: shift by up to this many pixels each way, the edge repeated.
        zoom: crop a random part of at least this share of the area and enlarge it again, 1 for none.
        flip: mirror left and right, one time in two.
        randaugment: strength 0 to 30 of two random RandAugment changes (arXiv:1909.13719), 0 for none.
        erase: probability that a random rectangle is blanked (arXiv:1708.04896).
    """

    def __init__(
        self,
        *,
        crop: int = 0,
        zoom: float = 1.0,
        flip: bool = False,
        randaugment: int = 0,
        erase: float = 0.0,
    ):
        if not 0 < zoom <= 1:
            raise ValueError(f"zoom must be over 0 and at most 1, got {zoom}")
        self.crop, self.flip = crop, flip
        self.zoom = zoom
        self.transforms = _transforms(randaugment, erase) if randaugment or erase else []

    def __call__(self, pixels: Tensor, rng: random.Random) -> Tensor:
        """uint8 (C, H, W) to the same shape."""
        if self.flip and rng.random() < 0.5:
            pixels = pixels.flip(-1)
        if self.crop:
            pixels = _shift(pixels, rng.randint(-self.crop, self.crop), rng.randint(-self.crop, self.crop))
        if self.zoom < 1:
            pixels = _zoom(pixels, rng.uniform(self.zoom, 1), rng)
        if self.transforms:
            with torch_seeded(rng):
                for transform in self.transforms:
                    pixels = transform(pixels)
        return pixels


def _transforms(randaugment: int, erase: float) -> list:
    from torchvision.transforms import v2  # takes seconds to import, and most runs do without

    found = [v2.RandAugment(num_ops=2, magnitude=randaugment, fill=128)] if randaugment else []
    return [*found, v2.RandomErasing(p=erase, value=128)] if erase else found


def _resized(pixels: Tensor, size: Sequence[int], mode: Interpolation = "bilinear") -> Tensor:
    """uint8 (C, H, W) to (C, *size), over all that a smaller pixel covers (antialiased)."""
    return F.interpolate(pixels[None], tuple(size), mode=mode, antialias=True)[0]


def _shift(pixels: Tensor, down: int, right: int) -> Tensor:
    height, width = pixels.shape[1:]
    rows = (torch.arange(height) + down).clamp(0, height - 1)
    columns = (torch.arange(width) + right).clamp(0, width - 1)
    return pixels[:, rows][:, :, columns]


def _zoom(pixels: Tensor, share: float, rng: random.Random) -> Tensor:
    height, width = pixels.shape[1:]
    h, w = max(round(height * share**0.5), 1), max(round(width * share**0.5), 1)
    top, left = rng.randint(0, height - h), rng.randint(0, width - w)
    return _resized(pixels[:, top : top + h, left : left + w], (height, width))


class ImagePrepare:
    """A picture to pixels of the size the config asks for. No learned weights; picklable."""

    def __init__(
        self,
        *,
        image_size: int | Sequence[int] | None,
        resize: Resize,
        crop_share: float,
        interpolation: Interpolation,
        in_channels: int,
        max_pixels: int,
        augment: ImageAugment | None,
    ):
        if not 0 < crop_share <= 1:
            raise ValueError(f"crop_share must be over 0 and at most 1, got {crop_share}")
        self.size_limit = _pair(image_size) if image_size is not None else None
        self.resize, self.in_channels, self.max_pixels = resize, in_channels, max_pixels
        self.crop_share = crop_share
        self.interpolation: Interpolation = interpolation
        self.augment = augment

    def read(self, source) -> Tensor:
        """Path, bytes, PIL image or array to uint8 (C, H, W); raises media.BadMedia with the reason."""
        return read_image(source, channels=self.in_channels, max_pixels=self.max_pixels)

    def __call__(self, raw: Tensor, rng: random.Random | None = None) -> dict[str, Tensor]:
        """pixels uint8 (C, h, w) and frame (4,): raw top, left and raw pixels per pixel down and across."""
        if rng is not None and self.augment is not None:
            raw = self.augment(raw, rng)
        pixels, frame = self._fit(raw)
        return {"pixels": pixels, "frame": torch.tensor(frame)}

    def size(self, raw: Tensor) -> float:
        """Roughly how many tokens it has, to put like with like."""
        return raw[0].numel() / 256 if self.size_limit is None else 1

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """pixels uint8 (B, C, H, W) padded below and right, sizes (B, 2), frame (B, 4)."""
        sizes = torch.tensor([s["pixels"].shape[1:] for s in samples])
        height, width = (int(n) for n in sizes.amax(0))
        batch = torch.zeros(len(samples), self.in_channels, height, width, dtype=torch.uint8)
        for row, sample in zip(batch, samples, strict=True):
            pixels = sample["pixels"]
            row[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        return {"pixels": batch, "sizes": sizes, "frame": torch.stack([s["frame"] for s in samples])}

    def _fit(self, raw: Tensor) -> tuple[Tensor, list[float]]:
        height, width = raw.shape[1:]
        whole = self.resize == "within" or self.crop_share == 1
        if self.size_limit is None or (whole and (height, width) == self.size_limit):
            return raw, [0.0, 0.0, 1.0, 1.0]
        target_h, target_w = self.size_limit
        least_h, least_w = (math.floor(side / self.crop_share) for side in self.size_limit)
        if self.resize == "stretch":
            size = [least_h, least_w]
        elif self.resize == "within":
            scale = min(target_h / height, target_w / width, 1.0)
            size = [max(round(height * scale), 1), max(round(width * scale), 1)]
        elif least_h * width >= least_w * height:
            size = [least_h, max(least_h * width // height, least_w)]
        else:
            size = [max(least_w * height // width, least_h), least_w]
        pixels = raw
        if size != [height, width]:
            pixels = _resized(raw, size, self.interpolation)
        down, across = height / size[0], width / size[1]
        top = left = 0
        if self.resize != "within":
            top, left = round((size[0] - target_h) / 2), round((size[1] - target_w) / 2)
            pixels = pixels[:, top : top + target_h, left : left + target_w]
        return pixels, [top * down, left * across, down, across]


class ImageAdapter(nn.Module):
    """Images to Tokens: each patch flattened and projected to D (arXiv:2010.11929, 3.1), row by row.

    Args:
        dim: width D of a token.
        patch_size: height and width of a patch in pixels.
        stride: from one patch to the next, patch_size unless given; smaller ones overlap.
        stem: patch, or conv for a convolutional grid with patch_size as its stride.
        image_size: largest height and width, or the exact size with stretch and crop; none for any size.
        resize: within (shrink what is larger, keep the shape, mask the rest), stretch, or crop the middle.
        crop_share: share of the picture's shorter side that the crop keeps.
        interpolation: bilinear or bicubic, in resizing.
        in_channels: 3 for colour, 1 for grey.
        mean: of each channel, 0 to 1, taken off; found in the training split unless given.
        std: of each channel, divided by; found in the training split unless given.
        position: learned (interpolated to any grid), sinusoidal or none, added to each column.
        max_pixels: a larger file is bad, whatever it is resized to.
        dropout: of the embedded columns, in training.
        norm: a layer norm of the embedded columns.
        norm_eps: added to the variance in that norm.
        token_dropout: share of the patches left out of each picture, in training (arXiv:2212.00794).
        augment: changes to training pictures.
    """

    modality = "image"

    def __init__(
        self,
        dim: int = 128,
        *,
        patch_size: int = 16,
        stride: int | None = None,
        stem: Literal["patch", "conv"] = "patch",
        image_size: int | Sequence[int] | None = 224,
        resize: Resize = "within",
        crop_share: float = 1.0,
        interpolation: Interpolation = "bilinear",
        in_channels: Literal[1, 3] = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        position: PositionKind = "learned",
        max_pixels: int = 50_000_000,
        dropout: float = 0.0,
        norm: bool = False,
        norm_eps: float = 1e-5,
        token_dropout: float = 0.0,
        augment: ImageAugment | None = None,
    ):
        super().__init__()
        if stem == "conv" and stride not in (None, patch_size):
            raise ValueError(f"a convolutional stem has patch_size as its stride, got {stride} and {patch_size}")
        if stride is not None and not 0 < stride <= patch_size:
            raise ValueError(f"stride must be at least 1 and at most patch_size, got {stride} and {patch_size}")
        if resize != "within" and image_size is None:
            raise ValueError(f"resize={resize} needs an image_size")
        self.dim, self.patch_size, self.stride = dim, patch_size, stride or patch_size
        self.prepare = ImagePrepare(
            image_size=image_size,
            resize=resize,
            crop_share=crop_share,
            interpolation=interpolation,
            in_channels=in_channels,
            max_pixels=max_pixels,
            augment=augment,
        )
        self.mean: Tensor
        self.std: Tensor
        if (mean is None) != (std is None) or any(len(v) != in_channels for v in (mean, std) if v is not None):
            raise ValueError(f"mean and std must be given both, {in_channels} numbers each, got {mean} and {std}")
        self.given = mean is not None
        self.register_buffer("mean", torch.tensor(mean or [0.5] * in_channels))
        self.register_buffer("std", torch.tensor(std or [0.5] * in_channels))
        if stem == "conv":
            self.stem = ConvStem(in_channels=in_channels, dim=dim, stride=patch_size)
        else:
            self.stem = None
            self.proj = nn.Linear(in_channels * patch_size**2, dim)
        grid = self._grid(torch.tensor([self.prepare.size_limit or (224, 224)]))[0].tolist()
        self.position = Positions2d(position, dim=dim, grid=(grid[0], grid[1]))
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if norm else nn.Identity()
        self.dropout, self.token_dropout = nn.Dropout(dropout), token_dropout

    def fit(self, raws: Iterable[Tensor]) -> ImageAdapter:
        """Unless given, mean and deviation of each channel over up to 1,000 pictures of the training split."""
        if self.given:
            return self
        pixels = [raw.flatten(1) for raw in islice(raws, 1000)]
        count = sum(p.shape[1] for p in pixels)
        if count:
            total, squares = torch.stack([_moments(p.double() / 255) for p in pixels]).sum(0)
            mean = total / count
            self.mean.copy_(mean)
            self.std.copy_((squares / count - mean**2).clamp(min=1e-6).sqrt())
        return self

    def save(self, folder: Path) -> None:
        """Nothing but weights to save."""

    def load(self, folder: Path) -> None:
        """Nothing but weights to load."""

    def tokens(self, raws: Sequence) -> Tokens:
        """Paths, bytes, PIL images or arrays straight to Tokens."""
        prepare = self.prepare
        return self(prepare.collate([prepare(prepare.read(raw)) for raw in raws]))

    def describe(self, raw: Tensor) -> str:
        """What the columns are: the patch grid."""
        height, width = self.prepare(raw)["pixels"].shape[1:]
        rows, columns = self._grid(torch.tensor([[height, width]]))[0].tolist()
        size = f"{height}×{width} (height×width)"
        return f"{rows}×{columns} patches of {self.patch_size}×{self.patch_size} pixels of {size}"

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """A collated batch to Tokens (B, N, D), N patches row by row."""
        sizes = batch["sizes"]
        x = self._normalise(batch["pixels"], sizes)
        grids = self._grid(sizes)
        x = self.stem(x, sizes) if self.stem is not None else self.proj(self._patches(x))
        x = x + self._positions(grids, x.shape[1], x.shape[2])
        mask = grid_mask(grids, x.shape[1], x.shape[2])
        x, mask = rearrange(x, "b h w d -> b (h w) d"), rearrange(mask, "b h w -> b (h w)")
        places = self._places(batch["frame"], sizes, mask)
        if self.training and self.token_dropout:
            x, mask, places = _drop_tokens(x, mask, places, self.token_dropout)
        return Tokens(self.dropout(self.norm(x)), mask, (Span("image", 0, x.shape[1], places),))

    def _normalise(self, pixels: Tensor, sizes: Tensor) -> Tensor:
        """uint8 to zero mean and unit deviation, and zero outside each picture."""
        x = (pixels.to(self.mean.dtype) / 255 - self.mean[:, None, None]) / self.std[:, None, None]
        if len(x) > 1:
            x = x * grid_mask(sizes, x.shape[2], x.shape[3])[:, None]
        return x

    def _patches(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, h, w, C P P), the last patch of a row and column filled up with zeros."""
        grid_h, grid_w = self._grid(torch.tensor([x.shape[2:]]))[0].tolist()
        need_h = (grid_h - 1) * self.stride + self.patch_size
        need_w = (grid_w - 1) * self.stride + self.patch_size
        x = F.pad(x, (0, need_w - x.shape[3], 0, need_h - x.shape[2]))
        x = x.unfold(2, self.patch_size, self.stride).unfold(3, self.patch_size, self.stride)
        return rearrange(x, "b c h w p q -> b h w (c p q)")

    def _grid(self, sizes: Tensor) -> Tensor:
        """Pixels (B, 2) to patches (B, 2): as many as it takes to see every pixel."""
        over = (sizes - self.patch_size).clamp(min=0)
        return (over + self.stride - 1) // self.stride + 1

    def _positions(self, grids: Tensor, height: int, width: int) -> Tensor:
        """One grid for all, or each picture's own where they differ: (1 or B, height, width, D)."""
        shapes = [tuple(g) for g in grids.tolist()]
        if len(set(shapes)) == 1 and shapes[0] == (height, width):
            return self.position(height, width, grids.device)[None]
        codes = {shape: self.position(*shape, grids.device) for shape in set(shapes)}
        if next(iter(codes.values())).ndim == 0:
            return torch.zeros((), device=grids.device)
        padded = {(h, w): F.pad(code, (0, 0, 0, width - w, 0, height - h)) for (h, w), code in codes.items()}
        return torch.stack([padded[shape] for shape in shapes])

    def _places(self, frame: Tensor, sizes: Tensor, mask: Tensor) -> Tensor:
        """(B, N, 4): top, left, bottom, right of each patch in raw pixels, NaN at padding."""
        height, width = (int(n) for n in self._grid(sizes).amax(0))
        corner = torch.cartesian_prod(torch.arange(height), torch.arange(width)).to(sizes.device) * self.stride
        end = torch.minimum(corner[None] + self.patch_size, sizes[:, None])
        box = torch.cat([corner[None].expand_as(end), end], -1).float()
        box = box * frame[:, None, 2:].repeat(1, 1, 2) + frame[:, None, :2].repeat(1, 1, 2)
        return box.masked_fill(~mask[..., None], torch.nan)


def _moments(x: Tensor) -> Tensor:
    return torch.stack([x.sum(1), (x**2).sum(1)])


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"image_size must be one positive number or [height, width], got {size}")
    return pair


def _drop_tokens(x: Tensor, mask: Tensor, places: Tensor, share: float):
    """Keep a random (1 - share) of the columns of each sample: fewer columns, faster steps."""
    keep = max(round(x.shape[1] * (1 - share)), 1)
    order = torch.rand(mask.shape, device=x.device).masked_fill(~mask, 2).argsort(1)[:, :keep].sort(1).values
    columns = order[..., None]
    return (
        x.gather(1, columns.expand(-1, -1, x.shape[2])),
        mask.gather(1, order),
        places.gather(1, columns.expand(-1, -1, places.shape[2])),
    )
