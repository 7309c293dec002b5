"""Options that suit the data (preset=auto): the rules of each modality, and what they know.

benchmarks/studies/presets.md lists the rules, and the measurements behind them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.tasks.space import AnswerKind
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.scripts import count_words

# Key and value of the choice of optimizer=muon.
MUON = ("optimizer._target_", "dxn.training.optim.muon")


@dataclass(frozen=True)
class Advice:
    """A recommended value of an option.

    Args:
        key: Dotted key of the configuration.
        value: The value.
        reason: What the data shows, for the line that is printed.
        follows: Key of an earlier advice. If the user has set another value of it, this advice is
            wrong. "": there is none.
    """

    key: str
    value: Any
    reason: str
    follows: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known about a training before any file is read.

    Args:
        rows: Number of training rows.
        num_inputs: Number of inputs of the model.
        num_files: Number of inputs that are files or texts, and not columns of a table.
        prefix: Key of the adapter's options, such as "adapters.text".
        kind: What a row gets.
        object_size: Usual height and width of the objects that are to be found, in pixels, or as
            fractions if both are at most 1; or of areas of one class in masks, in pixels; or the
            usual duration of events. None: the targets are none of these.
        num_classes: Number of values of the pixels of masks, see `dxn.tasks.space.Marked`.
        minutes: Time limit of the training.
        epochs_within_limit: Function of the mean number of tokens of a sample: how many epochs fit
            into the time limit of the training, from the measured speed of the backbone.
        has_frames: Whether the series that is continued consists of frames of cells.
    """

    rows: int
    num_inputs: int
    num_files: int
    prefix: str = ""
    kind: AnswerKind | None = None
    object_size: Sequence[float] | None = None
    num_classes: int = 0
    minutes: float = 5.0
    epochs_within_limit: Callable[[float], float] = lambda tokens: math.inf
    has_frames: bool = False

    def advice(self, options: Mapping[str, Any], about: str) -> list[Advice]:
        """Return values of options of the adapter as advice."""
        return [Advice(f"{self.prefix}.{name}", value, about) for name, value in options.items()]


def is_chosen(key: str, chosen: frozenset[str]) -> bool:
    """Whether the user has set a dotted key, a part of it, or the group that contains it."""
    parts = key.split(".")
    # adapters=[text] chooses which adapters there are, and head=segment the task, and not their
    # options.
    above = {".".join(parts[:i]) for i in range(1, len(parts) + 1)} - {"adapters", "head"}
    return any(name in above or name.startswith(f"{key}.") for name in chosen)


# Texts

# Each word of a text has an answer, for which the words around it matter.
PER_TOKEN = (AnswerKind.TAGS, AnswerKind.SPAN)
# Names, which are often tagged, are rarely repeated, but their subwords are.
TAGGED = {
    "tokenizer.kind": "bpe",
    "vocab_size": 4_000,
    "conv_kernel": 3,
    "dropout": 0.3,
    "augment.token_mask": 0.15,
    "augment.subword_dropout": 0.1,
}
MAX_ROWS = 50_000  # training rows up to which single words are regularized strongly
MIN_WORDS = 2  # fewer: names and single words, whose letters tell more than the word
MAX_WORD_CHARS = 12  # more: codes and addresses, which keep their subwords
LONG_TEXT = 100  # words of a text from which its mean vector tells more than the maximum
VOCAB_SIZE = 16_000
MAX_READ = 256  # words that are read, see TextAdapter
# A transformer needs this many epochs. If fewer fit into the time limit, neighboring words are
# pooled, so that a text has a half, a quarter or an eighth of the columns.
ENOUGH_EPOCHS = 20
POOLS = (1, 2, 4, 8)
WORD_DROPOUT, CHARACTER_DROPOUT = 0.5, 0.2


