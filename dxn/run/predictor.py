"""The Python interface of a trained model: predictions, tokens, embeddings and generated texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.data.batches import BatchOrder, make_loader
from dxn.data.opening import Opened, survey_rows
from dxn.data.rows import Rows
from dxn.data.samples import Samples
from dxn.data.stream import make_samples
from dxn.errors import UserError
from dxn.models import LanguageModel, Model
from dxn.models.generation import Sampler, generate, greedy
from dxn.tasks import Task, Writes
from dxn.tokenize.adapter import Preprocessor, VocabularyAdapter, has_words
from dxn.tokenize.target import ENDS, token_of
from dxn.tokens import Tokens, join
from dxn.train.evaluate import Predictions, predict, to_device

# One sample: raw values by input name. Missing inputs are left out or None.
Sample = Mapping[str, Any]


class Predictor:
    """A trained model in evaluation mode. `dxn.load` and `dxn.from_public` return one.

    Args:
        model: The model, on the device to run it on.
        task: The fitted task, which converts outputs of the model to predictions.
        columns: Column of the training table that each input was read from, by input name. Default:
            unknown, as for a public checkpoint.
        target: Column of the target in the training table.

    Example:
        >>> model = dxn.load("outputs/reviews/2026-01-31_12-00-00.00")
        >>> model.predict(text="a fine film")
        {'prediction': 'positive', 'probabilities': {'negative': 0.07, 'positive': 0.93}}
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        *,
        columns: Mapping[str, str] | None = None,
        target: str | None = None,
    ):
        self.model = model
        self.task = task
        self.columns = dict(columns or {})
        self.target = target
        self.device = next(model.parameters()).device

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that the model takes, in order."""
        return list(self.model.inputs)

    @property
    def adapters(self) -> dict[str, Any]:
        """The adapter of each input, by input name."""
        return {name: self.model.adapter(name) for name in self.inputs}

    @property
    def preprocessors(self) -> dict[str, Preprocessor]:
        """The preprocessor of each input, by input name."""
        return {name: adapter.prepare for name, adapter in self.adapters.items()}

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Class names, or the vocabulary of a model that generates text. None if it has neither."""
        return self.task.labels

    # Predictions

    def predict(self, **inputs: Any) -> dict[str, Any]:
        """Predict for one sample.

        Args:
            **inputs: Raw values by input name, such as text="a fine film" or image="photo.jpg".
                Inputs can be left out. A text is a str. An image is a path, bytes, a PIL image or
                an array. Audio is a path, bytes or (array, sample_rate).

        Returns:
            {"prediction": ...}. For classes also {"probabilities": {name: probability}}.

        Raises:
            UserError: If a file cannot be read, an input is unknown, or all inputs are missing.
        """
        return self.predict_many([inputs])[0]

    def predict_many(
        self, samples: Sequence[Sample], *, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """Predict for several samples.

        Args:
            samples: Raw values by input name for each sample, as in `predict`.
            batch_size: Number of samples per batch.
        """
        self.require_answers()
        predictions = self.run(self.samples(samples), batch_size=batch_size)
        return [self.answer(predicted) for predicted in predictions.predicted]

    def run(self, samples: Samples, *, batch_size: int = 64) -> Predictions:
        """Predict for opened samples."""
        return predict(self.model, self.task, samples, batch_size=batch_size, device=self.device)

    def answer(self, predicted: Any) -> dict[str, Any]:
        """Convert one prediction to a dictionary that JSON can represent."""
        return self.task.answer(predicted)

    def require_answers(self) -> None:
        """Check that the model predicts one value per sample.

        Raises:
            UserError: If it does not, such as a language model.
        """
        if not self.task.answers:
            raise UserError(
                f"this model cannot predict (its task is {self.task.name}); use dxn embed, or "
                "dxn generate for a language model, or train a head: dxn train weights=..."
            )

    # Tokens and embeddings

    @torch.inference_mode()
    def tokens(self, **inputs: Any) -> Tokens:
        """Return the Tokens of one sample, the input of the backbone; `.matrix` is (1, D, N)."""
        return self.tokens_of(self.samples([inputs]), 0)

    @torch.inference_mode()
    def tokens_of(self, samples: Samples, i: int) -> Tokens:
        """Return the Tokens of opened sample i, the input of the backbone."""
        return join(self.model.embed(self.batch(samples, i)))

    @torch.inference_mode()
    def embed(self, **inputs: Any) -> Tensor:
        """Return the embedding (E,) of one sample: the input of the head's output layer."""
        return self.vectors(self.samples([inputs]))[1][0]

    @torch.inference_mode()
    def vectors(self, samples: Samples, *, batch_size: int = 64) -> tuple[list[int], Tensor]:
        """Return the embeddings of opened samples.

        Returns:
            The row of each sample in the opened split, and the embeddings (n, E) in this order.
        """
        rows: list[int] = []
        vectors: list[Tensor] = []
        # The rows are returned too, because a row without a usable input has no sample.
        for batch in make_loader(BatchOrder(samples, batch_size)):
            _, pooled = self.model.encode(self.model.embed(to_device(batch, self.device)))
            rows += batch["index"]
            vectors.append(self.model.embedding(pooled).float().cpu())
        return rows, torch.cat(vectors)

    # Generated texts and vocabulary

    @torch.inference_mode()
    def write(
        self,
        *,
        prompt: str = "",
        inputs: Sample | None = None,
        count: int = 1,
        max_new: int = 200,
        sampler: Sampler = greedy,
    ) -> list[str]:
        """Generate texts: continuations of a prompt, or texts for a sample.

        Args:
            prompt: Text to continue, for a language model.
            inputs: Sample to generate a text for, for a model with head=generate.
            count: Number of texts.
            max_new: Maximum number of tokens to generate.
            sampler: Chooses each token, see `dxn.models.make_sampler`.

        Raises:
            UserError: If the model does not generate text, or a language model gets inputs, or a
                model with head=generate gets a prompt.
        """
        if isinstance(self.task, Writes):
            return self._generate_for_sample(self.task, inputs, prompt, count, max_new, sampler)
        return self._continue_prompt(prompt, inputs, count, max_new, sampler)

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
        adapter = self._vocabulary_adapter(input)
        tokenizer = adapter.prepare.tokenizer
        embedding = F.normalize(adapter.embedding.weight.float(), dim=-1)
        index = _token_id(tokenizer, token)
        itself = torch.tensor([index], device=embedding.device)
        # A token is most similar to itself; minus infinity takes it out of topk.
        cosine = (embedding @ embedding[index]).index_fill(0, itself, -torch.inf)
        best = cosine.topk(min(count, len(embedding) - 1))
        ids = best.indices.tolist()
        names = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        return list(zip(names, best.values.tolist(), strict=True))

    # Samples

    def samples(self, samples: Sequence[Sample]) -> Samples:
        """Read the inputs of samples, for `run`, `vectors` and `tokens_of`.

        Raises:
            UserError: If a file cannot be read or an input is unknown.
        """
        unknown: set[str] = set()
        for sample in samples:
            unknown |= {name for name, value in sample.items() if value is not None}
        unknown -= set(self.inputs)
        if unknown:
            raise UserError(
                f"this model has the inputs {', '.join(self.inputs)}, "
                f"got {', '.join(sorted(unknown))}"
            )
        cells = {}
        for name, prepare in self.preprocessors.items():
            cells[name] = [self._cell(prepare, sample.get(name)) for sample in samples]
        origin = [f"sample {i + 1}" for i in range(len(samples))]
        opened = survey_rows(Rows(cells, origin), self.preprocessors)
        if opened.bad:
            # The number of the sample is noise if the caller passed only one.
            first = min(opened.bad, key=lambda fault: fault.row)
            raise UserError(f"{first.origin}: {first}" if len(samples) > 1 else str(first))
        return Samples(opened, self.preprocessors)

    def task_samples(self, opened: Opened, *, only: Sequence[str] | None = None) -> Samples:
        """Return the samples of opened rows with their targets, without augmentation."""
        return make_samples(self.task, opened, self.preprocessors, only=only)

    def batch(self, samples: Samples, i: int, *, count: int = 1) -> dict[str, Any]:
        """Return a batch of `count` copies of opened sample i, on the model's device."""
        return to_device(samples.collate([samples[0, i]] * count), self.device)

    def _cell(self, prepare: Preprocessor, value: Any) -> Any:
        # Tagging predicts one tag per word, and its tables contain lists of words.
        if isinstance(value, str) and self.task.wants_words and has_words(prepare):
            return value.split()
        # A cell of a table is a str, and `read` of a user's preprocessor may accept nothing else.
        if isinstance(value, Path):
            return str(value)
        return value

    def _generate_for_sample(
        self,
        task: Writes,
        inputs: Sample | None,
        prompt: str,
        count: int,
        max_new: int,
        sampler: Sampler,
    ) -> list[str]:
        if not inputs or prompt:
            names = " or ".join(f"input.{name}=..." for name in self.inputs)
            got = "a prompt" if prompt else "no input"
            raise UserError(f"input: this model generates a text for {names}; got {got}")
        # Copies of the sample, because a sampler draws another text for each row of the batch.
        batch = self.batch(self.samples([inputs]), 0, count=count)
        encoded, _ = self.model.encode(self.model.embed(batch))
        return task.write(self.model.head, encoded, max_new=max_new, sampler=sampler)

    def _continue_prompt(
        self, prompt: str, inputs: Sample | None, count: int, max_new: int, sampler: Sampler
    ) -> list[str]:
        try:
            language = LanguageModel(self.model)
        except ValueError as error:
            raise UserError(f"generate: {error}") from error
        if inputs:
            raise UserError("input: a language model continues a text; set prompt=... instead")
        tokenizer = self._vocabulary_adapter(None).prepare.tokenizer
        end = token_of(tokenizer, ENDS)
        # Special tokens such as [SEP] at the end would end the text before it is continued.
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        if not ids and end is None:
            raise UserError(
                "prompt: must not be empty, because this model's tokenizer has no end token to "
                "start from"
            )
        # In training, the end token separates texts, so a new text starts after it.
        start = torch.tensor([ids or [end]] * count, device=self.device)
        hypotheses = generate(
            language, None, prompt=start, end=end, max_new=max_new, sampler=sampler
        )
        # Decoded together: the space between two tokens can depend on both of them.
        return [tokenizer.decode([*ids, *hypothesis.ids]) for hypothesis in hypotheses]

    def _vocabulary_adapter(self, name: str | None) -> VocabularyAdapter:
        if name is not None and name not in self.inputs:
            raise UserError(
                f"input: this model has the inputs {', '.join(self.inputs)}, got {name}"
            )
        for candidate in [name] if name is not None else self.inputs:
            adapter = self.adapters[candidate]
            if isinstance(adapter, VocabularyAdapter):
                return adapter
        searched = name or ", ".join(self.inputs)
        raise UserError(f"this model has no vocabulary for its inputs: {searched}")


def _token_id(tokenizer: Any, token: str) -> int:
    """Return the id of one token of the vocabulary.

    Raises:
        UserError: If the tokenizer splits the token, or does not know it.
    """
    # Encoding applies the normalization of the tokenizer, such as lowercase. A token such as
    # "##ing" is split by it and only found by its exact name.
    ids = tokenizer.encode(token, add_special_tokens=False).ids
    index = ids[0] if len(ids) == 1 else tokenizer.token_to_id(token)
    unknown = getattr(tokenizer.model, "unk_token", None)
    if index is not None and (tokenizer.id_to_token(index) != unknown or token == unknown):
        return index
    if len(ids) > 1:
        pieces = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        raise UserError(
            f"token: {token!r} is split into {' | '.join(pieces)}; choose one of these tokens"
        )
    raise UserError(f"token: {token!r} is not in the vocabulary; choose another token")
