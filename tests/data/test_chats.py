"""Tables with conversations, and with columns of questions and answers."""

import csv
import datetime
import json

import pyarrow
import pyarrow.parquet
import pytest

from dxn.core.errors import UserError
from dxn.data import rows_of_table, table
from dxn.data.series.layouts import layout_of
from dxn.tokenize.text.tokenizer import TextReader

READERS = {"text": TextReader()}
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def open_table(path, **options):
    return table(path, readers=READERS, fractions=None, **options)


def cells(source, name="messages"):
    (rows,) = source.splits.values()
    return list(rows.cells[name])


def asked(*texts):
    return [
        {"role": "user", "content": "\n\n".join(texts[:-1])},
        {"role": "assistant", "content": texts[-1]},
    ]


@pytest.mark.parametrize("name", ["messages", "Conversations", "conversation"])
def test_a_column_of_messages_is_the_only_input(tmp_path, name):
    rows = [{"topic": f"some long title {i}", name: CHAT, "prompt": "Hi"} for i in range(3)]
    source = open_table(write(tmp_path / "chats.jsonl", rows), chat="auto")
    assert list(source.inputs) == [name]
    assert cells(source, name) == [CHAT] * 3
    assert source.layout == {"chat": [name]}
    assert any(note.startswith("not used: topic (not in data.text)") for note in source.notes)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": "Add", "input": "2, 3", "output": "5"}, asked("Add", "2, 3", "5")),
        ({"instruction": "Add", "input": "", "output": "5"}, asked("Add", "5")),
        ({"instruction": "Add", "output": "5"}, asked("Add", "5")),
        ({"prompt": "Add", "completion": "5"}, asked("Add", "5")),
        ({"prompt": "Add", "response": "5", "id": 3}, asked("Add", "5")),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, CHAT),
        ({"prompt": [*CHAT, CHAT[0]], "completion": "Bye"}, [*CHAT, *asked("Hi", "Bye")]),
    ],
)
def test_usual_columns_become_messages(tmp_path, row, expected):
    path = write(tmp_path / "t.jsonl", [row] * 3)
    source = open_table(path, chat="auto")
    assert cells(source) == [expected] * 3
    used = [name for name in row if name != "id"]
    assert source.layout == {"chat": used}
    *first, last = used
    assert f"conversations: {' and '.join(first)} (user), {last} (assistant)" in source.notes
    # New rows are read in the same way.
    rows = rows_of_table(path, source.inputs, READERS, layout=layout_of(source.layout))
    assert list(rows.cells["messages"]) == [expected] * 3


SYSTEM = {"role": "system", "content": "Be brief"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"instruction": "Be kind", "input": [*CHAT, CHAT[0]], "output": "Bye"},
            [{"role": "user", "content": "Be kind"}, *CHAT, *asked("Hi", "Bye")],
        ),
        ({"system": "Be brief", "prompt": "Hi", "completion": "Hello"}, [SYSTEM, *CHAT]),
        ({"system_prompt": "Be brief", "messages": CHAT}, [SYSTEM, *CHAT]),
        ({"system": "Be rude", "messages": [SYSTEM, *CHAT]}, [SYSTEM, *CHAT]),
        ({"system": "", "conversations": CHAT}, CHAT),
        (
            {"history": [["Hi", "Hello"]], "instruction": "Add", "output": "5"},
            [*CHAT, *asked("Add", "5")],
        ),
        ({"history": [], "instruction": "Hi", "output": "Hello"}, CHAT),
    ],
)
def test_the_messages_of_columns_keep_their_order(tmp_path, row, expected):
    path = write(tmp_path / "t.jsonl", [row] * 3)
    source = open_table(path, chat="auto")
    assert cells(source) == [expected] * 3
    rows = rows_of_table(path, source.inputs, READERS, layout=layout_of(source.layout))
    assert list(rows.cells["messages"]) == [expected] * 3


@pytest.mark.parametrize(
    "dump",
    [
        json.dumps,
        repr,
        lambda chat: f"array({chat!r}, dtype=object)",
        lambda c: json.dumps({"messages": c}),
    ],
)
def test_lists_of_messages_are_read_from_texts(tmp_path, dump):
    for name, rows in [
        ("messages", [["messages"], [dump(CHAT)], [dump(CHAT)]]),
        ("pairs", [["prompt", "completion"], *[[dump(CHAT[:1]), dump(CHAT[1:])]] * 2]),
    ]:
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        assert cells(open_table(str(path), chat="auto")) == [CHAT] * 2
    # Of one column, all texts are lists of messages, or none.
    rows = [["prompt", "completion"], [dump(CHAT[:1]), "a"], ["Hi", "b"]]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    assert cells(open_table(str(path), chat="auto"))[0] == asked(dump(CHAT[:1]), "a")


