"""The optimizers and the learning rate schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw as adamw_step

from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.runtime import choose_bf16
from dxn.core.schema import checked
from dxn.models.attention import Attention
from dxn.models.blocks import Mlp
from dxn.models.fusion import shared_name
from dxn.models.model import MultimodalModel
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.training.checkpoint import unchanged

# Coefficients of the polynomial and number of iterations that Jordan et al. chose. Five iterations
# bring the singular values to about 0.7 to 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# Muon updates layers with at least this many inputs and outputs. Those with fewer read raw pixels
# or numbers, or return a score.
MIN_WIDTH = 8
# Root mean square of the entries of an update of AdamW with a learning rate of 1.
RMS = 0.2


# torch keeps these methods of an optimizer out of torch.compile. For this, their first call imports
# torch._dynamo, which takes longer than all imports of dxn. Nothing compiles an optimizer of dxn,
# so they are called as they are.
for _method in (
    *(Optimizer.add_param_group, Optimizer.zero_grad),
    *(Optimizer.state_dict, Optimizer.load_state_dict),
):
    _function = inspect.unwrap(_method)
    setattr(_function, "__dynamo_disable", _function)

# Parameters that the model uses before the first block: they have the learning rate of layer 0.
EMBEDDING_PREFIXES = (
    "adapters.",
    "fusion.input_embedding",
    "fusion.pool.tokens",
    "fusion.shared",
)


NotNegative = Annotated[float, Ge(0)]
Decay = Annotated[float, Interval(gt=0, le=1)]


class AdamW(torch.optim.AdamW):
    """AdamW without the preparation of its step for torch.compile, see above."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


@checked
def adamw(
    *,
    lr: NotNegative = 1e-3,
    weight_decay: NotNegative = 0.05,
    betas: Sequence[float] = (0.9, 0.98),
    eps: NotNegative = 1e-8,
    layer_decay: Decay = 1.0,
    new_lr: NotNegative | None = None,
) -> Callable[[nn.Module], AdamW]:
    """AdamW (arXiv:1711.05101) with weight decay on matrices only.

    Biases, norms, embeddings and positional embeddings are not decayed.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        betas: Decay rates of the moving averages of the gradient and of its square.
        eps: Constant added to the denominator.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.
        new_lr: Highest learning rate of the weights that do not come from a checkpoint, if others
            do. Null: lr.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    _check_betas(betas)

    def make(model: nn.Module) -> AdamW:
        groups = _groups(model, lr, weight_decay, layer_decay, new_lr)
        return AdamW(groups, lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True)

    return make


@checked
def muon(
    *,
    lr: NotNegative = 1e-3,
    weight_decay: NotNegative = 0.05,
    momentum: Rate = 0.95,
    scale: NotNegative = 2.0,
    betas: Sequence[float] = (0.9, 0.98),
    eps: NotNegative = 1e-8,
    layer_decay: Decay = 1.0,
    new_lr: NotNegative | None = None,
) -> Callable[[nn.Module], Muon]:
    """Muon for linear and convolutional layers (see `Muon`), AdamW for the rest.

    AdamW updates the head, embeddings, biases, norms, recurrent layers, and layers with fewer than
    eight inputs or outputs.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        momentum: Decay rate of the average of the gradients of a matrix.
        scale: Multiplier of the learning rate of Muon's layers. With 1, their updates have the root
            mean square of AdamW's.
        betas: Decay rates of the moving averages of AdamW.
        eps: Constant added to the denominator of AdamW.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.
        new_lr: Highest learning rate of the weights that do not come from a checkpoint, if others
            do. Null: lr.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    _check_betas(betas)

    def make(model: nn.Module) -> Muon:
        matrices = matrices_of(model)
        groups = []
        for group in _groups(model, lr, weight_decay, layer_decay, new_lr):
            for number in sorted({0, *matrices.values()}):
                chosen = [p for p in group["params"] if matrices.get(id(p), 0) == number]
                if chosen:
                    groups.append({**group, "params": chosen, "num_matrices": number})
        return Muon(
            groups,
            lr=lr,
            betas=(betas[0], betas[1]),
            eps=eps,
            momentum=momentum,
            scale=scale,
        )

    return make


