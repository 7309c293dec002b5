"""Pooling of the tokens of a sample to one vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, MinLen
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import checked, options
from dxn.core.tokens import Span, Tokens, join
from dxn.models.blocks import Mlp, MlpKind

# Kinds without weights and class token, of which several can be concatenated.
Simple = Literal["mean", "max", "first", "last", "mean_sqrt", "mean_linear"]
Pool = Literal[Simple, "cls", "attention", "map", "cls_mean", "leading", "leading_cat"]
Pools = Pool | Annotated[Sequence[Simple], MinLen(1)]
WITH_CLASS = ("cls", "cls_mean", "leading", "leading_cat")  # kinds that need a class token
CLASS = "class"  # name and modality of the span of the class token and the registers
MASKED_SCORE = -1e9  # as -inf for a softmax, but a row without real tokens does not become NaN


@options
class MapOptions:
    """Options of pool=map, the pooling by multi-head attention.

    Args:
        num_heads: Number of attention heads, each of which has one learned query.
        mlp: Activation of the MLP after the attention.
        hidden_dim: Width of the hidden layer of the MLP. Default: four times the width of a token.
        eps: Constant added to the variance by the layer norm before the MLP.
    """

    num_heads: Annotated[int, Ge(1)] = 4
    mlp: MlpKind = "gelu"
    hidden_dim: Annotated[int, Ge(1)] | None = None
    eps: Annotated[float, Gt(0)] = 1e-5


class Pooling(nn.Module):
    """Pools the real tokens of each sample to one vector.

    Args:
        kind: Method of pooling: mean, max, attention (a learned weighted mean), map (attention of
            one learned query per head, and an MLP), first, last, mean_sqrt (the sum divided by the
            square root of the number of tokens), mean_linear (a mean in which token i has the
            weight i, from 1, arXiv:2202.08904, section 4.1), cls (a learned class token before
            all others), cls_mean (the class token and the mean of the other tokens, concatenated),
            leading (the mean of the class token and the registers, arXiv:2104.01778, section 2.2)
            or leading_cat (the class token and the registers, concatenated). A sequence of kinds
            without weights and class token has their vectors side by side.
        dim: Width D of a token.
        registers: Number of additional learned tokens before the others (arXiv:2309.16588). The
            kinds cls, leading and leading_cat are the only ones that do not exclude them.
        map: Options of the kind map.
    """

    @checked
    def __init__(
        self,
        kind: Pools,
        dim: int,
        *,
        registers: Annotated[int, Ge(0)] = 0,
        map: MapOptions = MapOptions(),
    ):
        super().__init__()
        self.kind: Pools = kind if isinstance(kind, str) else tuple(kind)
        if kind == "attention":
            self.score = nn.Linear(dim, 1)
        self.map = MapPooling(dim, map) if kind == "map" else None
        self.leading = registers + (kind in WITH_CLASS)  # number of leading tokens
        if isinstance(kind, str):
            self.width = {"cls_mean": 2, "leading_cat": self.leading}.get(kind, 1) * dim
        else:
            self.width = len(kind) * dim
        if self.leading:
            self.tokens = nn.Parameter(torch.zeros(self.leading, dim))
            nn.init.trunc_normal_(self.tokens, std=0.02)

    def lead(self, tokens: Tokens, *, all_real: bool = False) -> Tokens:
        """Prepend the class token and the registers to the columns, if there are any.

        Args:
            tokens: The columns.
            all_real: Whether it is known that each sample has real columns.
        """
        if not self.leading:
            return tokens
        x = repeat(self.tokens, "k d -> b k d", b=tokens.x.shape[0]).to(tokens.x.dtype)
        num_real = None
        if all_real or tokens.num_real == tokens.mask.numel():
            mask = tokens.mask.new_ones(x.shape[:2])
            num_real = mask.numel()
        else:
            # A sample without this input has no class token for it, so it is excluded from fusion.
            mask = repeat(tokens.mask.any(1), "b -> b k", k=self.leading)
        span = Span(CLASS, CLASS, 0, self.leading, partial(_nowhere, mask))
        return join([Tokens(x, mask, (span,), num_real), tokens])

    def forward(self, x: Tensor, mask: Tensor, num_real: int | None = None) -> Tensor:
        """Pool x (B, N, D) with mask (B, N) bool to (B, width).

        For a sample without real tokens, the means, max and attention return zeros. The result of
        the other kinds has no meaning.

        Args:
            x: Encoded tokens.
            mask: True at real tokens.
            num_real: Number of real tokens, see `Tokens`.
        """
        if self.kind == "cls":
            return x[:, 0]
        if self.kind == "leading":
            return x[:, : self.leading].mean(1)
        if self.kind == "leading_cat":
            return rearrange(x[:, : self.leading], "b k d -> b (k d)")
        if self.kind == "max" and num_real == mask.numel() and not torch.compiler.is_exporting():
            return x[:, self.leading :].amax(1)
        # All other kinds exclude the leading tokens from pooling.
        leading = x[:, : self.leading]
        if self.leading:
            x = x[:, self.leading :]
            mask = mask[:, self.leading :]
        if self.map is not None:
            return self.map(x, mask)
        if not isinstance(self.kind, str):
            return torch.cat([_simple(kind, x, mask) for kind in self.kind], 1)
        if self.kind == "attention":
            # float32, because MASKED_SCORE is out of the range of float16.
            score = self.score(x).squeeze(-1).float().masked_fill(~mask, MASKED_SCORE)
            return _weighted_mean(x, mask.to(x.dtype) * score.softmax(1).to(x.dtype))
        if self.kind == "cls_mean":
            return torch.cat([leading[:, 0], masked_mean(x, mask)], 1)
        return _simple(self.kind, x, mask)


def _simple(kind: str, x: Tensor, mask: Tensor) -> Tensor:
    """Pool x (B, N, D) with mask (B, N) to (B, D) by one of the kinds of `Simple`."""
    if kind == "first":
        return _pick(x, mask.int().argmax(1))
    if kind == "last":
        index = torch.arange(mask.shape[1], device=x.device).expand_as(mask)
        return _pick(x, torch.where(mask, index, 0).amax(1))
    if kind == "max":
        # The smallest finite number, because -inf could give a gradient of NaN.
        largest = x.masked_fill(~mask[..., None], torch.finfo(x.dtype).min).amax(1)
        return largest.masked_fill(~mask.any(1, keepdim=True), 0)
    if kind == "mean_linear":
        # At least float32, because bf16 has no odd numbers above 256.
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        weight = (mask.cumsum(1) * mask).to(exact.dtype)
        return _weighted_mean(exact, weight).to(x.dtype)
    mean = masked_mean(x, mask)
    return mean * mask.sum(1, keepdim=True).to(x.dtype).sqrt() if kind == "mean_sqrt" else mean


class MapPooling(nn.Module):
    """Multi-head attention of one learned query to all tokens, and an MLP.

    It is the pooling by attention of arXiv:1810.00825, section 3.2, with one query. The query is a
    constant, so its product with the weights of the keys is too: `score` is this product, and the
    keys need not be computed. The values are averaged before their projection, not after it.

    Args:
        dim: Width D of a token, a multiple of the number of heads H.
        options: Options of the attention and the MLP.
    """

    def __init__(self, dim: int, options: MapOptions):
        super().__init__()
        self.num_heads = options.num_heads
        if dim % self.num_heads:
            raise ValueError(
                f"pool=map: dim must be a multiple of map.num_heads, got {dim} and {self.num_heads}"
            )
        # A bias would change all scores of a head alike, which has no effect on their softmax.
        self.score = nn.Linear(dim, self.num_heads, bias=False)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=options.eps)
        self.mlp = Mlp(dim, hidden_dim=options.hidden_dim, mlp=options.mlp)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool x (B, N, D) with mask (B, N) bool to (B, D)."""
        scores = self.score(x)
        # At least float32, because MASKED_SCORE is out of the range of float16.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = scores.masked_fill(~mask[..., None], MASKED_SCORE).softmax(1).to(x.dtype)
        means = weights.mT @ x  # (B, H, D)
        # Each head keeps its own part of the projection of its mean.
        values = rearrange(self.value(means), "b g (h d) -> b d g h", h=self.num_heads)
        x = self.proj(rearrange(values.diagonal(dim1=2, dim2=3), "b d h -> b (h d)"))
        return x + self.mlp(self.norm(x))


