"""Tokenizers from vocabulary files cut texts as their own libraries do."""

import json
from pathlib import Path

import pytest
from peers import parity
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from dxn.errors import UserError
from dxn.weights.checkpoint import Checkpoint, byte_bpe, wordpiece

transformers = parity.transformers
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
    """A tiny vocab.txt, with a letter in it that is a line of its own to str.splitlines."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "a\x85b"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*HARD, *(text.lower() for text in HARD), "cafe naive ecole"], trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
    return dict(pieces)


@pytest.mark.parametrize("strip", [None, False, True])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocab_txt_cuts_texts_as_berts_tokenizer_does(lowercase, strip, tmp_path):
    pieces = wordpiece_files(tmp_path)
    settings = {"do_lower_case": lowercase, "strip_accents": strip}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert ours is not None and ours.get_vocab() == pieces
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip)
    for text in HARD:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(text).tokens[0] == "[CLS]" and ours.encode(text).tokens[-1] == "[SEP]"


def test_a_vocab_txt_without_a_tokenizer_config_is_of_lower_case(tmp_path):
    wordpiece_files(tmp_path)
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert ours is not None and ours.encode("HELLO").ids == ours.encode("hello").ids


def test_a_vocab_txt_without_its_special_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(UserError, match=r"^weights: .+vocab\.txt: \[CLS\], \[SEP\] not among its 3 pieces$"):
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


def test_vocab_json_and_merges_cut_texts_as_gpt2s_tokenizer_does(tmp_path):
    files = bpe_files(tmp_path, "<|endoftext|>")
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    theirs = transformers.GPT2TokenizerFast(*files)
    assert ours is not None
    for text in [*HARD, "one<|endoftext|>two"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


def test_vocab_json_and_merges_cut_texts_as_robertas_tokenizer_does(tmp_path):
    files = bpe_files(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ours = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    # As in the published tokenizer.json: the mask is a word, with the space before it.
    theirs = transformers.RobertaTokenizerFast(*files, mask_token=AddedToken("<mask>", lstrip=True))
    assert ours is not None
    for text in HARD:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(text).tokens[0] == "<s>" and ours.encode(text).tokens[-1] == "</s>"


def test_clips_vocabulary_without_a_tokenizer_json_is_refused(tmp_path):
    files = bpe_files(tmp_path, "<|startoftext|>", "<|endoftext|>")
    with pytest.raises(UserError, match=r"^weights: .+vocab\.json: CLIP's vocabulary, which only a tokenizer\.json"):
        byte_bpe(*map(Path, files))


def test_a_tokenizer_json_goes_before_vocabulary_files(tmp_path):
    wordpiece_files(tmp_path)
    Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    found = Checkpoint("x", {}, folder=tmp_path).tokenizer()
    assert found is not None and found.get_vocab() == {"w0": 0}
    assert Checkpoint("x", {}).tokenizer() is None
