"""Text generation: a decoder with cross-attention writes one text per sample."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.models.decoding.cache import Memory
from dxn.models.decoding.search import Hypothesis, Sampler
from dxn.tasks.cells import problem_of
from dxn.tasks.generate_head import Generated, GenerateHead
from dxn.tasks.loss import LossSum
from dxn.tasks.row_scores import RowScores
from dxn.tasks.target_tokenizer import TargetTokenizer
from dxn.tasks.task import IGNORED, Batch, Task
from dxn.tasks.text_metrics import sentence_chrf, text_metrics, weighted_text_metrics
from dxn.tokenize.cells.numbers import are_numbers
from dxn.tokenize.text.options import TokenizerOptions

# head=auto does not infer this task from fewer values: in a small table, class names may also be
# distinct by chance.
MIN_TEXTS = 20


class Generate(Task):
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
    """

    name = "generate"
    monitored = "chrf"
    higher_is_better = True

    def __init__(
        self,
        *,
        decoder: Callable[..., nn.Module],
        vocab_size: int = 8000,
        tokenizer: TokenizerOptions = TokenizerOptions(),
        max_len: int = 128,
        share_tokenizer: bool = False,
        subword_dropout: float = 0.0,
        label_smoothing: float = 0.1,
        beams: int = 4,
        length_penalty: float = 0.6,
    ):
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        if length_penalty < 0:
            raise ValueError(f"length_penalty must be at least 0, got {length_penalty}")
        if share_tokenizer and tokenizer.path is not None:
            raise ValueError(
                "share_tokenizer and tokenizer.path cannot be set together, got tokenizer.path="
                f"{tokenizer.path}; set the tokenizer.path of the input's adapter instead"
            )
        self.decoder = decoder
        self.share_tokenizer = share_tokenizer
        self.label_smoothing = label_smoothing
        self.beams = beams
        self.length_penalty = length_penalty
        self.tokenizer = TargetTokenizer(
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            max_len=max_len,
            subword_dropout=subword_dropout,
        )
        # Name of the input that shares its tokenizer. `bind` sets it.
        self.shared_input = ""

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return a positive score for strings that are mostly distinct, unlike class names."""
        if not all(isinstance(value, str) for value in values):
            return 0.0
        # Class names repeat, so most of their values are not distinct. The thresholds are
        # heuristics: single words must be more distinct than texts of several words.
        distinct_ratio = len(set(values)) / max(len(values), 1)
        if len(values) < MIN_TEXTS or distinct_ratio <= 0.5 or are_numbers(values):
            return 0.0
        if problem_of(values) is not None:
            return 0.0
        words_per_value = statistics.fmean(len(value.split()) for value in values)
        return 0.7 if words_per_value > 1 or distinct_ratio > 0.9 else 0.0

    @classmethod
    def reason(cls, values: Sequence[Any]) -> str:
        """Return why single words are read as texts instead of classes."""
        if any(len(value.split()) > 1 for value in values):
            return ""
        distinct = len(set(values))
        return (
            f"{distinct:,} different words in {len(values):,} rows are read as texts to write; "
            "set head=classify to make each word a class"
        )

    def parse(self, value: Any, origin: str) -> str:
        """Return the target text."""
        return str(value)

    def vocabulary_texts(self, values: Sequence[str]) -> Sequence[str]:
        """Return the target texts if the tokenizer of an input must also cover them."""
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
        self.tokenizer.use_tokenizer(adapters[self.shared_input].tokenizer.vocabulary)

    def fit(self, values: Sequence[str]) -> None:
        """Train the tokenizer on the texts, if it is neither loaded from a file nor shared."""
        self.tokenizer.fit(values)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The tokens of the vocabulary, sorted by id. None before `fit`."""
        if self.tokenizer.tokenizer is None:
            return None
        vocabulary = self.tokenizer.tokenizer.get_vocab()
        return tuple(sorted(vocabulary, key=vocabulary.__getitem__))

    def describe(self, values: Sequence[str]) -> str:
        """Return the range and the median of the text lengths in characters."""
        lengths = [len(value) for value in values]
        if not lengths:
            return "no texts"
        middle = statistics.median(lengths)
        return f"texts of {min(lengths):,} to {max(lengths):,} characters, median {middle:,.0f}"

    def encode(self, value: str, rand: random.Random | None = None) -> Tensor:
        """Return the token ids (n,) of a text, with BOS at the start and EOS at the end."""
        return self.tokenizer.encode(value, rand)

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        """Pad the targets to (B, n) with IGNORED."""
        return nn.utils.rnn.pad_sequence(list(targets), True, IGNORED)

    def num_tokens(self, value: str) -> int:
        """Count the input tokens of the decoder, which are all tokens except the last."""
        return len(self.tokenizer.encode(value)) - 1

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that contains the decoder."""
        decoder: Any = self.decoder(vocab_size=self.tokenizer.size)
        if decoder.max_len < self.tokenizer.max_len:
            raise UserError(
                f"head.decoder.max_len: must be at least head.max_len, got {decoder.max_len} and "
                f"{self.tokenizer.max_len}; set both to the same number"
            )
        # The decoder first initializes its own embedding, which `tie` replaces. The other weights
        # therefore get the same random numbers whether or not the embedding is shared.
        if self.share_tokenizer:
            decoder.tie(adapters[self.shared_input].embedding)
        return GenerateHead(decoder, label_smoothing=self.label_smoothing)

    def loss(self, output: Generated, batch: Batch) -> LossSum:
        """Return the cross-entropy of the target tokens. BOS tokens are not predicted."""
        assert output.loss_sum is not None
        return LossSum(output.loss_sum, (batch["target"][:, 1:] != IGNORED).sum().float())

    def predict(
        self, head: nn.Module, output: Generated, batch: Batch, *, draft: bool = False
    ) -> list[str]:
        """Return the text of each sample, by beam search or, for a draft, by greedy decoding."""
        # Beam search is about `beams` times as slow as greedy decoding.
        hypotheses = self.search(head, output.memory, beams=1 if draft else self.beams)
        return [self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses]

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the tokenizer of the texts, and the ids of their first and last token."""
        assert self.tokenizer.tokenizer is not None and isinstance(head, GenerateHead)
        return {
            "tokenizer": json.loads(self.tokenizer.tokenizer.to_str()),
            "begin": self.tokenizer.begin,
            "end": self.tokenizer.end,
            # The begin token occupies the first position of the decoder.
            "max_len": head.decoder.max_len - 1,
        }

    def search(
        self,
        head: nn.Module,
        memory: Memory,
        *,
        beams: int | None = None,
        max_new: int | None = None,
        sampler: Sampler | None = None,
    ) -> list[Hypothesis]:
        """Return the best hypothesis for each sample: token ids and their score.

        Args:
            head: The head that `make_head` returned.
            memory: Encoded tokens that the decoder attends to.
            beams: Beam width. Default: the task's `beams`.
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token. Default: greedy decoding or beam search.
        """
        assert isinstance(head, GenerateHead)
        return head.write(
            memory,
            begin=self.tokenizer.begin,
            end=self.tokenizer.end,
            beams=beams or self.beams,
            length_penalty=self.length_penalty,
            max_new=max_new,
            sampler=sampler,
        )

    def write(
        self,
        head: nn.Module,
        tokens: Tokens,
        *,
        max_new: int | None = None,
        sampler: Sampler | None = None,
    ) -> list[str]:
        """Return the generated text of each sample. See `Writes.write`."""
        memory = Memory.from_tokens(tokens)
        hypotheses = self.search(head, memory, max_new=max_new, sampler=sampler)
        return [self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses]

    def metrics(
        self, predictions: Sequence[str], truths: Sequence[str], loss: float
    ) -> dict[str, float]:
        """Return BLEU and chrF (0 to 100), word and character error rate, and exact match (0 to 1).

        Reference texts are normalized by the tokenizer first, for example to lower case, because
        the model can generate only normalized texts.
        """
        return text_metrics(predictions, [self.tokenizer.normalize(truth) for truth in truths])

    def weighted_metrics(
        self, predictions: Sequence[str], truths: Sequence[str], counts: Tensor
    ) -> dict[str, Tensor]:
        """Compute the metrics from statistics of single texts."""
        references = [self.tokenizer.normalize(truth) for truth in truths]
        return weighted_text_metrics(predictions, references, counts)

    def row_scores(self, predictions: Sequence[str], truths: Sequence[str]) -> RowScores:
        """Return the chrF score (0 to 100) of each text."""
        references = [self.tokenizer.normalize(truth) for truth in truths]
        return RowScores("chrF", sentence_chrf(predictions, references))

    def answer(self, prediction: str, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the generated text."""
        return {"prediction": prediction}

    def save(self, folder: Path) -> None:
        """Write labels.json and target_tokenizer.json."""
        super().save(folder)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> Self:
        """Restore the state that `save` wrote."""
        super().load(folder)
        self.tokenizer.load(folder)
        return self
