"""Question answering: the answer is a part of a text."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.marks import Mark
from dxn.core.tokens import Tokens
from dxn.tasks.heads import PairPreHead, PreHead
from dxn.tasks.metric import Metric
from dxn.tasks.space import AnswerKind, Batch, LossSum, Space
from dxn.tasks.span.target import Answers, SpanTarget
from dxn.tasks.task import Raws, Task
from dxn.tasks.windows import WINDOW, Windows
from dxn.tokenize.text.tokenizer import plain_text

if TYPE_CHECKING:
    from dxn.tasks.span.target import Answers

# The logit of padding. Finite, because outputs that are not finite are reported as a fault.
PADDING = -1e9
PUNCTUATION = str.maketrans("", "", string.punctuation)
# Parts of a text that end with a mark, or with a line.
SENTENCES = re.compile(r"[^.!?\n]+[.!?]*")
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class SpanHead(nn.Module):
    """A linear layer on each token of a text, and on one more token, which means "no answer".

    This token is [CLS], or the first token of all inputs if the tokenizer adds none.

    Args:
        pre: Layers applied to the tokens before the output layer.
        windows: How the text is cut.
    """

    def __init__(self, pre: PreHead, windows: Windows):
        super().__init__()
        self.pre = pre
        self.cuts = windows
        self.out = nn.Linear(pre.width, 2)

    def over_parts(self, batch: Batch, output_of: Callable[[Batch], Tensor]) -> Tensor:
        """Return the logits (B, K, 1 + n, 2) of K windows."""
        outputs = [output_of(window) for window in self.windows(batch)]
        size = max(output.shape[2] for output in outputs)
        padded = [F.pad(x, (0, 0, 0, size - x.shape[2]), value=PADDING) for x in outputs]
        return torch.cat(padded, 1)

    def first_part(self, batch: Batch) -> Batch:
        """Return the first window, which `dxn embed` and `dxn attend` use."""
        return self.windows(batch)[0]

    def windows(self, batch: Batch) -> list[Batch]:
        """Return the batch of each window of the text."""
        windows = self.cuts.cut(batch)
        for window in windows:
            if isinstance(self.pre, PairPreHead):
                self.pre.add_segments(window[self.cuts.context])
        return windows

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return the logits (B, 1, 1 + n, 2) of the first and the last token of the answer.

        Those of "no answer" come first, then those of the n tokens of the window, and PADDING
        after them.
        """
        place = batch[self.cuts.context][WINDOW]
        text = tokens.select(self.cuts.context).x
        # [CLS], or the first token of all inputs that the sample has.
        none = text[:, 0]
        if not self.cuts.lead:
            first = tokens.mask.int().argmax(1)
            none = tokens.x[torch.arange(first.shape[0], device=first.device), first]
        special = len(self.cuts.lead) + len(self.cuts.tail)
        size = text.shape[1] - special
        if special:
            columns = torch.arange(size, device=text.device)[None] + place.column[:, None]
            columns = columns.clamp(max=text.shape[1] - 1)
            text = text.gather(1, columns[..., None].expand(-1, -1, text.shape[2]))
        logits = self.out(self.pre(torch.cat([none[:, None], text[:, :size]], 1)))
        is_token = torch.arange(size + 1, device=text.device)[None] <= place.count[:, None]
        return logits.float().masked_fill(~is_token[..., None], PADDING)[:, None]


class SpanMetric(Metric):
    """The share of answers that are equal to a right one, and the mean F1 of their words.

    Upper case, punctuation, English articles and the number of spaces have no effect (SQuAD,
    arXiv:1606.05250, section 6.1). Of several right answers, the best counts. Without a right
    answer, an empty one has the score 1, and any other 0 (arXiv:1806.03822).
    """

    monitored = "f1_answer"
    row: ClassVar = ("f1_answer", "F1 of the words")

    def rows(self, predictions: Sequence[SpanAnswer], targets: Sequence[Answers]) -> Tensor:
        """Return for all questions, and for those without an answer: exact matches, F1 and 1."""
        rows: list[tuple[float, ...]] = []
        for prediction, target in zip(predictions, targets, strict=True):
            references = target.texts or ("",)
            exact = max(normalized(prediction.text) == normalized(text) for text in references)
            f1 = max(f1_of_words(prediction.text, text) for text in references)
            is_none = not target.texts
            rows.append((exact, f1, 1, exact * is_none, f1 * is_none, is_none))
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 6)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Those of a kind of questions that does not occur are NaN."""
        exact, f1, total, exact_none, f1_none, none = sums.unbind(-1)
        # 0 / 0 is NaN. With questions of one kind only, the others would repeat the metrics.
        has_both = torch.where((none > 0) & (none < total), 1.0, torch.nan)
        return {
            "exact_match": exact / total,
            "f1_answer": f1 / total,
            "f1_with_answer": has_both * (f1 - f1_none) / (total - none),
            "accuracy_without_answer": has_both * exact_none / none,
        }

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show."""
        return {"f1_with_answer", "accuracy_without_answer"}


