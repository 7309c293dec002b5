"""Predictions that are no table: files in the formats of COCO and SQuAD, pictures, and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from dxn.core.display import count, is_main_process, significant
from dxn.core.errors import UserError
from dxn.core.files import atomic_file, write_text
from dxn.core.printable import json_text
from dxn.data.dataset import Opened, Samples
from dxn.data.formats import ARRAYS
from dxn.data.series.grid import read_grid
from dxn.runs.predictor.output import SUFFIXES, Chunks, list_suffixes
from dxn.runs.predictor.table import Predicted, locate, predicted_batches
from dxn.tasks.forecast.task import FutureValues
from dxn.tasks.span.target import SpanTarget
from dxn.tokenize.media import embedded_file

if TYPE_CHECKING:
    from dxn.runs.predictor.predictor import Predictor
    from dxn.runs.predictor.resumable import AnsweredRows

COCO = ".coco.json"  # end of the name of a file of results
SQUAD = ".squad.json"  # end of the name of a file with the text of each answer by its id
ID = "id"  # column of the ids
CocoIds = tuple[Mapping[Path, Any], Mapping[str, Any]]  # of pictures, and of the names of classes
NO_IDS: CocoIds = {}, {}
ARRAY = ARRAYS[0]  # suffix of the file of forecasts


def picture_input(predictor: Predictor, output: str) -> str:
    """Return the name of the input in which a model finds objects or areas.

    Raises:
        UserError: If it does not find what `output` can contain.
    """
    task = predictor.task
    name = task.objects_in or ("" if output.endswith(COCO) else task.masks_in)
    if not name or predictor.tokenizers[name].reader.axes != 2:
        raise UserError(
            f"output: must be a file that ends in {list_suffixes(SUFFIXES)}, got {output}; only a "
            f"model that finds objects in pictures can write a file of the format {COCO}, and a "
            "folder also one that predicts masks"
        )
    return name


def coco_rows(
    predictor: Predictor,
    samples: Samples,
    batch_size: int,
    start: int = 0,
    *,
    ids: CocoIds = NO_IDS,
) -> Iterator[AnsweredRows]:
    """Yield one row per object, see `dxn.runs.predictor.resumable.Answers`.

    A row has the name of the picture, the class, the box (left, top, width and height in pixels),
    the score, and the run lengths of the mask if there is one. Objects of all scores are written,
    as an evaluation needs them. The ids of the picture and of the class are those of the input. A
    class that it does not have has the id of the training.

    Args:
        predictor: The model.
        samples: The pictures.
        batch_size: Number of pictures per batch.
        start: Number of batches to leave out.
        ids: See `dxn.data.sources.coco.coco_ids`.
    """
    opened = samples.opened
    names = file_names(opened, picture_input(predictor, f"NAME{COCO}"))
    for rows, predicted in predicted_batches(predictor, samples, batch_size, start):
        records: list[dict[str, Any]] = []
        for row, prediction in zip(rows, predicted, strict=True):
            records += coco_records(predictor, opened, row, prediction, names[row], ids)
        yield rows, records, ()


def file_names(opened: Opened, name: str) -> list[str]:
    """Return the name of the picture of each row, with its folders if others have the same name."""
    paths = [
        Path(cell if isinstance(cell, str | Path) else locate(origin)["file"])
        for cell, origin in zip(opened.cells[name], opened.origin, strict=True)
    ]
    names = [path.name for path in paths]
    counts = Counter(names)
    return [
        str(path) if counts[name] > 1 else name for path, name in zip(paths, names, strict=True)
    ]


def coco_records(
    predictor: Predictor,
    opened: Opened,
    row: int,
    prediction: Any,
    file_name: str,
    ids: CocoIds = NO_IDS,
) -> list[dict[str, Any]]:
    """Return the records of the objects in a row, see `coco_rows`."""
    picture_ids, category_ids = ids
    category_ids = {**getattr(predictor.task.target, "category_ids", {}), **category_ids}
    cell = opened.cells[predictor.task.objects_in][row]
    names: dict[str, Any] = {"file_name": file_name}
    if isinstance(cell, str | Path) and Path(cell) in picture_ids:
        names["image_id"] = picture_ids[Path(cell)]
    records: list[dict[str, Any]] = []
    task: Any = predictor.task
    for item in task.found(prediction, _inputs(opened, row), 0.0):  # of all scores
        record = {**names, "category_name": item["label"]}
        if item["label"] in category_ids:
            record["category_id"] = category_ids[item["label"]]
        size = item["right"] - item["left"], item["bottom"] - item["top"]
        record["bbox"] = [item["left"], item["top"], *map(significant, size)]
        record["score"] = item["score"]
        if "segmentation" in item:
            record["segmentation"] = item["segmentation"]
        records.append(record)
    return records


def check_ids(predictor: Predictor, opened: Opened, output: Path) -> None:
    """Check that a file of answers by their id can be written.

    Raises:
        UserError: If the model does not answer questions, or an id is missing or repeated.
    """
    if not isinstance(predictor.task.target, SpanTarget):
        raise UserError(
            f"output: only a model that answers questions (head=span) can write a file of the "
            f"format {SQUAD}, got {output}; use a .json file"
        )
    ids = list(map(str, opened.ids.get(ID, ())))
    if not ids or len({*ids}) < len(ids):
        reason = "its ids repeat" if ids else f"there is no column {ID}"
        raise UserError(
            f"output: a file of the format {SQUAD} needs a table with one {ID} per question, but "
            f"{reason}; use a .json file"
        )


def write_by_id(chunks: Chunks, path: Path) -> None:
    """Write one object with the text of each answer by its id, "" if there is none."""
    answers: dict[str, str] = {}
    for chunk in chunks():
        part = chunk.select([ID, "prediction"]).to_pylist()
        answers |= {str(row[ID]): row["prediction"] or "" for row in part}
    write_text(path, json_text(answers))


def write_pictures(folder: Path, predictor: Predictor, opened: Opened, batches: Predicted) -> str:
    """Write each picture with the boxes of its objects, or its mask, to a folder.

    Args:
        folder: The folder.
        predictor: The model.
        opened: The pictures.
        batches: The rows and the predictions of each batch.

    Returns:
        The number of pictures as text.

    Raises:
        UserError: If the model does not find objects in pictures.
    """
    from dxn.viz.drawers import get_drawer
    from dxn.viz.marks import marked
    from dxn.viz.sample import shown_inputs

    name = picture_input(predictor, str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    paths: set[Path] = set()
    drawer: Any = get_drawer(predictor.tokenizers[name].modality)
    for rows, predicted in batches:
        for row, prediction in zip(rows, predicted, strict=True):
            if not is_main_process():  # the first one has the answers of all processes
                continue
            cell = opened.cells[name][row]
            stem = Path(cell).stem if isinstance(cell, str | Path) else f"row_{row + 1}"
            path = folder / f"{stem}.png"
            if path in paths:  # two folders can have pictures of the same name
                path = folder / f"{stem}_{row + 1}.png"
            paths.add(path)
            if predictor.task.masks_in:
                mask = predictor.task.answer(prediction, _inputs(opened, row))["mask"]
                path.write_bytes(embedded_file(mask) or b"")
                written += 1
                continue
            raws = {name: opened.raws[name][row]}
            shown = shown_inputs(predictor.adapters, raws, {name: cell})
            if name not in shown:
                continue
            marks: Any = predictor.task.marks(prediction, raws).get(name, ())
            pixels: np.ndarray = marked(drawer.panel(shown[name]).pixels, marks)
            Image.fromarray(pixels).save(path)
            written += 1
    return count(written, "picture")


def _inputs(opened: Opened, row: int) -> dict[str, Any]:
    return {name: cells[row] for name, cells in opened.cells.items()}


def write_frames(output: Path, predictor: Predictor, source: Any) -> str:
    """Write the next frames of one sequence (S, H, W), or of several ones (N, S, H, W).

    Args:
        output: .npy file.
        predictor: A model that forecasts frames.
        source: .npy or .npz file of the sequences, see `dxn.data.series.grid.read_grid`.

    Returns:
        The shape of the array as text.

    Raises:
        UserError: If the model forecasts no frames, or the file cannot be read.
    """
    task: Any = predictor.task
    target = task.target
    if not isinstance(target, FutureValues) or target.frame is None:
        raise UserError(
            f"output: only a model that forecasts frames of cells can write a {ARRAY} file, got "
            f"{output}; use a .csv file"
        )
    if not str(source).lower().endswith(ARRAYS):
        raise UserError(
            f"input: must be a {' or '.join(ARRAYS)} file of frames for output={output}, got "
            f"{source}"
        )
    sequences = read_grid(Path(str(source)))
    samples = predictor.samples([{target.input: sequence} for sequence in sequences])
    predictions = predictor.run(samples)
    order = np.argsort(predictions.rows)
    forecasts = torch.stack([predictions.predicted[i] for i in order])
    middle = task.quantiles.index(0.5)
    frames = forecasts[..., middle].float().unflatten(2, target.frame).numpy(force=True)
    is_one = len(frames) == 1
    array = frames[0] if is_one else frames
    with atomic_file(output) as partial, partial.open("wb") as file:
        np.save(file, array)
    return f"{count(len(frames), 'forecast')}, shape {'×'.join(map(str, array.shape))}"
