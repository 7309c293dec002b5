"""A simple method for objects, with which a model is compared: the usual boxes of each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.detect.metric import Detected
from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import overlaps

MAX_BOXES = 20  # of a class
MAX_LEARNED = 5_000  # boxes of a class
ENOUGH = 0.5  # overlap with an object at which a box has found it
SEED = 0


def usual_boxes(labels: Sequence[str], objects: Sequence[Objects], axes: int) -> Detected:
    """Return boxes that are good for all samples: cluster centers of those of each class.

    The score of a box is the share of training samples in which it overlaps an object of its class.

    Args:
        labels: The classes.
        objects: Objects of the training samples.
        axes: 1 for events, 2 for pictures.
    """
    from sklearn.cluster import KMeans  # it takes time to import

    classes: list[Tensor] = []
    scores: list[Tensor] = []
    boxes: list[Tensor] = []
    for number, label in enumerate(labels):
        rows, true = [], []
        for row, sample in enumerate(objects):
            for name, box in zip(sample.labels, sample.boxes, strict=True):
                if name == label:
                    rows.append(row)
                    true.append(box)
        if not true:
            continue
        x = np.array(true[:: -(-len(true) // MAX_LEARNED)])
        count = min(MAX_BOXES, len(np.unique(x, axis=0)))
        centers = torch.from_numpy(KMeans(count, random_state=SEED).fit(x).cluster_centers_)
        iou, _ = overlaps(centers[:, None], torch.tensor(true, dtype=torch.float64))
        is_found = torch.zeros(count, len(objects), dtype=torch.bool)
        hits, at = (iou >= ENOUGH).nonzero(as_tuple=True)
        is_found[hits, torch.tensor(rows)[at]] = True
        classes.append(torch.full((count,), number))
        scores.append(is_found.float().mean(1))
        boxes.append(centers.float())
    if not boxes:
        return Detected(torch.zeros(0).long(), torch.zeros(0), torch.zeros(0, 2 * axes))
    order = torch.cat(scores).argsort(descending=True, stable=True)
    return Detected(torch.cat(classes)[order], torch.cat(scores)[order], torch.cat(boxes)[order])
