"""Synthetic videos of moving shapes. A single frame has no information about the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from PIL import Image, ImageDraw

from dxn.core.errors import UserError
from dxn.data.formats import SPLITS
from dxn.data.rows import TARGET, InputSpec, Rows, Source
from dxn.datasets.checks import check_counts
from dxn.datasets.shapes import COLOURS, OVERSAMPLING, SHADE, SHAPES, corners

Label = Literal["direction", "order", "caption", "turn"]

# Steps (x, y) of each direction, clockwise; the y axis points down.
DIRECTIONS = {"up": (0, -1), "right": (1, 0), "down": (0, 1), "left": (-1, 0)}
# Hertz of the tone for a turn by 0, 90, 180 and 270 degrees.
TONES = (300.0, 500.0, 850.0, 1400.0)
SAMPLE_RATE = 8000  # hertz
FPS = 8  # frames per second, which determines the duration of the sound
MIN_SIZE = 16  # pixels; in smaller frames the shapes cannot be distinguished
MIN_FRAMES = 4  # two frames for each of two motions

# All lengths are fractions of the side of a frame.
RADIUS = (0.14, 0.18)
SPEED = (0.045, 0.075)  # per frame: slow enough that the direction is clear, in spite of the wrap


@dataclass(frozen=True)
class Scene:
    """One shape and its motion. It leaves the frame at an edge and enters at the opposite one.

    Args:
        colour: A key of COLOURS.
        shape: One of SHAPES.
        directions: One or two keys of DIRECTIONS. With two, the second half of the clip has the
            second direction.
        x: Distance of the centre from the left edge in the middle of the clip.
        y: Distance of the centre from the top edge in the middle of the clip.
        radius: Radius of the circumscribed circle.
        speed: Distance between two frames.
    """

    colour: str
    shape: str
    directions: tuple[str, ...]
    x: float
    y: float
    radius: float
    speed: float

    @property
    def caption(self) -> str:
        """Sentence that describes the scene, such as "a red circle moves left, then up"."""
        return f"a {self.colour} {self.shape} moves {', then '.join(self.directions)}"


def motion(
    *,
    label: Label = "direction",
    num_train: int = 4000,
    num_validation: int = 300,
    num_test: int = 600,
    size: int = 32,
    num_frames: int = 16,
    seed: int = 0,
) -> Source:
    """Generate a data set of videos with one moving shape.

    The input is "video", uint8 (num_frames, size, size, 3). The frame is a torus: a shape that
    leaves it enters again at the opposite edge. Positions are uniformly distributed in each frame,
    whatever the direction, so a single frame has no information about the direction of motion.

    Args:
        label: Target of a video: direction (one of four), order (two perpendicular motions and
            their order, such as "left then up"), caption (a sentence with colour, shape and one or
            two motions) or turn (the direction, turned clockwise as a tone says; the tone is a
            second input, "audio", and neither input alone has information about the target).
        num_train: Number of training rows.
        num_validation: Number of validation rows.
        num_test: Number of test rows.
        size: Height and width of a frame in pixels, at least 16.
        num_frames: Number of frames of a video, at least 4.
        seed: Random seed of the data set.

    Raises:
        UserError: If a split has no row, or an option is out of range.
    """
    counts = check_counts(num_train, num_validation, num_test)
    if label not in get_args(Label):
        raise UserError(f"data.label: must be one of {', '.join(get_args(Label))}, got {label!r}")
    if size < MIN_SIZE:
        raise UserError(f"data.size: must be at least {MIN_SIZE} pixels, got {size}")
    if num_frames < MIN_FRAMES:
        raise UserError(f"data.num_frames: must be at least {MIN_FRAMES}, got {num_frames}")
    inputs = {"video": InputSpec("drawn", "video")}
    if label == "turn":
        inputs["audio"] = InputSpec("tone", "audio")
    return Source(
        {name: _rows(name, n, label, size, num_frames, seed) for name, n in counts.items()},
        inputs,
        target=label,
        task="generate" if label == "caption" else "classify",
        notes=["synthetic data: a single frame has no information about the direction of motion"],
    )


def draw_scene(rng: np.random.Generator, label: Label) -> Scene:
    """Draw a random shape with random motions."""
    first = str(rng.choice(list(DIRECTIONS)))
    directions = (first,)
    if label == "order" or (label == "caption" and rng.random() < 0.5):
        directions = (first, str(rng.choice(_perpendicular(first))))
    x, y = rng.random(2).tolist()
    return Scene(
        colour=str(rng.choice(list(COLOURS))),
        shape=str(rng.choice(SHAPES)),
        directions=directions,
        x=x,
        y=y,
        radius=rng.uniform(*RADIUS),
        speed=rng.uniform(*SPEED),
    )


def positions(scene: Scene, num_frames: int) -> np.ndarray:
    """Return the centres (num_frames, 2) as (x, y), 0 to 1, where 1 is the same place as 0."""
    middle = num_frames // 2
    steps = np.array([DIRECTIONS[direction] for direction in scene.directions], dtype=float)
    index = np.arange(num_frames)
    # Before the middle of the clip the first direction counts, after it the last one.
    offsets = np.where(
        (index < middle)[:, None],
        (index - middle)[:, None] * steps[0],
        (index - middle)[:, None] * steps[-1],
    )
    return (np.array([scene.x, scene.y]) + scene.speed * offsets) % 1


def draw(rng: np.random.Generator, scene: Scene, *, size: int, num_frames: int) -> np.ndarray:
    """Draw the frames of a scene on a grey background with noise.

    Returns:
        Video (num_frames, size, size, 3), uint8.
    """
    background = int(rng.integers(20, 100))
    shade = rng.integers(-SHADE, SHADE + 1, 3)
    colour = (np.array(COLOURS[scene.colour]) + shade).clip(0, 255)
    strength = np.float32(rng.uniform(2, 10))
    shape = _mask(scene, size)
    frames = np.empty((num_frames, size, size, 3), np.float32)
    for frame, (x, y) in zip(frames, positions(scene, num_frames), strict=True):
        # The shape is drawn in the middle, from where it is rolled to its place on the torus.
        large = len(shape)
        shift = (round(large * (y - 0.5)), round(large * (x - 0.5)))
        rolled = np.roll(shape, shift, (0, 1))
        blocks = rolled.reshape(size, OVERSAMPLING, size, OVERSAMPLING)
        cover = blocks.mean((1, 3), dtype=np.float32)[..., None]
        frame[...] = background + cover * (colour - background)
    noise = strength * rng.standard_normal(frames.shape, dtype=np.float32)
    return (frames + noise).clip(0, 255).astype(np.uint8)


def turned(direction: str, quarters: int) -> str:
    """Return a direction after turning it clockwise by `quarters` times 90 degrees."""
    names = list(DIRECTIONS)
    return names[(names.index(direction) + quarters) % len(names)]


def tone(rng: np.random.Generator, quarters: int, num_frames: int) -> np.ndarray:
    """Generate the tone for a turn, with noise: float32 (T,) at 8,000 hertz."""
    time = np.arange(round(num_frames / FPS * SAMPLE_RATE)) / SAMPLE_RATE
    sound = np.sin(2 * np.pi * (TONES[quarters] * time + rng.random()))
    noise = rng.uniform(0.1, 1) * rng.standard_normal(len(time))
    return (rng.uniform(0.02, 0.2) * (sound + noise)).clip(-1, 1).astype(np.float32)


def _rows(split: str, count: int, label: Label, size: int, num_frames: int, seed: int) -> Rows:
    """Generate the rows of a split. Each row depends only on (seed, split, row)."""
    videos: list[np.ndarray] = []
    sounds: list[tuple[np.ndarray, int]] = []
    targets: list[str] = []
    for row in range(count):
        rng = np.random.default_rng([seed, SPLITS.index(split), row])
        scene = draw_scene(rng, label)
        videos.append(draw(rng, scene, size=size, num_frames=num_frames))
        if label == "caption":
            targets.append(scene.caption)
            continue
        target = " then ".join(scene.directions)
        if label == "turn":
            quarters = int(rng.integers(len(TONES)))
            sounds.append((tone(rng, quarters, num_frames), SAMPLE_RATE))
            target = turned(target, quarters)
        targets.append(target)
    cells = {"video": videos, TARGET: targets}
    if sounds:
        cells["audio"] = sounds
    return Rows(cells, [f"motion row {i + 1}" for i in range(count)])


def _perpendicular(direction: str) -> list[str]:
    return [turned(direction, 1), turned(direction, 3)]


def _mask(scene: Scene, size: int) -> np.ndarray:
    """Return a shape in the middle of an enlarged frame, bool."""
    large = OVERSAMPLING * size
    image = Image.new("1", (large, large))
    radius = scene.radius * large
    points = [(large / 2 + radius * x, large / 2 + radius * y) for x, y in corners(scene.shape)]
    ImageDraw.Draw(image).polygon(points, fill=1)
    return np.asarray(image)
