"""Sequence tagging: predict one of several tags for each word."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.marks import Mark
from dxn.core.randomness import Probability
from dxn.core.schema import Strict
from dxn.tasks.entities import (
    WORDS,
    WORDS_AND_MARKS,
    Scheme,
    Span,
    are_integers,
    are_spans,
    describe_entities,
    entities,
    read_spans,
    scheme_of,
    split_words,
    tags_of,
)
from dxn.tasks.heads import HeadOptions
from dxn.tasks.metric import Metric
from dxn.tasks.names import Balance, Names, NamesState, class_name, explain_case
from dxn.tasks.space import AnswerKind, Batch, Categorical, LossSum
from dxn.tasks.target import IGNORED
from dxn.tasks.task import Raws, Task
from dxn.tokenize.cells.joined import list_of
from dxn.tokenize.text.tokenizer import plain_text


@dataclass(frozen=True, slots=True)
class Tagged:
    """The prediction for one sample.

    Args:
        tags: Tag of each word. Words that were truncated have none.
        scores: Probability of each tag.
    """

    tags: list[str]
    scores: list[float]


class TagsState(NamesState):
    """The content of labels.json."""

    punctuation: bool = False
    lists: bool = False


class Tags(Names):
    """One tag per word of an input.

    Args:
        names: Names of tags that are integers, from 0.
        balance: Class weights that `fit` computes.

    Attributes:
        punctuation: Whether a punctuation mark in a text is a word. Entities end in front of it if
            they are positions in a text.
        lists: Whether the texts of the input are lists of words, such as "['a', 'b']".
        input: Name of the input whose words are tagged. There is only one, because the tags of a
            row do not specify which of several texts they belong to.
    """

    State: ClassVar[type[Strict]] = TagsState
    separator = " "
    needs_inputs = True
    nouns = ("tag", "tags")
    limit = ("a tagged word", "adapters.text.max_len")

    def __init__(self, names: Sequence[str] = (), *, balance: Balance = "none"):
        super().__init__(balance=balance)
        self.tag_names = [str(name) for name in names]
        self.punctuation = False
        self.lists = False
        self.input = ""
        # Entities that do not fit the words, by row.
        self.inexact: dict[str, list[Span]] = {}

    @property
    def scheme(self) -> Scheme:
        """How the tags of the training split mark entities. It follows from their names."""
        return scheme_of(tuple(self.labels))

    @property
    def words(self) -> str:
        """Regular expression of a word of a text."""
        return (WORDS_AND_MARKS if self.punctuation else WORDS).pattern

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Return a note if the targets are positions, integers, or differ only in case."""
        if are_spans(cells):
            self.punctuation = True
            return [
                "the target contains the positions of entities: the text is split into words and "
                "punctuation marks, and each of them has a tag such as B-x, I-x or O"
            ]
        tags = [str(tag) for cell in cells for tag in list_of(cell) or ()]
        if self.tag_names or not are_integers(tags):
            return explain_case(tags)
        return [
            "the tags are integers: 0 is read as no entity, and any other number as an entity of "
            "one word; if they have names, set them in order, for example head=tag "
            "head.names=[O,B-person,I-person]"
        ]

    def see_inputs(self, raws: Mapping[str, Sequence[Any]]) -> None:
        """Find out whether most texts are lists of words, as pandas writes them to a CSV file."""
        if self.labels:  # the model knows it
            return
        for column in raws.values():
            texts = [raw for raw in column if isinstance(raw, str)]
            if texts:
                self.lists = 2 * sum(list_of(text) is not None for text in texts) > len(texts)
                return

    def words_of(self, raw: Any) -> Any:
        """Return the words of a text, which can be a list."""
        items = list_of(raw) if self.lists and isinstance(raw, str) else None
        return super().words_of(raw) if items is None else [str(item) for item in items]

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> list[str]:
        """Return the tags of a row: those in the cell, or those of the entities in the cell.

        Raises:
            UserError: If the cell is not a list, a tag has no name, there are more or fewer tags
                than words, or an entity is not in the text.
        """
        spans = read_spans(cell)
        if not self.punctuation:
            spans = spans or None  # an empty list has no tags
        tags: list[str] = []
        if spans is None:
            items = list_of(cell)
            if items is None:
                raise UserError(f"{origin}: the target must be a list, got {cell!r}")
            tags = [self._named(tag, origin) for tag in items]
        # Rows are read before `bind` sets the input. Until then, use the first input whose raw
        # value is a string or a list.
        candidates = [name for name, raw in raws.items() if isinstance(raw, str | list)]
        name = self.input or (candidates[0] if candidates else "")
        text = raws.get(name)
        if text is None:
            return tags  # `Samples` leaves out rows without their required input
        words, positions = split_words(self.unpacked(text), punctuation=self.punctuation)
        if spans and not positions:
            raise UserError(
                f"{origin}: {name} must be a text, because the target contains positions in it, "
                "got a list of words"
            )
        if spans or (self.punctuation and positions and not tags):
            tags, self.inexact[origin] = tags_of(spans or (), positions, text, origin)
        if len(words) != len(tags):
            raise UserError(
                f"{origin}: there must be one tag per word, got {len(tags)} tags for "
                f"{len(words)} words"
            )
        return tags

    def unpacked(self, raw: Any) -> Any:
        """Return the words of a text that is a list. Other values stay as they are."""
        return self.words_of(raw) if self.lists else raw

    def _named(self, value: Any, origin: str) -> str:
        names, tag = self.tag_names, class_name(value)
        # A missing tag, and the number of words without a loss in other libraries.
        if value is None or tag == str(IGNORED):
            raise UserError(
                f"{origin}: each word must have a tag, got {value}; words that are in no entity "
                "usually have the tag O"
            )
        if tag.isdecimal() and int(tag) < len(names):
            return names[int(tag)]
        if names and tag not in names:
            raise UserError(
                f"{origin}: head.names has no name for the tag {tag!r}, which must be from 0 to "
                f"{len(names) - 1}; name all tags"
            )
        return tag

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the first input that consists of words.

        Raises:
            UserError: If no input consists of words.
        """
        candidates = [name for name, adapter in adapters.items() if adapter.reader.words]
        if not candidates:
            raise UserError(
                f"head=tag: needs an input that consists of words, got {', '.join(adapters)}; "
                "use a text adapter"
            )
        adapters[candidates[0]].check_columns_are_tokens("tag")
        self.input = candidates[0]
        self.required = self.prepared_inputs = (self.input,)

    def encode(
        self, value: Sequence[str], sample: dict[str, Any], rand: Random | None = None
    ) -> Tensor:
        """Assign the tag of each word to the word's first token; all other tokens are IGNORED."""
        # The index of the word of each token (N,). Truncation to max_len may remove words, so there
        # may be fewer words than tags, but never more.
        words = sample[self.input]["words"]
        tags = super().encode(value, sample, rand)
        if words.numel() and int(words.max()) >= len(tags):
            raise UserError(
                f"{self.input}: there must be one tag per word, got {len(tags)} tags for at least "
                f"{int(words.max()) + 1} words"
            )
        # Tokens without a word, such as [CLS], have the index -1. The clamp makes it a valid index;
        # torch.where then discards the result.
        return torch.where(first_tokens(words), tags[words.clamp(min=0)], IGNORED)

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        """Pad the targets to (B, N) with IGNORED."""
        return nn.utils.rnn.pad_sequence(list(targets), True, IGNORED)

    def kept(
        self, value: Sequence[str], raws: Mapping[str, Any], tokenizers: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Return how many words are within max_len, and how many have a tag."""
        raw, tokenizer = raws.get(self.input), tokenizers[self.input]
        if raw is None or tokenizer.cut(raw) is None:
            return None
        words = tokenizer(raw)["words"]
        count = int(words.max()) + 1 if words.numel() else 0
        return (count, len(value)) if count < len(value) else None

    def describe(self, values: Sequence[Sequence[str]]) -> str:
        """Return the number of tags, and the number of words of the most frequent ones."""
        line = super().describe(values)
        number = sum(map(len, self.inexact.values()))
        if not number:
            return line
        return (
            f"{line}; entities of all splits that overlap with another one and are not used, or "
            f"begin or end within a word and are extended to the whole word: {number:,}"
        )


class PerWord(Categorical):
    """Logits (B, N, K) of the tags of each token; targets are indices (B, n) with n <= N."""

    kind = AnswerKind.TAGS
    mixes = False
    names: Tags

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy, weighted by the tag."""
        target = batch["target"]
        # An adapter may append extra columns, such as n-grams, after the tokens of the text.
        logits = rearrange(output[:, : target.shape[1]], "b n k -> (b n) k")
        return super().loss(logits, {"target": rearrange(target, "b n -> (b n)")})

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, N, K) of the tags of each token, zeros at padding."""
        part = batch[self.names.input]
        # An adapter may append extra columns, such as n-grams, after the tokens of the text.
        mask = F.pad(part["mask"], (0, output.shape[1] - part["mask"].shape[1]))
        real = mask.new_zeros(output.shape[:2]).index_copy(0, part["rows"], mask)
        return {"probabilities": output.float().softmax(-1) * real[..., None]}


class EntityMetric(Metric):
    """The accuracy per word, and precision, recall and F1 per entity as in conlleval.

    A word that was truncated by max_len has no prediction and counts as outside of entities.
    """

    target: Tags
    monitored = "f1_entity"
    row: ClassVar = ("accuracy", "share of right tags")

    def rows(self, predictions: Sequence[Tagged], targets: Sequence[Sequence[str]]) -> Tensor:
        """Count words, words with the right tag, and predicted, true and right entities."""
        scheme = self.target.scheme
        rows: list[tuple[int, ...]] = []
        for prediction, true in zip(predictions, targets, strict=True):
            predicted = prediction.tags
            if len(predicted) > len(true):
                raise ValueError(
                    f"there must be at most one predicted tag per word, got {len(predicted)} "
                    f"predicted tags for {len(true)} words"
                )
            pairs = list(zip_longest(predicted, true, fillvalue=scheme.outside))
            # Entities are compared within a row, because their positions are relative to the row.
            predicted_entities = set(entities(predicted, scheme))
            expected = set(entities(true, scheme))
            right = sum(p == t for p, t in pairs)
            rows.append(
                (
                    len(pairs),
                    right,
                    len(predicted_entities),
                    len(expected),
                    len(predicted_entities & expected),
                )
            )
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Without any entity they are 0, and so is each numerator."""
        words, right_words, predicted, true, right = sums.unbind(-1)
        return {
            "accuracy": right_words / words,
            "precision_entity": right / predicted.clamp(min=1),
            "recall_entity": right / true.clamp(min=1),
            "f1_entity": 2 * right / (predicted + true).clamp(min=1),
        }


