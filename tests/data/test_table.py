"""Data sets from the user's own tables: inputs, targets, splits, and what is refused."""

import json
from collections import Counter
from pathlib import Path

import pytest
from helpers.data import by_modality, cells_in_order, column_names, sizes, task_of, write_table

from dxn.core.errors import UserError
from dxn.data import InputSpec, rows_of_table
from dxn.data import table as read_source
from dxn.data.sources.table import TableOptions, from_tables
from dxn.data.tables.read import read_table
from dxn.tokenize import CategoryAdapter

REVIEWS = ["a fine film of two hours", "dull to the end", "she sings", "never again", "all right"]
ROWS = [
    {"review": REVIEWS[i % 5] + f" ({i})", "label": ("good", "bad", "so so")[i % 3]}
    for i in range(23)
]


@pytest.fixture(scope="module")
def readers():
    return by_modality()


@pytest.fixture
def table(readers):
    """`dxn.data.table` with the readers that its caller sets."""
    return lambda *paths, **options: read_source(*paths, readers=readers, **options)


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def json_lines(**columns):
    rows = zip(*columns.values(), strict=True)
    return "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows)


# Inputs and targets


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_rows_in_the_same_splits(tmp_path, table, suffix):
    source = table(write_table(tmp_path / f"my{suffix}", ROWS))
    assert cells_in_order(source, "review") == [row["review"] for row in ROWS]
    assert cells_in_order(source, "target") == [row["label"] for row in ROWS]
    assert source.inputs == {"review": InputSpec("review", "text")}
    assert source.target == "label"
    assert source.task is None
    plain = table(write_table(tmp_path / "plain.csv", ROWS))
    for name, rows in plain.splits.items():
        assert source.splits[name].cells == rows.cells


def test_a_table_of_photos_texts_and_sounds_needs_no_names(tmp_path, table):
    rows = []
    for i in range(8):
        photos = {name: f"{name}{i}.jpg" for name in ("kitchen", "bath", "front", "garden")}
        texts = {"title": f"house number {i}", "story": f"it has {i} rooms and a roof"}
        rows.append({**photos, **texts, "tour": f"{i}.wav", "area": 50 + i, "label": "ab"[i % 2]})
    source = table(write_table(tmp_path / "my.csv", rows))
    assert list(source.inputs) == ["title", "story", "kitchen", "bath", "front", "garden", "tour"]
    assert cells_in_order(source, "garden")[7] == str(tmp_path / "garden7.jpg")
    assert "not used: area (numbers)" in source.notes


def test_named_columns_become_inputs_of_their_own(tmp_path, table):
    path = write(tmp_path / "my.csv", "title,body,label\nhead,rest,a\nhead,,b\n,,c\n")
    source = table(path, text=["title", "body"], fractions=(1.0,))
    assert column_names(source) == {"title": "title", "body": "body"}
    assert source.splits["train"].cells["title"] == ["head", "head", None]
    assert source.splits["train"].cells["body"] == ["rest", None, None]


def test_several_target_columns_are_joined_in_the_name_of_the_target(tmp_path, table):
    path = write(tmp_path / "my.csv", "text,colour,size\none two,red,big\nthree four,,small\n")
    source = table(path, text="text", target=["colour", "size"], fractions=(1.0,))
    assert source.target == "colour + size"
    assert source.splits["train"].cells["target"] == [
        {"colour": "red", "size": "big"},
        {"size": "small"},
    ]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["red", "blue", "red", "blue"], "classify"),
        (["1", "0", "1", "0"], "classify"),
        ([3, 1, 2, 3], "classify"),
        ([True, False, True, False], "classify"),
        (["1.5", "-2", "0.1", "7"], "regress"),
        ([1.25, 2.5, 3.75, 5.0], "regress"),
        (["a|b", "b", "a | b", "a"], "multilabel"),
        ([["a"], ["a", "b"], [], ["b"]], "multilabel"),
        ([[1, 2], [2], [1], [2]], "multilabel"),
        (["red", None, "blue", "red"], "classify"),
    ],
)
def test_the_raw_targets_of_a_source_show_its_task(tmp_path, table, values, task):
    source = table(write(tmp_path / "my.jsonl", json_lines(text=REVIEWS[:4], label=values)))
    assert cells_in_order(source, "target") == values
    assert task_of(source) == task


