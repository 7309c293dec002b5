"""What a column means: the readers decide, the user overrides, and everything is noted."""

import random
from pathlib import Path

import pytest
from helpers.data import Numbers, by_modality

from dxn.core.errors import UserError
from dxn.data.columns.choose import choose_columns, name_inputs, to_rows
from dxn.data.columns.infer import determines, names_new_groups
from dxn.data.rows import InputSpec, Origins
from dxn.data.tables.read import Table
from dxn.tasks.infer import explain_decimals, infer
from dxn.tokenize import CategoryAdapter, DateAdapter, NumberAdapter
from dxn.tokenize.base import READERS
from dxn.tokenize.cells.category import CategoryReader
from dxn.tokenize.column_profile import LazyReaders, modality_of, profile_of

REVIEWS = ["a fine film of two hours", "dull to the end", "she sings", "never again", "all right"]
WORDS = [["two", "words"], ["one"], ["a", "b"], ["c"], ["d"]]


@pytest.fixture(scope="module")
def readers():
    return by_modality()


def table_of(**columns):
    count = len(next(iter(columns.values())))
    return Table(columns, Origins([Path("data/my.csv")], range(2, count + 2)))


def photos(name):
    return [f"{name}{i}.jpg" for i in range(5)]


SHOP = table_of(
    front=photos("front"),
    back=photos("back"),
    left=photos("left"),
    right=photos("right"),
    title=REVIEWS,
    description=REVIEWS[::-1],
    sound=[f"{i}.wav" for i in range(5)],
    price=["1", "2", "3", "4", "5"],
    label=list("abaab"),
)


def choose(table, readers, *, target=None, split=None, new_groups=(), **named):
    """The chosen columns and the notes."""
    notes = []
    columns = choose_columns(
        table,
        readers,
        named=named,
        target=target,
        excluded=[split],
        new_groups=new_groups,
        notes=notes,
    )
    return columns, notes


def columns_of(columns):
    return {name: (spec.modality, spec.column) for name, spec in columns[0].items()}


# Inference


@pytest.mark.parametrize(
    ("values", "modality"),
    [
        (REVIEWS, "text"),
        (["one", "two", "three", "four", "five"], "text"),  # single words, but all different
        (WORDS, "text"),
        (["a.jpg", "b.PNG", "c.webp", None, "e.gif"], "image"),
        (["a.wav", "b.flac", "c.MP3", "d.ogg", None], "audio"),
        ([b"\x89PNG", b"\xff\xd8\xff", b"\x89PNG", b"\x89PNG"], "image"),
        ([b"RIFF....WAVE", b"fLaC", b"OggS", b"ID3"], "audio"),
        (["1", "2.5", "3"], None),
        ([1, 2, 3], None),
        (["red", "blue", "red", "red", "blue", "red"], None),
        ([None, None], None),
        ([], None),
    ],
)
def test_a_column_goes_to_the_preprocessor_that_accepts_it(readers, values, modality):
    assert modality_of(profile_of(values), readers) == modality


@pytest.mark.parametrize(
    ("values", "modality"),
    [
        ([f"0{i}" for i in range(1000, 1009)], None),  # zip codes that differ are no texts
        (["3.wav", "8.wav", "", "N/A", "5.wav"], "audio"),  # not 3 of the unit wav
        (["", "N/A", "-", "$4,345"], "number"),  # most values are missing
        (["", "?", "-", "31.1.2026"], "date"),
        ([True, True, False, "17:32", True] * 20, "category"),
        ([*map(str, range(150, 200)), "05"], "number"),  # a single zero is no code
        ([*(f"{i:05}" for i in range(9950, 10050)), "02139-1234"], None),  # but of zip codes
        (["+", "-", "-", "+", "+", "-"], "category"),
        (["gmail.com", "web.de", "web.de", "gmail.com"], "category"),  # not files
        (["1.pdf", "2.pdf", "3.pdf", "4.pdf"], None),
    ],
)
def test_missing_values_and_codes_do_not_change_what_a_column_is(values, modality):
    readers = LazyReaders({name: name for name in READERS}, {})
    assert modality_of(profile_of(values), readers) == modality


