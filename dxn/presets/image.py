"""Options of the image adapter that suit the data (preset=auto)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dxn.presets.advice import MUON, Advice, Facts
from dxn.tokenize.base import BadMedia

SMALL = 40  # pixels of the longer side up to which every pixel matters
LARGE = 64  # pixels to which larger images are reduced without a pretrained model
FEW_ROWS = 5000  # training rows up to which augmentation is strong


def advise_images(cells: Sequence[Any], facts: Facts) -> list[Advice]:
    """Return options for classifying images without a pretrained model.

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
    if is_alone:
        # Residual convolutions learn more from few epochs than blocks of the backbone.
        advice.append(Advice("backbone.depth", 2, about))
    # A small model stays near chance for the first epochs. A gate and Muon make this time shorter.
    return [*advice, Advice("backbone.block.mlp", "swiglu", about), Advice(*MUON, about)]
