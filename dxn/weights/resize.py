"""Resize position embeddings and vocabularies of a checkpoint to the sizes of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from dxn.tokenize.positions import interpolate_grid


def resize_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    *,
    antialias: bool = True,
    continuous: bool = True,
    is_time: bool = False,
) -> Tensor:
    """Resize position embeddings or the vocabulary of an adapter.

    Two-dimensional position embeddings (H, W, D) are interpolated (bicubic). One-dimensional
    position embeddings (N, D) are truncated if the model needs fewer, and interpolated (linear) if
    it needs more. The same holds for the time axis of two-dimensional ones. A vocabulary (V, D) is
    truncated.

    Args:
        name: Name of the tensor in the model.
        tensor: Tensor of the checkpoint.
        shape: Shape of the tensor in the model.
        antialias: Whether to use antialiasing when (H, W) is reduced.
        continuous: Whether positions are points on a continuous axis, such as time. Positions of
            text tokens are discrete, so their embeddings are not interpolated.
        is_time: Whether the first axis of (H, W, D) is time.

    Returns:
        The resized tensor, or the unchanged tensor if it cannot be resized. The caller must compare
        the shape.
    """
    # Tensors outside of adapters do not depend on the size of the inputs or the vocabulary.
    if tensor.shape == torch.Size(shape) or not name.startswith("adapters."):
        return tensor
    is_positions = name.endswith(".pos_embed.weight")
    if is_positions and tensor.ndim == len(shape) == 3:
        if not is_time:
            return interpolate_grid(tensor, shape[0], shape[1], antialias=antialias)
        bands = tensor.shape[1]
        line = rearrange(tensor, "t f d -> t (f d)")
        line = line[: shape[0]] if len(line) > shape[0] else _resize_line(line, shape[0])
        return rearrange(line, "t (f d) -> t f d", f=bands)
    if tensor.ndim != 2 or len(shape) != 2:
        return tensor
    # Truncating position embeddings does not change the output for short inputs, which use the
    # first positions. Vocabularies of published models are often padded at the end to a multiple of
    # 64 or 128, for fast matrix multiplication, and the padding has no tokens.
    if len(tensor) > shape[0] and (is_positions or name.endswith(".embedding.weight")):
        return tensor[: shape[0]]
    if is_positions and continuous:
        return _resize_line(tensor, shape[0])
    return tensor


def _resize_line(line: Tensor, length: int) -> Tensor:
    """Interpolate (N, D) to (length, D). The first and the last embedding do not change."""
    resized = F.interpolate(
        rearrange(line, "n d -> 1 d n"), length, mode="linear", align_corners=True
    )
    return rearrange(resized, "1 d n -> n d")
