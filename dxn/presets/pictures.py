"""Options of pictures in which published encoders find objects or the class of each pixel.

Most encoders read the center of a picture, which is enough for one answer per picture. Answers
about its parts need the whole picture, in a size that consists of whole patches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dxn.core.randomness import evenly_spaced, spaced_rows
from dxn.data.rows import FIT_ROWS, TARGET
from dxn.presets.finetuning import tokens_of
from dxn.presets.rules import (
    ENOUGH_PICTURES,
    ENOUGH_VIEWS,
    PER_AREA,
    PER_OBJECT,
    Advice,
    is_chosen,
    shorter_side,
)
from dxn.tasks.space import AnswerKind
from dxn.tokenize.base import BadMedia, Reader

if TYPE_CHECKING:
    from dxn.presets.preset import Situation

OF_PARTS = (AnswerKind.OBJECTS, AnswerKind.PIXELS)
MODALITY = "image"
CROP = "crop"
WITH_CENTER = (CROP, "stretch")  # how encoders of whole pictures resize them
MAX_PICTURES = 200  # that are inspected
# Patches along the longer side of a picture. Published encoders have learned positions of 14 to 37
# patches, between which the positions are interpolated.
MIN_PATCHES, MAX_PATCHES = 16, 37
# Pictures can be stretched to one size if the ratios of their sides differ by at most this factor.
ALIKE = 1.15
# Time of a step without the backward pass of the encoder, relative to that of all weights.
FROZEN_TIME = 1 / 3


@dataclass(frozen=True)
class Pictures:
    """What is known about the pictures.

    Args:
        height: Usual height in pixels.
        width: Usual width in pixels.
        is_alike: Whether the ratio of the sides of nearly all of them is about the same.
        patch_size: Height and width of a patch of the encoder.
        object_size: Height and width, see `dxn.presets.rules.Facts`.
        kind: What a row gets.
    """

    height: int
    width: int
    is_alike: bool
    patch_size: int
    object_size: Sequence[float]
    kind: AnswerKind

    @property
    def about(self) -> str:
        """What is known, in words."""
        size = "×".join(f"{length:.3g}" for length in self.object_size)
        what = "areas" if self.kind is AnswerKind.PIXELS else "objects"
        return (
            f"images of usually {self.height}×{self.width} pixels, {what} of usually {size}, "
            f"patches of {self.patch_size}"
        )

    def size(self, count: int) -> tuple[int, int]:
        """Return the height and width in whole patches, with `count` along the longer side."""
        longer = max(self.height, self.width)
        sides = (max(round(count * side / longer), 1) for side in (self.height, self.width))
        height, width = (self.patch_size * patches for patches in sides)
        return height, width

    def num_patches(self, size: Sequence[int]) -> int:
        """Return the number of patches of a picture of this height and width."""
        return math.prod(side // self.patch_size for side in size)

    def options(self, rows: int, views_within_limit: Callable[[int], float]) -> dict[str, Any]:
        """Return the options of the adapter.

        Args:
            rows: Number of training rows.
            views_within_limit: Function of the number of patches of a picture: how many pictures
                can be seen within the time limit.
        """
        longer = max(self.height, self.width)
        smallest = shorter_side(self.object_size, self.height, self.width)
        if self.kind is AnswerKind.PIXELS:
            least = math.ceil(longer * PER_AREA / smallest / self.patch_size)
        else:
            least = math.ceil(longer * PER_OBJECT / smallest)
        least = min(max(least, MIN_PATCHES), MAX_PATCHES)
        most = max(min(math.ceil(longer / self.patch_size), MAX_PATCHES), least)
        enough = min(ENOUGH_VIEWS * rows, ENOUGH_PICTURES)
        sizes = [self.size(count) for count in range(most, least - 1, -1)]
        fitting = (s for s in sizes if views_within_limit(self.num_patches(s)) >= enough)
        size = list(next(fitting, sizes[-1]))
        # Larger pictures keep the ratio of their sides. Smaller ones would not be enlarged.
        is_within = not self.is_alike and max(size) <= longer
        return {
            "image_size": max(size) if is_within else size,
            "resize.mode": "within" if is_within else "stretch",
            "resize.crop_ratio": 1.0,
            "resize.pad_end": True,
            "augment.flip": True,
            "augment.zoom": 0.5,
            **({"augment.jitter": 0.3} if self.kind is AnswerKind.PIXELS else {}),
        }


def advise_pictures(situation: Situation) -> tuple[list[Advice], float]:
    """Return options of pictures in whose parts a published encoder finds the answers.

    Returns:
        The options, and the time of a training step with them, relative to that with the size in
        the configuration.
    """
    config, chosen, rows = situation.config, situation.chosen, situation.source.num_training_rows
    found = _pictures(situation)
    if not found:
        return [], 1.0
    nodes = {key: reading_node(config["adapters"][key]) for key in found}
    before = {key: tokens_of(MODALITY, node, ()) for key, node in nodes.items()}
    tune = config["finetune"]
    is_frozen = not tune["lora_rank"] and (tune["freeze"] == "all" or not situation.is_kind_chosen)
    seconds = (FROZEN_TIME if is_frozen else 1.0) * situation.members * situation.seconds
    limit = situation.finetuning_minutes

    def views_within_limit(patches: int) -> float:
        if limit is None:
            return math.inf
        return 60 * limit * sum(before.values()) / (seconds * patches * len(found))

    advice: list[Advice] = []
    after = 0.0
    for key, pictures in found.items():
        # An adapter with an encoder, or with the name of a column, has the options of another key.
        options = {
            name: value
            for name, value in pictures.options(rows, views_within_limit).items()
            if not any(is_chosen(f"adapters.{k}.{name}", chosen) for k in (key, MODALITY))
        }
        if nodes[key].get("image_size") is None and "resize.mode" in options:
            options["resize.mode"] = "within"  # the only one without a size
        inner = ".adapter" if nodes[key] is not config["adapters"][key] else ""
        prefix = f"adapters.{key}{inner}"
        advice += [Advice(f"{prefix}.{k}", value, pictures.about) for k, value in options.items()]
        after += tokens_of(MODALITY, {**nodes[key], **options}, ())
    return advice, after / sum(before.values())


def reading_node(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the adapter that reads the pictures: with an encoder, the inner one."""
    return node.get("adapter") or node


