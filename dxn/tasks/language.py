"""Language modelling: predict the next token of a text, or of the answers of conversations.

With further inputs, such as a picture, each text follows the tokens of these inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from pydantic import Field
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.schema import Strict
from dxn.core.tokens import Tokens
from dxn.models.decoding.output_layer import OutputLayer, OutputOptions
from dxn.tasks.metric import Metric
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import IGNORED, Target
from dxn.tasks.task import Task
from dxn.tokenize.text.chat import Conversation
from dxn.tokenize.text.tokenizer import special_ends
from dxn.tokenize.text.vocabulary import ENDS, encode, token_of

# Adapter options that change or merge tokens. A language model predicts every token unchanged.
INCOMPATIBLE = (
    ("conv_kernel",),
    ("augment", "token_dropout"),
    ("augment", "token_mask"),
    ("augment", "subword_dropout"),
)
EARLY = "EarlyFusion"  # name of the class
# math.exp overflows above about 709. The loss is clipped, so that the perplexity of a diverged
# model is finite.
MAX_LOSS = 700


@dataclass(frozen=True, slots=True)
class Window:
    """Target of one window of a token stream, or of one conversation, for language modelling.

    Args:
        ids: Ids (n,) of the next token for each token of the window, IGNORED if it is not learned.
        chars_per_token: Mean number of characters per token in the whole split, or per target of
            the conversation.
    """

    ids: Tensor
    chars_per_token: float


class LanguageHead(nn.Module):
    """Cross-entropy of the next token.

    Args:
        embedding: Embedding (V, D) of the adapter. It is saved as a part of the adapter.
        input: Name of the input.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1.
        output: Options of the output layer.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        *,
        input: str,
        label_smoothing: float = 0.0,
        output: OutputOptions = OutputOptions(),
    ):
        super().__init__()
        self.pre = nn.Identity()
        self.output = OutputLayer(embedding, output)
        self.input = input
        self.label_smoothing = label_smoothing

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Return the sum () of the cross-entropies of all target tokens; 0 without targets.

        The output is the loss instead of logits: the logits (B, N, V) of all tokens would need more
        memory than the rest of the model.
        """
        if "target" not in batch:
            return pooled.new_zeros(()).float()
        ids = batch["target"]["ids"]
        # An adapter may append extra columns, such as n-grams, after the tokens of the text.
        states = tokens.select(self.input).x[:, : ids.shape[1]]
        return self.output.loss(
            states.flatten(0, 1),
            ids.flatten(),
            label_smoothing=self.label_smoothing,
            ignore_index=IGNORED,
        )


class WritingState(Strict):
    """How texts are generated, in a model folder, which may come from an untrusted source."""

    ends: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    sampling: dict[Literal["temperature", "top_k", "top_p"], Annotated[float, Ge(0), Le(1e6)]] = (
        Field(default_factory=dict)
    )
    unused: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] = Field(
        default_factory=list
    )


class NextToken(Target):
    """The next token at each position of a stream of texts, or of the answers of conversations.

    With other inputs before the text, each row is a text of its own. It ends with the end token,
    and starts after it, unless the tokenizer adds a begin token.

    Attributes:
        input: Name of the text. `bind` sets it.
        others: Names of the other inputs. `bind` sets them.
        end: Id of the token that ends a text with other inputs before it. None: there are none.
            `bind` sets it.
        marks: Numbers of special tokens that the tokenizer adds before and after a text. `bind`
            sets them.
        max_len: Maximum number of tokens of a text. `bind` sets it.
        ends: Ids of the tokens that end a text, of a public checkpoint. Empty: the tokenizer has
            one by its name, see `dxn.tokenize.text.vocabulary.ENDS`.
        sampling: See `Target`.
        unused: See `Target`.
    """

    State = WritingState
    source = "stream"
    limit = ("an answer", "adapters.text.max_len")

    def __init__(self):
        self.input = ""
        self.others: tuple[str, ...] = ()
        self.ends: list[int] = []
        self.sampling: dict[str, float] = {}
        self.unused: list[str] = []
        self.end: int | None = None
        self.marks = (0, 0)
        self.max_len = 0

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Set the text, which is the only input with a vocabulary.

        Raises:
            UserError: If no input has a vocabulary, or several inputs have one.
        """
        names = ", ".join(adapters) or "none"
        texts = [name for name, adapter in adapters.items() if adapter.has_vocabulary]
        if not texts:
            raise UserError(
                f"head=language: needs an input with a vocabulary, got {names}; use a text adapter"
            )
        if len(texts) > 1:
            raise UserError(
                f"head=language: needs exactly one text, got {', '.join(texts)}; set "
                f"data.text={texts[-1]}, or data.chat=[{','.join(texts)}] to learn to answer"
            )
        (name,) = texts
        adapter = adapters[name]
        adapter.check_columns_are_tokens("language")
        # A config.json can have an end token of another vocabulary.
        self.ends = [i for i in self.ends if i < adapter.embedding.num_embeddings]
        if len(adapters) > 1:
            self.end = next(iter(self.ends), token_of(adapter.tokenizer.vocabulary, ENDS))
            if self.end is None:
                raise UserError(
                    "head=language: a text after other inputs needs a tokenizer with an end token, "
                    f"such as {ENDS[0]}; choose another tokenizer, or only a text"
                )
        self.marks = (0, 0)
        if adapter.tokenizer.adds_special:
            encoding = encode(adapter.tokenizer.vocabulary, "a", add_special_tokens=True)
            self.marks = special_ends(encoding.special_tokens_mask)
        self.max_len = adapter.tokenizer.max_len
        self.others = tuple(other for other in adapters if other != name)
        self.input = name
        self.last = name
        self.required = (name,)
        # Of a conversation. A stream has windows of tokens instead.
        self.prepared_inputs = (name,)

    def kept(
        self, value: Any, raws: Mapping[str, Any], tokenizers: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Return how many tokens of the answers are learned, and how many they have."""
        raw, tokenizer = raws.get(self.input), tokenizers[self.input]
        if not isinstance(raw, Conversation) or tokenizer.cut(raw) is None:
            return None
        count = int((tokenizer(raw)["answers"] >= 0).sum())
        total = sum(len(tokenizer.ids(raw.text[start:stop])) for start, stop in raw.answers)
        return (count, total) if count < total else None

    def describe(self, values: Sequence[Any]) -> str:
        """Return a description of the targets, which does not depend on `values`."""
        return "the next token"

    def encode(
        self, value: Window | None, sample: dict[str, Any], rand: Random | None = None
    ) -> Window | None:
        """Return the window unchanged, or that of the answers of a conversation, or of a text."""
        if value is not None:
            return value
        added = sample[self.input].pop("answers", None)
        if added is None:
            return None if self.end is None else self._whole_text(sample)
        # A row can lack one of the inputs.
        if (count := int(sample[self.input].pop("files"))) > len(self.others):
            raise UserError(
                f"{self.input}: a conversation has {count} files in its messages, but the model "
                f"has {len(self.others)} inputs besides the text; leave these parts out, or add "
                "adapters for them"
            )
        ids = sample[self.input]["ids"]
        is_target = added[1:] >= 0
        targets = torch.where(is_target, ids[1:], IGNORED)
        num_chars = added[1:].clamp(min=0).sum().item()
        return Window(targets, num_chars / max(int(is_target.sum()), 1))

    def _whole_text(self, sample: dict[str, Any]) -> Window:
        """Let a text start after the end token or with its begin token, and return its window."""
        text = sample[self.input]
        lead, tail = self.marks
        new = 0 if lead else 1
        count = len(text["ids"]) - tail
        ids = text["ids"][:count]
        targets = F.pad(ids, (new - 1, 1), value=self.end)[: self.max_len]
        fills = {"ids": self.end, "mask": True, "coords": math.nan, "words": -1}
        shifted = {
            name: F.pad(text[name][:count], (0, 0) * (text[name].ndim - 1) + (new, 0), value=fill)
            for name, fill in fills.items()
        }
        # Characters up to the last token: special tokens have no place.
        num_chars = text["coords"].nan_to_num().max().item()
        sample[self.input] = {
            **text,
            **{name: value[: self.max_len] for name, value in shifted.items()},
        }
        return Window(targets, num_chars / len(targets))

    def collate(self, targets: Sequence[Window]) -> dict[str, Any]:
        """Return ids (B, N) padded with IGNORED, and chars_per_token, one float per window."""
        ids = [window.ids for window in targets]
        return {
            "ids": nn.utils.rnn.pad_sequence(ids, True, IGNORED),
            "chars_per_token": [window.chars_per_token for window in targets],
        }


class PerplexityMetric(Metric):
    """The loss per character and the perplexity per token, which follow from the loss.

    The loss per character can be compared between models with different tokenizers.
    """

    monitored = "loss_per_char"
    lower_is_better = ("perplexity",)

    def metrics(
        self, predictions: Sequence[tuple[float, int]], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return both metrics; the predictions are the numbers of characters and of tokens."""
        num_chars = math.fsum(chars for chars, _ in predictions)
        num_tokens = sum(tokens for _, tokens in predictions)
        return {
            "loss_per_char": loss * num_tokens / num_chars if num_chars else math.nan,
            "perplexity": math.exp(min(loss, MAX_LOSS)),
        }


class Language(Task[NextToken]):
    """Predict the next token at each position of a text. The backbone must be causal.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (arXiv:1512.00567, section
            7).
        output: Options of the output layer.
    """

    name = "language"

    def __init__(
        self, *, label_smoothing: Probability = 0.0, output: OutputOptions = OutputOptions()
    ):
        self.label_smoothing = label_smoothing
        self.output = output
        self.target = NextToken()
        self.metric = PerplexityMetric()

    def check(self, config: Mapping[str, Any]) -> None:
        """Check that the backbone is causal and that no adapter option changes tokens.

        Raises:
            UserError: If one of them is not the case. The message has one line per problem.
        """
        super().check(config)
        problems = [
            f"adapters.{key}.{path}: cannot be combined with head=language, which predicts every "
            "token unchanged; remove this option"
            for key, path in _incompatible_options(config.get("adapters") or {})
        ]
        if not config["backbone"].get("causal"):
            problems.append(
                "head=language: needs a causal backbone, because otherwise each position attends "
                "to the token that it has to predict; set backbone.causal=true"
            )
        if config.get("fusion", {}).get("_target_", EARLY).rpartition(".")[2] != EARLY:
            problems.append(
                "fusion: must be early with head=language, whose text attends to all other inputs; "
                "set fusion=early"
            )
        # The generation reads the tokens of the inputs only.
        if registers := config.get("fusion", {}).get("registers"):
            problems.append(
                f"fusion.registers: must be 0 with head=language, which would leave them out when "
                f"it generates a text, got {registers}"
            )
        if problems:
            raise UserError("\n".join(problems))

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that shares the adapter's embedding."""
        return LanguageHead(
            adapters[self.target.input].embedding,
            input=self.target.input,
            label_smoothing=self.label_smoothing,
            output=self.output,
        )

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy of the target tokens."""
        return LossSum(output, (batch["target"]["ids"] != IGNORED).sum().float())

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[tuple[float, int]]:
        """Return the numbers of characters and of tokens of each window, for the metrics."""
        if "target" not in batch:
            raise UserError(
                "a language model has no prediction for a row; use dxn generate prompt=..."
            )
        target = batch["target"]
        counts = (target["ids"] != IGNORED).sum(1).tolist()
        return [
            (chars * count, count)
            for chars, count in zip(target["chars_per_token"], counts, strict=True)
        ]


def _incompatible_options(adapters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the adapter key and the dotted path of each option in INCOMPATIBLE that is set."""
    for key, node in adapters.items():
        for path in INCOMPATIBLE:
            value: Any = node
            for part in path:
                value = value.get(part) if isinstance(value, Mapping) else None
            if value:
                yield key, ".".join(path)
