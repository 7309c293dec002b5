"""A data set for language modelling: all texts as one stream of tokens, cut into windows."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import atomic_file, cache_folder, lock, open_own, remove_old
from dxn.data.dataset import Opened, Samples
from dxn.data.rows import TARGET, Column
from dxn.tasks.language import Window
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer
from dxn.tokenize.text.vocabulary import ENDS, encode, num_embeddings, token_of


class TokenWindows(Samples):
    """Windows of max_len tokens. The target of each token is the next token.

    In training (`augment`), a window starts at a random position, which depends only on (seed,
    epoch, i). Otherwise windows are adjacent, so that each token except the first is predicted
    once. If the tokenizer has an EOS token, it separates the rows.

    Args:
        opened: Opened rows.
        tokenizers: Tokenizer of each input, by input name. That of the task's only required input
            must have a vocabulary.
        task: Task that encodes and collates the targets.
        seed: Seed of the random positions.
        augment: Whether windows start at random positions, as in training.
        repeats: Factor of the number of windows, if `augment` is set.

    Raises:
        UserError: If the texts have fewer than two tokens.
    """

    def __init__(
        self,
        opened: Opened,
        tokenizers: Mapping[str, Tokenizer],
        *,
        task: Task,
        seed: int = 0,
        augment: bool = False,
        repeats: int = 1,
    ):
        (self.name,) = task.target.required
        tokenizer = tokenizers[self.name]
        super().__init__(opened, {self.name: tokenizer}, task=task, seed=seed, augment=augment)
        # Samples.__init__ sets self.rows to the rows that have a text. At the end of this method it
        # becomes the list of windows, which __len__ and __getitem__ use.
        self.texts = self.rows
        texts = opened.raws[self.name].take(self.texts)
        self.tokens: TokenIds = token_ids(texts, tokenizer)
        if len(self.ids) < 2:
            raise UserError(
                f"{opened.origin[0]}: language modelling needs at least 2 tokens per split, got "
                f"{len(self.ids)}; use more text"
            )
        self.max_len = tokenizer.max_len
        num_predicted = len(self.ids) - 1
        copies = repeats if augment else 1
        self.rows = np.arange(copies * math.ceil(num_predicted / self.max_len))

    @property
    def ids(self) -> np.ndarray:
        """Token ids of the stream, uint16 or uint32."""
        return self.tokens.ids

    @property
    def chars_per_token(self) -> float:
        """Mean number of characters per token of the stream."""
        return self.tokens.num_chars / len(self.ids)

    def lengths(self) -> np.ndarray:
        """Return max_len, the length of all windows except the last one."""
        return np.full(len(self), self.max_len)

    def describe_index(self, row: int) -> str:
        """Return the name of a window for messages, such as "book.txt row 1, window 17"."""
        if self.augment:  # the position depends on the epoch
            return f"window {row + 1}, at a random position of the texts"
        text = np.searchsorted(self.tokens.starts, row * self.max_len, side="right") - 1
        return f"{self.opened.origin[int(self.texts[text])]}, window {row + 1}"

    def batch(
        self, epoch: int, indices: Sequence[int], *, drop_inputs: bool = True
    ) -> dict[str, Any]:
        return self.collate([self[epoch, i] for i in indices])

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, i = key
        assert self.target is not None
        index = int(self.rows[i])
        start = index * self.max_len
        rand = random.Random(f"{self.seed}/{epoch}/{i}") if self.augment else None
        # A random start gives each token a different context in each epoch.
        if rand is not None:
            start = rand.randrange(max(len(self.ids) - self.max_len, 1))
        # The targets of a window are its ids shifted by one.
        ids = torch.from_numpy(self.ids[start : start + self.max_len + 1].astype(np.int64))
        targets = ids[1:]
        sample: dict[str, Any] = {self.name: _text_sample(ids[:-1])}
        window = Window(targets, self.chars_per_token)
        encoded = self.target.encode(
            window, sample, random.Random("") if self.target.random else rand
        )
        if encoded is not None:
            sample[TARGET] = encoded
        return {**sample, "#index": index}


def make_samples(
    task: Task, opened: Opened, tokenizers: Mapping[str, Tokenizer], **options: Any
) -> Samples:
    """Create the data set of a task: `TokenWindows` if it needs a token stream, else `Samples`.

    The options are those of `Samples`. `TokenWindows` have a single input, so they ignore `only`
    and `input_dropout`. Each conversation is a sample, also for a task that needs a stream of
    tokens, and so is each text with other inputs.
    """
    are_chats = any(tokenizer.reader.template is not None for tokenizer in tokenizers.values())
    if task.target.source != "stream" or are_chats or len(tokenizers) > 1:
        return Samples(opened, tokenizers, task=task, **options)
    used = {name: value for name, value in options.items() if name not in ("only", "input_dropout")}
    return TokenWindows(opened, tokenizers, task=task, **used)


def _text_sample(ids: Tensor) -> dict[str, Tensor]:
    """Return a sample in the format of the text tokenizer.

    `coords` are character positions in a text, which are unknown here, so they are NaN.
    """
    count = len(ids)
    return {
        "ids": ids,
        "mask": torch.ones(count, dtype=torch.bool),
        "coords": torch.full((count, 2), torch.nan),
        # -1 marks tokens without a word, because the stream is not divided into words.
        "words": torch.full((count,), -1),
    }


# Characters of a data set whose token ids stay in memory: encoding them again takes seconds.
MAX_IN_MEMORY = 10_000_000
MAX_DAYS = 30  # after which a file of token ids that no training used is deleted
# The library needs about 700 bytes per token while it encodes, so the texts that are encoded
# together are limited, and a long text is cut into pieces.
BATCH_TEXTS = 1000
BATCH_CHARS = 1_000_000
PIECE = 20_000  # characters
CONTEXT = 200  # characters on each side of a cut that show whether it changes a token
TRIES = 100  # places for a cut that are tried
BOUNDARY = re.compile(r"(?<=\w)(?=\W)")  # the end of a word: few tokens cross it


@dataclass(frozen=True)
class TokenIds:
    """The token ids of all texts, one text after the other.

    Args:
        ids: Token ids, uint16 or uint32.
        starts: Index in `ids` of the first token of each text, int64.
        num_chars: Number of characters of all texts.
        path: File of `ids`, which is mapped into memory. None: `ids` are in memory.
    """

    ids: np.ndarray
    starts: np.ndarray
    num_chars: int
    path: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A data worker that is not forked maps the file too. It would receive a copy otherwise.
        if self.path is not None:
            return _mapped, (self.path, self.num_chars)
        return TokenIds, (self.ids, self.starts, self.num_chars)


def token_ids(texts: Column, tokenizer: Tokenizer) -> TokenIds:
    """Encode texts, or lists of words, with EOS tokens between them if the tokenizer has one.

    The ids of more than MAX_IN_MEMORY characters are written to a file in the user's cache. Its
    name is a digest of the texts and the vocabulary, so that each process that needs the same ids
    uses the same file.

    Raises:
        UserError: If a text cannot be encoded, or the file cannot be written.
    """
    vocabulary = tokenizer.vocabulary
    assert vocabulary is not None  # the task has checked it
    dtype = np.dtype(np.uint16 if num_embeddings(vocabulary) <= 1 << 16 else np.uint32)
    num_chars = sum(len(" ".join(text) if isinstance(text, list) else text) for text in texts)
    if num_chars <= MAX_IN_MEMORY:
        starts = array("q")
        parts = list(_encoded(texts, vocabulary, dtype, starts))
        return TokenIds(np.concatenate([np.empty(0, dtype), *parts]), np.array(starts), num_chars)
    # Not in the run folder: an evaluation, a comparison and the next run need the same ids.
    path = Path(f"{_digest(texts, vocabulary)}.npy")
    try:
        path = cache_folder("tokens") / path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if not _is_complete(path):
                print_line(f"encoding {num_chars:,} characters; {path} keeps their token ids")
                remove_old(path.parent, MAX_DAYS)
                _write(path, texts, vocabulary, dtype)
    except OSError as error:
        raise UserError(
            f"{path}: token ids cannot be written ({error}); set the environment "
            "variable XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return _mapped(path, num_chars)


def _digest(texts: Column, vocabulary: tokenizers.Tokenizer) -> str:
    """Return a digest of all that determines the token ids."""
    digest = hashlib.blake2b(f"{tokenizers.__version__} {vocabulary.to_str()}".encode())
    for text in texts:
        digest.update(f"{len(text)} ".encode())
        if isinstance(text, list):
            digest.update(repr(text).encode())
            continue
        # A text can be a whole file, of which there should be no copy in bytes.
        for start in range(0, len(text), BATCH_CHARS):
            digest.update(text[start : start + BATCH_CHARS].encode())
    return digest.hexdigest()[:32]


def _encoded(
    texts: Column, vocabulary: tokenizers.Tokenizer, dtype: np.dtype, starts: array[int]
) -> Iterator[np.ndarray]:
    """Yield the token ids of all texts in parts, and append the start of each text to `starts`."""
    end = token_of(vocabulary, ENDS)
    total = 0
    for batch in _batches(texts, vocabulary):
        rows: list[list[int]] = []
        for (_, is_start), ids in zip(batch, _ids_of(batch, vocabulary), strict=True):
            if is_start:
                if total and end is not None:
                    rows.append([end])
                    total += 1
                starts.append(total)
            rows.append(ids)
            total += len(ids)
        yield np.fromiter(chain.from_iterable(rows), dtype, sum(map(len, rows)))


def _batches(texts: Column, vocabulary: tokenizers.Tokenizer) -> Iterator[list[tuple[Any, bool]]]:
    """Yield pieces of texts in batches, each with whether it is the start of its text."""
    batch: list[tuple[Any, bool]] = []
    size = 0
    for text in texts:
        for number, piece in enumerate(_pieces(text, vocabulary)):
            batch.append((piece, number == 0))
            size += len(piece)
            if len(batch) == BATCH_TEXTS or size >= BATCH_CHARS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _pieces(text: Any, vocabulary: tokenizers.Tokenizer) -> Iterator[Any]:
    """Cut a long text into pieces whose tokens are, one after the other, those of the text."""
    start = 0
    while isinstance(text, str) and len(text) - start > PIECE:
        least = start + PIECE
        ends = (match.start() for match in BOUNDARY.finditer(text, least, least + PIECE))
        # A text can have no words, such as one in Chinese or the bases of DNA.
        tried = chain(islice(ends, TRIES), [least])
        stop = next((at for at in tried if _is_between_tokens(text, at, vocabulary)), None)
        if stop is None:
            break
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


def _is_between_tokens(text: str, at: int, vocabulary: tokenizers.Tokenizer) -> bool:
    """Whether a cut of a text at this index changes no token."""
    before, after = text[max(at - CONTEXT, 0) : at], text[at : at + CONTEXT]
    whole, *parts = (
        encode(vocabulary, part, add_special_tokens=False).ids
        for part in (before + after, before, after)
    )
    return whole == [*parts[0], *parts[1]]


def _ids_of(batch: list[tuple[Any, bool]], vocabulary: tokenizers.Tokenizer) -> Iterator[list[int]]:
    """Yield the token ids of each piece.

    Special tokens such as [CLS] are not added around each piece, because the texts form one stream.
    """
    pieces = [piece for piece, _ in batch]
    try:
        if all(isinstance(piece, str) for piece in pieces):
            encodings = vocabulary.encode_batch_fast(pieces, add_special_tokens=False)
            yield from (encoding.ids for encoding in encodings)
            return
    except BaseException as error:
        # See `encode`, which names the text that cannot be encoded.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
    for piece in pieces:
        words = isinstance(piece, list)
        yield encode(vocabulary, piece, is_pretokenized=words, add_special_tokens=False).ids


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let the other processes of this training wait until the first one has written the file."""
    with open_own(path.with_suffix(".lock")) as file:
        lock(file, wait=True)  # on a network drive without locks, each process writes the same file
        yield


