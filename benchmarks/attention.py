"""Attention, dropout and the loss over a vocabulary, ours against torch's: python benchmarks/attention.py

Ratios of medians, both sides interleaved in one run: above 1, ours is faster.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from dxn.models.attention import attend
from dxn.models.dropout import Dropout
from dxn.models.losses import linear_cross_entropy

REPEATS = 15


def compare(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of each; the first round only warms up."""
    rounds = [(_seconds(ours), _seconds(theirs)) for _ in range(REPEATS + 1)][1:]
    return 1e3 * statistics.median(r[0] for r in rounds), 1e3 * statistics.median(r[1] for r in rounds)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def attention(
    batch: int, tokens: int, *, heads: int = 6, head_dim: int = 32, dropout: float = 0.0
) -> tuple[float, float]:
    """Forward and backward in bf16 on the CPU, a fifth of the tokens masked."""
    query = torch.randn(batch, heads, tokens, head_dim, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.arange(tokens).expand(batch, 1, 1, tokens) < 0.8 * tokens
    return compare(
        lambda: attend(query, query, query, mask, dropout=dropout).sum().backward(),
        lambda: F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=dropout).sum().backward(),
    )


def dropout(rows: int, dim: int) -> tuple[float, float]:
    """Forward and backward over (rows, dim) in bf16."""
    x = torch.randn(rows, dim, dtype=torch.bfloat16, requires_grad=True)
    ours, theirs = Dropout(0.1).train(), nn.Dropout(0.1).train()
    return compare(lambda: ours(x).sum().backward(), lambda: theirs(x).sum().backward())


def loss(tokens: int, words: int, *, dim: int = 128) -> tuple[float, float]:
    """Forward and backward over a vocabulary, with smoothed labels, as in training under autocast."""
    x = torch.randn(tokens, dim, requires_grad=True)
    table = (torch.randn(words, dim) / dim**0.5).requires_grad_()
    targets = torch.randint(words, (tokens,))

    def ours() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = linear_cross_entropy(x, table, targets, label_smoothing=0.1)
        total.backward()

    def theirs() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = x @ table.T
        F.cross_entropy(logits.float(), targets, label_smoothing=0.1, reduction="sum").backward()

    return compare(ours, theirs)


def main() -> None:
    """Print a line a case."""
    cases = {f"attention {b}×{n} tokens": attention(b, n) for b, n in ((64, 16), (64, 64), (32, 197), (8, 512))}
    cases["attention 64×64, dropout"] = attention(64, 64, dropout=0.1)
    cases |= {f"dropout {n}×{d}": dropout(n, d) for n, d in ((4096, 192), (4096, 768))}
    cases |= {f"loss {n}×{v} words": loss(n, v) for n, v in ((2048, 10000), (2048, 32000))}
    for name, (ours, theirs) in cases.items():
        print(f"{name:24} ours {ours:8.2f} ms  torch {theirs:8.2f} ms  ratio {theirs / ours:5.2f}")


if __name__ == "__main__":
    main()