@dataclass(kw_only=True, eq=False)
class Tag(HeadOptions, Task[Tags]):
    """Predict one of several tags for each word.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (uniform targets)
            (arXiv:1512.00567, section 7).
        balance: Weight of each tag in the loss: its inverse frequency (inverse), the root of this
            (root), or the same for all (none).
        names: Names of tags that are integers, from 0, such as [O, B-person, I-person].
    """

    name = "tag"

    label_smoothing: Probability = 0.0
    balance: Balance = "none"
    names: Sequence[str] = ()

    def __post_init__(self):
        self.target = Tags(self.names, balance=self.balance)
        self.space = PerWord(self.target, label_smoothing=self.label_smoothing)
        self.metric = EntityMetric(self.target)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps each token of the input to logits."""
        return self.linear_head(dim, len(self.target.labels), input=self.target.input)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tagged]:
        """Return the tags of the words of each sample; without tokens, a word is in no entity."""
        part = batch[self.target.input]
        words = part["words"].cpu()
        first = first_tokens(words)
        outside = self.target.scheme.outside
        best = output.float()[:, : words.shape[1]].softmax(-1).cpu().max(-1)
        predictions = [Tagged([], []) for _ in range(batch["#size"])]
        for i, row in enumerate(part["rows"].tolist()):
            # `i` is the index among the samples that have this input, `row` the index in the batch.
            num_words = int(words[i].max()) + 1 if words[i].numel() else 0
            tags = [outside] * num_words
            scores = [1.0] * num_words
            starts = first[i]
            word_ids = words[i, starts].tolist()
            tag_ids = best.indices[row, starts].tolist()
            probabilities = best.values[row, starts].tolist()
            for word, tag, p in zip(word_ids, tag_ids, probabilities, strict=True):
                tags[word] = self.target.labels[tag]
                scores[word] = p
            predictions[row] = Tagged(tags, scores)
        return predictions

    def answer(self, prediction: Tagged, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the tag of each word and, if the inputs are known, the words and the entities.

        The keys of an entity are those of `describe_entities`.
        """
        source = self.target.unpacked((inputs or {}).get(self.target.input))
        if source is None:
            return {"prediction": prediction.tags}
        punctuation = self.target.punctuation
        described = describe_entities(
            prediction.tags,
            prediction.scores,
            source,
            self.target.scheme,
            punctuation=punctuation,
        )
        return {
            "prediction": prediction.tags,
            "words": split_words(source, punctuation=punctuation)[0],
            "entities": described,
        }

    def marks(self, value: Tagged | list[str], raws: Mapping[str, Any]) -> dict[str, list[Mark]]:
        """Return the places of predicted or true entities in the text."""
        target = self.target
        raw = raws.get(target.input)
        if raw is None:
            return {}
        text, end = plain_text(raw), 0
        positions: list[tuple[int, int]] = []
        for word in split_words(target.unpacked(raw), punctuation=target.punctuation)[0]:
            start = text.index(word, end)
            end = start + len(word)
            positions.append((start, end))
        tags, scores = (value.tags, value.scores) if isinstance(value, Tagged) else (value, None)
        kinds = sorted({target.scheme.divide(tag)[1] for tag in target.labels})
        marks: list[Mark] = []
        for first, stop, kind in entities(tags, target.scheme):
            number = kinds.index(kind) if kind in kinds else len(kinds)
            score = None if scores is None else statistics.fmean(scores[first:stop])
            marks.append(Mark(kind, number, (positions[first][0], positions[stop - 1][1]), score))
        return {target.input: marks}

    def columns(
        self, prediction: Tagged, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the tag of each word and, if the inputs are known, the entities."""
        answer = self.answer(prediction, inputs)
        return {name: answer[name] for name in ("prediction", "entities") if name in answer}

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tagged]] | None:
        """Return no entities, if there is a tag for words outside of entities."""
        # The metrics count words without a prediction as outside.
        outside = self.target.scheme.outside
        if outside not in self.target.labels:
            return None
        return f"always {outside}", [Tagged([], [])] * len(raws)

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the most frequent tag of each word.

        New words are outside of entities, or have the most frequent tag if there are none.
        """
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words, tags in zip(map(self._words, train[self.target.input]), targets, strict=True):
            for word, tag in zip(words, tags, strict=False):
                counts[word][tag] += 1
        usual = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        new = self.target.scheme.outside
        if new not in self.target.labels:
            new = sum(counts.values(), Counter()).most_common(1)[0][0]
        answers = [
            [usual.get(word, new) for word in self._words(raw)] for raw in raws[self.target.input]
        ]
        yield "usual tag of each word", [Tagged(tags, [1.0] * len(tags)) for tags in answers]

    def _words(self, raw: Any) -> Sequence[str]:
        source = self.target.unpacked(raw)
        if source is None:
            return ()
        return split_words(source, punctuation=self.target.punctuation)[0]


def first_tokens(words: Tensor) -> Tensor:
    """Return a mask (..., N) of the tokens that are the first token of their word.

    Args:
        words: Index of the word of each token (..., N), or -1 for a token without a word.
    """
    # Compare each token with the previous one. The first token is compared with -2, which is not an
    # index in `words`.
    previous = F.pad(words, (1, 0), value=-2)[..., :-1]
    return (words >= 0) & (words != previous)
