"""The target of segmentation, the class of each pixel of a picture, and its metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced
from dxn.core.schema import Strict
from dxn.tasks.detect.objects import check_size
from dxn.tasks.metric import Metric
from dxn.tasks.names import MAX_CLASS_COLUMNS, SHOWN, Names, NamesState
from dxn.tasks.segment.drawn import BACKGROUND, labels_of, read_drawn
from dxn.tasks.segment.masks import MAX_VALUES, Mask, count_values, indexed, names_of, read_mask
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import BadMedia, Placement, Tokenizer
from dxn.tokenize.image.tokenizer import TURNS
from dxn.tokenize.patches import PatchGrid

if TYPE_CHECKING:
    from dxn.tasks.segment.task import Segment

MAX_COUNTED = 2000  # masks in which the pixels of each class are counted
WHITE = 255  # usual value of pixels without a class
MAX_SHOWN = 3  # classes whose metrics are shown in tables


class MaskState(NamesState):
    """The content of labels.json."""

    values: list[int] = Field(min_length=1)
    ignored: int | None = None


class PixelClasses(Names):
    """A class for each pixel of a picture.

    Args:
        task: The task, whose options it reads.

    Attributes:
        values: Value of the pixels of each class, sorted.
        ignored: Value of pixels without a class. None: there is none.
        grid: Patches of the pictures, after `bind`.
    """

    State: ClassVar[type[Strict]] = MaskState
    needs_cells = True

    def __init__(self, task: Segment):
        super().__init__(balance=task.balance)
        self.input = task.input
        self.tile = task.tile
        self.chosen_names = [str(name) for name in task.names]
        self.names_by_value: dict[int, str] = {}
        self.ignore = task.ignore
        self.ignored = task.ignore
        self.values: list[int] = []
        self.counted: dict[str, dict[int, int]] = {}  # pixels of each value, by the key of a mask

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Take over the names of the classes, if the cells have them.

        Raises:
            UserError: If there are other names in the options than those of objects.
        """
        for cell in cells:
            self.names_by_value |= names_of(cell)
        labels = labels_of(cells)
        if labels and self.chosen_names:
            raise UserError(
                f"head.names: the objects already have classes ({', '.join(labels[:SHOWN])}); "
                "remove head.names"
            )
        if labels:
            self.names_by_value = dict(enumerate((BACKGROUND, *labels)))
        return []

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Mask:
        """Return the mask of a row. Only its header is read.

        Args:
            cell: See `read_mask` and `read_drawn`.
            origin: File and row.
            raws: Cells of the inputs.

        Raises:
            UserError: If it is not a mask, or has another size than the picture.
        """
        size = self.size_in(raws)
        if size != (1, 1):
            check_size(cell, origin, size)
        drawn = read_drawn(cell, origin, self._values_by_name(), size)
        if drawn is not None:
            return Mask(origin, drawn, size)
        mask = read_mask(cell, origin)
        if size not in (mask.size, (1, 1)):
            raise UserError(
                f"{origin}: the mask has {mask.size[1]}×{mask.size[0]} pixels, but the picture "
                f"{size[1]}×{size[0]}; both must have the same size"
            )
        return mask

    def size_in(self, raws: Mapping[str, Any]) -> tuple[int, int]:
        """Return the height and width of the picture of a row."""
        name = self.input or pictured(self.tokenizers)
        source = raws.get(name)
        if source is not None:
            with suppress(BadMedia):
                height, width = self.tokenizers[name].reader.extent(source)
                return int(height), int(width)
        return 1, 1  # there is no picture, which is reported for the row

    def _values_by_name(self) -> dict[str, int]:
        if self.labels:
            return dict(zip(self.labels, self.values, strict=True))
        return {name: value for value, name in self.names_by_value.items()}

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the input with the pictures.

        Raises:
            UserError: If there is none.
        """
        self.tokenizers = {name: adapter.tokenizer for name, adapter in adapters.items()}
        name = self.input or pictured(self.tokenizers)
        grid = getattr(adapters.get(name), "grid", None)
        if grid is None or self.tokenizers[name].reader.axes != 2:
            inputs = ", ".join(f"{n} ({t.modality})" for n, t in self.tokenizers.items())
            raise UserError(
                f"head=segment: needs an input of pictures that are divided into patches, got "
                f"{inputs}; set head.input to one"
            )
        if self.tile and len(adapters) > 1:
            raise UserError(
                f"head.tile: needs pictures as the only input, got {', '.join(adapters)}; set "
                "head.tile=0"
            )
        self.grid: PatchGrid = grid
        self.input = name
        self.required = self.prepared_inputs = (name,)

    def fit(self, values: Sequence[Mask]) -> None:
        """Find the classes, and their shares of the pixels.

        Raises:
            UserError: If the masks have no class, more classes than a mask can have, or two classes
                with the same name.
        """
        chosen = list(evenly_spaced(values, MAX_COUNTED))
        counts = self._counts(chosen)
        if self.ignore is None and counts.keys() - {0, WHITE} and WHITE not in self.names_by_value:
            self.ignored = WHITE
        present = sorted(counts.keys() - {self.ignored})
        if not present:
            raise UserError(
                f"data.target: all pixels of the masks are {self.ignored}, which is not a class; "
                "check the masks, or set head.ignore=-1"
            )
        if len(present) > MAX_VALUES:
            raise UserError(
                f"data.target: the masks have {len(present):,} different values, at most "
                f"{MAX_VALUES} are possible; a mask has the same value at all pixels of a class, "
                "which a lossy format such as JPEG changes"
            )
        self.values, self.labels = self._named(present)
        # The classes of a prediction are bytes.
        if len(self.labels) > MAX_VALUES:
            raise UserError(
                f"data.target: the masks have names for {len(self.labels):,} classes, at most "
                f"{MAX_VALUES} are possible; leave out names of classes that no mask contains"
            )
        repeated = [name for name, times in Counter(self.labels).items() if times > 1]
        if repeated:
            raise UserError(
                f"data.target: several classes of the masks have the name {repeated[0]!r}; give "
                "each class another name"
            )
        total = sum(counts[value] for value in present)
        self.frequencies = [counts[value] / total for value in self.values]
        self.class_weights = None
        if self.balance:
            by_name = Counter({n: counts[v] for n, v in zip(self.labels, self.values, strict=True)})
            # A class without any pixel, which only has a name, has no loss.
            weights = [max(by_name[name], 1) for name in self.labels]
            self.class_weights = [total / (len(weights) * weight) for weight in weights]

    def _named(self, present: list[int]) -> tuple[list[int], list[str]]:
        """Return the values of the classes and their names.

        Raises:
            UserError: If there is not one name per class.
        """
        names = self.chosen_names
        if self.names_by_value and not names:
            values = sorted({*present, *self.names_by_value})
            return values, [self.names_by_value.get(value, str(value)) for value in values]
        if not names:
            return present, [str(value) for value in present]
        if present[-1] < len(names):
            return list(range(len(names))), names
        if len(names) != len(present):
            shown = ", ".join(map(str, present[:SHOWN]))
            raise UserError(
                f"head.names: must have one name per class, got {len(names)} names for "
                f"{len(present)} values of pixels ({shown})"
            )
        return present, names

    def index_of(self, mask: Mask) -> np.ndarray:
        """Return the class (H, W) int64 of each pixel, IGNORED where there is none.

        A class that the training split does not have is the number of classes.
        """
        values = mask.values()
        index = indexed(values, self.values, len(self.values))
        return index if self.ignored is None else np.where(values == self.ignored, IGNORED, index)

    def encode(self, value: Mask, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the class (h, w) of each pixel of the prepared picture.

        The mask moves with the picture. IGNORED are pixels outside of it, and those whose class is
        not in the training split. With `tile`, a random part of the picture replaces it in
        training.
        """
        part = sample[self.input]
        if self.tile and rand is not None:
            part = sample[self.input] = cut(part, self.tile, rand)
        height, width = part["sizes"].tolist()
        placement = self.tokenizers[self.input].placement(part)
        turned = np.rot90(value.values(), int(part.get(TURNS, 0)))
        values = mask_at(turned, placement, (height, width))
        index = torch.from_numpy(indexed(values[0], self.values, IGNORED))
        return index.masked_fill(~torch.from_numpy(values[1]), IGNORED)

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        """Pad the classes to (B, H, W) with IGNORED."""
        height, width = (max(target.shape[axis] for target in targets) for axis in (0, 1))
        result = targets[0].new_full((len(targets), height, width), IGNORED)
        for row, target in zip(result, targets, strict=True):
            row[: target.shape[0], : target.shape[1]] = target
        return result

    def describe(self, values: Sequence[Mask]) -> str:
        """Return the number of classes, and their shares of the pixels."""
        counts = self._counts(list(evenly_spaced(values, MAX_COUNTED)))
        total = max(counts.total(), 1)
        names = dict(zip(self.values, self.labels, strict=True))
        parts = [
            f"{names.get(value, value) if names else value} {number / total:.1%}"
            for value, number in counts.most_common(SHOWN)
        ]
        more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
        noun = "value" if len(counts) == 1 else "values"
        return f"masks with {len(counts)} {noun} of pixels ({', '.join(parts)}{more})"

    def unknown(self, values: Sequence[Mask]) -> list[str]:
        """Return nothing: pixels of other classes count as wrong, but the rows are usable."""
        return []

    def _counts(self, masks: Sequence[Mask]) -> Counter[int]:
        total: Counter[int] = Counter()
        for mask in masks:
            if mask.key not in self.counted:
                self.counted[mask.key] = count_values(mask.values())
            total.update(self.counted[mask.key])
        return total


