"""Fine-tuning: frozen weights, also of 8 or 4 bits, and low-rank updates (LoRA) of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.schema import checked
from dxn.core.tokens import matmul_dtype
from dxn.models.fusion import shared_name
from dxn.models.inference import TINY, to_int8
from dxn.models.model import MultimodalModel

MAX_LISTED = 6  # linear layers that an error message lists, so that it fits on a few lines
# The name of a target, and its pattern: the linear layers of all blocks, also those of a decoder.
ALL_LINEAR = "all-linear"
BLOCKS = "*.blocks.*"
MODEL_PARTS = ("adapters", "fusion", "backbone", "head")  # of a model
# With the scale alpha / sqrt(rank), alpha does not depend on the rank. It is that of rank 8 with
# the other scale.
STABILIZED_ALPHA = 16.0
FrozenKind = Literal["int8", "nf4"]
# Numbers with a common scale. More of them need less memory, and have larger errors.
BLOCK = 64
# Quantile at which the largest level stands, so that it is finite: the mean of 1 - 1/32 and
# 1 - 1/30, half a step of the 16 and of the 15 levels of a half (arXiv:2305.14314, section 3).
LARGEST = (1 - 1 / 32 + 1 - 1 / 30) / 2


class Finetune:
    """Selects the weights of a model that are trained.

    Args:
        freeze: Weights to freeze. all: every pretrained weight, or all weights except the head if
            there are no pretrained weights. A number: the adapters and this number of blocks. A
            list: names of weights or of parts, as in lora_targets. Null: none. Unless a list names
            it, the head of a new training is never frozen, but that of a language model or of a
            text generator is pretrained like its other weights.
        base: Precision of the frozen linear layers of the blocks: int8, or nf4 with 4 bits (QLoRA,
            arXiv:2305.14314). They are computed in the precision of the training. Null: that of the
            model.
        lora_rank: Rank of the low-rank updates (LoRA, arXiv:2106.09685). Each matrix in
            lora_targets is frozen, and its update is trained. 0: no LoRA.
        lora_alpha: Scale of the updates, which are multiplied by lora_alpha / lora_rank. Null:
            twice lora_rank, or 16 with lora_rank_stabilized.
        lora_dropout: Dropout probability of the inputs of the updates. The frozen matrices still
            get the whole inputs.
        lora_rank_stabilized: Multiply the updates by lora_alpha / sqrt(lora_rank)
            (arXiv:2312.03732), which suits ranks above 32.
        lora_targets: Names of the linear layers that receive an update, without what comes before:
            attn.qkv, attn.proj, mlp.up or mlp.down. A * stands for any part of a name, such as
            *.blocks.1.*. A name that starts with adapters, fusion, backbone or head is complete,
            such as backbone.*.attn.qkv. all-linear: all linear layers of the blocks.

    Raises:
        ValueError: If an option is out of range.
    """

    @checked
    def __init__(
        self,
        *,
        freeze: int | Literal["all"] | Sequence[str] | None = None,
        base: Literal["int8", "nf4"] | None = None,
        lora_rank: Annotated[int, Ge(0)] = 0,
        lora_alpha: Annotated[float, Gt(0)] | None = None,
        lora_dropout: Rate = 0.0,
        lora_rank_stabilized: bool = False,
        lora_targets: Sequence[str] = ("attn.qkv",),
    ):
        if isinstance(freeze, int) and freeze < 0:
            raise ValueError(f"freeze must be all, null or at least 0, got {freeze}")
        if lora_rank and not lora_targets:
            raise ValueError("lora_targets must name at least one linear layer if lora_rank is set")
        self.freeze = freeze
        self.frozen = () if isinstance(freeze, str) or not isinstance(freeze, Sequence) else freeze
        self.base: FrozenKind | None = base
        self.rank = lora_rank
        self.dropout = lora_dropout
        # The division by the rank makes one learning rate suit small ranks (arXiv:2106.09685,
        # section 4.1). Updates of large ranks would learn too slowly (arXiv:2312.03732, section 3).
        alpha, divisor = lora_alpha, max(lora_rank, 1)
        if lora_rank_stabilized:
            alpha, divisor = alpha or STABILIZED_ALPHA, divisor**0.5
        self.scale = (alpha or 2 * lora_rank) / divisor
        self.targets = tuple(lora_targets)

    def __call__(self, model: MultimodalModel, loaded: set[str]) -> None:
        """Freeze weights and add low-rank updates in place.

        Args:
            model: Model to fine-tune.
            loaded: Names of the parameters that were loaded from a checkpoint.

        Raises:
            UserError: If the model has fewer than `freeze` blocks, a target matches no linear
                layer, or a matrix cannot have an update.
        """
        if self.freeze is None and not self.rank and self.base is None:
            return
        depth = len(model.blocks)
        if isinstance(self.freeze, int) and self.freeze > depth:
            raise UserError(f"finetune.freeze: the backbone has {depth} blocks, got {self.freeze}")
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.frozen:
            if not any(is_part_of(name, pattern) for name in names):
                raise UserError(
                    f"finetune.freeze: no name of a weight or of a part matches {pattern!r}; the "
                    f"names of weights are {', '.join(names[:MAX_LISTED])}, ..."
                )
        for name, parameter in model.named_parameters():
            if self._is_frozen(name, loaded):
                parameter.requires_grad_(False)
        chosen = self._chosen(model) if self.rank else {}
        for linear in chosen.values():
            linear.weight.requires_grad_(False)
        if self.base is not None:
            self._quantize(model, self.base)
        for name, linear in chosen.items():
            update = LowRank(
                linear.out_features, linear.in_features, self.rank, self.scale, self.dropout
            )
            layer = model.get_submodule(name)  # it may have been quantized
            layer.add_module("lora", update.to(linear.weight))
            # A hook instead of another layer: the names of the weights do not change.
            layer.register_forward_hook(_add_update)

    def _is_frozen(self, name: str, loaded: set[str]) -> bool:
        if not isinstance(self.freeze, int | str | None):
            return any(is_part_of(name, pattern) for pattern in self.frozen)
        # Only pretrained weights are worth freezing. The others are random, so they are trained.
        is_random = name not in loaded and (bool(loaded) or name.startswith("head."))
        if self.freeze is None or is_random:
            return False
        if self.freeze == "all" or name.startswith("adapters."):
            return True
        # The trailing dot keeps blocks.1 from matching blocks.10.
        blocks = tuple(f"backbone.blocks.{i}." for i in range(int(self.freeze)))
        return shared_name(name).startswith(blocks)

    def _quantize(self, model: MultimodalModel, kind: FrozenKind) -> None:
        replaced: dict[nn.Module, FrozenLinear] = {}
        for name, layer in list(model.named_modules(remove_duplicate=False)):
            # Adapters receive precise numbers, and a head gives them.
            if type(layer) is nn.Linear and ".blocks." in name and not layer.weight.requires_grad:
                if layer not in replaced:
                    replaced[layer] = FrozenLinear(layer, kind)
                model.set_submodule(name, replaced[layer])
        if not replaced:
            raise UserError(
                f"finetune.base: no linear layer of the blocks is frozen, so none can be {kind}; "
                "set finetune.freeze=all or finetune.lora_rank"
            )

    def _chosen(self, model: MultimodalModel) -> dict[str, nn.Linear]:
        """Return the linear layers that match a target, by name."""
        linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        chosen: set[str] = set()
        for target in self.targets:
            pattern = BLOCKS if target == ALL_LINEAR else target
            matched = [n for n in linears if matches(n, pattern)]
            if not matched:
                listed = ", ".join(list(linears)[:MAX_LISTED])
                raise UserError(
                    f"finetune.lora_targets: no name of a linear layer ends in {target!r}; "
                    f"the first linear layers of this model are {listed}"
                )
            chosen.update(matched)
        for name in chosen:
            sides = linears[name].out_features, linears[name].in_features
            if self.rank > min(sides):
                raise UserError(
                    f"finetune.lora_rank: must be at most {min(sides)} for {name} with "
                    f"{sides[0]} x {sides[1]} weights, got {self.rank}; choose other layers with "
                    "finetune.lora_targets"
                )
        return {name: linear for name, linear in linears.items() if name in chosen}


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern describes a name, or its end if it does not start with a part of a model.

    Args:
        name: Complete name of a weight or a layer.
        pattern: See `lora_targets` of `Finetune`.
    """
    if pattern.partition(".")[0] in MODEL_PARTS:
        return fnmatchcase(name, pattern)
    # A name starts after a dot, so that proj does not match out_proj.
    return fnmatchcase(f".{name}", f"*.{pattern.lstrip('.')}")


