"""Conversions between the tensors of public models and of dxn models, and to other sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from dxn.tokenize.positions import interpolate_grid
from dxn.weights.family import TensorMap, TensorSource

# The checkpoint's layer for each layer of a dxn module, by name. If dxn concatenates several layers
# of the checkpoint into one, the value is a tuple.
LayerNames = Mapping[str, str | tuple[str, ...]]

# Prefixes of the tensors that `resize_tensor` resizes, and ends of the names of vocabularies.
RESIZED = ("adapters.", "head.decoder.embedding.", "head.decoder.output.", "head.output.")
VOCABULARIES = (".embedding.weight", ".output.weight", ".output.bias")


def copied(name: str) -> TensorSource:
    """Use the tensor unchanged."""
    return TensorSource((name,), lambda t: t, lambda t: (t,), moves=True)


def flattened(name: str) -> TensorSource:
    """Use a vector that is stored with additional dimensions of size one.

    The original shape is not known here, so the inverse is the vector too.
    """
    return TensorSource((name,), lambda t: t.flatten(), lambda t: (t,), moves=True)


def without_leading_rows(name: str, count: int) -> TensorSource:
    """Use a matrix without its first `count` rows, which the model never reads."""
    return TensorSource(
        (name,), lambda t: t[count:], lambda t: (F.pad(t, (0, 0, count, 0)),), moves=True
    )


def stacked(*names: str, rows: Sequence[int] = ()) -> TensorSource:
    """Concatenate tensors along the first dimension, such as q, k and v.

    Args:
        names: Names of the tensors.
        rows: Size of the first dimension of each tensor. Default: they have the same size.
    """

    def invert(t: Tensor) -> Sequence[Tensor]:
        return t.split(list(rows)) if rows else t.chunk(len(names))

    return TensorSource(names, lambda *ts: ts[0] if len(ts) == 1 else torch.cat(ts), invert, True)


def transposed(name: str) -> TensorSource:
    """Transpose a weight that is stored as (in_features, out_features)."""
    return TensorSource((name,), lambda t: t.T, lambda t: (t.T,), moves=True)


def halves_swapped(name: str) -> TensorSource:
    """Swap the two halves of the first layer of a gated MLP.

    The first dimension is (value, gate) in dxn, and (gate, value) in the checkpoint.
    """
    return TensorSource((name,), _swap_halves, lambda t: (_swap_halves(t),), moves=True)


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
        moves=True,
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


def patch_positions(name: str, grid: Sequence[int]) -> TensorSource:
    """Select the position embeddings of the patches, and reshape them to (H, W, D).

    Args:
        name: Name of the position embeddings (1, L + H * W, D). The first L belong to leading
            tokens.
        grid: Number of patches (H, W).
    """

    def convert(positions: Tensor) -> Tensor:
        return positions.reshape(-1, positions.shape[-1])[-math.prod(grid) :].view(*grid, -1)

    return TensorSource((name,), convert, moves=True)


def map_pooling(
    probe: str,
    *,
    weights: Sequence[str],
    biases: Sequence[str],
    layers: LayerNames,
    num_heads: int,
) -> TensorMap:
    """Map the tensors of pool=map: a probe, its attention to all tokens, and an MLP.

    The query is a constant, so its product with the weights of the keys is too, see `MapPooling`.

    Args:
        probe: Name of the probe (1, 1, D).
        weights: Names of the weights of the query, the keys and the values, which have 3 D rows
            together.
        biases: Names of their biases.
        layers: Layer names of the checkpoint for proj, norm, mlp.up and mlp.down.
        num_heads: Number of heads.
    """

    def score(probe: Tensor, *rest: Tensor) -> Tensor:
        query_weight, key_weight, _ = torch.cat(rest[: len(weights)]).chunk(3)
        query = query_weight @ probe.flatten() + torch.cat(rest[len(weights) :])[: probe.numel()]
        query = rearrange(query, "(h d) -> h 1 d", h=num_heads)
        keys = rearrange(key_weight, "(h d) e -> h d e", h=num_heads)
        return (query @ keys).squeeze(1) / query.shape[2] ** 0.5

    def values(*projections: Tensor) -> Tensor:
        return torch.cat(projections).chunk(3)[2]

    pool = "fusion.pool.map"
    return {
        f"{pool}.score.weight": TensorSource((probe, *weights, *biases), score),
        f"{pool}.value.weight": TensorSource(tuple(weights), values, moves=True),
        f"{pool}.value.bias": TensorSource(tuple(biases), values, moves=True),
        **linears({f"{pool}.{name}": layer for name, layer in layers.items()}),
    }


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


def linears(names: LayerNames, *, rows: Mapping[str, Sequence[int]] | None = None) -> TensorMap:
    """Map the weights and biases of layers. Several layers of the checkpoint are concatenated.

    `fill` ignores a bias that neither model has. If only dxn's model has it, the family lists it in
    `optional_biases`, such as that of the keys, which is zero then.

    Args:
        names: Layer names of the checkpoint, by layer name in dxn.
        rows: Numbers of rows of concatenated layers, by the end of their name in dxn. Default: they
            have the same number. Grouped heads need {"attn.qkv": (H d, G d, G d)}, for H heads of
            the queries and G heads of the keys and values, of width d.
    """
    result: TensorMap = {}
    for name, layers in names.items():
        stack = (layers,) if isinstance(layers, str) else layers
        sizes = next((size for end, size in (rows or {}).items() if name.endswith(end)), ())
        for kind in ("weight", "bias"):
            result[f"{name}.{kind}"] = stacked(*(f"{layer}.{kind}" for layer in stack), rows=sizes)
    return result


def blocks(
    names: LayerNames,
    *,
    prefix: str,
    depth: int,
    to: str = "backbone.blocks",
    rows: Mapping[str, Sequence[int]] | None = None,
) -> TensorMap:
    """Map the weights and biases of all blocks of a backbone.

    Args:
        names: Layer names within a block of the checkpoint, by layer name within a dxn block:
            attn_norm, attn.qkv, attn.q_norm, attn.k_norm, attn.proj, mlp_norm, mlp.up and mlp.down,
            and in a decoder cross_norm, cross.query, cross.memory and cross.proj.
        prefix: Name of a block in the checkpoint, in which {i} is the index.
        depth: Number of blocks.
        to: Name of the blocks in dxn: "head.decoder.backbone.blocks" for those of a decoder.
        rows: See `linears`.
    """
    result: TensorMap = {}
    for i in range(depth):
        block = prefix.format(i=i)
        full_names: dict[str, str | tuple[str, ...]] = {}
        for name, layers in names.items():
            stack = (layers,) if isinstance(layers, str) else layers
            full_names[f"{to}.{i}.{name}"] = tuple(f"{block}.{layer}" for layer in stack)
        # `names` may contain optional layers. `PublicModel.fill` ignores entries of a tensor map
        # that the model does not have.
        result |= linears(full_names, rows=rows)
    return result


def layer_scales(prefix: str, attn: str, mlp: str, depth: int) -> TensorMap:
    """Map the layer scale of the attention and of the MLP of all blocks.

    Args:
        prefix: Name of a block in the checkpoint, in which {i} is the index.
        attn: Name of the factors of the attention within a block.
        mlp: Name of the factors of the MLP.
        depth: Number of blocks.
    """
    return {
        f"backbone.blocks.{i}.{ours}.factor": copied(f"{prefix.format(i=i)}.{theirs}")
        for i in range(depth)
        for ours, theirs in (("attn_out", attn), ("mlp_out", mlp))
    }


def _swap_halves(t: Tensor) -> Tensor:
    first, second = t.chunk(2)
    return torch.cat([second, first])


def resize_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    *,
    antialias: bool = True,
    continuous: bool = True,
    is_time: bool = False,
) -> Tensor:
    """Resize position embeddings of an adapter, or a vocabulary.

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
    # Other tensors do not depend on the size of the inputs or the vocabulary.
    if tensor.shape == torch.Size(shape) or not name.startswith(RESIZED):
        return tensor
    is_positions = name.endswith(".pos_embed.weight")
    if is_positions and tensor.ndim == len(shape) == 3:
        if not is_time:
            return interpolate_grid(tensor, shape[0], shape[1], antialias=antialias)
        bands = tensor.shape[1]
        line = rearrange(tensor, "t f d -> t (f d)")
        line = line[: shape[0]] if len(line) > shape[0] else _resize_line(line, shape[0])
        return rearrange(line, "t (f d) -> t f d", f=bands)
    if tensor.ndim != len(shape) or tensor.ndim > 2:
        return tensor
    # Truncating position embeddings does not change the output for short inputs, which use the
    # first positions. Vocabularies of published models are often padded at the end to a multiple of
    # 64 or 128, for fast matrix multiplication, and the padding has no tokens.
    if len(tensor) > shape[0] and (is_positions or name.endswith(VOCABULARIES)):
        return tensor[: shape[0]]
    if is_positions and continuous and tensor.ndim == 2:
        return _resize_line(tensor, shape[0])
    return tensor


def with_new_rows(tensor: Tensor, length: int, num_new: int) -> Tensor:
    """Return a tensor of a vocabulary with rows for new tokens, which are the mean of all rows.

    Args:
        tensor: Embedding (V, D) or bias (V,) of the checkpoint.
        length: Number of tokens of the model.
        num_new: Maximum number of new tokens. With more, the tensor is returned unchanged.
    """
    missing = length - len(tensor)
    if not 0 < missing <= num_new:
        return tensor
    return torch.cat([tensor, tensor.mean(0, keepdim=True).expand(missing, *tensor.shape[1:])])


def _resize_line(line: Tensor, length: int) -> Tensor:
    """Interpolate (N, D) to (length, D). The first and the last embedding do not change."""
    resized = F.interpolate(
        rearrange(line, "n d -> 1 d n"), length, mode="linear", align_corners=True
    )
    return rearrange(resized, "1 d n -> n d")
