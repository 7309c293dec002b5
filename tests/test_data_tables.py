"""Tables of one's own: four formats, one Source; what a column means; and what is said where nothing fits."""

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dxn.data.read import joined, read
from dxn.data.tables import from_tables, table
from dxn.errors import UserError

REVIEWS = ["a fine film of two hours", "dull from end to end", "she sings, and how", "never again", "quite all right"]
ROWS = [{"review": REVIEWS[i % 5] + f" ({i})", "label": ("good", "bad", "so so")[i % 3]} for i in range(23)]


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


def save(path: Path, rows: list[dict], sep: str | None = None) -> str:
    """The same rows in whatever format the suffix says."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=sep or ("\t" if path.suffix == ".tsv" else ","))
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def all_rows(source, name):
    """A cell of every row of every split, in the order of the table's rows."""
    found = [
        (int(origin.rsplit(" ", 1)[1]), value)
        for rows in source.splits.values()
        for origin, value in zip(rows.origin, rows.cells[name], strict=True)
    ]
    return [value for _, value in sorted(found, key=lambda pair: pair[0])]


def columns(**given):
    """JSONL text of these columns."""
    names = list(given)
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in zip(*given.values(), strict=True))


# One table in four formats


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".CSV"])
def test_every_format_gives_the_same_rows_in_the_same_splits(tmp_path, suffix):
    source = table(save(tmp_path / f"my{suffix}", ROWS))
    assert all_rows(source, "text") == [row["review"] for row in ROWS]
    assert all_rows(source, "target") == [row["label"] for row in ROWS]
    assert source.target_kind == "class" and dict(source.columns) == {"text": "review", "target": "label"}
    plain = table(save(tmp_path / "plain.csv", ROWS))
    for name, rows in plain.splits.items():
        assert source.splits[name].cells == rows.cells


@pytest.mark.parametrize(
    ("name", "first", "last"), [("my.csv", 2, 24), ("my.tsv", 2, 24), ("my.jsonl", 1, 23), ("my.parquet", 1, 23)]
)
def test_a_rows_number_is_the_one_a_spreadsheet_or_an_editor_shows(tmp_path, name, first, last):
    found = read(Path(save(tmp_path / name, ROWS)))
    assert found.origin(0) == f"{name} row {first}" and found.origin(22) == f"{name} row {last}"


def test_blank_lines_and_cells_of_several_lines_count_as_a_spreadsheet_counts_them(tmp_path):
    path = write(tmp_path / "my.csv", 'text,label\n"one\ntwo",a\n\nthree,b\n')
    found = read(Path(path))
    assert found.columns == {"text": ["one\ntwo", "three"], "label": ["a", "b"]}
    assert list(found.lines) == [2, 4]


def test_an_empty_line_of_jsonl_counts_and_a_line_separator_inside_a_text_does_not(tmp_path):
    found = read(Path(write(tmp_path / "my.jsonl", '{"a": "x\u2028y"}\n\n{"a": "z"}\n')))
    assert found.columns == {"a": ["x\u2028y", "z"]} and list(found.lines) == [1, 3]


def test_blank_cells_are_none_in_every_format(tmp_path):
    blank = read(Path(write(tmp_path / "a.csv", "a,b\n,x\n  ,y\nNA,0\n")))
    assert blank.columns == {"a": [None, None, "NA"], "b": ["x", "y", "0"]}
    blank = read(Path(write(tmp_path / "a.jsonl", '{"a": "", "b": 1}\n{"b": NaN}\n{"a": null, "b": 0}\n')))
    assert blank.columns == {"a": [None, None, None], "b": [1, None, 0]}
    blank = read(Path(save(tmp_path / "a.parquet", [{"a": " ", "b": 2.5}, {"a": "x", "b": float("nan")}])))
    assert blank.columns == {"a": [None, "x"], "b": [2.5, None]}


def test_a_cell_of_a_csv_stays_the_text_it_is(tmp_path):
    found = read(Path(write(tmp_path / "my.csv", 'zip,said\n01234," ""hm"", she said "\n')))
    assert found.columns == {"zip": ["01234"], "said": [' "hm", she said ']}


def test_a_byte_order_mark_is_no_part_of_the_first_columns_name(tmp_path):
    assert list(read(Path(write(tmp_path / "my.csv", "text,label\nx,y\n", "utf-8-sig"))).columns) == ["text", "label"]


