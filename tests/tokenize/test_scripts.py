"""Scripts without spaces: the words of the tokenizer, and what an exported model knows of them."""

import pytest

from dxn.tokenize import train_tokenizer
from dxn.tokenize.text.scripts import count_words
from dxn.tokenize.text.vocabulary import load_tokenizer


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("我们喝tea。", ["我", "们", "喝", "tea", "。"]),
        ("お茶を下さい", list("お茶を下さい")),
        ("ที่บ้าน", ["ที่", "บ้", "า", "น"]),  # with the vowel sign and the tone mark
        ("葛\ufe00飾", ["葛\ufe00", "飾"]),  # with the variation selector
        ("차를 마셔요", ["차를", "마셔요"]),  # Korean has spaces
    ],
)
def test_a_word_of_a_script_without_spaces_is_one_character(raw, words, tmp_path):
    tokenizer = train_tokenizer([raw], kind="word")
    encoded = tokenizer.encode(raw)
    assert encoded.tokens == words
    assert [raw[start:stop] for start, stop in encoded.offsets] == words
    assert count_words(raw) == len([word for word in words if word != "。"])
    # No space between two such characters, but around a word of another script.
    assert tokenizer.decode(encoded.ids) == raw.replace("tea", " tea ")
    tokenizer.save(str(tmp_path / "tokenizer.json"))  # an untrusted source could be hostile
    assert load_tokenizer(tmp_path / "tokenizer.json").encode(raw).tokens == words