@pytest.mark.parametrize(
    ("count", "different", "task"),
    [
        (20, 20, "generate"),
        (20, 11, "generate"),
        (20, 10, "classify"),
        (19, 19, "classify"),
    ],
)
def test_sentences_are_texts_to_write_if_most_of_them_occur_once(
    tmp_path, table, count, different, task
):
    rows = [{"text": f"to read {i}", "label": f"to write {i % different}"} for i in range(count)]
    source = table(write_table(tmp_path / "my.csv", rows), text="text", target="label")
    assert task_of(source) == task


def test_single_words_are_classes_however_many_there_are(tmp_path, table):
    rows = [{"text": f"to read {i}", "label": f"w{i // 2}"} for i in range(43)]
    source = table(write_table(tmp_path / "my.csv", rows), text="text", target="label")
    assert task_of(source) == "classify"


def test_lists_as_long_as_the_words_are_tags(tmp_path, table):
    words = [["Ann", "sleeps"], ["Bob", "eats", "fish"], ["rain"], ["Eve", "sings"]]
    tags = [["N", "V"], ["N", "V", "N"], ["N"], None]
    path = write(tmp_path / "my.jsonl", json_lines(words=words, tags=tags))
    source = table(path, text="words", target="tags", fractions=(1.0,))
    assert source.targets()[:2] == (tags[:3], words[:3])
    assert task_of(source) == "tag"
    tags[2] = ["N", "V"]
    path = write(tmp_path / "other.jsonl", json_lines(words=words, tags=tags))
    source = table(path, text="words", target="tags")
    assert task_of(source) == "multilabel"


# Splits


def test_a_column_called_split_is_used_without_being_named(tmp_path, table):
    rows = [{**ROWS[i], "split": ("Train", "dev", "train", "TEST")[i % 4]} for i in range(11)]
    source = table(write_table(tmp_path / "my.csv", rows))
    assert sizes(source.splits) == {"train": 6, "validation": 3, "test": 2}
    assert list(source.splits) == ["train", "validation", "test"]
    assert source.splits["test"].origin == ["my.csv row 5", "my.csv row 9"]
    assert "splits: from column split" in source.notes
    assert list(source.inputs) == ["review"]


def test_a_column_called_split_with_other_values_is_not_a_split(tmp_path, table):
    rows = [{**ROWS[i], "split": ("banana", "train")[i % 2]} for i in range(10)]
    source = table(write_table(tmp_path / "my.csv", rows))
    assert sizes(source.splits) == {"train": 8, "validation": 1, "test": 1}
    assert any("names no split in 5 rows, such as my.csv row 2" in note for note in source.notes)


def test_a_split_column_with_an_empty_cell_is_not_silently_ignored(tmp_path, table):
    rows = [{**row, "split": ["train", "test"][i % 2]} for i, row in enumerate(ROWS)]
    rows[2]["split"] = ""
    source = table(write_table(tmp_path / "my.csv", rows), fractions=(0.5, 0.5, 0))
    note = "splits: not from column split, which names no split in 1 row, such as my.csv row 4"
    assert note in source.notes


def test_another_column_can_hold_the_splits_and_is_no_input(tmp_path, table):
    rows = [{**ROWS[i], "part": ("training", "val", "testing")[i % 3]} for i in range(11)]
    source = table(write_table(tmp_path / "my.csv", rows), split="part")
    assert sizes(source.splits) == {"train": 4, "validation": 4, "test": 3}
    assert column_names(source) == {"review": "review"}


