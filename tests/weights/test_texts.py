"""Texts cut into the token ids of a checkpoint's own tokenizer."""

import json

import pytest
import transformers
from helpers.checkpoints import adapter_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from dxn.tokenize import BadMedia

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and runs away.",
    "Der schnelle braune Fuchs springt über den faulen Hund; ça va où, naïve café?",
    "Быстрая коричневая лиса прыгает. 敏捷的棕色狐狸跳过懒狗。 すばやい茶色の狐。 빠른 갈색 여우",
    "It's they'll we've 12345 2026-11-21 3.14 e-mail@example.org C++ #hash ~/path_name",
    "שלום עולם مرحبا بالعالم",
]
HARD = {
    "plain": "The lazy fox jumps, it's away!",
    "accents and capitals": "CAFÉ Über ÇA NAÏVE straße ẞ İstanbul ǅ ﬁ",
    "combining marks": "cafe\u0301 u\u0308ber a\u0301\u0323\u0302 \u0301alone ｈａｌｆ",
    "emoji": "fox 🦊 family 👨\u200d👩\u200d👧\u200d👦 flag 🇩🇪 thumb 👍🏽 heart ❤\ufe0f",
    "Chinese, Japanese, Korean": "敏捷的fox狐狸 すばやい キツネ 빠른 여우 𠀀𠀁",
    "right to left": "שָׁלוֹם world مرحبا\u200f \u202eabc\u202c",
    "control characters": "a\x00b\x01c\x07d\x1be\x7ff\x85g\ufffdh",
    "soft hyphen": "jum\u00adps over\u00ad",
    "no width": "qui\u200bck \ufeffbrown\u2060fox",
    "only no width": "\u200b\u200d",
    "newlines and tabs": "\n\n the \r\n quick\t\tbrown \u2028fox\u2029 \u00a0 \u3000end \n ",
    "one long word": "quick" * 100,
    "one long number": "1234567890" * 20,
    "long punctuation": "!?" * 71 + "-" * 73 + "'" * 11,
    "special tokens": "[CLS] the [MASK] fox[SEP] <s>quick</s> <mask> [UNK] <unk>",
    "special tokens of GPT": "a<|endoftext|>b <|startoftext|> c <|endoftext|>",
    "special tokens alone": "[MASK]",
    "a special token at the end": "the fox </s>",
    "special tokens only": "<s></s>[CLS][SEP]<|endoftext|>",
    "nearly special": "[MASK [mask] < s > <|endoftext|",
    "words of none of these letters": "ᚠᛇᚻ ⠓⠑⠇⠇⠕ ∮E⋅da",
}


def numbered(*groups):
    """Distinct tokens with their indices."""
    pieces = dict.fromkeys(piece for group in groups for piece in group)
    return {piece: i for i, piece in enumerate(pieces)}


def bert_tokenizer(*, lowercase):
    trainer = trainers.WordPieceTrainer(vocab_size=300, show_progress=False)
    texts = [text.lower() for text in TEXTS] if lowercase else TEXTS
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainer)
    pieces = numbered(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], sorted(tokenizer.get_vocab()))
    return transformers.BertTokenizer(vocab=pieces, do_lower_case=lowercase)


