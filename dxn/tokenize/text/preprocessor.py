"""The preprocessor of the text adapter, which runs in data workers."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dxn.presets.advice import Advice, Facts
from dxn.presets.text import advise_text
from dxn.tokenize.cells.cell import shortened
from dxn.tokenize.examples import random_texts
from dxn.tokenize.grid import collate_grids
from dxn.tokenize.media import BadMedia
from dxn.tokenize.text.batch import PAD, encode_texts, special_ends
from dxn.tokenize.text.chars import CharNgrams, code_points, collate_chars
from dxn.tokenize.text.columns import text_score
from dxn.tokenize.text.offsets import with_marks, word_starts
from dxn.tokenize.text.options import TextAugment
from dxn.tokenize.text.split import SubwordSplitter
from dxn.tokenize.text.tokenizer import encode, special_ids, token_of

MASK_TOKENS = ("[MASK]", "<mask>")
NO_COORDS = (math.nan, math.nan)  # of a token that has no position in the text

RawText = str | list[str]

# One token of a text: its id, its start and stop in characters, and the index of its word or -1.
# Not a NamedTuple, whose construction would take a third of the time of TextPreprocessor.__call__.
Token = tuple[int, tuple[float, float], int]


class TextPreprocessor:
    """Convert a text, or a list of words, to token ids.

    Args:
        tokenizer: Tokenizer of the texts.
        max_len: Maximum number of tokens. Longer texts are truncated.
        max_chars: Maximum number of characters that are tokenized. The rest of a longer text is
            not read, so that a huge text costs little time, and it counts as truncated.
        special_tokens: Add the special tokens of the tokenizer, such as [CLS] and [SEP].
        augment: Augmentation of training texts. Default: no augmentation.
        chars: Character n-grams of the words. Default: no n-grams.
    """

    modality = "text"
    reads_files = False
    has_words = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_len: int,
        max_chars: int = 100_000,
        special_tokens: bool = False,
        augment: TextAugment | None = None,
        chars: CharNgrams | None = None,
    ):
        if max_len < 1 or max_chars < 1:
            raise ValueError(
                f"max_len and max_chars must be at least 1, got {max_len} and {max_chars}"
            )
        self.max_len = max_len
        self.max_chars = max_chars
        self.special_tokens = special_tokens
        self.augment = augment or TextAugment()
        self.chars = chars
        self.use_tokenizer(tokenizer)

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Use this tokenizer."""
        # A tokenizer.json can enable both, but `__call__` and `collate` already do this.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.special_ids = special_ids(tokenizer)
        self.splitter = SubwordSplitter(
            tokenizer, self.augment.subword_dropout, special=self.special_ids
        )
        self.mask_id = token_of(tokenizer, MASK_TOKENS)
        # The vocabulary is empty while the adapter is not fitted, so nothing can be checked.
        if self.augment.token_mask and tokenizer.get_vocab_size() and self.mask_id is None:
            raise ValueError(
                f"augment.token_mask={self.augment.token_mask} needs a tokenizer with a "
                f"{' or '.join(MASK_TOKENS)} token: choose another tokenizer, or leave it out"
            )

    def read(self, source: Any) -> RawText:
        """Check a text or a list of words, and return it.

        Raises:
            BadMedia: If the source is not a text, or its first max_chars characters are blank.
        """
        words = [source] if isinstance(source, str) else source
        is_text = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not is_text or isinstance(words, bytes):
            raise BadMedia(f"must be a str or a list of str, got {shortened(source)}")
        try:
            for word in words:
                word.encode()
        except UnicodeEncodeError:
            raise BadMedia(
                f"has characters that are not Unicode, such as half of a surrogate pair, got "
                f"{shortened(source)}"
            ) from None
        # A blank text has no tokens, but a sample needs at least one.
        if not any(map(str.strip, _first_words(words, self.max_chars))):
            raise BadMedia("blank text")
        return source if isinstance(source, str) else list(words)

    def advise(self, cells: Sequence[Any], facts: Facts) -> list[Advice]:
        """Return the options that preset=auto sets."""
        return advise_text(cells, facts)

    def __call__(self, raw: RawText, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Tokenize a text or a list of words, with augmentation if rand is not None.

        Returns:
            ids (n,): Token ids.
            coords (n, 2): Start and stop of each token in characters. For a list of words, the
                characters of " ".join(words).
            words (n,): Index of the word of each token. -1 if raw is not a list of words.
            num_cut (): Number of tokens that were truncated. Those behind max_chars are estimated.
            chars (n, G): Hashed n-grams of the word of each token, 0 for none. Only with `chars`.
            points (m,): The characters of the text, see `code_points`. Only without augmentation.
        """
        text = self._first(raw)
        lead, tokens, tail = self._encode(text)
        num_unread = math.ceil((_length(raw) / max(_length(text), 1) - 1) * len(tokens))
        if rand is not None:
            tokens = self._augmented(tokens, rand)
        # Truncation keeps the special tokens at the end, as transformers does.
        room = max(self.max_len - len(lead) - len(tail), 0)
        num_cut = max(len(tokens) - room, 0) + num_unread
        tokens = [*lead, *tokens[:room], *tail]
        coords = torch.tensor([offsets for _, offsets, _ in tokens], dtype=torch.float32)
        sample = {
            "ids": torch.tensor([token for token, _, _ in tokens], dtype=torch.long),
            "coords": coords.reshape(-1, 2),
            "words": torch.tensor([word for _, _, word in tokens], dtype=torch.long),
            "num_cut": torch.tensor(num_cut),
        }
        if rand is None:
            sample["points"] = code_points(_joined(raw))
        if self.chars is not None:
            # Masked tokens have no n-grams, which would tell what they were.
            offsets = [NO_COORDS if token == self.mask_id else at for token, at, _ in tokens]
            sample["chars"] = self.chars(text, offsets)
        return sample

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate ids (B, N), mask (B, N), coords (B, N, 2) and words (B, N), padded at the end.

        With `chars`, also chars (B, N, G). Without augmentation, also points (B, M).
        """
        lengths = torch.tensor([len(sample["ids"]) for sample in samples])
        grams = {} if self.chars is None else {"chars": collate_chars(samples)}
        return {
            "ids": _padded(samples, "ids", PAD),
            "mask": torch.arange(int(lengths.max())) < lengths[:, None],
            "coords": _padded(samples, "coords", torch.nan),
            "words": _padded(samples, "words", -1),
            **grams,
            **collate_grids(samples),
            **self._collated_points([sample.get("points") for sample in samples]),
        }

    @property
    def augments(self) -> bool:
        """Whether training samples are augmented."""
        augment = self.augment
        return bool(augment.subword_dropout or augment.token_dropout or augment.token_mask)

    def encode_batch(
        self, raws: Sequence[RawText], rands: Sequence[random.Random | None] | None = None
    ) -> dict[str, Tensor]:
        """Return the same as `collate` of the samples, in less time. The coordinates can be NaN.

        Args:
            raws: Texts or lists of words.
            rands: Random generator of each text. None: no augmentation.
        """
        rands = [None] * len(raws) if rands is None else rands
        texts = [self._first(raw) for raw in raws]
        batch = None
        # The n-grams of a token depend on its coordinates.
        if self.chars is None and all(isinstance(text, str) for text in texts):
            batch = encode_texts(
                self.tokenizer,
                cast("list[str]", texts),
                max_len=self.max_len,
                special_tokens=self.special_tokens,
                change=self._changes(rands),
            )
        if batch is not None:
            is_plain = all(rand is None for rand in rands)
            points = [code_points(_joined(raw)) for raw in raws] if is_plain else []
            return {**batch, **self._collated_points(points)}
        # Lists of words are encoded one by one too, and the error of a text has to name it.
        return self.collate([self(raw, rand) for raw, rand in zip(raws, rands, strict=True)])

    def _collated_points(self, points: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Return the padded characters of texts. Empty if a text is augmented."""
        present = [each for each in points if each is not None]
        if not present or len(present) < len(points):
            return {}
        return {"points": pad_sequence(present, batch_first=True)}

    def num_tokens(self, raw: RawText) -> float:
        """Return the number of tokens of a text without augmentation."""
        ids = encode(
            self.tokenizer,
            self._first(raw),
            is_pretokenized=isinstance(raw, list),
            add_special_tokens=self.special_tokens,
        ).ids
        return min(len(ids), self.max_len)

    def truncated(self, sample: Mapping[str, Tensor]) -> tuple[int, int] | None:
        """Return (kept, total) numbers of tokens of a truncated sample, otherwise None."""
        num_cut = int(sample["num_cut"])
        kept = len(sample["ids"])
        return (kept, kept + num_cut) if num_cut else None

    def examples(self, count: int, rand: random.Random) -> list[str]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        return random_texts(self.tokenizer, count, rand)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        chars: dict[str, Any] = {}
        if self.chars is not None:
            counts = {"lengths": list(self.chars.lengths), "buckets": self.chars.buckets}
            chars = {"chars": counts}
        limits = {"max_len": self.max_len, "max_chars": self.max_chars}
        steps = {"prepare": "text", "special_tokens": self.special_tokens}
        return {**steps, **limits, **chars, "tokenizer": json.loads(self.tokenizer.to_str())}

    def accepts(self, values: Sequence[Any]) -> float:
        """Return how likely a column contains texts, see `text_score`."""
        return text_score(values)

    def summarize(self, raws: Sequence[RawText], sources: Sequence[Any]) -> str:
        """Summarize the lengths in words or characters."""
        if not raws:
            return ""
        unit = "words" if isinstance(raws[0], list) else "characters"
        lengths = [len(raw) for raw in raws]
        median = statistics.median(lengths)
        return f"{min(lengths):,} to {max(lengths):,}, median {median:,.0f} {unit}"

    def _first(self, raw: RawText) -> RawText:
        """Return the part of a text that is tokenized: its first max_chars characters."""
        if _length(raw) <= self.max_chars:
            return raw
        return raw[: self.max_chars] if isinstance(raw, str) else _first_words(raw, self.max_chars)

    def _encode(self, raw: RawText) -> tuple[list[Token], list[Token], list[Token]]:
        """Return the special tokens before the text, its own tokens, and those after it."""
        words = raw if isinstance(raw, list) else None
        encoding = encode(
            self.tokenizer,
            raw,
            is_pretokenized=words is not None,
            add_special_tokens=self.special_tokens,
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
        offsets = with_marks(offsets, raw if isinstance(raw, str) else " ".join(raw))
        tokens: list[Token] = list(zip(encoding.ids, offsets, owners, strict=True))
        if not self.special_tokens:
            return [], tokens, []
        lead, tail = special_ends(encoding.special_tokens_mask)
        end = len(tokens) - tail
        return _without_coords(tokens[:lead]), tokens[lead:end], _without_coords(tokens[end:])

    def _augmented(self, tokens: list[Token], rand: random.Random) -> list[Token]:
        """Apply subword_dropout, token_dropout and token_mask."""
        augment = self.augment
        if augment.subword_dropout:
            parts = [self._split(token, rand) for token in tokens]
            tokens = list(chain.from_iterable(parts))
        if augment.token_dropout:
            kept = [token for token in tokens if rand.random() >= augment.token_dropout]
            tokens = kept or tokens[:1]  # a sample needs at least one token
        if augment.token_mask:
            assert self.mask_id is not None
            mask_id = self.mask_id
            tokens = [
                (mask_id, *token[1:]) if rand.random() < augment.token_mask else token
                for token in tokens
            ]
        return tokens

    def _changes(
        self, rands: Sequence[random.Random | None]
    ) -> Callable[[int, list[int]], list[int]] | None:
        """Return a function that augments the ids of text i, if texts are augmented."""
        if not self.augments or all(rand is None for rand in rands):
            return None

        def change(i: int, ids: list[int]) -> list[int]:
            rand = rands[i]
            if rand is None:
                return ids
            tokens = self._augmented([(token, NO_COORDS, -1) for token in ids], rand)
            return [token for token, _, _ in tokens]

        return change

    def _split(self, token: Token, rand: random.Random) -> list[Token]:
        """Return the token, or with probability subword_dropout two shorter ones."""
        split = self.splitter.draw(token[0], rand)
        if split is None:
            return [token]
        _, (start, stop), word = token
        # The number of letters can differ from the number of characters: a character can consist of
        # several bytes, and normalization can compose characters. Then the position of the split in
        # the text is unknown, so both parts get the span of the whole token.
        if stop - start not in split.letters:
            return [(split.left, (start, stop), word), (split.right, (start, stop), word)]
        middle = max(stop - split.right_letters, start)
        return [(split.left, (start, middle), word), (split.right, (middle, stop), word)]


def _joined(raw: RawText) -> str:
    """Return a text, or the words of a list as one text."""
    return raw if isinstance(raw, str) else " ".join(raw)


def _length(raw: RawText) -> int:
    """Return the number of characters of a text or of all words."""
    return len(raw) if isinstance(raw, str) else sum(map(len, raw))


def _first_words(words: Sequence[str], count: int) -> list[str]:
    """Return the first words with `count` characters in all; the last word may be cut."""
    first: list[str] = []
    for word in words:
        if count <= 0:
            break
        first.append(word[:count])
        count -= len(word)
    return first


def _padded(samples: Sequence[Mapping[str, Tensor]], key: str, value: float) -> Tensor:
    """Stack a key of all samples, padded with value at the end."""
    rows = [sample[key] for sample in samples]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def _without_coords(tokens: Iterable[Token]) -> list[Token]:
    """Return special tokens with NaN as coordinates, because they have no position in the text."""
    return [(token, NO_COORDS, -1) for token, _, _ in tokens]