def cut(part: Mapping[str, Tensor], tile: int, rand: Random) -> dict[str, Tensor]:
    """Return a random part of a prepared picture, with at most `tile` rows and columns."""
    height, width = part["sizes"].tolist()
    top, left = (rand.randint(0, max(length - tile, 0)) for length in (height, width))
    return tile_of(part, top, left, tile)


def tile_of(part: Mapping[str, Tensor], top: int, left: int, tile: int) -> dict[str, Tensor]:
    """Return the part of a prepared picture that starts at a pixel, and its place."""
    pixels = part["pixels"][:, top : top + tile, left : left + tile]
    pixel_map = part["pixel_map"].clone()
    pixel_map[:2] += pixel_map[2:4] * torch.tensor([top, left], device=pixel_map.device)
    sizes = (part["sizes"] - part["sizes"].new_tensor([top, left])).clamp(max=tile)
    return {**part, "pixels": pixels, "sizes": sizes, "pixel_map": pixel_map}


def mask_at(
    values: np.ndarray, placement: Placement, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a mask (H, W, ...) at the pixels of a prepared picture.

    Returns:
        The nearest values (h, w, ...), and whether each pixel lies in the mask (h, w).
    """
    rows, columns = (
        _positions(placement, axis, count, values.shape[axis]) for axis, count in enumerate(size)
    )
    inside = [
        (index >= 0) & (index < length)
        for index, length in zip((rows, columns), values.shape[:2], strict=True)
    ]
    height, width = values.shape[:2]
    picked = values[np.ix_(rows.clip(0, height - 1), columns.clip(0, width - 1))]
    return picked, inside[0][:, None] & inside[1]


def _positions(placement: Placement, axis: int, count: int, length: int) -> np.ndarray:
    """Return the row or column (count,) of a mask at each pixel of a prepared picture."""
    origin, scale, unit = (float(tensor[axis]) for tensor in placement)
    fractions = (origin + scale * (np.arange(count) + 0.5) / count) / unit
    return np.floor(fractions * length).astype(np.int64)


def pictured(tokenizers: Mapping[str, Tokenizer]) -> str:
    """Return the name of the first input of pictures, "" if there is none."""
    return next((name for name, tokenizer in tokenizers.items() if tokenizer.reader.axes == 2), "")


@dataclass(frozen=True, slots=True)
class Segmented:
    """The prediction for one picture.

    Args:
        classes: (h, w). Class of each pixel of the prepared picture.
        placement: Where the prepared picture lies in the original one.
    """

    classes: Tensor
    placement: Placement

    def at(self, size: tuple[int, int]) -> np.ndarray:
        """Return the class (H, W) of each pixel of the original picture.

        A pixel that the model has not seen, such as outside of a center crop, has the class of the
        nearest one that it has.
        """
        index = [
            nearest(self.placement, axis, length, self.classes.shape[axis])
            for axis, length in enumerate(size)
        ]
        return self.classes.numpy()[np.ix_(*index)]


def nearest(placement: Placement, axis: int, length: int, count: int) -> np.ndarray:
    """Return the row or column of the prepared picture at each one of the original picture."""
    origin, scale, unit = (float(tensor[axis]) for tensor in placement)
    fractions = ((np.arange(length) + 0.5) / length * unit - origin) / scale
    return np.floor(fractions * count).astype(np.int64).clip(0, count - 1)


class Overlap(Metric):
    """The share of right pixels, and the intersection over union (IoU) of each class.

    All pixels of the original pictures count that have a class.
    """

    target: PixelClasses
    monitored = "miou"
    row: ClassVar = ("pixel_accuracy", "share of right pixels")

    def rows(self, predictions: Sequence[Segmented], targets: Sequence[Mask]) -> Tensor:
        """Count the right, predicted and true pixels of each class.

        All classes that are not in the training split are one more class, which is never predicted.
        """
        count = len(self.target.labels) + 1
        rows = torch.zeros(len(predictions), 3, count, dtype=torch.float64)
        for row, prediction, mask in zip(rows, predictions, targets, strict=True):
            true = self.target.index_of(mask)
            has_class = true != IGNORED
            true, predicted = true[has_class], prediction.at(mask.size)[has_class]
            for i, classes in enumerate((true[true == predicted], predicted, true)):
                row[i] = torch.from_numpy(np.bincount(classes, minlength=count))
        return rows.flatten(1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. The mean is over the classes that are true or predicted."""
        right, predicted, true = sums.unflatten(-1, (3, -1)).unbind(-2)
        iou = right / (predicted + true - right)
        results = {"miou": iou.nanmean(-1), "pixel_accuracy": right.sum(-1) / true.sum(-1)}
        names = self.names
        return results | dict(zip(names, iou.unbind(-1)[: len(names)], strict=True))

    @property
    def names(self) -> list[str]:
        """The names of the metrics of single classes."""
        labels = self.target.labels
        return [f"iou({name})" for name in labels] if len(labels) <= MAX_CLASS_COLUMNS else []

    @property
    def details(self) -> Collection[str]:
        """The metrics of single classes, if there are many."""
        return self.names if len(self.names) > MAX_SHOWN else ()
