"""Detection: find objects in a picture, or events in a sound or series."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.marks import Mark
from dxn.core.randomness import Probability
from dxn.models.pooling import check_registers
from dxn.tasks.detect.head import DetectHead, QueryHead
from dxn.tasks.detect.metric import AveragePrecision, Detected, best_threshold
from dxn.tasks.detect.objects import Objects, Order, read_objects
from dxn.tasks.detect.simple import usual_boxes
from dxn.tasks.detect.space import Detections
from dxn.tasks.detect.target import DEFAULT_THRESHOLD, DetectedObjects, to_places
from dxn.tasks.space import Batch, Marked
from dxn.tasks.task import Raws, Task
from dxn.tokenize.base import BadMedia, Placement

SURPLUS = 5  # candidates per object, before duplicates are left out
PLACES = {1: ("start", "stop"), 2: ("left", "top", "right", "bottom")}


@dataclass(kw_only=True, eq=False)
class Detect(Task[DetectedObjects]):
    """Find the objects of a picture, or the events of a sound or series.

    The target is a list of objects: a class and a box, or the start and the stop of an event.

    Args:
        input: Name of the input in which the objects are. Default: the first one with coordinates.
        order: What the four numbers of a box are: corners (left, top, right, bottom), size (left,
            top, width, height) or center (center x, center y, width, height). Default: that follows
            from their key, such as bbox, which has a size.
        threshold: Minimum score of an object in answers. Default: the one with the highest F1 of
            the objects on the validation split. The mean average precision uses all objects.
        max_objects: Maximum number of objects of a sample.
        duplicate: Overlap (intersection over union) from which the object with the lower score of
            two objects of a class is a duplicate, which is left out. Learned queries need none.
        dropout: Dropout probability of the encoded tokens.
        queries: Number of learned tokens that find the objects. They are the last registers of the
            fusion, so fusion.registers must be at least as large. Default: each token of the input
            finds the objects near to it.
    """

    name = "detect"
    refused_augmentation = MappingProxyType(
        {
            "randaugment": "rotates and shears pictures, which boxes cannot follow",
            "turn": "turns pictures, which boxes do not follow",
        }
    )

    input: str = ""
    order: Order | None = None
    threshold: Probability | None = None
    max_objects: Annotated[int, Ge(1)] = 100
    duplicate: Probability = 0.6
    dropout: Rate = 0.0
    queries: Annotated[int, Ge(0)] = 0

    def __post_init__(self):
        self.target = DetectedObjects(self)
        self.space = Detections(self.target, once=self.queries > 0)
        self.metric = AveragePrecision(self.target)

    @property
    def objects_in(self) -> str:
        """Name of the input in which the objects are."""
        return self.target.input

    def check(self, config: Mapping[str, Any]) -> None:
        """Check that there are enough registers for the queries.

        Raises:
            UserError: If there are not, or if an option cannot be combined with this task.
        """
        super().check(config)
        registers = config.get("fusion", {}).get("registers") or 0
        check_registers(self.queries, registers, option="head.queries")

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that maps each token of the input, or each query, to an object."""
        if self.queries:
            return QueryHead(self, dim)
        return DetectHead(self, dim, pooled_dim if len(adapters) > 1 else 0)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Detected]:
        """Return the objects of each sample with the highest scores, best first."""
        assert self.space is not None
        decoded = self.space.decode(output, batch)
        scores, boxes = decoded["scores"].cpu(), decoded["boxes"].cpu()
        part = batch[self.target.input]
        tokenizer = self.target.tokenizers[self.target.input]
        placements = [tensor.cpu().float() for tensor in tokenizer.placement(part)]
        num_classes = scores.shape[2]
        nothing = Detected(
            torch.zeros(0).long(), torch.zeros(0), boxes.new_zeros(0, boxes.shape[2])
        )
        predictions = [nothing] * batch["#size"]
        for i, row in enumerate(part["rows"].tolist()):
            count = self.max_objects * (1 if self.queries else SURPLUS)
            best = scores[row].flatten().topk(min(count, scores[row].numel()))
            chosen = boxes[row][best.indices // num_classes].clamp(0, 1)
            classes = best.indices % num_classes
            selected = torch.arange(len(classes))
            if not self.queries:
                selected = without_duplicates(chosen, best.values, classes, self.duplicate)
                selected = selected[: self.max_objects]
            placement = Placement(*(tensor[i] for tensor in placements))
            places = to_places(chosen[selected], placement)
            if places.shape[1] == 4:  # a prepared picture can have an edge outside of the picture
                places = places.clamp(0, 1)
            predictions[row] = Detected(classes[selected], best.values[selected], places)
        return predictions

    def calibrate(self, predictions: Sequence[Detected], targets: Sequence[Objects]) -> None:
        """Choose the threshold with the highest F1 of the objects, if the user has set none."""
        if self.threshold is None:
            best = best_threshold(predictions, targets, self.target.labels)
            self.target.threshold = DEFAULT_THRESHOLD if best is None else best

    def answer(
        self, prediction: Detected, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the objects whose score is at least the threshold, best first.

        A box has the keys left, top, right and bottom, in pixels if the picture is known, and
        otherwise as fractions of it; an event has start and stop. "objects_in" is the name of the
        input.
        """
        objects = self.found(prediction, inputs, self.target.threshold)
        return {"prediction": objects, "objects_in": self.target.input}

    def found(
        self, prediction: Detected, inputs: Mapping[str, Any] | None, threshold: float
    ) -> list[dict[str, Any]]:
        """Return the objects whose score is at least a threshold, see `answer`."""
        axes = prediction.boxes.shape[1] // 2
        extent: Sequence[float] = (1.0,) * axes
        source = (inputs or {}).get(self.target.input)
        reader = self.target.tokenizers[self.target.input].reader
        if source is not None and reader.relative:
            # A picture that is gone leaves fractions.
            with suppress(BadMedia):
                extent = reader.extent(source)
        is_answer = prediction.scores >= threshold
        boxes = prediction.boxes[is_answer].double() * torch.tensor([*extent, *extent])
        objects: list[dict[str, Any]] = []
        for index, score, box in zip(
            prediction.classes[is_answer].tolist(),
            prediction.scores[is_answer].tolist(),
            boxes,
            strict=True,
        ):
            start, stop = (part.flip(0).tolist() for part in box.chunk(2))
            places = dict(zip(PLACES[axes], map(significant, [*start, *stop]), strict=True))
            label = self.target.labels[index]
            objects.append({"label": label, "score": significant(score), **places})
        return objects

    def marked(self, cells: Sequence[Any]) -> Marked | None:
        """Return the median height and width of the boxes, or the median duration of events."""
        for axes in (2, 1):
            sizes: list[list[float]] = []
            for cell in cells:
                # A cell that cannot be read is reported later.
                with suppress(UserError):
                    objects = read_objects(cell, "", axes=axes, order=self.order)
                    sizes += [np.subtract(box[axes:], box[:axes]).tolist() for box in objects.boxes]
            if sizes:
                return Marked(tuple(np.median(sizes, 0).tolist()))
        return None

    def marks(self, value: Detected | Objects, raws: Mapping[str, Any]) -> dict[str, list[Mark]]:
        """Return the boxes of predicted or true objects in a picture, or the events."""
        labels = list(self.target.labels)
        marks: list[Mark] = []
        if isinstance(value, Objects):
            for label, box in zip(value.labels, value.boxes, strict=True):
                index = labels.index(label) if label in labels else len(labels)
                marks.append(Mark(label, index, box))
            return {self.target.input: marks}
        is_answer = value.scores >= self.target.threshold
        classes, boxes = value.classes[is_answer].tolist(), value.boxes[is_answer].tolist()
        for index, box, score in zip(classes, boxes, value.scores[is_answer].tolist(), strict=True):
            marks.append(Mark(labels[index], index, tuple(box), score))
        return {self.target.input: marks}

    def columns(
        self, prediction: Detected, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the objects as a text in JSON."""
        objects = self.answer(prediction, inputs)["prediction"]
        return {"prediction": json.dumps(objects, ensure_ascii=False)}

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the options of `dxn/export/programs/objects.py`, if the objects have boxes."""
        labels = super().recipe(head)
        if len(self.target.usual_size) != 2:
            return labels
        return {
            **labels,
            "decode": "objects",
            "input": self.target.input,
            "threshold": self.target.threshold,
            "max_objects": self.max_objects,
            "duplicate": 1.0 if self.queries else self.duplicate,
        }

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Detected]] | None:
        """Return no object for every row."""
        axes = len(self.target.usual_size)
        nothing = Detected(torch.zeros(0).long(), torch.zeros(0), torch.zeros(0, 2 * axes))
        return "no object", [nothing] * len(raws)

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the usual boxes of each class for every row."""
        boxes = usual_boxes(self.target.labels, targets, len(self.target.usual_size))
        yield "usual boxes", [boxes] * len(raws[self.target.input])


def without_duplicates(boxes: Tensor, scores: Tensor, classes: Tensor, duplicate: float) -> Tensor:
    """Return the indices of the boxes (n, 2A) that are no duplicates, best first.

    Args:
        boxes: Boxes as fractions.
        scores: (n,).
        classes: (n,). Boxes of different classes are no duplicates.
        duplicate: See `Detect`.
    """
    from torchvision.ops import batched_nms  # it takes time to import

    if boxes.shape[1] == 2:  # intervals are boxes of the same height
        zeros = torch.zeros_like(boxes[:, :1])
        boxes = torch.cat([boxes[:, :1], zeros, boxes[:, 1:], zeros + 1], 1)
    return batched_nms(boxes, scores, classes, duplicate)
