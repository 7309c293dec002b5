"""Compare the speed of a training step with that of timm and transformers.

    python benchmarks/training.py [--device cuda]

Two models with the same architecture and weights are trained on the same batch with the same
optimizer, in bf16 under autocast. Their steps alternate, so that other load on the machine affects
both. The printed ratio is the median time of the peer divided by that of dxn: above 1, dxn is
faster.
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
from typing import Any

from dxn.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import parity  # noqa: E402
import parity_cases  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from parity_cases import Sizes  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from dxn.models.dropout import Dropout  # noqa: E402
from dxn.train.evaluate import to_device  # noqa: E402

WARM_UP = 2  # steps that are not timed, because the first ones allocate memory


@dataclass(frozen=True)
class Case:
    """A model to train.

    Args:
        name: Name in the table.
        peer: Name of a case of benchmarks/parity_cases.py.
        sizes: Sizes of the model and of its input.
        dropout: Dropout probability of both models.
    """

    name: str
    peer: str
    sizes: Sizes
    dropout: float = 0.0


# 64 pixels and patches of 8 pixels are 64 patches, 112 pixels are 196 patches.
SHORT_VIT = Sizes(dim=192, depth=12, heads=3, batch=64, side=64)
LONG_VIT = Sizes(dim=192, depth=12, heads=3, batch=16, side=112)
BERT = Sizes(dim=256, depth=4, heads=4, batch=64, length=60)
CASES = (
    Case("ViT, 65 tokens", "ViT (timm)", SHORT_VIT),
    Case("ViT, 197 tokens", "ViT (timm)", LONG_VIT),
    Case("ViT, 197 tokens", "ViT (transformers)", LONG_VIT),
    Case("BERT, 1 to 60 tokens", "BERT", BERT),
    Case("the same with dropout", "BERT", BERT, dropout=0.1),
    Case("AST, 36 tokens", "AST", Sizes(dim=192, depth=12, heads=3, batch=64)),
)


def steps(case: Case, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two functions, which take one training step of the model of dxn and of the peer."""
    # The same construction as in the parity benchmark ensures that both models compute the same.
    public = next(c for c in parity_cases.CASES if c.name == case.peer)
    with tempfile.TemporaryDirectory() as folder:
        pair = parity.pair(
            public, Path(folder), sizes=case.sizes, dtype=torch.float32, dropout=case.dropout
        )
    if not case.dropout:
        disable_dropout(pair.model)
    our_batch, peer_batch = parity.inputs(pair, case.sizes, torch.float32)
    our_batch: dict[str, Any] = to_device(our_batch, device)
    peer_batch = to_device(dict(peer_batch), device)
    labels = (torch.arange(case.sizes.batch) % parity_cases.NUM_CLASSES).to(device)
    model = pair.model.to(device)
    peer = pair.peer.to(device)
    return (
        make_step(model, lambda: model(our_batch), labels),
        make_step(peer, lambda: public.answer(peer, peer_batch), labels),
    )


def disable_dropout(model: nn.Module) -> None:
    """Set all dropout probabilities to 0, because the head of dxn has dropout by default."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, Dropout):
            module.rate = 0.0


def make_step(
    model: nn.Module, logits_of: Callable[[], Tensor], labels: Tensor
) -> Callable[[], None]:
    """Create a function that takes one training step.

    Args:
        model: Model to train.
        logits_of: Calls the model and returns its logits (B, K).
        labels: (B,). Target classes.
    """
    model.train()
    # fused: otherwise the time of the optimizer would hide differences between the models.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(labels.device.type, torch.bfloat16):
            logits = logits_of()
        # In float32, as in the trainer of dxn.
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds(step: Callable[[], None], device: torch.device) -> float:
    """Return the duration of one step."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a GPU computes asynchronously
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="device of both models")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds per case")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    transformers.logging.set_verbosity_error()
    print(f"{'model':<22} {'peer':<20} {'dxn, ms':>9} {'peer, ms':>11} {'ratio':>6}")
    for case in CASES:
        ours, peer = steps(case, device)
        rounds = [
            (seconds(ours, device), seconds(peer, device)) for _ in range(WARM_UP + args.repeats)
        ]
        our_seconds, peer_seconds = zip(*rounds[WARM_UP:], strict=True)
        our_ms = 1e3 * statistics.median(our_seconds)
        peer_ms = 1e3 * statistics.median(peer_seconds)
        row = f"{case.name:<22} {case.peer:<20} {our_ms:>9.1f} {peer_ms:>11.1f}"
        print(f"{row} {peer_ms / our_ms:>6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
