"""How modalities meet in the one backbone."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.models.backbone import Backbone
from dxn.tokens import Span, Tokens, check_columns, join

Pool = Literal["mean", "max", "cls", "attention", "first", "last", "cls_mean", "leading", "leading_cat"]
WITH_CLASS = ("cls", "cls_mean", "leading", "leading_cat")


class Pooling(nn.Module):
    """One vector a sample out of its real tokens.

    mean and max of its tokens; attention, a learned weighting; first and last, its first and last token; cls, a
    learned class token before all others; cls_mean, that one and the mean of the others side by side. registers
    are further learned tokens before the others (arXiv:2309.16588), which no mean or maximum takes in; leading
    is the mean of them and the class token (arXiv:2104.01778, 2.2), leading_cat all of these side by side.
    """

    def __init__(self, kind: Pool, dim: int, *, registers: int = 0):
        super().__init__()
        if kind not in get_args(Pool):
            raise ValueError(f"pool must be one of {', '.join(get_args(Pool))}, got {kind!r}")
        if registers < 0:
            raise ValueError(f"registers must be at least 0, got {registers}")
        self.kind = kind
        if kind == "attention":
            self.score = nn.Linear(dim, 1)
        self.leading = registers + (kind in WITH_CLASS)
        self.width = {"cls_mean": 2, "leading_cat": self.leading}.get(kind, 1) * dim
        if self.leading:
            self.tokens = nn.Parameter(torch.zeros(self.leading, dim))
            nn.init.trunc_normal_(self.tokens, std=0.02)

    def lead(self, tokens: Tokens) -> Tokens:
        """The tokens with the class token and the registers, where there are any, as their first columns."""
        if not self.leading:
            return tokens
        x = repeat(self.tokens, "k d -> b k d", b=len(tokens)).to(tokens.x.dtype)
        mask = repeat(tokens.mask.any(1), "b -> b k", k=self.leading)
        nowhere = torch.full((*mask.shape, 1), torch.nan, device=x.device)
        return join([Tokens(x, mask, (Span("class", 0, self.leading, nowhere),)), tokens])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, N, D) and mask (B, N) to (B, width); zero for a sample without a real token, where it is read."""
        if self.kind == "cls":
            return x[:, 0]
        if self.kind == "leading":
            return x[:, : self.leading].mean(1)
        if self.kind == "leading_cat":
            return rearrange(x[:, : self.leading], "b k d -> b (k d)")
        first, x, mask = x[:, 0], x[:, self.leading :], mask[:, self.leading :]
        if self.kind in ("first", "last"):
            index = torch.arange(mask.shape[1], device=x.device).expand_as(mask)
            at = torch.where(mask, index, -1).amax(1) if self.kind == "last" else mask.int().argmax(1)
            return x[torch.arange(len(x), device=x.device), at.clamp(min=0)]
        if self.kind == "max":
            lowest = x.masked_fill(~mask[..., None], torch.finfo(x.dtype).min).amax(1)
            return lowest.masked_fill(~mask.any(1, keepdim=True), 0)
        weight = mask.to(x.dtype)
        if self.kind == "attention":
            score = self.score(x).squeeze(-1).float().masked_fill(~mask, -1e9)
            weight = weight * score.softmax(1).to(x.dtype)
        total = weight.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        mean = (x * weight[..., None]).sum(1) / total
        return torch.cat([first, mean], 1) if self.kind == "cls_mean" else mean


class EarlyFusion(nn.Module):
    """One joined sequence: from the first block on, every token reads every modality's.

    Args:
        dim: width D of a token.
        modalities: names that get a vector added to each of their columns.
        pool: mean or max of the tokens, attention (a learned weighting), cls (a token of its own), first or last
            token, cls_mean (both side by side), or of cls and registers leading (mean), leading_cat (side by side).
        registers: further learned tokens before the others, left out of every mean.
    """

    def __init__(self, dim: int = 128, *, modalities: Sequence[str] = (), pool: Pool = "mean", registers: int = 0):
        super().__init__()
        self.embedding = ModalityEmbedding(dim, modalities)
        self.pool = Pooling(pool, dim, registers=registers)
        self.width = self.pool.width

    def forward(self, parts: Sequence[Tokens], backbone: Backbone) -> tuple[Tokens, Tensor]:
        """Parts to the joined, encoded Tokens and one vector a sample (B, D)."""
        joined = join(self.embedding(parts))
        check_columns(joined.mask)
        encoded = backbone(self.pool.lead(joined))
        return encoded, self.pool(encoded.x, encoded.mask)


