"""The base class of tasks, and their registry.

A task defines how targets are parsed and encoded, the head, the loss, the metrics, and the format
of predictions. Code outside `dxn.tasks` calls these methods and never branches on the name of a
task.

For training, the methods are called in this order: `check` (the configuration), `find_format` (all
target cells), `parse` (every target cell), `bind` (the fitted adapters), `fit` (the training
targets), `make_head`. For a saved task the order is `load`, `bind`, `make_head`.
"""

from __future__ import annotations

import json
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from dxn.core.arguments import Recorded
from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.core.tokens import Tokens
from dxn.core.untrusted import load_json
from dxn.tasks.figures import OwnMetric, is_higher_better, own_figures
from dxn.tasks.loss import LossSum
from dxn.tasks.row_scores import ClassScores, RowScores

# The keys are "#size" (int, the number of samples), "#index" (list of row indices), "target" (the
# result of `Task.collate`), and the name of each input (its collated samples).
Batch = Mapping[str, Any]

# Target index without a loss: the default ignore_index of cross_entropy. It is never equal to a
# predicted index, so it also never counts as correct.
IGNORED = -100
STATE_FILE = "labels.json"

# Import path of each task, by the name that `head=NAME` selects. Other modules import this
# registry, so it cannot contain the classes themselves.
TASKS: dict[str, str] = {
    "classify": "dxn.tasks.Classify",
    "multilabel": "dxn.tasks.Multilabel",
    "regress": "dxn.tasks.Regress",
    "tag": "dxn.tasks.Tag",
    "generate": "dxn.tasks.Generate",
    "language": "dxn.tasks.Language",
    "masked": "dxn.tasks.Masked",
    "contrastive": "dxn.tasks.Contrastive",
    "forecast": "dxn.tasks.Forecast",
}


@dataclass(frozen=True, slots=True)
class Window:
    """Target of one window of a token stream, for language modelling.

    Args:
        ids: Ids (n,) of the next token for each token of the window.
        chars_per_token: Mean number of characters per token in the whole split.
    """

    ids: Tensor
    chars_per_token: float


