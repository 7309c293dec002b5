"""Text files as one stream of tokens, cut into windows."""

from pathlib import Path

import pytest
from helpers.data import by_modality
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from dxn.core.errors import UserError
from dxn.data import InputSpec
from dxn.data import text_files as read_files
from dxn.data.loader import BatchOrder, Loader
from dxn.data.reading import open_rows
from dxn.data.rows import Rows
from dxn.data.token_windows import TokenWindows
from dxn.tasks import IGNORED, Language
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.text.vocabulary import ENDS, token_of

LETTERS = "abcdefghijklmnopqrstuvw"
END = 4  # [PAD] [UNK] [MASK] [BOS] [EOS] are the special tokens of a tokenizer that is trained here


def text_files(*paths, **options):
    return read_files(*paths, readers=by_modality(), **options)


def adapter_of(max_len, texts=(LETTERS,), **options):
    tokenizer = TokenizerOptions(kind="character", **options)
    return TextAdapter(dim=8, tokenizer=tokenizer, max_len=max_len).fit(list(texts))


def stream_of(*rows, max_len=5, adapter=None, name="text", **options):
    adapter = adapter or adapter_of(max_len)
    task = Language()
    task.target.bind({name: adapter})
    tokenizers = {name: adapter.tokenizer}
    origin = [f"row {i}" for i in range(len(rows))]
    opened = open_rows(Rows({name: rows}, origin), tokenizers, task=task)
    return TokenWindows(opened, tokenizers, task=task, **options)


def ids_in(stream, text):
    tokenizer = stream.tokenizers[stream.name].vocabulary
    return tokenizer.encode(text, add_special_tokens=False).ids


def windows(stream, epoch=0):
    return [stream[epoch, i] for i in range(len(stream))]


def input_ids(window):
    return window["text"]["ids"].tolist()


def target_ids(window):
    return window["target"].ids.tolist()


def first_ids(stream, epoch):
    return [input_ids(window)[0] for window in windows(stream, epoch)]


# The stream


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.text("abc", min_size=1, max_size=23), min_size=1, max_size=5),
    max_len=st.integers(1, 7),
)
def test_adjacent_windows_predict_every_token_but_the_first_once(rows, max_len):
    assume(len("".join(rows)) > 1)  # of a single token there is no next one
    stream = stream_of(*rows, max_len=max_len)
    whole = []
    for i, row in enumerate(rows):
        whole += ([END] if i else []) + ids_in(stream, row)
    found = windows(stream)
    assert [i for window in found for i in target_ids(window)] == whole[1:]
    assert [i for window in found for i in input_ids(window)] == whole[:-1]
    assert [len(target_ids(w)) for w in found[:-1]] == [max_len] * (len(found) - 1)
    assert [window["#index"] for window in found] == list(range(len(stream)))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    epoch=st.integers(0, 99),
    size=st.integers(2, 23),
    max_len=st.integers(1, 7),
)
def test_a_training_window_is_a_part_of_the_text_with_the_tokens_that_follow(
    seed, epoch, size, max_len
):
    stream = stream_of(LETTERS[:size], max_len=max_len, augment=True, seed=seed)
    whole = ids_in(stream, LETTERS[:size])
    for window in windows(stream, epoch):
        ids = input_ids(window)
        start = whole.index(ids[0])
        assert len(ids) == min(max_len, size - 1)
        assert ids == whole[start : start + len(ids)]
        assert target_ids(window) == whole[start + 1 : start + 1 + len(ids)]


def test_training_windows_depend_on_seed_epoch_and_index_only():
    adapter = adapter_of(5)
    first = stream_of(LETTERS * 7, adapter=adapter, augment=True, seed=3)
    again = stream_of(LETTERS * 7, adapter=adapter, augment=True, seed=3)
    expected = first_ids(first, 1)
    assert first_ids(first, 1) == expected == first_ids(again, 1)
    backwards = [input_ids(again[1, i])[0] for i in reversed(range(len(again)))]
    assert backwards == expected[::-1]
    other = stream_of(LETTERS * 7, adapter=adapter, augment=True, seed=4)
    assert first_ids(first, 2) != expected
    assert first_ids(other, 1) != expected


def test_training_windows_start_where_they_did_in_earlier_versions():
    stream = stream_of(LETTERS * 7, augment=True, seed=3)
    starts = []
    for i in range(5):
        ids = stream[1, i]["target"].ids
        starts.append(ids[0].item() - ids_in(stream, "b")[0])
    assert starts == [16, -1, 15, 8, 14]


