"""Text to Tokens: subwords, words or characters."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from dxn.errors import UserError
from dxn.tokenize.halves import Halves, special_ids
from dxn.tokenize.media import BadMedia
from dxn.tokenize.positions import PositionKind, Positions1d
from dxn.tokens import Span, Tokens

Subwords = Literal["bpe", "wordpiece", "unigram", "word", "character"]
SPECIALS = ("[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]")  # of a tokenizer trained here
MASKS = ("[MASK]", "<mask>")
PAD = 0  # stands in masked columns only


def train_tokenizer(
    texts: Iterable[str], *, subwords: Subwords = "bpe", vocab_size: int = 8000, lowercase: bool = False
) -> Tokenizer:
    """A `tokenizers.Tokenizer` learned from texts, of at most vocab_size pieces.

    bpe: merges over bytes, so nothing is ever unknown; wordpiece: as in BERT; unigram: as in SentencePiece
    (arXiv:1804.10959); word: words and punctuation; character: one Unicode character a token.
    """
    tokenizer, trainer = _untrained(subwords, vocab_size)
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    if subwords == "wordpiece":
        texts = list(texts)
        trainer.special_tokens = [*SPECIALS, *_inner_letters(texts, tokenizer)]
    tokenizer.train_from_iterator(texts, trainer)
    # Written and read once: the library reads a score with another last digit than it wrote, but no second time.
    return _with_specials_only(tokenizer) if subwords == "wordpiece" else Tokenizer.from_str(tokenizer.to_str())


def _inner_letters(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Letters inside words, in order. Left to itself the trainer numbers them in the order of a hash table, and
    breaks ties by their numbers: every run would learn other pieces."""
    split, normal = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    return sorted({f"##{letter}" for text in texts for word, _ in split(normal(text)) for letter in word[1:]})