class LateFusion(nn.Module):
    """Each modality through the same backbone by itself; their vectors meet only before the head.

    Args:
        dim: width D of a token.
        modalities: names that get a vector added to each of their columns.
        pool: how each modality's tokens become one vector, as in early fusion.
        registers: further learned tokens before the others, left out of every mean.
    """

    def __init__(self, dim: int = 128, *, modalities: Sequence[str] = (), pool: Pool = "mean", registers: int = 0):
        super().__init__()
        self.embedding = ModalityEmbedding(dim, modalities)
        self.pool = Pooling(pool, dim, registers=registers)
        self.width = self.pool.width
        self.mix = nn.ModuleDict({name: nn.Linear(self.width, dim) for name in modalities})
        self.width = dim if len(self.mix) > 1 else self.width

    def forward(self, parts: Sequence[Tokens], backbone: Backbone) -> tuple[Tokens, Tensor]:
        """Parts to their encoded Tokens side by side and one vector a sample (B, D)."""
        check_columns(torch.cat([p.mask for p in parts], 1))
        encoded = [backbone(self.pool.lead(part)) for part in self.embedding(parts)]
        vectors = [self._mix(part, self.pool(part.x, part.mask)) for part in encoded]
        present = torch.stack([part.mask.any(1) for part in encoded], 1)
        return join(encoded), Pooling("mean", 0)(torch.stack(vectors, 1), present)

    def _mix(self, part: Tokens, vector: Tensor) -> Tensor:
        return self.mix[part.spans[-1].modality](vector) if len(self.mix) > 1 else vector


class BottleneckFusion(nn.Module):
    """Modalities apart, but for a few shared tokens that pass between them (arXiv:2107.00135, 3.2).

    Args:
        dim: width D of a token.
        modalities: names that get a vector added to each of their columns.
        pool: how each modality's tokens become one vector, as in early fusion.
        registers: further learned tokens before each modality's, left out of every mean.
        num_tokens: shared tokens.
        start: block from which they pass; the blocks before see one modality alone.
    """

    def __init__(
        self,
        dim: int = 128,
        *,
        modalities: Sequence[str] = (),
        pool: Pool = "mean",
        registers: int = 0,
        num_tokens: int = 4,
        start: int = 0,
    ):
        super().__init__()
        self.embedding = ModalityEmbedding(dim, modalities)
        self.pool, self.start = Pooling(pool, dim, registers=registers), start
        self.width = self.pool.width
        self.shared = nn.Parameter(torch.empty(num_tokens, dim))
        nn.init.trunc_normal_(self.shared, std=0.02)

    def forward(self, parts: Sequence[Tokens], backbone: Backbone) -> tuple[Tokens, Tensor]:
        """Parts to their encoded Tokens side by side and one vector a sample (B, D)."""
        check_columns(torch.cat([p.mask for p in parts], 1))
        if not 0 <= self.start < len(backbone.blocks):
            raise ValueError(f"start must be below the backbone's depth {len(backbone.blocks)}, got {self.start}")
        parts = [self.pool.lead(part) for part in self.embedding(parts)]
        xs = [backbone.run(p.x, p.mask, 0, self.start) for p in parts]
        present = torch.stack([p.mask.any(1) for p in parts]).to(xs[0].dtype)  # (M, B)
        shared = repeat(self.shared, "k d -> b k d", b=len(parts[0])).to(xs[0].dtype)
        for layer in range(self.start, len(backbone.blocks)):
            xs, shared = self._layer(backbone, layer, parts, xs, shared, present)
        encoded = [p.with_x(backbone.norm(x)) for p, x in zip(parts, xs, strict=True)]
        vectors = torch.stack([self.pool(p.x, p.mask) for p in encoded], 1)
        return join(encoded), Pooling("mean", 0)(vectors, rearrange(present, "m b -> b m").bool())

    def _layer(self, backbone: Backbone, layer: int, parts, xs, shared: Tensor, present: Tensor):
        """One block over each modality and the shared tokens, which then take the mean of what each made."""
        k = shared.shape[1]
        new_xs, new_shared = [], []
        for part, x in zip(parts, xs, strict=True):
            mask = torch.cat([part.mask.new_ones(len(part), k), part.mask], 1)
            out = backbone.run(torch.cat([shared, x], 1), mask, layer, layer + 1)
            new_shared.append(out[:, :k])
            new_xs.append(out[:, k:])
        weight = rearrange(present / present.sum(0), "m b -> m b 1 1")
        return new_xs, (torch.stack(new_shared) * weight).sum(0)


class ModalityEmbedding(nn.Module):
    """Adds a learned vector for its modality to each column; none where there is but one modality."""

    def __init__(self, dim: int, modalities: Sequence[str]):
        super().__init__()
        names = modalities if len(modalities) > 1 else ()
        self.vectors = nn.ParameterDict({name: nn.Parameter(torch.randn(dim) * 0.02) for name in names})

    def forward(self, parts: Sequence[Tokens]) -> list[Tokens]:
        """Parts to parts of the same columns."""
        return [p.with_x(p.x + self.vectors[m]) if (m := p.spans[-1].modality) in self.vectors else p for p in parts]
