"""Conversions between the tensors of public models and of dxn models, for tensor maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from einops import rearrange
from torch import Tensor

from dxn.weights.family import TensorMap, TensorSource

# The checkpoint's layer for each layer of a dxn module, by name. If dxn concatenates several layers
# of the checkpoint into one, the value is a tuple.
LayerNames = Mapping[str, str | tuple[str, ...]]


def copied(name: str) -> TensorSource:
    """Use the tensor unchanged."""
    return TensorSource((name,), lambda t: t, lambda t: (t,))


def flattened(name: str) -> TensorSource:
    """Use a vector that is stored with additional dimensions of size one."""
    # There is no inverse, because the original shape is not known here.
    return TensorSource((name,), lambda t: t.flatten())


def stacked(*names: str) -> TensorSource:
    """Concatenate tensors of equal shape along the first dimension, such as q, k and v."""
    return TensorSource(names, lambda *ts: torch.cat(ts), lambda t: t.chunk(len(names)))


def transposed(name: str) -> TensorSource:
    """Transpose a weight that is stored as (in_features, out_features)."""
    return TensorSource((name,), lambda t: t.T, lambda t: (t.T,))


def halves_swapped(name: str) -> TensorSource:
    """Swap the two halves of the first layer of a gated MLP.

    The first dimension is (value, gate) in dxn, and (gate, value) in the checkpoint.
    """
    return TensorSource((name,), _swap_halves, lambda t: (_swap_halves(t),))


def patch_matrix(name: str, *, channels: int, height: int, width: int) -> TensorSource:
    """Reshape the kernel of a convolution (D, C, P, Q) to the weight of a linear (D, C * P * Q).

    A convolution whose kernel covers one patch is equal to a linear layer on flattened patches.

    Args:
        name: Name of the kernel in the checkpoint.
        channels: Number of channels C.
        height: Height P of a patch.
        width: Width Q of a patch.
    """
    shape = {"c": channels, "p": height, "q": width}
    return TensorSource(
        (name,),
        lambda t: rearrange(t, "d c p q -> d (c p q)"),
        lambda t: (rearrange(t, "d (c p q) -> d c p q", **shape),),
    )


def leading_tokens(tokens: Sequence[str], pos_embed: str, num_patches: int) -> TensorSource:
    """Add class token and registers to their position embeddings, which results in (K, D).

    In dxn a leading token has no separate position embedding. Both are constants, so their sum is
    sufficient.

    Args:
        tokens: Names of the tensors of leading tokens. Each has the shape (1, k, D), and the sizes
            k add up to K.
        pos_embed: Name of the position embeddings (1, L + num_patches, D), L <= K. They contain the
            first L leading tokens.
        num_patches: Number of patches.
    """

    def convert(*tensors: Tensor) -> Tensor:
        *parts, positions = tensors
        leading = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
        leading_positions = positions.reshape(-1, positions.shape[-1])[:-num_patches]
        # Tokens without a position embedding, such as DINOv2's registers, are padded with zeros.
        num_zeros = len(leading) - len(leading_positions)
        zeros = leading_positions.new_zeros(num_zeros, leading.shape[1])
        return leading + torch.cat([leading_positions, zeros])

    return TensorSource((*tokens, pos_embed), convert)


def patch_positions(name: str, grid: tuple[int, int]) -> TensorSource:
    """Select the position embeddings of the patches, and reshape them to (H, W, D).

    Args:
        name: Name of the position embeddings (1, L + H * W, D). The first L belong to leading
            tokens.
        grid: Number of patches (H, W).
    """

    def convert(positions: Tensor) -> Tensor:
        return positions.reshape(-1, positions.shape[-1])[-math.prod(grid) :].view(*grid, -1)

    return TensorSource((name,), convert)


def mean_of_classifiers(first: str, second: str) -> TensorMap:
    """Combine the two classifiers of a distilled DeiT into one.

    DeiT returns the mean of a classifier on the class token and one on the distillation token. dxn
    concatenates the two tokens, so that one linear layer with half of each weight is equivalent.

    Args:
        first: Name of the classifier of the class token.
        second: Name of the classifier of the distillation token.
    """
    return {
        "head.out.weight": TensorSource(
            (f"{first}.weight", f"{second}.weight"),
            lambda a, b: torch.cat([a, b], 1) / 2,
            lambda t: [2 * half for half in t.chunk(2, 1)],
        ),
        # Only the mean of the two biases has an effect, so the inverse sets both to the mean.
        "head.out.bias": TensorSource(
            (f"{first}.bias", f"{second}.bias"), lambda a, b: (a + b) / 2, lambda t: (t, t)
        ),
    }


def linears(names: LayerNames) -> TensorMap:
    """Map the weights and biases of layers. Several layers of the checkpoint are concatenated."""
    result: TensorMap = {}
    for name, layers in names.items():
        stack = (layers,) if isinstance(layers, str) else layers
        for kind in ("weight", "bias"):
            result[f"{name}.{kind}"] = stacked(*(f"{layer}.{kind}" for layer in stack))
    return result


def blocks(names: LayerNames, *, prefix: str, depth: int) -> TensorMap:
    """Map the weights and biases of all blocks of the backbone.

    Args:
        names: Layer names within a block of the checkpoint, by layer name within a dxn block.
        prefix: Name of a block in the checkpoint, in which {i} is the index.
        depth: Number of blocks.
    """
    result: TensorMap = {}
    for i in range(depth):
        block = prefix.format(i=i)
        full_names: dict[str, str | tuple[str, ...]] = {}
        for name, layers in names.items():
            stack = (layers,) if isinstance(layers, str) else layers
            full_names[f"backbone.blocks.{i}.{name}"] = tuple(f"{block}.{layer}" for layer in stack)
        # `names` may contain optional layers. `PublicModel.fill` ignores entries of a tensor map
        # that the model does not have.
        result |= linears(full_names)
    return result


def _swap_halves(t: Tensor) -> Tensor:
    first, second = t.chunk(2)
    return torch.cat([second, first])