@checked
def sgd(
    *,
    lr: NotNegative = 0.05,
    weight_decay: NotNegative = 1e-4,
    momentum: Rate = 0.9,
    nesterov: bool = True,
    layer_decay: Decay = 1.0,
    new_lr: NotNegative | None = None,
) -> Callable[[nn.Module], torch.optim.SGD]:
    """Stochastic gradient descent with momentum, and weight decay on matrices only.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        momentum: Decay rate of the sum of the gradients.
        nesterov: Whether to use Nesterov momentum.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.
        new_lr: Highest learning rate of the weights that do not come from a checkpoint, if others
            do. Null: lr.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    if nesterov and not momentum:
        raise ValueError("nesterov needs a momentum above 0, got momentum=0")

    def make(model: nn.Module) -> torch.optim.SGD:
        groups = _groups(model, lr, weight_decay, layer_decay, new_lr)
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)

    return make


def _groups(
    model: nn.Module, lr: float, weight_decay: float, layer_decay: float, new_lr: float | None
) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, with the highest learning rate first.

    Raises:
        UserError: If no parameter is trainable.
    """
    decayed: set[int] = set()
    for module in model.modules():
        # The type of the layer decides. The number of dimensions cannot: embeddings and positional
        # embeddings are matrices too.
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase):
            for name, parameter in module.named_parameters(recurse=False):
                if name.startswith("weight"):
                    decayed.add(id(parameter))
    loaded = model.loaded if isinstance(model, MultimodalModel) else frozenset()
    depths = _depths(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for full_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = lr * layer_decay ** _layers_after(full_name, depths)
        if new_lr is not None and loaded and full_name not in loaded:
            rate = new_lr
        # One group for all parameters with the same rate and decay: each group is one call of the
        # fused kernel.
        decay = weight_decay if id(parameter) in decayed else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    if not groups:
        raise UserError(
            "optimizer: no parameter is trainable, because all weights are frozen; set "
            "finetune.freeze=null or finetune.lora_rank"
        )
    # The trainer logs the learning rate of the first group, so the highest rate comes first.
    return [
        {"params": groups[rate, decay], "lr": rate, "weight_decay": decay}
        for rate, decay in sorted(groups, reverse=True)
    ]


def _depths(model: nn.Module) -> dict[str, int]:
    """Return the number of blocks of the backbone ("") and of each encoder, by its prefix."""
    if not isinstance(model, MultimodalModel):
        return {"": 0}
    encoders = {
        f"adapters.{key}.": len(adapter.backbone.blocks)
        for key, adapter in model.get_submodule("adapters").named_children()
        if isinstance(adapter, EncodedAdapter)
    }
    return {**encoders, "": len(model.blocks)}


def _layers_after(name: str, depths: Mapping[str, int]) -> int:
    """Return the number of layers between a parameter and the output of its backbone or encoder.

    0: everything after the blocks. 1 to the depth: the blocks. One more: adapters and embeddings.
    """
    name = shared_name(name)
    prefix = next(filter(name.startswith, depths))
    name = name.removeprefix(prefix)
    if name.startswith("backbone.blocks."):
        return depths[prefix] - int(name.split(".")[2])
    is_before = name.startswith(("adapter.", "fusion.") if prefix else EMBEDDING_PREFIXES)
    return depths[prefix] + 1 if is_before else 0


@checked
def cosine(*, warmup: Rate = 0.1, final: Probability = 0.0) -> Callable[[float], float]:
    """Linear warm-up followed by cosine decay (arXiv:1608.03983).

    Args:
        warmup: Fraction of the training during which the learning rate rises linearly from 0.
        final: Multiplier of the learning rate at the end.

    Returns:
        A function that maps the progress of the training, 0 to 1, to the multiplier of the learning
        rate.

    Raises:
        ValueError: If an option is out of range.
    """

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        angle = math.pi * (progress - warmup) / (1 - warmup)
        return final + (1 - final) * 0.5 * (1 + math.cos(angle))

    return factor


@checked
def constant(*, warmup: Rate = 0.0) -> Callable[[float], float]:
    """Linear warm-up followed by a constant learning rate.

    Args:
        warmup: Fraction of the training during which the learning rate rises linearly from 0.

    Returns:
        A function that maps the progress of the training, 0 to 1, to the multiplier of the learning
        rate.

    Raises:
        ValueError: If warmup is out of range.
    """
    return lambda progress: min(progress / warmup, 1.0) if warmup else 1.0


def _check_betas(betas: Sequence[float]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, got {list(betas)}")


class Muon(torch.optim.Optimizer):
    """Muon for weight matrices and AdamW for all other parameters.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) averages the gradients of a
    matrix, and replaces the singular values of this average by numbers near 1. So directions whose
    gradients are small are learned as fast as others.

    The update of a matrix (R, C) is multiplied by 0.2 · sqrt(max(R, C)), which gives it the root
    mean square of an update of AdamW, so both have the same learning rate (arXiv:2502.16982,
    section 2.2), and by `scale`.

    Several matrices that are one parameter, such as the projections to queries, keys and values,
    are updated separately.

    torch.optim.Muon accepts neither several matrices in a parameter nor convolutions, and computes
    in bfloat16 on every device, which is slow on many CPUs. For a single matrix, its first update
    differs from this one by 1 % in a float32 training.

    Args:
        groups: Parameter groups. "num_matrices" is the number of equal parts along the first
            dimension that are updated as matrices (R, C). 0: AdamW updates the parameters.
        lr: Learning rate of groups without their own.
        betas: Decay rates of AdamW.
        eps: Constant of AdamW.
        momentum: Decay rate of the average of the gradients of a matrix.
        scale: Multiplier of the learning rate of the matrices.
    """

    # Functions for parameters that are divided over processes, see `dxn.training.parallel`.
    whole: Callable[..., Tensor] = staticmethod(unchanged)
    divided: Callable[..., Tensor] = staticmethod(unchanged)

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        momentum: float,
        scale: float,
    ):
        # torch copies the options in the groups, and no attributes, with an optimizer. Because of
        # "fused", it loads the number of steps to the device of the parameter.
        options = {"lr": lr, "betas": betas, "eps": eps, "momentum": momentum, "scale": scale}
        options["fused"] = True
        super().__init__(groups, {**options, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        """Update all parameters that have a gradient.

        Raises:
            ValueError: If there is a closure.
        """
        if closure is not None:
            raise ValueError("Muon computes no loss, so it cannot have a closure")
        for group in self.param_groups:
            if group["num_matrices"]:
                self._update_matrices(group)
            else:
                self._update_others(group)

    def _update_others(self, group: dict[str, Any]) -> None:
        """Update the parameters of a group as AdamW does."""
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        adamw_step(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _update_matrices(self, group: dict[str, Any]) -> None:
        """Update the matrices of a group, those of the same shape together.

        Their gradients are overwritten.
        """
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        averages = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        # A GPU applies each of these functions to all tensors of a list in few kernels. The second
        # one returns Nesterov's look-ahead.
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])  # pyright: ignore
        torch._foreach_lerp_(gradients, averages, group["momentum"])  # pyright: ignore
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])  # pyright: ignore
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter, gradient in zip(parameters, map(self.whole, gradients), strict=True):
            matrices = gradient.reshape(group["num_matrices"], -1, gradient[0].numel())
            by_shape.setdefault(matrices.shape, []).append((parameter, matrices))
        for shape, pairs in by_shape.items():
            updates = orthogonalized(torch.cat([matrices for _, matrices in pairs]))
            rate = group["lr"] * group["scale"] * RMS * math.sqrt(max(shape[1:]))
            changed = [parameter for parameter, _ in pairs]
            divided = [
                self.divided(update.reshape(parameter.shape), parameter)
                for parameter, update in zip(changed, updates.split(shape[0]), strict=True)
            ]
            torch._foreach_add_(changed, divided, alpha=-rate)  # pyright: ignore


