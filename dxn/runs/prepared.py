"""A training that is ready to start: the data, the model and the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dxn.data.dataset import LoaderOptions, Samples
from dxn.data.inspect.check import Truncation
from dxn.data.stream import make_samples
from dxn.models import Model, count_parameters
from dxn.runs.build import Data, Inputs, model_nodes
from dxn.runs.saved import model_folder
from dxn.runs.saved.card import Card, data_name
from dxn.runs.settings import Settings, merge_overrides
from dxn.tasks import Task
from dxn.tokenize.base import Preprocessor
from dxn.training.finetune import Finetune
from dxn.training.trainer import Schedule, Trainer


@dataclass(frozen=True)
class Prepared:
    """Everything that a training needs.

    Args:
        settings: The settings, including the options that weights and data determine.
        trainer: The trainer, with the options of the preset.
        folder: The run folder.
        name: Name of the run, which is the title of its model card.
        data: The opened data.
        inputs: The inputs of the model.
        task: The fitted task.
        pretraining: The task of pretraining. None: no pretraining.
        model: The model, with initial weights if there are any.
        finetune: Freezes weights and adds LoRA weights.
        make_optimizer: Creates the optimizer of a model.
        schedule: Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
        batch_size: Number of samples per batch over all processes.
        loader: Options for loading samples.
        seed: Random seed of augmentation.
        truncations: Inputs of the training split that are truncated, by input name.
        loaded: Names of the tensors that were loaded from a checkpoint.
        warnings: Problems of the data that do not stop the training.
    """

    settings: Settings
    trainer: Trainer
    folder: Path
    name: str
    data: Data
    inputs: Inputs
    task: Task
    pretraining: Task | None
    model: Model
    finetune: Finetune
    make_optimizer: Callable[[Model], torch.optim.Optimizer]
    schedule: Schedule
    batch_size: int
    loader: LoaderOptions
    seed: int
    truncations: Mapping[str, Truncation]
    loaded: set[str]
    warnings: Sequence[str] = ()

    @property
    def preprocessors(self) -> dict[str, Preprocessor]:
        """The preprocessor of each input, by input name."""
        # The model's own adapters, because loading weights can replace statistics of its inputs.
        return {name: self.model.adapter(name).prepare for name in self.model.inputs}

    @property
    def overrides(self) -> tuple[str, ...]:
        """The options of the training as the user typed them, with those of resuming it."""
        if not self.settings.is_resumed:
            return self.settings.overrides
        saved = Settings.load(self.folder, self.settings.trust)
        return merge_overrides(saved.overrides, self.settings.overrides)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {name: len(split) for name, split in self.data.splits.items()}

    def training_samples(self, task: Task) -> Samples:
        """Return the augmented samples of the training split for a task.

        With loader.overfit, these are a few samples, without augmentation.
        """
        loader = self.loader
        return self._samples(
            task,
            "train",
            augment=not loader.overfit,
            input_dropout=loader.dropped_inputs(),
            repeats=loader.repeats,
        )

    def validation_samples(self, task: Task) -> Samples | None:
        """Return the samples that select the best epoch; None if there is no validation split."""
        # Overfitting shows whether the model can memorize, so it is validated on what it learns.
        split = "train" if self.loader.overfit else "validation"
        return self._samples(task, split) if split in self.data.splits else None

    def _samples(self, task: Task, split: str, **options: Any) -> Samples:
        opened = self.data.splits[split]
        samples = make_samples(task, opened, self.preprocessors, seed=self.seed, **options)
        if self.loader.overfit:
            samples.keep(self.loader.overfit)
        return samples

    def card(self, model: Model, task: Task, head: Mapping[str, Any], title: str) -> Card:
        """Return the model card, which also contains the configuration of the model.

        Args:
            model: The model to save: that of the run, or that of pretraining.
            task: The task of its head.
            head: Configuration node of the task.
            title: Title of the card.
        """
        about_target = ""
        target = None
        if task.needs_target:
            about_target = task.describe(self.data.splits["train"].targets or ())
            target = self.data.source.target
        return Card(
            title=title,
            nodes=model_nodes(
                self.settings.values, self.inputs, head, target, self.data.source.layout
            ),
            task=task,
            about_target=about_target,
            data=data_name(self.settings.values["data"], self.data.source.name),
            sizes=self.sizes,
            overrides=self.overrides,
            parameters=count_parameters(model),
        )

    def save_model(
        self, folder: Path, model: Model, card: Card, figures: Mapping[str, float]
    ) -> None:
        """Save a model folder.

        Args:
            folder: Folder to write.
            model: The model to save.
            card: Its card.
            figures: Validation metrics of this epoch.
        """
        text = card.markdown({"validation": figures}, epochs="the best epoch so far")
        model_folder.save(folder, model=model, nodes=card.nodes, task=card.task, card=text)