def test_names_of_files_are_not_texts_where_no_adapter_reads_the_files(readers):
    only_text = {"text": readers["text"]}
    assert modality_of(profile_of(photos("front")), only_text) is None
    addresses = profile_of(["visit us", "see www.example.com", "bye now"])
    assert modality_of(addresses, only_text) == "text"


def test_a_modality_of_the_user_takes_part(readers):
    columns, notes = choose(SHOP, {**readers, "number": Numbers()})
    assert columns_of(columns)["price"] == ("number", "price")
    assert not any("not used" in note for note in notes)


def test_four_photos_two_texts_and_a_sound_need_no_names(readers):
    columns, notes = choose(SHOP, readers)
    assert columns_of(columns) == {
        "title": ("text", "title"),
        "description": ("text", "description"),
        "front": ("image", "front"),
        "back": ("image", "back"),
        "left": ("image", "left"),
        "right": ("image", "right"),
        "sound": ("audio", "sound"),
    }
    assert columns[1] == ["label"]
    assert notes == [
        "target: column label, chosen by its name",
        "not used: price (numbers)",
    ]


def test_the_only_column_of_a_modality_has_its_own_name(readers):
    table = table_of(words=REVIEWS, photo=photos("x"), label=list("abaab"))
    columns, _ = choose(table, readers)
    assert columns_of(columns) == {"words": ("text", "words"), "photo": ("image", "photo")}


# Named columns


def test_naming_some_inputs_leaves_the_others_inferred(readers):
    columns, notes = choose(SHOP, readers, text="title", image=["back", "front"])
    assert columns_of(columns) == {
        "title": ("text", "title"),
        "back": ("image", "back"),
        "front": ("image", "front"),
        "sound": ("audio", "sound"),
    }
    assert notes[-1] == (
        "not used: left (not in data.image), right (not in data.image), "
        "description (not in data.text), price (numbers)"
    )


def test_null_means_inferred_and_an_empty_list_means_none(readers):
    inferred, _ = choose(SHOP, readers, image=None)
    without, notes = choose(SHOP, readers, image=[])
    assert list(inferred[0]) == [
        *("title", "description", "front", "back", "left", "right", "sound")
    ]
    assert list(without[0]) == ["title", "description", "sound"]
    unused = ", ".join(f"{name} (not in data.image)" for name in ("front", "back", "left", "right"))
    assert f"not used: {unused}, price (numbers)" in notes


def test_a_named_column_need_not_be_accepted(readers):
    columns, notes = choose(SHOP, readers, text=["price"])
    assert columns_of(columns)["price"] == ("text", "price")
    assert not any("price" in note for note in notes)


def test_the_column_of_the_splits_is_no_input(readers):
    table = table_of(words=REVIEWS, part=["b", "a", "c", "e", "d"], label=list("abaab"))
    columns, notes = choose(table, readers, split="part")
    assert columns_of(columns) == {"words": ("text", "words")}
    assert not any("part" in note for note in notes)


# Names


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"text": ["body"], "image": ["photo"]}, ["body", "photo"]),
        ({"text": ["b", "a"], "image": ["photo"]}, ["b", "a", "photo"]),
        ({"text": ["title", "image"], "image": ["photo"]}, ["title", "image", "photo"]),
        # The column that a layout adds is not in the file.
        ({"text": ["series"], "series": ["values"]}, ["series", "series_series"]),
        ({"series": ["values"]}, ["series"]),
        ({"text": ["a", "b"], "image": ["a", "c"]}, ["text_a", "b", "image_a", "c"]),
        # Batches have these keys themselves.
        ({"text": ["size", "index", "target"]}, ["size", "index", "text_target"]),
        ({"text": ["a b", "c.d"]}, ["a b", "c.d"]),
        ({"text": [], "image": []}, []),
    ],
)
def test_inputs_have_unique_names_in_the_order_of_their_modalities(columns, names):
    inputs = name_inputs(columns)
    assert list(inputs) == names
    pairs = [(m, column) for m, of_modality in columns.items() for column in of_modality]
    assert sorted((spec.modality, spec.column) for spec in inputs.values()) == sorted(pairs)