def is_part_of(name: str, pattern: str) -> bool:
    """Whether a pattern describes a weight, or a part of the model that contains it."""
    return matches(name, pattern) or matches(name, f"{pattern}.*")


class LowRank(nn.Module):
    """The low-rank update scale * up @ down of a matrix (arXiv:2106.09685, section 4.1).

    Args:
        rows: Number of rows of the matrix.
        columns: Number of columns of the matrix.
        rank: Rank of the update: columns of `up` (rows, rank) and rows of `down` (rank, columns).
        scale: Factor of the update.
        dropout: Dropout probability of the input.
    """

    def __init__(self, rows: int, columns: int, rank: int, scale: float, dropout: float = 0.0):
        super().__init__()
        # `up` starts at zero, so that fine-tuning starts at the pretrained weights.
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.down = nn.Parameter(torch.randn(rank, columns) * columns**-0.5)
        self.scale = scale
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the product (..., rows) of x (..., columns) and the update.

        The update itself (rows, columns) and its gradient would need as many operations as the
        gradient of the frozen matrix.
        """
        if self.training and self.dropout:
            # As for the weights of the attention, masks are drawn by torch: a layer does not know
            # to which samples its inputs belong.
            x = F.dropout(x, self.dropout)
        return F.linear(self.scale * F.linear(x, self.down), self.up)

    def added_to(self, weight: Tensor) -> Tensor:
        """Return the weight (rows, columns) with the update added, in the dtype of the weight."""
        # In float32, so that a weight in bf16 is rounded only once.
        dtype = torch.promote_types(weight.dtype, torch.float32)
        update = self.up.to(dtype) @ self.down.to(dtype)
        return (weight.to(dtype) + self.scale * update).to(weight.dtype)


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return a state dict of a model without quantized layers and LowRank modules.

    Every update is added to its matrix.
    """
    state = model.state_dict()
    # A layer comes before its update.
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, FrozenLinear):
            state[f"{name}.weight"] = module.dense()
            del state[f"{name}.weight_scale"]
        elif isinstance(module, LowRank):
            for key in module.state_dict():
                del state[f"{name}.{key}"]
            matrix = f"{name.removesuffix('lora')}weight"
            state[matrix] = module.added_to(state[matrix])
    return state


