"""Groups of options of the commands that use a trained model."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dxn.commands.options import (
    NO_WEIGHTS,
    ON_THIS_MACHINE,
    Count,
    DeviceName,
    DtypeName,
    RayOptions,
    Run,
    Weights,
)
from dxn.config.command import Command
from dxn.config.settings import plain
from dxn.core.errors import UserError

if TYPE_CHECKING:
    from dxn.data.dataset import Opened
    from dxn.runs.engine.bulk import Answering
    from dxn.runs.predictor.predictor import Predictor


# Options that have no effect on the answers of a command.
FREE = ("engine", "ray", "output", "device", "trust")


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

    labels: Sequence[str] = ()
    template: str = "{}"