def test_a_cell_may_be_longer_than_the_csv_modules_own_limit(tmp_path):
    long = "word " * 40_009
    assert read(Path(save(tmp_path / "my.csv", [{"text": long, "label": "a"}]))).columns["text"] == [long]


def test_the_separator_can_be_given(tmp_path):
    path = save(tmp_path / "my.csv", ROWS, sep=";")
    assert all_rows(table(path, sep=";"), "text") == [row["review"] for row in ROWS]


def test_parquet_files_of_the_hub_hold_pictures_as_bytes_or_else_paths(tmp_path):
    rows = [{"image": {"bytes": b"\x89PNG", "path": "a.png"}}, {"image": {"bytes": None, "path": "b.png"}}]
    assert read(Path(save(tmp_path / "my.parquet", rows))).columns == {"image": [b"\x89PNG", "b.png"]}


def test_tables_join_by_column_names_in_whatever_order(tmp_path):
    first = read(Path(write(tmp_path / "a.csv", "x,y\n1,2\n")))
    second = read(Path(write(tmp_path / "b.csv", "y,x\n3,4\n")))
    both = joined([first, second])
    assert both.columns == {"x": ["1", "4"], "y": ["2", "3"]}
    assert [both.origin(i) for i in range(2)] == ["a.csv row 2", "b.csv row 2"]


# What a column means


@pytest.mark.parametrize(
    ("cells", "modality"),
    [
        (REVIEWS, "text"),
        (["one", "two", "three", "four", "five"], "text"),  # one word each, but all different
        (["a.jpg", "b.PNG", "c.webp", None, "e.gif"], "image"),
        (["a.wav", "b.flac", "c.MP3", "d.ogg", None], "audio"),
        ([b"\x89PNG", b"\xff\xd8", b"x", b"y", b"z"], "image"),
        ([b"RIFF....WAVE", b"x", b"y", b"z", b"w"], "audio"),
        ([b"fLaC", b"x", b"y", b"z", b"w"], "audio"),
        ([["two", "words"], ["one"], ["a", "b"], ["c"], ["d"]], "text"),
    ],
)
def test_what_a_column_holds_is_inferred(tmp_path, cells, modality):
    rows = [{"thing": cell, "size": i, "label": "ab"[i % 2]} for i, cell in enumerate(cells)]
    source = table(save(tmp_path / "my.parquet", rows))
    assert dict(source.columns) == {modality: "thing", "target": "label"}
    assert "not used: size (numbers or categories)" in source.notes


def test_text_image_and_audio_are_found_side_by_side(tmp_path):
    rows = [{"sound": f"{i}.wav", "words": REVIEWS[i], "photo": f"{i}.png", "class": "ab"[i % 2]} for i in range(5)]
    source = table(save(tmp_path / "my.csv", rows))
    assert dict(source.columns) == {"text": "words", "image": "photo", "audio": "sound", "target": "class"}
    assert "target: column class, by its name" in source.notes


def test_paths_are_relative_to_the_table_and_bytes_stay_bytes(tmp_path):
    (tmp_path / "sub").mkdir()
    rows = [{"photo": p, "label": "a"} for p in ("x.png", "../y.png", "/elsewhere/z.png")]
    source = table(save(tmp_path / "sub" / "my.csv", rows), image="photo")
    base = tmp_path / "sub"
    assert all_rows(source, "image") == [str(base / "x.png"), str(base / "../y.png"), "/elsewhere/z.png"]
    raw = [{"photo": b"\x89PNG" + bytes([i]), "label": "a"} for i in range(3)]
    assert all_rows(table(save(tmp_path / "my.parquet", raw)), "image") == [row["photo"] for row in raw]


def test_several_text_columns_are_joined_by_line_breaks_and_blank_ones_left_out(tmp_path):
    path = write(tmp_path / "my.csv", "title,body,label\nhead,rest,a\nhead,,b\n,,c\n")
    source = table(path, text=["title", "body"])
    assert all_rows(source, "text") == ["head\nrest", "head", None]
    assert source.columns["text"] == "title + body"


@pytest.mark.parametrize(
    ("values", "kind", "first"),
    [
        (["red", "blue", "red", "blue"], "class", "red"),
        (["1", "0", "1", "0"], "class", "1"),
        ([3, 1, 2, 3], "class", "3"),
        ([True, False, True, False], "class", "True"),
        (["1.5", "-2", "0.1", "7"], "number", 1.5),
        ([1.25, 2.5, 3.75, 5.0], "number", 1.25),
        (["a|b", "b", "a | b", "a"], "labels", ["a", "b"]),
        ([["a"], ["a", "b"], [], ["b"]], "labels", ["a"]),
        ([[1, 2], [2], [1], [2]], "labels", ["1", "2"]),
    ],
)
def test_the_kind_of_target_is_inferred(tmp_path, values, kind, first):
    path = write(tmp_path / "my.jsonl", columns(text=REVIEWS[:4], label=values))
    source = table(path)
    assert source.target_kind == kind
    assert all_rows(source, "target")[0] == first


