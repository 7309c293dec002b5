"""Read the tokenizer of a checkpoint, from tokenizer.json or from older vocabulary files."""

from __future__ import annotations

from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from dxn.core.errors import UserError
from dxn.core.untrusted import check_file, read_text, shortened
from dxn.tokenize.text.vocabulary import load_tokenizer
from dxn.weights.checkpoint import read_json

# Special tokens of BERT.
WORDPIECE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Special tokens of RoBERTa (the first four) and GPT-2.
BPE_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>")


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Read tokenizer.json, or vocabulary files of SentencePiece, WordPiece or byte-level BPE.

    Returns:
        The tokenizer, or None if the folder has none of these files.

    Raises:
        UserError: If a file cannot be read.
    """
    if (folder / "tokenizer.json").exists():
        return load_tokenizer(folder / "tokenizer.json")
    # The texts that a Marian model reads. The pieces of its translations are in target.spm.
    if (folder / "source.spm").exists():
        return load_tokenizer(folder / "source.spm")
    if (folder / "vocab.txt").exists():
        path = folder / "tokenizer_config.json"
        options = read_json(path)
        lowercase = options.get("do_lower_case", True)  # the default of BERT
        strip_accents = options.get("strip_accents")
        if not isinstance(lowercase, bool) or not isinstance(strip_accents, bool | None):
            raise UserError(
                f"weights: {path}: do_lower_case and strip_accents must be true or false, got "
                f"{shortened(lowercase)} and {shortened(strip_accents)}"
            )
        return wordpiece(folder / "vocab.txt", lowercase=lowercase, strip_accents=strip_accents)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return byte_bpe(folder / "vocab.json", folder / "merges.txt")
    return None


def make_lowercase(tokenizer: Tokenizer) -> None:
    """Let a tokenizer convert texts to lower case first."""
    lowercase, original = normalizers.Lowercase(), tokenizer.normalizer
    tokenizer.normalizer = (
        lowercase if original is None else normalizers.Sequence([lowercase, original])
    )


def wordpiece(vocab: Path, *, lowercase: bool, strip_accents: bool | None = None) -> Tokenizer:
    """Build BERT's tokenizer from vocab.txt, which has one token per line.

    Args:
        vocab: Path of vocab.txt.
        lowercase: Whether texts are converted to lower case.
        strip_accents: Whether accents are removed. Default: the value of `lowercase`.

    Raises:
        UserError: If the vocabulary lacks a special token.
    """
    # str.splitlines would also split at characters such as U+2028, which may be tokens.
    try:
        text = read_text(vocab, allow_links=True)
    except UserError as error:
        raise UserError(f"weights: {error}; download it again") from error
    lines = text.removesuffix("\n").split("\n")
    pieces = {piece: i for i, piece in enumerate(lines)}
    missing = [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in pieces]
    if missing:
        raise UserError(
            f"weights: {vocab}: must contain the special tokens [UNK], [CLS] and [SEP], got "
            f"{len(lines)} tokens without {', '.join(missing)}; download it again"
        )
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([token for token in WORDPIECE_SPECIAL if token in pieces])
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"])
    )
    return tokenizer


def byte_bpe(vocab: Path, merges: Path) -> Tokenizer:
    """Build the tokenizer of GPT-2 or RoBERTa from its vocabulary and its merges.

    RoBERTa's tokenizer adds <s> at the start and </s> at the end of a text.

    Args:
        vocab: Path of vocab.json.
        merges: Path of merges.txt.

    Raises:
        UserError: If it is CLIP's vocabulary.
    """
    for path in (vocab, merges):
        check_file(path, allow_links=True)
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises Exception itself, not a subclass
        raise UserError(
            f"weights: {vocab}: {vocab.name} and {merges.name} are not the files of a byte-level "
            f"BPE ({error}); download them again"
        ) from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pieces = tokenizer.get_vocab()
    # CLIP's tokenizer normalizes texts and marks the ends of words in its own way. Only
    # tokenizer.json contains these rules.
    if "<|startoftext|>" in pieces:
        raise UserError(
            f"weights: {vocab}: CLIP's tokenizer cannot be built from vocab.json and merges.txt; "
            "add its tokenizer.json"
        )
    tokenizer.add_special_tokens([token for token in BPE_SPECIAL if token in pieces])
    if "<mask>" in pieces:
        # In all published RoBERTa models, <mask> includes the space before it (lstrip).
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    # Only RoBERTa's vocabulary has these tokens. GPT-2 adds no special tokens to a text.
    if "<s>" in pieces and "</s>" in pieces:
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", pieces["</s>"]), ("<s>", pieces["<s>"]), add_prefix_space=False
        )
    return tokenizer
