"""Compare public models in dxn with the reference implementations in timm and transformers.

    python benchmarks/speed/parity.py

For each family, timm or transformers builds a model with random weights and saves it. dxn loads it
like any checkpoint of this family. Both models receive the same batch. Their hidden states after
the embedding and after every block, and their outputs, are compared at the real tokens. The
benchmark prints one row per family. The exit code is 1 if a difference exceeds the tolerance.

tests/helpers/peers.py uses these functions for the parity tests.
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

from dxn.core.runtime import configure

configure()  # it sets environment variables that torch reads when it is imported

import torch  # noqa: E402
import transformers  # noqa: E402
from parity_cases import CASES, NUM_FRAMES, VOCAB, Batch, Case, Sizes, randomize, save  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from dxn.config.instantiate import build  # noqa: E402
from dxn.config.model_plan import ModelPlan  # noqa: E402
from dxn.models import MultimodalModel  # noqa: E402
from dxn.tasks.language import LanguageHead  # noqa: E402
from dxn.tokenize.base import FULL  # noqa: E402
from dxn.weights import PublicModel, read_public  # noqa: E402

# Maximum absolute difference. Activations are of the order of 1, so this is also relative.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
NUM_SAMPLES = 9001  # of a waveform: 27 tokens
WARM_UP = 2  # calls that are not timed, because the first ones allocate memory


@dataclass
class Pair:
    """A reference model, and the model of dxn with the same weights.

    Args:
        case: Description of the reference model.
        peer: The reference model, from timm or transformers.
        model: The model of dxn.
        public: The checkpoint that `model` was loaded from.
    """

    case: Case
    peer: nn.Module
    model: MultimodalModel
    public: PublicModel


def build_model(public: PublicModel, plan: ModelPlan | None = None) -> MultimodalModel:
    """Build the model that a checkpoint describes, with random weights.

    Args:
        public: The checkpoint.
        plan: What determines the model. Default: that of the checkpoint, `public.plan()`.
    """
    plan = (public.plan() if plan is None else plan).with_defaults()
    adapters = {key: build(node, key=f"adapters.{key}") for key, node in plan.adapters.items()}
    public.prepare(adapters)
    fusion = build(plan.fusion, key="fusion")
    backbone = build(plan.backbone, key="backbone")
    task = build(plan.head, key="head")
    if public.task_state():
        task.target.load(public.task_state())
    task.target.bind(adapters)
    head = task.make_head(backbone.dim, fusion.width, adapters)
    inputs = {key: key for key in adapters}
    return MultimodalModel(adapters, inputs=inputs, fusion=fusion, backbone=backbone, head=head)


def pair(
    case: Case,
    folder: Path,
    *,
    sizes: Sizes | None = None,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
) -> Pair:
    """Build a reference model, save it, and load it with dxn.

    Args:
        case: Description of the reference model.
        folder: Empty folder for its files.
        sizes: Sizes of the model. Default: `Sizes()`.
        dtype: Data type of the weights of both models.
        dropout: Dropout probability of both models, in the layers in which BERT has dropout.
    """
    sizes = sizes or Sizes()
    torch.manual_seed(0)
    peer = randomize(case.make(sizes)).to(dtype)
    for module in peer.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    save(case, peer, folder, heads=sizes.heads)
    public = read_public(str(folder), part=case.part)
    plan = public.plan()
    if dropout:  # only some adapters and heads have the option, so 0 leaves the plan unchanged
        plan.backbone["dropout"] = dropout
        plan.backbone["block"] |= {"attn_dropout": dropout, "mlp_dropout": 0.0}
        for node in (*plan.adapters.values(), plan.head):
            node["dropout"] = dropout
    model = build_model(public, plan).to(dtype)
    public.fill(model)
    return Pair(case, peer, model.eval(), public)


def inputs(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create the same random batch in the formats of dxn and of the reference model."""
    batches = {
        "image": image_batch,
        "video": video_batch,
        "text": text_batch,
        "audio": audio_batch,
    }
    return batches[p.case.modality](p, sizes, dtype)


