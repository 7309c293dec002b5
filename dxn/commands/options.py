"""Options that several commands have, and the checks of their paths and devices."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Interval

from dxn.config.command import Command, Group, PathOption
from dxn.config.settings import Settings, plain
from dxn.config.signatures import marks_of
from dxn.config.values import assign, lookup
from dxn.config.words import AS_TYPED, USUAL_ADAPTERS
from dxn.core.errors import UserError, similar
from dxn.data.formats import ARRAYS, require_path, table_format
from dxn.data.sources.detect import infer_source
from dxn.runs.folder import AUTO, has_model, is_run, trained_run, weights_of_run

if TYPE_CHECKING:
    from dxn.data.dataset import Opened
    from dxn.runs.engine.bulk import Answering
    from dxn.runs.predictor.predictor import Predictor

# A model on the hub. A single name, such as a misspelt folder, is not one.
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
HUB_REVISION = re.compile(rf"{HUB_ID.pattern}@[\w./-]+")
Count = Annotated[int, Ge(1)]
PATTERN = re.compile(r"[*?\[]|://")  # a pattern of paths or an address, instead of one path
# Options of data sources that are paths. The first one that is set decides which source that is.
DATA_PATHS = ("path", "train", "validation", "test")
SOURCE_KEYS = ("data.path", "data.train")
FIRST_OF_LIST = re.compile(r'\[\s*(?:"([^"]*)"|([^,\]]+))')  # in a list of tables, it decides
DEVICE_KEYS = ("device", "trainer.device")
MAX_SHOWN = 100  # characters of a path in a message
MAX_SEED = 2**63 - 1  # of torch.manual_seed

# Options that have an effect only on tables.
OF_TABLES = ("columns", "sep", "encoding", "sheet", "on_bad", "keep")
# Options that have no effect on the answers of a command.
FREE = ("engine", "ray", "output", "device", "trust")

C = TypeVar("C", bound=Command)


def check_paths(command: C) -> C:
    """Check the paths and the device of a command, and find the run folders that it names.

    Raises:
        UserError: One line per problem.
    """
    settings = command.settings
    values = copy.deepcopy(settings.values)
    problems = command.without_effect()
    notes = list(settings.notes)
    declared = command.options()
    for key, parameter in {**declared.parameters, **declared.by_key}.items():
        value = lookup(values, key)[1]
        for mark in marks_of(parameter.type):
            if isinstance(mark, PathOption) and value is not None:
                try:
                    value, note = mark.check(key, value, settings)
                    assign(values, key, value)
                    notes += [note] if note else []
                except UserError as error:
                    problems += str(error).splitlines()
    if problems:
        raise UserError("\n".join(problems))
    for key in DEVICE_KEYS:
        device = lookup(values, key)[1]
        if device in ("cuda", "mps"):
            _check_device(key, device)
    return command.of(replace(settings, values=values, notes=tuple(notes)))


def _check_device(key: str, device: str) -> None:
    # Only a computer with this device can run the command, and then torch is needed anyway.
    torch = importlib.import_module("torch")
    backend = torch.cuda if device == "cuda" else torch.backends.mps
    if not backend.is_available():
        raise UserError(
            f"{key}: {device} is not available: torch finds no such device or no driver for it; "
            f"use {key}=cpu or {key}=auto"
        )


def check_output(
    key: str, value: Any, settings: Settings, *, is_folder: bool = False
) -> tuple[Any, str | None]:
    """Check a path to write, judged by the nearest folder that exists, see `PathOption`.

    Args:
        key: The option.
        value: The path.
        settings: The values of all options.
        is_folder: Whether a folder is written, and not a file.

    Raises:
        UserError: If it is empty or cannot be written, or is also the input.
    """
    if not value:  # such as a variable of a shell that is not set
        raise UserError(f"{key}: must be a path, got an empty text; leave it out for the default")
    path, source = Path(value), settings.values.get("input")
    try:
        if isinstance(source, str) and path.is_file() and path.resolve() == Path(source).resolve():
            wrong = f"{path} is also the input and would be overwritten; choose another file"
            raise UserError(f"{key}: {wrong}")
        # Ray writes a folder, and continues in one that exists.
        is_folder = is_folder or settings.values.get("engine") == "ray"
        if path.is_dir() and not is_folder:
            raise UserError(f"{key}: {path} is a folder that exists; choose another name")
        parents = [path, *path.absolute().parents] if is_folder else path.absolute().parents
        parent = next(folder for folder in parents if folder.exists())
        if not parent.is_dir():
            raise UserError(
                f"{key}: {parent} is a file, so {path} cannot be written; choose another path"
            )
    except UserError:
        raise
    except (OSError, ValueError) as error:  # too long, or with a zero byte
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(
            f"{key}: {value[:MAX_SHOWN]} cannot be written ({reason}); choose another path"
        ) from error
    # Trying is the only way to know: permissions do not tell about a read-only disk, and root has
    # all of them. A temporary file without a name leaves nothing behind.
    try:
        with tempfile.TemporaryFile(dir=parent):
            return value, None
    except OSError as error:
        raise UserError(
            f"{key}: {parent} cannot be written to ({error.strerror}); choose another path"
        ) from error


def find_runs(key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
    """Return the run folders that an option names: folders, latest, or folders of runs."""
    if isinstance(value, str):
        folder, note = trained_run(value, key)
        return str(folder), note
    runs = [trained_run(text) for text in value]
    notes = [note for _, note in runs if note]
    return [str(folder) for folder, _ in runs], "\n".join(notes) or None


def find_weights(key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
    """Return the source of weights: a run, a file or folder, or a model on the hub.

    A folder of runs is replaced by its newest run. The value can be a mapping of sources.
    """
    # A run that continues has all weights in its checkpoint, and reads no others.
    if (settings.values.get("resume") or {}).get("run"):
        return value, None
    key = key.removesuffix(".source")  # as the user types it
    if isinstance(value, Mapping):
        sources = {n: find_weights(f"{key}.{n}", text, settings) for n, text in value.items()}
        notes = [note for _, note in sources.values() if note]
        return {n: source for n, (source, _) in sources.items()}, "\n".join(notes) or None
    source, note = weights_of_run(value, key)
    path = Path(source)
    # In outputs/lable, the folder exists, so its subfolder is misspelt.
    is_hub_id = HUB_ID.fullmatch(source) is not None and not path.parent.is_dir()
    if path.exists() or is_hub_id:
        return source, note
    names = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    match = similar(source, names)
    advice = f"did you mean {match}?" if match else "a model on the hub is written OWNER/NAME"
    raise UserError(
        f"{key}: file or folder not found: {source} (current directory: {Path.cwd()}); {advice}"
    )


def find_encoders(key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
    """Return the sources of encoders by input, see `find_weights`, or a word that chooses them.

    A model on the hub can have a revision: OWNER/NAME@REVISION.
    """
    typed = sorted(name for name in settings.chosen if name.startswith(f"{key}."))
    if typed and key in settings.chosen:
        raise UserError(f"{key}: has no effect with {typed[0]}; leave one of them out")
    if not isinstance(value, Mapping):
        return value, None
    found, notes = dict(value), list[str]()
    for name, source in value.items():
        if source in ("none", "auto", "small", "base") or HUB_REVISION.fullmatch(source):
            continue
        found[name], note = find_weights(f"{key}.{name}", source, settings)
        notes += [note] if note else []
    return found, "\n".join(notes) or None


def check_input(key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
    """Check that a table exists, or a path without a key. Another text can be the input itself."""
    is_path = value in settings.overrides or table_format(str(value)) is not None
    if isinstance(value, str) and is_path:
        try:
            _require(key, value, settings)
        except UserError as error:
            advice = "; a text is written input.NAME=..." if " " in value else ""
            raise UserError(f"{error}{advice}") from error
    return value, None


def check_data(key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
    """Check that the files of a data source exist."""
    # Other packages can have data sources whose paths are something else, such as an address.
    if str(value.get("_target_")).startswith("dxn."):
        for name in DATA_PATHS:
            paths = value.get(name)
            for path in paths if isinstance(paths, list) else [paths]:
                _require(f"{key}.{name}", path, settings)
    return value, None


def _require(key: str, path: Any, settings: Settings) -> None:
    # Other programs that use Hydra have the same folder of options, and no model.
    is_free = isinstance(path, str) and settings.values.get("run") is None
    if is_free and is_run(Path(path)) and has_model(Path(path)):
        use = f"write run={path} to use its model"
        if key != "input":
            use = f"choose the path of data, or continue its training with dxn train resume={path}"
        raise UserError(f"{key}: {path} is the folder of a run; {use}")
    # Data sources and predictors read patterns themselves.
    if isinstance(path, str) and (Path(path).exists() or not PATTERN.search(path)):
        require_path(Path(path), key)


Run = Annotated[str | None, PathOption(find_runs)]
Runs = Annotated[Sequence[str] | str, PathOption(find_runs)]
Input = Annotated[str | Mapping[str, str], AS_TYPED, PathOption(check_input)]
InputTable = Annotated[str | None, AS_TYPED, PathOption(check_input)]
WeightsSource = Annotated[str | None, PathOption(find_weights)]
OUTPUT_FILE = PathOption(check_output)
OUTPUT_FOLDER = PathOption(functools.partial(check_output, is_folder=True))
DATA_FILES = PathOption(check_data)
Seed = Annotated[int, Interval(ge=-MAX_SEED, le=MAX_SEED)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bf16", "int8"]


@dataclass(frozen=True)
class Weights:
    """A public checkpoint instead of a run.

    Args:
        source: Public checkpoint instead of run (short form: weights=...): file, folder or hub id.
        revision: Branch, tag or commit, for a hub id.
        part: Modality to use, for a checkpoint with one tower per modality, such as CLIP.
        prompt: Prompt to put before each text, such as query, for a checkpoint of
            sentence-transformers with prompts (default: its default prompt).
        strict: Stop on missing or unexpected tensors, and on settings in config.json that dxn does
            not know; false continues without them.
        pad: Fill inputs up as the checkpoint does, such as clips of Whisper with silence to 30
            seconds; false reads only what there is, which is faster and gives other embeddings.
    """

    source: WeightsSource = None
    revision: str | None = None
    part: str | None = None
    prompt: str | None = None
    strict: bool = True
    pad: bool = True


@dataclass(frozen=True)
class RayOptions:
    """Ray, with engine=ray.

    Args:
        address: Address of a Ray cluster, such as 10.0.0.1:6379 (default: Ray on this machine).
        replicas: Number of copies of the model (default: one per GPU, without GPUs one per core).
    """

    address: str | None = None
    replicas: Count | None = None


NO_WEIGHTS = Weights()
ON_THIS_MACHINE = RayOptions()


@dataclass(frozen=True, kw_only=True)
class Data(Command):
    """A command that can read another data set than that of the training.

    Args:
        data: Other data than that of the training; inferred from data.path.
    """

    data: Annotated[Any, Group(), DATA_FILES] = None

    def source_options(self) -> dict[str, Any]:
        """Return the options as arguments of `dxn.runs.evaluation.data.evaluation_source`."""
        settings = self.settings
        return {
            "data": self.data,
            "split": settings.values["split"],
            "confine": settings.values["confine"],
            "chosen": settings.chosen,
            "trust": settings.trust,
            "folder_trust": settings.folder_trust,
        }

    @classmethod
    def infer(cls, values: Mapping[str, str]) -> dict[str, str]:
        """Return the data source that reads a path."""
        path = next((values[key] for key in SOURCE_KEYS if values.get(key)), None)
        # A resumed run keeps its data source.
        if path is None or values.get("resume.run", AUTO) not in (AUTO, "null"):
            return {}
        first = FIRST_OF_LIST.match(path)
        file = Path(path if first is None else first[1] or first[2]).expanduser()
        if file.exists():
            return {"data": infer_source(file)}
        # A missing path is reported later, together with the other problems of the command.
        if file.name.lower().endswith(ARRAYS):
            return {"data": "grid"}
        return {"data": "folder" if table_format(file) is None else "table"}


Adapters = Annotated[Any, Group(USUAL_ADAPTERS)]


@dataclass(frozen=True, kw_only=True)
class FromRun(Command):
    """A command that uses a trained model.

    Args:
        run: Run folder, model folder, folder of runs (its newest one is used) or latest.
    """

    run: Run = None

    def load(self, **options: Any) -> Predictor:
        """Load the model, with further arguments of `load_predictor`."""
        from dxn.runs.saved.loading import load_predictor

        return load_predictor(self.run, trust=self.settings.folder_trust, **options)

    def loader(self, **options: Any) -> Callable[..., Predictor]:
        """Return `load` with options, as a function that can be sent to other processes."""
        # Other machines have another current directory.
        run = None if self.run is None else str(Path(self.run).absolute())
        return functools.partial(replace(self, run=run).load, **options)

    def identity(self, opened: Opened) -> str:
        """Return a hash of the model, the options and the input, for a file of its answers."""
        from dxn.runs.predictor.resumable import identity_of

        options = {n: v for n, v in plain(self.settings.values).items() if n != "output"}
        weights = options.get("weights", {}).get("source")
        return identity_of({"command": self.verb(), **options}, self.run, weights, opened)

    def required_run(self) -> str:
        """Return the run folder.

        Raises:
            UserError: If it is not set.
        """
        if self.run is None:
            raise UserError("run: set run=RUN to the run folder of a trained model")
        return self.run


@dataclass(frozen=True, kw_only=True)
class FromWeights(FromRun):
    """A command that uses a trained model or a public checkpoint.

    Args:
        head: Options of the head of a public checkpoint: head.language=de head.beams=4.
    """

    needs: ClassVar[Mapping[str, Sequence[str]]] = {
        "weights.source": [
            *("weights.revision", "weights.part", "weights.prompt", "weights.strict"),
            "weights.pad",
        ]
    }

    weights: Weights = NO_WEIGHTS
    head: Mapping[str, Any] = field(default_factory=dict)

    def load(self, **options: Any) -> Predictor:
        """Load the model, with further arguments of `load_predictor`."""
        from dxn.runs.saved.loading import load_predictor

        trust = self.settings.folder_trust
        return load_predictor(self.run, self.weights, trust=trust, head=self.head, **options)


@dataclass(frozen=True, kw_only=True)
class Compute(Command):
    """A command that computes batches with a model.

    Args:
        batch_size: Number of samples per batch.
        device: auto, cpu, cuda or mps.
        dtype: float32, bf16, int8 or auto: bf16 if the model is large and the device has
            instructions for it.
    """

    batch_size: Count = 64
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"

    def computing(self) -> dict[str, Any]:
        """Return the options as arguments of `dxn.runs.saved.loading.load_predictor`.

        The processes that torchrun started are connected, and each has a device of its own.
        """
        device: str = self.device
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from dxn.training.parallel import connect

            try:
                device = str(connect(device))
            except ValueError as error:
                raise UserError(str(error)) from error
        return {"device": device, "dtype": self.dtype}


@dataclass(frozen=True, kw_only=True)
class TableInput(Command):
    """A command that reads a table.

    Args:
        columns: Columns of a table with other names: columns.title=name.
        sep: Separator of CSV cells (default: detected from the header).
        encoding: Encoding of a table (default: UTF-8).
        sheet: Sheet of an Excel file (default: the first sheet with a table).
        on_bad: Rows of input that cannot be read: error, skip or missing (use the other inputs).
        confine: Refuse files of input that lead out of its folder, also through links.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    sep: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    on_bad: Literal["error", "skip", "missing"] = "error"
    confine: bool = True

    def has_many_rows(self) -> bool:
        """Whether the option `input` names many rows. Otherwise it is one sample.

        Raises:
            UserError: If it is one sample, and the user set an option of tables.
        """
        from dxn.runs.predictor.option import has_many_samples

        if has_many_samples(self.settings.values["input"]):
            return True
        if chosen := self._chosen(OF_TABLES):
            raise UserError(f"{chosen[0]}: has no effect on one sample; leave it out")
        return False

    def opened(self, predictor: Predictor, only: Sequence[str] | None = None) -> Opened:
        """Open all rows that the option `input` names, or its sample.

        Args:
            predictor: The model.
            only: Names of the inputs that are used. A table may lack the others. Default: all.
        """
        from dxn.runs.predictor.option import read_sample

        inputs, source = predictor.model_inputs, self.settings.values["input"]
        if self.has_many_rows():
            return inputs.option(source, only=only, **self.table_options())
        return inputs.samples([read_sample(source, inputs.readers, predictor.columns)])

    def table_options(self) -> dict[str, Any]:
        """Return the options as arguments of `dxn.runs.predictor.inputs.ModelInputs.option`."""
        return {
            "columns": self.columns,
            "sep": self.sep,
            "encoding": self.encoding,
            "sheet": self.sheet,
            "on_bad": self.on_bad,
            "confine": self.confine,
        }