# Cells


def test_paths_are_relative_to_the_table_and_other_cells_stay(readers):
    table = table_of(
        photo=["x.png", "../y.png", "/elsewhere/z.png", b"\x89PNG", None],
        words=[["a", "b"], [], "plain", 5, True],
    )
    columns, _ = choose(table, readers, image="photo", text="words", target=[])
    rows = to_rows(table, *columns, readers)
    folder = Path("data")
    assert rows.cells["photo"] == [
        str(folder / "x.png"),
        str(folder / "../y.png"),
        "/elsewhere/z.png",
        b"\x89PNG",
        None,
    ]
    assert rows.cells["words"] == [["a", "b"], None, "plain", "5", "True"]
    assert rows.origin[4] == "my.csv row 6"


def test_a_single_target_column_stays_raw(readers):
    table = table_of(words=REVIEWS, label=["1", 2.5, ["a"], None, "a|b"])
    columns, _ = choose(table, readers)
    assert to_rows(table, *columns, readers).cells["target"] == ["1", 2.5, ["a"], None, "a|b"]


def test_several_target_columns_are_values_by_column(readers):
    table = table_of(words=REVIEWS[:3], colour=["red", None, "blue"], size=["big", "small", None])
    columns, _ = choose(table, readers, target=["colour", "size"])
    assert to_rows(table, *columns, readers).cells["target"] == [
        {"colour": "red", "size": "big"},
        {"size": "small"},
        {"colour": "blue"},
    ]


def test_without_a_target_the_columns_to_choose_from_are_noted(readers):
    table = table_of(words=REVIEWS, colour=["red", "red", "blue", "blue", "red"])
    columns, notes = choose(table, readers)
    assert columns[1] == []
    assert "target" not in to_rows(table, *columns, readers).cells
    assert "no target: none of the columns words, colour was chosen" in notes


def test_an_empty_list_of_targets_means_none(readers):
    columns, notes = choose(SHOP, readers, target=[])
    assert columns[1] == []
    assert notes == ["not used: price (numbers), label (categories)"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["1", "2", "3.5", "4", "5"], "numbers"),
        (["$1,200.50", "$3", "$4", "$5", "$6"], "numbers"),
        ([f"2026-01-{i:02}" for i in range(1, 6)], "dates"),
        (list("aabba"), "categories"),
        (["x"] * 5, "the same value in all rows"),
        ([None] * 5, "no values"),
        ([{"a": 1}] * 5, "lists or objects"),
        ([f"{i}.pdf" for i in range(5)], "file names, which no adapter in use reads"),
        ([f"joe{i}@example.com" for i in range(5)], "e-mail addresses"),
        ([f"www.shop{i}.de" for i in range(5)], "web addresses"),
        (
            [*"abcdd"],
            "4 different values in 5 rows, too many for categories and too few for texts",
        ),
    ],
)
def test_an_unused_column_is_noted_with_the_reason(readers, values, reason):
    _, notes = choose(table_of(words=REVIEWS, other=values, label=list("abaab")), readers)
    assert f"not used: other ({reason})" in notes


def test_numbers_with_different_units_are_noted(readers):
    table = table_of(words=REVIEWS * 2, price=["$5", "€7", "$2.5", "€1", "$4"] * 2, label="ab" * 5)
    _, notes = choose(table, {"text": readers["text"], "category": CategoryReader()})
    assert notes[1] == (
        "price: read as category, because its numbers have different units ($, €); convert them to "
        "one unit"
    )


def test_texts_without_a_text_adapter_are_noted(readers):
    table = table_of(words=REVIEWS, photo=photos("x"), label=list("abaab"))
    _, notes = choose(table, {"image": readers["image"]})
    assert "not used: words (texts, which no adapter in use reads)" in notes