def image_batch(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create a batch of random images."""
    rand = torch.Generator().manual_seed(1)
    size = (sizes.batch, 3, sizes.side, sizes.side)
    pixels = torch.randint(256, size, generator=rand, dtype=torch.uint8)
    return images(p.model, pixels, dtype)


def images(
    model: MultimodalModel, pixels: Tensor, dtype: torch.dtype
) -> tuple[dict[str, Any], Batch]:
    """Create a batch of images for dxn, and a normalized one for the reference model.

    Args:
        model: The model of dxn.
        pixels: uint8 (B, C, H, W).
        dtype: Data type of the normalized images.
    """
    adapter = model.adapter("image")
    mean, std = (t[:, None, None] for t in (adapter.mean, adapter.std))
    B, _, H, W = pixels.shape
    batch = {
        "pixels": pixels,
        "sizes": torch.tensor([[H, W]] * B),
        "pixel_map": torch.ones(B, 4),
        "rows": torch.arange(B),
        FULL: True,  # so that the model does not have to look for padding
    }
    return {"image": batch, "#size": B}, {"pixels": (pixels.to(dtype) / 255 - mean) / std}


def video_batch(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create a batch of random clips."""
    rand = torch.Generator().manual_seed(1)
    size = (sizes.batch, NUM_FRAMES, 3, sizes.side, sizes.side)
    pixels = torch.randint(256, size, generator=rand, dtype=torch.uint8)
    adapter = p.model.adapter("video")
    mean, std = (t[:, None, None] for t in (adapter.mean, adapter.std))
    batch = {
        "pixels": pixels,
        "lengths": torch.full((sizes.batch,), NUM_FRAMES),
        "sizes": torch.tensor([[sizes.side, sizes.side]] * sizes.batch),
        "pixel_map": torch.ones(sizes.batch, 4),
        "times": torch.arange(NUM_FRAMES).expand(sizes.batch, -1),
        "rows": torch.arange(sizes.batch),
        FULL: True,
    }
    return {"video": batch, "#size": sizes.batch}, {"pixels": (pixels.to(dtype) / 255 - mean) / std}


def text_batch(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create a padded batch of random token ids with different lengths."""
    rand = torch.Generator().manual_seed(1)
    rows = torch.arange(sizes.batch)
    shorter = [1 + 5 * i % sizes.length for i in range(1, sizes.batch)]
    lengths = torch.tensor([sizes.length, *shorter])
    mask = torch.arange(sizes.length) < lengths[:, None]
    ids = torch.randint(4, VOCAB, mask.shape, generator=rand)
    ids[rows, lengths - 1] = 3  # CLIP pools the token with the end-of-text id
    # RoBERTa in transformers computes its position ids from the padding ids.
    ids = ids.masked_fill(~mask, int(p.public.checkpoint.config.get("pad_token_id") or 0))
    if p.public.architecture.adapters["text"].get("tokenizer", {}).get("pad_to"):
        mask = torch.ones_like(mask)  # the model sees padding
    batch = {"ids": ids, "mask": mask, "coords": torch.zeros(*mask.shape, 2), "rows": rows}
    return {"text": batch, "#size": sizes.batch}, {"ids": ids, "mask": mask}


def audio_batch(p: Pair, sizes: Sizes, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create a batch of random spectrograms, or of waveforms if the model reads them."""
    rand = torch.Generator().manual_seed(1)
    adapter = p.model.adapter("audio")
    spectrogram = p.public.architecture.adapters["audio"].get("spectrogram")
    frames, width = NUM_SAMPLES, 1
    if spectrogram is not None:
        frames, width = spectrogram["num_frames"], spectrogram["n_mels"]
    size = (sizes.batch, frames, width)
    features = torch.randn(size, generator=rand, dtype=torch.float64).to(dtype)
    batch = {
        "features": features,
        "lengths": torch.full((sizes.batch,), frames),
        "rows": torch.arange(sizes.batch),
    }
    normalized = (features - adapter.mean) / adapter.std
    return {"audio": batch, "#size": sizes.batch}, {"features": normalized}


def hidden_states(
    blocks: Sequence[nn.Module], run: Callable[[], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Call `run`, and record the hidden states.

    Args:
        blocks: The blocks of the model.
        run: Calls the model.

    Returns:
        The input of the first block and the output of every block, and the result of `run`.
    """
    states: list[Tensor] = []

    def record_input(_, args, kwargs):
        # Some models of transformers pass the hidden states as a keyword argument.
        states.append(args[0] if args else kwargs["hidden_states"])

    def record_output(_, args, output):
        # Some blocks of transformers return a tuple.
        states.append(output if isinstance(output, Tensor) else output[0])

    hooks = [blocks[0].register_forward_pre_hook(record_input, with_kwargs=True)]
    hooks += [block.register_forward_hook(record_output) for block in blocks]
    with torch.inference_mode():
        result = run()
    for hook in hooks:
        hook.remove()
    return states, result


def differences(p: Pair, sizes: Sizes, dtype: torch.dtype) -> list[float]:
    """Return the maximum differences after the embedding, after each block, and at the output."""
    batch, peer_batch = inputs(p, sizes, dtype)
    # The blocks get the tokens of all samples in one axis; here with the columns of the batch.
    with p.model.backbone.unpacked():
        states, answer = hidden_states(
            list(p.model.backbone.blocks), lambda: answer_of(p.model, batch)
        )
    states = [state.unflatten(0, (batch["#size"], -1)) for state in states]
    peer_states, expected = hidden_states(
        p.case.blocks(p.peer), lambda: p.case.answer(p.peer, peer_batch)
    )
    order = columns(p, states[0].shape[1])
    mask = peer_batch.get("mask")
    gaps: list[float] = []
    for state, peer_state in zip(states, peer_states, strict=True):
        gap = (state[:, order] - peer_state.reshape(state.shape)).abs()
        # The hidden states at padding are arbitrary.
        gaps.append(float((gap if mask is None else gap[mask]).max()))
    return [*gaps, float((answer - expected).abs().max())]


def answer_of(model: MultimodalModel, batch: dict[str, Any]) -> Tensor:
    """Return the output of a model, or the pooled vectors of a language model."""
    if isinstance(model.head, LanguageHead):
        return model.encode(model.embed(batch))[1]
    return model(batch)


def columns(p: Pair, count: int) -> Tensor:
    """Return the column of dxn for each column of the reference model."""
    if p.case.name != "AST":
        return torch.arange(count)
    # AST numbers its patches by frequency band first, dxn by time first. Two class tokens precede
    # the patches.
    bands = p.model.adapter("audio").bands
    patches = torch.arange(2, count).view(-1, bands).T.flatten()
    return torch.cat([torch.arange(2), patches])


def seconds(run: Callable[[], Any]) -> float:
    """Return the duration of one call without gradients."""
    start = time.perf_counter()
    with torch.inference_mode():
        run()
    return time.perf_counter() - start


def time_ratio(p: Pair, sizes: Sizes, repeats: int) -> float:
    """Return the median of the time of dxn divided by that of the reference model."""
    batch, peer_batch = inputs(p, sizes, torch.float32)
    ratios: list[float] = []
    # The calls alternate, so that other load on the machine affects both.
    for i in range(repeats + WARM_UP):
        duration = seconds(lambda: answer_of(p.model, batch))
        peer_duration = seconds(lambda: p.case.answer(p.peer, peer_batch))
        if i >= WARM_UP:
            ratios.append(duration / peer_duration)
    return statistics.median(ratios)


def report(case: Case, repeats: int) -> tuple[str, bool]:
    """Return the row of a case, and whether all differences are within the tolerance."""
    gaps: dict[torch.dtype, list[float]] = {}
    for dtype in (torch.float64, torch.float32) if case.float64 else (torch.float32,):
        with tempfile.TemporaryDirectory() as folder:
            gaps[dtype] = differences(pair(case, Path(folder), dtype=dtype), Sizes(), dtype)
    # Times of the small models would be dominated by the overhead of Python.
    large = Sizes(dim=384, depth=6, heads=6, batch=8, side=128, length=60)
    with tempfile.TemporaryDirectory() as folder:
        p = pair(case, Path(folder), sizes=large, dtype=torch.float32)
        ratio = time_ratio(p, large, repeats)
    passed = all(max(gap) < TOLERANCE[dtype] for dtype, gap in gaps.items())
    float64 = f"{max(gaps[torch.float64]):.1e}" if case.float64 else "-"
    row = (
        f"{case.name:<46} {len(gaps[torch.float32]):>6} {float64:>9} "
        f"{max(gaps[torch.float32]):>9.1e} {ratio:>6.2f}"
    )
    return row if passed else f"{row}  ABOVE TOLERANCE", passed


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row per family. Return 1 if a difference exceeds the tolerance, otherwise 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="timed calls per family")
    args = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"{'family':<46} {'layers':>6} {'float64':>9} {'float32':>9} {'time':>6}")
    failed = False
    for case in CASES:
        row, passed = report(case, args.repeats)
        failed |= not passed
        print(row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
