"""Tokenizers from vocabulary files give the tokens of their own libraries."""

import json
from pathlib import Path

import pytest
from helpers.peers import cases
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from dxn.core.errors import UserError
from dxn.weights.tokenizers import byte_bpe, read_tokenizer, wordpiece

transformers = cases.transformers
pytestmark = pytest.mark.filterwarnings("ignore:::timm", "ignore:::transformers")


HARD = [
    "Hello, world!",
    "  two  spaces\tand\na newline ",
    "café naïve Ångström ÉCOLE",
    "e\u0301 decomposed",
    "東京は日本の首都",
    "👩‍👩‍👧 emoji",
    "don't [MASK] stop <mask> at </s> all",
    "x" * 120,
    "1,234.56 €",
    "a\u2028b\u00a0c\u200bd",
    "[CLS] in the text [SEP]",
]


def wordpiece_files(folder):
    """A tiny vocab.txt, with characters at which str.splitlines would split a line."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "a\x85b"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(
        [*HARD, *(text.lower() for text in HARD), "cafe naive ecole"], trainer
    )
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    (folder / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8"
    )
    return dict(pieces)


@pytest.mark.parametrize("strip", [None, False, True])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocab_txt_gives_the_tokens_of_berts_tokenizer(lowercase, strip, tmp_path):
    pieces = wordpiece_files(tmp_path)
    options = {"do_lower_case": lowercase}
    if strip is not None:
        options["strip_accents"] = strip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.get_vocab() == pieces
    peer = transformers.BertTokenizerFast(
        str(tmp_path / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip
    )
    for text in HARD:
        encoding = tokenizer.encode(text)
        assert encoding.ids == peer(text)["input_ids"], text
        assert encoding.tokens[0] == "[CLS]"
        assert encoding.tokens[-1] == "[SEP]"


def test_a_vocab_txt_without_a_tokenizer_config_is_lower_case(tmp_path):
    wordpiece_files(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("HELLO").ids == tokenizer.encode("hello").ids


def test_a_vocab_txt_without_its_special_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    message = r"vocab\.txt: must contain .*, got 3 tokens without \[CLS\], \[SEP\]; download"
    with pytest.raises(UserError, match=message):
        wordpiece(tmp_path / "vocab.txt", lowercase=True)


def bpe_files(folder, *special):
    """A tiny vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(HARD * 2, trainer)
    tokenizer.model.save(str(folder))
    return str(folder / "vocab.json"), str(folder / "merges.txt")


def test_vocab_json_and_merges_give_the_tokens_of_gpt2s_tokenizer(tmp_path):
    files = bpe_files(tmp_path, "<|endoftext|>")
    tokenizer = read_tokenizer(tmp_path)
    peer = transformers.GPT2TokenizerFast(*files)
    assert tokenizer is not None
    for text in [*HARD, "one<|endoftext|>two"]:
        ids = tokenizer.encode(text).ids
        assert ids == peer(text)["input_ids"], text
        assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True)


def test_vocab_json_and_merges_give_the_tokens_of_robertas_tokenizer(tmp_path):
    files = bpe_files(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    tokenizer = read_tokenizer(tmp_path)
    # As in the published tokenizer.json, the mask includes the space before it.
    mask = AddedToken("<mask>", lstrip=True)
    peer = transformers.RobertaTokenizerFast(*files, mask_token=mask)
    assert tokenizer is not None
    for text in HARD:
        encoding = tokenizer.encode(text)
        assert encoding.ids == peer(text)["input_ids"], text
        assert encoding.tokens[0] == "<s>"
        assert encoding.tokens[-1] == "</s>"


def test_clips_vocabulary_without_a_tokenizer_json_is_refused(tmp_path):
    files = bpe_files(tmp_path, "<|startoftext|>", "<|endoftext|>")
    message = r"vocab\.json: CLIP's tokenizer cannot be .*; add its tokenizer\.json$"
    with pytest.raises(UserError, match=message):
        byte_bpe(*map(Path, files))


def test_a_tokenizer_json_is_preferred_to_vocabulary_files(tmp_path):
    wordpiece_files(tmp_path)
    Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.get_vocab() == {"w0": 0}
