"""Learn to write any input from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.search import Sampler
from dxn.tasks.any.head import AnyHead
from dxn.tasks.any.vocabulary import Vocabulary, writing_of
from dxn.tasks.per_input import PerInput, PredictedInputs
from dxn.tasks.target import IGNORED


class WrittenInput(PredictedInputs):
    """One of the inputs of each sample, which is drawn at random and removed from the others.

    Args:
        names: Names of the inputs that can be drawn. Empty: all that can be written.

    Attributes:
        vocabulary: Tokens of all of them. `bind` sets it.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__()
        self.names = tuple(names)
        self.vocabulary = Vocabulary({}, {})

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Find the inputs that can be written.

        Raises:
            UserError: If an input of the option cannot, or there are no others to write it from.
        """
        if len(adapters) < 2:
            raise UserError(
                f"head=any: needs two inputs or more, one of which is written from the others, got "
                f"{', '.join(adapters)}"
            )
        found = {name: writing_of(adapter) for name, adapter in adapters.items()}
        writings = {name: each for name, each in found.items() if each is not None}
        for name in self.names:
            if name not in writings:
                known = ", ".join(writings) or "none"
                advice = "pictures and sounds need the adapters image_codes and audio_codes"
                raise UserError(
                    f"head.names: {name} cannot be written; the inputs that can are {known} "
                    f"({advice})"
                )
        if self.names:
            writings = {name: writings[name] for name in self.names}
        if not writings:
            raise UserError(
                f"head=any: none of the inputs can be written, got {', '.join(adapters)}; use a "
                "text, or the codes of a trained codec, such as adapters=[text,image_codes]"
            )
        first: dict[int, str] = {}
        groups = {name: first.setdefault(id(adapters[name]), name) for name in writings}
        self.vocabulary = Vocabulary(writings, groups)
        self.kinds = dict.fromkeys(writings, True)
        self.prepared_inputs = tuple(adapters)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the names of the inputs."""
        return f"{', '.join(self.kinds)}, each from the others"

    def encode(
        self, value: Any, sample: dict[str, Any], rand: Random | None = None
    ) -> dict[str, Any]:
        """Remove an input from the sample, and return its number and its tokens (n,).

        A sample with one input teaches nothing: its tokens are the begin token alone.
        """
        assert rand is not None, "the input is also drawn in validation, see Target.random"
        present = [name for name in self.kinds if name in sample]
        if not present:
            return {
                "index": 0,
                "ids": torch.tensor([self.vocabulary.begin(next(iter(self.kinds)))]),
            }
        name = rand.choice(present)
        number = self.vocabulary.begin(name)
        if sum(isinstance(each, Mapping) for each in sample.values()) < 2:
            return {"index": number, "ids": torch.tensor([number])}
        return {"index": number, "ids": self.vocabulary.encode(name, sample.pop(name))}

    def collate(self, targets: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return ids (B, n) padded with IGNORED, and the number (B,) of the input."""
        ids = [target["ids"] for target in targets]
        return {
            "ids": nn.utils.rnn.pad_sequence(ids, True, IGNORED),
            "index": torch.tensor([target["index"] for target in targets]),
        }

    def count(self, sample: Mapping[str, Any], name: str) -> int:
        """Return the number of tokens that are predicted."""
        target = sample["target"]
        return len(target["ids"]) - 1 if target["index"] == self.vocabulary.begin(name) else 0


class WriteAny(PerInput[WrittenInput]):
    """Write any input from the others: texts, and the codes of pictures, sounds, series and clips.

    In each epoch, one input of a sample is drawn at random and written token by token from the
    others, of which loader.input_dropout leaves out some (4M, arXiv:2312.06647).

    Args:
        decoder: Constructor of the decoder, which is called with vocab_size=V.
        names: Names of the inputs that are written. Default: all that can be.
        unconditional: Probability that a training sample is written without its inputs, which
            `guidance` needs.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1.
    """

    name = "any"
    min_inputs = 2  # one is written from the others

    def __init__(
        self,
        *,
        decoder: Callable[..., nn.Module],
        names: Sequence[str] = (),
        unconditional: Probability = 0.1,
        label_smoothing: Probability = 0.0,
    ):
        super().__init__(WrittenInput(names))
        self.decoder = decoder
        self.unconditional = unconditional
        self.label_smoothing = label_smoothing

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> AnyHead:
        """Build a head with a decoder for the tokens of all inputs."""
        vocabulary = self.target.vocabulary
        return AnyHead(
            self.decoder(vocab_size=vocabulary.size, max_len=vocabulary.max_len),
            num_inputs=len(self.target.kinds),
            unconditional=self.unconditional,
            label_smoothing=self.label_smoothing,
        )

    @property
    def creates(self) -> Sequence[str]:
        """Names of the inputs that can be written."""
        return tuple(self.target.kinds)

    def create(self, head: nn.Module, tokens: Tokens, name: str, *, sampler: Sampler) -> list[Any]:
        """Return a raw value of an input for each sample. See `Task.create`."""
        assert isinstance(head, AnyHead)
        vocabulary = self.target.vocabulary
        writing = vocabulary.writings[name]
        found = head.write_window(
            Memory.from_tokens(tokens),
            begin=vocabulary.begin(name),
            end=vocabulary.end,
            rules=vocabulary.rules(name),
            max_new=writing.length or writing.max_len,
            sampler=sampler,
        )
        return [vocabulary.decode(name, each.ids) for each in found]