def orthogonalized(x: Tensor) -> Tensor:
    """Replace the singular values of matrices by numbers near 1, with a Newton-Schulz iteration.

    In bfloat16 on a device that has instructions for it, as Jordan et al. do, and in float32
    elsewhere.

    Args:
        x: (B, R, C).

    Returns:
        (B, R, C). A matrix of zeros stays one.
    """
    original = x.dtype
    is_low, _ = choose_bf16(x.device)
    x = x.bfloat16() if is_low else x.float()
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:  # products of the shorter side are cheaper
        x = x.mT
    # The singular values must be at most 1 for the iteration.
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(original)


def matrices_of(model: nn.Module) -> dict[int, int]:
    """Return the number of matrices in each weight that Muon updates, by its id. See `muon`."""
    from dxn.models.cross_attention import CrossAttention  # few models have one

    numbers: dict[int, int] = {}
    for name, module in model.named_modules():
        if name.startswith("head.") or not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            continue
        if min(module.weight.shape[:2]) >= MIN_WIDTH:
            numbers[id(module.weight)] = 1
    for module in model.modules():
        stacks: dict[nn.Linear, int] = {}
        if isinstance(module, Attention):
            # With grouped heads, queries have more rows than keys: they are one matrix.
            stacks[module.qkv] = 3 if len(set(module.heads)) == 1 else 1
        elif isinstance(module, CrossAttention):
            stacks[module.memory] = 2
        elif isinstance(module, Mlp) and module.gated:
            stacks[module.up] = 2
        for layer, number in stacks.items():
            if id(layer.weight) in numbers:
                numbers[id(layer.weight)] = number
    return numbers