def advise_text(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for classifying texts.

    Args:
        cells: Texts or lists of words.
        facts: What is known about the training.
    """
    texts = [cell if isinstance(cell, str) else " ".join(map(str, cell)) for cell in cells]
    counts = [count_words(text) for text in texts]
    words = statistics.median(counts)
    chars = sum(map(len, texts)) / max(sum(counts), 1)
    has_several_words = words >= MIN_WORDS
    is_alone = facts.num_files == 1
    if facts.rows > MAX_ROWS or words < 1 or chars > MAX_WORD_CHARS:
        return []
    if not (has_several_words or is_alone):
        return []
    unit = "word" if words == 1 else "words"
    about = f"{facts.rows:,} texts with a median of {words:g} {unit}"
    if facts.kind is AnswerKind.SPAN:
        return facts.advice({"tokenizer.kind": "word", "conv_kernel": 3}, about)
    if facts.kind is AnswerKind.TAGS:
        return facts.advice(TAGGED, about)
    options = {
        "tokenizer.kind": "word" if has_several_words else "character",
        "tokenizer.lowercase": True,
        "vocab_size": VOCAB_SIZE,
        "conv_kernel": 3,
        "dropout": WORD_DROPOUT if has_several_words else CHARACTER_DROPOUT,
    }
    # The speed is measured, so only where it can matter.
    if words > LONG_TEXT:
        options["embedding.pool"] = _pool(counts, facts)
    # Next to other inputs, a question without one of its words has no answer.
    if is_alone:
        options["augment.token_mask"] = 0.1
    advice = facts.advice(options, about)
    if is_alone:
        advice.append(Advice("trainer.mixup", 1.0, about))
        if words <= LONG_TEXT:
            advice.append(Advice("fusion.pool", "max", "short texts"))
    return advice


def _pool(counts: Sequence[int], facts: Facts) -> int:
    """Return the number of words per column with which enough epochs fit into the time limit."""
    mean = statistics.mean(min(count, MAX_READ) for count in counts)
    fitting = facts.epochs_within_limit(mean)
    enough = (pool for pool in POOLS if pool * fitting >= ENOUGH_EPOCHS)
    return next(enough, POOLS[-1])


# Images

SMALL = 40  # pixels of the longer side up to which every pixel matters
LARGE = 64  # pixels to which larger images are reduced without a pretrained model
# For finding objects: pixels of the longer side to which larger pictures are reduced, tokens per
# side of an object, tokens per side of a picture, and the smallest and the largest token. Larger
# ones have so many weights that an optimizer step takes longer than the pictures of a batch.
MAX_SIDE, PER_OBJECT, MAX_GRID, MIN_PATCH, MAX_PATCH = 320, 3, 20, 4, 16
# Pixels of the shorter side of an object that are needed to recognize it. As long as objects keep
# them, pictures become smaller until each can be seen ENOUGH_VIEWS_OF_OBJECTS times.
PER_SMALLEST, ENOUGH_VIEWS_OF_OBJECTS = 32, 40
# 8×8 pixels of pictures with objects take as long as a token in the backbone.
OBJECT_COST = 1
FEW_ROWS = 5000  # training rows up to which augmentation is strong


def advise_images(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for images without a pretrained model.

    Args:
        cells: Paths, bytes, PIL images or arrays.
        facts: What is known about the training.
    """
    from dxn.tokenize.image.reader import image_size, is_gray

    sizes, are_gray = [], True
    for cell in cells:
        try:
            sizes.append(image_size(cell))
            are_gray = are_gray and is_gray(cell)
        except (BadMedia, ValueError):  # reported when the rows are read
            continue
    if not sizes:
        return []
    height = round(statistics.median(size[0] for size in sizes))
    width = round(statistics.median(size[1] for size in sizes))
    about = f"{'gray ' if are_gray else ''}images of usually {height}×{width} pixels"
    channels = {"in_channels": 1} if are_gray else {}
    side = max(height, width)
    if facts.object_size is not None and len(facts.object_size) == 2:
        size = "×".join(f"{length:.3g}" for length in facts.object_size)
        if facts.kind is AnswerKind.PIXELS:
            about = f"{about}, areas of usually {size}"
            advice = [*_advise_masks(height, width, facts, channels, about)]
        else:
            about = f"{about}, objects of usually {size}"
            options = _for_objects(height, width, facts) | channels
            advice = facts.advice(options, about)
        return [*advice, *_backbone_advice(about, is_alone=facts.num_inputs == 1)]
    if facts.kind is AnswerKind.CODES:
        return facts.advice(_for_codes(height, width) | channels, about)
    # Next to other inputs, 16 to 25 tokens: how inputs belong together is learned sooner from few
    # tokens.
    is_alone = facts.num_files == 1
    options: dict[str, Any] = {"stem": "residual" if is_alone else "conv", **channels}
    if side <= SMALL:
        patch = 4 if is_alone else 8
        # A multiple of the patch, so that no patch is padding.
        options |= {
            "patch_size": patch,
            "image_size": -(-side // patch) * patch,
            "augment.crop": 2 + side // 16,
        }
    else:
        options |= {"patch_size": 8 if is_alone else 16, "image_size": LARGE, "augment.crop": 6}
        if facts.rows <= FEW_ROWS:
            options |= {"augment.zoom": 0.7, "augment.randaugment": 7}
    if min(height, width) < 0.8 * side:
        options["resize.mode"] = "within"
    elif side > SMALL:
        options["resize.mode"] = "stretch"
    advice = facts.advice(options, about)
    return [*advice, *_backbone_advice(about, is_alone=is_alone)]


def _backbone_advice(about: str, *, is_alone: bool) -> Iterator[Advice]:
    """Yield the options of the backbone behind a stem of convolutions, and of the optimizer."""
    if is_alone:
        # Residual convolutions learn more from few epochs than blocks of the backbone.
        yield Advice("backbone.depth", 2, about)
    # A small model stays near chance for the first epochs. A gate and Muon make this time shorter.
    yield Advice("backbone.block.mlp", "swiglu", about)
    yield Advice(*MUON, about)


def _for_codes(height: int, width: int) -> dict[str, Any]:
    """Return options for restoring images, all of which need one size."""
    side = max(height, width)
    patch = 4 if side <= SMALL else 8
    scale = min(LARGE / side, 1.0) / patch
    size = [max(round(scale * length), 1) * patch for length in (height, width)]
    return {
        "stem": "conv",
        "patch_size": patch,
        "image_size": size,
        "resize.mode": "stretch",
    }


def shorter_side(size: Sequence[float], height: int, width: int) -> float:
    """Return the shorter side of objects in pixels. Their size can be a share of the picture."""
    sides = (size[0] * height, size[1] * width) if max(size) <= 1 else size
    return max(min(sides), 1.0)  # a box can have no size


def _for_objects(height: int, width: int, facts: Facts) -> dict[str, Any]:
    """Return options for finding objects, which need tokens that are smaller than they are.

    Args:
        height: Usual height of a picture.
        width: Usual width of a picture.
        facts: What is known about the training.
    """
    assert facts.object_size is not None
    longer, smallest = max(height, width), shorter_side(facts.object_size, height, width)
    largest = min(longer, MAX_SIDE)
    least = min(max(longer * PER_SMALLEST / smallest, MIN_SIDE), largest)
    enough = min(ENOUGH_VIEWS_OF_OBJECTS * facts.rows, ENOUGH_PICTURES)
    side = _largest_side(height, width, (least, largest), OBJECT_COST, facts, enough)
    patch = MIN_PATCH
    per_object = min(side / longer * smallest / PER_OBJECT, MAX_PATCH)
    # The cost of a token grows with their number, which has the square of the side in it.
    while 2 * patch <= per_object or side > MAX_GRID * patch:
        patch *= 2
    return {
        "stem": "residual",
        "patch_size": patch,
        # The boxes are relative to the tokens, wherever these are.
        "pos_embed": "sinusoidal",
        # A multiple of the patch, so that no patch is padding.
        "image_size": -(-side // patch) * patch,
        "augment.flip": True,
        "augment.zoom": 0.5,
    }


def _largest_side(
    height: int,
    width: int,
    ends: tuple[float, int],
    cost: float,
    facts: Facts,
    enough: int,
) -> int:
    """Return the longer side of the largest pictures of which enough fit into the time limit.

    Args:
        height: Usual height of a picture.
        width: Usual width of a picture.
        ends: The smallest and the largest longer side that can be chosen.
        cost: Time of a square of MASK_PATCH pixels, relative to that of a token in the backbone.
        facts: What is known about the training.
        enough: Number of pictures, counting each as often as it is seen.

    Returns:
        A multiple of MASK_PATCH, or the largest side.
    """
    ratio = min(height, width) / max(height, width)
    least, largest = ends
    first, last = math.ceil(least / MASK_PATCH), largest // MASK_PATCH
    sides = [largest, *(MASK_PATCH * count for count in range(last, first - 1, -1))]
    for side in sides:
        tokens = cost * side**2 * ratio / MASK_PATCH**2
        if facts.rows * facts.epochs_within_limit(tokens) >= enough:
            return side
    return sides[-1]


# For the class of each pixel: pixels of the shorter side of a usual area of one class, with fewer
# of which areas are lost, and of the longer side of a picture, which small pictures keep.
PER_AREA, MIN_SIDE = 6, 96
# The largest size is chosen at which the time limit suffices to see each picture ENOUGH_VIEWS
# times, or ENOUGH_PICTURES pictures in all. A token with its pixels takes PIXEL_COST times as long
# as in the backbone alone.
ENOUGH_VIEWS, ENOUGH_PICTURES, PIXEL_COST = 10, 5_000, 3
MASK_PATCH = 8
# Pictures from this longer side on are divided into tiles of this size.
DIVIDED, TILE = 256, 128


def _advise_masks(
    height: int, width: int, facts: Facts, channels: Mapping[str, Any], about: str
) -> Iterator[Advice]:
    """Yield options for the class of each pixel.

    Args:
        height: Usual height of a picture.
        width: Usual width of a picture.
        facts: What is known about the training.
        channels: Options of its channels.
        about: What is known about the pictures.
    """
    assert facts.object_size is not None
    longer = max(height, width)
    largest = longer if facts.num_inputs == 1 else min(longer, DIVIDED)
    least = min(max(longer * PER_AREA / min(facts.object_size), MIN_SIDE), largest)
    enough = min(ENOUGH_VIEWS * facts.rows, ENOUGH_PICTURES)
    side = _largest_side(height, width, (least, largest), PIXEL_COST, facts, enough)
    # A multiple of the patch, so that no patch is padding.
    side = -(-side // MASK_PATCH) * MASK_PATCH
    options = {
        "stem": "residual",
        "patch_size": MASK_PATCH,
        "image_size": side,
        "augment.flip": True,
        "augment.zoom": 0.5,
        "augment.jitter": 0.3,
        **channels,
    }
    yield from facts.advice(options, about)
    if facts.num_classes > 2:
        yield Advice("head.balance", "root", f"{facts.num_classes} classes of pixels")
    if side > DIVIDED:
        yield Advice("head.tile", TILE, about, follows=f"{facts.prefix}.image_size")
        # An epoch has about all pixels.
        tiles = side**2 * min(height, width) / longer / TILE**2
        yield Advice("loader.repeats", math.ceil(tiles), about, follows="head.tile")


# Sounds

MAX_RATE = 22_050  # hertz; higher frequencies rarely distinguish classes
MIN_RATE = 4_000
# Fraction of the seconds of all sounds that keep all of their frequencies. The others, of a higher
# rate, would make all sounds longer.
USUAL_SHARE = 0.9
# From this median duration on, too few epochs of whole clips fit into the time.
LONG_SOUND = 10.0  # seconds
CROP_SECONDS = 5.0
MANY_ROWS = 1_000  # training rows from which residual convolutions generalize better


def advise_audio(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for classifying sounds without a pretrained model.

    Args:
        cells: Paths, bytes or (array, sample_rate) pairs.
        facts: What is known about the training.
    """
    from dxn.tokenize.audio.reader import audio_rate, audio_seconds

    rates: list[int] = []
    seconds: list[float | None] = []
    for cell in cells:
        try:
            rates.append(audio_rate(cell))
            seconds.append(audio_seconds(cell))
        except (BadMedia, ValueError):  # reported when the rows are read
            continue
    if not rates:
        return []
    rate = min(max(_usual_rate(rates, seconds), MIN_RATE), MAX_RATE)
    low, high = min(rates), max(rates)
    about = f"sounds of {low:,} Hz" if low == high else f"sounds of {low:,} to {high:,} Hz"
    is_alone = facts.num_files == 1
    has_residual = is_alone and facts.rows >= MANY_ROWS
    options: dict[str, Any] = {
        "sample_rate": rate,
        "tokens": "frames",
        "frame_size": 4 if is_alone else 8,
        "spectrogram.n_mels": 40 if rate <= 8_000 else 64,
    }
    if facts.kind in (AnswerKind.CODES, AnswerKind.OBJECTS):
        return facts.advice(options, about)
    options |= {
        "stem": "residual" if has_residual else "conv",
        "normalize.kind": "clip",
        "augment.speed": 0.1,
        "augment.freq_mask": 8 if is_alone else 5,
        "augment.time_mask": 0.15 if is_alone else 0.1,
    }
    median = statistics.median([s for s in seconds if s is not None] or [0.0])
    if is_alone and median >= LONG_SOUND:
        options["augment.crop"] = CROP_SECONDS
        about += f" and {median:.0f} s"
    # Strong noise hides how several inputs belong together for most of the training.
    if is_alone:
        options |= {
            "spectrogram.top_db": 40,
            "dropout": 0.1,
            "augment.noise": 0.1,
            "augment.equalize": 6,
        }
    advice = facts.advice(options, about)
    if is_alone:
        advice.append(Advice("trainer.mixup", 1.0, about))
    if has_residual:
        advice.append(Advice("backbone.depth", 2, f"{facts.rows:,} {about}"))
    return advice


def _usual_rate(rates: Sequence[int], seconds: Sequence[float | None]) -> int:
    """Return the lowest sample rate that is not below that of most sounds, by their duration."""
    # The duration of some formats is unknown.
    durations = [duration for duration in seconds if duration is not None]
    usual = statistics.median(durations) if durations else 1.0
    weights = [usual if duration is None else duration for duration in seconds]
    reached = 0.0
    for rate, weight in sorted(zip(rates, weights, strict=True)):
        reached += weight
        if reached >= USUAL_SHARE * sum(weights):
            return rate
    return max(rates)


# Series

# Tokens of a sample whose channels have tokens of their own: more would take too long.
MAX_TOKENS = 192
MIN_PATCHES = 4  # of a channel; fewer show too little of its course
PER_EVENT = 6  # tokens of an event that is to be found


def advise_series(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for forecasts and events.

    In a forecast, each channel has tokens of its own, if they are few enough.

    Args:
        cells: Series (T, C), or what a series can be read from.
        facts: What is known about the training.
    """
    from dxn.tokenize.series.reader import read_series
    from dxn.tokenize.series.tokenizer import usual_patch_size

    if facts.object_size is not None and len(facts.object_size) == 1:
        (duration,) = facts.object_size
        patch_size = 2 ** math.floor(math.log2(max(duration / PER_EVENT, 1)))
        return facts.advice({"patch_size": patch_size}, f"events of usually {duration:.3g} steps")
    if facts.kind is not AnswerKind.QUANTILES:
        return []
    lengths: list[int] = []
    channels = 1
    for cell in cells:
        try:
            raw = read_series(cell)
        except BadMedia:  # reported when the rows are read
            continue
        if raw is not None:
            lengths.append(len(raw))
            channels = raw.shape[1]
    steps = max(lengths, default=0)
    patch_size = usual_patch_size(steps)
    while channels * steps > MAX_TOKENS * patch_size:
        patch_size *= 2
    if channels == 1 or steps < MIN_PATCHES * patch_size:
        return []
    about = f"{channels} channels of {steps:,} time steps"
    options = {"channels": "independent", "patch_size": patch_size}
    return facts.advice(options, about)