@pytest.mark.parametrize(
    ("count", "different", "kind"),
    [(20, 20, "text"), (20, 11, "text"), (20, 10, "class"), (19, 19, "class")],
)
def test_sentences_of_which_most_occur_once_are_texts_to_write_and_few_are_classes(tmp_path, count, different, kind):
    rows = [{"text": f"to read {i}", "label": f"to write {i % different}"} for i in range(count)]
    source = table(save(tmp_path / "my.csv", rows), text="text", target="label")
    assert source.target_kind == kind


def test_single_words_are_classes_however_many(tmp_path):
    rows = [{"text": f"to read {i}", "label": f"w{i // 2}"} for i in range(43)]
    assert table(save(tmp_path / "my.csv", rows), text="text", target="label").target_kind == "class"


def test_many_whole_numbers_are_a_number_and_few_are_classes(tmp_path):
    rows = [{"text": f"text number {i}", "few": i % 20, "many": i % 21} for i in range(43)]
    path = save(tmp_path / "my.csv", rows)
    assert table(path, text="text", target="few").target_kind == "class"
    assert table(path, text="text", target="many").target_kind == "number"


def test_a_bar_in_a_few_names_makes_no_labels(tmp_path):
    # 1 of 29 holds a bar: a name like "either|or", not a list.
    rows = [{"text": f"text number {i}", "label": "either|or" if i == 7 else "ab"[i % 2]} for i in range(29)]
    source = table(save(tmp_path / "my.csv", rows))
    assert source.target_kind == "class" and all_rows(source, "target")[7] == "either|or"


def test_several_target_columns_become_labels_of_column_and_value(tmp_path):
    path = write(tmp_path / "my.csv", "text,colour,size\none two,red,big\nthree four,,small\nfive six,blue,\n")
    source = table(path, text="text", target=["colour", "size"])
    assert source.target_kind == "labels"
    assert all_rows(source, "target") == [["colour=red", "size=big"], ["size=small"], ["colour=blue"]]
    assert source.columns["target"] == "colour + size"


def test_a_list_as_long_as_the_words_is_tags(tmp_path):
    words = [["Ann", "sleeps"], ["Bob", "eats", "fish"], ["rain"]]
    tags = [["N", "V"], ["N", "V", "N"], ["N"]]
    source = table(write(tmp_path / "my.jsonl", columns(words=words, tags=tags)), text="words", target="tags")
    assert source.target_kind == "tags"
    assert all_rows(source, "text") == words and all_rows(source, "target") == tags
    tags[2] = ["N", "V"]
    source = table(write(tmp_path / "other.jsonl", columns(words=words, tags=tags)), text="words", target="tags")
    assert source.target_kind == "labels"


def test_the_kind_can_be_given(tmp_path):
    rows = [{"text": f"text number {i}", "stars": i % 5} for i in range(11)]
    source = table(save(tmp_path / "my.csv", rows), target="stars", kind="number")
    assert source.target_kind == "number" and all_rows(source, "target") == [float(i % 5) for i in range(11)]


def test_a_missing_target_stays_missing_whatever_its_kind(tmp_path):
    for kind in ("class", "number", "labels"):
        path = write(tmp_path / "my.csv", "text,label\none two,1\nthree four,\nfive six,2\n")
        assert all_rows(table(path, kind=kind), "target")[1] is None


def test_without_a_target_the_columns_to_choose_from_are_noted(tmp_path):
    source = table(write(tmp_path / "my.csv", "words,colour\none two,red\nthree four,red\n"))
    assert source.target_kind == "none" and "target" not in source.splits["train"].cells
    assert "target: none chosen of words, colour" in source.notes


# Splits


def test_a_column_called_split_is_used_unasked(tmp_path):
    rows = [{**ROWS[i], "split": ("Train", "dev", "train", "TEST")[i % 4]} for i in range(11)]
    source = table(save(tmp_path / "my.csv", rows))
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 6, "validation": 3, "test": 2}
    assert list(source.splits) == ["train", "validation", "test"]
    assert source.splits["test"].origin == ["my.csv row 5", "my.csv row 9"]
    assert "splits: as column split says" in source.notes