def test_without_augmentation_all_epochs_are_equal():
    stream = stream_of(LETTERS, seed=3)
    assert first_ids(stream, 1) == first_ids(stream, 2) == ids_in(stream, LETTERS)[:-1:5]


def test_in_training_every_token_is_predicted_at_some_time():
    # The last one too, so that a window can start as late as possible.
    stream = stream_of(LETTERS, augment=True)
    predicted = set()
    for epoch in range(40):
        for window in windows(stream, epoch):
            predicted.update(target_ids(window))
    assert predicted == set(ids_in(stream, LETTERS)[1:])


def test_the_end_token_is_between_rows_only():
    stream = stream_of("abc", "de", "f")
    first, second, third = (ids_in(stream, text) for text in ("abc", "de", "f"))
    assert stream.ids.tolist() == [*first, END, *second, END, *third]


def test_without_an_end_token_rows_follow_each_other(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    adapter = TextAdapter(dim=8, tokenizer=TokenizerOptions(path=str(path)))
    assert token_of(adapter.tokenizer.vocabulary, ENDS) is None
    assert stream_of("a b", "b a b", adapter=adapter).ids.tolist() == [1, 2, 2, 1, 2]


def test_a_window_is_named_by_its_number():
    stream = stream_of("abc", "defghijk")
    assert stream.describe(0) == "row 0, window 1"
    last = len(stream) - 1
    assert stream.describe(last) == f"row 1, window {last + 1}"


def test_rows_without_a_text_are_not_in_the_stream():
    adapter = adapter_of(5)
    task = Language()
    task.target.bind({"text": adapter})
    tokenizers = {"text": adapter.tokenizer}
    rows = Rows({"text": ["ab", None, "cd"], "image": [None] * 3}, ["1", "2", "3"])
    opened = open_rows(rows, tokenizers, task=task, on_bad="skip")
    stream = TokenWindows(opened, tokenizers, task=task)
    assert stream.ids.tolist() == [*ids_in(stream, "ab"), END, *ids_in(stream, "cd")]


def test_the_input_may_have_any_name():
    stream = stream_of("abcdef", name="my title")
    assert set(stream[0, 0]) == {"my title", "target", "#index"}


def test_lists_of_words_are_read_as_words():
    stream = stream_of(["ab", "c"], ["d"])
    assert stream.ids.tolist() == [*ids_in(stream, "abc"), END, *ids_in(stream, "d")]
    assert stream.chars_per_token == (len("ab c") + len("d")) / 5


def test_the_characters_per_token_are_those_of_the_text():
    tokenizer = TokenizerOptions(kind="word")
    adapter = TextAdapter(dim=8, tokenizer=tokenizer, max_len=3).fit(["the red ball"])
    stream = stream_of("the red ball", "ball", adapter=adapter)
    assert stream.chars_per_token == (12 + 4) / (3 + 1 + 1)
    assert stream[0, 0]["target"].chars_per_token == stream.chars_per_token


def test_the_padding_of_a_batch_is_not_predicted():
    stream = stream_of(LETTERS[:14])  # 13 tokens to predict: 5, 5 and 3
    batch = next(iter(Loader(BatchOrder(stream, 3))))
    ids = batch["target"]["ids"]
    assert batch["text"]["ids"].shape == ids.shape == (3, 5)
    assert batch["text"]["mask"].sum(1).tolist() == [5, 5, 3]
    assert ids[2, 3:].tolist() == [IGNORED] * 2
    assert (ids != IGNORED).sum() == 13


def test_special_tokens_that_a_template_adds_are_left_out():
    plain, with_template = adapter_of(5), adapter_of(5, special_tokens=True)
    ids = stream_of("abc", adapter=with_template).ids
    assert stream_of("abc", adapter=plain).ids.tolist() == ids.tolist()


def test_a_single_token_is_too_little():
    with pytest.raises(UserError) as caught:
        stream_of("a")
    assert str(caught.value) == (
        "row 0: language modelling needs at least 2 tokens per split, got 1; use more text"
    )


# The files


def write_files(folder, **files):
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.txt").write_bytes(data)
    return folder


def parts(source):
    return {name: list(rows.cells["text"]) for name, rows in source.splits.items()}


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        ((0.9, 0.1), {"train": ["abcdefghijklmnopqr"], "validation": ["st"]}),
        (
            (0.5, 0.25, 0.25),
            {"train": ["abcdefghij"], "validation": ["klmno"], "test": ["pqrst"]},
        ),
        ((1.0,), {"train": ["abcdefghijklmnopqrst"]}),
        ((0.5, 0.0, 0.5), {"train": ["abcdefghij"], "test": ["klmnopqrst"]}),
    ],
)
def test_the_splits_are_consecutive_parts_of_a_file(tmp_path, fractions, expected):
    write_files(tmp_path, a=LETTERS[:20])
    assert parts(text_files(str(tmp_path / "a.txt"), fractions=fractions)) == expected


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 97),
    cut=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_every_character_is_in_exactly_one_split(tmp_path_factory, size, cut):
    whole = (LETTERS * 5)[:size]
    folder = write_files(tmp_path_factory.mktemp("cut"), a=whole)
    fractions = [share / sum(cut) for share in cut]
    try:
        source = text_files(str(folder / "a.txt"), fractions=fractions)
    except UserError as error:
        assert "no text for the training split" in str(error)
        assert round(fractions[0] * size) == 0
        return
    assert "".join(part for texts in parts(source).values() for part in texts) == whole
    for name, share in zip(("train", "validation", "test"), fractions, strict=True):
        length = len("".join(parts(source).get(name, [])))
        assert length == pytest.approx(share * size, abs=1)