class Task(Recorded, ABC):
    """Base class of tasks. A subclass must define `make_head`, `loss` and `predict`.

    All other methods have a default for a task whose target is one tensor per sample. An instance
    must be picklable and must not contain weights, because each data loader worker gets a copy.

    Attributes:
        name: Name of the task, for head=NAME.
        needs_target: Whether the data needs a target column. False if targets are computed from the
            inputs.
        answers: Whether the task has a prediction for each row, to be written to predictions.csv.
        preset: Which rules of preset=auto choose options for this task: "samples" (found with tasks
            that predict one class, label set or number per sample), "windows" (forecasts of
            windows of series) or None.
        streams: Whether all rows are concatenated to a stream of tokens, which is cut into windows.
            `encode_sample` then receives a `Window` as `value`, and `required_inputs` contains the
            only input.
        wants_words: Whether inputs should be lists of words where possible.
        separator: Text between the items of a list, such as labels, in one cell of a CSV file.
        compares_rows: Whether `encode_sample` receives as `value` a hash of each raw input of the
            row (bytes by input name), which is equal for rows with an equal input.
        separates_inputs: Whether the head receives each input encoded alone, as
            `dxn.models.InputVectors`. The head then has the same attribute.
        min_inputs: Smallest number of inputs that can be evaluated. The table of an evaluation has
            no rows for smaller subsets of the inputs.
        random_in_validation: Whether `encode_sample` receives a random generator in validation as
            well, with the same state in every epoch. If False, `rand` is None except in training.
        plots: Plot of the predictions: "confusion", "scatter", "forecast" or None.
        monitored: Name of the metric that selects the best epoch.
        higher_is_better: Whether higher values of the monitored metric are better.
        own_metrics: Metrics of the user by name, which `score` adds to those of the task.
    """

    name: ClassVar[str]
    needs_target: ClassVar[bool] = True
    answers: ClassVar[bool] = True
    preset: ClassVar[Literal["samples", "windows"] | None] = None
    streams: ClassVar[bool] = False
    wants_words: ClassVar[bool] = False
    separator: str = "|"
    compares_rows: ClassVar[bool] = False
    separates_inputs: ClassVar[bool] = False
    min_inputs: ClassVar[int] = 1
    random_in_validation: ClassVar[bool] = False
    plots: ClassVar[str | None] = None
    monitored: str = "loss"
    higher_is_better: bool = False
    own_metrics: Mapping[str, OwnMetric] = MappingProxyType({})

    # Before training

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return how well this task fits target values, from 0 to 1, for head=auto.

        Args:
            values: Raw cells of the target column, never None.
            words: Cells of an input that contains lists of words, one per row of `values`. None if
                there is no such input.
        """
        return 0.0

    @classmethod
    def reason(cls, values: Sequence[Any]) -> str:
        """Return why head=auto chose this task, if another one would fit nearly as well.

        The sentence names the option that selects the other task. "": the choice is clear.

        Args:
            values: Raw cells of the target column, never None.
        """
        return ""

    def find_format(self, values: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out how target cells are written, before `parse` is called.

        Args:
            values: Raw cells of the target column in all splits, never None.
            origins: File and row of each cell.

        Returns:
            Sentences about how the cells are read, if that is not obvious.
        """
        return []

    def check(self, config: Mapping[str, Any]) -> None:
        """Check the composed configuration before any data is read.

        Raises:
            UserError: If an option cannot be combined with this task.
        """
        options = config.get("trainer", {})
        # A task supports an option if it overrides the method, whose default raises an error.
        if options.get("mixup") and type(self).mix_targets is Task.mix_targets:
            raise self._refusal("mixup")
        if options.get("r_drop") and type(self).divergence is Task.divergence:
            raise self._refusal("r_drop")
        if config.get("ensemble", 1) > 1 and type(self).combine is Task.combine:
            raise UserError(
                f"ensemble: cannot be combined with head={self.name}; set ensemble=1, got "
                f"{config['ensemble']}"
            )

    def parse(self, value: Any, origin: str) -> Any:
        """Convert a raw cell to a target value.

        Args:
            value: Raw cell, never None.
            origin: File and row of the cell, for error messages.

        Raises:
            UserError: If the cell is not a valid target of this task.
        """
        return value

    def complete(self, raws: Mapping[str, Any], value: Any, origin: str) -> Any:
        """Check that a target value matches the inputs of its row, and add what depends on them.

        Args:
            raws: Raw values of the row's inputs, by input name; None where missing.
            value: Parsed target value.
            origin: File and row, for error messages.

        Returns:
            The target value. Default: unchanged.

        Raises:
            UserError: If the target value does not match the inputs.
        """
        return value

    @property
    def word_pattern(self) -> str:
        """Regular expression of a word of a text, for a task that `wants_words`."""
        return r"\S+"

    def split_text(self, text: str) -> list[str]:
        """Return the words of a text, for a task that `wants_words`."""
        return re.findall(self.word_pattern, text)

    def vocabulary_texts(self, values: Sequence[Any]) -> Sequence[str]:
        """Return the texts among the targets that the vocabulary of an input must also cover."""
        return ()

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Connect the task to the fitted adapters, for example to share a tokenizer.

        Args:
            adapters: Fitted adapters, by input name.

        Raises:
            UserError: If the task cannot use these adapters.
        """

    def fit(self, values: Sequence[Any]) -> None:
        """Learn properties of the targets, such as class names, from the training split."""

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """Names of the inputs that every usable row must have; set by `bind`."""
        return ()

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Class names, or the vocabulary of a text generation task. None if there are neither."""
        return None

    def describe(self, values: Sequence[Any]) -> str:
        """Return one line about target values, to be printed after the label "target: ".

        The line has no label and no full stop, for example "0 to 10, median 5".
        """
        return f"{len(values):,} values"

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Return the first class, label or tag of each row that the training split does not have.

        Rows whose classes are all known are left out.
        """
        return []

    # Samples and batches

    def encode(self, value: Any, rand: random.Random | None = None) -> Any:
        """Convert a target value to the form that `collate` expects."""
        return torch.as_tensor(value)

    def encode_sample(
        self, sample: dict[str, Any], value: Any, rand: random.Random | None = None
    ) -> dict[str, Any]:
        """Add the key "target" to a prepared sample.

        Override this method if the target depends on the prepared inputs, such as bounding boxes
        that must be transformed together with an augmented image.

        Args:
            sample: Prepared inputs: a dict of tensors for each input name.
            value: Parsed target of the row; None for a task that needs no target.
            rand: Random generator for this sample. None: no randomness.
        """
        return {**sample, "target": self.encode(value, rand)}

    def collate(self, targets: Sequence[Any]) -> Any:
        """Combine targets into batch["target"]: a tensor, or a list or dict of tensors."""
        return torch.stack(list(targets))

    def num_tokens(self, value: Any) -> int:
        """Return the length of a target in tokens, used to batch samples of similar length."""
        # Most targets have a fixed size, so that only the inputs determine the length of a sample.
        return 0

    def mix_targets(self, target: Any, order: Tensor, share: float) -> Any:
        """Mix the targets of a batch with those of a permuted batch, for mixup (arXiv:1710.09412).

        Args:
            target: Collated targets.
            order: Permutation (B,) of the samples.
            share: Weight of the original sample; the permuted sample has the weight 1 - share.

        Raises:
            UserError: If the task does not support mixup, which is the default.
        """
        raise self._refusal("mixup")

    # The model

    @abstractmethod
    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build the head, a module with the signature forward(tokens, pooled, batch).

        Args:
            dim: Width D of a token.
            pooled_dim: Width of the pooled vector of a sample.
            adapters: Fitted adapters, by input name.
        """

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> LossSum:
        """Return the loss of a batch from the head's output, as a sum and its weight."""

    def divergence(self, output: Any, other: Any, batch: Batch) -> Tensor:
        """Return how much two outputs for the same batch differ, for R-Drop (arXiv:2106.14448).

        Args:
            output: Output of the head.
            other: Output of the head with other dropout.
            batch: The batch.

        Returns:
            The mean () of a symmetric divergence, over the same targets as in `loss`.

        Raises:
            UserError: If the task does not support R-Drop, which is the default.
        """
        raise self._refusal("r_drop")

    def combine(self, outputs: Sequence[Any]) -> Any:
        """Combine the outputs of the members of an ensemble for the same batch.

        Args:
            outputs: Output of the head of each member, in float32.

        Returns:
            An output in the same space, which `loss` and `predict` accept.

        Raises:
            NotImplementedError: If the task does not support ensembles, which is the default.
                `check` then refuses the option.
        """
        raise NotImplementedError(f"head={self.name} cannot be part of an ensemble")

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Set constants of the loss before a training. Default: there are none.

        Args:
            samples: Some samples of the training split, as `encode_sample` returned them.
        """

    @abstractmethod
    def predict(
        self, head: nn.Module, output: Any, batch: Batch, *, draft: bool = False
    ) -> list[Any]:
        """Return one prediction per sample, on the CPU.

        Args:
            head: The head that `make_head` returned.
            output: Output of the head for this batch.
            batch: The batch.
            draft: Whether to use the fastest decoding, such as greedy decoding instead of beam
                search.
        """

    def exported(self, head: nn.Module, output: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs of an exported model, which its users read without dxn.

        The operations become a part of the graph, so they must not depend on the values of tensors.

        Args:
            head: The head that `make_head` returned.
            output: Output of the head.
            batch: The batch, in which every sample has every input.

        Returns:
            Tensors by name. Default: none, so that the graph has only embeddings.
        """
        return {}

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return what a program without dxn needs to read the outputs of `exported`.

        Args:
            head: The head that `make_head` returned.

        Returns:
            JSON-serializable data. Default: the class names, if there are any.
        """
        return {} if self.labels is None else {"labels": list(self.labels)}

    # Results

    def metrics(
        self, predictions: Sequence[Any], truths: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Compute metrics from predictions and the parsed targets of the same rows.

        Args:
            predictions: Results of `predict`.
            truths: Parsed targets.
            loss: Mean loss of all batches.

        Returns:
            Metrics by name, NaN where one is not defined for these rows. The caller adds `loss` if
            the result has no key "loss". Default: `weighted_metrics` with every row once.
        """
        if type(self).weighted_metrics is Task.weighted_metrics:
            return {}
        once = torch.ones(1, len(truths), dtype=torch.float64)
        results = self.weighted_metrics(predictions, truths, once)
        return {name: float(values[0]) for name, values in results.items()}

    def weighted_metrics(
        self, predictions: Sequence[Any], truths: Sequence[Any], counts: Tensor
    ) -> dict[str, Tensor]:
        """Compute metrics of which each is a function of sums over rows.

        Override this method instead of `metrics` for such metrics. Bootstrap intervals are then
        much faster.

        Args:
            predictions: Results of `predict` for n rows.
            truths: Parsed targets.
            counts: (R, n), float64. How often each row counts in each of R sums.

        Returns:
            R values (R,) by metric. Default: `metrics` of the rows, one call for each sum.
        """
        results: list[dict[str, float]] = []
        for count in counts.long():
            chosen = torch.arange(len(truths)).repeat_interleave(count).tolist()
            rows = [predictions[i] for i in chosen], [truths[i] for i in chosen]
            results.append(self.metrics(*rows, math.nan))
        names = results[0] if results else ()
        return {name: torch.tensor([each[name] for each in results]) for name in names}

    def score(
        self, predictions: Sequence[Any], truths: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the loss, the metrics of the task and those of the user.

        Args:
            predictions: Results of `predict`.
            truths: Parsed targets.
            loss: Mean loss, see `metrics`.

        Raises:
            UserError: If a metric of the user fails.
        """
        # A task whose loss is not a mean over targets returns its own "loss", which replaces it.
        results = {"loss": loss, **self.metrics(predictions, truths, loss)}
        if not self.own_metrics:
            return results
        answers = [self.answer(prediction) for prediction in predictions]
        return results | own_figures(self.own_metrics, answers, truths)

    def monitor(self, name: str) -> None:
        """Select the best epoch by another metric."""
        if name != self.monitored:
            self.monitored = name
            self.higher_is_better = is_higher_better(name, self.own_metrics)

    @property
    def details(self) -> Collection[str]:
        """Metrics that are in metrics.json, but not in tables and lines, which they would widen."""
        return ()

    def shown(self, metrics: Iterable[str]) -> list[str]:
        """Return the names of the metrics that tables and lines show, in their order."""
        hidden = set(self.details) - {self.monitored}
        return [name for name in metrics if name not in hidden]

    def row_scores(self, predictions: Sequence[Any], truths: Sequence[Any]) -> RowScores | None:
        """Return how well each row is answered.

        Args:
            predictions: Results of `predict`.
            truths: Parsed targets.

        Returns:
            None, the default: the report shows no single rows, and `dxn compare` has no paired
            test.
        """
        return None

    def class_scores(self, predictions: Sequence[Any], truths: Sequence[Any]) -> ClassScores | None:
        """Return the probability of each class for each row, with the true classes.

        Args:
            predictions: Results of `predict`.
            truths: Parsed targets.

        Returns:
            None, the default: the task has no probabilities, or they are not those of a row.
        """
        return None

    def parts(self, predictions: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Return the metrics of parts of the task, such as each direction of a search, by name.

        Args:
            predictions: Results of `predict`.
        """
        return {}

    def chance(self, predictions: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Return the expected metrics of random answers for the same rows, by a description.

        Override this method if `naive` cannot return them, such as those of a random order.

        Args:
            predictions: Results of `predict`.
        """
        return {}

    def is_better(self, new: float, old: float | None) -> bool:
        """Return whether a value of the monitored metric improves on the best value so far.

        Args:
            new: New value. NaN is never an improvement.
            old: Best value so far; None in the first epoch.
        """
        # Without this check, a NaN in the first epoch would never be replaced: all comparisons with
        # NaN are False.
        if old is None:
            return not math.isnan(new)
        return new > old if self.higher_is_better else new < old

    def answer(self, prediction: Any, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Convert a prediction to JSON-serializable data, for the Python interface.

        Args:
            prediction: One result of `predict`.
            inputs: The sample's inputs as the user passed them, by input name, for a task whose
                answer quotes them.

        Returns:
            A dict with the key "prediction", and for some tasks "probabilities" by class name.
        """
        plain = prediction.tolist() if isinstance(prediction, Tensor) else prediction
        return {"prediction": plain}

    def typed(self, prediction: Any) -> Any:
        """Return the prediction of an answer with the type of the target column, for Python.

        Files, pages and JSON have the names of classes instead.
        """
        return prediction

    def fields(
        self, prediction: Any, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the columns of predictions.csv that follow the target, and their values.

        Args:
            prediction: One result of `predict`.
            target: Parsed target of the row. None if it is unknown.
            inputs: The row's inputs, as for `answer`.
        """
        return {"prediction": self.answer(prediction, inputs)["prediction"]}

    def records(
        self, prediction: Any, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of predictions.csv for one prediction, and the values of their columns.

        A task whose prediction is a sequence, such as a forecast, returns one row per item.

        Args:
            prediction: One result of `predict`.
            target: Parsed target of the row. None if it is unknown.
            inputs: The row's inputs, as for `answer`.

        Returns:
            Default: one row with the target, if it is known, and `fields`.
        """
        known = {} if target is None else {"target": target}
        return [known | self.fields(prediction, target, inputs)]

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Any]] | None:
        """Return the answers of a simple rule, with which the metrics of a model are compared.

        Override this method if the rule depends on the inputs, such as repeating the last value.

        Args:
            raws: Raw values of the inputs of each row, by input name.

        Returns:
            A description of the rule, and a prediction per row in the format of `predict`. Default:
            the answer of `trivial` for every row, or None.
        """
        trivial = self.trivial()
        return None if trivial is None else (trivial[0], [trivial[1]] * len(raws))

    def trivial(self) -> tuple[str, Any] | None:
        """Return the best constant answer, with which the metrics of a model are compared.

        Returns:
            A description such as "always ham", and a prediction in the format of `predict`. None if
            the task has no such answer, or it was not saved with the model.
        """
        return None

    # The model folder

    def state(self) -> dict[str, Any]:
        """Return the result of `fit` as JSON-serializable data."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state()`.

        Validate it: a model folder may come from an untrusted source.

        Raises:
            UserError: If a value is missing or invalid.
        """

    def save(self, folder: Path) -> None:
        """Write labels.json, which contains the name of the task and `state()`.

        Override this method to write additional files.
        """
        # Only a metric that the user has chosen.
        names = ("monitored", "higher_is_better")
        chosen = {name: getattr(self, name) for name in names if name in vars(self)}
        content = {"task": self.name, **chosen, **self.state()}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / STATE_FILE).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> Self:
        """Restore the state that `save` wrote.

        Raises:
            UserError: If a file is missing or invalid.
        """
        # Passing the name detects a labels.json that belongs to another task.
        state = read_state(folder, self.name)
        saved = validated(TaskState, state, folder / STATE_FILE)
        if saved.monitored is not None:
            self.monitored, self.higher_is_better = saved.monitored, saved.higher_is_better
        self.load_state(state)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for the processes that load data, which need no metrics."""
        return {name: value for name, value in vars(self).items() if name != "own_metrics"}

    def _refusal(self, option: str) -> UserError:
        """Return the error of an option of the trainer that the task does not support."""
        return UserError(
            f"trainer.{option}: cannot be combined with head={self.name}; set trainer.{option}=0"
        )


@runtime_checkable
class Writes(Protocol):
    """A task that generates a text for each sample."""

    def write(
        self,
        head: nn.Module,
        tokens: Tokens,
        *,
        max_new: int | None = None,
        sampler: Callable[[Tensor], Tensor] | None = None,
    ) -> list[str]:
        """Generate a text for each sample.

        Args:
            head: The head that `Task.make_head` returned.
            tokens: Encoded tokens (B, N, D).
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token from log-probabilities (B, V). Default:
                the search method of the task.
        """
        ...


@runtime_checkable
class ClassifiesByExample(Protocol):
    """A task whose model can classify samples by their similarity to one example per class."""

    def classifier(
        self, head: nn.Module, names: Sequence[str], vectors: Tensor, inputs: Sequence[str]
    ) -> tuple[Task, nn.Module]:
        """Return a task that predicts one of the classes, and its head.

        Args:
            head: The head that `Task.make_head` returned.
            names: Names of the K classes.
            vectors: (K, E). Embedding of the example of each class.
            inputs: Names of the inputs of the classified samples, in the order of the model.
        """
        ...


class TaskState(Strict):
    """The content of labels.json that all tasks have in common."""

    task: str
    monitored: str | None = None
    higher_is_better: bool = False


def read_state(folder: Path, name: str | None = None) -> dict[str, Any]:
    """Read labels.json of a model folder.

    Args:
        folder: The model folder.
        name: Name of the task that the file must belong to. Default: any task.

    Raises:
        UserError: If the file is missing or invalid, or belongs to another task.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise UserError(
            f"{path}: file not found, but every model folder has one; check the path of the folder"
        )
    state = load_json(path)
    validated(TaskState, state, path)
    if name is not None and state["task"] != name:
        raise UserError(
            f"{path}: was saved for the task {state['task']!r}, but the head is for {name!r}"
        )
    return state