def test_separate_files_are_the_splits_and_a_missing_validation_split_is_drawn(tmp_path, table):
    train = write_table(tmp_path / "a.csv", ROWS[:19])
    test = write_table(tmp_path / "b.csv", ROWS[19:])
    source = table(train=train, test=test)
    assert sizes(source.splits) == {"train": 17, "validation": 2, "test": 4}
    assert source.splits["test"].cells["review"] == [row["review"] for row in ROWS[19:]]
    source = table(train=[train, test], validation=test)
    assert sizes(source.splits) == {"train": 23, "validation": 4}


def test_a_folder_may_hold_train_validation_and_test(tmp_path, table):
    for name, rows in (("train", ROWS[:11]), ("valid", ROWS[11:18]), ("test", ROWS[18:])):
        write_table(tmp_path / f"{name}.jsonl", rows)
    write_table(tmp_path / "notes.csv", [{"other": "columns"}])
    source = table(str(tmp_path))
    assert sizes(source.splits) == {"train": 11, "validation": 7, "test": 5}
    assert source.splits["validation"].origin[0] == "valid.jsonl row 1"


def test_a_folder_may_hold_a_single_table(tmp_path, table):
    write_table(tmp_path / "reviews.parquet", ROWS)
    (tmp_path / "read me.txt").write_text("not a table")
    source = table(str(tmp_path))
    assert cells_in_order(source, "target") == [row["label"] for row in ROWS]


def test_a_list_of_tables_is_one_table(tmp_path, table):
    paths = [
        write_table(tmp_path / "a.csv", ROWS[:11]),
        write_table(tmp_path / "b.jsonl", ROWS[11:]),
    ]
    texts = table(paths).column("review")
    assert Counter(texts) == Counter(row["review"] for row in ROWS)


def test_a_single_fraction_keeps_all_rows_in_order_despite_a_split_column(tmp_path, table):
    rows = [
        {"text": f"line {i}", "split": "test" if i % 3 else "train", "label": "a"}
        for i in range(11)
    ]
    source = table(write_table(tmp_path / "rows.csv", rows), fractions=(1.0,))
    assert source.splits["train"].cells["text"] == [f"line {i}" for i in range(11)]
    assert list(source.splits) == ["train"]


def test_the_splits_depend_on_the_fractions_and_the_seed(tmp_path, table):
    path = write_table(tmp_path / "my.csv", ROWS[:20])
    fractions = (0.5, 0.25, 0.25)
    source = table(path, fractions=fractions, seed=3)
    assert sizes(source.splits) == {"train": 10, "validation": 5, "test": 5}
    assert table(path, fractions=fractions, seed=3).splits == source.splits
    assert table(path, fractions=fractions, seed=5).splits["test"] != source.splits["test"]
    assert "splits: chosen at random with seed 3: train 10, validation 5, test 5" in source.notes


def test_held_out_values_are_in_the_test_split_only(tmp_path, table):
    rows = [{**ROWS[i], "speaker": "abcde"[i % 5], "split": "train"} for i in range(23)]
    source = table(write_table(tmp_path / "my.csv", rows), holdout={"speaker": ["b", "d"]})
    held_out = [row["review"] for row in rows if row["speaker"] in "bd"]
    assert source.splits["test"].cells["review"] == held_out
    rest = [*source.splits["train"].cells["review"], *source.splits["validation"].cells["review"]]
    assert sorted(rest) == sorted(row["review"] for row in rows if row["speaker"] not in "bd")
    assert "test: the rows whose speaker is b, d" in source.notes


def test_the_column_of_held_out_values_is_an_input_only_if_it_is_named(tmp_path, table):
    rows = [{**ROWS[i], "story": REVIEWS[i % 5]} for i in range(23)]
    path = write_table(tmp_path / "my.csv", rows)
    held_out = {"story": "she sings"}
    assert list(table(path).inputs) == ["review", "story"]
    assert list(table(path, holdout=held_out).inputs) == ["review"]
    named = table(path, holdout=held_out, text=["review", "story"])
    assert list(named.inputs) == ["review", "story"]


def test_a_number_can_be_held_out_of_a_csv(tmp_path, table):
    rows = [{**ROWS[i], "fold": i % 3} for i in range(11)]
    source = table(write_table(tmp_path / "my.csv", rows), holdout={"fold": 2})
    assert source.splits["test"].origin == ["my.csv row 4", "my.csv row 7", "my.csv row 10"]


