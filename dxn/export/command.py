"""The commands `dxn export` and `dxn push`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dxn.core.errors import UserError
from dxn.export.folder import write_export
from dxn.export.formats import check_format
from dxn.export.hub import Publication, publish
from dxn.runs.evaluation.printing import next_step, print_line
from dxn.runs.paths import is_run
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def export(settings: Settings) -> int:
    """Export a model, compare the files with it, and write how to use them."""
    values = settings.values
    check_format(values["format"])
    _require_run(settings)
    run = Path(values["run"])
    # A model folder can be in the cache of the hub, where nothing else should be written.
    parent = run if is_run(run) else Path()
    folder = Path(values["output"] or parent / "export" / values["format"])
    # Float32 on a CPU, because these are the weights that the run has.
    plain = replace(settings, values={**values, "device": "cpu"})
    predictor = load_predictor(plain, dtype="float32")
    written = write_export(predictor, folder, values["format"], baseline=values["baseline"])
    for line in written:
        print_line(line)
    # The example runs the model without dxn.
    next_step("python", str(folder / "example.py"))
    return 0


def push(settings: Settings) -> int:
    """Upload the model folder of a run to a hub."""
    values = settings.values
    if values["repo"] is None:
        raise UserError("repo: set repo=OWNER/NAME to the repository to write")
    names = ("repo", "revision", "private", "license", "message")
    publication = Publication(**{name: values[name] for name in names})
    _require_run(settings)
    trust = settings.folder_trust
    for line in publish(Path(values["run"]), publication, trust=trust):
        print_line(line)
    return 0


def _require_run(settings: Settings) -> None:
    if settings.values["run"] is None:
        raise UserError("run: set run=RUN to the run folder of a trained model")
