"""The Python interface of a trained model: predictions, tokens, embeddings and generated texts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch
from torch import Tensor

from dxn.core.display import list_names, notebook_html
from dxn.core.errors import UserError, warn
from dxn.core.runtime import threads
from dxn.core.tokens import Tokens, join
from dxn.data.dataset import Opened, Samples
from dxn.models.backbone import Backbone
from dxn.models.model import Network, as_float, count_parameters
from dxn.runs.predictor.inputs import ModelInputs
from dxn.tasks import Task
from dxn.tokenize.base import Tokenizer
from dxn.training.device import to_device
from dxn.training.predict import Predictions, check_finite, embed, predict

if TYPE_CHECKING:
    from pandas import DataFrame

    from dxn.data.series.layouts import Layout
    from dxn.models.decoding.search import Sampler

MAX_SMALL = 5_000_000  # parameters of a model that predicts short samples on one thread
MAX_LABELS = 5  # class names in the representation of a model

# One sample, as a program passes it: values by input name. Missing inputs are left out or None.
Values = Mapping[str, Any]


class Answer(dict[str, Any]):
    """A dict with the prediction, which a notebook shows as a table of probabilities."""

    def _repr_html_(self) -> str:
        return notebook_html(self)


class Predictor:
    """A trained model in evaluation mode. `dxn.load` and `dxn.from_public` return one.

    Args:
        network: The model, or the ensemble that combines several, on the device to run it on.
        task: The fitted task, which converts outputs of the model to predictions.
        columns: Column of the training table that each input was read from, by input name. Default:
            unknown, as for a public checkpoint.
        target: Column of the target in the training table.
        layout: How the training table was rearranged, which new tables need too.
        dtype: Data type of the weights: float32, bf16 or int8.

    Example:
        >>> model = dxn.load("outputs/reviews/2026-01-31_12-00-00.00")
        >>> model.predict(text="a fine film")
        {'prediction': 'positive', 'probabilities': {'negative': 0.07, 'positive': 0.93}}
    """

    def __init__(
        self,
        network: Network,
        task: Task,
        *,
        columns: Mapping[str, str] | None = None,
        target: str | None = None,
        layout: Layout | None = None,
        dtype: str = "float32",
    ):
        self.network = network
        self.models = network.models
        self.model = self.models[0]  # whose inside can be shown
        self.task = task
        self.columns = dict(columns or {})
        self.target = target
        self.layout = layout
        self.dtype = dtype
        self.device = next(network.parameters()).device
        # Once, because to look them up takes as long as preparing a text.
        self.inputs = list(self.model.inputs)
        self.adapters: dict[str, Any] = {name: self.model.adapter(name) for name in self.inputs}
        self.tokenizers: dict[str, Tokenizer] = {
            name: adapter.tokenizer for name, adapter in self.adapters.items()
        }
        self.model_inputs = ModelInputs(self.tokenizers, task, self.columns, target, layout)
        # A text or the cells of a row: to wake other threads would take longer than their part of
        # the work of a small model.
        is_small = self.device.type == "cpu" and count_parameters(network) < MAX_SMALL
        self.is_short = is_small and not any(t.reader.files for t in self.tokenizers.values())

    def __repr__(self) -> str:
        inputs = [
            name
            if self.columns.get(name, name) == name
            else f"{name} (column {self.columns[name]})"
            for name in self.inputs
        ]
        task = f"{self.task.name} {self.target}" if self.target else self.task.name
        labels = self.labels or ()
        classes = f"; {len(labels):,} labels: {list_names(labels, MAX_LABELS)}" if labels else ""
        if labels and (self.task.target.is_text or not self.task.is_supervised):
            classes = f"; a vocabulary of {len(labels):,} tokens"
        size = f"{count_parameters(self.network):,} parameters"
        dtype = f" in {self.dtype}" if self.dtype != "float32" else ""
        if self.num_members > 1:
            size += f" in {self.num_members} members"
        return f"Predictor({task} from {', '.join(inputs)}{classes}; {size}{dtype})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the inputs with their columns, and the labels."""
        return notebook_html(self)

    def optimized(self) -> Self:
        """Compute batches in less time, if the model is only used.

        An NVIDIA GPU computes them as CUDA graphs. A CPU computes blocks without their modules.
        """
        if self.device.type == "cuda":
            from dxn.runs.predictor.captured import capture

            capture(self.network, writes=self.task.writes)
        if self.device.type == "cpu":
            for module in self.network.modules():
                if isinstance(module, Backbone):
                    module.prepare()
        return self

    @property
    def num_members(self) -> int:
        """Number of models whose outputs are combined, 1 without an ensemble."""
        return len(self.models)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Class names, or the vocabulary of a model that generates text. None if it has neither."""
        return self.task.target.labels

    # Predictions

    @overload
    def predict(self, frame: DataFrame, /) -> DataFrame: ...

    @overload
    def predict(self, data: Sequence[Any], /) -> list[dict[str, Any]]: ...

    @overload
    def predict(self, data: None = None, /, **inputs: Any) -> dict[str, Any]: ...

    def predict(self, data: Any = None, /, **inputs: Any) -> Any:
        """Predict for one sample, or for each row of a data frame or a list.

        Args:
            data: A pandas.DataFrame with the columns of the training; a list of samples, each a
                mapping of inputs, or the value if the model has one input; such a mapping or value;
                or a pandas.Series, which is a column of the only input or a row of a data frame.
            **inputs: Raw values by input name, such as text="a fine film" or image="photo.jpg".
                Inputs can be left out. A text is a str. An image is a path, bytes, a PIL image or
                an array. Audio is a path, bytes or (array, sample_rate).

        Returns:
            {"prediction": ...}. For classes also {"probabilities": {name: probability}}. For a
            list, a list of these. For a data frame or a column, a data frame with the columns of
            predictions.csv and the same index.

        Raises:
            UserError: If a file cannot be read, an input is unknown, or all inputs are missing.
        """
        if data is not None:
            data = self.model_inputs.argument(data, inputs)
            if isinstance(data, list):
                return self.predict_many(data)
            if not isinstance(data, dict):
                from dxn.runs.predictor.table import prediction_frame

                opened, predictions = self._predict_frame(data)
                return prediction_frame(predictions, opened, self.task, self._index(data))
            inputs = data
        with threads(self.threads_for(1)):
            answer = self._predict_one(inputs)
            return self.predict_many([inputs])[0] if answer is None else answer

    def predict_proba(self, frame: DataFrame) -> DataFrame:
        """Return the probability of each class (columns) for each row of a pandas.DataFrame.

        Raises:
            UserError: If a row cannot be read, or the model does not predict probabilities.
        """
        from dxn.runs.predictor.table import probability_frame

        opened, predictions = self._predict_frame(frame)
        return probability_frame(predictions, opened, self.task, self._index(frame))

    def _predict_frame(self, frame: Any) -> tuple[Opened, Predictions]:
        """Return the opened rows of a data frame, and the predictions."""
        self.require_answers()
        data = self.model_inputs.argument(frame, {})
        if isinstance(data, list | dict):
            raise UserError(
                f"must be a pandas.DataFrame, got {type(frame).__name__}; predict also accepts "
                "samples, and returns their probabilities"
            )
        opened = self.model_inputs.frame(data)
        return opened, self.run(self.model_inputs.prepared(opened))

    def _index(self, frame: Any) -> Any:
        """Return the index of a data frame; None if a layout has rearranged its rows."""
        from dxn.data.sources.memory import is_frame

        return frame.index if is_frame(frame) and self.layout is None else None

    def predict_many(
        self, samples: Sequence[Values], *, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """Predict for several samples.

        Args:
            samples: Raw values by input name for each sample, as in `predict`.
            batch_size: Number of samples per batch.
        """
        self.require_answers()
        if not samples:
            return []
        prepared = self.samples(samples)
        self.model_inputs.warn(prepared.opened)
        predictions = self.run(prepared, batch_size=batch_size)
        pairs = zip(predictions.rows, predictions.predicted, strict=True)
        return [self._answer(predicted, samples[row]) for row, predicted in pairs]

    def run(
        self,
        samples: Samples,
        *,
        batch_size: int = 64,
        divided: bool = False,
        may_be_bad: bool = False,
    ) -> Predictions:
        """Predict for opened samples, whose predictions fit into memory.

        Args:
            samples: The samples.
            batch_size: Number of samples per batch.
            divided: Whether the processes that torchrun started share the samples, see
                `dxn.training.predict.predict`.
            may_be_bad: Whether all samples may turn out to be bad.

        Raises:
            UserError: If an output of the model is not finite.
        """
        return predict(
            self.network,
            self.task,
            samples,
            batch_size=batch_size,
            device=self.device,
            finite=True,
            divided=divided,
            may_be_bad=may_be_bad,
        )

    def _predict_one(self, sample: Values) -> Answer | None:
        """Predict for one sample, without what several samples need. None: use `predict_many`."""
        # Only `predict_many` restores the training mode of a model.
        batch = None if self.network.training else self.model_inputs.single_batch(sample)
        if batch is None:
            return None
        (predicted,) = self.predicted(batch, lambda row: f"sample {row + 1}")
        return self._answer(predicted, sample)

    def _answer(self, predicted: Any, sample: Values) -> Answer:
        inputs = {name: value for name, value in sample.items() if value is not None}
        answer = self.task.answer(predicted, inputs)
        return Answer(answer, prediction=self.task.target.typed(answer["prediction"]))

    @torch.inference_mode()
    def predicted(self, batch: dict[str, Any], describe: Callable[[int], str]) -> list[Any]:
        """Return the predictions for a batch, in the format of `Task.predict`.

        Args:
            batch: The batch, on any device.
            describe: Function that names a row, given its index in `batch["#index"]`.

        Raises:
            UserError: If an output of the model is not finite.
        """
        batch, output = self.output(batch, describe)
        return self.task.predict(self.model.head, output, batch)

    def output(
        self, batch: dict[str, Any], describe: Callable[[int], str]
    ) -> tuple[dict[str, Any], Any]:
        """Return a batch on the device of the model, and the output of the head for it.

        The arguments are those of `predicted`.
        """
        batch = to_device(batch, self.device)
        output = as_float(self.network(batch))
        check_finite(output, batch, describe)
        return batch, output

    def threads_for(self, num_samples: int) -> int:
        """Return the number of threads that compute a batch of samples in the least time."""
        return 1 if self.is_short and num_samples == 1 else torch.get_num_threads()

    def require_answers(self) -> None:
        """Check that the model has an answer for each sample.

        Raises:
            UserError: If it does not, such as a language model.
        """
        if self.task.has_answers:
            return
        advice = "use dxn embed, or dxn generate for a language model"
        if self.task.separates_inputs:
            advice = "set labels=[A,B] to classify, or use dxn index and dxn search"
        elif self.task.creates:
            advice = f"use dxn generate create={self.task.creates[-1]}, or dxn embed"
        raise UserError(
            f"this model cannot predict (its task is {self.task.name}); {advice}, or "
            "train a head: dxn train weights=..."
        )

    def save_public(
        self,
        folder: str | PathLike[str],
        weights: str,
        *,
        revision: str | None = None,
        part: str | None = None,
        dtype: Literal["float32", "bf16"] = "float32",
    ) -> None:
        """Save a fine-tuned public model for transformers or timm.

        It is a classifier with its labels, or a model of the task of the checkpoint, such as a
        language model with its tokenizer and its chat template.

        Args:
            folder: Folder to write, which must be new or empty.
            weights: The public checkpoint from which the training started: a file, a folder or a
                hub id.
            revision: Branch, tag or commit of a hub id.
            part: Modality to use, for a checkpoint with one tower per modality.
            dtype: Data type of the weights in the file.

        Raises:
            UserError: If the model has a part that the other library does not have, such as a
                baseline, or another family.

        Example:
            >>> dxn.load("outputs/label/DATE_TIME").save_public("classifier", "models/bert")
            >>> AutoModelForSequenceClassification.from_pretrained("classifier")
        """
        # Imported on first use: most models are not saved in this way.
        public = importlib.import_module("dxn.weights").read_public(
            weights, revision=revision, part=part, strict=False
        )
        original = importlib.import_module("dxn.export.original")
        original.save_original(self, public, Path(folder), dtype)

    # Tokens and embeddings

    @torch.inference_mode()
    def tokens(self, data: Any = None, /, **inputs: Any) -> Tokens:
        """Return the Tokens of B samples, the input of the backbone; `.matrix` is (B, D, N).

        Args:
            data: See `predict`.
            **inputs: Raw values of one sample by input name.
        """
        samples = self._samples(data, inputs)
        items = [samples[0, i] for i in range(len(samples))]
        return join(self.model.embed(to_device(samples.collate(items), self.device)))

    @torch.inference_mode()
    def tokens_of(self, samples: Samples, i: int) -> Tokens:
        """Return the Tokens of opened sample i, the input of the backbone."""
        return join(self.model.embed(self.batch(samples, i)))

    @torch.inference_mode()
    def embed(self, data: Any = None, /, **inputs: Any) -> Tensor:
        """Return the embedding (E,) of one sample: the input of the head's output layer.

        Args:
            data: See `predict`. A list or a data frame has embeddings (B, E).
            **inputs: Raw values of one sample by input name.
        """
        rows, vectors = self.vectors(self._samples(data, inputs))
        ordered = vectors[torch.tensor(rows).argsort()]
        is_single = data is None or isinstance(self.model_inputs.argument(data, inputs), dict)
        return ordered[0] if is_single else ordered

    def vectors(self, samples: Samples, *, batch_size: int = 64) -> tuple[list[int], Tensor]:
        """Return the embeddings of opened samples, which fit into memory.

        Returns:
            The row of each sample in the opened split, and the embeddings (n, E) in this order.

        Raises:
            UserError: If an embedding is not finite, or there is none.
        """
        # The rows are returned too, because a row without a usable input has no sample.
        parts = list(embed(self.network, samples, batch_size=batch_size, device=self.device))
        if not parts:
            reason = next(iter(samples.opened.bad_later.values()), "no sample has a usable input")
            raise UserError(f"input: there are no embeddings: {reason}")
        rows, vectors = zip(*parts, strict=True)
        return [row for part in rows for row in part], torch.cat(vectors)

    # Generated texts and vocabulary

    @torch.inference_mode()
    def write(
        self,
        *,
        prompt: str | Sequence[str] = "",
        system: str = "",
        chat: bool | None = None,
        inputs: Values | Sequence[Values] | Samples | None = None,
        count: int = 1,
        max_new: int = 200,
        temperature: float | None = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        sampler: Sampler | None = None,
        batch_size: int = 16,
    ) -> list[str]:
        """Generate texts: continuations of prompts, or texts for samples.

        Args:
            prompt: Text to continue, or several, for a language model.
            system: Message of the system before each prompt, for a model of conversations.
            chat: Whether a prompt is a message of the user, and the text is the answer. Default: if
                the model has a chat template.
            inputs: Sample to generate a text for, or several. For a language model, they are what
                it reads before the prompt; one sample or one prompt goes with all others.
            count: Number of texts per prompt or sample.
            max_new: Maximum number of tokens to generate.
            temperature: Divisor of the logits. 0: the most probable text, as in `predict`. None: as
                in `dxn generate`, which samples the texts of language models only.
            top_k: Sample from this number of most probable tokens. Default: all.
            top_p: Sample from the most probable tokens with this total probability. Default: all.
            seed: Random seed of sampling.
            sampler: Function that chooses the next tokens (B,) from log-probabilities (B, V), in
                place of the four options above.
            batch_size: Number of texts per batch.

        Returns:
            `count` texts per prompt or sample, one prompt or sample after the other. A prompt that
            is longer than the model reads is cut at its start, with a warning.

        Raises:
            UserError: If the model does not generate text, or cannot use what it gets.
        """
        from dxn.runs.predictor.generating import texts_to_write
        from dxn.runs.predictor.writing import Writer, make_samplers, usual_sampling

        writer = Writer(self.model, self.task)
        texts = texts_to_write(
            self, writer, prompt=prompt, system=system, chat=chat, inputs=inputs, count=count
        )
        samplers = make_samplers(
            len(texts),
            usual=usual_sampling(self.model, self.task),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            device=self.device,
        )
        for text, new_sampler in zip(texts, samplers, strict=True):
            text.new_sampler = new_sampler if sampler is None else lambda: sampler
            text.max_new = max_new
        written = writer.write(texts, batch_size=batch_size)
        if remark := writer.remark(texts):
            warn(remark)
        return written

    def check_created(self, name: str) -> None:
        """Check that the model creates an input.

        Raises:
            UserError: If it does not.
        """
        if name not in self.task.creates:
            possible = ", ".join(self.task.creates) or "none (train one with head=any)"
            problem = f"{name} cannot be created" if name else "needs the name of an input"
            raise UserError(f"create: {problem}; the inputs that can be created are {possible}")

    @torch.inference_mode()
    def create(
        self,
        name: str,
        inputs: Values | Sequence[Values] | Samples,
        *,
        count: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance: float | None = None,
        seed: int = 0,
        batch_size: int = 16,
    ) -> list[Any]:
        """Create values of an input from the others, with a model of head=any.

        Args:
            name: Name of the input.
            inputs: Sample with other inputs, or several.
            count: Number of values per sample.
            temperature: Divisor of the logits. 0: the most probable tokens. Default: 0 for texts,
                and 1 for other values.
            top_k: Sample from this number of most probable tokens. Default: all.
            top_p: Sample from the most probable tokens with this total probability. Default: all.
            guidance: Scale of the classifier-free guidance (arXiv:2207.12598): larger values follow
                the other inputs more closely, with less variety. 1: no guidance. Default: 2 if the
                model was trained for it, and 1 for texts.
            seed: Random seed of sampling.
            batch_size: Number of values per batch.

        Returns:
            `count` raw values per sample, one sample after the other: texts, pictures uint8
            (C, H, W), sounds (T,), series (T, C) and clips uint8 (T, C, H, W).

        Raises:
            UserError: If the model does not create this input, was not trained for guidance, or an
                option is out of range.
        """
        from dxn.runs.predictor.generating import values_to_create
        from dxn.runs.predictor.writing import Writer, make_samplers, usual_sampling

        values = values_to_create(self, name, inputs, count=count, guidance=guidance)
        samplers = make_samplers(
            len(values),
            usual=usual_sampling(self.model, self.task, name),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            device=self.device,
        )
        for value, new_sampler in zip(values, samplers, strict=True):
            value.new_sampler = new_sampler
        return Writer(self.model, self.task).write(values, batch_size=batch_size)

    @torch.inference_mode()
    def neighbors(
        self, token: str, *, count: int = 10, input: str | None = None
    ) -> list[tuple[str, float]]:
        """Return the tokens of the vocabulary whose embeddings are most similar to that of `token`.

        Args:
            token: A token of the vocabulary.
            count: Number of neighbors.
            input: Input whose vocabulary is searched. Default: the first input with a vocabulary.

        Returns:
            Tokens and the cosine similarity of the embeddings, most similar first.

        Raises:
            UserError: If no input has a vocabulary, or the token is not in it.
        """
        from dxn.runs.predictor.vocabulary import nearest_tokens, vocabulary_adapter

        return nearest_tokens(vocabulary_adapter(self.adapters, input), token, count)

    # Samples

    def samples(self, samples: Sequence[Values]) -> Samples:
        """Read the inputs of samples, for `run`, `vectors` and `tokens_of`.

        Raises:
            UserError: If a file cannot be read or an input is unknown.
        """
        return self.model_inputs.prepared(self.model_inputs.samples(samples))

    def _samples(self, data: Any, inputs: dict[str, Any]) -> Samples:
        """Read the samples of `data`, see `predict`, or the only sample `inputs`."""
        data = inputs if data is None else self.model_inputs.argument(data, inputs)
        if not isinstance(data, dict | list):
            return self.model_inputs.prepared(self.model_inputs.frame(data))
        samples = self.samples(data if isinstance(data, list) else [data])
        self.model_inputs.warn(samples.opened)
        return samples

    def task_samples(self, opened: Opened, *, only: Sequence[str] | None = None) -> Samples:
        """Return the samples of opened rows with their targets, without augmentation."""
        from dxn.data.token_windows import make_samples

        return make_samples(self.task, opened, self.tokenizers, only=only)

    def batch(self, samples: Samples, i: int) -> dict[str, Any]:
        """Return a batch with opened sample i, on the model's device."""
        return to_device(samples.collate([samples[0, i]]), self.device)
