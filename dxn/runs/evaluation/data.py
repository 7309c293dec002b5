"""The data of `dxn evaluate`: a table, a data set, or the data set of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dxn.config.instantiate import completed, signature_of
from dxn.config.settings import FOLDER as CONFIG_FOLDER
from dxn.config.settings import Settings
from dxn.config.values import problem
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.data.dataset import Opened
from dxn.data.inspect.fingerprint import differences, fingerprint
from dxn.data.reading import open_rows
from dxn.data.rows import TARGET, OnBad, Rows, Source
from dxn.data.sources.table import JOINED, without_groups
from dxn.data.splits.split import UNDIVIDED
from dxn.data.tables.read import MissingColumn
from dxn.runs.decide import open_source, print_paths
from dxn.runs.evaluation.subsets import default_split
from dxn.runs.folder import is_run
from dxn.runs.plan import FOLDER, PLAN, read_plan
from dxn.runs.predictor.inputs import print_columns
from dxn.runs.predictor.option import is_table
from dxn.runs.predictor.predictor import Predictor

# Options that describe the table `input`. A data set has options of its own, such as data.sep.
INPUT_OPTIONS = ("columns", "keep", "sep", "encoding", "sheet", "on_bad", "confine")


class EvaluationSource(NamedTuple):
    """A data set of which a split is evaluated.

    Attributes:
        source: The data set.
        split: Name of the split.
        about: Description of its rows for titles and messages.
        node: Configuration node of the data set.
        trust: Top-level packages besides dxn whose code the node may use.
    """

    source: Source
    split: str
    about: str
    node: Mapping[str, Any]
    trust: Sequence[str]


class EvaluationData(NamedTuple):
    """Opened rows with their targets.

    Attributes:
        split: Name of the split, for the keys of metrics.json.
        about: Description of the rows for titles and messages.
        opened: Rows that can be read.
    """

    split: str
    about: str
    opened: Opened


def evaluation_source(
    predictor: Predictor,
    run: str | None,
    *,
    data: Mapping[str, Any] | None = None,
    split: str | None = None,
    confine: bool = True,
    chosen: Collection[str] = (),
    trust: Sequence[str] = (),
    folder_trust: Sequence[str] = (),
) -> EvaluationSource:
    """Return the data that the user named, or otherwise the data of the run.

    Args:
        predictor: The model.
        run: Its run folder. None: a public checkpoint.
        data: Configuration node of the data that the user named.
        split: The split. Default: see `default_split`.
        confine: Whether the data of the run may not lead out of its folder.
        chosen: Options that the user set.
        trust: Top-level packages besides dxn whose code `data` may use.
        folder_trust: Those that the run folder may use.

    Raises:
        UserError: If there is no data, or it does not fit the model.
    """
    # The data of the run has no options on the command line, so `confine` also applies to it.
    unused = INPUT_OPTIONS if data else set(INPUT_OPTIONS) - {"confine"}
    if wrong := sorted(key for key in unused if _is_chosen(key, chosen)):
        raise UserError(
            f"{wrong[0]}: only applies to input=TABLE; remove it, or set input instead of data"
        )
    if data:
        node = _for_evaluation(data, predictor, chosen, trust)
        group = None if _is_chosen("data.group", chosen) else _group_of(run, folder_trust)
        node, source = _with_group(node, group, predictor, trust)
    else:
        node, trust = data_of_run(predictor, run, confine, folder_trust), folder_trust
        source = source_of(node, predictor, trust)
    for note in source.notes:
        print_line(f"note: {note}")
    split = split or default_split(source.splits)
    if not source.splits.get(split):
        splits = ", ".join(name for name, rows in source.splits.items() if len(rows))
        raise UserError(f"split: the data has {splits}, got {split}")
    path = node.get("path")
    about = split
    if isinstance(path, str):
        about = path if split == UNDIVIDED else f"{split} of {path}"
    return EvaluationSource(source, split, about, node, trust)


def open_evaluation_data(predictor: Predictor, run: str | None, **options: Any) -> EvaluationData:
    """Open the split of `evaluation_source`, which has the same arguments."""
    evaluated = evaluation_source(predictor, run, **options)
    opened = _open(evaluated.source, evaluated.split, predictor)
    if run is not None and not options.get("data"):
        _warn_if_changed(_run_folder(run), evaluated.split, opened)
    return EvaluationData(evaluated.split, evaluated.about, opened)


def _warn_if_changed(folder: Path, split: str, opened: Opened) -> None:
    """Print a warning if a split has other rows than at the start of the training."""
    if not (folder / FOLDER / PLAN).is_file():
        return
    old = read_plan(folder).data
    if split not in old:
        return
    changes = differences({split: old[split].model_dump()}, fingerprint({split: opened}))
    if changes:
        print_line(
            f"warning: since the training, the data has changed: {changes[0]}; if its splits are "
            "drawn at random, the model may have been trained on some of these rows; evaluate new "
            "rows with input=TABLE"
        )


def open_data_of_run(
    node: Mapping[str, Any], predictor: Predictor, trust: Sequence[str]
) -> EvaluationData:
    """Open the split that a training evaluates.

    Args:
        node: Configuration node of the data of the training.
        predictor: The model.
        trust: Top-level packages besides dxn whose code the node may use.
    """
    source = source_of(_with_layout(node, predictor, trust), predictor, trust)
    split = default_split(source.splits)
    return EvaluationData(split, split, _open(source, split, predictor))


def rows_of_run(
    predictor: Predictor, run: str | None, *, advice: str, trust: Sequence[str]
) -> Rows:
    """Return the rows that `dxn evaluate run=RUN` evaluates, before their files are read.

    Args:
        predictor: The model.
        run: The run folder.
        advice: What to do if its data may lead to any file, for the message.
        trust: Top-level packages besides dxn whose code the folder may use.
    """
    node = data_of_run(predictor, run, confine=True, trust=trust, advice=advice)
    source = source_of(node, predictor, trust)
    return predictor.model_inputs.of_source(source, default_split(source.splits))


def open_table(
    path: Any,
    predictor: Predictor,
    run: str | None,
    *,
    on_bad: OnBad,
    trust: Sequence[str] = (),
    **options: Any,
) -> EvaluationData:
    """Open all rows of the table `input`.

    Args:
        path: File of the table.
        predictor: The model.
        run: Its run folder, whose data.group is also that of the table. None: there is none.
        trust: Top-level packages besides dxn whose code the run folder may use.
        on_bad: What to do with rows that cannot be read.
        **options: Further options, see `ModelInputs.table`.
    """
    if predictor.target is None and predictor.task.is_supervised:
        raise UserError(
            "input: the model does not know its target column; set data=table "
            f"data.path={path} data.target=COLUMN"
        )
    if not is_table(path):
        raise UserError(
            f"input: must be a table, got {path}; for one folder per class, set "
            f"data=folder data.path={path}"
        )
    group = _group_of(run, trust)
    rows = predictor.model_inputs.table(path, group=group, **options)
    if TARGET not in rows.cells and predictor.task.is_supervised:
        raise UserError(
            f"input: {path} has no column {predictor.target!r}, which the model "
            f"predicts; set columns.{predictor.target}=COLUMN, or use dxn predict"
        )
    opened = predictor.model_inputs.open(rows, on_bad, with_target=predictor.task.is_supervised)
    for note in predictor.model_inputs.remarks(opened):
        print_line(f"note: {note}")
    return EvaluationData("input", str(path), opened)


def _open(source: Source, split: str, predictor: Predictor) -> Opened:
    rows = predictor.model_inputs.of_source(source, split)
    return open_rows(rows, predictor.tokenizers, task=predictor.task, on_bad=source.on_bad)


def data_of_run(
    predictor: Predictor,
    run: str | None,
    confine: bool,
    trust: Sequence[str],
    advice: str = "set confine=false if you trust this run folder, or set data=...",
) -> dict[str, Any]:
    """Return the configuration node of the data of a run, see `open_evaluation_data`."""
    if run is None:
        raise UserError(
            "data: a public checkpoint has no data of its own; set data=table data.path=..."
        )
    folder = _run_folder(run)
    saved = Settings.load(folder, trust).values["data"]
    # Options that were inferred in the training, such as the season, must not be inferred again.
    node = _with_layout(saved, predictor, trust)
    print_paths(node)
    # Only false of the folder, which can be from an untrusted source, needs a decision of the user.
    if confine and not node.get("confine", True):
        raise UserError(
            f"{folder} was trained with data.confine=false, so its data may lead to any file of "
            f"this machine; {advice}"
        )
    return node


def _run_folder(run: str) -> Path:
    folder = Path(run)
    # The user may also name the model folder. The configuration that names the data is in the run
    # folder around it.
    if not (folder / CONFIG_FOLDER).is_dir() and (folder.parent / CONFIG_FOLDER).is_dir():
        return folder.parent
    return folder


def _group_of(run: str | None, trust: Sequence[str]) -> str | None:
    """Return the column that the training used as data.group, if any."""
    if run is None or not is_run(folder := _run_folder(run)):
        return None
    return Settings.load(folder, trust).values["data"].get("group")


def _with_group(
    node: dict[str, Any], group: str | None, predictor: Predictor, trust: Sequence[str]
) -> tuple[dict[str, Any], Source]:
    """Open a data source with the groups of the training, which it may lack, and its node."""
    parameters = signature_of(node.get("_target_"), key="data", trust=trust).parameters
    if group is not None and "group" in parameters:
        grouped = {**node, "group": group}
        try:
            return grouped, source_of(grouped, predictor, trust)
        except MissingColumn:
            source = source_of(node, predictor, trust)  # fails again if it lacks another column
            print_line(f"note: {without_groups(group)}")
            return node, source
    return node, source_of(node, predictor, trust)


def source_of(node: Mapping[str, Any], predictor: Predictor, trust: Sequence[str]) -> Source:
    """Open a data source with the splits that a training of the same task has."""
    return open_source({"data": node}, predictor.model_inputs.readers, predictor.task, trust)


def _for_evaluation(
    node: Mapping[str, Any],
    predictor: Predictor,
    chosen: Collection[str],
    trust: Sequence[str],
) -> dict[str, Any]:
    """Complete the node of a data source, unless the user set the same options.

    A table gets the layout, the columns and the target of the training. Data without splits of its
    own is not divided, so that all of its rows are evaluated.
    """
    result = _with_layout(node, predictor, trust, chosen=chosen)
    signature = signature_of(node.get("_target_"), key="data", trust=trust)
    fractions = signature.parameters.get("fractions")
    may_be_undivided = fractions is not None and problem(None, fractions.type) is None
    if may_be_undivided and "data.fractions" not in chosen:
        result["fractions"] = None
    takes_columns = signature.others is not None
    if not takes_columns:
        return result
    if predictor.target is not None and node.get("target") is None:
        result["target"] = predictor.target.split(JOINED)
    by_modality: dict[str, list[str]] = {}
    for name, column in predictor.columns.items():
        by_modality.setdefault(predictor.tokenizers[name].modality, []).append(column)
    if by_modality and all(node.get(modality) is None for modality in by_modality):
        print_columns(predictor.columns)
        result |= by_modality
    return result


def _with_layout(
    node: Mapping[str, Any],
    predictor: Predictor,
    trust: Sequence[str],
    *,
    chosen: Collection[str] = (),
) -> dict[str, Any]:
    """Add the options of the model's layout to the node of a data source that has these options.

    Options that the user chose are kept.
    """
    options = {} if predictor.layout is None else predictor.layout.options()
    parameters = signature_of(node.get("_target_"), key="data", trust=trust).parameters
    if not set(options) <= set(parameters):
        return dict(node)
    added = {name: v for name, v in options.items() if not _is_chosen(f"data.{name}", chosen)}
    # The layout of a model folder has a mapping for a group of options, such as data.long.
    return completed({**node, **added}, trust, key="data")


def _is_chosen(key: str, chosen: Collection[str]) -> bool:
    return any(option == key or option.startswith(f"{key}.") for option in chosen)
