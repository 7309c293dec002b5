"""Generate texts in batches: continuations of prompts, and texts for samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.models.decoding.generation import generate
from dxn.models.decoding.language_model import LanguageModel
from dxn.models.decoding.search import Sampler
from dxn.models.model import Model
from dxn.runs.predictor.vocabulary import vocabulary_adapter
from dxn.tasks import Writes
from dxn.tasks.target_tokenizer import ENDS, token_of
from dxn.tokenize.text.vocabulary import encode
from dxn.training.evaluate import to_device

T = TypeVar("T")


def continue_prompts(
    model: Model,
    adapters: Mapping[str, Any],
    prompts: Sequence[str],
    *,
    count: int,
    max_new: int,
    sampler: Sampler,
    batch_size: int,
) -> list[str]:
    """Return `count` texts that continue each prompt, see `Predictor.write`.

    Raises:
        UserError: If the model is no language model, or a prompt is empty and cannot be.
    """
    try:
        language = LanguageModel(model)
    except ValueError as error:
        raise UserError(f"generate: {error}") from error
    tokenizer = vocabulary_adapter(adapters, None).tokenizer.vocabulary
    end = token_of(tokenizer, ENDS)
    # Special tokens such as [SEP] at the end would end the text before it is continued.
    ids = [encode(tokenizer, prompt, add_special_tokens=False).ids for prompt in prompts]
    if end is None and not all(ids):
        raise UserError(
            "prompt: must not be empty, because this model's tokenizer has no end token to "
            "start from"
        )
    device = next(model.parameters()).device
    texts: dict[int, list[str]] = {}
    # Prompts of similar length together, so that there is little padding.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for batch in _batched(order, batch_size):
        # In training, the end token separates texts, so a new text starts after it.
        starts = [torch.tensor(ids[i] or [end]) for i in batch]
        hypotheses = generate(
            language,
            None,
            prompt=pad_sequence(starts, batch_first=True).to(device),
            lengths=torch.tensor([len(start) for start in starts]),
            end=end,
            max_new=max_new,
            sampler=sampler,
            count=count,
        )
        for i, group in zip(batch, _batched(hypotheses, count), strict=True):
            # Decoded together: the space between two tokens can depend on both of them.
            texts[i] = [tokenizer.decode([*ids[i], *hypothesis.ids]) for hypothesis in group]
    return [text for i in range(len(ids)) for text in texts[i]]


def write_for_samples(
    model: Model,
    task: Writes,
    samples: Samples,
    *,
    count: int,
    max_new: int,
    sampler: Sampler,
    batch_size: int,
) -> list[str]:
    """Return `count` texts for each opened sample, see `Predictor.write`."""
    device = next(model.parameters()).device
    texts: list[str] = []
    for indices in _batched(range(len(samples)), batch_size):
        # Copies of each sample, because a sampler draws another text for each row.
        rows = [samples[0, i] for i in indices for _ in range(count)]
        encoded, _ = model.encode(model.embed(to_device(samples.collate(rows), device)))
        texts += task.write(model.head, encoded, max_new=max_new, sampler=sampler)
    return texts


def _batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Divide a sequence into parts of this size. The last one can be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]
