"""Plain text files as one line of tokens, cut into windows."""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.data.files import text
from dxn.data.rows import Rows
from dxn.data.samples import BatchOrder, Samples, make_loader, open_rows
from dxn.data.stream import Stream, samples_of
from dxn.data.targets import IGNORED, Target
from dxn.errors import UserError
from dxn.tokenize import TextAdapter
from dxn.tokenize.target import ENDS, token_of

LETTERS = "abcdefghijklmnopqrstuvw"
END = 4  # [PAD] [UNK] [MASK] [BOS] [EOS]: the special tokens of a tokenizer that is trained here


def adapter_of(max_len, texts=(LETTERS,), **options):
    return TextAdapter(dim=8, subwords="character", max_len=max_len, **options).fit(list(texts))


def stream_of(*rows, max_len=5, adapter=None, **options):
    prepares = {"text": (adapter or adapter_of(max_len)).prepare}
    opened = open_rows(Rows({"text": rows}, [f"row {i}" for i in range(len(rows))]), prepares, need_target=False)
    return Stream(opened, prepares, target=Target("next"), **options)


def ids_in(stream, text):
    return stream.prepares["text"].tokenizer.encode(text, add_special_tokens=False).ids


def windows(stream, epoch=0):
    return [stream[epoch, i] for i in range(len(stream))]


# The stream


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.text("abc", min_size=1, max_size=23), min_size=1, max_size=5), max_len=st.integers(1, 7))
def test_windows_side_by_side_guess_each_token_but_the_first_once(rows, max_len):
    assume(len("".join(rows)) > 1)  # a token alone leaves nothing to guess
    stream = stream_of(*rows, max_len=max_len)
    whole = [token for i, row in enumerate(rows) for token in ([END] if i else []) + ids_in(stream, row)]
    found = windows(stream)
    assert [int(t) for w in found for t in w["target"]] == whole[1:]
    assert [int(t) for w in found for t in w["text"]["ids"]] == whole[:-1]
    assert [len(w["target"]) for w in found[:-1]] == [max_len] * (len(found) - 1)
    assert [w["index"] for w in found] == list(range(len(stream)))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), epoch=st.integers(0, 99), size=st.integers(2, 23), max_len=st.integers(1, 7))
def test_a_training_window_is_a_run_of_the_text_with_what_follows_each_token(seed, epoch, size, max_len):
    stream = stream_of(LETTERS[:size], max_len=max_len, augment=True, seed=seed)
    whole = ids_in(stream, LETTERS[:size])
    for window in windows(stream, epoch):
        ids, target = window["text"]["ids"].tolist(), window["target"].tolist()
        start = whole.index(ids[0])
        assert len(ids) == min(max_len, size - 1)
        assert ids == whole[start : start + len(ids)] and target == whole[start + 1 : start + 1 + len(ids)]


def starts(stream, epoch):
    return [int(w["text"]["ids"][0]) for w in windows(stream, epoch)]


def test_training_windows_are_a_pure_function_of_seed_epoch_and_index():
    rows = [LETTERS * 7]
    adapter = adapter_of(5)
    first, again = (stream_of(*rows, adapter=adapter, augment=True, seed=3) for _ in range(2))
    assert starts(first, 1) == starts(first, 1) == starts(again, 1)
    assert [int(again[1, i]["text"]["ids"][0]) for i in reversed(range(len(again)))] == starts(first, 1)[::-1]
    other = stream_of(*rows, adapter=adapter, augment=True, seed=4)
    assert starts(first, 1) != starts(first, 2) and starts(first, 1) != starts(other, 1)


def test_without_augmentation_no_epoch_differs():
    stream = stream_of(LETTERS, seed=3)
    assert starts(stream, 1) == starts(stream, 2) == ids_in(stream, LETTERS)[:-1:5]


def test_in_training_every_token_is_guessed_at_some_time():
    """The last, too: a window may begin as late as it can."""
    stream = stream_of(LETTERS, augment=True)
    guessed = {int(t) for epoch in range(40) for w in windows(stream, epoch) for t in w["target"]}
    assert guessed == set(ids_in(stream, LETTERS)[1:])


def test_between_rows_stands_the_end_and_neither_before_nor_behind_them():
    stream = stream_of("abc", "de", "f")
    assert stream.ids.tolist() == [*ids_in(stream, "abc"), END, *ids_in(stream, "de"), END, *ids_in(stream, "f")]


