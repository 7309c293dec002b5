"""The reader and the tokenizer of texts, which become token ids."""

from __future__ import annotations

import bisect
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Encoding, models
from tokenizers import Tokenizer as Vocabulary
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.core.untrusted import shortened
from dxn.tokenize.base import FULL, NUM_REAL, BadMedia, Batch, Reader, Sample, Tokenizer, rounded
from dxn.tokenize.text.chat import (
    ChatTemplate,
    Conversation,
    Message,
    count_files,
    is_conversation,
    read_messages,
)
from dxn.tokenize.text.options import TextAugment, TokenizerOptions
from dxn.tokenize.text.vocabulary import (
    SubwordSplitter,
    encode,
    is_library_error,
    load_tokenizer,
    num_embeddings,
    token_of,
    train_tokenizer,
)

MASK_TOKENS = ("[MASK]", "<mask>")
# Characters of a text that a sample keeps. About 8,000 words say what a longer text
# is about.
MAX_KEPT = 50_000
# The lengths of more texts than this are estimated, from the tokens of NUM_ENCODED of them.
MAX_ENCODED, NUM_ENCODED = 100_000, 1000
NO_COORDS = (math.nan, math.nan)  # of a token that has no position in the text
# Of batches of texts, which are expanded: the position and the word of a token are unknown.
UNKNOWN_COORDS, UNKNOWN_WORD = torch.full((1, 1, 1), math.nan), torch.full((1, 1), -1)

RawText = str | list[str] | Conversation
PlainText = str | list[str]
# One token of a text: its id, its start and stop in characters, and the index of its word or -1.
# Not a NamedTuple, whose construction would take a third of the time of TextTokenizer.__call__.
Token = tuple[int, tuple[float, float], int]