def normalized(text: str) -> str:
    """Return a text in lower case without punctuation, articles and repeated spaces."""
    plain = ARTICLES.sub(" ", text.lower().translate(PUNCTUATION))
    return " ".join(plain.split())


def f1_of_words(predicted: str, true: str) -> float:
    """Return the harmonic mean of precision and recall of the words of an answer."""
    words, true_words = normalized(predicted).split(), normalized(true).split()
    if not words or not true_words:
        return float(words == true_words)
    common = (Counter(words) & Counter(true_words)).total()
    return 2 * common / (len(words) + len(true_words))


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The answer of a model.

    Args:
        text: The answer, "" if the text does not contain one.
        start: Position of its first character in the text. None: there is no answer.
        stop: Position behind its last character.
        score: Probability of the answer.
    """

    text: str
    start: int | None
    stop: int | None
    score: float


class SpanSpace(Space):
    """Logits (B, K, 1 + n, 2) of the first and the last token of an answer, in K windows.

    The first of the 1 + n logits is that of "no answer". Targets are indices (B, 2) of tokens, or
    -1 without an answer.
    """

    kind = AnswerKind.SPAN
    mixes = False

    def __init__(self, target: SpanTarget):
        self.target = target

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the mean of the cross-entropies of the first and the last token, per window."""
        target = batch["target"]
        losses: list[Tensor] = []
        weights: list[Tensor] = []
        for number, place in enumerate(self.target.windows.places(batch)):
            at = target - place.start[:, None]
            is_inside = (target[:, 0] >= 0) & (at[:, 0] >= 0) & (at[:, 1] < place.count)
            label = torch.where(is_inside[:, None], at + 1, 0)
            logits = output[:, number].float()
            losses.append(F.cross_entropy(logits, label, reduction="none").mean(1))
            weights.append(place.is_new.float())
        return LossSum.of(torch.stack(losses), torch.stack(weights))

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return log-probabilities (B, 1 + n) of the first and the last token in the window."""
        start, end = output[:, 0].float().log_softmax(1).unbind(-1)
        return {"start": start, "end": end}

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm of the mean of the probabilities."""
        probabilities = torch.stack([output.float().softmax(2) for output in outputs]).mean(0)
        return probabilities.log().clamp(min=PADDING)