def test_a_column_called_split_that_says_something_else_is_not_a_split(tmp_path):
    rows = [{**ROWS[i], "split": ("banana", "train")[i % 2]} for i in range(10)]
    source = table(save(tmp_path / "my.csv", rows))
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 8, "validation": 1, "test": 1}


def test_another_column_can_say_the_split_and_is_no_input(tmp_path):
    rows = [{**ROWS[i], "part": ("training", "val", "testing")[i % 3]} for i in range(11)]
    source = table(save(tmp_path / "my.csv", rows), split="part")
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 4, "validation": 4, "test": 3}
    assert dict(source.columns) == {"text": "review", "target": "label"}


def test_separate_files_are_the_splits_and_missing_validation_is_drawn(tmp_path):
    train, test = save(tmp_path / "a.csv", ROWS[:19]), save(tmp_path / "b.csv", ROWS[19:])
    source = table(train=train, test=test)
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 17, "validation": 2, "test": 4}
    assert source.splits["test"].cells["text"] == [row["review"] for row in ROWS[19:]]
    source = table(train=[train, test], validation=test)
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 23, "validation": 4}


def test_a_folder_may_hold_train_validation_and_test(tmp_path):
    for name, rows in (("train", ROWS[:11]), ("valid", ROWS[11:18]), ("test", ROWS[18:])):
        save(tmp_path / f"{name}.jsonl", rows)
    save(tmp_path / "notes.csv", [{"other": "columns"}])
    source = table(str(tmp_path))
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 11, "validation": 7, "test": 5}
    assert source.splits["validation"].origin[0] == "valid.jsonl row 1"


def test_a_folder_may_hold_a_single_table(tmp_path):
    save(tmp_path / "reviews.parquet", ROWS)
    (tmp_path / "read me.txt").write_text("not a table")
    assert all_rows(table(str(tmp_path)), "target") == [row["label"] for row in ROWS]


def test_a_list_of_tables_is_one_table(tmp_path):
    paths = [save(tmp_path / "a.csv", ROWS[:11]), save(tmp_path / "b.jsonl", ROWS[11:])]
    source = table(paths)
    assert Counter(t for rows in source.splits.values() for t in rows.cells["text"]) == Counter(
        row["review"] for row in ROWS
    )


