"""Conversations: chat templates compared with transformers, and the loss mask."""

import json
import pickle
import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from dxn.core.errors import UserError
from dxn.tasks import IGNORED, Language
from dxn.tokenize import TextAdapter, TokenizerOptions
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.chat import (
    ChatTemplate,
    Conversation,
    check_messages,
    is_conversation,
    load_template,
    read_messages,
    read_template,
)

# Templates in the styles of ChatML, Llama 3 and Gemma.
CHATML = """\
{% for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content | trim + "<|im_end|>" + "\\n" }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
{%- endif %}"""
LLAMA = """\
{{- bos_token }}
{%- if messages[0].role != "system" %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nBe kind.<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|start_header_id|>" + message["role"] + "<|end_header_id|>\\n\\n" }}
    {{- message["content"] | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{%- endif %}"""
GEMMA = """\
{{ bos_token }}{% set lead = "" %}
{% if messages[0]["role"] == "system" %}
{% set lead = messages[0]["content"] ~ "\\n\\n" %}{% set turns = messages[1:] %}
{% else %}{% set turns = messages %}{% endif %}
{% for message in turns %}
{% if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
{{ raise_exception("roles must alternate") }}{% endif %}
{% set role = "model" if message["role"] == "assistant" else "user" %}
{{ "<start_of_turn>" ~ role ~ "\\n" ~ (lead if loop.first else "") }}
{{- message["content"].strip() ~ "<end_of_turn>\\n" }}{% endfor %}
{% if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}"""
BLOCKS = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}
<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}

