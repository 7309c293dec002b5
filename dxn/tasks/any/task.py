"""Learn to write any input from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from random import Random
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.display import print_line
from dxn.core.dropout import Keys, keep_mask
from dxn.core.errors import UserError
from dxn.core.randomness import Probability, torch_generator
from dxn.core.tokens import Tokens
from dxn.models.decoding.code_writing import Delayed, Filling, Guided, num_masked
from dxn.models.decoding.decoder import Decoder, Memory
from dxn.models.decoding.generation import Generation, generate
from dxn.models.decoding.search import BatchSampler, Sampler
from dxn.tasks.any.vocabulary import Codes, Vocabulary, writing_of
from dxn.tasks.generate.head import GenerateHead
from dxn.tasks.per_input import InputMetric, PerInput, PredictedInputs
from dxn.tasks.space import Batch
from dxn.tasks.target import IGNORED

# Scale of the guidance of codes by default: the best of 1, 2 and 3 for sounds and for small models
# of shapes. Larger models of digits were better with 3. Texts are not guided: the most probable
# caption was right less often with guidance.
GUIDANCE = 2.0


class AnyHead(GenerateHead):
    """A decoder that writes a value of one of several inputs from the other inputs.

    Args:
        task: The task, whose target is bound to the inputs.
        decoder: See `GenerateHead`.
    """

    def __init__(self, task: WriteAny, decoder: nn.Module):
        super().__init__(decoder, label_smoothing=task.label_smoothing)
        self.num_inputs = len(task.target.kinds)
        self.stages = task.target.vocabulary.stages
        self.unconditional = task.unconditional

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return statistics (B, I, 3) of each sample and each input.

        The three numbers are the sum of the losses, the number of predicted tokens, and the number
        of right ones.
        """
        memory = self.memory(tokens)
        ids, labels = batch["target"]["ids"], batch["target"]["labels"]
        states = self.decoder.states(ids, ids[..., 0] != IGNORED, memory)
        is_label = (labels != IGNORED).any(-1)
        logits = self.decoder.output(states[is_label]).float()
        rows = is_label.nonzero()[:, 0]
        sums = logits.new_zeros(len(ids), 3)
        for stage, true in zip(self.stages, labels[is_label].unbind(-1), strict=True):
            stage_logits = logits[:, stage.start : stage.stop]
            losses = F.cross_entropy(
                stage_logits,
                true,
                reduction="none",
                label_smoothing=self.label_smoothing,
                ignore_index=IGNORED,
            )
            right = stage_logits.argmax(-1) == true
            columns = torch.stack([losses, (true != IGNORED).float(), right.float()], -1)
            sums = sums.index_add(0, rows, columns)
        number = batch["target"]["index"]
        statistics = sums.new_zeros(len(ids), self.num_inputs, 3)
        return statistics.index_put((torch.arange(len(ids), device=ids.device), number), sums)

    def memory(self, tokens: Tokens) -> Memory:
        """Return what the decoder attends to: zeros for some of the training samples."""
        if self.training and self.unconditional:
            keys = Keys.of_mask(tokens.mask)
            draws = keys.step.draw(keys.samples, 0)
            tokens = replace(tokens, x=tokens.x * keep_mask(draws, self.unconditional))
        return Memory.from_tokens(tokens)