def test_identifiers_are_an_input_only_if_there_is_no_other(readers):
    codes = [f"SKU-{i}" for i in range(20)]
    texts = [f"a text with number {i}" for i in range(20)]
    columns, notes = choose(table_of(sku=codes, words=texts, label=list("ab" * 10)), readers)
    assert columns_of(columns) == {"words": ("text", "words")}
    assert "not used: sku (identifiers)" in notes
    columns, _ = choose(table_of(sku=codes, label=list("ab" * 10)), readers)
    assert columns_of(columns) == {"sku": ("text", "sku")}


# Errors

SMALL = table_of(text=REVIEWS, label=list("abaab"))


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            SMALL,
            {"title": "text"},
            "data.title: must be an option of this data source or the modality of an adapter in "
            "use; the modalities are text, image, audio",
        ),
        (
            SMALL,
            {"imag": "text"},
            "data.imag: must be an option of this data source or the modality of an adapter in "
            "use; the modalities are text, image, audio; did you mean data.image?",
        ),
        (
            SMALL,
            {"text": "qqq"},
            "data.text: no column 'qqq' in my.csv; its columns are text, label",
        ),
        (
            SMALL,
            {"target": "lable"},
            "data.target: no column 'lable' in my.csv; its columns are text, label; "
            "did you mean 'label'?",
        ),
        (
            SMALL,
            {"text": ["text", "label"], "target": "label"},
            "data.target: column 'label' is also an input, so the model would read its own "
            "target; choose another column",
        ),
        (
            table_of(size=["1", "2"], label=["a", "b"]),
            {},
            "data: no adapter in use (text, image, audio) accepts any of the columns size, label; "
            "not used: size (numbers); choose a column, for example data.text=size",
        ),
        (
            table_of(year=["1990", "1991"], size=["1.5", "2"]),
            {"target": "size"},
            "data: no adapter in use (text, image, audio) accepts any of the columns year, size; "
            "not used: year (numbers); to forecast size from its own past, with one row per time "
            "step, set data=timeline; choose a column, for example data.text=year",
        ),
    ],
)
def test_columns_that_do_not_fit_are_explained(readers, table, options, message):
    with pytest.raises(UserError) as caught:
        choose(table, readers, **options)
    assert str(caught.value) == message


def test_an_unknown_modality_that_is_null_is_ignored(readers):
    columns, _ = choose(SMALL, {"text": readers["text"]}, image=None)
    assert columns[0] == {"text": InputSpec("text", "text")}


# Numbers, categories and dates


@pytest.fixture(scope="module")
def cells(readers):
    adapters = (NumberAdapter, CategoryAdapter, DateAdapter)
    return {**readers, **{adapter.reader.modality: adapter.reader() for adapter in adapters}}


def shop(count=120, **more):
    rand = random.Random(0)
    return table_of(
        words=[f"a text with number {i}" for i in range(count)],
        price=[f"${rand.uniform(1, 99):.2f}" for _ in range(count)],
        colour=[rand.choice(["red", "blue", "N/A"]) for _ in range(count)],
        sold=[f"{1 + i % 28}.{1 + i % 12}.2026" for i in range(count)],
        label=[rand.choice("ab") for _ in range(count)],
        **more,
    )


def test_cells_of_a_table_are_inputs_with_the_names_of_their_columns(cells):
    columns, notes = choose(shop(), cells)
    assert columns_of(columns) == {
        "words": ("text", "words"),
        "price": ("number", "price"),
        "colour": ("category", "colour"),
        "sold": ("date", "sold"),
    }
    assert not any("not used" in note for note in notes)