{%- else %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endif %}
{%- endfor %}"""
STYLES = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "blocks": BLOCKS}
TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<s>", "</s>"),
)
CHAT = [
    {"role": "system", "content": "Answer in a word. "},
    {"role": "user", "content": "What is red and round?"},
    {"role": "assistant", "content": "  An apple - é 🙂 <b>"},
    {"role": "user", "content": "And green?\n\nTell me"},
    {"role": "assistant", "content": "\nA pear.\n"},
]


@pytest.fixture(scope="module")
def vocabulary():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([message["content"] for message in CHAT] * 3, trainer)
    return tokenizer


def theirs(vocabulary, source):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, bos_token="<s>", eos_token="</s>", chat_template=source
    )


def ours(source):
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def adapter_of(vocabulary, template, max_len=512):
    adapter = TextAdapter(8, max_len=max_len)
    adapter.use_vocabulary(Tokenizer.from_str(vocabulary.to_str()))
    adapter.tokenizer.reader.template = template
    return adapter


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:], CHAT[:2], CHAT[1:4]])
@pytest.mark.parametrize("prompt", [False, True])
def test_a_template_writes_what_transformers_writes(vocabulary, style, chat, prompt):
    expected = theirs(vocabulary, STYLES[style]).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=prompt
    )
    assert ours(STYLES[style]).render(chat, prompt=prompt) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson }}",
        "{{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ loop.length }}"
        "{{ loop.last }}{{ m.content | upper }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ tools is none }}{{ x is defined }}",
        "{% macro f(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
        "{% for m in messages[::-1] recursive %}{{ loop.index0 }}{% else %}none{% endfor %}",
        "{{ strftime_now('%Y-%m-%d') }} {{ messages | map(attribute='role') | join(', ') }}",
        "{{ messages[0].content.replace('word', 'sentence') ~ 3 ~ [1, 2] }}{{ 'ab' * 3 }}",
        "{{ '%s: %05d' % ('a', 7) }}{{ '{:>9}'.format('b') }}{{ 'c'.center(5) | indent(3, true) }}",
        "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}"
        "{% endfor %}",
    ],
)
def test_parts_of_the_language_are_those_of_transformers(vocabulary, source):
    expected = theirs(vocabulary, source).apply_chat_template(CHAT, tokenize=False)
    assert ours(source).render(CHAT) == expected


@pytest.mark.parametrize("style", ["chatml", "llama", "gemma"])
def test_without_blocks_the_answers_are_found_by_the_texts_of_the_first_messages(style):
    conversation = ours(STYLES[style]).conversation(CHAT)
    answers = [conversation.text[a:b] for a, b in conversation.answers]
    end = {"chatml": "<|im_end|>", "llama": "<|eot_id|>", "gemma": "<end_of_turn>"}[style]
    assert answers == [f"An apple - é 🙂 <b>{end}", f"A pear.{end}"]
    assert ours(STYLES[style]).end == end


def test_token_ids_and_loss_mask_of_blocks_are_those_of_transformers(vocabulary):
    tokenizer = theirs(vocabulary, BLOCKS)
    expected = tokenizer.apply_chat_template(
        CHAT, return_dict=True, return_assistant_tokens_mask=True
    )
    adapter = adapter_of(vocabulary, ours(BLOCKS))
    sample = adapter.tokenizer(adapter.tokenizer.reader.read(CHAT))
    assert sample["ids"].tolist() == expected["input_ids"]
    assert (sample["answers"] >= 0).int().tolist() == expected["assistant_masks"]
    # The characters of both answers, without the special tokens.
    assert sample["answers"].clamp(min=0).sum() == len(CHAT[2]["content"] + CHAT[4]["content"])


def test_spaces_at_the_start_of_an_answer_are_learned_if_the_offsets_lack_spaces(vocabulary):
    other = Tokenizer.from_str(vocabulary.to_str())
    other.post_processor = processors.ByteLevel(trim_offsets=True)  # as in GPT-2
    masks = []
    for each in (vocabulary, other):
        adapter = adapter_of(each, ours(BLOCKS))
        sample = adapter.tokenizer(adapter.tokenizer.reader.read(CHAT))
        masks.append(sample["answers"].tolist())
    assert [value >= 0 for value in masks[0]] == [value >= 0 for value in masks[1]]


def test_only_tokens_of_answers_are_targets(vocabulary):
    adapter = adapter_of(vocabulary, ours(LLAMA))
    task = Language()
    task.target.bind({"chat": adapter})
    sample = {"chat": adapter.tokenizer(adapter.tokenizer.reader.read(CHAT))}
    window = task.target.encode(None, sample)
    learned = window.ids[window.ids != IGNORED].tolist()
    text = vocabulary.decode(learned, skip_special_tokens=False)
    assert text == "An apple - é 🙂 <b><|eot_id|>A pear.<|eot_id|>"
    assert "answers" not in sample["chat"]
    assert len(window.ids) == len(sample["chat"]["ids"]) - 1
    kept = window.ids != IGNORED
    assert torch.equal(window.ids[kept], sample["chat"]["ids"][1:][kept])


def test_the_end_token_after_a_block_is_learned_as_well():
    source = BLOCKS.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    conversation = ours(source).conversation(CHAT[1:3])
    ((start, stop),) = conversation.answers
    assert conversation.text[start:stop] == CHAT[2]["content"] + "<|im_end|>"


def test_the_default_template_marks_answers_and_ends_them():
    conversation = ChatTemplate().conversation(CHAT[1:3])
    assert conversation.text == (
        "<|im_start|>user\nWhat is red and round?<|im_end|>\n"
        "<|im_start|>assistant\n  An apple - é 🙂 <b><|im_end|>\n"
    )
    ((start, stop),) = conversation.answers
    assert conversation.text[start:stop] == "  An apple - é 🙂 <b><|im_end|>"
    assert ChatTemplate().end == "<|im_end|>"


def test_a_template_whose_first_messages_change_later_is_refused():
    source = "{% for m in messages %}{{ messages | length }}{{ m.role }}{{ m.content }}{% endfor %}"
    with pytest.raises(BadMedia, match="writes the first messages of a conversation differently"):
        ours(source).conversation(CHAT)


def test_a_refusal_of_a_template_is_one_sentence():
    with pytest.raises(BadMedia, match=r"^the chat template refuses the messages: roles must alt"):
        ours(GEMMA).conversation([CHAT[1], CHAT[1], CHAT[2]])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ 'a'.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(3) }}", "unsafe"),
        ("{% include 'other' %}", "no loader"),
        ("{{ messages[9].content }}", "has no"),
    ],
)
def test_a_template_that_fails_or_leaves_the_sandbox_is_one_sentence(source, message):
    with pytest.raises(BadMedia, match=message) as error:
        ours(source).render(CHAT)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_template_is_refused_with_its_name(tmp_path):
    file = tmp_path / "chat_template.jinja"
    file.write_text("{% for %}", encoding="utf-8")
    with pytest.raises(UserError, match=r"chat_template\.jinja: the chat template is not valid"):
        read_template(tmp_path)
    file.write_text("x" * 100_001, encoding="utf-8")
    with pytest.raises(UserError, match=r"chat_template\.jinja: must have at most 100,000 bytes"):
        read_template(tmp_path)
    path = tmp_path / "chat_template.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="must have the key template"):
        read_template(tmp_path)


def test_the_template_of_a_checkpoint_is_read_from_each_of_its_places(tmp_path, vocabulary):
    assert read_template(tmp_path) is None
    theirs(vocabulary, LLAMA).save_pretrained(tmp_path)
    template = read_template(tmp_path)
    assert template.source == LLAMA and template.tokens["bos_token"] == "<s>"
    assert template.render(CHAT).startswith("<s><|start_header_id|>system")
    config = {
        "chat_template": [
            {"name": "tools", "template": "x"},
            {"name": "default", "template": CHATML},
        ],
        "eos_token": {"content": "</s>", "lstrip": False},
    }
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_template(tmp_path) == ChatTemplate(CHATML, {"eos_token": "</s>"})


def test_a_template_is_saved_with_its_tokens_and_pickled(tmp_path):
    template = ours(LLAMA)
    template.save(tmp_path / "chat_template.json")
    assert load_template(tmp_path / "chat_template.json") == template
    template.render(CHAT)
    assert pickle.loads(pickle.dumps(template)) == template


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "Hi"}, "message 2 has no role; write system, user or assistant"),
        ({"role": "tool", "content": "Hi"}, "must be system, user or assistant, got 'tool'"),
        (
            {"role": "assistant", "content": "Hi", "weight": 0.5},
            "message 2: weight must be 0 or 1, got 0.5",
        ),
        ({"role": "assistant", "content": "Hi", "weight": 0}, "no message of the assistant"),
        ({"role": "assistant", "content": " "}, r"message 2 \(assistant\) is empty"),
        ({"role": "assistant"}, r"message 2 \(assistant\) is empty"),
        ({"role": "assistant", "content": 3}, "the content must be a text, got 3"),
        ({"role": "user", "content": "Hi"}, "no message of the assistant"),
        ("Hi", "message 2 must have a role and a content, got 'Hi'"),
        (
            {"role": "user", "content": [{"type": "image", "path": "1.png"}]},
            "one file of the type 'image', given by image or path or url, got",
        ),
    ],
)
def test_a_wrong_message_is_named_with_the_cure(message, reason):
    cell = [{"role": "user", "content": "Hello"}, message]
    assert is_conversation(cell)
    with pytest.raises(BadMedia, match=reason):
        read_messages(cell)


def test_parts_of_text_are_joined_and_other_keys_are_left_out():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    cell = [{"role": "user", "content": parts, "name": "x"}, {"role": "assistant", "content": "3"}]
    expected = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "3"}]
    assert read_messages(cell) == expected


@pytest.mark.parametrize("style", STYLES)
def test_a_long_conversation_loses_its_oldest_turns(vocabulary, style):
    turns = [CHAT[0]]
    for i in range(9):
        turns += [
            {"role": "user", "content": f"question {i}"},
            {"role": "assistant", "content": f"answer {i}"},
        ]
    template = ours(STYLES[style])
    for max_len in (100, 150, 200):
        adapter = adapter_of(vocabulary, template, max_len)
        tokenizer = adapter.tokenizer
        raw = tokenizer.reader.read(turns)
        total = len(vocabulary.encode(raw.text, add_special_tokens=False).ids)
        assert tokenizer.cut(raw) == (max_len, total)
        ids = tokenizer(raw)["ids"].tolist()
        # The messages of the system and the newest turns that fit.
        sizes = []
        for start in range(1, len(turns), 2):
            text = template.render([turns[0], *turns[start:]])
            sizes.append(vocabulary.encode(text, add_special_tokens=False).ids)
        assert ids == next(each for each in sizes if len(each) <= max_len)


def test_a_turn_that_is_too_long_alone_is_truncated(vocabulary):
    adapter = adapter_of(vocabulary, ours(CHATML), max_len=30)
    tokenizer = adapter.tokenizer
    raw = tokenizer.reader.read(CHAT)
    last = tokenizer.reader.template.conversation([CHAT[0], *CHAT[3:]])
    expected = vocabulary.encode(last.text, add_special_tokens=False).ids[:30]
    sample = tokenizer(raw)
    assert sample["ids"].tolist() == expected
    assert len(sample["answers"]) == 30


def test_a_trained_vocabulary_gets_the_special_tokens_of_the_default_template():
    for kind in ("bpe", "word", "character", "unigram", "wordpiece"):
        adapter = TextAdapter(8, vocab_size=300, tokenizer=TokenizerOptions(kind=kind))
        reader = adapter.tokenizer.reader
        assert reader.learn([CHAT]) == ""
        raws = [reader.read(CHAT) for _ in range(3)]
        adapter.fit(raws)
        assert adapter.embedding.num_embeddings == adapter.tokenizer.vocabulary.get_vocab_size()
        sample = adapter.tokenizer(raws[0])
        start = adapter.tokenizer.vocabulary.token_to_id("<|im_start|>")
        assert sample["ids"].tolist().count(start) == len(CHAT)
        assert 0 < int((sample["answers"] >= 0).sum()) < len(sample["ids"])


def test_texts_among_conversations_are_messages_of_the_user():
    adapter = TextAdapter(8)
    reader = adapter.tokenizer.reader
    note = reader.learn([CHAT, "Hello"])
    assert note == "1 cells are not lists of messages: each is read as a message of the user"
    raw = reader.read("Hello")
    assert isinstance(raw, Conversation) and not raw.answers
    assert reader.learn(["Hello"]) == "" and reader.template is None
    with pytest.raises(BadMedia, match="was not trained on conversations"):
        reader.read(CHAT)


def test_an_adapter_is_saved_with_its_template(tmp_path):
    adapter = TextAdapter(8, vocab_size=300)
    reader = adapter.tokenizer.reader
    reader.learn([CHAT])
    adapter.fit([reader.read(CHAT)])
    adapter.save(tmp_path, "text")
    other = TextAdapter(8)
    other.load(tmp_path, "text")
    assert other.tokenizer.reader.template == ChatTemplate()
    raw = other.tokenizer.reader.read(CHAT)
    assert torch.equal(other.tokenizer(raw)["ids"], adapter.tokenizer(raw)["ids"])


def test_random_contents_keep_ids_and_mask_of_transformers(vocabulary):
    tokenizer = theirs(vocabulary, BLOCKS)
    adapter = adapter_of(vocabulary, ours(BLOCKS))
    rand = random.Random(0)
    letters = ["a", " ", "\n", "\t", "é", "🙂", ".", "<", "  ", "word ", "日本"]
    for _ in range(50):
        chat = []
        for i in range(rand.randint(1, 3) * 2):
            content = "".join(rand.choices(letters, k=rand.randint(1, 8))) + "x"
            chat.append({"role": ("user", "assistant")[i % 2], "content": content})
        expected = tokenizer.apply_chat_template(
            chat, return_dict=True, return_assistant_tokens_mask=True
        )
        sample = adapter.tokenizer(adapter.tokenizer.reader.read(chat))
        assert sample["ids"].tolist() == expected["input_ids"]
        got = (sample["answers"] >= 0).int().tolist()
        assert got == expected["assistant_masks"], chat


def test_messages_of_sharegpt_have_other_keys():
    messages = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    assert read_messages(messages) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("User ", "user"),
        ("ASSISTANT", "assistant"),
        ("model", "assistant"),
        ("developer", "system"),
    ],
)
def test_roles_of_other_tools_are_known(name, role):
    assert check_messages([{"role": name, "content": "Hi"}])[0]["role"] == role


@pytest.mark.parametrize("source", [BLOCKS, CHATML])
def test_answers_of_weight_0_are_read_but_not_learned(vocabulary, source):
    said = [("user", "one"), ("assistant", "wrong"), ("user", "two"), ("assistant", "right")]
    cell = [{"role": role, "content": text} for role, text in said]
    for key in ("weight", "train"):
        cell[1][key], cell[3][key] = 0, None
        reader = adapter_of(vocabulary, ours(source)).tokenizer.reader
        raw = reader.read(cell)
        assert "wrong" in raw.text
        (answer,) = [raw.text[start:stop] for start, stop in raw.answers]
        assert "right" in answer and "wrong" not in answer


def test_a_long_text_among_conversations_is_truncated(vocabulary):
    adapter = adapter_of(vocabulary, ours(BLOCKS), max_len=8)
    sample = adapter.tokenizer(adapter.tokenizer.reader.read("word " * 50))
    assert len(sample["ids"]) == 8


def test_tool_calls_are_named():
    with pytest.raises(BadMedia, match="message 1 has tool calls"):
        read_messages([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}])
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    with pytest.raises(BadMedia, match=r"^message 2 has tool calls, which cannot be read"):
        read_messages([{"role": "user", "content": "Hi"}, calls])


def test_a_long_conversation_keeps_its_last_answer_to_learn(vocabulary):
    said = [("user", "one"), ("assistant", "right " * 50), ("user", "two"), ("assistant", "wrong")]
    cell = [{"role": role, "content": text} for role, text in said]
    cell[3]["weight"] = 0
    tokenizer = adapter_of(vocabulary, ours(BLOCKS), max_len=40).tokenizer
    assert (tokenizer(tokenizer.reader.read(cell))["answers"] >= 0).any()