def byte_pieces(specials, *, end=""):
    """Tokens and merges over all 256 bytes, after the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    suffix = {"end_of_word_suffix": end} if end else {}
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, show_progress=False, **suffix
    )
    tokenizer = Tokenizer(models.BPE(**suffix))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    last_letters = [letter + end for letter in alphabet]
    pieces = numbered(specials, alphabet, last_letters, sorted(model["vocab"]))
    return pieces, [tuple(merge) for merge in model["merges"]]


def roberta_tokenizer():
    # In every published RoBERTa the mask includes the space before it.
    mask = AddedToken("<mask>", lstrip=True, special=True)
    pieces = byte_pieces(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return transformers.RobertaTokenizer(*pieces, mask_token=mask)


def gpt2_tokenizer():
    return transformers.GPT2Tokenizer(*byte_pieces(["<|endoftext|>"]))


def clip_tokenizer():
    return transformers.CLIPTokenizer(
        *byte_pieces(["<|startoftext|>", "<|endoftext|>"], end="</w>")
    )


LENGTH = 601  # positions; every text here needs fewer


def bert_model(rows):
    config = transformers.BertConfig(**SIZES, vocab_size=rows, max_position_embeddings=LENGTH)
    return transformers.BertModel(config)


def roberta_model(rows):
    config = {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1}
    config = transformers.RobertaConfig(**SIZES, vocab_size=rows, **config)
    return transformers.RobertaModel(config)


def gpt2_model(rows):
    config = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**config, vocab_size=rows, n_positions=LENGTH)
    return transformers.GPT2Model(config)


def clip_model(rows):
    text = {
        **SIZES,
        "vocab_size": rows,
        "max_position_embeddings": LENGTH,
        "projection_dim": 11,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    vision = {**SIZES, "image_size": 40, "patch_size": 8, "projection_dim": 11}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=11)
    return transformers.CLIPModel(config)


TOKENIZERS = {
    "BERT": (lambda: bert_tokenizer(lowercase=True), bert_model),
    "BERT, cased": (lambda: bert_tokenizer(lowercase=False), bert_model),
    "RoBERTa": (roberta_tokenizer, roberta_model),
    "GPT-2": (gpt2_tokenizer, gpt2_model),
    "CLIP": (clip_tokenizer, clip_model),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def text_checkpoint(request, tmp_path_factory):
    """The folder of a checkpoint, and the library's tokenizer read from there."""
    folder = tmp_path_factory.mktemp("text")
    make, model = TOKENIZERS[request.param]
    tokenizer = make()
    model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, type(tokenizer).from_pretrained(folder)


def ids_of(adapter, text):
    return adapter.tokenizer(adapter.tokenizer.reader.read(text))["ids"].tolist()


def test_texts_become_the_ids_of_the_tokenizer_of_transformers(text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text")
    assert adapter.tokenizer.max_len == LENGTH
    for name, text in HARD.items():
        expected = tokenizer(text)["input_ids"]
        assert ids_of(adapter, text) == expected, name
        assert len(expected) < LENGTH, name


@pytest.mark.parametrize("max_len", [2, 5, 17])
def test_a_text_is_truncated_as_by_transformers(max_len, text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text", max_len=max_len)
    for name, text in HARD.items():
        complete = tokenizer(text)["input_ids"]
        expected = tokenizer(text, truncation=True, max_length=max_len)["input_ids"]
        assert ids_of(adapter, text) == expected, name
        cut = (len(expected), len(complete)) if len(complete) > len(expected) else None
        assert adapter.tokenizer.cut(text) == cut, name
        if tokenizer.num_special_tokens_to_add():
            assert expected[-1] == complete[-1], name  # the token that ends a text stays


def test_any_text_becomes_the_same_ids(text_checkpoint):
    folder, tokenizer = text_checkpoint
    adapter = adapter_of(folder, "text", part="text", max_len=31)

    @settings(max_examples=15, deadline=None, database=None)
    @given(st.text(min_size=1).filter(str.strip))
    def check(text):
        expected = tokenizer(text, truncation=True, max_length=31)["input_ids"]
        assert ids_of(adapter, text) == expected

    check()


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u3000\u00a0\u2028"], ids=ascii)
def test_a_blank_text_which_transformers_accepts_is_refused(text, text_checkpoint):
    folder, _ = text_checkpoint
    with pytest.raises(BadMedia, match="blank text"):
        adapter_of(folder, "text", part="text").tokenizer.reader.read(text)


# CLIP's vocabulary files do not describe its tokenizer, and are refused.
@pytest.mark.parametrize("name", ["BERT", "BERT, cased", "RoBERTa", "GPT-2"])
def test_the_vocabulary_files_of_old_checkpoints_give_the_same_ids(name, tmp_path):
    make, model = TOKENIZERS[name]
    tokenizer = make()
    model(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    tokenizer.backend_tokenizer.model.save(str(tmp_path))
    adapter = adapter_of(tmp_path, "text")
    for kind, text in HARD.items():
        assert ids_of(adapter, text) == tokenizer(text)["input_ids"], kind