def _with_specials_only(tokenizer: Tokenizer) -> Tokenizer:
    """The same without special tokens other than SPECIALS, which would be found in raw text."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][: len(SPECIALS)]
    return Tokenizer.from_str(json.dumps(state))


def _untrained(subwords: Subwords, vocab_size: int):
    common = {"vocab_size": vocab_size, "special_tokens": list(SPECIALS), "show_progress": False}
    if subwords == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return tokenizer, trainers.BpeTrainer(initial_alphabet=alphabet, **common)
    if subwords == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer, trainers.WordPieceTrainer(**common)
    if subwords == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer, trainers.UnigramTrainer(unk_token="[UNK]", **common)
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    if subwords == "word":
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    elif subwords == "character":
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        raise ValueError(f"subwords must be bpe, wordpiece, unigram, word or character, got {subwords!r}")
    return tokenizer, trainers.WordLevelTrainer(**common)


class TextPrepare:
    """A text, or a list of words, to the indices of its subwords. No learned weights; picklable."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_len: int,
        max_chars: int = 100_000,
        special_tokens: bool = False,
        subword_dropout: float = 0.0,
        token_dropout: float = 0.0,
        token_mask: float = 0.0,
    ):
        self.max_len, self.max_chars, self.special_tokens = max_len, max_chars, special_tokens
        self.subword_dropout, self.token_dropout, self.token_mask = subword_dropout, token_dropout, token_mask
        self.use(tokenizer)

    def use(self, tokenizer: Tokenizer) -> None:
        """Cut texts with this tokenizer, whatever length it would itself cut or pad them to."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.special_ids = special_ids(tokenizer)
        self.halves = Halves(tokenizer, self.subword_dropout, special=self.special_ids)
        found = (tokenizer.token_to_id(name) for name in MASKS)
        self.mask_id = next((i for i in found if i is not None), None)
        if self.token_mask and self.tokenizer.get_vocab_size() and self.mask_id is None:
            raise ValueError(f"token_mask needs a tokenizer that knows {' or '.join(MASKS)}")

    def read(self, source: str | Sequence[str]) -> str | list[str]:
        """The raw text, or words already split; BadMedia for one over max_chars or without a character."""
        if not isinstance(source, str) and not all(isinstance(word, str) for word in source):
            raise TypeError(f"text must be a str or a list of str, got {source!r}")
        length = len(source) if isinstance(source, str) else sum(map(len, source))
        if length > self.max_chars:
            raise BadMedia(f"{length:,} characters, more than max_chars={self.max_chars:,}")
        if not any(map(str.strip, source)):
            raise BadMedia("blank text")
        return source if isinstance(source, str) else list(source)

    def size(self, raw: str | list[str]) -> float:
        """How many tokens it has, to put like with like."""
        split, special = isinstance(raw, list), self.special_tokens
        found = self.tokenizer.encode(raw, is_pretokenized=split, add_special_tokens=special)
        return min(len(found.ids), self.max_len)

    def __call__(self, raw: str | list[str], rng: random.Random | None = None) -> dict[str, Tensor]:
        """ids (n,), places (n, 2) in characters, words (n,), `cut` () subwords beyond max_len.

        For a list of words, places count in " ".join(words) and words says whose subword each is; for a str
        words is -1. With rng, the dropouts that the adapter was given are drawn from it.
        """
        words = raw if isinstance(raw, list) else None
        encoding = self.tokenizer.encode(raw, is_pretokenized=words is not None, add_special_tokens=self.special_tokens)
        owners = [-1 if w is None or words is None else w for w in encoding.word_ids]
        starts = _word_starts(words) if words is not None else None
        offsets = [
            (a + starts[w], b + starts[w]) if starts is not None else (a, b)
            for (a, b), w in zip(encoding.offsets, owners, strict=True)
        ]
        offsets = _with_marks(offsets, raw if isinstance(raw, str) else " ".join(raw))
        columns = list(zip(encoding.ids, offsets, owners, strict=True))
        lead, tail = _ends(encoding.special_tokens_mask) if self.special_tokens else (0, 0)
        before, columns, after = columns[:lead], columns[lead : len(columns) - tail], columns[len(columns) - tail :]
        if rng is not None:
            columns = self._spoil(columns, rng)
        room = max(self.max_len - lead - tail, 0)
        cut = max(len(columns) - room, 0)
        columns = [*_nowhere(before), *columns[:room], *_nowhere(after)]
        return {
            "ids": torch.tensor([c[0] for c in columns], dtype=torch.long),
            "places": torch.tensor([c[1] for c in columns], dtype=torch.float32).reshape(-1, 2),
            "words": torch.tensor([c[2] for c in columns], dtype=torch.long),
            "cut": torch.tensor(cut),
        }

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Samples padded on the right: ids (B, N), mask (B, N), places (B, N, 2), words (B, N)."""
        lengths = torch.tensor([len(s["ids"]) for s in samples])
        pad = nn.utils.rnn.pad_sequence
        return {
            "ids": pad([s["ids"] for s in samples], batch_first=True, padding_value=PAD),
            "mask": torch.arange(int(lengths.max())) < lengths[:, None],
            "places": pad([s["places"] for s in samples], batch_first=True, padding_value=torch.nan),
            "words": pad([s["words"] for s in samples], batch_first=True, padding_value=-1),
        }

    def _spoil(self, columns: list, rng: random.Random) -> list:
        if self.subword_dropout:
            columns = [half for c in columns for half in self._halve(c, rng)]
        if self.token_dropout:
            kept = [c for c in columns if rng.random() >= self.token_dropout]
            columns = kept or columns[:1]
        if self.token_mask:
            columns = [(self.mask_id, *c[1:]) if rng.random() < self.token_mask else c for c in columns]
        return columns

    def _halve(self, column: tuple, rng: random.Random) -> list[tuple]:
        """A subword as two shorter ones, with probability subword_dropout."""
        half = self.halves.draw(column[0], rng)
        if half is None:
            return [column]
        _, (start, stop), word = column
        if stop - start not in half.letters:  # bytes of a character, or letters that were composed: both stand there
            return [(half.left, (start, stop), word), (half.right, (start, stop), word)]
        middle = max(stop - half.behind, start)
        return [(half.left, (start, middle), word), (half.right, (middle, stop), word)]


