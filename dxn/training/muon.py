"""Muon, an optimizer that orthogonalizes the updates of weight matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dxn.models.attention import Attention
from dxn.models.blocks import Mlp
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
        adamw(
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

    In bfloat16 on a GPU that has it, as Jordan et al. do, and in float32 elsewhere.

    Args:
        x: (B, R, C).

    Returns:
        (B, R, C). A matrix of zeros stays one.
    """
    original = x.dtype
    is_low = x.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
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
