"""Sequence tagging: predict one of several tags for each word."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import validated
from dxn.tasks.cells import parse_list
from dxn.tasks.divergences import between_classes
from dxn.tasks.entities import (
    PARTS,
    WORDS,
    Scheme,
    are_integers,
    describe_entities,
    entities,
    split_words,
)
from dxn.tasks.heads import TokenHead
from dxn.tasks.labels import (
    Labels,
    LabelsState,
    balanced_weights,
    describe_names,
    encode_names,
    explain_case,
    first_unknown,
)
from dxn.tasks.loss import LossSum
from dxn.tasks.probabilities import mean_probabilities
from dxn.tasks.row_scores import RowScores
from dxn.tasks.spans import Span, read_spans, tags_of
from dxn.tasks.task import IGNORED, STATE_FILE, Batch, Task


@dataclass(frozen=True, slots=True)
class Tagged:
    """The prediction for one sample.

    Args:
        tags: Tag of each word. Words that were truncated have none.
        scores: Probability of each tag.
    """

    tags: list[str]
    scores: list[float]


class TagState(LabelsState):
    """The state of this task in a model folder, which may come from a stranger."""

    punctuation: bool = False


class Tag(Task):
    """Predict one of several tags for each word.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (uniform targets)
            (arXiv:1512.00567, section 7).
        balance: Whether to weight each tag in the loss by its inverse frequency.
        dropout: Dropout probability of the encoded tokens.
        names: Names of tags that are integers, from 0, such as [O, B-person, I-person].
    """

    name = "tag"
    wants_words = True
    separator = " "
    monitored = "f1_entity"
    higher_is_better = True

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        balance: bool = False,
        dropout: float = 0.1,
        names: Sequence[str] = (),
    ):
        self.label_smoothing = label_smoothing
        self.balance = balance
        self.dropout = dropout
        self.names = [str(name) for name in names]
        self.tags = Labels()
        # How the tags of the training split mark entities. It follows from the names of the tags.
        self.scheme = Scheme()
        # Whether a punctuation mark in a text is a word. Entities end in front of it if they are
        # positions in a text.
        self.punctuation = False
        # Entities that do not fit the words, by row.
        self.inexact: dict[str, list[Span]] = {}
        # Name of the input whose words are tagged. `bind` sets it. There is only one, because the
        # tags of a row do not specify which of several texts they belong to.
        self.input = ""

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return the highest score for positions of entities, and for one tag per word."""
        if _are_spans(values):
            return 1.0
        if words is None or not all(isinstance(value, list) for value in values):
            return 0.0
        # The lengths of empty lists are equal by chance, so empty rows are not evidence.
        pairs = [(w, tags) for w, tags in zip(words, values, strict=True) if w and tags]
        fits = all(isinstance(w, list) and len(w) == len(tags) for w, tags in pairs)
        return 1.0 if pairs and fits else 0.0

    def find_format(self, values: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Return a note if the targets are positions, integers, or differ only in case."""
        if _are_spans(values):
            self.punctuation = True
            return [
                "the target contains the positions of entities: the text is split into words and "
                "punctuation marks, and each of them has a tag such as B-x, I-x or O"
            ]
        lists = [value for value in values if isinstance(value, list | tuple)]
        tags = [str(tag) for tags in lists for tag in tags]
        if self.names or not are_integers(tags):
            note = explain_case(tags)
            return [f"target: {note}"] if note else []
        return [
            "the tags are integers: 0 is read as no entity, and any other number as an entity of "
            "one word; if they have names, set them in order, for example head=tag "
            "head.names=[O,B-person,I-person]"
        ]

    def parse(self, value: Any, origin: str) -> list[str] | list[Span]:
        """Return the tags, or the entities, which `complete` converts to tags.

        Raises:
            UserError: If the cell is not a list, or a tag has no name.
        """
        spans = read_spans(value)
        if spans is not None and (spans or self.punctuation):
            return spans
        tags = parse_list(value, origin)
        return [self._named(tag, origin) for tag in tags] if self.names else tags

    def _named(self, tag: str, origin: str) -> str:
        if tag.isdecimal() and int(tag) < len(self.names):
            return self.names[int(tag)]
        if tag not in self.names:
            raise UserError(
                f"{origin}: head.names has no name for the tag {tag!r}, which must be from 0 to "
                f"{len(self.names) - 1}; name all tags"
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
        adapters[candidates[0]].check_columns_are_tokens(self.name)
        self.input = candidates[0]

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The input whose words are tagged."""
        return (self.input,)

    def complete(
        self, raws: Mapping[str, Any], value: Sequence[str] | Sequence[Span], origin: str
    ) -> list[str]:
        """Return the tags of a row, after checking that there is one tag per word.

        Raises:
            UserError: If there are more or fewer tags than words, or an entity is not in the text.
        """
        spans = [item for item in value if isinstance(item, Span)]
        tags = [item for item in value if not isinstance(item, Span)]
        # Rows are checked before `bind` sets the input. Until then, use the first input whose raw
        # value is a string or a list.
        candidates = [n for n, raw in raws.items() if isinstance(raw, str | list)]
        name = self.input or (candidates[0] if candidates else "")
        text = raws.get(name)
        if text is None:
            return tags  # `Samples` leaves out rows without their required input
        words, positions = split_words(text, punctuation=self.punctuation)
        if spans and not positions:
            raise UserError(
                f"{origin}: {name} must be a text, because the target contains positions in it, "
                "got a list of words"
            )
        if spans or (self.punctuation and positions and not tags):
            tags, self.inexact[origin] = tags_of(spans, positions, len(text), origin)
        if len(words) != len(tags):
            raise UserError(
                f"{origin}: there must be one tag per word, got {len(tags)} tags for "
                f"{len(words)} words"
            )
        return tags

    def fit(self, values: Sequence[Sequence[str]]) -> None:
        """Collect the tag names, and compute tag weights if `balance` is set."""
        self.tags = Labels.fit(chain.from_iterable(values))
        self.scheme = Scheme.of(self.labels)
        if self.balance:
            weights = balanced_weights(self.labels, chain.from_iterable(values))
            self.tags = replace(self.tags, weights=weights)

    @property
    def labels(self) -> tuple[str, ...]:
        """Tag names in the order of the head's outputs."""
        return self.tags.names

    def describe(self, values: Sequence[Sequence[str]]) -> str:
        """Return the number of tags, and the number of words of the most frequent ones."""
        line = describe_names(chain.from_iterable(values), "tag", "tags")
        number = sum(map(len, self.inexact.values()))
        if not number:
            return line
        return (
            f"{line}; {number:,} entities of all splits overlap with another one and are not used, "
            "or begin or end within a word and are extended to the whole word"
        )

    @property
    def word_pattern(self) -> str:
        """Regular expression of a word of a text."""
        return (PARTS if self.punctuation else WORDS).pattern

    def unknown(self, values: Sequence[Sequence[str]]) -> list[str]:
        """Return a tag of each row with one that does not occur in the training split."""
        return first_unknown(values, self.tags.index)

    def encode(self, value: Sequence[str], rand: random.Random | None = None) -> Tensor:
        """Return the tag indices (W,) of W words, IGNORED for tags not in the training split."""
        return encode_names(value, self.tags.index)

    def encode_sample(
        self, sample: dict[str, Any], value: Sequence[str], rand: random.Random | None = None
    ) -> dict[str, Any]:
        """Assign the tag of each word to the word's first token; all other tokens are IGNORED."""
        # The index of the word of each token (N,). Truncation to max_len may remove words, so there
        # may be fewer words than tags, but never more.
        words = sample[self.input]["words"]
        tags = self.encode(value, rand)
        if words.numel() and int(words.max()) >= len(tags):
            raise UserError(
                f"{self.input}: there must be one tag per word, got {len(tags)} tags for at least "
                f"{int(words.max()) + 1} words"
            )
        # Tokens without a word, such as [CLS], have the index -1. The clamp makes it a valid index;
        # torch.where then discards the result.
        target = torch.where(first_tokens(words), tags[words.clamp(min=0)], IGNORED)
        return {**sample, "target": target}

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        """Pad the targets to (B, N) with IGNORED."""
        return nn.utils.rnn.pad_sequence(list(targets), True, IGNORED)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps each token of the input to logits."""
        return TokenHead(dim, len(self.labels), input=self.input, dropout=self.dropout)

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy of logits (B, N, K) and targets (B, n), n <= N."""
        target = batch["target"]
        # An adapter may append extra columns, such as n-grams, after the tokens of the text.
        logits = output.float()[:, : target.shape[1]]
        total = F.cross_entropy(
            rearrange(logits, "b n k -> (b n) k"),
            rearrange(target, "b n -> (b n)"),
            weight=self.tags.weights_on(output.device),
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return LossSum(total, self.tags.total_weight(target))

    def divergence(self, output: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return the mean symmetric KL divergence of the tags of words, from logits (B, N, K)."""
        valid = batch["target"] != IGNORED
        width = valid.shape[1]
        each = between_classes(output[:, :width], other[:, :width])
        return (each * valid).sum() / valid.sum().clamp(min=1)

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm (B, N, K) of the mean of the members' probabilities."""
        return mean_probabilities(outputs)

    def exported(self, head: nn.Module, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, N, K) of the tags of each token, zeros at padding."""
        part = batch[self.input]
        # An adapter may append extra columns, such as n-grams, after the tokens of the text.
        mask = F.pad(part["mask"], (0, output.shape[1] - part["mask"].shape[1]))
        real = mask.new_zeros(output.shape[:2]).index_copy(0, part["rows"], mask)
        return {"probabilities": output.float().softmax(-1) * real[..., None]}

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tagged]:
        """Return the tags of the words of each sample; without tokens, a word is in no entity."""
        part = batch[self.input]
        words = part["words"].cpu()
        first = first_tokens(words)
        outside = self.scheme.outside
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
                tags[word] = self.labels[tag]
                scores[word] = p
            predictions[row] = Tagged(tags, scores)
        return predictions

    def weighted_metrics(
        self, predictions: Sequence[Tagged], truths: Sequence[Sequence[str]], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the accuracy per word, and precision, recall and F1 per entity as in conlleval.

        A word that was truncated by max_len has no prediction and counts as outside of entities.
        """
        return _figures(counts @ _counts(predictions, truths, self.scheme))

    def row_scores(
        self, predictions: Sequence[Tagged], truths: Sequence[Sequence[str]]
    ) -> RowScores:
        """Return the share of the words of each row with the right tag; 1 for an empty row."""
        words, correct, *_ = _counts(predictions, truths, self.scheme).T
        shares = torch.where(words > 0, correct / words.clamp(min=1), 1.0)
        return RowScores("share of right tags", shares.tolist())

    def answer(self, prediction: Tagged, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the tag of each word and, if the inputs are known, the words and the entities.

        An entity has the keys of `dxn.tasks.entities.Entity`.
        """
        source = (inputs or {}).get(self.input)
        if source is None:
            return {"prediction": prediction.tags}
        found = describe_entities(
            prediction.tags,
            prediction.scores,
            source,
            self.scheme,
            punctuation=self.punctuation,
        )
        return {
            "prediction": prediction.tags,
            "words": split_words(source, punctuation=self.punctuation)[0],
            "entities": [asdict(entity) for entity in found],
        }

    def fields(
        self, prediction: Tagged, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the tag of each word and, if the inputs are known, the entities."""
        answer = self.answer(prediction, inputs)
        return {name: answer[name] for name in ("prediction", "entities") if name in answer}

    def trivial(self) -> tuple[str, Tagged] | None:
        """Return no entities, if there is a tag for words outside of entities."""
        # `metrics` counts words without a prediction as outside.
        outside = self.scheme.outside
        return (f"always {outside}", Tagged([], [])) if outside in self.labels else None

    def state(self) -> dict[str, Any]:
        """Return the tag names and weights, and how a text is split."""
        return {**self.tags.state(), "punctuation": self.punctuation}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the tag names and weights, and how a text is split."""
        saved = validated(TagState, dict(state), STATE_FILE)
        self.tags = Labels.from_state(saved.model_dump(exclude={"punctuation"}))
        self.punctuation = saved.punctuation
        self.scheme = Scheme.of(self.labels)


def _are_spans(values: Sequence[Any]) -> bool:
    """Return whether target cells contain positions of entities; a list can also be empty."""
    has_span = False
    for value in values:
        spans = read_spans(value)
        if spans is None:
            return False
        has_span = has_span or bool(spans)
    return has_span


def _counts(
    predictions: Sequence[Tagged], truths: Sequence[Sequence[str]], scheme: Scheme
) -> Tensor:
    """Return counts (n, 5) per row, float64.

    They are the words, the words with the right tag, and the predicted, true and right entities.
    """
    rows: list[tuple[int, ...]] = []
    for prediction, true in zip(predictions, truths, strict=True):
        predicted = prediction.tags
        if len(predicted) > len(true):
            raise ValueError(
                f"there must be at most one predicted tag per word, got {len(predicted)} "
                f"predicted tags for {len(true)} words"
            )
        pairs = list(zip_longest(predicted, true, fillvalue=scheme.outside))
        # Entities are compared within a row, because their positions are relative to the row.
        found = set(entities(predicted, scheme))
        expected = set(entities(true, scheme))
        right = sum(p == t for p, t in pairs)
        rows.append((len(pairs), right, len(found), len(expected), len(found & expected)))
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)


def _figures(counts: Tensor) -> dict[str, Tensor]:
    """Return the metrics of summed counts (..., 5)."""
    words, right_words, predicted, true, right = counts.unbind(-1)
    # Without any entity, the figures are 0, and so is each numerator.
    return {
        "accuracy": right_words / words.clamp(min=1),
        "precision_entity": right / predicted.clamp(min=1),
        "recall_entity": right / true.clamp(min=1),
        "f1_entity": 2 * right / (predicted + true).clamp(min=1),
    }


def first_tokens(words: Tensor) -> Tensor:
    """Return a mask (..., N) of the tokens that are the first token of their word.

    Args:
        words: Index of the word of each token (..., N), or -1 for a token without a word.
    """
    # Compare each token with the previous one. The first token is compared with -2, which is not an
    # index in `words`.
    previous = F.pad(words, (1, 0), value=-2)[..., :-1]
    return (words >= 0) & (words != previous)