def test_on_bad_is_part_of_the_source(tmp_path, table):
    assert table(write_table(tmp_path / "my.csv", ROWS), on_bad="skip").on_bad == "skip"


def test_columns_are_inferred_from_all_splits_together(tmp_path, readers):
    # The test table on its own has no text: its three cells are blank.
    tables = {
        "train": read_table(Path(write(tmp_path / "train.csv", GOOD))),
        "test": read_table(Path(write(tmp_path / "test.csv", "text,label\n,b\n,a\n,b\n"))),
    }
    source = from_tables(
        tables, readers, TableOptions(columns={}, fractions=(1.0,), on_bad="missing")
    )
    assert source.splits["test"].cells == {"text": [None] * 3, "target": ["b", "a", "b"]}


# Rows to predict


SPECS = {"title": InputSpec("head", "text"), "image": InputSpec("photo", "image")}


def test_rows_to_predict_have_the_inputs_of_the_training_data(tmp_path, readers):
    rows = [{"photo": f"{i}.png", "note": f"other text {i}", "head": "Blue"} for i in range(3)]
    path = write_table(tmp_path / "new.csv", rows)
    found = rows_of_table(path, SPECS, readers, target="colour")
    assert found.cells == {
        "title": ["Blue"] * 3,
        "image": [str(tmp_path / f"{i}.png") for i in range(3)],
    }
    assert found.origin == ["new.csv row 2", "new.csv row 3", "new.csv row 4"]


@pytest.mark.parametrize(
    ("target", "cells"),
    [("colour", ["red"]), ("colour + size", [{"colour": "red", "size": "big"}])],
)
def test_rows_to_predict_keep_a_target_that_they_have(tmp_path, readers, target, cells):
    row = {"photo": "a.png", "head": "Blue", "colour": "red", "size": "big"}
    path = write_table(tmp_path / "new.csv", [row])
    assert rows_of_table(path, SPECS, readers, target=target).cells["target"] == cells


def test_rows_to_predict_without_the_column_of_an_input_are_refused(tmp_path, readers):
    path = write_table(tmp_path / "new.csv", [{"photo": "a.png", "heads": "Blue"}])
    with pytest.raises(UserError) as caught:
        rows_of_table(path, SPECS, readers, columns={})
    assert str(caught.value) == (
        "new.csv: no column 'head', which is the input 'title' of the model; its columns are "
        "photo, heads; did you mean 'heads'? (columns.head=heads reads the input from another "
        "column)"
    )


@pytest.mark.parametrize("key", ["title", "head"])
def test_a_column_of_the_training_can_be_mapped_to_another_column(tmp_path, readers, key):
    row = {"photo": "a.png", "name": "Blue", "shade": "red", "head2": "x"}
    path = write_table(tmp_path / "new.csv", [row])
    columns = {key: "name", "colour": "shade"}
    notes = []
    rows = rows_of_table(
        path, SPECS, readers, target="colour", columns=columns, notes=notes, keep=["shade"]
    )
    assert rows.cells["title"] == ["Blue"]
    assert rows.cells["target"] == ["red"]
    assert rows.ids == {"head2": ["x"], "shade": ["red"]}
    assert notes == []


def test_mapped_targets_keep_the_labels_of_the_training(tmp_path, readers):
    row = {"photo": "a.png", "head": "Blue", "shade": "red", "size": "big"}
    path = write_table(tmp_path / "new.csv", [row])
    rows = rows_of_table(path, SPECS, readers, target="colour + size", columns={"colour": "shade"})
    assert rows.cells["target"] == [{"colour": "red", "size": "big"}]