def test_in_one_part_every_row_is_there_in_order_whatever_a_split_column_says(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,split,label\n" + "".join(f"line {i},{'test' if i % 3 else 'train'},a\n" for i in range(11)))
    source = table(path, fractions=(1.0,))
    assert source.splits["train"].cells["text"] == [f"line {i}" for i in range(11)]
    assert list(source.splits) == ["train"]


def test_shares_are_as_given_and_the_seed_draws_them(tmp_path):
    path = save(tmp_path / "my.csv", ROWS[:20])
    source = table(path, fractions=(0.5, 0.25, 0.25), seed=3)
    assert {name: len(found) for name, found in source.splits.items()} == {"train": 10, "validation": 5, "test": 5}
    assert table(path, fractions=(0.5, 0.25, 0.25), seed=3).splits == source.splits
    assert table(path, fractions=(0.5, 0.25, 0.25), seed=5).splits["test"] != source.splits["test"]
    assert any("drawn by seed 3: train 10, validation 5, test 5" in note for note in source.notes)


def test_held_out_values_are_the_test_split_and_nowhere_else(tmp_path):
    rows = [{**ROWS[i], "speaker": "abcde"[i % 5], "split": "train"} for i in range(23)]
    source = table(save(tmp_path / "my.csv", rows), holdout={"speaker": ["b", "d"]})
    held = [row["review"] for row in rows if row["speaker"] in "bd"]
    assert source.splits["test"].cells["text"] == held
    rest = source.splits["train"].cells["text"] + source.splits["validation"].cells["text"]
    assert sorted(rest) == sorted(row["review"] for row in rows if row["speaker"] not in "bd")
    assert "test: the rows whose speaker is b, d" in source.notes


def test_a_number_can_be_held_out_of_a_csv(tmp_path):
    rows = [{**ROWS[i], "fold": i % 3} for i in range(11)]
    source = table(save(tmp_path / "my.csv", rows), holdout={"fold": 2})
    assert source.splits["test"].origin == ["my.csv row 4", "my.csv row 7", "my.csv row 10"]


def test_on_bad_is_handed_on(tmp_path):
    assert table(save(tmp_path / "my.csv", ROWS), on_bad="skip").on_bad == "skip"


# Wrong inputs, and the sentence for each

GOOD = "text,label\none two,a\nthree four,b\nfive six,a\n"
TWO = "title,body,label\none two,three four,a\nfive six,seven eight,b\n"
WRONG = [
    ("my.csv", "text,label\n", {}, "data.path: the table has a header but no row"),
    ("my.csv", "", {}, "{path}: empty, a table begins with a row of column names"),
    (
        "my.csv",
        "text,label\none,a\ntwo\n",
        {},
        "{path} row 3: 1 cells, the header has 2; fill the row up",
    ),
    (
        "my.csv",
        "text,label\none, two,a\n",
        {},
        "{path} row 2: 3 cells, the header has 2; quote cells that hold the separator",
    ),
    ("my.csv", "text,label,text\na,b,c\n", {}, "{path} row 1: two columns called 'text'; rename one"),
    (
        "my.csv",
        "text;label\na;b\n",
        {},
        "{path} row 1: no ',' between the column names; is it data.sep=';'?",
    ),
    ("my.csv", GOOD, {"sep": "::"}, "data.sep: must be one character, got '::'"),
    (
        "my.csv",
        'text,label\nx,y\n"never closed,a\n',
        {},
        "{path} after row 2: not a CSV that can be read (unexpected end of data)",
    ),
    (
        "my.csv",
        b"text,label\nfine,a\nna\xefve,b\n",
        {},
        "{path} line 3: not UTF-8 (invalid continuation byte); save the file as UTF-8",
    ),
    (
        "my.jsonl",
        '{"text": "x"}\n{"text": }\n',
        {},
        "{path} row 2: not JSON (Expecting value, column 10)",
    ),
    (
        "my.jsonl",
        '{"text": "x"}\n["x", "y"]\n',
        {},
        '{path} row 2: must be an object {{"column": value}}, got ["x", "y"]',
    ),
    ("my.txt", "x", {}, "{path}: not a table this reads (.csv, .tsv, .jsonl, .parquet)"),
    (
        "my.csv",
        GOOD,
        {"target": "lable"},
        "data.target: no column 'lable' in my.csv; did you mean 'label'? columns: text, label",
    ),
    ("my.csv", GOOD, {"text": "qqq"}, "data.text: no column 'qqq' in my.csv; columns: text, label"),
    ("my.csv", GOOD, {"split": "part"}, "data.split: no column 'part' in my.csv; columns: text, label"),
    (
        "my.csv",
        GOOD,
        {"split": "label"},
        "my.csv row 2: column 'label' must be train, validation or test, got 'a'",
    ),
    (
        "my.csv",
        "text,part\none,train\ntwo,\n",
        {"split": "part"},
        "my.csv row 3: column 'part' must be train, validation or test, got nothing",
    ),
    (
        "my.csv",
        GOOD,
        {"text": ["text", "label"], "target": "label"},
        "data.target: column 'label' is an input too; a model would only copy it",
    ),
    (
        "my.csv",
        "text,label\none two,1\nthree four,many\n",
        {"kind": "number"},
        "my.csv row 3: column 'label' must be a number, got 'many'",
    ),
    (
        "my.csv",
        "text,label\none two,1\nthree four,inf\n",
        {"kind": "number"},
        "my.csv row 3: column 'label' must be a number, got 'inf'",
    ),
    (
        "my.jsonl",
        columns(text=["one two", "three"], label=[["a"], 3]),
        {"kind": "labels"},
        "my.jsonl row 2: column 'label' must be a list, got 3",
    ),
    (
        "my.jsonl",
        columns(text=[["one", "two"], ["three"]], label=[["N", "N"], ["N", "V", "V"]]),
        {"kind": "tags"},
        "my.jsonl row 2: 3 tags for 1 words; give one a word",
    ),
    (
        "my.jsonl",
        columns(text=["one two", "three"], label=[["N", "N"], ["N"]]),
        {"kind": "tags"},
        "my.jsonl row 1: column 'text' must be a list of words for tags, got 'one two'",
    ),
    (
        "my.jsonl",
        columns(text=[["one", 2]], label=["a"]),
        {"text": "text"},
        "my.jsonl row 1: column 'text' must be a list of words, got 2 in it",
    ),
    (
        "my.csv",
        TWO,
        {},
        "data.text: columns title, body could all be text; choose one, data.text=title",
    ),
    (
        "my.csv",
        "size,label\n1,a\n2,b\n",
        {},
        "data: no text, image or audio among the columns size, label; name one, data.text=...",
    ),
    (
        "my.csv",
        TWO,
        {"text": "title", "target": ["label", "body"], "kind": "class"},
        "data.kind: several target columns make labels, got class; choose one column for it",
    ),
    ("my.csv", TWO, {"image": ["title", "body"]}, "data.image: one column, got title, body"),
    ("my.csv", GOOD, {"holdout": {"label": "c"}}, "data.holdout.label: no row has 'c'; it holds a, b"),
    (
        "my.csv",
        GOOD,
        {"holdout": {"label": ["a", "b"]}},
        "data.holdout.label: holds out every row, so that none is left to train on",
    ),
    ("my.csv", GOOD, {"holdout": {"text": "x", "label": "a"}}, "data.holdout: one column, got text, label"),
    (
        "my.csv",
        GOOD,
        {"holdout": {"labels": "a"}},
        "data.holdout: no column 'labels' in my.csv; did you mean 'label'? columns: text, label",
    ),
    (
        "my.csv",
        GOOD,
        {"fractions": (0.5, 0.1)},
        "data.fractions: must be up to three shares that add up to 1, got [0.5, 0.1]",
    ),
    ("my.csv", GOOD, {"train": "x.csv"}, "data.path: give it or data.train, not both"),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), WRONG)