@dataclass(kw_only=True, eq=False)
class Span(Task[SpanTarget]):
    """Find the answer to a question in a text.

    Args:
        context: Name of the input with the text. Default: an input called context, passage,
            paragraph, document, article or text, otherwise the longest text.
        max_answer: Maximum number of tokens of an answer.
        overlap: Number of tokens that a window of a long text has in common with the next one. A
            text is long if it does not fit into adapters.text.max_len.
        max_question: Maximum number of tokens of a question that is in the same sequence as the
            text, as in BERT.
        dropout: Dropout probability of the encoded tokens.
    """

    name = "span"

    context: str = ""
    max_answer: Annotated[int, Ge(1)] = 30
    overlap: Annotated[int, Ge(0)] = 128
    max_question: Annotated[int, Ge(12)] = 64  # the example questions of an export have 12 tokens
    dropout: Rate = 0.1

    def __post_init__(self):
        self.target = SpanTarget(self.context, overlap=self.overlap, max_question=self.max_question)
        self.space = SpanSpace(self.target)
        self.metric = SpanMetric()

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a fusion in which the text does not see the question."""
        super().check(config)
        target = str(config.get("fusion", {}).get("_target_", ""))
        if target.endswith("LateFusion"):
            raise UserError(
                "fusion: head=span compares each word with the question, but with fusion=late the "
                "inputs are encoded alone; set fusion=early"
            )

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps each token of the text to two logits."""
        pre = PairPreHead if self.target.windows.question else PreHead
        return SpanHead(pre(dim, dropout=self.dropout), self.target.windows)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[SpanAnswer]:
        """Return the most probable answer of each sample in all of its windows."""
        windows = self.target.windows
        part = batch[windows.context]
        coords, texts = part["coords"].cpu(), part["text"]
        log_probabilities = output.float().cpu().log_softmax(2)
        best = torch.full((len(output),), -torch.inf)
        first = torch.zeros(len(output), dtype=torch.long)
        last = first.clone()
        for number, place in enumerate(windows.places(batch)):
            scores, starts, ends = best_spans(log_probabilities[:, number, 1:], self.max_answer)
            is_better = scores > best
            best = torch.where(is_better, scores, best)
            first = torch.where(is_better, starts + place.start.cpu(), first)
            last = torch.where(is_better, ends + place.start.cpu(), last)
        none = log_probabilities[:, :, 0].sum(-1).amin(1)
        answers = [SpanAnswer("", None, None, 1.0)] * batch["#size"]
        rows = part["rows"].tolist()
        for i, row in enumerate(rows):
            is_none = self.target.is_optional and bool(none[row] >= best[row])
            if is_none or best[row] < PADDING / 2:
                answers[row] = SpanAnswer("", None, None, float(none[row].exp()))
                continue
            lead = len(windows.lead)
            start = int(coords[i, lead + int(first[row]), 0])
            stop = int(coords[i, lead + int(last[row]), 1])
            answers[row] = trimmed(texts[i], start, stop, float(best[row].exp()))
        return answers

    def answer(
        self, prediction: SpanAnswer, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answer, its position, its score, and an excerpt of the text if it is given."""
        result: dict[str, Any] = {
            "prediction": prediction.text,
            "start": prediction.start,
            "end": prediction.stop,
            "score": significant(prediction.score),
        }
        source = (inputs or {}).get(self.target.windows.context)
        if not isinstance(source, str | list) or prediction.start is None:
            return result
        return result | {"excerpt": excerpt(plain_text(source), prediction)}

    def marks(self, value: SpanAnswer | Answers, raws: Mapping[str, Any]) -> dict[str, list[Mark]]:
        """Return the place of a predicted or true answer in the text."""
        score = value.score if isinstance(value, SpanAnswer) else None
        if value.start is None or value.stop is None or value.start < 0:
            return {}
        mark = Mark("", 0, (value.start, value.stop), score)
        return {self.target.windows.context: [mark]}

    def columns(
        self, prediction: SpanAnswer, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answer, its position and its score."""
        return self.answer(prediction)

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the options of `dxn/export/programs/answers.py`."""
        windows = self.target.windows
        return {
            "decode": "answers",
            "input": windows.context,
            "question": windows.question,
            "others": list(windows.others),
            "max_len": windows.max_len,
            "overlap": windows.overlap,
            "max_question": windows.max_question,
            "max_answer": self.max_answer,
            "can_be_none": self.target.is_optional,
            # Numbers of special tokens, the last one at the end of a single text.
            "lead": len(windows.lead),
            "middle": len(windows.middle),
            "tail": len(windows.tail),
            "end": windows.num_tail,
        }

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[SpanAnswer]] | None:
        """Return no answer, if there are questions without an answer."""
        if not self.target.is_optional:
            return None
        return "always no answer", [SpanAnswer("", None, None, 1.0)] * len(raws)

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the sentence of each text that shares most words with the question."""
        context = self.target.windows.context
        others = [name for name in raws if name != context]
        questions = zip(*(raws[name] for name in others), strict=True)
        answers: list[SpanAnswer] = []
        for raw, question in zip(raws[context], questions, strict=True):
            text = plain_text(raw or "")
            # Other inputs can be pictures or numbers.
            texts = (plain_text(part) for part in question if isinstance(part, str | list))
            asked = {word for part in texts for word in normalized(part).split()}
            # A sentence with few other words wins among those that share as many.
            found = max(
                SENTENCES.finditer(text),
                key=lambda m: (len(asked & (words := {*normalized(m[0]).split()})), -len(words)),
                default=None,
            )
            span = (0, 0) if found is None else found.span()
            answers.append(trimmed(text, *span, 1.0))
        yield "sentence that shares most words", answers


def best_spans(scores: Tensor, max_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest sum of a first and a last score, and the indices of both tokens.

    Args:
        scores: (B, n, 2). Scores of each token as the first and as the last one.
        max_len: Maximum number of tokens.

    Returns:
        Three tensors (B,). The last token is not before the first.
    """
    start, end = scores.unbind(-1)
    following = F.pad(end, (0, max_len - 1), value=-torch.inf).unfold(1, max_len, 1)
    value, index = (start[..., None] + following).flatten(1).max(1)
    first = index // max_len
    return value, first, first + index % max_len


def trimmed(text: str, start: int, stop: int, score: float) -> SpanAnswer:
    """Return the answer text[start:stop] without white space at its ends."""
    part = text[start:stop]
    start += len(part) - len(part.lstrip())
    part = part.strip()
    return SpanAnswer(part, start, start + len(part), score)


def excerpt(text: str, answer: SpanAnswer, width: int = 80) -> list[str]:
    """Return the text before an answer, the answer, and the text after it, both shortened."""
    assert answer.start is not None and answer.stop is not None
    before, after = text[: answer.start], text[answer.stop :]
    if len(before) > width:
        before = f"...{before[-width:]}"
    if len(after) > width:
        after = f"{after[:width]}..."
    return [before, answer.text, after]