def test_surplus_columns_are_noted_and_ids_are_kept(tmp_path, readers):
    rows = [
        {"photo": f"{i}.png", "head": "Blue", "sku": f"S{i}", "nr": i, "weight": f"{i}.5", "x": "y"}
        for i in range(3)
    ]
    notes = []
    found = rows_of_table(write_table(tmp_path / "n.csv", rows), SPECS, readers, notes=notes)
    assert found.ids == {"sku": ["S0", "S1", "S2"], "nr": ["0", "1", "2"]}
    assert notes == ["not used: weight, x (not inputs of the model)"]
    assert found.take([2]).ids == {"sku": ["S2"], "nr": ["2"]}
    assert found.groups is None


def test_a_new_table_has_the_groups_of_the_training(tmp_path, readers):
    rows = [{"photo": f"{i}.png", "head": "Blue", "shop": f"S{i % 2}"} for i in range(3)]
    path, notes = write_table(tmp_path / "n.csv", rows), []
    found = rows_of_table(path, SPECS, readers, group="shop", notes=notes)
    assert list(found.groups) == ["S0", "S1", "S0"] and notes == []
    assert rows_of_table(path, SPECS, readers, group="city", notes=notes).groups is None
    assert "no column 'city'" in notes[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"columns": {"titel": "head"}},
            "columns.titel: must be an input or a column of the training, which are title, image, "
            "head, photo; did you mean columns.title?",
        ),
        (
            {"columns": {"title": "nam"}},
            "columns.title: no column 'nam' in new.csv; its columns are photo, head",
        ),
        ({"keep": ["id"]}, "keep: no column 'id' in new.csv; its columns are photo, head"),
        ({"sep": "::"}, "sep: must be one character, got '::'"),
    ],
)
def test_options_for_rows_to_predict_are_explained(tmp_path, readers, options, message):
    path = write_table(tmp_path / "new.csv", [{"photo": "a.png", "head": "Blue"}])
    with pytest.raises(UserError) as caught:
        rows_of_table(path, SPECS, readers, **options)
    assert str(caught.value) == message


def test_a_table_to_predict_without_rows_is_named(tmp_path, readers):
    path = write(tmp_path / "new.csv", "photo,head\n")
    with pytest.raises(UserError, match=r"new\.csv: the table has no rows"):
        rows_of_table(path, SPECS, readers)


# Errors

GOOD = "text,label\none two,a\nthree four,b\nfive six,a\n"
WRONG = [
    (
        GOOD,
        {"target": "lable"},
        "data.target: no column 'lable' in my.csv; its columns are text, label; "
        "did you mean 'label'?",
    ),
    (GOOD, {"text": "qqq"}, "data.text: no column 'qqq' in my.csv; its columns are text, label"),
    (
        GOOD,
        {"title": "text"},
        "data.title: must be an option of this data source or the modality of an adapter in use; "
        "the modalities are text, image, audio",
    ),
    (
        GOOD,
        {"split": "part"},
        "data.split: no column 'part' in my.csv; its columns are text, label",
    ),
    (
        GOOD,
        {"split": "label"},
        "my.csv row 2: column 'label' must be train, validation or test, got 'a'",
    ),
    (
        "text,part\none,train\ntwo,\n",
        {"split": "part"},
        "my.csv row 3: column 'part' must be train, validation or test, got an empty cell",
    ),
    (
        GOOD,
        {"holdout": {"label": "c"}},
        "data.holdout.label: no row has the value 'c'; the column contains a, b",
    ),
    (
        GOOD,
        {"holdout": {"label": ["a", "b"]}},
        "data.holdout.label: at least one row must be left for training, got all values of the "
        "column; remove a value",
    ),
    (
        GOOD,
        {"holdout": {"text": "x", "label": "a"}},
        "data.holdout: must be a single column, got text, label",
    ),
    (
        GOOD,
        {"holdout": {"labels": "a"}},
        "data.holdout: no column 'labels' in my.csv; its columns are text, label; "
        "did you mean 'label'?",
    ),
    (
        GOOD,
        {"fractions": (0.5, 0.1)},
        "data.fractions: must be one to three numbers of at least 0 that add up to 1, "
        "got [0.5, 0.1]",
    ),
    (
        GOOD,
        {"train": "x.csv"},
        "data.path: cannot be combined with data.train; remove one of them",
    ),
]


