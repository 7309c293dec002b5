"""Conversations as texts: their messages, and the template that writes them as one text."""

from __future__ import annotations

import bisect
import functools
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dxn.core.errors import UserError
from dxn.core.untrusted import load_json, read_text, shortened
from dxn.tokenize.base import BadMedia

if TYPE_CHECKING:
    import jinja2

ROLES = ("system", "user", "assistant")
# Roles with other names, such as those of ShareGPT, Gemini and OpenAI.
SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",
}
# Keys of a message whether it is learned: of OpenAI and Mistral, and of axolotl.
LEARNED = ("weight", "train", "training")
# Messages of a model that has no template: each between two special tokens, after its role.
DEFAULT_SOURCE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}
{%- else %}{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
DEFAULT_TOKENS = ("<|im_start|>", "<|im_end|>")
FILE = "chat_template.json"  # of a model folder of dxn
MAX_REASON = 200  # characters of the message of a template
MAX_SOURCE = 100_000  # bytes of a template, which can come from a stranger
# Names of the special tokens in a template, as transformers has them.
TOKENS = re.compile(r"[a-z]+_token")

# With the keys role and content: a text, or a list of parts. A part has a type, such as text or
# image, and a text.
Message = dict[str, Any]
TEXT = "text"  # type of a part
FILE_KEYS = ("path", "url")  # of a part with a file, besides its type
WORD = "question"  # content of a message that shows how a template writes contents


@dataclass(frozen=True)
class Conversation:
    """A conversation as a text.

    Args:
        messages: The messages.
        text: The text that a template makes of them.
        answers: Start and stop of each answer of the assistant in characters. An answer includes
            the token that ends it.
        num_files: Number of files in the messages, which are other inputs.
    """

    messages: Sequence[Message]
    text: str
    answers: Sequence[tuple[int, int]]
    num_files: int = 0

    def __len__(self) -> int:
        return len(self.text)


def is_conversation(cell: Any) -> bool:
    """Whether a cell is meant as a conversation: a list of messages."""
    if isinstance(cell, str):  # most cells, for which abstract classes would take longer
        return False
    return isinstance(cell, Sequence) and bool(cell) and isinstance(cell[0], Mapping)


def read_messages(cell: Sequence[Any]) -> list[Message]:
    """Check the messages of a conversation to learn, and return their roles and contents.

    Raises:
        BadMedia: If a message has no role, an unknown role or no text, or none is an answer.
    """
    messages = check_messages(cell)
    if not any(map(_is_target, messages)):
        raise BadMedia("no message of the assistant, so there is no answer to learn from")
    return messages


def _is_target(message: Message) -> bool:
    """Return whether a checked message is an answer to learn."""
    return message["role"] == "assistant" and message.get(LEARNED[0], 1) != 0


def check_messages(cell: Sequence[Any]) -> list[Message]:
    """Check messages, and return their roles and contents.

    Raises:
        BadMedia: If a message has no role, an unknown role or no text.
    """
    messages: list[Message] = []
    for number, message in enumerate(cell, 1):
        if not isinstance(message, Mapping):
            raise BadMedia(
                f"message {number} must have a role and a content, got {shortened(message)}"
            )
        role, content = message.get("role"), message.get("content")
        if role is None and "from" in message:  # as in ShareGPT
            role, content = message["from"], message.get("value")
        if isinstance(role, str):
            name = role.strip().lower()
            role = SPEAKERS.get(name, name if name in ROLES else role)
        if message.get("tool_calls") or message.get("function_call"):
            raise BadMedia(
                f"message {number} has tool calls, which cannot be read; write them as a text, or "
                "remove the conversation"
            )
        if role is None:
            raise BadMedia(
                f"message {number} has no role; write {', '.join(ROLES[:-1])} or {ROLES[-1]}"
            )
        if role not in ROLES:
            raise BadMedia(
                f"message {number}: the role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got "
                f"{shortened(role)}"
            )
        checked = _content(content, f"message {number} ({role})")
        messages.append({"role": role, "content": checked})
        if role == "assistant" and not _is_learned(message, number):
            messages[-1][LEARNED[0]] = 0
    return messages


def _is_learned(message: Mapping[str, Any], number: int) -> bool:
    """Return whether an answer is a target, which a message can say with a key of LEARNED."""
    values = {key: message[key] for key in LEARNED if message.get(key) is not None}
    for key, value in values.items():
        if value not in (0, 1):
            raise BadMedia(f"message {number}: {key} must be 0 or 1, got {shortened(value)}")
    return all(values.values())


def _content(content: Any, where: str) -> str | list[dict[str, str]]:
    """Return the text of a message, or its parts if not all of them are texts."""
    parts = content if isinstance(content, list) else [{"type": TEXT, TEXT: content}]
    checked: list[dict[str, str]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise BadMedia(
                f"{where}: a part of the content must have a type, got {shortened(part)}"
            )
        if kind != TEXT and _has_file(part):
            raise BadMedia(
                f"{where}: a conversation can have one file of the type {shortened(kind)}, given "
                f"by {' or '.join((kind, *FILE_KEYS))}, got {shortened(part)}"
            )
        text = part.get(TEXT, "")
        is_missing = text is None and (kind != TEXT or content is None)
        if not is_missing and not isinstance(text, str):
            name = "text of a part" if isinstance(content, list) else "content"
            raise BadMedia(f"{where}: the {name} must be a text, got {shortened(text)}")
        checked.append({"type": kind, TEXT: text or ""} if kind == TEXT else {"type": kind})
    text = "".join(part.get(TEXT, "") for part in checked)
    if all(part["type"] == TEXT for part in checked):
        if not text.strip():
            raise BadMedia(f"{where} is empty; write a content, or remove it")
        return text
    return checked


def split_files(cell: Any) -> tuple[Any, dict[str, Any]]:
    """Return messages without the files in their contents, and the file of each type.

    A part such as {"type": "image", "path": "1.png"} becomes {"type": "image"}. Messages with
    several files of a type, or with parts of another form, are returned as they are.
    """
    messages: list[Any] = []
    files: dict[str, Any] = {}
    for message in cell if is_conversation(cell) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts: list[Any] = []
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind != TEXT and _has_file(part):
                kind = kind.removesuffix("_url")  # OpenAI's type of an image
                keys = (kind, *FILE_KEYS, f"{kind}_url")
                file = next((part[key] for key in keys if part.get(key) is not None), None)
                file = file.get("url") if isinstance(file, Mapping) else file
                if kind in files or not isinstance(file, str):
                    return cell, {}
                files[kind] = file
                part = {"type": kind}
            parts.append(part)
        messages.append({**message, "content": parts} if parts else message)
    return (messages, files) if files else (cell, {})


def _has_file(part: Mapping[str, Any]) -> bool:
    # A table adds the keys of other parts, without a value.
    return any(value is not None for key, value in part.items() if key not in ("type", TEXT))


def text_of(message: Message) -> str:
    """Return the text of a message, without its other parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get(TEXT, "") for part in content)


def changed_texts(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    """Return messages with changed texts."""

    def changed(content: str | Sequence[Mapping[str, str]]) -> Any:
        if isinstance(content, str):
            return change(content)
        return [{**part, TEXT: change(part[TEXT])} if TEXT in part else part for part in content]

    return [{**message, "content": changed(message["content"])} for message in messages]


def count_files(messages: Sequence[Message]) -> int:
    """Return the number of files in messages."""
    contents = [m["content"] for m in messages if not isinstance(m["content"], str)]
    return sum(TEXT not in part for content in contents for part in content)


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template that writes messages as one text, as `apply_chat_template` of transformers.

    It runs in the sandbox of Jinja.

    Args:
        source: The template.
        tokens: Special tokens that it can name, such as {"eos_token": "</s>"}.
    """

    source: str = DEFAULT_SOURCE
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatTemplate, (self.source, dict(self.tokens))  # without the cached properties

    def adapted(self, messages: Sequence[Message], marker: str | None) -> list[Message]:
        """Return messages with contents that the template can write: texts, or lists of parts.

        Args:
            messages: The messages.
            marker: Token that stands for a file, in a template of texts. None: the files are before
                the text.
        """

        def content(old: str | Sequence[Mapping[str, str]]) -> Any:
            if isinstance(old, str):
                parts = [{"type": TEXT, TEXT: old}]
                return parts if not self._writes(WORD) and self._writes_parts else old
            if marker is not None and self._writes_parts:
                return old
            file = "" if marker is None else f"{marker}\n"
            return "".join(part.get(TEXT, file) for part in old)

        return [{**message, "content": content(message["content"])} for message in messages]

    @cached_property
    def _writes_parts(self) -> bool:
        return self._writes([{"type": TEXT, TEXT: WORD}])

    def _writes(self, content: Any) -> bool:
        """Whether the template writes a content, and not the Python list of its parts."""
        try:
            text = self.render([{"role": "user", "content": content}])
        except BadMedia:
            return False
        return WORD in text and "{'type'" not in text

    @property
    def is_default(self) -> bool:
        """Whether it is the template of models without one."""
        return self.source == DEFAULT_SOURCE

    def render(self, messages: Sequence[Message], *, prompt: bool = False, mark: str = "") -> str:
        """Return the text of messages.

        Args:
            messages: The messages.
            prompt: Whether the start of an answer follows them.
            mark: Text to add before and after each block `{% generation %}`.

        Raises:
            BadMedia: If the template refuses the messages.
        """
        # Jinja takes a while to import, and few models have a template.
        from dxn.tokenize.text.chat_sandbox import MARK

        values = {
            **self.tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": prompt,
            MARK: mark,
        }
        try:
            return _compiled(self.source).render(values)
        # A template is a program, so it can raise anything, such as a RecursionError.
        except Exception as error:
            reason = " ".join(str(error).split())[:MAX_REASON] or type(error).__name__
            raise BadMedia(f"the chat template refuses the messages: {reason}") from error

    def conversation(self, messages: Sequence[Message]) -> Conversation:
        """Return the text of messages, and where its answers are.

        They are the blocks `{% generation %}` of the template. Without such blocks, an answer is
        what its message adds to the text of the messages before it.

        Raises:
            BadMedia: If the template refuses the messages, or the text of the first
                messages is not the start of the whole text.
        """
        if self._has_blocks:
            mark = secrets.token_hex(16)
            pieces = self.render(messages, mark=mark).split(mark)
            text = "".join(pieces)
            stops: list[int] = []
            for piece in pieces:
                stops.append(len(piece) + (stops[-1] if stops else 0))
            answers = [(stops[i - 1], stops[i]) for i in range(1, len(pieces), 2)]
            said = [message for message in messages if message["role"] == "assistant"]
            if not all(map(_is_target, said)):
                if len(said) != len(answers):
                    raise BadMedia(
                        f"the chat template marks {len(answers)} answers of {len(said)}, so it is "
                        f"unknown which of them has the {LEARNED[0]} 0"
                    )
                pairs = zip(answers, said, strict=True)
                answers = [answer for answer, message in pairs if _is_target(message)]
            return Conversation(
                messages, text, [self._with_end(text, *answer) for answer in answers]
            )
        text = self.render(messages)
        answers = []
        for i, message in enumerate(messages):
            if not _is_target(message):
                continue
            before = self.render(messages[:i], prompt=True)
            until = self.render(messages[: i + 1])
            if not (
                text.startswith(before) and text.startswith(until) and len(before) < len(until)
            ):
                raise BadMedia(
                    "the chat template writes the first messages of a conversation differently "
                    "than in the whole conversation, so it is unknown which tokens are the "
                    "answer; mark them by {% generation %} in the template"
                )
            answers.append(self._without_space(len(before), until))
        return Conversation(messages, text, answers)

    @cached_property
    def end(self) -> str:
        """Text that ends an answer, such as "<|im_end|>". It is a line break if nothing else is."""
        word = "answer"
        asked = [{"role": "user", "content": WORD}, {"role": "assistant", "content": word}]
        text = self.render(self.adapted(asked, None))
        rest = text.rpartition(word)[2]
        return rest.strip() or rest

    @cached_property
    def _has_blocks(self) -> bool:
        return re.search(r"\{%-?\s*generation\b", self.source) is not None

    def _with_end(self, text: str, start: int, stop: int) -> tuple[int, int]:
        """Extend an answer over the text that ends it."""
        return start, stop + len(self.end) * text.startswith(self.end, stop)

    def _without_space(self, start: int, text: str) -> tuple[int, int]:
        """Return the span of an answer at the end of a text, without the line breaks after it."""
        stripped = text.rstrip()
        ends_turn = self.end.strip() and stripped.endswith(self.end)
        return start, len(stripped if ends_turn else text)

    def shorter(self, conversation: Conversation, fits: Callable[[str], bool]) -> Conversation:
        """Return a conversation without its oldest turns, as few as are needed.

        A turn starts with a message of the user. The messages of the system at the start, and the
        last turn with an answer to learn, are kept.

        Args:
            conversation: The conversation.
            fits: Function that returns whether a text is short enough.
        """
        messages = conversation.messages
        roles = [message["role"] for message in messages]
        lead = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
        # Without an answer, as in a text among conversations, the last message is kept.
        answers = [i for i, message in enumerate(messages) if _is_target(message)]
        last = answers[-1] if answers else len(roles) - 1
        starts = [i for i in range(lead + 1, last + 1) if roles[i] == "user"]
        if not starts:
            return conversation

        def rest(start: int) -> Conversation:
            return self.conversation([*messages[:lead], *messages[start:]])

        number = bisect.bisect_left(starts, True, key=lambda start: fits(rest(start).text))
        return rest(starts[min(number, len(starts) - 1)])

    def save(self, path: Path) -> None:
        """Write the template to a file."""
        content = {"template": self.source, "tokens": dict(self.tokens)}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def load_template(path: Path) -> ChatTemplate:
    """Read the file of `ChatTemplate.save`, which may come from an untrusted source.

    Raises:
        UserError: If it is not such a file, or not a template.
    """
    content = load_json(path)
    source = content.get("template") if isinstance(content, dict) else None
    if not isinstance(source, str):
        raise UserError(f"{path}: must have the key template; copy the model again")
    return _checked(source, _special_tokens(content.get("tokens")), path)


def read_template(folder: Path) -> ChatTemplate | None:
    """Read the chat template of a public checkpoint, or of a model of dxn. None: it has none.

    Raises:
        UserError: If it is not a Jinja template.
    """
    if (folder / FILE).exists():
        return load_template(folder / FILE)
    path = folder / "tokenizer_config.json"
    config = load_json(path, allow_nan=True, allow_links=True) if path.exists() else {}
    config = config if isinstance(config, dict) else {}
    source = config.get("chat_template")
    if isinstance(source, list):  # several templates by name
        templates = [template for template in source if isinstance(template, Mapping)]
        by_name = {template.get("name"): template.get("template") for template in templates}
        source = by_name.get("default")
    file = folder / "chat_template.jinja"
    if file.exists():
        path, source = file, read_text(file, max_bytes=MAX_SOURCE, allow_links=True)
    if not isinstance(source, str):
        return None
    return _checked(source, _special_tokens(config), path)


def _special_tokens(config: Any) -> dict[str, str]:
    """Return the special tokens of a configuration, each of which is a text or has a content."""
    tokens: dict[str, str] = {}
    for name, value in config.items() if isinstance(config, Mapping) else ():
        text = value.get("content") if isinstance(value, Mapping) else value
        if TOKENS.fullmatch(name) and isinstance(text, str):
            tokens[name] = text
    return tokens


def _checked(source: str, tokens: Mapping[str, str], path: Path) -> ChatTemplate:
    """Return a template after checking its size and its syntax."""
    if len(source.encode()) > MAX_SOURCE:
        raise UserError(
            f"{path}: the chat template must have at most {MAX_SOURCE:,} bytes, got "
            f"{len(source.encode()):,}"
        )
    try:
        _compiled(source)
    except Exception as error:  # such as a RecursionError
        raise UserError(f"{path}: the chat template is not valid Jinja: {error}") from error
    return ChatTemplate(source, tokens)


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Compile a template, with what transformers adds to Jinja."""
    from dxn.tokenize.text.chat_sandbox import compiled

    return compiled(source)