def _add_update(linear: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    """Add the low-rank update of a linear layer to its output."""
    assert isinstance(linear.lora, LowRank)
    return output + linear.lora(args[0])


class FrozenLinear(nn.Module):
    """A linear layer whose weights are quantized and not trained.

    Products are computed in the precision of the input, with the weights that the numbers stand
    for. They exist during a product only, also in the backward pass.

    Args:
        linear: Layer to replace. Its bias is kept, and can be trained.
        kind: int8: 8 bits and a scale per row. nf4: 4 bits and a scale per BLOCK numbers
            (NormalFloat, arXiv:2305.14314).
    """

    def __init__(self, linear: nn.Linear, kind: FrozenKind):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.kind = kind
        quantized, scale = (to_int8 if kind == "int8" else to_nf4)(linear.weight.detach())
        # Parameters, not buffers: like all frozen weights, they are saved and sent once.
        self.weight = nn.Parameter(quantized, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.bias = linear.bias

    def extra_repr(self) -> str:
        """Describe the layer like an nn.Linear."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, kind={self.kind}"
        )

    def dense(self) -> Tensor:
        """Return the weights (out_features, in_features) in float32."""
        return _dense(self.weight, self.weight_scale, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., in_features)."""
        out: Any = _Product.apply(x.to(matmul_dtype(x)), self.weight, self.weight_scale)
        return out if self.bias is None else out + self.bias.to(out.dtype)


class _Product(torch.autograd.Function):
    """The product of x and quantized weights, which are not kept in full for the backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Return x @ weight.T for x (..., in_features), the weights and their scales."""
        x, weight, scale = inputs
        ctx.save_for_backward(weight, scale)
        ctx.columns = x.shape[-1]
        return F.linear(x, _dense(weight, scale, x.shape[-1]).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to x."""
        weight, scale = ctx.saved_tensors
        return grads[0] @ _dense(weight, scale, ctx.columns).to(grads[0].dtype), None, None


def to_nf4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x (R, C) to NF4.

    Returns:
        Two numbers per byte (R, ceil(C / BLOCK) * BLOCK / 2) uint8, and the scales of the blocks
        (R, ceil(C / BLOCK)) float32.
    """
    blocks = F.pad(x.float(), (0, -x.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    scale = blocks.abs().amax(-1).clamp_(min=TINY)
    levels = _levels().to(x.device)
    # The nearest level: the boundaries are in the middle of two levels.
    number = torch.bucketize(blocks / scale[..., None], (levels[1:] + levels[:-1]) / 2)
    high, low = number.flatten(1).to(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
    return high * 16 + low, scale


def _dense(weight: Tensor, scale: Tensor, columns: int) -> Tensor:
    """Return the weights (R, C) in float32 that quantized ones stand for."""
    if weight.dtype == torch.int8:
        return weight * scale
    pairs = _pairs().to(weight.device)
    values = F.embedding(weight.int(), pairs).flatten(1).unflatten(1, (-1, BLOCK))
    return (values * scale[..., None]).flatten(1)[:, :columns]


@cache
def _levels() -> Tensor:
    """Return the 16 levels of NF4 in [-1, 1], quantiles of the normal distribution."""
    above = torch.special.ndtri(torch.linspace(LARGEST, 0.5, 9, dtype=torch.float64))[:-1]
    below = -torch.special.ndtri(torch.linspace(LARGEST, 0.5, 8, dtype=torch.float64))[:-1]
    levels = torch.cat([below, above.new_zeros(1), above.flip(0)])
    return (levels / levels.max()).float()


@cache
def _pairs() -> Tensor:
    """Return the two levels (256, 2) that a byte stands for."""
    levels = _levels()
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], -1)