def _with_marks(offsets: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """A letter composed with the marks behind it is given without them; its place holds them too."""
    if text.isascii():
        return offsets
    starts = {start for start, _ in offsets}
    grown = []
    for start, stop in offsets:
        while start < stop < len(text) and stop not in starts and not text[stop].isspace():
            stop += 1
        grown.append((start, stop))
    return grown


def _ends(special: Sequence[int]) -> tuple[int, int]:
    """How many special tokens a template has put before and after the text's own."""
    own = [i for i, s in enumerate(special) if not s]
    return (own[0], len(special) - 1 - own[-1]) if own else (len(special), 0)


def _nowhere(columns: Iterable[tuple]) -> list[tuple]:
    """The same tokens, standing for nothing in the text."""
    return [(token, (math.nan, math.nan), -1) for token, _, _ in columns]


def _word_starts(words: Sequence[str]) -> list[int]:
    starts, at = [], 0
    for word in words:
        starts.append(at)
        at += len(word) + 1
    return starts


class TextAdapter(nn.Module):
    """Text to Tokens: subwords, each with a vector of size D.

    Args:
        dim: width D of a token.
        subwords: what a token is: bpe (over bytes), wordpiece, unigram, word or character.
        vocab_size: pieces at most, or as many as the alphabet has, when the tokenizer is trained.
        lowercase: put all text in lower case first.
        tokenizer: path of a tokenizer.json to use instead of training one.
        special_tokens: add those that a given tokenizer puts around a text, like [CLS] and [SEP].
        max_len: tokens at most; what is beyond is cut off, and counted.
        max_chars: a longer text is bad.
        position: learned, sinusoidal or none, added to each column.
        embedding: path of a .safetensors file with one tensor (V, D): given vectors instead of random ones.
        frozen: keep the subwords' vectors as they are, do not train them.
        scale: multiply the subwords' vectors by the root of dim (arXiv:1706.03762, 3.4); they start that much smaller.
        ngrams: lengths of runs of subwords that get a hashed vector of their own (arXiv:1607.01759, 2).
        ngram_buckets: rows of the table the runs are hashed into.
        ngram_columns: give the runs columns of their own instead of adding them to their last subword's.
        conv_kernel: width of a convolution over neighbouring tokens, added to them; 0 for none.
        norm: a layer norm of the embedded columns.
        norm_eps: added to the variance in that norm.
        norm_bias: give that norm a bias.
        dropout: of the embedded columns, in training.
        subword_dropout: probability that a subword is split in two shorter ones, in training.
        token_dropout: probability that a token is left out, in training.
        token_mask: probability that a token is replaced by [MASK], in training.
    """

    modality = "text"

    def __init__(
        self,
        dim: int = 128,
        *,
        subwords: Subwords = "bpe",
        vocab_size: int = 8000,
        lowercase: bool = False,
        tokenizer: str | None = None,
        special_tokens: bool = False,
        max_len: int = 256,
        max_chars: int = 100_000,
        position: PositionKind = "learned",
        embedding: str | None = None,
        frozen: bool = False,
        scale: bool = False,
        ngrams: Sequence[int] = (),
        ngram_buckets: int = 20000,
        ngram_columns: bool = False,
        conv_kernel: int = 0,
        norm: bool = False,
        norm_eps: float = 1e-5,
        norm_bias: bool = True,
        dropout: float = 0.0,
        subword_dropout: float = 0.0,
        token_dropout: float = 0.0,
        token_mask: float = 0.0,
    ):
        super().__init__()
        self.dim, self.vocab_size, self.lowercase = dim, vocab_size, lowercase
        self.subwords: Subwords = subwords
        self.embedding, self.frozen = embedding, frozen
        self.scale = dim**0.5 if scale else 1.0
        if conv_kernel and conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel must be odd, or 0 for none, got {conv_kernel}")
        if any(n < 2 for n in ngrams):
            raise ValueError(f"ngrams must be lengths of at least 2, got {list(ngrams)}")
        self.prepare = TextPrepare(
            Tokenizer(models.BPE()),
            max_len=max_len,
            max_chars=max_chars,
            special_tokens=special_tokens,
            subword_dropout=subword_dropout,
            token_dropout=token_dropout,
            token_mask=token_mask,
        )
        self.fitted = False
        self.position = Positions1d(position, dim=dim, max_len=max_len)
        self.ngrams, self.ngram_columns = tuple(ngrams), ngram_columns
        self.ngram_table = nn.Embedding(ngram_buckets, dim) if ngrams else None
        if self.ngram_table is not None:
            nn.init.normal_(self.ngram_table.weight, std=0.02)
        self.conv = nn.Conv1d(dim, dim, conv_kernel, padding=conv_kernel // 2) if conv_kernel else None
        self.norm = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        if tokenizer is not None:
            self.use(load_tokenizer(tokenizer))

    def fit(self, raws: Iterable[str | list[str]]) -> TextAdapter:
        """Train the tokenizer on raws, unless it was given. Call on the training split only."""
        if not self.fitted:
            # Words that come split are cut one by one, without the space before: so are they learned.
            texts = (text for raw in raws for text in ([raw] if isinstance(raw, str) else raw))
            self.use(
                train_tokenizer(texts, subwords=self.subwords, vocab_size=self.vocab_size, lowercase=self.lowercase)
            )
        return self

    def use(self, tokenizer: Tokenizer) -> None:
        """Take this tokenizer and make the table of its vectors."""
        self.prepare.use(tokenizer)
        self.fitted = True
        self.table = nn.Embedding(max(tokenizer.get_vocab().values()) + 1, self.dim)
        nn.init.normal_(self.table.weight, std=0.02 if self.scale == 1 else 1 / self.scale)
        if self.embedding is not None:
            self.table.weight.data.copy_(_given_vectors(self.embedding, self.table.weight.shape))
        self.table.weight.requires_grad_(not self.frozen)

    def save(self, folder: Path) -> None:
        """What fitting found, other than weights: tokenizer.json."""
        self.prepare.tokenizer.save(str(folder / "tokenizer.json"))

    def load(self, folder: Path) -> None:
        """Undo `save`."""
        self.use(load_tokenizer(folder / "tokenizer.json"))

    def tokens(self, raws: Sequence[str | list[str]]) -> Tokens:
        """Raw texts straight to Tokens."""
        prepare = self.prepare
        return self(prepare.collate([prepare(prepare.read(raw)) for raw in raws]))

    def describe(self, raw: str | list[str]) -> str:
        """What the columns are: the first pieces themselves."""
        tokenizer = self.prepare.tokenizer
        ids = self.prepare(raw)["ids"].tolist()
        pieces = [tokenizer.decode([i], skip_special_tokens=False).strip() or "·" for i in ids[:16]]
        return " | ".join(pieces) + (" | ..." if len(ids) > 16 else "")

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """A collated batch to Tokens (B, N, D)."""
        if not self.fitted:
            raise ValueError("this text adapter has no tokenizer yet: call fit(texts) or give tokenizer=")
        ids, mask, places = batch["ids"], batch["mask"], batch["places"]
        x = self.table(ids) * self.scale
        grams = [self._ngram_vectors(ids, n) for n in self.ngrams]
        if not self.ngram_columns:
            x = x + sum(grams)
        if self.conv is not None:
            inside = mask[..., None]
            x = x + F.gelu(rearrange(self.conv(rearrange(x * inside, "b n d -> b d n")), "b d n -> b n d"))
        x = x + self.position(x.shape[1], x.device)
        if self.ngram_columns and grams:
            x, mask, places = self._with_columns(x, mask, places, grams)
        return Tokens(self.dropout(self.norm(x)), mask, (Span("text", 0, x.shape[1], places),))

    def _ngram_vectors(self, ids: Tensor, n: int) -> Tensor:
        """(B, N, D): the vector of the n subwords that end at each token; runs begin in padding."""
        assert self.ngram_table is not None
        code = torch.full_like(ids, n)
        for back in range(n):
            shifted = F.pad(ids, (back, 0))[:, : ids.shape[1]]
            code = (code * 1_000_003 + shifted) % 2_147_483_647
        return self.ngram_table(code % self.ngram_table.num_embeddings)

    def _with_columns(self, x: Tensor, mask: Tensor, places: Tensor, grams: Sequence[Tensor]):
        """Each run of subwords as a column behind the subwords', standing where its last subword does."""
        count = 1 + len(grams)
        runs = torch.cat(tuple(grams), 1)
        return torch.cat([x, runs], 1), repeat(mask, "b n -> b (k n)", k=count), places.repeat(1, count, 1)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer.json as written by the tokenizers library."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception, for a missing file too
        raise UserError(f"{path}: not a tokenizer.json that can be read ({error})") from error


def _given_vectors(path: str, shape: torch.Size) -> Tensor:
    tensors = load_file(path)
    if len(tensors) != 1 or next(iter(tensors.values())).shape != shape:
        got = {name: tuple(t.shape) for name, t in tensors.items()}
        raise UserError(f"{path}: must hold one tensor {tuple(shape)}, a row a subword, got {got}")
    return next(iter(tensors.values()))
