"""Option groups of a backbone, which keep the number of its arguments small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from dxn.core.dropout import check_rate
from dxn.models.attention import ScoreKind
from dxn.models.blocks import MlpKind, NormKind
from dxn.models.positions import BackbonePosition


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """Options of the attention and the MLP of all blocks.

    Args:
        mlp: Activation of the MLP: gelu, its approximations gelu_tanh and quick_gelu, or the gated
            swiglu and geglu.
        bias: Add a bias to the linear layers and the norms.
        qk_norm: Normalize the queries and keys of each head (arXiv:2302.05442, section 2).
        score: Attention score of a query and a key: scaled_dot, dot, cosine, additive or bilinear.
        layer_scale: Initial value of learned factors for the features of each residual branch
            (LayerScale, arXiv:2103.17239). Default: no such factors.
        attn_dropout: Dropout probability of the attention weights.
        mlp_dropout: Dropout probability inside the MLP. Default: the `dropout` of the backbone.
    """

    mlp: MlpKind = "gelu"
    bias: bool = True
    qk_norm: bool = False
    score: ScoreKind = "scaled_dot"
    layer_scale: float | None = None
    attn_dropout: float = 0.0
    mlp_dropout: float | None = None

    def __post_init__(self) -> None:
        _check_choice("mlp", self.mlp, MlpKind)
        _check_choice("score", self.score, ScoreKind)
        check_rate("attn_dropout", self.attn_dropout)
        if self.mlp_dropout is not None:
            check_rate("mlp_dropout", self.mlp_dropout)


@dataclass(frozen=True, slots=True)
class NormOptions:
    """Options of the norms of a backbone.

    Args:
        kind: Kind of the norm: layer (arXiv:1607.06450) or rms (arXiv:1910.07467).
        eps: Constant added to the variance.
        pre_norm: Normalize the input of each residual branch (pre-norm). False: normalize the sum
            of the input and the branch (post-norm).
        input_norm: Normalize the input of the first block, with pre_norm=true. Set it to false if
            the adapters already normalize their tokens.
        final_norm: Normalize the output of the last block, with pre_norm=true.
    """

    kind: NormKind = "layer"
    eps: float = 1e-5
    pre_norm: bool = True
    input_norm: bool = True
    final_norm: bool = True

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, NormKind)
        if self.eps <= 0:
            raise ValueError(f"eps must be above 0, got {self.eps}")


@dataclass(frozen=True, slots=True)
class PositionOptions:
    """Options of the positions in the attention, and of attention windows.

    Args:
        kind: Kind of the positions: rotary (arXiv:2104.09864), alibi (arXiv:2108.12409) or none
            (only the adapters add position embeddings).
        rope_theta: Base of the rotary frequencies. The longest wavelength is about
            2 pi * rope_theta tokens.
        window: Maximum distance in tokens between a query and a key. Default: no limit.
        global_every: Use full attention in every n-th block, starting with the first one, and the
            window in all others. Default: use the window in all blocks.
        window_rope_theta: Value of rope_theta in blocks with a window. Default: rope_theta.
    """

    kind: BackbonePosition = "none"
    rope_theta: float = 10000.0
    window: int | None = None
    global_every: int | None = None
    window_rope_theta: float | None = None

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, BackbonePosition)
        for name in ("rope_theta", "window_rope_theta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        for name in ("window", "global_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def window_of(self, layer: int) -> int | None:
        """Return the window of the block with index `layer`. None: full attention."""
        is_global = self.global_every is not None and layer % self.global_every == 0
        return None if is_global else self.window


# The message contains only the name of the option. The code that builds a part from the
# configuration adds the key of the option group, such as backbone.norm.
def _check_choice(name: str, value: str, choices: Any) -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
