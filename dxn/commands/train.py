"""The commands `dxn train`, `dxn show` and `dxn check`, which share the options of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from dxn.commands.options import (
    DATA_FILES,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    Adapters,
    Count,
    Data,
    Seed,
    Weights,
    find_encoders,
    find_weights,
)
from dxn.config.command import Group, PathOption
from dxn.config.settings import Settings, dump_yaml
from dxn.core.printable import printable
from dxn.runs.folder import AUTO, interrupted_run

if TYPE_CHECKING:
    from dxn.config.settings import Settings
    from dxn.config.words import Request
    from dxn.runs.train import Trained

Pretrained = Annotated[
    Literal["none", "auto", "small", "base"] | Mapping[str, str], PathOption(find_encoders)
]
# Keys that contain an interpolation of another key, such as batch_size: ${batch_size}. In a saved
# run it has already been resolved, so changing the key must change these too.
DERIVED = {"batch_size": ("trainer.batch_size",)}
# Keys that determine the weights or the splits. They cannot be changed when a run is resumed.
FIXED_IN_RUN = ("dim", "seed")


@dataclass(frozen=True)
class StartWeights(Weights):
    """Weights that a training starts from.

    Args:
        source: Checkpoint to start from (short form: weights=...): run, file, folder or hub id.
        adapters: Checkpoints of single adapters: weights.adapters.NAME=...
    """

    adapters: Annotated[Mapping[str, str], PathOption(find_weights)] = field(default_factory=dict)


@dataclass(frozen=True)
class Resume:
    """A run that was interrupted.

    Args:
        run: Interrupted run to continue (short form: resume=...): run folder, folder of runs,
            latest, or auto: the newest unfinished run of the same command, otherwise a new run.
        force: Continue although the configuration or the data changed since the run started.
    """

    run: str | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Train(Data):
    """Train a model on text, images, audio or any mix of them, and evaluate it.

    Args:
        preset: auto chooses the options that you do not set from the data; plain leaves them.
        baseline: Train a small classical model and mix both outputs: auto (not with
            weights, finetune or pretrain), always or none.
        ensemble: Number of models with different seeds, whose outputs are combined.
        report: Write report.html at the end of the training.
        dim: Token width D; each file of the group backbone sets it.
        seed: Random seed of splits, weights, order, augmentation and dropout.
        batch_size: Batch size per process.
        name: Name of the folder in output (default: name of the target column).
        output: Parent folder of all run folders.
        run: Run folder to write (default: output/name/date_time).
        pretrained: Published encoders of the inputs: auto (the small ones that can be loaded),
            small or base (fail if one cannot), none, or one of these words or a file, folder or hub
            id (OWNER/NAME, OWNER/NAME@REVISION) by input or modality: pretrained.text=...
        share_adapters: Whether inputs of a modality share one adapter; table columns never do.
        share_backbone: Whether all inputs share one backbone; false needs late or bottleneck
            fusion.
        adapters: Kinds of inputs to read.
        fusion: How the tokens of several inputs are combined.
        head: Task; auto infers it from the target.
        backbone: Architecture and size of the model.
        optimizer: Optimizer.
        scheduler: Learning rate schedule.
        trainer: Training loop.
        loader: How samples are loaded.
        finetune: Frozen weights and LoRA.
        pretrain: Training on the inputs alone, before the main task.
        data: Data source; inferred from data.path.
        experiment: Tested options for a public data set.
        debug: Short runs that check the data and the model.
    """

    path_key: ClassVar[str | None] = "data.path"
    usage: ClassVar[Sequence[str]] = (
        "dxn train",
        "dxn train reviews.csv target=label",
        "dxn train photos/ backbone=tiny trainer.epochs=40",
        "dxn train reviews.csv target=label data.text=[title,body] data.image=photo",
        "dxn train photos/ weights=google/vit-base-patch16-224",
        "dxn train resume=outputs/label",
    )

    needs: ClassVar[Mapping[str, Sequence[str]]] = {
        "weights.source": ["weights.revision", "weights.part", "weights.prompt"],
        "weights.source or weights.adapters": ["weights.strict"],
    }
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {
        "weights.source": ["pretrained"],
        "weights.adapters": ["pretrained"],
        "pretrain": ["pretrained"],
    }

    preset: Literal["auto", "plain"] = "auto"
    baseline: Literal["auto", "always", "none"] = "auto"
    ensemble: Count = 1
    report: bool = True
    dim: Count = 128
    seed: Seed = 0
    batch_size: Count = 64
    name: str | None = None
    output: Annotated[str, OUTPUT_FOLDER] = "outputs"
    run: Annotated[str | None, OUTPUT_FOLDER] = None
    resume: Resume = Resume()
    share_adapters: bool = True
    share_backbone: bool = True
    weights: StartWeights = StartWeights()
    pretrained: Pretrained = "auto"
    adapters: Adapters
    fusion: Annotated[Any, Group("early")]
    head: Annotated[Any, Group("auto")]
    backbone: Annotated[Any, Group("nano")]
    optimizer: Annotated[Any, Group("adamw")]
    scheduler: Annotated[Any, Group("cosine")]
    trainer: Annotated[Any, Group("default")]
    loader: Annotated[Any, Group("default")]
    finetune: Annotated[Any, Group("default")]
    pretrain: Annotated[Any, Group()] = None
    data: Annotated[Any, Group("digits"), DATA_FILES] = None
    experiment: Annotated[Any, Group(is_part=False)] = None
    debug: Annotated[Any, Group(is_part=False)] = None

    @classmethod
    def resumed(cls, request: Request, words: Sequence[str]) -> Settings | None:
        """Return the saved configuration of the run that `resume` names."""
        typed = {override.key: override.value for override in request.values}
        run = typed.get("resume.run")
        if run in (None, AUTO):
            if typed.get("resume.force"):
                request.problems.append(
                    "resume.force: has an effect only together with resume=RUN, the run to continue"
                )
            return None
        folder, note = interrupted_run(str(run))
        rest = [line for line in words if not line.startswith(("resume=", "resume.run="))]
        settings = settings_of_run(folder, rest, request.trust)
        resume = {**settings.values["resume"], "run": str(folder)}
        values = {**settings.values, "resume": resume, "run": str(folder)}
        notes = () if note is None else (note,)
        return replace(settings, values=values, overrides=tuple(words), notes=notes)

    def execute(self) -> int:
        """Train, evaluate on the test split, and write the run folder."""
        from dxn.core.display import next_step

        for words in run_training(self.settings).next_commands:
            next_step("dxn", *words)
        return 0


@dataclass(frozen=True, kw_only=True)
class Show(Train):
    """Print the complete configuration of a training run. ??? is a value that it still needs."""

    needs_values = False
    usage: ClassVar[Sequence[str]] = (
        "dxn show",
        "dxn show reviews.csv target=label",
        "dxn show experiment=trec",
    )

    def execute(self) -> int:
        """Print the values of all options."""
        print(printable(dump_yaml(self.settings.values)), end="")
        return 0


@dataclass(frozen=True, kw_only=True)
class Check(Train):
    """Check the options of a training without its weights, and read and report its whole data.

    Args:
        output: CSV that lists bad rows and files, rows in two splits, and contradictions.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn check reviews.csv target=label",
        "dxn check photos/",
    )

    output: Annotated[str, OUTPUT_FILE] = "bad_files.csv"

    @classmethod
    def resumed(cls, request: Request, words: Sequence[str]) -> Settings | None:
        """Return the saved configuration of the run that `resume` names."""
        # The output of the check is a file, and that of the training is a folder.
        return super().resumed(request, [f"output={cls.output}", *words])

    def execute(self) -> int:
        """Report what the data contains. The exit code is 1 if rows are bad."""
        from dxn.core.display import next_step, print_line
        from dxn.runs.check import check_data

        result, words = check_data(self.settings.values, Path(self.output), self.settings.trust)
        if result.errors or result.bad:
            print_line(
                f"correct the rows in {self.output}, or train with data.on_bad=skip"
                if result.bad
                else "correct the data or the options, see the errors above"
            )
            return 1
        options = [o for o in self.settings.overrides if not o.startswith("output=")]
        next_step("dxn", "train", *options, *words)
        return 0


