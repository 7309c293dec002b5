"""Models of bench.py: the same weights in dxn and in timm or transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import parity
import parity_cases
import timm
import torch
import transformers
from bench_row import Options, check_equal
from parity import Pair
from parity_cases import NUM_CLASSES, VOCAB, Batch, Case, Sizes
from torch import Tensor, nn

from dxn.core.dropout import Dropout
from dxn.tokenize.base import NUM_REAL

T: Any = transformers
# Of float32 outputs, relative to the largest one.
TOLERANCE = 1e-4

VIT_B = Sizes(dim=768, depth=12, heads=12, side=224)
VIT_S = Sizes(dim=384, depth=12, heads=6, side=224)
BASE = Sizes(dim=768, depth=12, heads=12)
TINY = Sizes(dim=64, depth=2, heads=4, side=32)
TINY_BATCH = 4


def fitting(options: Options, sizes: Sizes, batch: int) -> tuple[Sizes, int]:
    """Return the sizes of models and the number of samples, which are small with `tiny`."""
    return (TINY, min(batch, TINY_BATCH)) if options.tiny else (sizes, batch)


def vit(side: int = 224, patch_size: int = 16) -> Case:
    """Describe a vision transformer of timm."""

    def make(sizes: Sizes) -> nn.Module:
        return timm.models.vision_transformer.VisionTransformer(
            img_size=side,
            patch_size=patch_size,
            embed_dim=sizes.dim,
            depth=sizes.depth,
            num_heads=sizes.heads,
            num_classes=NUM_CLASSES,
        )

    return replace(parity_cases.timm_case("ViT (timm)"), make=make)


def bert() -> Case:
    """Describe BERT of transformers, for up to 512 tokens."""
    return parity_cases.hf_case(
        "BERT",
        "BertForSequenceClassification",
        lambda sizes: T.BertConfig(**sizes.hf, vocab_size=VOCAB, num_labels=NUM_CLASSES),
        "bert.encoder.layer",
        "text",
    )


def ast() -> Case:
    """Describe AST of transformers in its original size: 10.24 s, and 1,214 tokens."""
    return parity_cases.hf_case(
        "AST",
        "ASTForAudioClassification",
        lambda sizes: T.ASTConfig(**sizes.hf, num_labels=NUM_CLASSES),
        "audio_spectrogram_transformer.layers",
        "audio",
    )


def build(case: Case, folder: Path, sizes: Sizes, *, dropout: float = 0.0) -> Pair:
    """Build a peer with random weights, and the model of dxn with the same ones, in float32."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    pair = parity.pair(case, folder, sizes=sizes, dtype=torch.float32, dropout=dropout)
    if not dropout:
        disable_dropout(pair.model)
    return pair


def disable_dropout(model: nn.Module) -> None:
    """Set all dropout probabilities to 0, because the head of dxn has dropout by default."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, Dropout):
            module.rate = module.drop_path = 0.0


@torch.inference_mode()
def check_models(pair: Pair, ours: dict[str, Any], theirs: Batch) -> float:
    """Check in float32 that both models give the same output for this batch."""
    output = pair.model(ours)
    expected = pair.case.answer(pair.peer, theirs)
    return check_equal(output, expected, tolerance=TOLERANCE)


def lengths_of(count: int, *, mean: float, longest: float) -> list[int]:
    """Return lengths of texts with a lognormal distribution, in a random but fixed order."""
    z = torch.special.ndtri((torch.arange(count) + 0.5) / count)
    top = float(z[-1])
    log_mean, log_longest = (float(torch.tensor(v).log()) for v in (mean, longest))
    # The mean is exp(mu + sigma²/2), and the longest one exp(mu + top · sigma).
    sigma = top - (top**2 - 2 * (log_longest - log_mean)) ** 0.5
    lengths = (log_mean - sigma**2 / 2 + sigma * z).exp().round().long()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return lengths[order].tolist()


def texts(pair: Pair, lengths: list[int]) -> tuple[dict[str, Any], Batch]:
    """Create a padded batch of random token ids with these lengths."""
    sizes = replace(Sizes(), batch=len(lengths), length=max(lengths))
    ours, _ = parity.text_batch(pair, sizes, torch.float32)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, VOCAB, mask.shape, generator=torch.Generator().manual_seed(1))
    ids = ids.masked_fill(~mask, 0)
    ours["text"] |= {"ids": ids, "mask": mask, NUM_REAL: sum(lengths)}
    return ours, {"ids": ids, "mask": mask}


def pictures(pair: Pair, count: int, side: int, dtype: torch.dtype) -> tuple[dict[str, Any], Batch]:
    """Create a batch of random images."""
    return parity.image_batch(pair, replace(Sizes(), batch=count, side=side), dtype)


def sounds(
    pair: Pair, frames: list[int], dtype: torch.dtype, *, padded: bool
) -> tuple[dict[str, Any], Batch]:
    """Create a batch of random spectrograms.

    Args:
        pair: The models.
        frames: Number of frames of each clip.
        dtype: Data type of the input of the peer.
        padded: Whether the clips of dxn are padded to the size that the peer needs.
    """
    adapter: Any = pair.model.adapter("audio")
    spectrogram = pair.public.architecture.adapters["audio"]["spectrogram"]
    full, bins = spectrogram["num_frames"], spectrogram["n_mels"]
    rand = torch.Generator().manual_seed(1)
    features = torch.zeros(len(frames), full, bins)
    for row, count in zip(features, frames, strict=True):
        row[:count] = torch.randn(count, bins, generator=rand)
    theirs = {"features": ((features - adapter.mean) / adapter.std).to(dtype)}
    kept = [full] * len(frames) if padded else frames
    batch = {
        "features": features[:, : max(kept)].contiguous(),
        "lengths": torch.tensor(kept),
        "rows": torch.arange(len(frames)),
    }
    return {"audio": batch, "#size": len(frames)}, theirs


def without_gradients(run: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a call that runs a model for inference."""

    def call() -> None:
        with torch.inference_mode():
            run()

    return call
