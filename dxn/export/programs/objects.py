"""Read the objects from the outputs of a detection graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


def objects(
    outputs: Arrays, arrays: Arrays, options: Mapping[str, Any], row: int = 0
) -> list[dict[str, Any]]:
    """Return the objects of one picture, best first.

    Args:
        outputs: Outputs of the graph: scores (B, M, K) of K classes for each of M boxes, and boxes
            (B, M, 4): top, left, bottom and right as fractions of the prepared picture.
        arrays: Inputs of the graph.
        options: The key "outputs" of preprocess.json.
        row: Index of the picture.

    Returns:
        For each object its label, its score, and left, top, right and bottom in pixels of the file.
    """
    scores = outputs["scores"][row]
    top, left, down, across, height, width = arrays[f"{options['input']}.pixel_map"][row].tolist()
    sizes = arrays[f"{options['input']}.pixels"].shape[2:]
    if f"{options['input']}.sizes" in arrays:  # not all pictures of a batch have the same size
        sizes = arrays[f"{options['input']}.sizes"][row].tolist()
    fractions = outputs["boxes"][row].clip(0, 1).reshape(-1, 2, 2)
    corners = fractions * [down * sizes[0], across * sizes[1]] + [top, left]
    corners = corners.clip(0, [height, width])
    order = np.argsort(-scores, axis=None, kind="stable")
    listed: list[dict[str, Any]] = []
    corners_of_class: dict[int, list[np.ndarray]] = {}  # corners of the objects of each class
    for box, index in zip(*np.unravel_index(order, scores.shape), strict=True):
        score = float(scores[box, index])
        if score < options["threshold"] or len(listed) == options["max_objects"]:
            break
        others = corners_of_class.setdefault(int(index), [])
        if any(_overlap(corners[box], other) > options["duplicate"] for other in others):
            continue
        others.append(corners[box])
        (y0, x0), (y1, x1) = corners[box].tolist()
        places = {"left": x0, "top": y0, "right": x1, "bottom": y1}
        listed.append({"label": options["labels"][index], "score": score, **places})
    return listed


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Return the intersection over union of two boxes (2, 2): the corners (y, x) of each."""
    common = (np.minimum(a[1], b[1]) - np.maximum(a[0], b[0])).clip(0).prod()
    union = (a[1] - a[0]).prod() + (b[1] - b[0]).prod() - common
    return float(common / union) if union > 0 else 0.0


def lines(
    run: Callable[[Arrays], Arrays],
    arrays: Arrays,
    about: Mapping[str, Any],
    sample: Mapping[str, Any],
) -> list[str]:
    """Return one line per object of the first picture, see `objects`.

    Args:
        run: Function from the inputs of the graph to its outputs.
        arrays: Prepared inputs of the samples.
        about: Content of preprocess.json.
        sample: Raw values of the first sample, which are not needed.
    """
    listed = [
        f"{item['score']:.4f}  {item['label']}: left {item['left']:.1f}, top {item['top']:.1f}, "
        f"right {item['right']:.1f}, bottom {item['bottom']:.1f}"
        for item in objects(run(arrays), arrays, about["outputs"])
    ]
    return listed or ["no objects"]
