"""Training, loading and inspection of vocabularies, and splits of their subwords."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    Encoding,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced
from dxn.core.schema import checked
from dxn.core.untrusted import read_text, shortened
from dxn.tokenize.text.options import TokenizerKind
from dxn.tokenize.text.scripts import UNSPACED
from dxn.tokenize.text.sentencepiece import tokenizer_json

# Begin-of-sequence and end-of-sequence tokens of tokenizers that are trained here (first) and of
# public tokenizers. The first one that a tokenizer has is used.
BEGINS = ("[BOS]", "<s>", "<bos>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>")
ENDS = ("[EOS]", "</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|endoftext|>")
SENTENCEPIECE = ".spm"
# Text without spaces, such as an encoded file. Only the training of a tokenizer cuts it.
LONG_WORD = re.compile(r"(\S{1000})(?=\S)")
# Words that occur once become the unknown token if they are at most this share of all words: in a
# table of few or very different texts, they are all that there is.
MAX_UNKNOWN = 0.2
MAX_TEXTS = 1000  # in which this share is counted
SPECIALS = ("[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]")  # special tokens of a trained tokenizer


@checked
def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: TokenizerKind = "bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
    keeps_rare: bool = True,
) -> Tokenizer:
    """Train a `tokenizers.Tokenizer` on texts.

    Args:
        texts: Texts of the training split.
        kind: Kind of the tokens: bpe (byte-level BPE, which has no unknown tokens), wordpiece (as
            in BERT), unigram (as in SentencePiece, arXiv:1804.10959), word (words, punctuation, and
            single characters of scripts without spaces) or character (Unicode characters).
        vocab_size: Maximum number of tokens.
        lowercase: Convert all text to lower case first.
        keeps_rare: Whether words that occur only once are in the vocabulary of kind word. False:
            they become the unknown token, which otherwise would never occur in the training, so
            that a new word would have an untrained embedding. They stay if they are more than a
            fifth of all words.
    """
    # Training takes time that grows with the square of the longest word.
    texts = (LONG_WORD.sub(r"\1 ", text) for text in texts)
    tokenizer, trainer = _untrained(kind, vocab_size)
    # NFC composes a letter and its combining marks. Without it, "é" could have two tokenizations.
    steps: list[Any] = [normalizers.NFC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    if kind == "wordpiece":
        texts = list(texts)  # the iterable is read twice
        trainer.special_tokens = [*SPECIALS, *_inner_letters(texts, tokenizer)]
    if kind == "word" and not keeps_rare:
        texts = list(texts)
        trainer.min_frequency = 2
        tokenizer.train_from_iterator(texts, trainer)
        shown = evenly_spaced(texts, MAX_TEXTS)
        ids = [i for text in shown for i in tokenizer.encode(text).ids]
        if ids.count(tokenizer.token_to_id("[UNK]")) <= MAX_UNKNOWN * len(ids):
            return Tokenizer.from_str(tokenizer.to_str())
        trainer.min_frequency = 1
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "wordpiece":
        return _with_specials_only(tokenizer)
    # Serialization rounds the scores of unigram tokens. A round trip here makes the tokenizer in
    # memory equal to the one that is loaded from a file later.
    return Tokenizer.from_str(tokenizer.to_str())


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer.json of the tokenizers library, which may come from an untrusted source.

    A file whose name ends with .spm is a unigram model of SentencePiece, with the ids of its pieces
    in vocab.json of the same folder.

    Raises:
        UserError: If the file does not exist, is too large, or is not a tokenizer.
    """
    if Path(path).suffix == SENTENCEPIECE:
        # A Marian model with separate vocabularies has two of these files.
        vocab = Path(path).with_name(f"{Path(path).stem}_vocab.json")
        default = Path(path).with_name("vocab.json")
        content = tokenizer_json(Path(path), vocab if vocab.exists() else default)
    else:
        content = read_text(Path(path), allow_links=True)
    try:
        return Tokenizer.from_str(content)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise UserError(
            f"{path}: not a tokenizer.json of the tokenizers library ({error}); check the path"
        ) from error


def encode(tokenizer: Tokenizer, text: Any, **options: Any) -> Encoding:
    """Encode a text, or a list of words, as `Tokenizer.encode` does.

    Raises:
        UserError: If the tokenizer fails, such as one that has no token for unknown words.
    """
    try:
        return tokenizer.encode(text, **options)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise UserError(
            f"the tokenizer cannot encode {shortened(text)} ({error}); use another tokenizer"
        ) from error


def is_library_error(error: BaseException) -> bool:
    """Whether an error is one of the tokenizers library.

    The library raises Exception itself. A PanicException, such as that of a regular expression with
    too many steps, is no Exception but a BaseException.
    """
    return type(error) is Exception or type(error).__name__ == "PanicException"


