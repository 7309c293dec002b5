"""Question answering: the answer is a part of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.tasks.heads import PreHead
from dxn.tasks.space import Batch, LossSum, Space
from dxn.tasks.span.head import PADDING, PairPreHead, SpanHead
from dxn.tasks.span.metric import SpanMetric
from dxn.tasks.span.target import SpanTarget
from dxn.tasks.task import Task
from dxn.tokenize.text.tokenizer import plain_text


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
        """Return the answer, its position, its score and, if the text is known, what is around."""
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

    def table(
        self, prediction: SpanAnswer, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return one row with the right answers, if they are known, and the answer."""
        known = {} if target is None else {"target": str(target)}
        return [known | self.columns(prediction)]

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
