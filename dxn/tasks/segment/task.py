"""Segmentation: predict a class for each pixel of a picture, or a mask for each object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.marks import Areas, Mark
from dxn.core.randomness import Probability
from dxn.models.pooling import check_registers
from dxn.tasks.detect.metric import AveragePrecision, best_threshold
from dxn.tasks.detect.target import DEFAULT_THRESHOLD
from dxn.tasks.names import MAX_CLASS_COLUMNS, Balance
from dxn.tasks.segment.head import MaskHead, SegmentHead
from dxn.tasks.segment.instances import (
    FoundMasks,
    Instances,
    ObjectMasks,
    found_masks,
    no_masks,
    object_marks,
)
from dxn.tasks.segment.masks import Mask, data_url, png, sum_of
from dxn.tasks.segment.simple import WHOLE, simple_masks
from dxn.tasks.segment.space import MaskClasses, MaskObjects, PerPixel
from dxn.tasks.segment.target import Overlap, PixelClasses, Segmented, marked_areas
from dxn.tasks.space import Batch, Marked
from dxn.tasks.task import Raws, Task
from dxn.tokenize.base import BadMedia, Placement


@dataclass(kw_only=True, eq=False)
class Segment(Task[PixelClasses]):
    """Predict a class for each pixel of a picture, or a mask for each object.

    The target is a mask: a picture of the same size, whose pixels have the value of their class. It
    can also be a list of objects with polygons or run lengths.

    Args:
        input: Name of the input with the pictures. Default: the first one.
        names: Names of the classes, in the order of their values. Default: the values.
        ignore: Value of the pixels of a mask that have no class; -1: all have one. Default: 255, if
            it is not one of the colors, of black and white, or of evenly spaced levels of gray.
        tile: Height and width in pixels of the parts into which large pictures are divided: a
            random one in each training sample, and at use all of them, with an overlap. 0: they are
            not divided.
        channels: Number of features of a pixel before the last layer.
        balance: Weight of each class in the loss: its inverse frequency (inverse), the root of this
            (root), or the same for all (none).
        dice: Weight of the Dice loss (arXiv:1606.04797), which counts rare classes like others.
        dropout: Dropout probability of the encoded tokens.
        queries: Number of learned tokens that each find a segment: its class and its mask. They are
            the last registers of the fusion, so fusion.registers must be at least as large.
            Default: each token finds the classes of its own pixels.
        upscale: How often the resolution of the tokens is doubled for the masks of queries.
        instances: Whether each query finds one object instead of all pixels of a class. The target
            is then a list of objects, each with a class and polygons or run lengths.
        threshold: Minimum score of an object in answers. Default: the one with the highest F1 of
            the objects on the validation split. The mean average precision uses all objects.
        max_objects: Maximum number of objects of a picture.
    """

    name = "segment"
    refused_augmentation = MappingProxyType(
        {
            "randaugment": "rotates and shears pictures, which masks cannot follow",
            "token_dropout": "leaves out patches, but each pixel needs one",
        }
    )

    input: str = ""
    names: Sequence[str] = ()
    ignore: int | None = None
    tile: Annotated[int, Ge(0)] = 0
    channels: Annotated[int, Ge(1)] = 16
    balance: Balance = "none"
    dice: Annotated[float, Ge(0)] = 0.0
    dropout: Rate = 0.0
    queries: Annotated[int, Ge(0)] = 0
    upscale: Annotated[int, Ge(0), Le(4)] = 2
    instances: bool = False
    threshold: Probability | None = None
    max_objects: Annotated[int, Ge(1)] = 100

    def __post_init__(self):
        if self.instances:
            masks = ObjectMasks(self)
            self.target = masks
            self.space = MaskObjects(masks, self.upscale)
            self.metric = AveragePrecision(masks)
            return
        self.target = PixelClasses(self)
        self.space = PerPixel(self.target, dice=self.dice)
        if self.queries:
            self.space = MaskClasses(self.target, self.upscale)
        self.metric = Overlap(self.target)

    @property
    def masks_in(self) -> str:
        """Name of the input with the pictures, if their pixels have classes."""
        return "" if self.instances else self.target.input

    @property
    def objects_in(self) -> str:
        """Name of the input with the pictures, if their objects have masks."""
        return self.target.input if self.instances else ""

    @property
    def pixel_class(self) -> str:
        """Name of the second class of masks with two classes, see `pixel_probabilities`."""
        labels = () if self.instances else self.target.labels
        return labels[1] if len(labels) == 2 else ""

    def check(self, config: Mapping[str, Any]) -> None:
        """Check the options of the queries.

        Raises:
            UserError: If there are not enough registers, or if an option cannot be combined with
                this task.
        """
        super().check(config)
        registers = config.get("fusion", {}).get("registers") or 0
        check_registers(self.queries, registers, option="head.queries")
        options = (
            ("balance", self.balance, Segment.balance),
            ("dice", self.dice, Segment.dice),
            ("channels", self.channels, Segment.channels),
        )
        for option, value, default in options:
            if self.queries and value != default:
                raise UserError(
                    f"head.{option}: has no effect on queries, which have a loss and features of "
                    f"their own; leave it out, got {value}"
                )
        if self.instances and not self.queries:
            raise UserError(
                "head.instances: needs queries, each of which finds an object; add "
                "head.queries=20 fusion.registers=20"
            )
        if self.threshold is not None and not self.instances:
            raise UserError(
                "head.threshold: has an effect on objects only; leave it out, or set "
                f"head.instances=true, got {self.threshold}"
            )
        semantic = {
            "names": self.names or None,
            "ignore": self.ignore,
            "tile": self.tile or None,
        }
        for option, value in semantic.items():
            if self.instances and value is not None:
                raise UserError(
                    f"head.{option}: cannot be combined with head.instances=true; leave it out, "
                    f"got {value}"
                )

    def marked(self, cells: Sequence[Any]) -> Marked | None:
        """Return the mean height and width of areas of one class, in pixels of the masks.

        Queries have a loss of their own, whose classes cannot be balanced.
        """
        areas = marked_areas(cells)
        if areas is None or self.queries:
            return None if areas is None else Marked(areas.size)
        assert isinstance(self.target, PixelClasses)
        void = self.target.void_of(areas.counts)
        return Marked(areas.size, len(sum_of(areas.counts).keys() - {void}))

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head that maps the tokens of the pictures to logits of each pixel.

        Raises:
            UserError: If queries find the segments, and the patches overlap.
        """
        if self.queries:
            if self.target.grid.size != self.target.grid.stride:
                raise UserError(
                    "head.queries: needs patches that do not overlap; set adapters."
                    f"{self.target.input}.stride=null"
                )
            if self.instances and self.tile:
                raise UserError(
                    "head.instances: an object can lie in several parts of a divided picture, so "
                    f"it cannot be combined with head.tile={self.tile}; use weights for instances "
                    "or panoptic segmentation, or leave out head.instances"
                )
            return MaskHead(self, dim)
        others = pooled_dim if len(adapters) > 1 else 0
        return SegmentHead(self, dim, adapters[self.target.input].plain_values, others)

    def predict(
        self, head: nn.Module, output: Any, batch: Batch, *, draft: bool = False
    ) -> list[Segmented] | list[FoundMasks]:
        """Return the most probable class of each pixel, or the objects, best first."""
        if isinstance(self.target, ObjectMasks):
            assert self.space is not None
            decoded = self.space.decode(output, batch)
            return found_masks(decoded, self.target, batch, self.max_objects)
        return self._segmented(output.argmax(1).byte().cpu(), batch)

    def _segmented(self, classes: Tensor, batch: Batch) -> list[Segmented]:
        """Return the values (B, H, W) of the pixels of a batch, one per picture."""
        part = batch[self.target.input]
        sizes = part["sizes"].tolist()
        placement = self.target.tokenizers[self.target.input].placement(part)
        placements = [tensor.cpu().float() for tensor in placement]
        nothing = torch.zeros(1, 1, dtype=torch.uint8)
        predictions = [Segmented(nothing, WHOLE)] * batch["#size"]
        for i, row in enumerate(part["rows"].tolist()):
            height, width = sizes[i]
            # A copy: a view would keep the padding of the batch.
            picture = classes[row, :height, :width].clone()
            predictions[row] = Segmented(picture, Placement(*(tensor[i] for tensor in placements)))
        return predictions

    def calibrate(self, predictions: Sequence[Any], targets: Sequence[Any]) -> None:
        """Choose the threshold with the highest F1 of the objects, if the user has set none."""
        if isinstance(self.target, ObjectMasks) and self.threshold is None:
            best = best_threshold(predictions, targets, self.target.labels)
            self.target.threshold = DEFAULT_THRESHOLD if best is None else best

    def answer(
        self, prediction: Segmented | FoundMasks, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the share of each class, and the mask as a PNG file in a data URL.

        The mask has the size of the picture if the picture is known, or else that of the prepared
        one, and is written as the masks of the training. "values" are those of its pixels, and
        "colors" those that show it, of each class. "masks_in" is the name of the input with the
        picture.

        Objects have the keys label, score, left, top, right, bottom (in pixels) and segmentation,
        run lengths as in COCO. "objects_in" is then the name of the input.
        """
        if isinstance(prediction, FoundMasks):
            assert isinstance(self.target, ObjectMasks)
            objects = self.found(prediction, inputs, self.target.threshold)
            return {"prediction": objects, "objects_in": self.target.input}
        classes = self._mask(prediction, inputs)
        labels = self.target.labels
        return {
            "prediction": self._shares(classes),
            "mask": data_url(self.target.file(classes)),
            "values": dict(zip(labels, self.target.file_values, strict=True)),
            "colors": dict(zip(labels, self.target.colors, strict=True)),
            "masks_in": self.target.input,
        }

    def pixel_probabilities(
        self, output: Any, batch: Batch, samples: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Return the probability of the second class at each pixel, see `Task`."""
        assert self.space is not None
        second = self.space.decode(output, batch)["probabilities"][:, 1].cpu()
        # One half is 127, so that exactly the pixels of the second class have at least 128.
        levels = ((256 * second).ceil() - 1).clamp(0, 255).byte()
        pictures = zip(self._segmented(levels, batch), samples, strict=True)
        masks = [self._mask(picture, sample) for picture, sample in pictures]
        return [data_url(png(mask, range(256), "L", ())) for mask in masks]

    def found(
        self, prediction: FoundMasks, inputs: Mapping[str, Any] | None, threshold: float
    ) -> list[dict[str, Any]]:
        """Return the objects whose score is at least a threshold, see `answer`."""
        size = self._size(prediction.size, inputs)
        return prediction.objects(self.target.labels, threshold, size)

    def marks(
        self, value: Segmented | Mask | FoundMasks | Instances, raws: Mapping[str, Any]
    ) -> Mapping[str, Sequence[Mark | Areas]]:
        """Return a predicted or true mask, or the objects with their boxes and masks."""
        if isinstance(value, FoundMasks | Instances):
            assert isinstance(self.target, ObjectMasks)
            return {self.target.input: object_marks(value, self.target)}
        labels, colors = self.target.labels, self.target.colors
        if isinstance(value, Segmented):
            return {self.target.input: [Areas(value.at, labels, colors)]}
        true = Segmented(torch.from_numpy(self.target.index_of(value)), WHOLE)
        return {self.target.input: [Areas(true.at, labels, colors, value.size)]}

    def columns(
        self,
        prediction: Segmented | FoundMasks,
        target: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the share of each class, those of the most frequent ones, or objects in JSON."""
        if isinstance(prediction, FoundMasks):
            objects = self.answer(prediction, inputs)["prediction"]
            return {"prediction": json.dumps(objects, ensure_ascii=False)}
        shares = self._shares(self._mask(prediction, inputs))
        if len(self.target.labels) <= MAX_CLASS_COLUMNS:
            return {f"share({name})": shares.get(name, 0.0) for name in self.target.labels}
        return {"prediction": shares}

    def table(
        self,
        prediction: Segmented | FoundMasks,
        target: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return one row with the path of the mask or the objects, if known, and `columns`."""
        truth = {} if target is None else {"target": getattr(target, "key", target)}
        return [truth | self.columns(prediction, target, inputs)]

    def _mask(self, prediction: Segmented, inputs: Mapping[str, Any] | None) -> np.ndarray:
        height, width = prediction.classes.shape
        return prediction.at(self._size((height, width), inputs))

    def _size(self, prepared: tuple[int, int], inputs: Mapping[str, Any] | None) -> tuple[int, int]:
        """Return the height and width of a picture, or of the prepared one if it is gone."""
        source = (inputs or {}).get(self.target.input)
        if source is not None:
            with suppress(BadMedia):
                reader = self.target.tokenizers[self.target.input].reader
                height, width = map(int, reader.extent(source))
                return height, width
        return prepared

    def _shares(self, classes: np.ndarray) -> dict[str, float]:
        counts = np.bincount(classes.ravel(), minlength=len(self.target.labels)) / classes.size
        order = np.argsort(-counts, kind="stable").tolist()
        return {self.target.labels[i]: significant(float(counts[i])) for i in order if counts[i]}

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Any]] | None:
        """Return the most frequent class for every pixel, or no object."""
        if self.instances:
            return "no object", [no_masks()] * len(raws)
        best = int(np.argmax(self.target.frequencies))
        same = Segmented(torch.full((1, 1), best, dtype=torch.uint8), WHOLE)
        return f"always {self.target.labels[best]}", [same] * len(raws)

    def simple_methods(
        self, train: Raws, targets: Sequence[Any], raws: Raws, *, share: float = 1.0
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the most frequent class of each place, and the answers of a random forest."""
        if not self.instances:
            name = self.target.input
            yield from simple_masks(self.target, train[name], targets, raws[name], share)