def _nowhere(mask: Tensor) -> Tensor:
    """Return NaN (B, K, 1) as the position of the leading tokens of mask (B, K)."""
    return torch.full((*mask.shape, 1), torch.nan, device=mask.device)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, D) of x (B, N, D) where mask (B, N) is True; 0 if it is all False."""
    return _weighted_mean(x, mask.to(x.dtype))


def _weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Return the mean (B, D) of x (B, N, D), weighted by weight (B, N)."""
    # The clamp turns 0 / 0 into 0 for samples without real tokens.
    total = weight.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return (x * weight[..., None]).sum(1) / total


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Return the column index[i] of each sample i: (B, D) of x (B, N, D)."""
    return x[torch.arange(x.shape[0], device=x.device), index]


def registers_of(tokens: Tokens, name: str, count: int, *, option: str) -> Tokens:
    """Return the last registers before the tokens of an input.

    Args:
        tokens: Encoded tokens.
        name: Name of the input.
        count: Number of registers.
        option: Option that needs them, for the error message.

    Raises:
        UserError: If the fusion has fewer registers.
    """
    names = [span.name for span in tokens.spans]
    # Fusions that encode each input alone have registers before each of them.
    leading = [i for i, span_name in enumerate(names[: names.index(name)]) if span_name == CLASS]
    part = tokens.split()[leading[-1]] if leading else None
    check_registers(count, 0 if part is None else part.x.shape[1], option=option)
    assert part is not None
    x, mask = part.x[:, -count:], part.mask[:, -count:]
    return Tokens(x, mask, num_real=mask.numel() if part.has_no_padding else None)


def check_registers(needed: int, registers: int, *, option: str) -> None:
    """Check that a fusion has enough registers.

    Raises:
        UserError: If it has fewer.
    """
    if registers < needed:
        raise UserError(
            f"{option}: the last registers are used for it, but there are {registers} for {needed};"
            f" set fusion.registers={needed} or more"
        )
