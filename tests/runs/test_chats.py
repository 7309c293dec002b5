"""Trainings on conversations, from the command line to the answers."""

import json
import re

import pytest
import torch
from dxn_examples.chats import chats
from helpers.checkpoints import byte_gpt2
from helpers.data import EXAMPLES
from helpers.runs import interrupt, log_of, metrics_of, refused, same_tensors, weights_of

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.report.sides import ANSWERED_ROWS
from dxn.tokenize.text.chat import DEFAULT_TOKENS, ChatTemplate, load_template

SMALLER = "Choose the smaller number."
TINY = ["head=language", "adapters=[text]", "backbone.causal=true", "dim=16", "backbone.depth=1"]
TINY += ["backbone.num_heads=2", "trainer.precision=float32", "trainer.device=cpu", "report=false"]
TINY += ["trainer.epochs=2", "batch_size=16", "adapters.text.tokenizer.kind=word"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to answer with a number."""
    folder = tmp_path_factory.mktemp("chat") / "run"
    options = ["data=chats", "data.num_train=120", "data.num_validation=20", *TINY, "batch_size=8"]
    options += ["optimizer.lr=0.02", "trainer.epochs=6", "baseline=none", "preset=plain"]
    assert main(["train", EXAMPLES, *options, f"run={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def model(run):
    return dxn.load(run)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "chats.jsonl"
    source = chats(num_train=60, num_validation=1, num_test=1)
    cells = source.splits["train"].cells["messages"]
    path.write_text("".join(json.dumps({"messages": cell}) + "\n" for cell in cells))
    return path


def test_the_report_shows_answers_beside_those_of_the_data(run):
    assert main(["report", f"run={run}", EXAMPLES]) == 0
    page = (run / "report.html").read_text()
    assert '<section id="texts"><h2>Answers</h2>' in page
    shown = re.findall(r'<p class="text" dir="auto">(.*?)</p>', page, re.S)
    assert len(shown) == 3 * ANSWERED_ROWS
    before, truth, answer = shown[:3]
    assert "user: " in before and truth.strip() and answer.strip()
    model = dxn.load(run)
    system, question = re.fullmatch(r"(?:system: (.*?)\n)?user: (.*)", before, re.S).groups()
    expected = model.write(prompt=question, system=system or "", max_new=100)[0]
    assert re.sub("</?mark>", "", answer) == expected


def asked():
    """The questions of the test split, whose pairs of numbers are in no other split."""
    cells = chats().splits["test"].cells["messages"]
    texts = [each["content"] for cell in cells for each in cell if each["role"] == "user"]
    return list(dict.fromkeys(texts))


@pytest.mark.exhaustive
def test_new_questions_are_answered_much_more_often_than_by_chance(tmp_path):
    run = tmp_path / "run"
    assert main(["train", EXAMPLES, "experiment=chat", "report=false", f"run={run}"]) == 0
    model, questions = dxn.load(run), asked()
    for system, choose in (("", max), (SMALLER, min)):
        expected = [str(choose(map(int, re.findall(r"\d+", text)))) for text in questions]
        answers = model.write(prompt=questions, system=system, max_new=9)
        right = sum(got == want for got, want in zip(answers, expected, strict=True))
        # One of the two numbers is right by chance. The model reaches 0.9 to 1.
        assert right > 0.8 * len(questions), system


def test_the_command_prints_the_answer_alone(run, model, capsys):
    words = ["generate", f"run={run}", "prompt=17 or 5?", "temperature=0"]
    for system in ("", SMALLER):
        capsys.readouterr()
        assert main([*words, f"system={system}"]) == 0
        (answer,) = model.write(prompt="17 or 5?", system=system)
        assert capsys.readouterr().out.splitlines() == [answer]
        assert answer.isdigit()
    # The prompt is a text like any other.
    assert main([*words, "chat=false"]) == 0
    assert capsys.readouterr().out.startswith("17 or 5?")


def test_an_answer_does_not_depend_on_the_others(model):
    questions = asked()[:7]
    together = model.write(prompt=questions, count=2, max_new=9)
    alone = [model.write(prompt=text, max_new=9)[0] for text in questions]
    assert together == [text for text in alone for _ in range(2)]


def test_many_prompts_have_their_answers_in_a_table(run, tmp_path):
    (tmp_path / "p.txt").write_text("17 or 5?\n3 or 9?\n")
    words = [f"prompts={tmp_path / 'p.txt'}", f"output={tmp_path / 'a.jsonl'}", "temperature=0"]
    assert main(["generate", f"run={run}", *words]) == 0
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["17 or 5?", "3 or 9?"]
    assert all(row["generated"].isdigit() for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prompt="], "prompt: must not be empty, because it is a message of the user"),
        (["prompt=a", "system=b", "chat=false"], "system: needs chat=true, a conversation"),
    ],
)
def test_wrong_options_of_generate_are_one_sentence(run, capsys, words, message):
    (line,) = refused(capsys, ["generate", f"run={run}", *words])
    assert message in line


def test_the_suggested_command_has_a_question(run, table, tmp_path, capsys):
    capsys.readouterr()
    assert main(["train", str(table), *TINY, f"run={tmp_path / 'run'}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"next: dxn generate run=\S+ 'prompt=\d+ or \d+\?'", out)
    assert "chats.jsonl" not in out.partition("run folder")[2].partition("epoch")[0]


def test_an_evaluation_repeats_the_result_and_a_saved_model_keeps_its_template(run, capsys):
    assert main(["evaluate", f"run={run}", EXAMPLES]) == 0
    (folder,) = (run / "evaluate").iterdir()
    for name in ("test/loss", "test/loss_per_char"):
        assert metrics_of(folder)[name] == pytest.approx(metrics_of(run)[name], rel=1e-5)
    assert load_template(run / "model" / "chat_template.json") == ChatTemplate()


def test_resuming_gives_the_same_weights(table, tmp_path, monkeypatch):
    assert main(["train", str(table), *TINY, f"run={tmp_path / 'whole'}"]) == 0
    with interrupt(monkeypatch, step=4):  # of 3 per epoch
        assert main(["train", str(table), *TINY, f"run={tmp_path / 'half'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'half'}"]) == 0
    assert log_of(tmp_path / "half") == log_of(tmp_path / "whole")
    assert same_tensors(weights_of(tmp_path / "half"), weights_of(tmp_path / "whole"))


def test_columns_of_questions_and_answers_are_conversations(tmp_path, capsys):
    lines = [f"Add,{a} and {b},{a + b}" for a in range(6) for b in range(6)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["instruction,input,output", *lines]))
    assert main(["train", str(path), *TINY, f"run={tmp_path / 'run'}"]) == 0
    out = capsys.readouterr().out
    assert "conversations: instruction and input (user), output (assistant)" in out
    assert "no target" not in out  # a language model has none
    # The same columns are read again.
    assert main(["evaluate", f"run={tmp_path / 'run'}", f"data.path={path}"]) == 0
    assert "36 rows" in capsys.readouterr().out


def test_wrong_rows_are_listed_and_can_be_left_out(table, tmp_path, capsys, monkeypatch):
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[2]["messages"][0] = {"content": "x"}
    rows[4]["messages"][-1]["content"] = ""
    pictures = [{"type": "image", "path": name} for name in ("1.png", "2.png")]
    rows[6]["messages"][0] = {"role": "user", "content": pictures}
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(path), "head=language", "adapters=[text]"]) == 1
    listed = (tmp_path / "bad_files.csv").read_text()
    for words in ("message 1 has no role", "(assistant) is empty", "one file of the type"):
        assert words in listed
    (line,) = refused(capsys, ["train", path, *TINY])
    assert line.startswith("dxn: bad.jsonl row ") and "dxn check lists all bad rows" in line
    run = tmp_path / "run"
    assert main(["train", str(path), *TINY, "data.on_bad=skip", f"run={run}"]) == 0
    # The number of rows in the lines about splits includes those that are skipped.
    out = capsys.readouterr().out
    splits = re.search(r"train (\d+), validation", out)
    skipped = re.search(r"^train: (\d+) rows \((\d+) of (\d+) skipped\)", out, re.M)
    assert splits and skipped and splits[1] == skipped[3]
    assert int(skipped[1]) + int(skipped[2]) == int(skipped[3])


def test_long_conversations_are_counted(table, tmp_path, capsys):
    words = ["adapters.text.max_len=20", "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    assert main(["train", str(table), *TINY, *words]) == 0
    out = capsys.readouterr().out
    assert re.search(r"note: messages: .*truncated.*set adapters\.text\.max_len", out), out


# Public weights


def finetune(table, source, run, *words):
    options = [
        each for each in TINY if not re.match(r"dim|backbone\.(depth|num)|adapters\.t", each)
    ]
    options += [f"weights={source}", "trainer.epochs=1", f"run={run}", *words]
    assert main(["train", str(table), *options]) == 0
    return dxn.load(run)


def test_public_weights_without_a_template_get_its_two_tokens(table, tmp_path):
    source = byte_gpt2(tmp_path / "gpt2")
    model = finetune(table, source, tmp_path / "run", "optimizer.lr=0")
    before = dxn.from_public(source).model.adapters["text"].embedding.weight
    adapter = model.model.adapter(model.inputs[0])
    after = adapter.embedding.weight
    assert len(after) == len(before) + len(DEFAULT_TOKENS)
    assert torch.equal(after[: len(before)], before)
    torch.testing.assert_close(after[len(before) :], before.mean(0).expand(2, -1))
    assert adapter.tokenizer.vocabulary.token_to_id("<|im_end|>") == len(before) + 1
    assert isinstance(model.write(prompt="3 or 4?", max_new=3)[0], str)


TEMPLATE = """\
{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def test_the_template_of_public_weights_is_used_and_kept(table, tmp_path):
    source = byte_gpt2(tmp_path / "gpt2", TEMPLATE)
    model = finetune(table, source, tmp_path / "run")
    adapter = model.model.adapter(model.inputs[0])
    assert adapter.tokenizer.reader.template == ChatTemplate(
        TEMPLATE, {"eos_token": "<|endoftext|>"}
    )
    assert adapter.tokenizer.vocabulary.token_to_id("<|im_end|>") is None
    # Also without a training.
    assert isinstance(dxn.from_public(source).write(prompt="3 or 4?", max_new=3)[0], str)


def test_without_a_template_a_prompt_is_continued(tmp_path):
    model = dxn.from_public(byte_gpt2(tmp_path / "gpt2"))
    assert model.write(prompt="3 or 4?", max_new=3)[0].startswith("3 or 4?")
    with pytest.raises(UserError, match="chat: this model was not trained on conversations"):
        model.write(prompt="3", chat=True)
    with pytest.raises(UserError, match="system: this model was not trained on conversations"):
        model.write(prompt="3", system="Be brief.")


def test_the_loss_is_that_of_transformers_with_labels_of_answers_only(table, tmp_path):
    import transformers

    source = byte_gpt2(tmp_path / "gpt2", TEMPLATE)
    lines = table.read_text().splitlines(keepends=True)
    for name, part in (("train", lines[:30]), ("validation", lines[30:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    words = [f"data.{name}={tmp_path / name}.jsonl" for name in ("train", "validation")]
    words += ["head=language", "adapters=[text]", "trainer.precision=float32", "report=false"]
    words += ["trainer.device=cpu", "trainer.epochs=1", "batch_size=7", "optimizer.lr=0"]
    run = tmp_path / "run"
    assert main(["train", *words, f"weights={source}", f"run={run}"]) == 0

    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    total = count = 0.0
    for line in lines[30:]:
        chat = json.loads(line)["messages"]
        ids, labels = [], []
        for message in chat:
            head = tokenizer.encode(f"<|{message['role']}|>", add_special_tokens=False)
            text = message["content"] + tokenizer.eos_token
            body = tokenizer.encode(text, add_special_tokens=False)
            ids += [*head, *body]
            is_answer = message["role"] == "assistant"
            labels += [-100] * len(head) + (body if is_answer else [-100] * len(body))
        assert ids == tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
        with torch.no_grad():
            loss = theirs(torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()
        number = sum(label >= 0 for label in labels[1:])
        total, count = total + loss * number, count + number
    assert metrics_of(run)["validation/loss"] == pytest.approx(total / count, abs=1e-5)


def test_batches_of_a_number_of_tokens_learn_as_well(table, tmp_path):
    words = ["trainer.batch_tokens=600", f"run={tmp_path / 'run'}"]
    assert main(["train", str(table), *TINY, *words]) == 0


def test_the_server_answers_as_python_does(model):
    from helpers.serving import client_of

    asks = ["17 or 5?", "3 or 9?"]
    body = {"inputs": [{"prompt": text} for text in asks], "temperature": 0, "max_new": 9}
    with client_of(model) as client:
        results = client.post("/generate", json=body).json()["results"]
        assert [each["generated"] for each in results] == model.write(prompt=asks, max_new=9)
        empty = client.post("/generate", json={"inputs": [{"prompt": " "}]})
        assert empty.status_code == 422 and "message of the user" in empty.text


def test_a_conversation_or_a_message_can_be_looked_at(run, model, tmp_path):
    chat = chats().splits["test"].cells["messages"][0]
    assert model.embed(messages=chat).shape == model.embed(messages="17 or 5?").shape
    words = ["input.messages=17 or 5?", f"output={tmp_path / 'attend'}"]
    assert main(["attend", f"run={run}", *words]) == 0


def test_the_check_of_conversations_proposes_to_learn_their_answers(table, tmp_path, capsys):
    byte_gpt2(tmp_path / "gpt2")
    capsys.readouterr()
    assert main(["check", str(table)]) == 0
    assert " head=language backbone.causal=true\n" in capsys.readouterr().out
    assert main(["check", str(table), f"weights={tmp_path / 'gpt2'}"]) == 0
    assert capsys.readouterr().out.endswith("gpt2 head=language\n")


def test_answers_beyond_max_len_are_counted_before_the_training(tmp_path, capsys):
    path = tmp_path / "long.jsonl"

    def write(lengths):
        rows = [
            [{"role": "user", "content": f"{'a b ' * n}{i}"}, {"role": "assistant", "content": "c"}]
            for i, n in enumerate(lengths)
        ]
        path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))

    options = [str(path), *TINY[:3], "adapters.text.max_len=32", "data.fractions=[1,0,0]"]
    write([1, 40] * 10)
    assert main(["check", *options]) == 0
    line = "train: of 20 rows, 10 have no token of an answer within adapters.text.max_len"
    assert f"warning: {line}" in capsys.readouterr().out
    write([40] * 20)
    assert main(["check", *options]) == 1
    assert "none of 20 rows of the training split has" in capsys.readouterr().out
    (error,) = refused(capsys, ["train", *options, *TINY[3:], f"run={tmp_path / 'run'}"])
    assert "has a token of an answer within it, so there is nothing to learn" in error
