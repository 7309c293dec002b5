"""Encode the values of inputs whose encoder is frozen, once for all epochs and later trainings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import dxn
from dxn.core.display import print_line, track
from dxn.core.files import cache_folder
from dxn.core.processes import from_all, from_first
from dxn.data.dataset import Opened, Samples
from dxn.data.encoded import EncodedColumn, VectorStore, value_digests
from dxn.data.raws import GB
from dxn.tasks.space import PER_SAMPLE, AnswerKind
from dxn.tokenize.base import Batch
from dxn.tokenize.encoded_adapter import UNUSED, EncodedAdapter
from dxn.training.device import autocast
from dxn.training.predict import run_batches

if TYPE_CHECKING:
    from dxn.runs.prepare import Training

Part = tuple[str, str]  # a split and an input
ENOUGH = 64  # values from which the number of bytes of all of them is estimated


def encoded_once(run: Training) -> dict[str, Opened]:
    """Return the splits of a training with the vectors of inputs whose encoder is frozen.

    Inputs with augmentation are encoded in each epoch, as are those of a task whose targets change
    them, such as the windows of a long text with an answer.
    """
    splits = dict(run.splits)
    limit = round(run.loader.encoded_gb * GB)
    reads_tokens = run.task.answer_kind is AnswerKind.TAGS  # which do not change the inputs
    needs_vectors = run.task.answer_kind in PER_SAMPLE or run.task.separates_inputs
    if not limit or not (needs_vectors or reads_tokens) or run.source.stream is not None:
        return splits
    for key in dict.fromkeys(run.model.inputs.values()):
        names = [name for name, other in run.model.inputs.items() if other == key]
        adapter = run.model.adapter(names[0])
        if not isinstance(adapter, EncodedAdapter) or not adapter.is_frozen:
            continue
        if adapter.tokenizer.is_random:
            continue
        # Two texts that are one sequence are encoded together.
        target = run.task.target
        if target.is_pair or (not reads_tokens and set(names) & set(target.prepared_inputs)):
            continue
        # One process computes, and all read its file.
        columns = from_first(partial(_encoded, run, key, names, adapter, limit))
        # Another machine can have another home folder.
        if not all(from_all(partial(_are_readable, columns))):
            print_line(
                f"note: {', '.join(names)}: not all processes can read {cache_folder('')}, so the "
                "encoder runs in each epoch"
            )
            continue
        for split, encoded in columns.items():
            opened = splits[split]
            splits[split] = replace(opened, encoded={**opened.encoded, **encoded})
    return splits


def _are_readable(columns: Mapping[str, Mapping[str, EncodedColumn]]) -> bool:
    return all(column.is_readable for part in columns.values() for column in part.values())


def _encoded(
    run: Training, key: str, names: list[str], adapter: EncodedAdapter, limit: int
) -> dict[str, dict[str, EncodedColumn]]:
    """Do the same as `_encode`; empty, with a line, if the vectors cannot be kept."""
    try:
        cache_folder("encoded").mkdir(parents=True, exist_ok=True)
        return _encode(run, key, names, adapter, limit)
    except (OSError, _NoRoom) as error:
        print_line(f"note: {', '.join(names)}: {error}, so the encoder runs in each epoch")
        return {}


def _encode(
    run: Training, key: str, names: list[str], adapter: EncodedAdapter, limit: int
) -> dict[str, dict[str, EncodedColumn]]:
    """Encode the values of all inputs of an adapter, and return their vectors by split and input.

    Args:
        run: The training.
        key: Key of the adapter.
        names: Its inputs.
        adapter: The adapter.
        limit: Maximum number of bytes of the vectors of all encoders.

    Raises:
        OSError: If the cache cannot be written.
        _NoRoom: If there is no room.
    """
    device, precision = run.trainer.hardware.device, run.plan.precision
    with autocast(device, precision):
        is_half = torch.is_autocast_enabled(device.type)
        # The next layer would round them in the same way.
        dtype = torch.get_autocast_dtype(device.type) if is_half else torch.float32
    digests = {
        (split, name): value_digests(opened.raws[name], opened.present[name])
        for split, opened in run.splits.items()
        for name in names
        if name in opened.raws
    }
    total = len({value for column in digests.values() for value in column if value is not None})
    about = _digest(run.plan.model.adapters[key], adapter, f"{device.type} {precision}")
    with VectorStore.opened(about, adapter.adapter.dim, dtype) as store:
        parts = _missing(run, digests, store)
        count = sum(map(len, parts.values()))
        if count:
            which = "" if count == total else f" {count:,} of"
            print_line(
                f"{', '.join(names)}: encoding{which} {total:,} values once, because the encoder "
                f"is frozen; {store.folder} keeps the vectors"
            )
            values = _values(run, parts, digests, adapter, store, limit)
            store.add(track(values, count, f"encoding {', '.join(names)}"))
        columns: dict[str, dict[str, EncodedColumn]] = {}
        for (split, name), column in digests.items():
            columns.setdefault(split, {})[name] = store.column(column)
    return columns


class _NoRoom(Exception):
    """The vectors need too many bytes. The message is the line to print."""


def _digest(node: Mapping[str, Any], adapter: EncodedAdapter, where: str) -> str:
    """Return a digest of all that determines the vectors of a value."""
    content = blake2b(f"{dxn.__version__} {torch.__version__} {where}".encode(), digest_size=16)
    vocabulary = adapter.tokenizer.vocabulary
    learned = {**adapter.adapter.state(), "": vocabulary and vocabulary.to_str()}
    # Not the width of the model, which can be another one in the next training.
    options = [
        node.get(name) for name in ("adapter", "fusion", "backbone", "leading", "max_columns")
    ]
    content.update(json.dumps([options, learned], sort_keys=True, default=str).encode())
    for part in (adapter.adapter, adapter.fusion, adapter.backbone):
        for name, tensor in part.state_dict().items():
            if name == UNUSED:
                continue
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


def _missing(
    run: Training, digests: Mapping[Part, Sequence[bytes | None]], store: VectorStore
) -> dict[Part, Samples]:
    """Return a sample of each value that the store does not have, the longest first."""
    known = set(store.places)
    parts: dict[Part, Samples] = {}
    for (split, name), column in digests.items():
        rows: list[int] = []
        for row, value in enumerate(column):
            if value is not None and value not in known:
                known.add(value)
                rows.append(row)
        samples = Samples(run.splits[split], run.tokenizers, only=[name])
        samples.rows = np.array(rows, np.int64)
        # Little padding, and a batch that is too large for the memory is the first one.
        samples.rows = samples.rows[np.argsort(-samples.lengths(), kind="stable")]
        if rows:
            parts[split, name] = samples
    return parts


def _values(
    run: Training,
    parts: Mapping[Part, Samples],
    digests: Mapping[Part, Sequence[bytes | None]],
    adapter: EncodedAdapter,
    store: VectorStore,
    limit: int,
) -> Iterator[tuple[bytes, Tensor]]:
    """Yield the digest and the vectors (N, E) of each value.

    Args:
        run: The training.
        parts: The samples of these values by split and input.
        digests: Digest of the value of each row by split and input.
        adapter: The adapter.
        store: Where the vectors are added.
        limit: Maximum number of bytes of the vectors of all encoders.

    Raises:
        _NoRoom: If they will need too many bytes.
    """
    device = run.trainer.hardware.device
    run.model.to(device).eval()
    total = sum(samples.lengths().sum() for samples in parts.values())
    num_values = sum(map(len, parts.values()))
    count, vectors, length = 0, 0, 0.0
    for (split, name), samples in parts.items():
        column = digests[split, name]
        lengths = dict(zip(samples.rows.tolist(), samples.lengths().tolist(), strict=True))

        @torch.inference_mode()
        def encode(batch: Batch, name: str = name) -> list[tuple[int, Tensor]]:
            with autocast(device, run.plan.precision):
                tokens = adapter.encode(batch[name])
            rows = [batch["#index"][i] for i in batch[name]["rows"].tolist()]
            xs = [x[mask].cpu() for x, mask in zip(tokens.x, tokens.mask, strict=True)]
            return list(zip(rows, xs, strict=True))

        for encoded in run_batches(
            encode, samples, 2 * run.trainer.batch_size, device=device, may_be_bad=True
        ):
            for row, x in encoded:
                value = column[row]
                assert value is not None
                yield value, x
                count, vectors, length = count + 1, vectors + len(x), length + lengths[row]
                if count in (ENOUGH, num_values):
                    # The longest ones come first, and have no more columns than others if their
                    # number is limited.
                    part = count / num_values if adapter.max_columns else length / max(total, 1)
                    num_bytes = vectors / max(part, 1e-9) * store.bytes_per_vector
                    left = num_bytes - vectors * store.bytes_per_vector
                    if not store.make_room(round(left), limit):
                        raise _NoRoom(
                            f"the vectors of all values need about {num_bytes / GB:.1f} GB "
                            f"(loader.encoded_gb={limit / GB:g}, and half of the free space of the "
                            "disk)"
                        )
