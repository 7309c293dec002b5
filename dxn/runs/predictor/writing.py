"""Generated texts: continuations of prompts, and texts for samples.

`Predictor.write`, `dxn generate` and `dxn serve` use the same `Writer`, so they write equal texts.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import Generation
from dxn.models.decoding.language_model import LanguageModel, prefix_of
from dxn.models.decoding.search import BatchSampler, Sampler, SampleSearch, greedy, make_sampler
from dxn.models.model import MultimodalModel
from dxn.tasks import Task
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.chat import TEXT, ChatTemplate, Message, changed_texts, count_files, text_of
from dxn.tokenize.text.tokenizer import special_ends
from dxn.tokenize.text.vocabulary import ENDS, encode, token_of
from dxn.training.device import to_device

MAX_SEED = 2**63 - 1  # of torch.manual_seed
MAX_SCALE = 1e6  # of logits: those that are not finite have no most probable token
TAIL = 16  # tokens of a prompt that are decoded together with the new ones
UNFINISHED = "\ufffd"  # stands for the first bytes of a character whose last bytes are missing
# A decoder of words removes the space before an apostrophe when "t" follows, as in "don't".
UNSURE = f" '’{UNFINISHED}"  # is passed on only when more follows

# To decode unfinished values takes at most one of so many parts of the time.
PARTS = 10

Decode: TypeAlias = Callable[[list[int]], str]


class Cancelled(Exception):
    """No text of a batch needs another token."""


@dataclass(eq=False)
class Text:
    """One text to generate, or one value of another kind, such as a picture.

    Args:
        prompt: The text to continue, for a language model.
        is_answer: Whether the prompt is a conversation, of which only the answer is the text.
        shows_prompt: Whether the text of a language model starts with the prompt.
        max_new: Maximum number of new tokens.
        stops: Texts that end the text. It does not contain them.
        item: The prepared sample to describe, for a model that writes a text for a sample, or the
            inputs before the prompt.
        samples: The samples that the item belongs to, which collate it.
        create: Name of the input that is created from the others of the item. "": the model writes
            texts.
        guidance: Scale of the classifier-free guidance of a created input.
        new_sampler: Function that returns the sampler of this text, which chooses its next token.
            None: the search of the task, or the most probable token.
        on_text: Function that is called with each new part of the text, or with an unfinished value
            of another kind, while it is generated.
        on_end: Function that is called when the text is complete, although others of its batch may
            go on.
        is_cancelled: Whether nobody waits for the text any more.
        text: The text, or the raw value of the input that is created.
        prompt_ids: Token ids of the prompt.
        ids: Token ids of the new text, without the end token.
        is_complete: Whether it is the complete text.
        is_stopped: Whether the text was ended by one of the stops.
    """

    prompt: str = ""
    is_answer: bool = False
    shows_prompt: bool = True
    max_new: int = 200
    stops: Sequence[str] = ()
    item: Mapping[str, Any] | None = None
    samples: Samples | None = None
    create: str = ""
    guidance: float | None = None
    new_sampler: Callable[[], Sampler] | None = None
    on_text: Callable[[Any], None] | None = None
    on_end: Callable[[], None] | None = None
    is_cancelled: bool = False
    text: Any = ""
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    is_complete: bool = False
    is_stopped: bool = False
    sampler: Sampler = greedy

    def start(self) -> None:
        """Forget an attempt that failed with its batch."""
        self.text = ""
        self.ids = []
        self.is_complete = self.is_stopped = False
        self.sampler = greedy if self.new_sampler is None else self.new_sampler()

    @property
    def is_done(self) -> bool:
        """Whether no further token is needed."""
        return self.is_cancelled or self.is_complete

    def add(self, ids: Sequence[int], decode: Decode) -> None:
        """Add tokens, and pass on the text that they complete."""
        if self.is_done:
            return
        self.ids += ids
        if self.on_text is None and not self.stops:
            return
        # Decoded from the start: the space between two tokens can depend on both of them.
        self.show(decode(self.ids))

    def show(self, value: Any) -> None:
        """Pass on the rest of an unfinished text, or an unfinished value. None: it has none."""
        if not isinstance(value, str):
            if value is not None and self.on_text is not None:
                self.on_text(value)
            return
        text = self._until_stop(value)
        if self.is_stopped:
            self._complete(text)
            return
        text = self._sure(text)
        if not self.text.startswith(text):
            self._set(text)

    def finish(self, text: Any) -> None:
        """Set the complete text, and pass on the rest of it, or set a complete value."""
        if not self.is_complete:
            self._complete(self._until_stop(text) if isinstance(text, str) else text)

    def _complete(self, text: Any) -> None:
        if isinstance(text, str):
            self._set(text)
        else:
            self.text = text
        self.is_complete = True
        if self.on_end is not None:
            self.on_end()

    def _until_stop(self, text: str) -> str:
        """Return the text before the first of the stops."""
        starts = [start for stop in self.stops if (start := text.find(stop)) >= 0]
        self.is_stopped = bool(starts)
        return text[: min(starts)] if starts else text

    def _sure(self, text: str) -> str:
        """Return the start of a text that further tokens do not change."""
        end = len(text.rstrip(UNSURE))
        for stop in self.stops:
            # The text can end with the start of a stop.
            sizes = range(min(len(stop) - 1, len(text)), 0, -1)
            size = next((size for size in sizes if text.endswith(stop[:size])), 0)
            end = min(end, len(text) - size)
        return text[:end]

    def _set(self, text: str) -> None:
        # A tokenizer can change the end of a text when it goes on, although it was passed on.
        num_known = len(self.text)
        while not text.startswith(self.text[:num_known]):
            num_known -= 1
        rest = text[num_known:]
        self.text = text
        if self.on_text is not None and rest:
            self.on_text(rest)


def usual_sampling(model: MultimodalModel, task: Task, create: str = "") -> dict[str, float]:
    """Return the default options of sampling of a model: temperature, top_k and top_p.

    A transcript, a translation or a caption has one most probable text. Only language models and
    created values other than texts are sampled.

    Args:
        model: The model.
        task: Its task.
        create: Name of the input that is created, if any.
    """
    if create:
        return {"temperature": 0.0 if model.adapter(create).has_vocabulary else 1.0}
    # A language model with further inputs describes them.
    is_sampled = not task.writes and len(model.inputs) == 1
    return {"temperature": float(is_sampled), **task.target.sampling}


def make_samplers(
    count: int,
    *,
    usual: Mapping[str, float],
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    device: torch.device,
) -> list[Callable[[], Sampler] | None]:
    """Return the function that makes the sampler of each text, see `Text.new_sampler`.

    Each text has a seed of its own, so that equal prompts get different texts, and a text does not
    depend on the others.

    Args:
        count: Number of texts.
        usual: See `usual_sampling`.
        temperature: Divisor of the logits. None: the usual one, or 1 if top_k or top_p is set.
        top_k: Number of most probable tokens to sample from. None: the usual one.
        top_p: Total probability of the tokens to sample from. None: the usual one.
        seed: Random seed.
        device: Device of the logits.

    Raises:
        UserError: If an option is out of range.
    """
    if temperature is None:
        is_chosen = top_k is not None or top_p is not None
        temperature = usual.get("temperature") or float(is_chosen)
    if temperature == 0:
        return [None] * count
    if top_k is None and "top_k" in usual:
        top_k = int(usual["top_k"])
    top_p = usual.get("top_p") if top_p is None else top_p
    new = partial(make_sampler, temperature, top_k=top_k, top_p=top_p, device=device)
    try:
        new()
    except ValueError as error:
        raise UserError(str(error)) from error  # the message names the option
    return [partial(new, seed=(seed + i) % MAX_SEED) for i in range(count)]


def batch_sampler(texts: Sequence[Text]) -> Sampler:
    """Return the sampler of a batch of texts."""
    samplers = [text.sampler for text in texts]
    if all(sampler is samplers[0] for sampler in samplers):
        return samplers[0]
    return BatchSampler(samplers)


class Writer:
    """Generates the texts of a model.

    Args:
        model: The model. It need not generate texts; then only `obstacle` can be used.
        task: Its task.

    Attributes:
        obstacle: Why the model does not generate texts. "": it does.
        takes_prompt: Whether it continues a prompt. Otherwise, it writes a text for a sample.
        template: The chat template of a model of conversations.
        marker: Token of a prompt that stands for another input. None: there is none.
    """

    def __init__(self, model: MultimodalModel, task: Task):
        self.model = model
        self.task = task
        self.obstacle = ""
        self.language: LanguageModel | None = None
        self.template: ChatTemplate | None = None
        self.marker: str | None = None
        if task.writes:
            return
        try:
            self.language = LanguageModel(model)
            tokenizer: Any = model.adapter(self.language.name).tokenizer
            self.tokenizer = tokenizer.vocabulary
            self.template = tokenizer.reader.template
            self.marker = tokenizer.options.marker
            self.adds_special = tokenizer.options.special_tokens
            # The first of these tokens that the vocabulary has ends a text.
            template_ends = () if self.template is None else (self.template.end,)
            self.end = token_of(self.tokenizer, (*template_ends, *ENDS))
            ends: list[int] = [] if self.end is None else [self.end]
            # A public checkpoint names its end tokens. A template can have another one.
            if public := task.target.ends:
                ends = [*public, *(ends if self.template is not None else ())]
                self.end = ends[0]
            self.ends = ends
        except ValueError as error:
            self.obstacle = str(error)

    @property
    def takes_prompt(self) -> bool:
        """Whether the model continues a prompt."""
        return self.language is not None

    def text_of(
        self,
        prompt: str,
        *,
        system: str = "",
        chat: bool | None = None,
        sample: Mapping[str, Any] | None = None,
    ) -> Text:
        """Return the text to generate for a prompt.

        Args:
            prompt: A text to continue, or a message of the user.
            system: Message of the system, which comes before that of the user.
            chat: Whether the prompt is a message. Default: if the model has a chat template.
            sample: Values or tensors of the other inputs, by their name. They are a part of the
                message, unless the prompt has the token that stands for them.

        Raises:
            UserError: If the model cannot continue the prompt.
        """
        if not (self.template is not None or system if chat is None else chat):
            if system:
                raise UserError("system: needs chat=true, a conversation; remove one of them")
            text = Text(prompt)
            if self.end is None and not self.encode(text):
                raise UserError(
                    "prompt: must not be empty, because this model's tokenizer has no end token to "
                    "start from"
                )
            self._check_files([prompt], sample)
            return text
        if self.template is None:
            raise UserError(
                f"{'system' if chat is None else 'chat'}: this model was not trained on "
                "conversations and has no chat template; remove the option, and the model "
                "continues the prompt"
            )
        if not prompt.strip():
            raise UserError("prompt: must not be empty, because it is a message of the user")
        content: Any = prompt
        kinds = self._kinds(sample)
        if kinds and self.marker is not None and self.marker not in prompt:
            content = [*({"type": kind} for kind in kinds), {"type": TEXT, TEXT: prompt}]
        messages = [{"role": "user", "content": content}]
        try:
            lead = [{"role": "system", "content": system}] if system else []
            return self.answer_to([*lead, *messages], sample)
        except BadMedia as error:
            raise UserError(f"prompt: {error}") from error

    def answer_to(
        self,
        messages: Sequence[Message],
        sample: Mapping[str, Any] | None = None,
        *,
        is_trusted: bool = True,
    ) -> Text:
        """Return the text to generate for the last message of a conversation.

        Args:
            messages: The messages.
            sample: Values or tensors of the other inputs, by their name.
            is_trusted: Whether a special token in a message is one. Otherwise, it is normal text,
                so that nobody can write the messages of another role.

        Raises:
            BadMedia: If the chat template, which the model must have, refuses the messages.
        """
        assert self.template is not None
        num_files = count_files(messages)
        # Special tokens are cut after their first character, and the pieces are encoded alone. A
        # template can change letters, but no digits.
        mark = f"\ue000{secrets.randbelow(10**20)}\ue000"
        if specials := [] if is_trusted else self._specials_in(messages):
            start = re.compile(rf"(?=(?:{'|'.join(map(re.escape, specials))}))(.)", re.I | re.S)
            messages = changed_texts(messages, partial(start.sub, rf"\1{mark}"))
        adapted = self.template.adapted(messages, self.marker)
        pieces = self.template.render(adapted, prompt=True).split(mark)
        texts = [Text(piece, is_answer=True) for piece in pieces]
        self._check_files(pieces, sample, num_files)
        if len(texts) == 1:
            return texts[0]
        ids = [token for text in texts for token in self.encode(text)]
        return Text("".join(pieces), is_answer=True, prompt_ids=ids)

    def _specials_in(self, messages: Sequence[Message]) -> list[str]:
        """Return the special tokens that messages contain."""
        whole = "\0".join(map(text_of, messages)).lower()
        added = self.tokenizer.get_added_tokens_decoder().values()
        specials = [token.content for token in added if token.special and len(token.content) > 1]
        return [content for content in specials if content.lower() in whole]

    def _kinds(self, sample: Mapping[str, Any] | None) -> list[str]:
        """Return the modalities of the other inputs that a sample has."""
        names = [name for name in self.model.inputs if sample and sample.get(name) is not None]
        return [self.model.adapter(name).modality for name in names]

    def _check_files(
        self, pieces: Sequence[str], sample: Mapping[str, Any] | None, num_files: int = 0
    ) -> None:
        """Raise UserError if a sample lacks the input of a file in messages, or of a marker."""
        marks = 0 if self.marker is None else sum(piece.count(self.marker) for piece in pieces)
        count = max(marks, num_files)
        if count > (number := len(self._kinds(sample))):
            marker = "" if self.marker is None else f" ({self.marker})"
            raise UserError(
                f"prompt: has the places of {count} other inputs{marker}, but {number} of these "
                "inputs are set; set them, or leave the places out"
            )

    @torch.inference_mode()
    def write(self, texts: Sequence[Text], *, batch_size: int) -> list[Any]:
        """Generate texts. A text does not depend on the others, and not on the batch size.

        Args:
            texts: The texts. All of them create the same input with the same guidance, or none. All
                are sampled, or none.
            batch_size: Number of texts that are generated together.

        Returns:
            The text or the value of each of them, "" for those that nobody waits for.
        """
        # Prompts of similar length together, so that there is little padding.
        ordered = sorted(texts, key=lambda text: len(text.prompt))
        if self.language is None:
            for start in range(0, len(texts), batch_size):
                batch = ordered[start : start + batch_size]
                if not all(text.is_cancelled for text in batch):
                    self._for_samples(batch)
        else:
            writing = Writing(self, batch_size=batch_size)
            writing.add(ordered)
            while writing.is_running:
                writing.step()
        return [text.text for text in texts]

    def begin(self, texts: Sequence[Text]) -> Generation:
        """Return the generation of texts of a language model."""
        assert self.language is not None
        # In training, the end token separates texts, so a new text starts after it.
        # The model shortens a longer prompt itself. The other tokens would only be padded.
        longest = self.language.max_len + 1
        starts = [torch.tensor(text.prompt_ids[-longest:] or [self.end]) for text in texts]
        search = SampleSearch(
            len(texts),
            1,
            sampler=batch_sampler(texts),
            ends=self.ends,
            max_new=[text.max_new for text in texts],
            device=self._device,
        )
        return Generation(
            self.language,
            self._prefix(texts),
            search,
            pad_sequence(starts, batch_first=True).to(self._device),
            pad_sequence([torch.ones_like(start) for start in starts], batch_first=True) > 0,
        )

    def note(self, text: Text) -> str:
        """Return how much of an encoded prompt the model reads. "": all of it."""
        if self.language is None or len(text.prompt_ids) <= self.language.max_len:
            return ""
        limit = self.language.max_len
        return (
            f"the prompt has {len(text.prompt_ids):,} tokens, and the model reads at most "
            f"{limit:,}, so it continues from the last {max(limit // 2, 1):,}; shorten the prompt"
        )

    def remark(self, texts: Sequence[Text]) -> str:
        """Return which prompts of texts are too long, and what is not used. "": neither."""
        prompts = [*{text.prompt: text for text in texts}.values()]
        notes = {i: note for i, text in enumerate(prompts, 1) if (note := self.note(text))}
        lines = [f"dxn does not use {option}" for option in self.task.target.unused]
        if notes and len(prompts) == 1:
            lines.append(notes[1])
        elif notes:
            number, first = next(iter(notes.items()))
            lines.append(
                f"{len(notes)} of {len(prompts)} prompts are too long; prompt {number}: {first}"
            )
        return "; ".join(lines)

    def decoder_of(self, text: Text) -> Decode:
        """Return the function that decodes the new tokens of a text of a language model."""
        # An answer is a text of its own.
        prompt = [] if text.is_answer else text.prompt_ids
        return decoder_after(self.tokenizer, prompt, whole=text.shows_prompt)

    def _prefix(self, texts: Sequence[Text]) -> Memory | None:
        """Return the tokens of the inputs before the prompts. None: there are none."""
        rows = [i for i, text in enumerate(texts) if text.item is not None]
        if not rows:
            return None
        samples = texts[rows[0]].samples
        assert samples is not None
        items = [text.item for text in texts if text.item is not None]
        batch = samples.collate(items)
        for part in batch.values():
            if isinstance(part, dict) and "rows" in part:
                # The prompts without other inputs are samples too.
                part["rows"] = torch.tensor(rows)[part["rows"]]
        return prefix_of(self.model, to_device({**batch, "#size": len(texts)}, self._device))

    def _for_samples(self, texts: Sequence[Text]) -> None:
        for text in texts:
            text.start()
        # Any: a task that writes need not have a tokenizer.
        task: Any = self.task
        samples = texts[0].samples
        assert samples is not None
        items = [text.item for text in texts if text.item is not None]
        batch = to_device(samples.collate(items), self._device)
        encoded, _ = self.model.encode(self.model.embed(batch))
        tokenizer = getattr(task, "tokenizer", None)
        options: dict[str, Any] = {}
        if texts[0].create:
            options["sampler"] = BatchSampler([text.sampler for text in texts])
            options |= {"guidance": texts[0].guidance, "on_step": show_unfinished(texts)}
            write = partial(task.create, name=texts[0].create)
        else:
            write = partial(task.write, max_new=texts[0].max_new)
            if texts[0].new_sampler is not None:
                options["sampler"] = batch_sampler(texts)
        if tokenizer is not None:
            options["on_tokens"] = partial(pass_on, texts, tokenizer.decode)
        try:
            results = write(self.model.head, encoded, **options)
        except Cancelled:
            return
        for text, result in zip(texts, results, strict=True):
            text.finish(result)

    def encode(self, text: Text) -> list[int]:
        """Return the token ids of a prompt."""
        # A chat template writes its own special tokens.
        if text.is_answer or not self.adds_special:
            return encode(self.tokenizer, text.prompt, add_special_tokens=False).ids
        # Special tokens such as [SEP] at the end would end the text before it is continued.
        mask = encode(self.tokenizer, "a", add_special_tokens=True).special_tokens_mask
        ids = encode(self.tokenizer, text.prompt, add_special_tokens=True).ids
        return ids[: len(ids) - special_ends(mask)[1]]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


class Writing:
    """Texts of a language model that are being generated. Others can be added at any time.

    They begin as soon as others have ended, and do not wait for the end of all others.

    Args:
        writer: Generation of the texts of the model.
        batch_size: Number of texts that are generated together. Further ones wait.
    """

    def __init__(self, writer: Writer, *, batch_size: int):
        self.writer = writer
        self.batch_size = batch_size
        self.waiting: deque[Text] = deque()
        # The texts that have not ended, by their number in the generation.
        self.texts: dict[int, tuple[Text, Decode]] = {}
        self.generation: Generation | None = None
        self.num_steps = 0

    @property
    def is_running(self) -> bool:
        """Whether a text has not ended."""
        return bool(self.texts or self.waiting)

    def add(self, texts: Sequence[Text]) -> None:
        """Add texts, whose first token comes with one of the next steps."""
        self.waiting += texts

    @torch.inference_mode()
    def step(self) -> None:
        """Begin texts that wait, if there is room, and generate the next token of the others."""
        if self.texts:
            assert self.generation is not None
            self.generation.step()
            self.num_steps += 1
            if self.num_steps % self.generation.check_every == 0:
                self._pass_on()
        while texts := self._next_texts():
            self._begin(texts)

    def _next_texts(self) -> list[Text]:
        """Return the next texts for which there is room, with prompts of similar length."""
        texts: list[Text] = []
        lengths: list[int] = []
        while self.waiting and len(self.texts) + len(texts) < self.batch_size:
            text = self.waiting[0]
            if not text.is_cancelled:
                text.prompt_ids = text.prompt_ids or self.writer.encode(text)
                lengths.append(len(text.prompt_ids))
                # At least half of the tokens are no padding.
                if max(lengths) * len(lengths) > 2 * sum(lengths):
                    break
                texts.append(text)
            self.waiting.popleft()
        return texts

    def _begin(self, texts: Sequence[Text]) -> None:
        """Compute the prompts of texts, and their first tokens."""
        for text in texts:
            text.start()
        generation = self.writer.begin(texts)
        start = 0
        if self.texts:
            assert self.generation is not None
            start = self.generation.num_added
            self.generation.join(generation)
        else:
            self.generation = generation
        for number, text in enumerate(texts, start):
            self.texts[number] = text, self.writer.decoder_of(text)
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on the new tokens, and end texts."""
        generation = self.generation
        assert generation is not None and isinstance(generation.search, SampleSearch)
        new = generation.new_tokens()
        finished = generation.search.finished.tolist()
        for i, number in enumerate(generation.samples):
            if number not in self.texts:
                continue
            text, decode = self.texts[number]
            if number in new:
                text.add(new[number], decode)
            if finished[i] and not text.is_done:
                text.finish(decode(text.ids))
            if text.is_done:
                del self.texts[number]
                if not finished[i]:
                    generation.search.end([i])
                    finished[i] = True
        if self.texts and generation.removes(finished):
            generation.remove(finished)


