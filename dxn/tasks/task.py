"""A task is composed of a target, a head, an output space and a metric.

The target (`dxn.tasks.target`) reads cells and turns them into tensors. The head computes the
output of a model. The space (`dxn.tasks.space`) says what the output means: its loss, its
predictions, and the output of an ensemble. The metric (`dxn.tasks.metric`) says how good
predictions are. Code outside of `dxn.tasks` never branches on the name of a task.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.files import LABELS
from dxn.core.parts import Recorded
from dxn.core.schema import CheckedMembers, Strict, validated
from dxn.core.tokens import Tokens
from dxn.core.untrusted import load_json
from dxn.tasks.metric import Metric, own_metrics
from dxn.tasks.space import AnswerKind, Batch, LossSum, Marked, Space
from dxn.tasks.target import Target

if TYPE_CHECKING:
    from dxn.core.marks import Areas, Mark

AnyTarget = TypeVar("AnyTarget", bound=Target)

# Import path of each task, by the name that `head=NAME` selects. Other modules import this
# registry, so it cannot contain the classes themselves.
TASKS: dict[str, str] = {
    "classify": "dxn.tasks.Classify",
    "multilabel": "dxn.tasks.Multilabel",
    "regress": "dxn.tasks.Regress",
    "tag": "dxn.tasks.Tag",
    "span": "dxn.tasks.Span",
    "generate": "dxn.tasks.Generate",
    "ctc": "dxn.tasks.Ctc",
    "language": "dxn.tasks.Language",
    "masked": "dxn.tasks.Masked",
    "contrastive": "dxn.tasks.Contrastive",
    "forecast": "dxn.tasks.Forecast",
    "detect": "dxn.tasks.Detect",
    "segment": "dxn.tasks.Segment",
    "codec": "dxn.tasks.Codec",
    "any": "dxn.tasks.WriteAny",
}

# Raw values of rows, by the name of the input.
Raws = Mapping[str, Sequence[Any]]


class Task(Recorded, ABC, Generic[AnyTarget], CheckedMembers):
    """Base class of tasks. A subclass sets the parts in its constructor, and defines `make_head`.

    The parts are those of this module's docstring. With a space, the methods `loss` and `predict`
    need no override.

    Attributes:
        name: Name of the task, for head=NAME.
        target: What the model learns to predict.
        space: What the output of the head means. None: the task defines `loss` and `predict`, and
            supports neither ensembles nor trainer.mixup.
        metric: How good predictions are.
        separates_inputs: Whether the head compares inputs with each other: it receives each input
            encoded alone, as `dxn.models.InputVectors`. The head then has the same attribute.
        min_inputs: Minimum number of inputs of a sample that can be evaluated.
        writes: Whether the predictions are texts, which `write` generates.
        targets_are_inputs: Whether the target columns are inputs, whose names are the option
            `names` of the task.
        refused_augmentation: Options of the augmentation of pictures that targets cannot follow,
            and what they do.
    """

    name: ClassVar[str]
    target: AnyTarget
    space: Space | None = None
    metric: Metric
    separates_inputs: ClassVar[bool] = False
    min_inputs: ClassVar[int] = 1
    writes: ClassVar[bool] = False
    targets_are_inputs: ClassVar[bool] = False
    refused_augmentation: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @property
    def answer_kind(self) -> AnswerKind | None:
        """What a row gets, on which charts depend. Default: that of the space."""
        return None if self.space is None else self.space.kind

    @property
    def objects_in(self) -> str:
        """Name of the input whose objects are predicted. "": none."""
        return ""

    @property
    def masks_in(self) -> str:
        """Name of the input of which an answer has a "mask", a data URL of a PNG file. "": none."""
        return ""

    @property
    def pixel_class(self) -> str:
        """Name of the class whose probabilities `pixel_probabilities` returns. "": none."""
        return ""

    def check(self, config: Mapping[str, Any]) -> None:
        """Check the composed configuration before any data is read.

        Raises:
            UserError: If an option cannot be combined with this task.
        """
        options = config.get("trainer", {})
        mixes = self.space is not None and self.space.mixes
        averages = self.space is not None and self.space.averages
        if options.get("mixup") and not mixes:
            raise UserError(
                f"trainer.mixup: cannot be combined with head={self.name}; set trainer.mixup=0"
            )
        if config.get("ensemble", 1) > 1 and not averages:
            raise UserError(
                f"ensemble: cannot be combined with head={self.name}; set ensemble=1, got "
                f"{config['ensemble']}"
            )
        for key, adapter in config.get("adapters", {}).items():
            augment = adapter.get("augment") or {} if isinstance(adapter, Mapping) else {}
            for option, reason in self.refused_augmentation.items():
                if augment.get(option):
                    raise UserError(
                        f"adapters.{key}.augment.{option}: {reason}, got {augment[option]}; set it "
                        "to 0, and use crop, zoom or flip"
                    )

    @abstractmethod
    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build the head, a module with the signature forward(tokens, pooled, batch).

        Args:
            dim: Width D of a token.
            pooled_dim: Width of the pooled vector of a sample.
            adapters: Fitted adapters, by input name.
        """

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Set constants of the loss before a training. Default: there are none.

        Args:
            samples: Some samples of the training split, with their targets.
        """

    def loss(self, output: Any, batch: Batch) -> LossSum:
        """Return the loss of a batch from the head's output, as a sum and its weight."""
        assert self.space is not None, f"head={self.name} must define a space or a loss"
        loss = self.space.loss(output, batch)
        if not isinstance(loss, LossSum):
            raise UserError(
                f"head={self.name}: {type(self.space).__name__}.loss must return a LossSum, such "
                f"as LossSum.of(losses), got {type(loss).__name__}"
            )
        return loss

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

        Returns:
            Default: the items of the first tensor that `Space.decode` returns.
        """
        assert self.space is not None, f"head={self.name} must define a space or predictions"
        # On the CPU first, because not every device has float64.
        return list(next(iter(self.space.decode(output.cpu(), batch).values())))

    def write(
        self,
        head: nn.Module,
        tokens: Tokens,
        *,
        max_new: int | None = None,
        sampler: Callable[[Tensor], Tensor] | None = None,
        on_tokens: Callable[[dict[int, list[int]]], None] | None = None,
    ) -> list[str]:
        """Generate a text for each sample, if `writes` is set.

        Args:
            head: The head that `make_head` returned.
            tokens: Encoded tokens (B, N, D).
            max_new: Maximum number of tokens to generate. Default: the maximum length of the
                decoder.
            sampler: Function that chooses the next token from log-probabilities (B, V). Default:
                the search method of the task.
            on_tokens: Function that is called with the new token ids of texts, by their index,
                while they are generated. Beam search calls it with {}.
        """
        raise NotImplementedError(f"head={self.name} does not generate texts")

    @property
    def creates(self) -> Sequence[str]:
        """Names of the inputs whose raw values `create` writes. Default: none."""
        return ()

    def create(
        self,
        head: nn.Module,
        tokens: Tokens,
        name: str,
        *,
        sampler: Callable[[Tensor], Tensor],
        guidance: float | None = None,
        on_step: Callable[[Callable[[int], Any]], None] | None = None,
    ) -> list[Any]:
        """Return a raw value of an input for each sample, if it is one of `creates`.

        Args:
            head: The head that `make_head` returned.
            tokens: Encoded tokens (B, N, D) of the other inputs.
            name: Name of the input.
            sampler: Function that chooses the next token from log-probabilities (B, V).
            guidance: Scale of the classifier-free guidance. 1: no guidance. None: that of the task.
            on_step: Function that is called after each step with a function, which returns the
                unfinished value of a sample, by its index. The latter returns None if an unfinished
                value cannot be decoded.
        """
        raise NotImplementedError(f"head={self.name} does not create inputs")

    # Results

    @property
    def is_supervised(self) -> bool:
        """Whether the targets are in a column of the data. Each row then has a prediction."""
        return self.target.source == "column"

    @property
    def has_answers(self) -> bool:
        """Whether each row gets an answer: a prediction, or the codes of a codec."""
        return self.is_supervised or self.answer_kind is AnswerKind.CODES

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

    def table(
        self, prediction: Any, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of predictions.csv for one prediction: values by column.

        A task whose prediction is a sequence, such as a forecast, returns one row per item.

        Args:
            prediction: One result of `predict`.
            target: Target of the row, as `Target.read` returned it. None if it is unknown.
            inputs: The row's inputs, as for `answer`.

        Returns:
            Default: one row with the target, if it is known, and `columns`.
        """
        truth = {} if target is None else {"target": target}
        return [truth | self.columns(prediction, target, inputs)]

    def columns(
        self, prediction: Any, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the columns of predictions.csv that follow the target. The arguments are those
        of `table`."""
        return {"prediction": self.answer(prediction, inputs)["prediction"]}

    def marked(self, cells: Sequence[Any]) -> Marked | None:
        """Return what targets mark. None, the default: they mark nothing, or none can be read.

        Args:
            cells: Cells of the target.
        """
        return None

    def restored(self, prediction: Any) -> Mapping[str, Any]:
        """Return the raw values of inputs that a prediction contains, by input name.

        Default: there are none.
        """
        return {}

    def beside(self, batch: Batch, tokenizers: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what is drawn beside the answer of each sample, as JSON data; (): nothing.

        Args:
            batch: The samples.
            tokenizers: The fitted tokenizers by name.
        """
        return ()

    def pixel_probabilities(
        self, output: Any, batch: Batch, samples: Sequence[Mapping[str, Any]]
    ) -> Sequence[str]:
        """Return the probability of `pixel_class` at each pixel, if there is such a class.

        Args:
            output: Output of the head for this batch.
            batch: The samples.
            samples: The inputs of each sample, as for `answer`.

        Returns:
            A PNG file with 8 bits per pixel in a data URL for each sample. A level of at least 128
            is a probability above one half.
        """
        raise NotImplementedError(f"head={self.name} has no classes of pixels")

    def true_answer(self, cell: Any) -> Any:
        """Return a cell of the target in the form of the "prediction" of an answer.

        Default: None, which says that the two are not drawn together.
        """
        return None

    def marks(self, value: Any, raws: Mapping[str, Any]) -> Mapping[str, Sequence[Mark | Areas]]:
        """Return what a drawing marks in each input, by input name. Default: nothing.

        Args:
            value: One result of `predict`, or a target as `Target.read` returned it.
            raws: Raw value of each input.
        """
        return {}

    def calibrate(self, predictions: Sequence[Any], targets: Sequence[Any]) -> None:
        """Choose what answers need and metrics do not train, such as a threshold.

        It is called before the metrics of the validation split are computed. Default: nothing.

        Args:
            predictions: Results of `predict` for the validation split.
            targets: Targets of the same rows.
        """

    def score(
        self, predictions: Sequence[Any], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the loss, the metrics of the task and those of the user.

        Args:
            predictions: Results of `predict`.
            targets: Targets of the same rows.
            loss: Mean loss of the rows.

        Raises:
            UserError: If a metric of the user fails.
        """
        results = {"loss": loss, **self.metric.metrics(predictions, targets, loss)}
        if not self.metric.own:
            return results
        answers = [self.answer(prediction) for prediction in predictions]
        return results | own_metrics(self.metric.own, answers, targets)

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Any]] | None:
        """Return the answers of a simple rule, with which the metrics of a model are compared.

        Args:
            raws: Raw values of the inputs of each row that the target requires, by input name.

        Returns:
            A description of the rule, such as "always ham", and a prediction per row in the format
            of `predict`. None, the default: there is no such rule.
        """
        return None

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the answers of simple methods that learn from the training split.

        Args:
            train: Raw values of the training split, by input name; None where missing.
            targets: Its targets.
            raws: Raw values of the rows that are answered.
            share: Share of the usual time of a slow method that the time limit leaves, 0 to 1.

        Yields:
            A description of the method, and a prediction per row in the format of `predict`.
        """
        yield from ()

    def simple_figures(
        self,
        train: Raws,
        targets: Sequence[Any],
        raws: Raws,
        true: Sequence[Any],
        predictions: Sequence[Any],
        *,
        share: float = 1.0,
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the description and the metrics of each simple method.

        Default: the metrics of the answers of `simple_methods`.

        Args:
            train: Raw values of the training split, by input name; None where missing.
            targets: Its targets.
            raws: Raw values of the rows that are answered.
            true: Their targets; [] if the targets follow from the inputs.
            predictions: The predictions of the model for these rows, of a task whose methods need
                to know which inputs are equal.
            share: Share of the usual time of a slow method that the time limit leaves, 0 to 1.
        """
        for description, answers in self.simple_methods(train, targets, raws, share=share):
            yield description, self.score_answers(answers, true)

    def score_answers(self, answers: Sequence[Any], true: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of answers without probabilities, which have no loss.

        Args:
            answers: Answers in the format of `predict`.
            true: Targets of the same rows.
        """
        figures = self.score(answers, true, math.nan)
        return {name: figures[name] for name in figures if name != "loss"}

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return what a program without dxn needs to read the outputs of `Space.decode`.

        Args:
            head: The head that `make_head` returned.

        Returns:
            JSON-serializable data. Default: the class names, if there are any.
        """
        return {} if self.target.labels is None else {"labels": list(self.target.labels)}

    # The model folder

    def save(self, folder: Path) -> None:
        """Write labels.json, which contains the name of the task and `Target.state`."""
        metric = self.metric
        # Only a metric that the user has chosen.
        chosen = {}
        if "monitored" in vars(metric):
            chosen = {"monitored": metric.monitored, "higher_is_better": metric.higher_is_better}
        content = {"task": self.name, **chosen, **self.target.state()}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (folder / LABELS).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> Self:
        """Restore what `save` wrote.

        Raises:
            UserError: If a file is missing or invalid, or belongs to another task.
        """
        path = folder / LABELS
        if not path.exists():
            raise UserError(
                f"{path}: file not found, but every model folder has one; check the path of the "
                "folder"
            )
        state = load_json(path)
        saved = validated(TaskState, state, path)
        if saved.task != self.name:
            raise UserError(
                f"{path}: was saved for the task {saved.task!r}, but the head is for {self.name!r}"
            )
        if saved.monitored is not None:
            self.metric.monitored = saved.monitored
            if not saved.higher_is_better:  # also if the metric is a function of the user
                lower = (*self.metric.lower_is_better, saved.monitored)
                self.metric.lower_is_better = lower
        self.target.load(state)
        return self


def check_parts(task: Task[Any]) -> None:
    """Check that a task has the parts that every task needs.

    Raises:
        UserError: If one of them is missing.
    """
    for part in ("name", "target", "metric"):
        if not hasattr(task, part):
            raise UserError(
                f"head: {type(task).__name__} has no {part}; every task needs the attributes name, "
                "target and metric, see dxn.tasks.Task"
            )


class TaskState(Strict):
    """The content of labels.json that all tasks have in common."""

    task: str
    monitored: str | None = None
    higher_is_better: bool = False