def run_training(settings: Settings) -> Trained:
    """Train a model, or an ensemble if the option says so."""
    from dxn.core.files import refuse_links_out
    from dxn.runs.plan import newest_unfinished
    from dxn.runs.train import train_one

    if settings.values["resume"]["run"] == AUTO:
        settings = newest_unfinished(settings)
    if settings.is_resumed:
        folder = Path(settings.values["resume"]["run"])
        refuse_links_out(folder, folder)
    if settings.values["ensemble"] == 1:
        return train_one(settings)
    from dxn.runs.ensemble import train_ensemble

    return train_ensemble(settings)


def settings_of_run(folder: Path, words: Sequence[str] = (), trust: Sequence[str] = ()) -> Settings:
    """Return the saved configuration of a run, with the values of overrides.

    Args:
        folder: The run folder. It may be untrusted, so nothing in it is composed or resolved again.
        words: Words of the command line that change values.
        trust: Top-level packages besides dxn whose code the run may use.

    Raises:
        UserError: If it is not a run folder, a `_target_` is not trusted, or an override is wrong.
    """
    # The modules import Hydra, which the help pages do not need.
    from dxn.config.compose import (
        expand_home,
        keys_of_values,
        set_option,
        valid_overrides,
        with_defaults,
    )
    from dxn.config.words import parse

    request = parse(Train, words, infers=False)
    request.trust = tuple(dict.fromkeys([*request.trust, *trust]))
    request.trust_all = request.trust  # an installed package is not trusted by a folder
    saved = Settings.load(folder, request.trust)
    values = saved.values
    for override in request.groups:
        request.problems.append(
            f"{override.line}: the parts of a saved run cannot be changed; change values, "
            "such as trainer.epochs=30, or train a new run"
        )
    for override, value in valid_overrides(Train, values, request):
        key = override.key
        if key in FIXED_IN_RUN:
            request.problems.append(f"{key}: cannot be changed in a saved run; train a new run")
        if "${" in str(value):
            request.problems.append(f"{key}: cannot be {value} in a saved run; write the value")
        for changed in (key, *DERIVED.get(key, ())):
            set_option(values, changed, expand_home(value))
    # Unknown keys first: with them, the types below could not be checked.
    if request.problems:
        raise request.error()
    values = with_defaults(Train, values, request)
    if request.problems:
        raise request.error()
    return replace(
        saved,
        values=values,
        overrides=(*saved.overrides, *words),
        chosen=frozenset(keys_of_values(request)),
        trust=request.trust,
        folder_trust=request.trust,
    )
