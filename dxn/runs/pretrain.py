"""Pretraining: train the model on a task without targets, before it is trained on the main task.

The node `pretrain` of the configuration (conf/pretrain/masked.yaml) has these keys:

    epochs: 10        # number of passes over the training split
    lr: 0.001         # peak learning rate
    warmup: 0.1       # fraction of the steps in which the learning rate increases from 0
    task:             # node of the task, such as {_target_: dxn.tasks.Masked}

All other options (batch size, seed, device, precision, loader) are those of the main training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from dxn.config.instantiate import build
from dxn.core.files import write_text
from dxn.core.randomness import named_draws, seed_of
from dxn.models import Model
from dxn.runs.build import adapters_of, make_head
from dxn.runs.evaluation.figures import training_figures
from dxn.runs.prepared import Prepared
from dxn.runs.saved import model_folder
from dxn.tasks import Task
from dxn.training.distributed import wait_for_all
from dxn.training.optim import adamw, cosine
from dxn.training.trainer import Trainer

FOLDER = "pretrain"
# Options of the trainer that are for the main task only, because they are tuned to its targets and
# its metric. Pretraining runs all of its epochs and does not average weights, and a masked sample
# has no target that mixup could mix.
MAIN_TASK_ONLY = {
    "patience": 0,
    "max_minutes": None,
    "ema_decay": 0.0,
    "mixup": 0.0,
    "r_drop": 0.0,
}


def pretrain(run: Prepared, task: Task) -> None:
    """Train the adapters, the fusion and the backbone of the run's model in place.

    Pretraining has its own log and checkpoints in RUN/pretrain. It continues from its last
    checkpoint if the run is resumed. Afterwards, the model has the weights of its best epoch.

    Args:
        run: The prepared run. The head of its model is not changed.
        task: Task to pretrain on, bound to the model's adapters.
    """
    config = run.settings.values
    options = config["pretrain"]
    folder = run.folder / FOLDER
    node = {**config["trainer"], **MAIN_TASK_ONLY, "epochs": options["epochs"]}
    # Processes of accelerate share one precision, so a second measurement could change that of the
    # main task.
    node["precision"] = "bf16" if run.trainer.bf16 else "float32"
    trainer: Trainer = build(node, key="trainer", trust=run.settings.trust)
    with named_draws(config["seed"], "pretrain.task"):
        student = _with_head(run.model, task)
    card = run.card(student, task, options["task"], f"{run.name}, pretraining")

    def save_best(figures: Mapping[str, float]) -> None:
        if trainer.main:
            run.save_model(folder / "model", student, card, figures)

    torch.manual_seed(seed_of(config["seed"], FOLDER))
    state = trainer.fit(
        student,
        task,
        optimizer=adamw(lr=options["lr"])(student),
        schedule=cosine(warmup=options["warmup"]),
        train=run.training_samples(task),
        validation=run.validation_samples(task),
        folder=folder,
        keep=save_best,
        resume=run.settings.is_resumed,
        batch_size=run.batch_size,
        num_workers=run.loader.num_workers,
        timeout=run.loader.timeout,
        name="pretraining",
    )
    wait_for_all(trainer.accelerator)  # until the main process has written the weights
    _load_all_but_head(run.model, folder / "model" / model_folder.WEIGHTS)
    if trainer.main:
        metrics = training_figures(state, student)
        write_text(folder / "metrics.json", json.dumps(metrics, indent=1))


def _with_head(model: Model, task: Task) -> Model:
    """Return a model that shares adapters, fusion and backbone with `model`, with a new head."""
    adapters = adapters_of(model)
    return Model(
        adapters,
        inputs=model.inputs,
        fusion=model.fusion,
        backbone=model.backbone,
        head=make_head(task, adapters, model.inputs, model.fusion),
    )


@torch.no_grad()
def _load_all_but_head(model: Model, path: Path) -> None:
    """Load the weights of the best epoch, which need not be the last one."""
    state = model.state_dict()
    for name, tensor in load_file(path).items():
        if name in state and not name.startswith("head."):
            state[name].copy_(tensor)
