"""Save a fine-tuned classifier as a folder that transformers or timm loads."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import replace_folder
from dxn.export.examples import examples
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved.model_folder import from_public
from dxn.stacking.stacked import stacks_of
from dxn.tasks import Classify
from dxn.training.evaluate import to_device
from dxn.weights.public import PublicModel
from dxn.weights.saving import required_options, to_original

# Files of a checkpoint that its library reads besides the weights and config.json.
COPIED = (
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
COUNT = 4  # samples of the comparison
TOLERANCE = 1e-4  # of the outputs, relative to the largest one


def save_original(predictor: Predictor, public: PublicModel, folder: Path) -> None:
    """Write the folder, and compare its outputs with those of the model. See `Predictor`."""
    _check(predictor, folder)
    state = {name: t.detach().cpu() for name, t in predictor.model.state_dict().items()}
    checkpoint = to_original(public, state, predictor.labels or ())
    with replace_folder(folder) as new:
        # safetensors does not save tensors that share memory, such as chunks of one tensor.
        tensors = {name: t.contiguous().clone() for name, t in checkpoint.tensors.items()}
        save_file(tensors, new / "model.safetensors", {"format": "pt"})
        config = json.dumps(checkpoint.config, indent=2, ensure_ascii=False)
        (new / "config.json").write_text(config, encoding="utf-8")
        for path in () if checkpoint.folder is None else checkpoint.folder.iterdir():
            if path.name in COPIED:
                shutil.copyfile(path, new / path.name)
        if not _is_same(predictor, from_public(str(new), dtype="float32")):
            needed = required_options(public, public.family.architecture(checkpoint))
            raise UserError(
                f"weights: {public.family.name} cannot represent this model, because its options "
                f"differ from those of the checkpoint; {needed}"
            )


def _check(predictor: Predictor, folder: Path) -> None:
    """Refuse models that have a part which no classifier of another library has.

    Raises:
        UserError: If there is such a part, or the folder has files that would be replaced.
    """
    reason = ""
    if predictor.task.name != Classify.name:
        reason = f"its task is {predictor.task.name}, must be {Classify.name}"
    elif len(predictor.inputs) > 1:
        reason = f"it has several inputs ({', '.join(predictor.inputs)})"
    elif predictor.num_members > 1:
        reason = "it is an ensemble; save one of its members"
    elif stacks_of(predictor.network):
        reason = "its answers are those of a mixture with a baseline; train with baseline=none"
    elif predictor.dtype != "float32":
        reason = f"its weights are {predictor.dtype}; load it without dtype"
    if reason:
        raise UserError(f"this model cannot be saved in its original format: {reason}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: must be a new or empty folder")


def _is_same(trained: Predictor, saved: Predictor) -> bool:
    """Whether the trained model and the saved one have the same outputs."""
    (name,) = trained.inputs
    tokenizer = trained.tokenizers[name]
    raws = examples(name, tokenizer, COUNT, random.Random(0))
    # transformers takes the maximum length with each call.
    (own,) = saved.tokenizers.values()
    own.max_len = tokenizer.max_len
    expected = _outputs(trained, raws)
    outputs = _outputs(saved, raws)
    if outputs.shape != expected.shape:
        return False
    return bool((outputs - expected).abs().max() <= TOLERANCE * expected.abs().max())


@torch.inference_mode()
def _outputs(predictor: Predictor, raws: Sequence[Any]) -> Tensor:
    """Return the outputs (B, K) for raw values of the only input."""
    (name,) = predictor.inputs
    prepare = predictor.tokenizers[name]
    collated = prepare.collate([prepare(raw) for raw in raws])
    count = len(raws)
    batch = {"#size": count, name: {**collated, "rows": torch.arange(count)}}
    return predictor.model(to_device(batch, predictor.device)).cpu()