def notes_on_crops(
    config: Mapping[str, Any],
    kind: AnswerKind | None,
    readers: Mapping[str, Reader],
    keys: Container[str],
) -> list[str]:
    """Say which adapters cut off parts of pictures that have answers.

    Args:
        config: The configuration.
        kind: What a row gets.
        readers: The readers of the inputs, by the key of their adapter in the configuration.
        keys: Keys of adapters that the user can set. That of a column with its own encoder is new,
            and gets the options of its modality.
    """
    if kind not in OF_PARTS:
        return []
    nodes = {key: reading_node(config["adapters"][key]) for key in readers}
    return [
        f"adapters.{key if key in keys else MODALITY}.resize.mode={CROP} cuts off the borders of "
        "pictures, in which nothing is found; set stretch, or within"
        for key, node in nodes.items()
        if readers[key].modality == MODALITY and (node.get("resize") or {}).get("mode") == CROP
    ]


def _pictures(situation: Situation) -> dict[str, Pictures]:
    """Return the pictures that a published encoder of whole ones reads, by their adapter."""
    kind, weights, config = situation.task.answer_kind, situation.weights, situation.config
    if kind not in OF_PARTS or weights is None:
        return {}
    train = situation.source.splits["train"]
    rows = train.take(spaced_rows(len(train), FIT_ROWS)) if len(train) > FIT_ROWS else train
    marked = situation.task.marked(rows.cells.get(TARGET, ()))
    # A checkpoint that finds objects or classes itself knows the size of its pictures.
    of_wholes = [
        reading_node(node).get("resize", {}).get("mode") in WITH_CENTER
        for public in weights.checkpoints
        for node in public.architecture.adapters.values()
    ]
    if marked is None or len(marked.size) != 2 or not any(of_wholes):
        return {}
    found: dict[str, Pictures] = {}
    for key in dict.fromkeys(situation.nodes.values()):
        node = config["adapters"][key]
        is_encoded = weights.main is not None or "backbone" in node
        if situation.readers[key].modality != MODALITY or not is_encoded:
            continue
        names = [name for name in situation.nodes if situation.nodes[name] == key]
        cells = [cell for name in names for cell in rows.cells.get(name, ()) if cell is not None]
        chosen = list(evenly_spaced(cells, MAX_PICTURES))
        pictures = read_pictures(chosen, reading_node(node), marked.size, kind)
        if pictures is not None:
            found[key] = pictures
    return found


def read_pictures(
    cells: Sequence[Any], node: Mapping[str, Any], object_size: Sequence[float], kind: AnswerKind
) -> Pictures | None:
    """Return what is known about pictures. None: no cell can be read.

    Args:
        cells: Paths, bytes, PIL images or arrays.
        node: Options of the adapter that reads them.
        object_size: See `Pictures`.
        kind: See `Pictures`.
    """
    from dxn.tokenize.image.reader import image_size

    sizes: list[tuple[int, int]] = []
    for cell in cells:
        try:
            sizes.append(image_size(cell))
        except (BadMedia, ValueError):  # reported when the rows are read
            continue
    if not sizes:
        return None
    heights, widths = zip(*sizes, strict=True)
    ratios = sorted(width / height for height, width in sizes)
    # A few pictures of another format do not matter.
    tenth = len(ratios) // 10
    return Pictures(
        round(statistics.median(heights)),
        round(statistics.median(widths)),
        ratios[-1 - tenth] <= ALIKE * ratios[tenth],
        node["patch_size"],
        object_size,
        kind,
    )