def test_the_name_of_a_column_may_be_that_of_a_modality(cells):
    table = table_of(words=REVIEWS * 4, text=[str(i * i) for i in range(20)], label=list("ab") * 10)
    assert columns_of(choose(table, cells)[0]) == {
        "words": ("text", "words"),
        "text": ("number", "text"),
    }


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("row", [str(i) for i in range(120)], "row numbers or identifiers"),
        ("weight", [3 * i // 2 for i in range(120)], "row numbers or identifiers"),  # with gaps
        ("customer_id", [(i * 7919) % 100_003 for i in range(120)], "row numbers or identifiers"),
        ("userId", [(i * 7919) % 100_003 for i in range(120)], "row numbers or identifiers"),
        ("Unnamed: 0", [(i * 7919) % 100_003 for i in range(120)], "row numbers or identifiers"),
        ("width", ["3.5"] * 118 + ["N/A"] * 2, "the same value in all rows that have one"),
        ("paid", [*["yes"] * 3, *[None] * 117], "the same value in all rows that have one"),
        ("kind", ["x"] * 120, "the same value in all rows"),
    ],
)
def test_cells_that_say_nothing_about_new_rows_are_not_used(cells, name, values, reason):
    columns, notes = choose(shop(**{name: values}), cells)
    assert name not in columns[0]
    assert f"not used: {name} ({reason})" in notes
    named, _ = choose(shop(**{name: values}), cells, number=[name])
    assert name in named[0]


@pytest.mark.parametrize(
    ("values", "point", "comma"),
    [
        ([f"{i}.{i:02}" for i in range(10, 70)] + [f"{i},5" for i in range(60)], "10.10", "0,5"),
        (["1.5", "2,5", "3", "N/A"] * 30, "1.5", "2,5"),
        (["1,234.50 €", "1.234,50 €"] * 60, "1,234.50 €", "1.234,50 €"),
    ],
)
def test_numbers_with_two_decimal_separators_are_named(cells, values, point, comma):
    (inputs, _), notes = choose(shop(size=values), cells)
    assert "size" not in inputs
    reason = (
        f"numbers with a decimal point such as {point!r} and with a decimal comma such as "
        f"{comma!r}; write all of them with the same decimal separator"
    )
    assert f"not used: size ({reason})" in notes
    with pytest.raises(UserError, match=f"data.target: contains {reason}"):
        infer(profile_of(values))


@pytest.mark.parametrize(
    "values", [["1,2", "1,3", "2,3,4"], ["48.1,11.5", "48.2,11.6"], ["1,234,567", "3.5", "4.5"]]
)
def test_other_points_and_commas_are_no_two_decimal_separators(values):
    assert explain_decimals(profile_of(values * 40)) == ""


@pytest.mark.parametrize(
    ("values", "modality"),
    [
        (["yes", None] * 60, "category"),
        ([*["x"] * 6, *[None] * 114], "category"),
        ([*["yes"] * 114, *["N/A"] * 6], "category"),
        ([1, None, None] * 40, "number"),
    ],
)
def test_one_value_beside_empty_cells_says_something(cells, values, modality):
    (inputs, _), notes = choose(shop(bike=values), cells)
    assert inputs["bike"] == InputSpec("bike", modality)
    assert not any("not used" in note for note in notes)


def test_years_of_consecutive_rows_are_used(cells):
    table = shop(year=list(range(1950, 2070)), row=list(range(17, 137)))
    (inputs, _), notes = choose(table, cells)
    assert "year" in inputs and "row" not in inputs
    assert any("row (row numbers or identifiers)" in note for note in notes)


def test_distinct_numbers_that_are_no_row_numbers_are_used(cells):
    income = [(i * 7919) % 100_003 for i in range(120)]
    assert "income" in choose(shop(income=income), cells)[0][0]


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (["ann", "bob", "ann", "bob"], ["eve", "eve"], True),
        (["3", "8", "3", "8", None], ["9", None, "9"], True),
        (["ann", "bob", "ann", "bob"], ["eve", "eve", "bob", "bob"], False),  # a known speaker
        (["ann", "bob", "ann", "bob"], ["eve", "kim"], False),  # names of rows
        (["ann", "ann", "ann", "ann"], ["eve", "eve"], False),  # another data set
        (["ann", "bob", "ann", "bob"], [None, None], False),
        (["1.5", "2.5", "1.5", "2.5"], ["3.5", "3.5"], False),  # quantities
        (["2021", "2022", "2021", "2022"], ["2023", "2023"], False),
        (["2024-01-01", "2024-01-02"] * 2, ["2024-02-01"] * 2, False),
    ],
)
def test_groups_of_rows_that_only_the_test_split_has_are_recognized(train, test, expected):
    assert names_new_groups(train, test) == expected


