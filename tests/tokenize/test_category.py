"""Categories of a table as tokens."""

import json
import random
import re

import pandas as pd
import pytest
import torch

from dxn.core.errors import UserError
from dxn.runs.predictor.inputs import ModelInputs
from dxn.tasks import Classify
from dxn.tokenize import BadMedia, CategoryAdapter
from dxn.tokenize.column_profile import profile_of, scores_of

DIM = 11
COLOURS = ["red"] * 5 + ["blue"] * 3 + ["green"] * 2


def fitted(values=COLOURS, **options):
    adapter = CategoryAdapter(DIM, **options)
    return adapter.fit([adapter.tokenizer.reader.read(value) for value in values])


def ids(adapter, cell):
    return adapter.tokenizer(adapter.tokenizer.reader.read(cell))["ids"].tolist()


def test_a_category_is_one_token():
    tokens = fitted().tokens(["red", "blue", "red"])
    assert tokens.matrix.shape == (3, DIM, 1)
    assert torch.equal(tokens[0], tokens[2]) and not torch.equal(tokens[0], tokens[1])


def test_rare_and_new_values_share_a_token():
    adapter = fitted(min_count=3)
    assert adapter.tokenizer.choices == ("red", "blue")
    assert ids(adapter, "green") == ids(adapter, "violet") == [0]
    assert adapter.describe(("red", "violet")) == "red, violet (unknown)"


def test_a_value_that_is_not_known_gets_a_remark():
    prepare = fitted().tokenizer
    assert prepare.remark([("red", "BLUE"), None]) == ""
    known = "of the 2 known values (red, blue), so"
    assert prepare.remark([("violet",)]) == f"'violet' is not one {known} it counts as unknown"
    one = prepare.remark([("red", "violet")])
    assert one == f"1 of 2 values, 'violet', is not one {known} it counts as unknown"
    several = prepare.remark([("red", "violet"), None, ("x",)])
    assert several == f"2 of 3 values, such as 'violet', are not one {known} they count as unknown"


def test_the_number_of_values_is_limited_to_the_most_frequent_ones():
    assert fitted(max_values=1).tokenizer.choices == ("red",)


def test_a_tiny_table_keeps_its_values_although_all_are_rare():
    assert set(fitted(["a", "b"]).tokenizer.choices) == {"a", "b"}


def test_some_training_values_become_unknown_and_validation_values_do_not():
    prepare = fitted(unknown_rate=0.5).tokenizer
    drawn = [prepare(("red",), random.Random(i))["ids"].item() for i in range(50)]
    assert 0 < drawn.count(0) < 50
    assert prepare(("red",))["ids"].item() != 0


@pytest.mark.parametrize(
    ("cell", "raw"),
    [
        ("red", ("red",)),
        (" red ", ("red",)),
        (True, ("true",)),
        (3, ("3",)),
        (3.0, ("3",)),
        (2.5, ("2.5",)),
        (["a", "b", "a"], ("a", "b")),
        (["a", "N/A"], ("a",)),
        ("N/A", None),
        ("-", None),
        ("", None),
        (float("nan"), None),
        ([], None),
        ("none", ("none",)),
        ("unknown", ("unknown",)),
    ],
)
def test_cells_are_read(cell, raw):
    assert CategoryAdapter(DIM).tokenizer.reader.read(cell) == raw


def test_upper_and_lower_case_do_not_matter_unless_the_column_has_both():
    assert ids(fitted(), "RED") == ids(fitted(), "red")
    both = fitted(["a", "A"] * 5)
    assert ids(both, "a") != ids(both, "A")
    assert ids(fitted(["RED", "red"] * 5), "Red") == ids(fitted(), "new")
    assert ids(fitted(["True", "False"] * 5), True) == ids(fitted(["True", "False"] * 5), "True")


def test_several_values_of_a_cell_are_several_tokens_and_padding_changes_nothing():
    adapter = fitted(["red|blue", "red"] * 5, separator="|")
    together = adapter.tokens(["red|blue", "red"])
    assert together.mask.tolist() == [[True, True], [True, False]]
    assert torch.equal(together[1], adapter.tokens(["red"])[0])
    assert together.spans[0].coords[0].tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (b"red", "must be a text of at most 200 characters, a number or a boolean, got b'red'"),
        ("x" * 201, "must be a text of at most 200 characters"),
        ({"a": 1}, "must be a text of at most 200 characters"),
        (list(map(str, range(65))), "must have at most 64 values"),
    ],
)
def test_a_cell_that_is_no_category_is_explained(cell, message):
    with pytest.raises(BadMedia) as caught:
        CategoryAdapter(DIM).tokenizer.reader.read(cell)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("values", "is_accepted"),
    [
        (["red", "blue"] * 5, True),
        ([True, False] * 5, True),
        (["01234", "00012"] * 5, True),  # zip codes
        (["1", "2"] * 5, False),
        ([f"SKU-{i}" for i in range(20)], False),
        (["2026-01-31", "2026-02-01"] * 5, False),
        ([["a", "b"]] * 5, False),
        ([None], False),
    ],
)
def test_repeated_short_values_are_accepted(values, is_accepted):
    assert (scores_of(profile_of(values)).get("category", 0) > 0.1) == is_accepted


