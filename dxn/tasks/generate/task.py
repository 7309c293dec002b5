"""Text generation: a decoder with cross-attention writes one text per sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.tokens import Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import OnTokens
from dxn.models.decoding.rules import Rules
from dxn.models.decoding.search import Hypothesis, Sampler
from dxn.tasks.generate.head import Generated, GenerateHead
from dxn.tasks.generate.simple import nearest_texts
from dxn.tasks.generate.target_tokenizer import MarkOptions, TargetTokenizer
from dxn.tasks.generate.texts import ErrorRates, describe_texts
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import IGNORED, Target
from dxn.tasks.task import Raws, Task
from dxn.tokenize.base import NUM_REAL
from dxn.tokenize.text.options import TokenizerOptions


class Texts(Target):
    """One text per row.

    Args:
        tokenizer: Tokenizer of the texts.
        share_tokenizer: Whether to use the tokenizer of the first input that has a vocabulary.

    Attributes:
        shared_input: Name of the input that shares its tokenizer. `bind` sets it.
    """

    is_text = True
    limit = ("the target", "head.max_len")

    def __init__(self, tokenizer: TargetTokenizer, *, share_tokenizer: bool = False):
        self.tokenizer = tokenizer
        self.share_tokenizer = share_tokenizer
        self.shared_input = ""

    @property
    def labels(self) -> Sequence[str] | None:
        """The tokens of the vocabulary, sorted by id. None before `fit`."""
        if not self.tokenizer.text_tokenizer.is_fitted:
            return None
        vocabulary = self.tokenizer.text_tokenizer.vocabulary.get_vocab()
        return tuple(sorted(vocabulary, key=vocabulary.__getitem__))

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> str:
        """Return the text."""
        return str(cell)

    def texts(self, values: Sequence[str]) -> Sequence[str]:
        """Return the texts if the tokenizer of an input must also cover them."""
        return list(values) if self.share_tokenizer else ()

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Use the tokenizer of the first input that has a vocabulary, if `share_tokenizer` is set.

        Raises:
            UserError: If `share_tokenizer` is set, but no input has a vocabulary.
        """
        if not self.share_tokenizer:
            return
        candidates = [name for name, a in adapters.items() if a.has_vocabulary]
        if not candidates:
            raise UserError(
                f"head.share_tokenizer: no input has a vocabulary, got {', '.join(adapters)}; "
                "set head.share_tokenizer=false"
            )
        self.shared_input = candidates[0]
        self.tokenizer.use_vocabulary(adapters[self.shared_input].tokenizer.vocabulary)

    def fit(self, values: Sequence[str]) -> None:
        """Train the tokenizer on the texts, if it is neither loaded from a file nor shared."""
        self.tokenizer.fit(values)

    def encode(self, value: str, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the token ids (n,) of a text, with BOS at the start and EOS at the end."""
        return self.tokenizer.encode(value, rand)

    def collate(self, targets: Sequence[Tensor]) -> dict[str, Any]:
        """Return ids (B, n) padded with IGNORED, and the number of inputs of the decoder."""
        ids = nn.utils.rnn.pad_sequence(list(targets), True, IGNORED)
        # The last column is no input.
        num_real = sum(min(len(target), ids.shape[1] - 1) for target in targets)
        return {"ids": ids, NUM_REAL: num_real}

    def length(self, value: str) -> int:
        """Count the input tokens of the decoder, which are all tokens except the last."""
        return len(self.tokenizer.encode(value)) - 1

    def kept(
        self, value: str, raws: Mapping[str, Any], tokenizers: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Return how many tokens of a text are learned, and how many it has."""
        count = len(self.tokenizer.encode(value)) - 1
        if count < self.tokenizer.max_len:
            return None
        total = len(self.tokenizer.text_tokenizer.ids(value)) + len(self.tokenizer.begin_ids)
        return (count, total) if count < total else None

    def describe(self, values: Sequence[str]) -> str:
        """Return the range and the median of the text lengths in characters."""
        return describe_texts(values)


class TextMetric(ErrorRates):
    """BLEU and chrF (0 to 100), word and character error rate, and exact match (0 to 1).

    BLEU and chrF are computed by sacrebleu with its default options. Reference texts are normalized
    by the tokenizer first, for example to lower case, because the model can generate only
    normalized texts.

    Args:
        tokenizer: Tokenizer of the texts.
    """

    monitored = "chrf"
    row: ClassVar = ("chrf", "chrF")

    def __init__(self, tokenizer: TargetTokenizer):
        super().__init__(tokenizer.text_tokenizer.normalize)

    @cached_property
    def corpus_metrics(self) -> dict[str, tuple[Any, int]]:
        """BLEU and chrF by name, with the number of statistics of a row."""
        # Only this task needs the library, and it takes long to import.
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        metrics = {"bleu": BLEU(), "chrf": CHRF()}
        return {
            name: (metric, len(metric._extract_corpus_statistics([""], [[""]])[0]))
            for name, metric in metrics.items()
        }

    def rows(self, predictions: Sequence[str], targets: Sequence[str]) -> Tensor:
        """Return the statistics of sacrebleu, and those of the error rates and exact matches."""
        references = [self.normalize(target) for target in targets]
        # The same two methods as in the bootstrap of sacrebleu, which returns no single values.
        stats = [
            metric._extract_corpus_statistics(list(predictions), [references])
            for metric, _ in self.corpus_metrics.values()
        ]
        parts = [torch.tensor(rows, dtype=torch.float64) for rows in stats]
        return torch.cat([*parts, super().rows(predictions, targets)], 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Without any reference, an error rate is the number of errors."""
        results: dict[str, Tensor] = {}
        for name, (metric, size) in self.corpus_metrics.items():
            rows = sums[..., :size].reshape(-1, size).tolist()
            scores = [metric._compute_score_from_stats(row).score for row in rows]
            results[name] = sums.new_tensor(scores).reshape(sums.shape[:-1])
            sums = sums[..., size:]
        return results | super().value(sums)


class Generate(Task[Texts]):
    """Generate a text for each sample, token by token.

    Args:
        decoder: Constructor of the decoder, which is called with vocab_size=V.
        vocab_size: Maximum vocabulary size of the tokenizer, if it is trained on the target texts.
        tokenizer: Options of the tokenizer of the target texts.
        max_len: Maximum number of tokens of a text, including the EOS token. Longer texts are
            truncated.
        share_tokenizer: Whether to share the tokenizer and the embedding with the first input that
            has a vocabulary, instead of training separate ones.
        subword_dropout: Probability that a token of a text is split into two shorter tokens during
            training.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (arXiv:1512.00567, section
            7).
        beams: Beam width; 1 for greedy decoding.
        length_penalty: Exponent of the length by which the score of a text is divided
            (arXiv:1609.08144, equation 14).
        marks: Options of the tokens before and after a text.
        rules: Rules about the tokens of a generated text.
        language: Language of the texts, such as de, for a public model of several languages. It
            replaces {language} in a token of marks.begin. Default: the model chooses the language.
    """

    name = "generate"
    writes = True

    def __init__(
        self,
        *,
        decoder: Callable[..., nn.Module],
        vocab_size: int = 8000,
        tokenizer: TokenizerOptions = TokenizerOptions(),
        max_len: Annotated[int, Ge(2)] = 128,  # a token and the end token
        share_tokenizer: bool = False,
        subword_dropout: Probability = 0.0,
        label_smoothing: Probability = 0.1,
        beams: Annotated[int, Ge(1)] = 4,
        length_penalty: Annotated[float, Ge(0)] = 0.6,
        marks: MarkOptions = MarkOptions(),
        rules: Rules = Rules(),
        language: str = "",
    ):
        if share_tokenizer and tokenizer.path is not None:
            raise ValueError(
                "share_tokenizer and tokenizer.path cannot be set together, got tokenizer.path="
                f"{tokenizer.path}; set the tokenizer.path of the input's adapter instead"
            )
        self.decoder = decoder
        self.label_smoothing = label_smoothing
        self.beams = beams
        self.length_penalty = length_penalty
        self.tokenizer = TargetTokenizer(
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            max_len=max_len,
            subword_dropout=subword_dropout,
            marks=marks,
            rules=rules,
            language=language,
        )
        self.target = Texts(self.tokenizer, share_tokenizer=share_tokenizer)
        self.metric = TextMetric(self.tokenizer)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that contains the decoder."""
        decoder: Any = self.decoder(vocab_size=self.tokenizer.text_tokenizer.size)
        if decoder.max_len < self.tokenizer.max_len:
            raise UserError(
                f"head.decoder.max_len: must be at least head.max_len, got {decoder.max_len} and "
                f"{self.tokenizer.max_len}; set both to the same number"
            )
        # The decoder first initializes its own embedding, which `tie` replaces. The other weights
        # therefore get the same random numbers whether or not the embedding is shared.
        if self.target.share_tokenizer:
            decoder.tie(adapters[self.target.shared_input].embedding)
        window = next(iter(adapters.values())).window if len(adapters) == 1 else 0
        return GenerateHead(decoder, label_smoothing=self.label_smoothing, window=window)

    def loss(self, output: Generated, batch: Batch) -> LossSum:
        """Return the cross-entropy of the target tokens. BOS tokens are not predicted."""
        assert output.loss_sum is not None
        return LossSum(output.loss_sum, (batch["target"]["ids"][:, 1:] != IGNORED).sum().float())

    def predict(
        self, head: nn.Module, output: Generated, batch: Batch, *, draft: bool = False
    ) -> list[str]:
        """Return the text of each sample, by beam search or, for a draft, by greedy decoding."""
        # Beam search is about `beams` times as slow as greedy decoding.
        hypotheses = self.search(head, output.memory, beams=1 if draft else self.beams)
        return [self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses]

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the text of the most similar training row."""
        yield from nearest_texts(train, targets, raws, share)

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the tokenizer of the texts, and the ids of their first and last tokens."""
        assert isinstance(head, GenerateHead)
        self.tokenizer.check_language()
        rules = self.tokenizer.rules
        return {
            "tokenizer": json.loads(self.tokenizer.text_tokenizer.vocabulary.to_str()),
            "begin": self.tokenizer.begin_ids,
            "end": self.tokenizer.end_ids,
            "rules": asdict(rules),
            # The begin tokens occupy the first positions of the decoder.
            "max_len": rules.limit(head.decoder.max_len - len(self.tokenizer.begin_ids)),
        }

    def search(
        self,
        head: nn.Module,
        memory: Memory,
        *,
        beams: int | None = None,
        max_new: int | None = None,
        sampler: Sampler | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Hypothesis]:
        """Return the best hypothesis for each sample: token ids and their score.

        Args:
            head: The head that `make_head` returned.
            memory: Encoded tokens that the decoder attends to.
            beams: Beam width. Default: the task's `beams`.
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token. Default: greedy decoding or beam search.
            on_tokens: See `Task.write`.
        """
        assert isinstance(head, GenerateHead)
        tokenizer = self.tokenizer
        return head.write(
            memory,
            begin=tokenizer.begin_ids,
            end=tokenizer.end_ids,
            rules=tokenizer.rules,
            choice=tokenizer.language_choice,
            beams=beams or self.beams,
            length_penalty=self.length_penalty,
            max_new=max_new,
            sampler=sampler,
            on_tokens=on_tokens,
        )

    def write(
        self,
        head: nn.Module,
        tokens: Tokens,
        *,
        max_new: int | None = None,
        sampler: Sampler | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[str]:
        """Return the generated text of each sample. See `Task.write`."""
        memory = Memory.from_tokens(tokens)
        options = {"max_new": max_new, "sampler": sampler, "on_tokens": on_tokens}
        hypotheses = self.search(head, memory, **options)
        return [self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses]

    def save(self, folder: Path) -> None:
        """Write labels.json and target_tokenizer.json."""
        super().save(folder)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> Self:
        """Restore what `save` wrote."""
        super().load(folder)
        self.tokenizer.load(folder)
        return self