@pytest.mark.parametrize(("content", "options", "message"), WRONG)
def test_options_that_do_not_fit_the_table_are_explained(
    tmp_path, table, content, options, message
):
    path = write(tmp_path / "my.csv", content)
    with pytest.raises(UserError) as caught:
        table(path, **options)
    assert str(caught.value) == message


def test_an_empty_table_is_named(tmp_path, table):
    path = write(tmp_path / "my.csv", "text,label\n")
    with pytest.raises(UserError) as caught:
        table(path)
    assert str(caught.value) == f"{path}: the table has no rows; choose another one"


def test_addresses_of_the_internet_are_not_files(tmp_path, table):
    rows = [{"photo": f"https://example.com/{i}.jpg", "label": "ab"[i % 2]} for i in range(4)]
    with pytest.raises(UserError) as caught:
        table(write_table(tmp_path / "my.csv", rows))
    assert str(caught.value) == (
        "my.csv row 2: column 'photo' contains URLs such as https://example.com/0.jpg, but only "
        "local files are read; download the files and write their paths into the column"
    )


@pytest.mark.parametrize("column", ["price", "story"])
def test_several_targets_must_be_categories(tmp_path, table, column):
    rows = [
        {"text": f"text {i}", "colour": "ab"[i % 2], "price": 100 + i, "story": f"once {i}"}
        for i in range(60)
    ]
    with pytest.raises(UserError) as caught:
        table(write_table(tmp_path / "my.csv", rows), text="text", target=["colour", column])
    message = str(caught.value)
    assert f"data.target: column '{column}' contains" in message
    assert f"data.target={column}" in message


# Splits


def test_without_fractions_rows_stay_undivided(tmp_path, table):
    source = table(write_table(tmp_path / "my.csv", ROWS), fractions=None)
    assert sizes(source.splits) == {"all": 23}
    divided = [{**row, "split": ("train", "test")[i % 2]} for i, row in enumerate(ROWS)]
    source = table(write_table(tmp_path / "my.csv", divided), fractions=None)
    assert sizes(source.splits) == {"train": 12, "test": 11}


@pytest.mark.parametrize("name", ["Split", "SPLIT", "fold", " subset"])
def test_a_split_column_is_found_whatever_its_case(tmp_path, table, name):
    names = ["Train", "Dev ", "TEST"]
    rows = [{**row, name: names[i % 3]} for i, row in enumerate(ROWS)]
    source = table(write_table(tmp_path / "my.csv", rows))
    assert sizes(source.splits) == {"train": 8, "validation": 8, "test": 7}
    assert list(source.inputs) == ["review"]
    assert f"splits: from column {name.strip()}" in source.notes


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({}, " and names another split in 17 rows; the splits are those of column split"),
        ({"fractions": [1]}, "; data.split=part divides the rows by it"),
    ],
)
def test_a_second_column_with_names_of_splits_is_no_input(tmp_path, table, options, about):
    rows = [{**row, "split": ("train", "dev")[i % 2]} for i, row in enumerate(ROWS)]
    rows = [{**row, "part": ("train", "test")[i % 4 > 0]} for i, row in enumerate(rows)]
    source = table(write_table(tmp_path / "my.csv", rows), **options)
    assert list(source.inputs) == ["review"]
    assert f"not used: part, which contains only names of splits{about}" in source.notes
    chosen = table(write_table(tmp_path / "my.csv", rows), text=["review", "part"], **options)
    assert list(chosen.inputs) == ["review", "part"]


def test_a_fold_with_other_values_is_not_a_split(tmp_path, table):
    rows = [{**row, "fold": i % 3} for i, row in enumerate(ROWS)]
    assert list(table(write_table(tmp_path / "my.csv", rows)).splits) == [
        *("train", "validation", "test")
    ]