def test_sentences_that_repeat_are_less_likely_than_words():
    sentences = scores_of(profile_of(["I like it very much", "I do not like it"] * 9))
    words = scores_of(profile_of(["red", "blue"] * 9))
    assert sentences["category"] < words["category"]


def test_a_masked_value_is_hidden_and_predicted():
    adapter = fitted(unknown_rate=0.0)
    masking = adapter.masking(ratio=0.5)
    prepare = adapter.tokenizer
    raws = [("red",), ("blue",)] * 5
    samples = [masking(prepare(raw), random.Random(i)) for i, raw in enumerate(raws)]
    batch = prepare.collate(samples)
    masked = batch["masked"][:, 0]
    assert 0 < masked.sum() < len(raws)
    expected = [prepare.id_of(raw[0]) for raw, m in zip(raws, masked, strict=True) if m]
    assert batch["masked_target"].tolist() == expected
    x = adapter(batch).x[masked]
    assert (x == x[0]).all()
    assert adapter.masking(ratio=0) is None


def test_eight_categories_are_overfitted():
    torch.manual_seed(0)
    adapter = fitted(list("abcdefgh"), unknown_rate=0.0)
    target = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0])
    head = torch.nn.Linear(DIM, 1)
    optimizer = torch.optim.Adam([*adapter.parameters(), *head.parameters()], lr=0.05)
    for _ in range(100):
        output = head(adapter.tokens(list("abcdefgh")).x[:, 0]).squeeze(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_the_values_are_saved(tmp_path):
    adapter = fitted()
    adapter.save(tmp_path, "colour / left")
    again = CategoryAdapter(DIM)
    again.load(tmp_path, "colour / left")
    again.load_state_dict(adapter.state_dict())
    assert torch.equal(again.tokens(["blue"]).x, adapter.tokens(["blue"]).x)
    again.fit([("other",)] * 5)
    assert again.tokenizer.choices == adapter.tokenizer.choices


def test_a_list_is_one_cell_only_in_a_column_of_lists(tmp_path):
    """Elsewhere, it could be meant as the values of several samples."""
    for name, cells in (("single", ["a", "b", ["a"]]), ("lists", [["a", "b"], ["b"], "a"])):
        adapter = CategoryAdapter(DIM)
        adapter.tokenizer.reader.learn(cells)
        adapter.fit([adapter.tokenizer.reader.read(cell) for cell in cells])
        adapter.save(tmp_path, name)
        again = CategoryAdapter(DIM)
        again.load(tmp_path, name)
        reader = again.tokenizer.reader
        assert reader.read(["a"]) == reader.read(["a", "a"]) == ("a",)
        if name == "lists":
            assert reader.read(["a", "b"]) == ("a", "b")
            continue
        with pytest.raises(BadMedia, match=r"must be one value, as in the training table, got \['"):
            reader.read(["a", "b"])


@pytest.mark.parametrize("content", ["{}", '{"x": {}}', '{"x": {"values": ["a", "a"]}}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "adapters.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"adapters\.jsonl"):
        CategoryAdapter(DIM).load(tmp_path, "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 0}, "min_count must be at least 1, got 0"),
        ({"max_values": 0}, "max_values must be at least 1, got 0"),
        ({"unknown_rate": 1.0}, "unknown_rate must be below 1, got 1.0"),
        ({"separator": ""}, "separator must have at least 1 characters"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CategoryAdapter(DIM, **options)


def test_an_adapter_without_values_says_so():
    with pytest.raises(ValueError, match="no values yet"):
        CategoryAdapter(DIM).tokens(["red"])


@pytest.mark.parametrize("write", [json.dumps, str])
def test_texts_of_lists_are_lists(write):
    lists = [["p"], ["u", "a,b"], ["a,b"], ["p", "u"], ["u", "p"], ["u"], []]
    cells = [write(values) for values in lists]
    reader = CategoryAdapter(DIM).tokenizer.reader
    assert reader.learn(cells) == f"read as lists of values, such as {cells[1]}"
    assert [reader.read(cell) for cell in cells] == [tuple(v) or None for v in lists]


@pytest.mark.parametrize("cell", ['[{"a": 1, "b": 2}]', '[["a", "b"], ["c"]]'])
def test_a_text_of_a_list_of_objects_or_lists_is_one_value(cell):
    reader = CategoryAdapter(DIM).tokenizer.reader
    reader.learn([cell.replace("a", letter) for letter in "abcdefgh"])
    assert reader.read(cell) == (cell,)


def test_codes_that_lost_their_zeros_are_counted_before_a_prediction(tmp_path, capsys):
    adapter = fitted(["010", "020", "033"], min_count=1)
    inputs = ModelInputs({"zip": adapter.tokenizer}, Classify(), {"zip": "zip"}, None, None)
    (tmp_path / "new.csv").write_text("zip\n10\n20\n033\n")
    note = "zip: 2 of 3 values, such as '10', are not one of the 3 known values (010, 020, 033)"
    inputs.option(str(tmp_path / "new.csv"), columns={})
    assert f"note: {note}" in capsys.readouterr().out
    with pytest.warns(UserWarning, match=re.escape(note)):
        inputs.frame(pd.DataFrame({"zip": ["10", "20", "033"]}))