def _is_complete(path: Path) -> bool:
    """Whether the files of token ids and starts can be used."""
    try:
        _mapped(path, 0)
        os.utime(path)
    except (OSError, ValueError, EOFError):  # no file, or one that was cut off by another program
        return False
    return True


def _write(path: Path, texts: Column, vocabulary: tokenizers.Tokenizer, dtype: np.dtype) -> None:
    starts = array("q")
    with atomic_file(path) as partial:
        with partial.open("wb") as file:
            total = 0
            # The number of tokens is known at the end. The header has room for any number.
            np.lib.format.write_array_header_1_0(file, _header(dtype, total))
            for ids in _encoded(texts, vocabulary, dtype, starts):
                file.write(ids.tobytes())
                total += len(ids)
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, _header(dtype, total))
        with atomic_file(_starts_of(path)) as other:
            np.save(other, np.array(starts))


def _header(dtype: np.dtype, count: int) -> dict[str, Any]:
    descr = np.lib.format.dtype_to_descr(dtype)
    return {"descr": descr, "fortran_order": False, "shape": (count,)}


def _starts_of(path: Path) -> Path:
    return path.with_suffix(".starts.npy")


def _mapped(path: Path, num_chars: int) -> TokenIds:
    ids = np.load(path, mmap_mode="r")
    return TokenIds(ids, np.load(_starts_of(path), mmap_mode="r"), num_chars, path)