def test_what_does_not_fit_is_said_in_one_sentence(tmp_path, name, content, options, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        table(str(path), **options)
    assert str(caught.value) == message.format(path=path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError) as caught:
        table(str(tmp_path / "none.csv"))
    assert str(caught.value) == f"{tmp_path / 'none.csv'}: no such file"


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = Path(save(tmp_path / "my.parquet", ROWS))
    path.write_bytes(path.read_bytes()[:-11])
    with pytest.raises(UserError, match=r"my\.parquet: not a Parquet file that can be read \(.+\)$"):
        table(str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "data.path: needs a value, data.path=my.csv"),
        ({"path": []}, "data.path: needs a value, data.path=my.csv"),
        ({"test": "x.csv"}, "data.train: needs a value where data.test is given"),
    ],
)
def test_a_path_that_is_not_given_is_asked_for(options, message):
    with pytest.raises(UserError) as caught:
        table(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("names", "held"),
    [((), "no table"), (("a.csv", "b.csv"), "a.csv, b.csv"), (("test.csv", "x.csv"), "test.csv, x.csv")],
)
def test_a_folder_without_a_training_table_lists_what_it_holds(tmp_path, names, held):
    for name in names:
        write(tmp_path / name, GOOD)
    with pytest.raises(UserError) as caught:
        table(str(tmp_path))
    told = "name the table, or call them train, validation and test"
    assert str(caught.value) == f"{tmp_path}: holds {held}; {told}"


def test_a_split_column_beside_separate_files_is_one_too_many(tmp_path):
    path = write(tmp_path / "a.csv", GOOD)
    with pytest.raises(UserError) as caught:
        table(train=path, split="label")
    assert str(caught.value) == "data.split: the tables are train, validation and test already; leave it out"


@pytest.mark.parametrize(("header", "verb"), [("text", "lacks"), ("text,label,mood", "alone has")])
def test_tables_that_belong_together_need_the_same_columns(tmp_path, header, verb):
    first = write(tmp_path / "a.csv", GOOD)
    second = write(tmp_path / "b.csv", header + "\n" + ",".join("x" * len(header.split(","))) + "\n")
    odd = "label" if verb == "lacks" else "mood"
    with pytest.raises(UserError) as caught:
        table(train=first, test=second)
    place = f"{second}: {verb} column {odd!r}"
    assert str(caught.value) == f"{place}; tables that belong together need the same columns"


def test_the_inferred_columns_are_those_of_all_splits_together(tmp_path):
    # Each split alone would be a table of its own: three of its cells are blank.
    tables = {
        "train": read(Path(write(tmp_path / "train.csv", GOOD))),
        "test": read(Path(write(tmp_path / "test.csv", "text,label\n,b\n,a\n,b\n"))),
    }
    options = {"target": None, "kind": None, "fractions": (1.0,), "on_bad": "missing", "seed": 0}
    source = from_tables(tables, {"text": None}, **options)
    assert source.splits["test"].cells == {"text": [None, None, None], "target": ["b", "a", "b"]}