def test_a_text_that_looks_like_messages_but_is_none_is_named(tmp_path):
    path = tmp_path / "t.csv"
    text = "\"[{'role': 'user', 'content': 'Hi'} {'role': 'assistant', 'content': 'Ho'}]\""
    path.write_text(f"messages\n{text}\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"t\.csv row 2: data\.chat: messages must be .* json\.dumps"
    ):
        open_table(str(path), chat="auto")


def test_the_first_row_does_not_decide_whether_a_column_has_conversations(tmp_path):
    for first in (None, [], "Hi there"):
        path = write(tmp_path / "t.jsonl", [{"messages": first}, *[{"messages": CHAT}] * 3])
        assert open_table(path, chat="auto").layout == {"chat": ["messages"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, r"data\.chat=\[prompt,chosen\]"),
        ({"chosen": CHAT, "rejected": CHAT}, r"data\.chat=\[chosen\]"),
        ({"messages": CHAT[:1], "chosen": CHAT[1], "rejected": CHAT[1]}, r"\[messages,chosen\]"),
        ({"prompt": "Hi", "chosen": json.dumps([CHAT[1]]), "rejected": "Go"}, "prompt,chosen"),
        ({"prompt": "Hi", "completion": "Go", "label": False}, "labeled as good or bad"),
        ({"prompt": "Hi", "completion": "Go", "label": "True"}, "labeled as good or bad"),
    ],
)
def test_rejected_answers_are_not_learned(tmp_path, row, message):
    path = write(tmp_path / "t.jsonl", [row] * 3)
    with pytest.raises(UserError, match=f"t.jsonl has .*{message}"):
        open_table(path, chat="auto")
    if "rejected" in row:
        chosen = [name for name in row if name not in ("rejected",)]
        source = open_table(path, chat=chosen)
        assert cells(source, *source.inputs) == [CHAT] * 3


def test_columns_with_other_names_are_chosen(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("frage,antwort,quelle\nWas ist 2+3?,5,a\nUnd 3+3?,6,b\n", encoding="utf-8")
    source = open_table(str(path), chat=["frage", "antwort"])
    assert cells(source) == [asked("Was ist 2+3?", "5"), asked("Und 3+3?", "6")]
    with pytest.raises(UserError, match=r"data\.chat: no column 'question'"):
        open_table(str(path), chat=["question", "antwort"])


def test_columns_of_the_user_and_other_tables_stay_as_they_are(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"prompt": f"a b {i}", "completion": "c"} for i in "xyz"])
    assert open_table(path).layout is None
    assert open_table(path, chat="auto", text="prompt").layout is None
    other = write(tmp_path / "u.jsonl", [{"title": f"a b {i}"} for i in "xyz"])
    source = open_table(other, chat="auto")
    assert source.layout is None and list(source.inputs) == ["title"]


@pytest.mark.parametrize("node", [{"chat": []}, {"chat": 3}, {"chat": [3]}])
def test_a_wrong_node_is_refused(node):
    with pytest.raises(ValueError, match="columns"):
        layout_of(node)


def test_conversations_can_be_json_texts(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["messages"], *[[json.dumps(CHAT)] for _ in range(3)]])
    assert cells(open_table(str(path), chat="auto")) == [CHAT] * 3
    assert cells(open_table(str(path), chat="messages")) == [CHAT] * 3


def test_chosen_columns_are_used_beside_another_column_called_messages(tmp_path):
    rows = [{"question": "Add 2, 3", "answer": "5", "messages": 2} for _ in range(3)]
    source = open_table(write(tmp_path / "t.jsonl", rows), chat=["question", "answer"])
    assert cells(source) == [asked("Add 2, 3", "5")] * 3


def test_messages_with_times_can_have_a_column_of_the_system(tmp_path):
    messages = [{**message, "at": datetime.datetime(2026, 1, 2)} for message in CHAT]
    rows = [{"system": "Be short.", "conversation": messages}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    source = open_table(str(tmp_path / "t.parquet"), chat="auto")
    assert [message["role"] for message in cells(source)[0]] == ["system", "user", "assistant"]


def test_a_single_cell_with_messages_as_a_text_is_found_in_a_large_table(tmp_path):
    rows = [{"messages": CHAT} for _ in range(2500)]
    rows[1003]["messages"] = json.dumps(CHAT)
    source = open_table(write(tmp_path / "chats.jsonl", rows), chat="auto")
    assert cells(source)[1003] == CHAT
