"""Generation of texts for several requests at once, with the text of each row as it appears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dxn.core.errors import UserError
from dxn.models.decoding.generation import generate
from dxn.models.decoding.language_model import LanguageModel
from dxn.models.decoding.search import Sampler
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.vocabulary import vocabulary_adapter
from dxn.serve.prepare import Prepared
from dxn.serve.refusal import Refusal
from dxn.tasks import Writes
from dxn.tasks.target_tokenizer import ENDS, token_of
from dxn.tokenize.text.vocabulary import encode
from dxn.training.evaluate import to_device

GENERATED = "generated"  # key of a generated text, also in the files of dxn generate
TAIL = 16  # tokens of a prompt that are decoded together with the new ones
UNFINISHED = "�"  # stands for the first bytes of a character whose last bytes are missing


class Cancelled(Exception):
    """Nobody waits for any text of a batch any more."""


@dataclass(eq=False)
class TextRow:
    """One text to generate.

    Args:
        prepared: The sample to describe, for a model that writes a text for an input.
        prompt: The text to continue, for a language model.
        new_sampler: Function that returns a new sampler, which chooses the next token of this row.
        max_new: Maximum number of tokens. Equal for all rows of a batch.
        on_text: Function that is called with each new part of the text.
        is_cancelled: Whether nobody waits for the text any more.
        text: The text. For a language model, it starts with the prompt.
    """

    prepared: Prepared | None
    prompt: str
    new_sampler: Callable[[], Sampler]
    max_new: int
    on_text: Callable[[str], None] | None = None
    is_cancelled: bool = False
    text: str = ""
    ids: list[int] = field(default_factory=list)
    has_ended: bool = False
    sampler: Sampler = field(init=False)

    def start(self) -> None:
        """Forget an attempt that failed with its batch.

        Raises:
            Refusal: If a part of its text has been sent. Another attempt could contradict it.
        """
        if self.on_text is not None and self.text:
            raise Refusal(500, "the generation failed after its first words; send it again")
        self.text = ""
        self.ids = []
        self.has_ended = False
        self.sampler = self.new_sampler()

    def add(self, token: int, end: int | None, decode: Callable[[list[int]], str]) -> None:
        """Add a token, and pass on the text that it completes."""
        if self.has_ended:
            return
        if token == end:
            self.has_ended = True
            return
        self.ids.append(token)
        if self.on_text is None or self.is_cancelled:
            return
        # Decoded from the start: the space between two tokens can depend on both of them.
        text = decode(self.ids).rstrip(UNFINISHED)
        # Some tokenizers change the end of a text when it goes on. Then the final text corrects it.
        if text.startswith(self.text) and text != self.text:
            self.on_text(text[len(self.text) :])
            self.text = text

    def finish(self, text: str) -> None:
        """Set the complete text, and pass on the rest of it."""
        if self.on_text is not None and text.startswith(self.text) and text != self.text:
            self.on_text(text[len(self.text) :])
        self.text = text


class BatchSampler:
    """The sampler of a batch. Each row has its own, and receives its tokens.

    A generation removes rows that have ended, but not immediately.
    """

    def __init__(
        self,
        rows: Sequence[TextRow],
        end: int | None,
        decoders: Sequence[Callable[[list[int]], str]],
    ):
        self.rows = list(zip(rows, decoders, strict=True))
        self.end = end

    def __call__(self, log_probs: Tensor) -> Tensor:
        if len(log_probs) < len(self.rows):
            self.rows = [pair for pair in self.rows if not pair[0].has_ended]
        assert len(log_probs) == len(self.rows)
        if all(row.is_cancelled for row, _ in self.rows):
            raise Cancelled
        parts = [row.sampler(log_probs[i : i + 1]) for i, (row, _) in enumerate(self.rows)]
        ids = torch.cat(parts)
        for (row, decode), token in zip(self.rows, ids.tolist(), strict=True):
            row.add(token, self.end, decode)
        return ids


class Writer:
    """Generates the texts of a model.

    Args:
        predictor: The model. It need not generate texts; then only `obstacle` can be used.
    """

    def __init__(self, predictor: Predictor):
        self.predictor = predictor
        self.language: LanguageModel | None = None
        self.obstacle = ""
        if isinstance(predictor.task, Writes):
            # The protocol Writes has no tokenizer: a task of another package need not have one.
            tokenizer = getattr(predictor.task, "tokenizer", None)
            if not hasattr(tokenizer, "decode") or not hasattr(tokenizer, "end"):
                self.obstacle = "the task of this model has no tokenizer"
            return
        try:
            self.language = LanguageModel(predictor.model)
        except ValueError as error:
            self.obstacle = str(error)

    @property
    def takes_prompt(self) -> bool:
        """Whether the model continues a prompt."""
        return self.language is not None

    def check_prompt(self, prompt: str) -> None:
        """Raise UserError if the model cannot continue this prompt."""
        adapter = vocabulary_adapter(self.predictor.adapters, None)
        tokenizer = adapter.tokenizer.vocabulary
        if token_of(tokenizer, ENDS) is None and not _ids(tokenizer, prompt):
            raise UserError(
                "prompt: must not be empty, because this model's tokenizer has no end token to "
                "start from"
            )

    @torch.inference_mode()
    def write(self, rows: Sequence[TextRow]) -> None:
        """Generate the text of each row."""
        for row in rows:
            row.start()
        try:
            texts = self._for_prompts(rows) if self.language else self._for_samples(rows)
        except Cancelled:
            return
        for row, text in zip(rows, texts, strict=True):
            row.finish(text)

    def _for_prompts(self, rows: Sequence[TextRow]) -> list[str]:
        assert self.language is not None
        tokenizer = vocabulary_adapter(self.predictor.adapters, None).tokenizer.vocabulary
        end = token_of(tokenizer, ENDS)
        prompts = [_ids(tokenizer, row.prompt) for row in rows]
        # In training, the end token separates texts, so a new text starts after it.
        # The model shortens a longer prompt itself. The other tokens would only be padded.
        longest = self.language.max_len + 1
        starts = [torch.tensor(ids[-longest:] or [end]) for ids in prompts]
        decoders = [_decoder(tokenizer, prompt) for prompt in prompts]
        hypotheses = generate(
            self.language,
            None,
            prompt=pad_sequence(starts, batch_first=True).to(self.predictor.device),
            lengths=torch.tensor([len(start) for start in starts]),
            end=end,
            max_new=rows[0].max_new,
            sampler=BatchSampler(rows, end, decoders),
        )
        pairs = zip(decoders, hypotheses, strict=True)
        return [decode(hypothesis.ids) for decode, hypothesis in pairs]

    def _for_samples(self, rows: Sequence[TextRow]) -> list[str]:
        model, task = self.predictor.model, self.predictor.task
        assert isinstance(task, Writes)
        prepared = [row.prepared for row in rows if row.prepared is not None]
        items = [item for each in prepared for item in each.items]
        batch = to_device(prepared[0].collate(items), self.predictor.device)
        encoded, _ = model.encode(model.embed(batch))
        tokenizer: Any = getattr(task, "tokenizer", None)  # checked by the constructor
        sampler = BatchSampler(rows, tokenizer.end, [tokenizer.decode] * len(rows))
        return task.write(model.head, encoded, max_new=rows[0].max_new, sampler=sampler)


def _decoder(tokenizer: Any, prompt: list[int]) -> Callable[[list[int]], str]:
    """Return a function that decodes the ids after a prompt, and returns the whole text."""
    # A long prompt is decoded once, and not again for each token. The space before the first new
    # token can depend on the token before it.
    start = tokenizer.decode(prompt)
    tail = prompt[-TAIL:]
    num_known = len(tokenizer.decode(tail))
    return lambda ids: start + tokenizer.decode([*tail, *ids])[num_known:]


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    # Special tokens such as [SEP] at the end would end the text before it is continued.
    return encode(tokenizer, prompt, add_special_tokens=False).ids