def test_rows_of_a_group_are_in_the_same_split(tmp_path, table):
    rows = [{**row, "speaker": f"s{i % 7}"} for i, row in enumerate(ROWS)]
    source = table(write_table(tmp_path / "my.csv", rows), group="speaker")
    speakers = {name: set(part.groups) for name, part in source.splits.items()}
    assert sum(map(len, speakers.values())) == 7
    assert all(speakers.values())
    note = next(note for note in source.notes if note.startswith("splits"))
    assert "rows of a group are in the same split" in note
    rows[3]["speaker"] = rows[4]["speaker"] = ""
    source = table(write_table(tmp_path / "my.csv", rows), group="speaker")
    assert any(note.startswith("data.group: 2 rows without a value of") for note in source.notes)


def test_too_few_groups_are_refused(tmp_path, table):
    rows = [{**row, "speaker": "ab"[i % 2]} for i, row in enumerate(ROWS)]
    with pytest.raises(UserError) as caught:
        table(write_table(tmp_path / "my.csv", rows), group="speaker")
    assert str(caught.value) == (
        "data.group: at least 3 groups are needed for 3 splits, got 2 (rows with equal inputs "
        "count as one group); choose another column, or set data.fractions to fewer splits, such "
        "as [0.8,0.2]"
    )


def test_columns_that_could_be_the_target_are_listed_best_first(tmp_path, table):
    rows = [{"text": f"a text {i}", "stars": i % 5, "when": f"2026-01-{i:02}"} for i in range(9)]
    assert table(write_table(tmp_path / "my.csv", rows)).candidates == ["stars", "when", "text"]


def test_a_folder_may_hold_a_description_beside_its_tables(tmp_path, table):
    for name in ("train.csv.gz", "test.csv"):
        write_table(tmp_path / name, ROWS)
    write(tmp_path / "train.meta.json", '{"checksum": 1}')
    assert list(table(str(tmp_path)).splits) == ["train", "validation", "test"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "data.path: must be set, for example data.path=my.csv"),
        ({"path": []}, "data.path: must be set, for example data.path=my.csv"),
        ({"test": "x.csv"}, "data.train: must be set, because data.test is set"),
    ],
)
def test_a_path_is_required(table, options, message):
    with pytest.raises(UserError) as caught:
        table(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ((), "no table"),
        (("a.csv", "b.csv"), "a.csv, b.csv"),
        (("test.csv", "x.csv"), "test.csv, x.csv"),
    ],
)
def test_a_folder_without_a_training_table_lists_its_tables(tmp_path, table, names, listed):
    for name in names:
        write(tmp_path / name, GOOD)
    with pytest.raises(UserError) as caught:
        table(str(tmp_path))
    rule = "the folder must contain one table, or tables called train, validation and test"
    hint = (
        "set data.path to one table (.csv, .tsv, .jsonl, .json, .conll, .iob, .bio, "
        ".xlsx, .parquet), or rename "
    )
    hint += "the tables"
    assert str(caught.value) == f"{tmp_path}: {rule}, got {listed}; {hint}"


def test_a_run_folder_is_no_data(tmp_path, table):
    (tmp_path / ".hydra").mkdir()
    write(tmp_path / ".hydra" / "config.yaml", "seed: 0\n")
    for name in ("metrics.jsonl", "predictions.csv"):
        write(tmp_path / name, GOOD)
        with pytest.raises(UserError, match="is the folder of a run, which does not contain its"):
            table(str(tmp_path))


@pytest.mark.parametrize("has_files", [False, True])
def test_fractions_that_have_no_effect_are_refused(tmp_path, table, has_files):
    path = tmp_path / "a.csv"
    path.write_text("x,split,label\n" + "a b,train,a\nb c,train,b\nc d,test,a\nd e,test,b\n" * 3)
    data = {"train": str(path), "test": str(path)} if has_files else {"path": str(path)}
    reason = "the data has tables of the splits" if has_files else "column split divides the rows"
    with pytest.raises(UserError, match=rf"^data.fractions: has no effect, because {reason}, got"):
        table(**data, target="label", fractions=(0.5, 0.3, 0.2))
    table(**data, target="label")


