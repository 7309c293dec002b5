"""Compare the speed of attention, dropout and the loss over a vocabulary with that of torch.

    python benchmarks/speed/attention.py

Calls of dxn and torch alternate in one process, so that other load on the machine affects both. The
printed ratio is the median time of torch divided by that of dxn: above 1, dxn is faster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from dxn.core.dropout import Dropout  # noqa: E402
from dxn.models.attention import attend  # noqa: E402
from dxn.models.losses import linear_cross_entropy  # noqa: E402

REPEATS = 15
# Dropout probability. It is not a multiple of 1/256, for which dxn has a faster path.
DROPOUT = 0.1


def compare(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Return the median milliseconds of a call of dxn and of torch."""
    # The first round is a warm-up and is not used.
    rounds = [(seconds(ours), seconds(peer)) for _ in range(REPEATS + 1)][1:]
    our_seconds, peer_seconds = zip(*rounds, strict=True)
    return 1e3 * statistics.median(our_seconds), 1e3 * statistics.median(peer_seconds)


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def attention(
    batch: int,
    tokens: int,
    *,
    heads: int = 6,
    head_dim: int = 32,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[float, float]:
    """Time forward and backward pass of attention on the CPU, with 20% padding."""
    shape = (batch, heads, tokens, head_dim)
    query = torch.randn(shape, dtype=dtype, requires_grad=True)
    # A boolean mask (B, 1, 1, N) of the keys, True at real tokens.
    mask = torch.arange(tokens).expand(batch, 1, 1, tokens) < 0.8 * tokens

    def ours() -> None:
        attend(query, query, query, mask, dropout=dropout).sum().backward()

    def peer() -> None:
        out = F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=dropout)
        out.sum().backward()

    return compare(ours, peer)


def dropout(rows: int, dim: int) -> tuple[float, float]:
    """Time forward and backward pass of dropout on a tensor (rows, dim) in bf16."""
    x = torch.randn(rows, dim, dtype=torch.bfloat16, requires_grad=True)
    ours = Dropout(DROPOUT).train()
    peer = nn.Dropout(DROPOUT).train()
    return compare(lambda: ours(x).sum().backward(), lambda: peer(x).sum().backward())


def loss(tokens: int, vocab_size: int, *, dim: int = 128) -> tuple[float, float]:
    """Time forward and backward pass of the loss with label smoothing, under autocast."""
    x = torch.randn(tokens, dim, requires_grad=True)
    embedding = (torch.randn(vocab_size, dim) / dim**0.5).requires_grad_()
    targets = torch.randint(vocab_size, (tokens,))

    # dxn fuses the projection to the vocabulary with the loss, so torch must compute both too.
    def ours() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = linear_cross_entropy(x, embedding, targets, label_smoothing=0.1)
        total.backward()

    def peer() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = x @ embedding.T
        # torch computes the loss in float32 from all logits at once.
        total = F.cross_entropy(logits.float(), targets, label_smoothing=0.1, reduction="sum")
        total.backward()

    return compare(ours, peer)


def main() -> None:
    """Print one line per case."""
    cases: dict[str, tuple[float, float]] = {}
    # From short texts to long ones. 197 tokens are a ViT with 14×14 patches and a class token.
    for batch, tokens in ((64, 16), (64, 64), (32, 197), (8, 512)):
        cases[f"attention {batch}×{tokens} tokens"] = attention(batch, tokens)
    for batch, tokens in ((64, 16), (64, 32), (64, 64), (64, 96), (64, 128), (32, 197)):
        name = f"float32, {batch}×{tokens} tokens"
        cases[name] = attention(batch, tokens, dtype=torch.float32)
    cases["attention 64×64, dropout"] = attention(64, 64, dropout=DROPOUT)
    for rows, dim in ((16, 192), (128, 192), (512, 192), (4096, 192), (4096, 768)):
        cases[f"dropout {rows}×{dim}"] = dropout(rows, dim)
    for tokens, vocab_size in ((2048, 10000), (2048, 32000)):
        cases[f"loss {tokens}×{vocab_size} words"] = loss(tokens, vocab_size)
    for name, (ours, peer) in cases.items():
        print(f"{name:24} dxn {ours:8.2f} ms  torch {peer:8.2f} ms  ratio {peer / ours:5.2f}")


if __name__ == "__main__":
    main()
