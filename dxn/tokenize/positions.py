"""Position embeddings that an adapter adds to its columns: those of a sequence, and of a grid.

Rotary and ALiBi positions act inside the attention, so the backbone provides them.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.schema import checked
from dxn.core.tokens import can_read, sinusoidal

PosEmbedKind = Literal["learned", "sinusoidal", "none"]


class PosEmbed1d(nn.Module):
    """Position embedding of the indices 0 to n - 1.

    Args:
        kind: learned, sinusoidal or none.
        dim: Width D.
        max_len: Number of learned positions. The other kinds have no limit.
    """

    @checked
    def __init__(self, kind: PosEmbedKind, *, dim: int, max_len: int):
        super().__init__()
        self.kind = kind
        self.dim = dim
        self.max_len = max_len
        if kind == "learned":
            self.weight = nn.Parameter(torch.empty(max_len, dim))
            # 0.02 is the standard deviation of BERT and ViT: small compared with the embeddings.
            nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, n: int, device: torch.device) -> Tensor:
        """Return position embeddings (n, D), or a scalar 0 () without positions.

        Raises:
            ValueError: If n exceeds the number of learned positions.
        """
        if self.kind == "none":
            return torch.zeros((), device=device)
        if self.kind == "sinusoidal":
            return sinusoidal(torch.arange(n, device=device), self.dim)
        if n > self.max_len:
            raise ValueError(
                f"learned positions reach {self.max_len} tokens, got {n}: raise max_len"
            )
        return self.weight[:n]

    def at(self, index: Tensor) -> Tensor:
        """Return the position embeddings (..., D) of these indices (...), or a scalar 0 ()."""
        if self.kind == "none":
            return torch.zeros((), device=index.device)
        return sinusoidal(index, self.dim) if self.kind == "sinusoidal" else self.weight[index]


def sinusoidal_2d(height: int, width: int, dim: int) -> Tensor:
    """Compute sinusoidal positions of a grid.

    The first half of each vector encodes the row, the second half encodes the column.

    Returns:
        (height, width, dim).

    Raises:
        ValueError: If dim is not a multiple of 4.
    """
    # Each half must be even, because it consists of sines and cosines.
    if dim % 4:
        raise ValueError(
            f"dim must be a multiple of 4 for two-dimensional sinusoidal positions, got {dim}"
        )
    rows = sinusoidal(torch.arange(height), dim // 2)
    columns = sinusoidal(torch.arange(width), dim // 2)
    rows = repeat(rows, "h d -> h w d", w=width)
    columns = repeat(columns, "w d -> h w d", h=height)
    return torch.cat([rows, columns], dim=-1)


class PosEmbed2d(nn.Module):
    """Position embedding of the cells of a grid.

    Args:
        kind: learned, sinusoidal or none.
        dim: Width D.
        grid: Height and width of the learned grid. It is interpolated to other grid sizes.
        antialias: Whether to use antialiasing when the learned grid is reduced.
        is_time: Whether the first axis is time. It is not interpolated, because a step has a fixed
            duration: a shorter sequence has the first of the learned positions.
    """

    @checked
    def __init__(
        self,
        kind: PosEmbedKind,
        *,
        dim: int,
        grid: tuple[int, int],
        antialias: bool = True,
        is_time: bool = False,
    ):
        super().__init__()
        self.kind = kind
        self.dim = dim
        self.antialias = antialias
        self.is_time = is_time
        if kind == "learned":
            self.weight = nn.Parameter(torch.empty(*grid, dim))
            nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, height: int, width: int, device: torch.device) -> Tensor:
        """Return position embeddings (height, width, D), or a scalar 0 () without positions.

        Raises:
            ValueError: If there are more time steps than learned positions.
        """
        if self.kind == "none":
            return torch.zeros((), device=device)
        if self.kind == "sinusoidal":
            return sinusoidal_2d(height, width, self.dim).to(device)
        if self.is_time:
            if height > len(self.weight):
                raise ValueError(
                    f"learned positions reach {len(self.weight)} steps, got {height}: raise max_len"
                )
            return self.weight[:height]
        if (height, width) == self.weight.shape[:2]:
            return self.weight
        return interpolate_grid(self.weight, height, width, antialias=self.antialias)

    def of_grids(
        self, grids: Tensor | None, height: int, width: int, device: torch.device
    ) -> Tensor:
        """Return position embeddings (1, height, width, D), or a scalar 0 () without positions.

        The shape is (B, height, width, D) if the samples of a batch have different grids.

        Args:
            grids: (B, 2). Height and width of the grid of each sample. None: they are equal.
            height: Height of the padded grid.
            width: Width of the padded grid.
            device: Device of the embeddings.
        """
        # In a graph, pictures of a fixed size have a number here, and others a symbol.
        is_fixed = isinstance(height, int) and isinstance(width, int)
        # Other positions of a smaller grid are the first ones of a larger grid.
        is_same = self.kind != "learned" or (torch.compiler.is_exporting() and is_fixed)
        if grids is None or is_same:
            codes = self(height, width, device)
            return codes[None] if codes.ndim else codes
        if not can_read(grids):
            rows = resize_weights(
                grids[:, 0], height, self.weight.shape[0], antialias=self.antialias
            )
            columns = resize_weights(
                grids[:, 1], width, self.weight.shape[1], antialias=self.antialias
            )
            return torch.einsum("bhi,ijd,bwj->bhwd", rows, self.weight, columns)
        shapes = [(h, w) for h, w in grids.tolist()]
        # One interpolation per distinct shape: samples of a batch often share a few shapes.
        codes = {shape: self(*shape, device) for shape in set(shapes)}
        padded = {
            (h, w): F.pad(code, (0, 0, 0, width - w, 0, height - h))
            for (h, w), code in codes.items()
        }
        return torch.stack([padded[shape] for shape in shapes])


def interpolate_grid(grid: Tensor, height: int, width: int, *, antialias: bool) -> Tensor:
    """Interpolate (H, W, D) to (height, width, D) as timm and transformers do."""
    resized = F.interpolate(
        rearrange(grid, "h w d -> 1 d h w"),
        (height, width),
        mode="bicubic",
        antialias=antialias,
        align_corners=False,
    )
    return rearrange(resized, "1 d h w -> h w d")


def resize_weights(sizes: Tensor, count: int, source: int, *, antialias: bool) -> Tensor:
    """Return the weights of a bicubic interpolation along one axis.

    They are those of torch.nn.functional.interpolate, which needs the same size for all samples.

    Args:
        sizes: (B,). Size of the result of each sample.
        count: Maximum number of results.
        source: Number of values that are interpolated.
        antialias: Whether to use antialiasing if there are fewer results than values.

    Returns:
        (B, count, source). Zeros for results beyond the size of a sample.
    """
    scale = source / sizes[:, None, None]
    center = (torch.arange(count, device=sizes.device)[:, None] + 0.5) * scale
    # Without antialiasing, the first and the last value are repeated beyond the edge.
    margin = 0 if antialias else 2
    index = torch.arange(-margin, source + margin, device=sizes.device)
    x = ((index + 0.5 - center) / (scale.clamp(min=1) if antialias else 1)).abs()
    # The cubic filter of Keys. torch uses the parameter of Pillow with antialiasing, and that of
    # OpenCV without.
    a = -0.5 if antialias else -0.75
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weights = weights @ F.one_hot(index.clamp(0, source - 1), source).to(weights)
    is_inside = torch.arange(count, device=sizes.device)[:, None] < sizes[:, None, None]
    weights = weights * is_inside
    return weights / torch.where(is_inside, weights.sum(-1, keepdim=True), 1.0)