def test_such_groups_are_an_input_only_if_they_are_named(cells):
    table = shop(kind=list("abc") * 40)
    columns, notes = choose(table, cells, new_groups=["kind", "words"])
    assert "kind" not in columns[0] and "words" in columns[0]
    assert "not used: kind (training has none of its values in the test split)" in notes
    assert "kind" in choose(table, cells, category=["kind"], new_groups=["kind"])[0][0]


def finer(count=120):
    """Labels, and finer labels that determine them."""
    fine = [f"{'ab'[i % 2]}:{i % 6}" for i in range(count)]
    return {"coarse": [value[0] for value in fine], "fine": fine}


def test_a_column_that_determines_the_target_is_used_only_if_it_is_named(cells):
    table = shop(**finer())
    columns, notes = choose(table, cells, target="coarse")
    assert "fine" not in columns[0] and "label" in columns[0]
    assert (
        "not used: fine, because its value always determines coarse, so it was probably made from "
        "it; name it in data.category to use it anyway" in notes
    )
    columns, _ = choose(table, cells, target="coarse", category=["fine"])
    assert "fine" in columns[0]


def test_a_column_that_determines_the_target_can_be_the_only_input(cells):
    columns, _ = choose(table_of(**finer()), cells, target="coarse")
    assert columns_of(columns) == {"fine": ("category", "fine")}


@pytest.mark.parametrize(
    ("values", "targets", "is_leak"),
    [
        (["x", "y"] * 60, ["a", "b"] * 60, True),
        ([1, 2] * 60, ["a", "b"] * 60, True),
        (["x", "y"] * 40, ["a", "b"] * 40, False),  # few rows
        (["x", "y"] * 60, [*["a", "b"] * 59, "b", "b"], False),  # one exception
        ([str(i) for i in range(120)], ["a", "b"] * 60, False),  # each value once
        (["x", "y", "z", "z"] * 30, ["a"] * 120, False),  # nothing to determine
        (["x", None] * 100, ["a", "b"] * 100, False),  # only one value
    ],
)
def test_a_leak_needs_enough_rows(values, targets, is_leak):
    assert determines(values, targets) == is_leak


def test_repeated_sentences_are_a_text_and_repeated_words_are_not(cells):
    sentences = ["I like it very much", "this is not what I want", "it is all right for me"] * 40
    assert modality_of(profile_of(sentences), cells) == "text"
    assert modality_of(profile_of(["red", "dark blue", "green"] * 40), cells) == "category"


def test_excluded_columns_are_no_inputs(cells):
    notes = []
    columns = choose_columns(
        shop(), cells, named={}, target=None, exclude=["price", "words"], notes=notes
    )
    assert set(columns[0]) == {"colour", "sold"}
    assert not any("price" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["prize"]}, "data.exclude: no column 'prize'"),
        (
            {"exclude": ["price"], "named": {"number": "price"}},
            "data.exclude: column 'price' is also in data.number; remove it from one of them",
        ),
    ],
)
def test_a_wrong_exclusion_is_explained(cells, options, message):
    with pytest.raises(UserError) as caught:
        choose_columns(shop(), cells, **{"named": {}, "target": None, "notes": [], **options})
    assert str(caught.value).startswith(message)


def test_a_path_that_says_that_there_is_none_is_missing(readers):
    table = table_of(photo=["x.png", "N/A", "-", None], label=list("abab"))
    columns, _ = choose(table, readers, image="photo")
    cells = to_rows(table, *columns, readers).cells["photo"]
    assert cells == [str(Path("data/x.png")), None, None, None]