def test_without_an_end_token_rows_follow_each_other(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    adapter = TextAdapter(dim=8, tokenizer=str(tmp_path / "t.json"))
    assert token_of(adapter.prepare.tokenizer, ENDS) is None
    assert stream_of("a b", "b a b", adapter=adapter).ids.tolist() == [1, 2, 2, 1, 2]


def test_rows_without_a_text_are_not_in_the_stream():
    adapter = adapter_of(5)
    cells = {"text": ["ab", None, "cd"], "image": [None] * 3}
    opened = open_rows(Rows(cells, ["1", "2", "3"]), {"text": adapter.prepare}, on_bad="skip", need_target=False)
    stream = Stream(opened, {"text": adapter.prepare})
    assert stream.ids.tolist() == [*ids_in(stream, "ab"), END, *ids_in(stream, "cd")]


def test_words_that_come_split_are_read_as_words():
    stream = stream_of(["ab", "c"], ["d"])
    assert stream.ids.tolist() == [*ids_in(stream, "abc"), END, *ids_in(stream, "d")]
    assert stream.chars_per_token == (len("ab c") + len("d")) / 5


def test_characters_a_token_are_those_of_the_text():
    adapter = TextAdapter(dim=8, subwords="word", max_len=3).fit(["the red ball"])
    stream = stream_of("the red ball", "ball", adapter=adapter)
    assert stream.chars_per_token == (12 + 4) / (3 + 1 + 1)


def test_a_batch_is_padded_with_what_is_not_guessed():
    stream = stream_of(LETTERS[:14])  # 13 to guess: 5, 5 and 3
    batch = next(iter(make_loader(BatchOrder(stream, 3))))
    assert batch["text"]["ids"].shape == batch["target"].shape == (3, 5)
    assert batch["text"]["mask"].sum(1).tolist() == [5, 5, 3]
    assert batch["target"][2, 3:].tolist() == [IGNORED] * 2 and (batch["target"] != IGNORED).sum() == 13


def test_what_follows_is_decided_by_the_target():
    assert samples_of(Target("next")) is Stream
    assert samples_of(Target("class")) is samples_of(Target("text")) is Samples


def test_special_tokens_that_a_template_puts_around_a_text_are_left_out():
    plain, around = adapter_of(5), adapter_of(5, special_tokens=True)
    assert torch.equal(stream_of("abc", adapter=plain).ids, stream_of("abc", adapter=around).ids)


# The files


def written(folder, **files):
    for name, content in files.items():
        path = folder / f"{name}.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def cells(source):
    return {name: list(rows.cells["text"]) for name, rows in source.splits.items()}


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        ((0.9, 0.1), {"train": ["abcdefghijklmnopqr"], "validation": ["st"]}),
        ((0.5, 0.25, 0.25), {"train": ["abcdefghij"], "validation": ["klmno"], "test": ["pqrst"]}),
        ((1.0,), {"train": ["abcdefghijklmnopqrst"]}),
        ((0.5, 0.0, 0.5), {"train": ["abcdefghij"], "test": ["klmnopqrst"]}),
    ],
)
def test_a_file_is_cut_into_splits_one_after_another(tmp_path, fractions, expected):
    written(tmp_path, a=LETTERS[:20])
    assert cells(text(str(tmp_path / "a.txt"), fractions=fractions)) == expected


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 97), cut=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)))
def test_no_character_is_lost_or_in_two_splits(tmp_path_factory, size, cut):
    whole = (LETTERS * 5)[:size]
    folder = written(tmp_path_factory.mktemp("cut"), a=whole)
    fractions = [share / sum(cut) for share in cut]
    try:
        source = text(str(folder / "a.txt"), fractions=fractions)
    except UserError as error:
        assert "holds no text to train on" in str(error) and round(fractions[0] * size) == 0
        return
    assert "".join(part for parts in cells(source).values() for part in parts) == whole
    for name, share in zip(("train", "validation", "test"), fractions, strict=True):
        assert len("".join(cells(source).get(name, []))) == pytest.approx(share * size, abs=1)


def test_a_folder_is_its_txt_files_each_in_every_split(tmp_path):
    written(tmp_path, b=LETTERS[10:20], a=LETTERS[:10])
    (tmp_path / "c.md").write_text("not this one")
    source = text(str(tmp_path), fractions=(0.8, 0.2))
    assert cells(source) == {"train": ["abcdefgh", "klmnopqr"], "validation": ["ij", "st"]}
    assert list(source.splits["validation"].origin) == ["a.txt", "b.txt"]
    assert source.target_kind == "none" and dict(source.columns) == {"text": "files"}
    assert source.notes == ["splits: one after another in each file; characters: train 16, validation 4"]


def test_a_list_of_files_keeps_its_order(tmp_path):
    written(tmp_path, a="aa", b="bb")
    source = text([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")], fractions=(1.0,))
    assert cells(source) == {"train": ["bb", "aa"]}


def test_a_part_of_nothing_but_space_is_left_out(tmp_path):
    written(tmp_path, a="abcdefgh \n", b="klmnopqrst")
    assert cells(text(str(tmp_path), fractions=(0.8, 0.2)))["validation"] == ["st"]


def test_characters_of_many_bytes_are_not_cut_in_two(tmp_path):
    written(tmp_path, a="äöüß" * 5)
    assert cells(text(str(tmp_path), fractions=(0.5, 0.5))) == {"train": ["äöüßäöüßäö"], "validation": ["üßäöüßäöüß"]}


@pytest.mark.parametrize(
    ("files", "path", "options", "message"),
    [
        ({}, "no.txt", {}, "no.txt: no such file"),
        ({}, ".", {}, "holds no .txt file"),
        ({"a": b"good\xff"}, "a.txt", {}, "a.txt: not UTF-8 at byte 4; convert it first"),
        ({"a": ""}, "a.txt", {}, "a.txt: holds no text to train on"),
        ({"a": " \n\t "}, ".", {}, "holds no text to train on"),
        ({"a": "abc"}, "a.txt", {"fractions": (0.0, 1.0)}, "holds no text to train on"),
        ({"a": "abc"}, "a.txt", {"fractions": (0.5, 0.4)}, r"data.fractions: .* add up to 1, got \[0.5, 0.4\]"),
        ({"a": "abc"}, "a.txt", {"fractions": (1.5, -0.5)}, "data.fractions: must be up to three shares"),
        ({"a": "abc"}, "a.txt", {"fractions": (0.4, 0.2, 0.2, 0.2)}, "data.fractions: must be up to three shares"),
        ({"a": "abc"}, "a.txt", {"fractions": ()}, "data.fractions: must be up to three shares"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, files, path, options, message):
    written(tmp_path, **files)
    with pytest.raises(UserError, match=message):
        text(str(Path(tmp_path, path)), **options)


def test_a_text_of_one_token_leaves_nothing_to_guess():
    with pytest.raises(UserError, match="row 0: to guess a next token takes at least 2, got 1; give more text"):
        stream_of("a")