def num_embeddings(tokenizer: Tokenizer) -> int:
    """Return the number of rows that an embedding of the tokens needs."""
    # Not the vocabulary size: ids can have gaps.
    return max(tokenizer.get_vocab().values()) + 1


def token_of(tokenizer: Tokenizer, names: Iterable[str]) -> int | None:
    """Return the id of the first of these tokens that the tokenizer has. None: it has none."""
    for name in names:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    return None


def _inner_letters(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of all letters inside words in sorted order, for the WordPiece trainer.

    The trainer assigns ids to letters in the order of a hash table and breaks ties by id, so each
    run would learn different tokens. If the letters are passed as special tokens, their ids follow
    the order of the list.
    """
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    normalize = tokenizer.normalizer.normalize_str
    letters: set[str] = set()
    for text in texts:
        for word, _ in split(normalize(text)):
            letters.update(f"##{letter}" for letter in word[1:])
    return sorted(letters)


def _with_specials_only(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without the special tokens that `_inner_letters` added.

    A tokenizer finds special tokens in raw text before it splits words, which would be wrong for
    letters.
    """
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][: len(SPECIALS)]
    return Tokenizer.from_str(json.dumps(state))


def _word_decoder() -> Any:
    """Return a decoder that joins words by spaces, without those around punctuation.

    Spaces are not tokens, so "left, then up" would be decoded as "left , then up" otherwise.
    """
    # "don't" is three tokens. Before other letters, the apostrophe can be a quotation mark.
    ending = r"(?:s|t|m|d|re|ve|ll)\b"
    no_space = (
        r" (?=[.,;:!?)\]}])",
        r"(?<=[(\[{]) ",
        rf"(?<=\w) (?=['’] {ending})",
        rf"(?<=\w['’]) (?={ending})",
        rf"(?<={UNSPACED}|{UNSPACED}\p{{M}}) (?={UNSPACED})",
    )
    return decoders.Sequence(
        [
            # Each token except the first gets a space. No token starts with the prefix.
            decoders.WordPiece(prefix=" ", cleanup=False),
            decoders.Fuse(),
            *(decoders.Replace(Regex(pattern), "") for pattern in no_space),
        ]
    )


def _untrained(kind: TokenizerKind, vocab_size: int) -> tuple[Any, Any]:
    """Return a tokenizer of this kind and its trainer."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(SPECIALS),
        "show_progress": False,
    }
    if kind == "bpe":
        tokenizer: Any = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        # All 256 bytes, including those that do not occur in the training texts.
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return tokenizer, trainers.BpeTrainer(initial_alphabet=alphabet, **common)
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer, trainers.WordPieceTrainer(**common)
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer, trainers.UnigramTrainer(unk_token="[UNK]", **common)
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    if kind == "word":
        # A character has its vowel signs and tone marks with it.
        character = Regex(rf"{UNSPACED}\p{{M}}*")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Split(character, "isolated")]
        )
        tokenizer.decoder = _word_decoder()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer, trainers.WordLevelTrainer(**common)


# Two shorter subwords: the id of the first and of the second, the number of letters of the second,
# and the possible lengths of the whole subword in letters, without and with the leading space.
Split = tuple[int, int, int, range]


class SubwordSplitter:
    """Splits random subwords into two shorter ones, similar to BPE-dropout (arXiv:1910.13267).

    Args:
        tokenizer: Tokenizer whose subwords are split.
        probability: Probability that a subword is split.
        special: Ids of special tokens, which are never split.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float, *, special: Collection[int]):
        self.tokenizer = tokenizer
        self.probability = probability
        self.special = special
        self.splits: dict[int, list[Split]] = {}  # cache, filled on demand

    def draw(self, token: int, rand: random.Random) -> Split | None:
        """Draw a split of the subword `token`. None: it is not split."""
        if rand.random() >= self.probability:
            return None
        # Cached, because the same tokens occur many times.
        if token not in self.splits:
            self.splits[token] = self._splits(token)
        splits = self.splits[token]
        return rand.choice(splits) if splits else None

    def _splits(self, token: int) -> list[Split]:
        """Return all splits of a subword into two subwords of the vocabulary."""
        piece = self.tokenizer.id_to_token(token)
        if piece is None or token in self.special:
            return []
        # WordPiece marks subwords that continue a word with "##". Other kinds have no prefix.
        prefix = "##" if self.tokenizer.token_to_id("##" + piece[-1]) is not None else ""
        body = piece.removeprefix(prefix)
        own_prefix = piece[: len(piece) - len(body)]
        # "Ġ" (byte-level BPE) and "▁" (unigram) represent the space before a word.
        letters = range(len(body) - body.startswith(("Ġ", "▁")), len(body) + 1)
        splits = []
        for at in range(1, len(body)):
            left = self.tokenizer.token_to_id(own_prefix + body[:at])
            right = self.tokenizer.token_to_id(prefix + body[at:])
            if left is not None and right is not None:
                splits.append((left, right, len(body) - at, letters))
        return splits
