"""Options of the image adapter that suit the data (preset=auto)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from dxn.presets.advice import MUON, Advice, Facts
from dxn.tokenize.base import BadMedia

SMALL = 40  # pixels of the longer side up to which every pixel matters
LARGE = 64  # pixels to which larger images are reduced without a pretrained model
# For finding objects: pixels of the longer side to which larger pictures are reduced, tokens per
# side of an object, tokens per side of a picture, and the smallest token.
MAX_SIDE, PER_OBJECT, MAX_GRID, MIN_PATCH = 320, 3, 20, 4
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
    side = max(height, width)
    if facts.object_size is not None:
        options = _for_objects(height, width, facts.object_size)
        size = "×".join(f"{each:.3g}" for each in facts.object_size)
        about = f"{about}, objects of usually {size}"
        if are_gray:
            options["in_channels"] = 1
        advice = [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
        return [*advice, *_backbone_advice(about, is_alone=facts.num_inputs == 1)]
    if facts.is_codec:
        options = _for_codes(height, width) | ({"in_channels": 1} if are_gray else {})
        return [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
    # Next to other inputs, 16 to 25 tokens: how inputs belong together is learned sooner from few
    # tokens.
    is_alone = facts.num_files == 1
    options: dict[str, Any] = {"stem": "residual" if is_alone else "conv"}
    if are_gray:
        options["in_channels"] = 1
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
    advice = [Advice(f"{facts.prefix}.{name}", value, about) for name, value in options.items()]
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


def _for_objects(height: int, width: int, object_size: Sequence[float]) -> dict[str, Any]:
    """Return options for finding objects, which need tokens that are smaller than they are.

    Args:
        height: Usual height of a picture.
        width: Usual width of a picture.
        object_size: See `Facts`.
    """
    size = list(object_size)
    if max(size) <= 1:
        size = [size[0] * height, size[1] * width]
    side = max(height, width)
    scale = min(MAX_SIDE / side, 1.0)
    side = min(side, MAX_SIDE)
    patch = MIN_PATCH
    # The cost of a token grows with their number, which has the square of the side in it.
    while 2 * patch <= scale * min(size) / PER_OBJECT or side > MAX_GRID * patch:
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