def test_a_folder_stands_for_its_txt_files_each_of_which_is_in_every_split(tmp_path):
    write_files(tmp_path, b=LETTERS[10:20], a=LETTERS[:10])
    (tmp_path / "c.md").write_text("not this one")
    source = text_files(str(tmp_path), fractions=(0.8, 0.2))
    assert parts(source) == {"train": ["abcdefgh", "klmnopqr"], "validation": ["ij", "st"]}
    assert list(source.splits["validation"].origin) == ["a.txt", "b.txt"]
    assert source.inputs == {"text": InputSpec("files", "text")}
    assert source.target is None
    assert source.notes == [
        "splits: consecutive parts of each file; number of characters: train 16, validation 4"
    ]


def test_a_list_of_files_keeps_its_order(tmp_path):
    write_files(tmp_path, a="aa", b="bb")
    paths = [str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]
    assert parts(text_files(paths, fractions=(1.0,))) == {"train": ["bb", "aa"]}


def test_a_part_of_spaces_only_is_left_out(tmp_path):
    write_files(tmp_path, a="abcdefgh \n", b="klmnopqrst")
    assert parts(text_files(str(tmp_path), fractions=(0.8, 0.2)))["validation"] == ["st"]


def test_characters_of_several_bytes_are_not_divided(tmp_path):
    write_files(tmp_path, a="äöüß" * 5)
    source = text_files(str(tmp_path), fractions=(0.5, 0.5))
    assert parts(source) == {"train": ["äöüßäöüßäö"], "validation": ["üßäöüßäöüß"]}


@pytest.mark.parametrize(
    ("files", "path", "options", "message"),
    [
        ({}, "no.txt", {}, r"file or folder not found: .*no\.txt \(current directory: .+\)"),
        ({}, ".", {}, "the folder contains no .txt file"),
        (
            {"a": b"good\xff"},
            "a.txt",
            {},
            r"a\.txt row 1: byte 0xff is not valid utf-8; set data\.encoding=cp1252",
        ),
        ({"a": ""}, "a.txt", {}, "no text for the training split in .*a.txt"),
        ({"a": " \n\t "}, ".", {}, "no text for the training split"),
        ({"a": "abc"}, "a.txt", {"fractions": (0.0, 1.0)}, "no text for the training split"),
        (
            {"a": "abc"},
            "a.txt",
            {"fractions": (0.5, 0.4)},
            r"data.fractions: .* add up to 1, got \[0.5, 0.4\]",
        ),
        (
            {"a": "abc"},
            "a.txt",
            {"fractions": (1.5, -0.5)},
            "data.fractions: must be one to three numbers",
        ),
        (
            {"a": "abc"},
            "a.txt",
            {"fractions": (0.4, 0.2, 0.2, 0.2)},
            "data.fractions: must be one to three numbers",
        ),
        (
            {"a": "abc"},
            "a.txt",
            {"fractions": ()},
            "data.fractions: must be one to three numbers",
        ),
    ],
)
def test_files_that_cannot_be_used_are_explained(tmp_path, files, path, options, message):
    write_files(tmp_path, **files)
    with pytest.raises(UserError, match=message):
        text_files(str(Path(tmp_path, path)), **options)


def test_an_adapter_that_reads_text_is_required(tmp_path):
    write_files(tmp_path, a="abc")
    images = {"image": by_modality()["image"]}
    with pytest.raises(UserError) as caught:
        read_files(str(tmp_path), readers=images)
    assert str(caught.value) == (
        "adapters: no adapter in use reads text, got image; set adapters=text"
    )