class WrittenInput(PredictedInputs):
    """One of the inputs of each sample, which is drawn at random and removed from the others.

    Args:
        names: Names of the inputs that can be drawn. Empty: all that can be written.
        parallel: Mask some of the tokens, which are predicted. Otherwise each is predicted from
            those before it.

    Attributes:
        vocabulary: Tokens of all of them. `bind` sets it.
    """

    def __init__(self, names: Sequence[str], *, parallel: bool = False):
        super().__init__()
        self.parallel = parallel
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
        by_name = {
            name: writing_of(adapter, parallel=self.parallel) for name, adapter in adapters.items()
        }
        writings = {name: writing for name, writing in by_name.items() if writing is not None}
        for name in self.names:
            if name not in writings:
                choices = ", ".join(writings) or "none"
                advice = "pictures and sounds need the adapters image_codes and audio_codes"
                raise UserError(
                    f"data.target: {name} cannot be written; the inputs that can are {choices} "
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
        self.vocabulary = Vocabulary(writings, groups, self.parallel)
        self.kinds = dict.fromkeys(writings, True)
        self.prepared_inputs = tuple(adapters)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the names of the inputs."""
        return f"{', '.join(self.kinds)}, each from the others"

    def encode(
        self, value: Any, sample: dict[str, Any], rand: Random | None = None
    ) -> dict[str, Any]:
        """Remove an input from the sample, and return its number, its ids and labels (n, R).

        The labels are the tokens that are predicted, see `Vocabulary.encode`, and IGNORED
        elsewhere. A sample with one input teaches nothing: its tokens are begin tokens alone.
        """
        assert rand is not None, "the input is also drawn in validation, see Target.random"
        present = [name for name in self.kinds if name in sample]
        name = rand.choice(present) if present else next(iter(self.kinds))
        number = self.vocabulary.begin(name)
        if not present or sum(isinstance(part, Mapping) for part in sample.values()) < 2:
            ids = torch.full((1, len(self.vocabulary.stages)), number)
            return {"index": number, "ids": ids, "labels": torch.full_like(ids, IGNORED)}
        tokens, labels = self.vocabulary.encode(name, sample.pop(name))
        if self.parallel:
            return {"index": number, **self._mask(tokens, rand)}
        return {"index": number, "ids": tokens[:-1], "labels": labels[1:]}

    def _mask(self, tokens: Tensor, rand: Random) -> dict[str, Tensor]:
        """Mask at least one of the tokens after the begin token, and return ids and labels."""
        length = len(tokens) - 1
        # One more than the steps of a generation mask, so that all of them are masked at times.
        count = min(num_masked(rand.random(), length) + 1, length)
        masked = torch.randperm(length, generator=torch_generator(rand))[:count] + 1
        labels = torch.full_like(tokens, IGNORED)
        labels[masked] = tokens[masked]
        tokens[masked] = self.vocabulary.mask
        return {"ids": tokens, "labels": labels}

    def collate(self, targets: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return ids and labels (B, n, R) padded with IGNORED, and the number (B,) of the input."""
        ids, labels = ([target[name] for target in targets] for name in ("ids", "labels"))
        return {
            "ids": nn.utils.rnn.pad_sequence(ids, True, IGNORED),
            "labels": nn.utils.rnn.pad_sequence(labels, True, IGNORED),
            "index": torch.tensor([target["index"] for target in targets]),
        }

    def count(self, sample: Mapping[str, Any], name: str) -> int:
        """Return the number of tokens that are predicted."""
        target = sample["target"]
        if target["index"] != self.vocabulary.begin(name):
            return 0
        return int((target["labels"] != IGNORED).sum())


@dataclass(kw_only=True, eq=False)
class WriteAny(PerInput[WrittenInput]):
    """Write any input from the others: texts, and the codes of pictures, sounds, series and clips.

    In each epoch, one input of a sample is drawn at random and written from the others, of which
    loader.input_dropout leaves out some (4M, arXiv:2312.06647).

    Args:
        decoder: Constructor of the decoder, which is called with vocab_size=V.
        names: Names of the inputs that are written. Default: all that can be.
        unconditional: Probability that a training sample is written without its inputs, which
            `guidance` needs (arXiv:2207.12598).
        parallel: Write all tokens of a value at once in a few steps (MaskGIT, arXiv:2202.04200),
            in place of one after another. A value has as many tokens as the longest one, so it
            suits pictures and short texts.
        steps: Number of steps with parallel=true. More steps are slower and more accurate.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1.
    """

    name = "any"
    min_inputs = 2  # one is written from the others
    targets_are_inputs = True

    decoder: Callable[..., nn.Module]
    names: Sequence[str] = ()
    unconditional: Probability = 0.1
    parallel: bool = False
    steps: Annotated[int, Ge(1)] = 8
    label_smoothing: Probability = 0.0

    def __post_init__(self):
        self.target = WrittenInput(self.names, parallel=self.parallel)
        self.metric = InputMetric(self.target)

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Count the tokens of each input, and name the inputs that are not written.

        Raises:
            UserError: If no sample has two inputs, so that there is nothing to learn.
        """
        super().prepare_loss(samples)
        if not any(self.usual.values()):
            raise UserError(
                "head=any: an input is written from the others of its row, but no row of the "
                f"training split has {' or '.join(self.target.kinds)} and another input"
            )
        read = [name for name in self.target.prepared_inputs if name not in self.target.kinds]
        if read and not self.target.names:
            print_line(
                f"note: read but not written: {', '.join(read)}; pictures, sounds, series and "
                "clips are written as the codes of a codec (dxn train DATA head=codec), such as "
                "adapters=[text,image_codes] adapters.image_codes.codec=RUN"
            )

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> AnyHead:
        """Build a head with a decoder for the tokens of all inputs."""
        vocabulary = self.target.vocabulary
        decoder = self.decoder(
            vocab_size=vocabulary.size,
            max_len=vocabulary.max_len,
            parallel=self.parallel,
            vectors=vocabulary.vectors(),
            row=vocabulary.row,
        )
        if self.parallel and not isinstance(decoder, Decoder):
            raise UserError(
                "head.parallel: needs the decoder dxn.models.Decoder, got "
                f"{type(decoder).__name__}; set head.parallel=false"
            )
        return AnyHead(self, decoder)

    @property
    def creates(self) -> Sequence[str]:
        """Names of the inputs that can be written."""
        return tuple(self.target.kinds)

    @torch.inference_mode()
    def create(
        self,
        head: nn.Module,
        tokens: Tokens,
        name: str,
        *,
        sampler: Sampler,
        guidance: float | None = None,
        on_step: Callable[[Callable[[int], Any]], None] | None = None,
    ) -> list[Any]:
        """Return a raw value of an input for each sample. See `Task.create`."""
        assert isinstance(head, AnyHead) and isinstance(sampler, BatchSampler)
        vocabulary = self.target.vocabulary
        if guidance is None:
            is_guided = self.unconditional and isinstance(vocabulary.writings[name], Codes)
            guidance = GUIDANCE if is_guided else 1.0
        if guidance != 1 and not self.unconditional:
            raise UserError(
                "guidance: needs a model that was trained with head.unconditional above 0, got "
                f"guidance={guidance:g} and a model with head.unconditional=0"
            )
        memory = Memory.from_tokens(tokens)
        decoder = head.decoder if guidance == 1 else Guided(head.decoder, guidance)
        begin, length = vocabulary.begin(name), vocabulary.writings[name].max_len
        stages = vocabulary.writings[name].stages
        rules = vocabulary.rules(name)
        device = memory.x.device
        # In parallel, the rows of a sample are the begin token and all tokens, and change in each
        # step. Otherwise, they are the stages, and become longer.
        width = length + 1 if self.parallel else stages
        written: list[list[int]] = [[] for _ in range(len(memory.x) * width)]

        def tokens_of(i: int) -> list[list[int]]:
            rows = written[i * width : (i + 1) * width]
            return [[ids[-1] for ids in rows[1:]]] if self.parallel else rows

        def append(new: dict[int, list[int]]) -> None:
            for row, ids in new.items():
                written[row] += ids
            if on_step is not None:
                on_step(lambda i: vocabulary.unfinished(name, tokens_of(i)))

        if self.parallel:
            ids = torch.full((len(memory.x), width), vocabulary.mask, device=device)
            ids[:, 0] = begin
            mask_id, steps = vocabulary.mask, self.steps
            search = Filling(sampler, ids, mask_id=mask_id, steps=steps, rules=rules)
            Generation(decoder, memory, search, ids.view(-1, 1)).run(append)
        else:
            if stages > 1:
                allowed = vocabulary.allowed(name).to(device)
                decoder = Delayed(
                    decoder, allowed=allowed, begin=begin, end=vocabulary.end, length=length
                )
            generate(
                decoder,
                memory,
                prompt=torch.full((len(memory.x), 1), begin, device=device),
                end=vocabulary.end,
                max_new=length + stages - 1,
                sampler=sampler,
                count=stages,
                rules=rules,
                on_tokens=append,
            )
        values: list[Any] = []
        for i in range(len(memory.x)):
            rows = [list(takewhile(vocabulary.end.__ne__, ids)) for ids in tokens_of(i)]
            values.append(vocabulary.decode(name, rows))
        return values