def pass_on(texts: Sequence[Text], decode: Decode, new: Mapping[int, list[int]]) -> None:
    """Add new tokens to the texts of a batch, by their index. The other texts have ended.

    Without any, it only checks whether a text needs another token.

    Raises:
        Cancelled: If no text needs another token.
    """
    for i, text in enumerate(texts):
        if i in new:
            text.add(new[i], decode)
        elif new and not text.is_done:
            text.finish(decode(text.ids))
    if all(text.is_done for text in texts):
        raise Cancelled


def show_unfinished(texts: Sequence[Text]) -> Callable[[Callable[[int], Any]], None]:
    """Return the function that shows unfinished values, see the argument on_step of `Task.create`.

    It raises Cancelled if nobody waits for a value any more.
    """
    next_time = 0.0

    def show(value_of: Callable[[int], Any]) -> None:
        nonlocal next_time
        if all(text.is_done for text in texts):
            raise Cancelled
        start = time.monotonic()
        if start < next_time:
            return
        for i, text in enumerate(texts):
            if text.on_text is not None and not text.is_done:
                text.show(value_of(i))
        end = time.monotonic()
        next_time = end + (PARTS - 1) * (end - start)

    return show


def decoder_after(tokenizer: Any, prompt: list[int], *, whole: bool = True) -> Decode:
    """Return a function that decodes the ids after a prompt.

    Args:
        tokenizer: Tokenizer of the ids.
        prompt: Token ids of the prompt.
        whole: Whether the function returns the whole text. False: only what follows the prompt.
    """
    # A long prompt is decoded once, and not again for each token. The space before the first new
    # token can depend on the token before it.
    start = tokenizer.decode(prompt) if whole else ""
    tail = prompt[-TAIL:]
    num_known = len(tokenizer.decode(tail))
    return lambda ids: start + tokenizer.decode([*tail, *ids])[num_known:]