def test_a_split_column_contradicts_separate_files(tmp_path, table):
    path = write(tmp_path / "a.csv", GOOD)
    with pytest.raises(UserError) as caught:
        table(train=path, split="label")
    assert str(caught.value) == (
        "data.split: cannot be combined with data.train, data.validation and data.test, got label; "
        "remove data.split"
    )


def test_held_out_values_contradict_other_splits(tmp_path, table):
    rows = [
        {**row, "fold": str(i % 3), "part": ["train", "test"][i % 2]} for i, row in enumerate(ROWS)
    ]
    train = write_table(tmp_path / "train.csv", rows)
    test = write_table(tmp_path / "test.csv", rows)
    for options, other in (
        ({"train": train, "test": test}, "tables of the splits, such as data.test"),
        ({"path": train, "split": "part"}, "data.split"),
    ):
        with pytest.raises(UserError) as caught:
            table(holdout={"fold": 2}, **options)
        assert str(caught.value) == (
            f"data.holdout: cannot be combined with {other}; remove one of them"
        )


def test_a_column_of_speakers_is_an_input_only_if_the_test_split_has_known_ones(tmp_path, readers):
    people = ["ann", "bob", "cleo", "dan"]
    rows = [
        {"words": f"{REVIEWS[i % 5]} {i}", "mood": "ab"[i % 2], "speaker": people[i // 10 % 4]}
        for i in range(80)
    ]
    cells = {**readers, "category": CategoryAdapter.reader()}
    for is_test, expected in ((lambda row: row["speaker"] == "dan", False), (is_odd, True)):
        for row in rows:
            row["split"] = "test" if is_test(row) else "train"
        path = write_table(tmp_path / "my.csv", rows)
        source = read_source(path, readers=cells, target="mood")
        assert ("speaker" in source.inputs) == expected


def is_odd(row):
    return row["words"].endswith("1")


def test_a_usual_target_can_be_written_in_upper_case(tmp_path, readers):
    rows = [{"text": f"some words {i}", "Label": "ab"[i % 2]} for i in range(12)]
    train = write_table(tmp_path / "train.csv", rows)
    test = write_table(tmp_path / "test.csv", [{"text": row["text"]} for row in rows[:4]])
    source = read_source(train=train, test=test, readers=readers)
    assert source.target == "Label"
    assert list(source.splits["test"].cells["target"]) == [None] * 4


def test_two_tables_of_a_split_are_refused_and_other_tables_are_noted(tmp_path, table):
    for name in ("train.csv", "test.csv", "extra.csv"):
        write_table(tmp_path / name, ROWS)
    assert "not used: tables of no split: extra.csv" in table(str(tmp_path)).notes
    write_table(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match=r"train\.csv and train\.jsonl are tables of the train"):
        table(str(tmp_path))


@pytest.mark.parametrize(
    "columns",
    [
        {"sentence_id": lambda i: i // 3, "word": lambda i: f"w{i}", "tag": lambda i: "O"},
        {"file": lambda i: f"{i // 3}.png", "label": lambda i: "a", "start": lambda i: i}
        | {"stop": lambda i: i + 1},
    ],
)
def test_a_sentence_or_a_file_in_two_splits_is_refused_until_the_column_is_excluded(
    tmp_path, table, columns
):
    rows = [{name: value(i) for name, value in columns.items()} for i in range(24)]
    rows = [{**row, "split": ("train", "test")[i > 18]} for i, row in enumerate(rows)]
    path = write_table(tmp_path / "my.csv", rows)
    options = {"target": "tag"} if "tag" in columns else {"objects": "file"}
    with pytest.raises(UserError, match="row 21: column 'split' must have one value per"):
        table(path, **options)
    assert any("split (" in n for n in table(path, exclude="split", **options).notes)


def test_a_column_of_splits_can_be_a_part_of_an_object(tmp_path, table):
    rows = [{**row, "json.split": ("train", "test")[i % 2]} for i, row in enumerate(ROWS)]
    source = table(write_table(tmp_path / "my.csv", rows))
    assert "splits: from column json.split" in source.notes
    assert list(source.inputs) == ["review"]
