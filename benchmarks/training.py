"""A step of training, ours against timm's and transformers': python benchmarks/training.py [--device cuda]

The same model with the same weights learns from the same batch with the same optimizer, in bf16 under autocast; the
two take turns. Ratios of medians: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import parity
import torch
import torch.nn.functional as F
from parity import Sizes
from torch import Tensor, nn

from dxn.train.evaluate import to_device


@dataclass(frozen=True)
class Case:
    """What is trained: a peer of benchmarks/parity.py, how large, and the dropout of both."""

    name: str
    peer: str
    sizes: Sizes
    dropout: float = 0.0


CASES = (
    Case("ViT, 65 tokens", "ViT (timm)", Sizes(dim=192, depth=12, heads=3, batch=64, side=64)),
    Case("ViT, 197 tokens", "ViT (timm)", Sizes(dim=192, depth=12, heads=3, batch=16, side=112)),
    Case("ViT, 197 tokens", "ViT (transformers)", Sizes(dim=192, depth=12, heads=3, batch=16, side=112)),
    Case("BERT, 1 to 60 tokens", "BERT", Sizes(dim=256, depth=4, heads=4, batch=64, length=60)),
    Case("the same with dropout", "BERT", Sizes(dim=256, depth=4, heads=4, batch=64, length=60), dropout=0.1),
    Case("AST, 36 tokens", "AST", Sizes(dim=192, depth=12, heads=3, batch=64)),
)


def steps(case: Case, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of ours and one of the peer's."""
    peer = next(c for c in parity.CASES if c.name == case.peer)
    with tempfile.TemporaryDirectory() as folder:
        pair = parity.pair(peer, Path(folder), sizes=case.sizes, dtype=torch.float32, dropout=case.dropout)
    mine, theirs = (to_device(given, device) for given in parity.inputs(pair, case.sizes, torch.float32))
    labels = (torch.arange(case.sizes.batch) % 7).to(device)
    return (
        step(pair.ours.to(device), lambda: pair.ours(mine), labels),
        step(pair.theirs.to(device), lambda: peer.answer(pair.theirs, theirs), labels),
    )


def step(model: nn.Module, answer: Callable[[], Tensor], labels: Tensor) -> Callable[[], None]:
    """Forward, backward and the optimizer of model, whose logits answer gives."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        with torch.autocast(labels.device.type, torch.bfloat16):
            logits = answer()
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def seconds(run: Callable[[], None], device: torch.device) -> float:
    """Of one step."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    """A row a case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="where both train")
    parser.add_argument("--repeats", type=int, default=15, help="timed turns a case")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    parity.transformers.logging.set_verbosity_error()
    print(f"{'model':<22} {'peer':<20} {'ours, ms':>9} {'theirs, ms':>11} {'ratio':>6}")
    for case in CASES:
        ours, theirs = steps(case, device)
        turns = [(seconds(ours, device), seconds(theirs, device)) for _ in range(args.repeats + 2)][2:]
        mine, other = (1e3 * statistics.median(side) for side in zip(*turns, strict=True))
        print(f"{case.name:<22} {case.peer:<20} {mine:>9.1f} {other:>11.1f} {other / mine:>6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