class TextReader(Reader):
    """Checks texts, lists of words, and conversations.

    Args:
        max_chars: Maximum number of characters of a text that are tokenized.
        marker: Token that stands for another input, see `TextTokenizer`.
    """

    modality = "text"
    words = True

    def __init__(self, max_chars: int = 100_000, marker: str | None = None):
        self.max_chars = max_chars
        self.marker = marker

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out whether cells are conversations, which need a template."""
        count = sum(map(is_conversation, cells))
        self.template = (self.template or ChatTemplate()) if count else None
        rest = len(cells) - count
        if not count or not rest:
            return ""
        return f"{rest:,} cells are not lists of messages: each is read as a message of the user"

    def read(self, cell: Any) -> RawText:
        """Check a text, a list of words or a conversation, and return it.

        Raises:
            BadMedia: If the cell is not a text, or its first max_chars characters are blank, or a
                message of a conversation is wrong.
        """
        is_short = type(cell) is str and 0 < len(cell) <= self.max_chars
        if is_short and self.template is None and cell.isascii() and not cell.isspace():
            return cell  # most texts, for which the checks below would take ten times longer
        if isinstance(cell, Conversation):
            return cell
        if is_conversation(cell):
            if self.template is None:
                raise BadMedia("must be a text, because the model was not trained on conversations")
            return self._conversation(read_messages(cell))
        if self.template is not None and isinstance(cell, str) and cell.strip():
            return self._conversation([{"role": "user", "content": cell}])
        words = [cell] if isinstance(cell, str) else cell
        is_text = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not is_text or isinstance(words, bytes):
            raise BadMedia(f"must be a text or a list of texts, got {shortened(cell)}")
        try:
            for word in words:
                word.encode()
        except UnicodeEncodeError:
            raise BadMedia(
                f"has characters that are not Unicode, such as half of a surrogate pair, got "
                f"{shortened(cell)}"
            ) from None
        raw = cell if isinstance(cell, str) else list(words)
        first, _ = self.first(raw)
        # A blank text has no tokens, but a sample needs at least one.
        if not any(map(str.strip, [first] if isinstance(first, str) else first)):
            raise BadMedia("blank text")
        return raw

    def _conversation(self, messages: Sequence[Message]) -> Conversation:
        assert self.template is not None
        conversation = self.template.conversation(self.template.adapted(messages, self.marker))
        return replace(conversation, num_files=count_files(messages))

    def first(self, raw: RawText) -> tuple[PlainText, float]:
        """Return the first max_chars characters of a text, and how many times longer it is."""
        if isinstance(raw, str) and len(raw) <= self.max_chars:  # most texts
            return raw, 1.0
        raw = raw.text if isinstance(raw, Conversation) else raw
        rest = self.max_chars
        count = len(raw) if isinstance(raw, str) else sum(map(len, raw))
        if count <= rest:
            return raw, 1.0
        if isinstance(raw, str):
            return raw[:rest], count / rest
        words: list[str] = []
        for word in raw:
            if rest <= 0:
                break
            words.append(word[:rest])
            rest -= len(word)
        return words, count / self.max_chars

    def describe(self, raws: Sequence[RawText], cells: Sequence[Any]) -> str:
        """Describe the lengths in words or characters."""
        if not raws:
            return ""
        unit = "words" if isinstance(raws[0], list) else "characters"
        lengths = [len(raw) for raw in raws]
        median = statistics.median(lengths)
        if self.template is not None:
            unit = "characters per conversation"
        return f"{min(lengths):,} to {max(lengths):,}, median {median:,.0f} {unit}"


class TextTokenizer(Tokenizer):
    """Convert a text, a list of words or a conversation to token ids.

    A conversation that is too long loses its oldest turns first.

    Args:
        options: Options of the vocabulary: how it is trained, or the file that it is loaded from.
        vocab_size: Maximum number of tokens of a vocabulary that is trained.
        max_len: Maximum number of tokens. Longer texts are truncated.
        max_chars: Maximum number of characters that are tokenized. The rest of a longer text is
            not read, so that a huge text costs little time, and it counts as truncated.
        augment: Augmentation of training texts.

    Attributes:
        is_cut: Whether a text that is encoded alone is truncated to max_len. A task that reads a
            long text in windows sets it to False.
    """

    is_cut: bool = True
    # Any valid id is suitable as padding, because the mask excludes it.
    fill: ClassVar = {"coords": math.nan, "words": -1, "answers": -1}
    reader: TextReader
    vocabulary: Vocabulary

    def __init__(
        self,
        options: TokenizerOptions = TokenizerOptions(),
        *,
        vocab_size: int = 8000,
        max_len: int,
        max_chars: int = 100_000,
        augment: TextAugment = TextAugment(),
    ):
        if options.pad_to > max_len:
            raise ValueError(
                f"tokenizer.pad_to must be at most max_len, got {options.pad_to} and {max_len}"
            )
        self.options = options
        self.vocab_size = vocab_size
        self.reader = TextReader(max_chars, options.marker)
        self.max_len = max_len
        self.pad_to = options.pad_to
        self.pad_id = 0  # set by use_vocabulary
        self.marker_id: int | None = None
        self.augment = augment
        self.is_random = augment != TextAugment()
        self.is_fitted = False  # whether the vocabulary is known
        self.vocabulary = Vocabulary(models.BPE())  # an empty one
        self.special_ids: list[int] = []
        self.mask_id: int | None = None
        self.splitter: SubwordSplitter | None = None
        if options.path is not None:
            self.use_vocabulary(load_tokenizer(options.path))

    def fit(self, texts: Iterable[str], *, keeps_rare: bool) -> None:
        """Train a vocabulary on texts of the training split, see `train_tokenizer`."""
        vocabulary = train_tokenizer(
            texts,
            kind=self.options.kind,
            vocab_size=self.vocab_size,
            lowercase=self.options.lowercase,
            keeps_rare=keeps_rare,
        )
        self.use_vocabulary(vocabulary)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Use this vocabulary."""
        # A tokenizer.json can enable both, but `__call__` and `collate` already do this.
        vocabulary.no_truncation()
        vocabulary.no_padding()
        self.vocabulary = vocabulary
        self.is_fitted = True
        added = vocabulary.get_added_tokens_decoder()
        self.special_ids = sorted(i for i, token in added.items() if token.special)
        if dropout := self.augment.subword_dropout:
            self.splitter = SubwordSplitter(vocabulary, dropout, special=self.special_ids)
        self.mask_id = token_of(vocabulary, MASK_TOKENS)
        if self.augment.token_mask and self.mask_id is None:
            raise ValueError(
                f"augment.token_mask={self.augment.token_mask} needs a tokenizer with a "
                f"{' or '.join(MASK_TOKENS)} token: choose another tokenizer, or leave it out"
            )
        if self.pad_to:
            self.pad_id = self._token("pad_token", self.options.pad_token, "tokenizer.pad_to=0")
        if self.options.marker is not None:
            self.marker_id = self._token("marker", self.options.marker, "tokenizer.marker=null")

    def _token(self, option: str, name: str, without: str) -> int:
        """Return the id of the token that an option names."""
        token = self.vocabulary.token_to_id(name)
        if token is None:
            raise UserError(
                f"tokenizer.{option}: must be a token of the vocabulary, got {shortened(name)}: "
                f"choose another token, or set {without}"
            )
        return token

    def __call__(self, raw: RawText, rand: random.Random | None = None) -> Sample:
        """Tokenize a text or a list of words, with augmentation if rand is not None.

        Returns:
            ids (n,): Token ids.
            mask (n,): True.
            coords (n, 2): Start and stop of each token in characters. Those of a list of words
            count in the words joined by spaces.
            words (n,): Index of the word of each token. -1 if raw is not a list of words.
            text: The text, up to MAX_KEPT characters. Only without augmentation.
            answers (n,): Number of characters that each token of an answer adds to it, and -1 at
            other tokens. Only of a conversation.
            files (): Number of files in the messages. Only of a conversation.
        """
        text, _ = self.reader.first(raw)
        lead, tokens, tail = self._encode(text)
        if isinstance(raw, Conversation) and (len(tokens) > self.max_len or len(text) < len(raw)):
            assert self.reader.template is not None
            num_files = raw.num_files
            raw = replace(self.reader.template.shorter(raw, self._fits), num_files=num_files)
            text, _ = self.reader.first(raw)
            lead, tokens, tail = self._encode(text)
        if rand is not None:
            tokens = self._augmented(tokens, rand)
        # Truncation keeps the special tokens at the end, as transformers does.
        if self.is_cut:
            tokens = tokens[: max(self.max_len - len(lead) - len(tail), 0)]
        tokens = [*lead, *tokens, *tail]
        num_pads = max(self.pad_to - len(tokens), 0)
        answers = self._answers(raw, tokens) if isinstance(raw, Conversation) else []
        tokens += [(self.pad_id, NO_COORDS, -1)] * num_pads
        coords = torch.tensor([offsets for _, offsets, _ in tokens], dtype=torch.float32)
        sample: Sample = {
            "ids": torch.tensor([token for token, _, _ in tokens], dtype=torch.long),
            "mask": torch.ones(len(tokens), dtype=torch.bool),
            "coords": coords.reshape(-1, 2),
            "words": torch.tensor([word for _, _, word in tokens], dtype=torch.long),
        }
        if isinstance(raw, Conversation):
            sample["answers"] = torch.tensor([*answers, *[-1] * num_pads], dtype=torch.long)
            sample["files"] = torch.tensor(raw.num_files)
        if rand is None:
            # An answer can be anywhere in a text that is read in windows.
            sample["text"] = plain_text(raw)[: MAX_KEPT if self.is_cut else None]
        return sample

    def batch(
        self, raws: Sequence[RawText], rands: Sequence[random.Random | None] | None = None
    ) -> Batch:
        """Convert texts to a batch, in less time than `collate` of the samples.

        The coordinates can be NaN: computing them takes a third of the time, and they explain a
        model, but do not affect its output.
        """
        rands = [None] * len(raws) if rands is None else rands
        texts = [self._prompted(self.reader.first(raw)[0]) for raw in raws]
        # Lists of words are encoded one by one. So are texts of which one cannot be encoded,
        # because its error has to name it. A task that reads long texts in windows needs the
        # coordinates.
        is_plain = self.is_cut and all(isinstance(raw, str) for raw in raws)
        encodings: list[Encoding] | None = None
        try:
            if is_plain and len(texts) == 1:
                # The threads of `encode_batch_fast` take longer than a single text.
                special = self.adds_special
                encodings = [self.vocabulary.encode(texts[0], add_special_tokens=special)]
            elif is_plain:
                plain: list[Any] = texts
                encodings = self.vocabulary.encode_batch_fast(
                    plain, add_special_tokens=self.adds_special
                )
        except BaseException as error:
            if not is_library_error(error):
                raise
        if encodings is None:
            return super().batch(raws, rands)
        rows: list[list[int]] = []
        for encoding, rand in zip(encodings, rands, strict=True):
            ids_of_text = encoding.ids  # each access makes a new list
            is_plain = rand is None or not self.is_random
            fits = is_plain and len(ids_of_text) <= self.max_len
            rows.append(ids_of_text if fits else self._row(encoding, rand))
        if self.pad_to:
            rows = [row + [self.pad_id] * (self.pad_to - len(row)) for row in rows]
        lengths = [len(row) for row in rows]
        longest, total = max(lengths), sum(lengths)
        # One assignment for all texts takes less time than padding each of them.
        mask = np.arange(longest) < np.array(lengths)[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.fromiter(chain.from_iterable(rows), np.int64, total)
        batch: Batch = {
            "ids": torch.from_numpy(ids),
            "mask": torch.from_numpy(mask),
            "coords": UNKNOWN_COORDS.expand(*mask.shape, 2),
            "words": UNKNOWN_WORD.expand(mask.shape),
            FULL: total == longest * len(rows),
            NUM_REAL: total,
        }
        if all(rand is None for rand in rands):
            batch["text"] = [plain_text(raw)[:MAX_KEPT] for raw in raws]
        return batch

    def ids(self, text: str, rand: random.Random | None = None) -> list[int]:
        """Return the ids of a whole text without special tokens, augmented if rand is not None."""
        ids = encode(self.vocabulary, text, add_special_tokens=False).ids
        return self._augmented_ids(ids, rand)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.vocabulary.decode(list(ids), skip_special_tokens=True).strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token separately, for display."""
        # A token that is only a space or part of a character has no text of its own.
        texts = (self.vocabulary.decode([i], skip_special_tokens=False) for i in ids)
        return [text.strip() or "·" for text in texts]

    def normalize(self, text: str) -> str:
        """Apply the normalizer of the vocabulary, for example lower-casing, to a text."""
        normalizer = self.vocabulary.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    @property
    def size(self) -> int:
        """Number of rows that an embedding of the tokens needs."""
        return num_embeddings(self.vocabulary)

    @property
    def adds_special(self) -> bool:
        """Whether special tokens are added. A chat template writes its own."""
        return self.options.special_tokens and self.reader.template is None

    def widen(self, batch: Batch) -> Batch:
        """Round the number of columns up, see `dxn.tokenize.base.rounded`, but not above max_len.

        A batch without padding is unchanged, because its attention needs no mask.
        """
        mask = batch["mask"]
        width = int(rounded(mask.shape[1]))
        if self.is_cut:
            width = min(width, max(self.max_len, mask.shape[1]))
        if batch[NUM_REAL] == mask.numel() or width == mask.shape[1]:
            return batch
        wider = {**batch, FULL: False}
        for key, value in batch.items():
            if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
                sizes = (0, 0) * (value.ndim - 2) + (0, width - mask.shape[1])
                wider[key] = F.pad(value, sizes, value=self.fill.get(key, 0))
        return wider

    def length(self, raw: RawText) -> float:
        """Return the number of tokens of a text without augmentation."""
        return self._lengths(raw)[0]

    def lengths(self, raws: Sequence[RawText]) -> np.ndarray:
        """Return the number of tokens of each text, estimated from the characters of many texts."""
        if len(raws) <= MAX_ENCODED:
            return super().lengths(raws)
        chars = (sum(map(len, raw)) if isinstance(raw, list) else len(raw) for raw in raws)
        sizes = np.fromiter(chars, np.float64, len(raws))
        rows = spaced_rows(len(raws), NUM_ENCODED)
        counts = [self._lengths(raws[row])[1] for row in rows]
        factor = sum(counts) / sizes[rows].sum()
        return np.minimum(np.ceil(sizes * factor), self.max_len)

    def cut(self, raw: RawText) -> tuple[int, int] | None:
        """Return the numbers of tokens that are read and of all. None: all are read."""
        num_read, total = self._lengths(raw)
        return (num_read, total) if total > num_read else None

    def _lengths(self, raw: RawText) -> tuple[int, int]:
        """Return the numbers of tokens with and without truncation.

        The number of those behind max_chars is estimated.
        """
        text, factor = self.reader.first(raw)
        text = self._prompted(text)
        is_words = isinstance(text, list)
        special = self.adds_special
        encoding = encode(
            self.vocabulary, text, is_pretokenized=is_words, add_special_tokens=special
        )
        count = max(len(encoding.ids), self.pad_to)
        return min(count, self.max_len) if self.is_cut else count, math.ceil(count * factor)

    def _fits(self, text: str) -> bool:
        """Whether the text of a conversation need not be truncated."""
        if len(text) > self.reader.max_chars:
            return False
        return len(encode(self.vocabulary, text, add_special_tokens=False).ids) <= self.max_len

    def _answers(self, raw: Conversation, tokens: Sequence[Token]) -> list[int]:
        """Return the number of characters that each token of an answer adds, and -1 at others."""
        # A token belongs to an answer if they have a character in common, as in transformers.
        starts = [offsets[0] for _, offsets, _ in tokens]
        stops = [offsets[1] for _, offsets, _ in tokens]
        added = [-1] * len(tokens)
        for start, stop in raw.answers:
            first, last = bisect.bisect_right(stops, start), bisect.bisect_left(starts, stop)
            for i in range(first, last):
                # From the end of the token before it: the offsets of some tokenizers lack spaces.
                before = max(stops[i - 1], start) if i else start
                is_text = tokens[i][0] not in self.special_ids
                added[i] = max(int(stops[i] - before), 0) if is_text else 0
        return added

    def _prompted(self, raw: PlainText) -> PlainText:
        """Return a text after the prompt, if there is one. A chat template has no prompt."""
        prompt = self.options.prompt
        if not prompt or self.reader.template is not None:
            return raw
        return prompt + raw if isinstance(raw, str) else [prompt, *raw]

    def _encode(self, raw: PlainText) -> tuple[list[Token], list[Token], list[Token]]:
        """Return the special tokens before the text, its own tokens, and those after it.

        Tokens of the prompt have no position in the text.
        """
        length = len(plain_text(raw))
        raw = self._prompted(raw)
        words = raw if isinstance(raw, list) else None
        encoding = encode(
            self.vocabulary,
            raw,
            is_pretokenized=words is not None,
            add_special_tokens=self.adds_special,
        )
        # For a str, word_ids are the indices of pre-tokens, which have no meaning for the caller.
        owners = [-1 if w is None or words is None else w for w in encoding.word_ids]
        offsets = encoding.offsets
        if words is not None:
            # The offsets of the library are relative to the start of each word.
            starts = word_starts(words)
            offsets = [
                (a + starts[w], b + starts[w]) for (a, b), w in zip(offsets, owners, strict=True)
            ]
        offsets = _with_marks(offsets, plain_text(raw))
        tokens: list[Token] = list(zip(encoding.ids, offsets, owners, strict=True))
        if added := len(plain_text(raw)) - length:
            tokens = [_after(added, token, has_words=words is not None) for token in tokens]
        if not self.adds_special:
            return [], tokens, []
        lead, tail = special_ends(encoding.special_tokens_mask)
        end = len(tokens) - tail
        return _without_coords(tokens[:lead]), tokens[lead:end], _without_coords(tokens[end:])

    def _row(self, encoding: Encoding, rand: random.Random | None) -> list[int]:
        """Return the ids of a text, augmented and truncated."""
        ids = encoding.ids
        lead, tail = (0, 0)
        if self.adds_special:
            lead, tail = special_ends(encoding.special_tokens_mask)
        end = len(ids) - tail
        text = self._augmented_ids(ids[lead:end], rand)
        return [*ids[:lead], *text[: max(self.max_len - lead - tail, 0)], *ids[end:]]

    def _augmented_ids(self, ids: list[int], rand: random.Random | None) -> list[int]:
        """Return the ids of a text without special tokens, augmented if rand is not None."""
        if rand is None:
            return ids
        return [i for i, _, _ in self._augmented([(i, NO_COORDS, -1) for i in ids], rand)]

    def _augmented(self, tokens: list[Token], rand: random.Random) -> list[Token]:
        """Apply subword_dropout, token_dropout and token_mask."""
        augment = self.augment
        if augment.subword_dropout:
            tokens = [part for token in tokens for part in self._split(token, rand)]
        if augment.token_dropout:
            remaining = [token for token in tokens if rand.random() >= augment.token_dropout]
            tokens = remaining or tokens[:1]  # a sample needs at least one token
        if augment.token_mask:
            assert self.mask_id is not None
            mask_id = self.mask_id
            tokens = [
                (mask_id, *token[1:]) if rand.random() < augment.token_mask else token
                for token in tokens
            ]
        return tokens

    def _split(self, token: Token, rand: random.Random) -> list[Token]:
        """Return the token, or with probability subword_dropout two shorter ones."""
        split = None if self.splitter is None else self.splitter.draw(token[0], rand)
        if split is None:
            return [token]
        left, right, right_letters, letters = split
        _, (start, stop), word = token
        # The number of letters can differ from the number of characters: a character can consist of
        # several bytes, and normalization can compose characters. Then the position of the split in
        # the text is unknown, so both parts get the span of the whole token.
        if stop - start not in letters:
            return [(left, (start, stop), word), (right, (start, stop), word)]
        middle = max(stop - right_letters, start)
        return [(left, (start, middle), word), (right, (middle, stop), word)]


def plain_text(raw: RawText) -> str:
    """Return a raw value as one text, whose characters the coordinates count."""
    if isinstance(raw, Conversation):
        return raw.text
    return raw if isinstance(raw, str) else " ".join(raw)


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word in " ".join(words)."""
    starts = []
    position = 0
    for word in words:
        starts.append(position)
        position += len(word) + 1  # 1 for the space
    return starts


def _without_coords(tokens: Iterable[Token]) -> list[Token]:
    """Return special tokens with NaN as coordinates, because they have no position in the text."""
    return [(token, NO_COORDS, -1) for token, _, _ in tokens]


def _after(added: int, token: Token, *, has_words: bool) -> Token:
    """Return a token of a text with a prompt, given the number of characters of the prompt."""
    index, (start, stop), word = token
    offsets = NO_COORDS if stop <= added else (max(start - added, 0), stop - added)
    return index, offsets, max(word - has_words, -1)


def special_ends(special: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of special tokens before and after the text."""
    text = [i for i, is_special in enumerate(special) if not is_special]
    return (text[0], len(special) - 1 - text[-1]) if text else (len(special), 0)


def _with_marks(offsets: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Extend the offsets of each token over the combining marks that follow it.

    The normalizer composes a letter with its marks, but the offsets of the library exclude them.
    """
    if text.isascii():  # the usual case: there are no combining marks
        return offsets
    starts = {start for start, _ in offsets}
    extended = []
    for start, stop in offsets:
        while start < stop < len(text) and stop not in starts and not text[stop].isspace():
            stop += 1
        extended.append((start, stop))
    return extended
