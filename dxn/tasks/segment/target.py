"""The target of segmentation, the class of each pixel of a picture, and its metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced
from dxn.core.schema import Strict
from dxn.tasks.detect.objects import check_size, note_on_rows
from dxn.tasks.infer import COLOR
from dxn.tasks.metric import Metric
from dxn.tasks.names import MAX_CLASS_COLUMNS, SHOWN, Names, NamesState
from dxn.tasks.segment.drawn import (
    BACKGROUND,
    Drawn,
    check_units,
    extent,
    labels_of,
    read_drawn,
)
from dxn.tasks.segment.masks import (
    MAX_VALUES,
    WHITE,
    Mask,
    color_of,
    count_values,
    decode,
    indexed,
    is_void,
    name_of_value,
    names_of,
    note_on_edges,
    note_on_white,
    palette,
    png,
    read_mask,
    sum_of,
)
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import BadMedia, Placement, Tokenizer
from dxn.tokenize.image.tokenizer import TURNS
from dxn.tokenize.patches import PatchGrid

if TYPE_CHECKING:
    from dxn.tasks.segment.task import Segment

MAX_MEASURED = 200  # masks of which areas are measured
MAX_COUNTED = 2000  # masks of objects that are drawn to count the pixels of each class
MAX_GRAY = 65535  # largest value in a PNG file
MAX_SHOWN = 3  # classes whose metrics are shown in tables
UNUSED = "without a pixel inside of the picture, which are not used"


class MaskState(NamesState):
    """The content of labels.json."""

    values: list[int] = Field(min_length=1)
    ignored: int | None = None
    mode: str = ""
    palette: list[int] = Field(default_factory=list)


class PixelClasses(Names):
    """A class for each pixel of a picture.

    Args:
        task: The task, whose options it reads.

    Attributes:
        values: Value of the pixels of each class, sorted.
        ignored: Value of pixels without a class. None: there is none.
        mode: How most masks are written, see `dxn.tasks.segment.masks.MODES`.
        palette: Red, green and blue of each index, if masks have a palette.
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
        self.mode = ""
        self.palette: list[int] = []
        self.unused: Counter[str] = Counter()  # objects without a pixel, by row
        self.counted: dict[str, dict[int, int]] = {}  # pixels of each value, by the key of a mask

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Take over the names of the classes, if the cells have them.

        Raises:
            UserError: If there are other names in the options than those of objects.
        """
        check_units(cells)
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
        """Return the mask of a row, whose values are counted.

        Args:
            cell: See `read_mask` and `read_drawn`.
            origin: File and row.
            raws: Cells of the inputs.

        Raises:
            UserError: If it is not a mask, is damaged, or has another size than the picture.
        """
        size = self.size_in(raws)
        if size != (1, 1):
            check_size(cell, origin, size)
        drawn = read_drawn(cell, origin, self._values_by_name(), size, self.unused)
        if drawn is not None:
            return Mask(origin, drawn, size)
        mask = read_mask(cell, origin)
        if size not in (mask.size, (1, 1)):
            raise UserError(
                f"{origin}: the mask has {mask.size[1]}×{mask.size[0]} pixels, but the picture "
                f"{size[1]}×{size[0]}; both must have the same size"
            )
        # Now, because only then a damaged one is a bad row, and no value is unknown later.
        try:
            self._count(mask)
        except BadMedia as error:
            raise UserError(f"{origin}: the mask cannot be used: {error}") from error
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
        # With an encoder, its adapter divides the pictures.
        inner = adapters[name].plain_values if name in adapters else None
        grid = getattr(inner, "grid", None)
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
        counts = self._counts(values)
        total = sum_of(counts)
        self.ignored = self.void_of(counts)
        self._find_mode(values, max(total, default=0))
        present = sorted(total.keys() - {self.ignored})
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
        num_pixels = sum(total[value] for value in present)
        self.frequencies = [total[value] / num_pixels for value in self.values]
        self.class_weights = None
        if self.balance != "none":
            pairs = zip(self.labels, self.values, strict=True)
            by_name = Counter({name: total[value] for name, value in pairs})
            self.class_weights = self.weights(by_name, len(values))

    def _named(self, present: list[int]) -> tuple[list[int], list[str]]:
        """Return the values of the classes and their names.

        Raises:
            UserError: If there is not one name per class.
        """
        names = self.chosen_names
        mode = self.mode if present[-1] >= COLOR else ""
        if self.names_by_value and not names:
            values = sorted({*present, *self.names_by_value})
            named = {value: name_of_value(value, mode) for value in values}
            return values, list({**named, **self.names_by_value}.values())
        if not names:
            return present, [name_of_value(value, mode) for value in present]
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

    def file(self, classes: np.ndarray) -> bytes:
        """Return a PNG file with the classes (H, W) of pixels, as in the masks of the training."""
        colors = self.palette or self._colors_by_value()
        return png(classes, self.file_values, self.mode, colors)

    @property
    def file_values(self) -> Sequence[int]:
        """The value of each class in a file, its index if a PNG file cannot have its value."""
        fits = self.mode == "RGB" or self.values[-1] <= MAX_GRAY
        return self.values if fits else range(len(self.values))

    @property
    def colors(self) -> list[str]:
        """The color of each class: that of the masks, or one of a list if they have none."""
        written = [color_of(value) for value in self.values] if self.mode == "RGB" else []
        if self.palette:
            parts = [self.palette[3 * value : 3 * value + 3] for value in self.values]
            written = [(*part,) for part in parts]
        if len({*written}) < len(self.values) or not all(map(len, written)):
            channels = palette(len(self.values))
            written = [(*channels[3 * i : 3 * i + 3],) for i in range(len(self.values))]
        return [f"#{bytes(color).hex()}" for color in written]

    def _colors_by_value(self) -> list[int]:
        """Return red, green and blue of each value up to 255."""
        channels = [0] * (3 * COLOR)
        for value, color in zip(self.values, self.colors, strict=True):
            if value < COLOR:
                channels[3 * value : 3 * value + 3] = bytes.fromhex(color[1:])
        return channels

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        """Pad the classes to (B, H, W) with IGNORED."""
        height, width = (max(target.shape[axis] for target in targets) for axis in (0, 1))
        result = targets[0].new_full((len(targets), height, width), IGNORED)
        for row, target in zip(result, targets, strict=True):
            row[: target.shape[0], : target.shape[1]] = target
        return result

    def describe(self, values: Sequence[Mask]) -> str:
        """Return the number of classes, their shares of the pixels, and what is unusual."""
        counts = self._counts(values)
        total = sum_of(counts)
        num_pixels = max(total.total(), 1)
        names = dict(zip(self.values, self.labels, strict=True)) or self.names_by_value
        is_color = max(total, default=0) >= COLOR and any(mask.mode == "RGB" for mask in values)
        mode = "RGB" if is_color else ""
        parts = [
            f"{names.get(value, name_of_value(value, mode))} {number / num_pixels:.1%}"
            for value, number in total.most_common()
        ]
        noun = "value" if len(total) == 1 else "values"
        line = f"masks with {len(total)} {noun} of pixels ({list_names(parts, SHOWN)})"
        ignored = self.ignored if self.labels else self.void_of(counts)
        notes = [note_on_white(counts, ignored), note_on_edges(total, ignored)]
        unnamed = sorted(total.keys() - names.keys() - {ignored}) if names else []
        if unnamed:
            shown = list_names([name_of_value(value, mode) for value in unnamed], MAX_SHOWN)
            notes.append(f"{count(len(unnamed), 'value')} without a name ({shown})")
        notes += [self._other_colors(values, [*total]), note_on_rows(self.unused, UNUSED)]
        return "; ".join([line, *filter(None, notes)])

    def unknown(self, values: Sequence[Mask]) -> list[str]:
        """Return another value of each mask that has such values and at most one known one.

        A single one is usually the background, which masks of 0 and 1 and of 0 and 255 share. In
        masks of 0 and 255 alone, 255 is not a value that is ignored.
        """
        known = {*self.values, self.ignored}
        names: list[str] = []
        for mask in values:
            counts = {} if isinstance(mask.source, Drawn) else self._count(mask)
            others = counts.keys() - known
            if counts.keys() == {0, WHITE}:
                others = {WHITE} - {*self.values}
            if others and len(counts) - len(others) <= 1:
                mode = mask.mode if max(counts) >= COLOR else ""
                names.append(name_of_value(max(others, key=counts.__getitem__), mode))
        return names

    def _count(self, mask: Mask) -> Mapping[int, int]:
        """Return the number of pixels with each value of a mask."""
        if mask.key not in self.counted:
            self.counted[mask.key] = count_values(decode(mask.source))
        return self.counted[mask.key]

    def _counts(self, masks: Sequence[Mask]) -> list[Mapping[int, int]]:
        """Return the number of pixels with each value, of all masks that are files or arrays.

        It takes time to draw others, whose classes are known, so only some of these are counted.
        """
        drawn = [mask for mask in masks if isinstance(mask.source, Drawn)]
        others = [mask for mask in masks if not isinstance(mask.source, Drawn)]
        return [self._count(mask) for mask in (*others, *evenly_spaced(drawn, MAX_COUNTED))]

    def void_of(self, counts: Sequence[Mapping[int, int]]) -> int | None:
        """Return the value of pixels without a class, from the values of each mask."""
        if self.ignore is not None or WHITE in self.names_by_value:
            return self.ignore
        return WHITE if is_void(counts) else None

    def _other_colors(self, masks: Sequence[Mask], used: Sequence[int]) -> str:
        """Say whether an index has different colors in the palettes of several masks."""
        palettes = {mask.palette for mask in masks if mask.palette}
        for value in sorted(used):
            colors = {palette[3 * value : 3 * value + 3] for palette in palettes} - {b""}
            if len(colors) > 1:
                shown = " and ".join(f"#{color.hex()}" for color in sorted(colors)[:2])
                return (
                    f"the index {value} is {shown} in the palettes of different masks, but one "
                    "class; if the colors are the classes, save the masks without palettes"
                )
        return ""

    def _find_mode(self, masks: Sequence[Mask], largest: int) -> None:
        """Find out how predicted masks are written: as most of the masks are."""
        modes = Counter((mask.mode, mask.palette) for mask in masks)
        if largest >= COLOR:  # only such masks can have these values
            modes = Counter({key: n for key, n in modes.items() if key[0] in ("RGB", "I;16")})
        (self.mode, colors), _ = modes.most_common(1)[0] if modes else (("", b""), 0)
        self.palette = list(colors)


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


class Areas(NamedTuple):
    """What some masks contain.

    Attributes:
        size: Mean height and width of areas of one class, the mean lengths of the runs of its
            pixels along both axes.
        counts: Number of pixels of each value, for each mask.
    """

    size: tuple[float, float]
    counts: list[dict[int, int]]


def marked_areas(cells: Sequence[Any]) -> Areas | None:
    """Measure the areas of the cells of a target, of which at most MAX_MEASURED are read.

    Returns:
        None if no cell can be read.
    """
    runs, counts = [0, 0], list[dict[int, int]]()
    for cell in evenly_spaced(cells, MAX_MEASURED):
        # A cell that cannot be read is reported later.
        with suppress(UserError, BadMedia):
            drawn = read_drawn(cell, "", {}, extent(cell), Counter())
            values = decode(read_mask(cell, "").source if drawn is None else drawn)
            present, numbers = np.unique(values, return_counts=True)
            counts.append(dict(zip(present.tolist(), numbers.tolist(), strict=True)))
            for axis in range(2):
                changes = np.count_nonzero(np.diff(values, axis=axis))
                runs[axis] += changes + values.shape[1 - axis]
    pixels = sum(sum_of(counts).values())
    return Areas((pixels / runs[0], pixels / runs[1]), counts) if pixels else None


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
