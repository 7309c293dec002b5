"""Compare fine-tuning with LoRA to peft: the losses and the operations of a step.

    pip install peft
    python benchmarks/speed/lora.py [--device cuda]

The row `train_lora` of bench.py compares the time.

A GPT-2 with random weights is saved by transformers. dxn and peft load it, freeze it, and train
low-rank updates of the same layers with the same initial values, data, optimizer and schedule, in
float32. peft is no dependency of dxn, so this is no test.

The losses of 50 steps (width 64, 3 blocks, rank 4) differed by at most 1.9e-06 with one layer per
block, by 1.4e-06 with all layers, by 9.5e-07 with the stabilized scale as well, and by 9.5e-07 with
a dropout of 0.1 whose masks are equal (torch 2.14, transformers 5.23, peft 0.21). A step of width
512 with 6 blocks, rank 8 in all layers and 512 tokens has 39.58 billion operations in dxn and 39.59
in peft.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import dxn  # noqa: E402
from dxn.tasks.target import IGNORED  # noqa: E402
from dxn.training.finetune import Finetune, LowRank  # noqa: E402
from dxn.training.optim import cosine  # noqa: E402

STEPS = 50
LEARNING_RATE = 3e-3
VOCAB = 512
LAYERS = {
    "attn.qkv": "attn.c_attn",
    "attn.proj": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
SMALL = {"n_embd": 64, "n_layer": 3, "n_head": 2}
LARGE = {"n_embd": 512, "n_layer": 6, "n_head": 8}

Step = Callable[[Tensor, float], Tensor]


def save_peer(folder: Path, sizes: dict[str, int]) -> None:
    """Save a GPT-2 with random weights and a tokenizer."""
    torch.manual_seed(0)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=128, bos_token_id=1, eos_token_id=2, **sizes, **rates
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))


def make_ours(folder: Path, device: str, options: dict[str, Any]) -> nn.Module:
    """Return the model of dxn with low-rank updates."""
    model = dxn.from_public(str(folder), dtype="float32").model.train()
    torch.manual_seed(1)
    Finetune(freeze="all", **options)(model, set(model.state_dict()))
    return model.to(device)


def make_theirs(folder: Path, ours: nn.Module, options: dict[str, Any]) -> nn.Module:
    """Return the model of peft with the initial updates of ours."""
    peft: Any = import_module("peft")
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder)
    updates = {n: m for n, m in ours.named_modules() if isinstance(m, LowRank)}
    device = next(ours.parameters()).device
    names = {f".{LAYERS['.'.join(n.split('.')[3:5])]}" for n in updates}
    pattern = "|".join(name.replace(".", r"\.") for name in sorted(names))
    stabilized = options.get("lora_rank_stabilized", False)
    config = peft.LoraConfig(
        r=options["lora_rank"],
        lora_alpha=16 if stabilized else 2 * options["lora_rank"],
        use_rslora=stabilized,
        lora_dropout=options.get("lora_dropout", 0.0),
        target_modules=rf".*({pattern})",
        fan_in_fan_out=True,
    )
    model = peft.get_peft_model(peer, config).to(device).train()
    state = dict(model.named_parameters())
    for name, update in updates.items():
        _, _, number, *rest, _ = name.split(".")
        prefix = f"base_model.model.transformer.h.{number}.{LAYERS['.'.join(rest)]}"
        with torch.no_grad():
            state[f"{prefix}.lora_A.default.weight"].copy_(update.down)
            state[f"{prefix}.lora_B.default.weight"].copy_(update.up)
    numbers = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (ours, model)]
    assert numbers[0] == numbers[1], numbers
    return model


def loss_of_ours(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean loss of the next token."""
    rows = torch.arange(len(ids), device=ids.device)
    real = torch.ones_like(ids, dtype=torch.bool)
    coords = torch.zeros(*ids.shape, 1, device=ids.device)
    target = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], 1)
    text = {"ids": ids, "mask": real, "rows": rows, "coords": coords, "#real": ids.numel()}
    total = model({"text": text, "target": {"ids": target}, "#size": len(ids)})
    return total / (target != IGNORED).sum()


def make_step(model: nn.Module, loss_of: Callable[[nn.Module, Tensor], Tensor]) -> Step:
    """Return a function that takes a step on a batch and returns its loss."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.98), weight_decay=0.0, fused=True)

    def step(ids: Tensor, factor: float) -> Tensor:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * factor
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def loss_of_theirs(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean loss of the next token."""
    return model(input_ids=ids, labels=ids).loss


def make_pair(folder: Path, device: str, options: dict[str, Any]) -> dict[str, Step]:
    """Return a step of dxn and one of peft, with equal weights."""
    ours = make_ours(folder, device, options)
    theirs = make_theirs(folder, ours, options)
    return {"dxn": make_step(ours, loss_of_ours), "peft": make_step(theirs, loss_of_theirs)}


def compare_losses(folder: Path, device: str, options: dict[str, Any]) -> float:
    """Return the largest difference of the losses of the steps."""
    steps, schedule = make_pair(folder, device, options), cosine()
    rand = torch.Generator().manual_seed(0)
    differences: list[float] = []
    first = last = 0.0
    for i in range(STEPS):
        # Each token is the one before plus one or two, so that there is something to learn.
        moves = torch.randint(1, 3, (8, 32), generator=rand)
        ids = ((moves.cumsum(1) + torch.randint(VOCAB, (8, 1), generator=rand)) % VOCAB).to(device)
        factor = schedule((i + 1) / (STEPS + 1))
        losses: dict[str, float] = {}
        for name, step in steps.items():
            torch.manual_seed(i)  # equal masks of the dropout
            losses[name] = float(step(ids, factor))
        differences.append(abs(losses["dxn"] - losses["peft"]))
        first, last = first or losses["dxn"], losses["dxn"]
    print(f"{options}: loss {first:.4f} to {last:.4f}, difference {max(differences):.1e}")
    return max(differences)


def make_large(folder: Path, device: str) -> tuple[dict[str, Step], Tensor]:
    """Return steps of the large model, and their batch (8, 64)."""
    save_peer(folder, LARGE)
    steps = make_pair(folder, device, {"lora_rank": 8, "lora_targets": ("all-linear",)})
    ids = torch.randint(VOCAB, (8, 64), generator=torch.Generator().manual_seed(0))
    return steps, ids.to(device)


def compare_operations(folder: Path, device: str) -> None:
    """Print the operations of a step."""
    steps, ids = make_large(folder, device)
    for name, step in steps.items():
        with FlopCounterMode(display=False) as counter:
            step(ids, 0.0)
        print(f"{name}: {counter.get_total_flops() / 1e9:.2f} GFLOP per step")


def main() -> None:
    """Compare losses and operations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_peer(folder, SMALL)
        for options in (
            {"lora_rank": 4},
            {"lora_rank": 4, "lora_targets": ("all-linear",)},
            {"lora_rank": 4, "lora_dropout": 0.1, "lora_targets": ("all-linear",)},
            {"lora_rank": 4, "lora_rank_stabilized": True, "lora_targets": ("all-linear",)},
        ):
            assert compare_losses(folder, args.device, options) < 1e-3
        compare_operations(folder, args.device)


if __name__ == "__main__":
    main()