@dataclass(frozen=True, kw_only=True)
class ManyRows(FromRun, TableInput):
    """A command whose answers for many rows Ray can compute.

    Args:
        engine: local: this process, ray: several processes or machines.
    """

    needs: ClassVar[Mapping[str, Sequence[str]]] = {"engine=ray": ["ray"]}

    engine: Literal["local", "ray"] = "local"
    ray: RayOptions = ON_THIS_MACHINE

    def on_ray(
        self, rows_of: Answering, *, keep: Sequence[str] = (), batch_size: int = 64, **options: Any
    ) -> int:
        """Compute the answers on Ray, and return the exit code.

        Args:
            rows_of: Function that computes the answers of samples.
            keep: Further columns of a table to copy to the answers.
            batch_size: Number of samples per batch.
            **options: Options of `load`.
        """
        from dxn.runs.engine.cluster import answer_rows
        from dxn.runs.predictor.resumable import identity_of_model

        values = plain(self.settings.values)
        command = {n: v for n, v in values.items() if n not in FREE}
        # After a change of the model, its answers need another folder.
        command["model"] = identity_of_model(self.run, values.get("weights", {}).get("source"))
        return answer_rows(
            self.loader(**options),
            values["input"],
            values["output"],
            rows_of,
            command={"command": self.verb(), **command},
            ray_options=self.ray,
            table_options={**self.table_options(), "keep": keep},
            batch_size=batch_size,
            only=values.get("only"),
        )


@dataclass(frozen=True, kw_only=True)
class ZeroShotLabels(Command):
    """A command whose model can get class names.

    Args:
        labels: Class names for a model with head=contrastive, which has no classes of its own.
        template: Text of a class, such as "a photo of a {}".
    """

    needs: ClassVar[Mapping[str, Sequence[str]]] = {"labels": ["template"]}

    labels: Sequence[str] = ()
    template: str = "{}"
