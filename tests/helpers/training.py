"""A small training without files: vectors as inputs, and a task that predicts their class."""

import itertools
import random
from unittest import mock

import torch
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.data.dataset import Opened, Samples
from dxn.models import Backbone, EarlyFusion, MultimodalModel
from dxn.tasks import Classify
from dxn.tokenize import Adapter, Reader, Tokenizer
from dxn.training.loop import Fit
from dxn.training.optim import adamw, cosine
from dxn.training.trainer import Trainer

D = 12
WIDTH = 3  # numbers per step of a series


class VectorReader(Reader):
    """A list of vectors."""

    modality = "series"

    def read(self, cell):
        return cell


class SeriesTokenizer(Tokenizer):
    """Prepares a list of vectors; augmentation adds noise."""

    reader = VectorReader()

    def __call__(self, raw, rand=None):
        values = torch.tensor(raw)
        if rand is not None:
            values = values + 0.1 * rand.random()
        return {"values": values, "mask": torch.ones(len(values), dtype=torch.bool)}

    def length(self, raw):
        return len(raw)


class SeriesAdapter(Adapter):
    """One token per step."""

    reader = VectorReader

    def __init__(self, dim=D):
        super().__init__()
        self.dim = dim
        self.tokenizer = SeriesTokenizer()
        self.proj = nn.Linear(WIDTH, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, batch):
        x = self.norm(self.proj(batch["values"]))
        mask = batch["mask"]
        coords = torch.zeros(*mask.shape, 1)
        return Tokens(x, mask, (Span("series", "series", 0, mask.shape[1], coords),))


def make_rows(count, *, seed=0):
    """Series of 1 to 4 steps; the class is the sign of the sum of their first numbers."""
    rand = random.Random(seed)
    raws = []
    for _ in range(count):
        steps = range(rand.randint(1, 4))
        raws.append([[rand.gauss(0, 1) for _ in range(WIDTH)] for _ in steps])
    targets = ["up" if sum(step[0] for step in raw) > 0 else "down" for raw in raws]
    origin = [f"row {i}" for i in range(count)]
    return Opened({"series": raws}, targets, origin)


def make_samples(count, task, *, seed=0, augment=False, input_dropout=None):
    return Samples(
        make_rows(count, seed=seed),
        {"series": SeriesTokenizer()},
        task=task,
        seed=seed,
        augment=augment,
        input_dropout=input_dropout,
    )


def make_task(**options):
    task = Classify(**options)
    task.target.fit(["up", "down"])
    return task


def make_model(task, *, seed=0, dropout=0.2, depth=1):
    torch.manual_seed(seed)
    adapters = {"series": SeriesAdapter()}
    fusion = EarlyFusion(D, inputs=("series",))
    return MultimodalModel(
        adapters,
        inputs={"series": "series"},
        fusion=fusion,
        backbone=Backbone(D, depth=depth, num_heads=2, dropout=dropout),
        head=task.make_head(D, fusion.width, adapters),
    )


def without_randomness():
    """A model without dropout."""
    model = make_model(make_task(), dropout=0.0)
    model.head.pre.dropout = nn.Identity()
    return model


class Saved(list):
    """Collects the metrics and a copy of the weights whenever the trainer keeps an epoch."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __call__(self, metrics):
        weights = {name: t.clone() for name, t in self.model.state_dict().items()}
        self.append((metrics, weights))


def fit(
    folder,
    *,
    count=47,
    resume=False,
    seed=0,
    lr=1e-2,
    validation=True,
    num_workers=0,
    model=None,
    task=None,
    optimizer=adamw,
    input_dropout=None,
    checkpoint_every=0,
    **options,
):
    """Train on the CPU; return the model, the final state and what was kept.

    With checkpoint_every=N, N steps without a checkpoint are followed by one.
    """
    task = task or make_task()
    model = model or make_model(task, seed=seed)
    saved = Saved(model)
    settings = {"epochs": 2, "batch_size": 11, "precision": "float32", "device": "cpu"}
    settings["checkpoint_minutes"] = checkpoint_every
    trainer = Trainer(**{**settings, "seed": seed, **options})
    folder.mkdir(parents=True, exist_ok=True)
    train = make_samples(count, task, seed=seed, augment=True, input_dropout=input_dropout)
    train.num_workers = num_workers
    # The clock is read once per step and checkpoint.
    minutes = itertools.count()
    with mock.patch("dxn.training.loop.monotonic", lambda: 60 * next(minutes)):
        run = Fit(
            trainer,
            model,
            task,
            optimizer=optimizer(lr=lr)(model),
            schedule=cosine(),
            train=train,
            validation=make_samples(17, task, seed=seed + 1) if validation else None,
            folder=folder,
            keep=saved,
        )
        return model, run.run(resume=resume), saved


def without_time(state):
    """The state of a training without its durations, which differ from run to run."""
    names = ("seconds", "elapsed", "validation", "per_sample", "last_step")
    return {**vars(state), **dict.fromkeys(names, 0)}
