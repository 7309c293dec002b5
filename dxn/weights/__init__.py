"""Load public checkpoints as dxn models. `families/` has one module per family of checkpoints."""

from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.conversions import resize_tensor
from dxn.weights.families import FAMILIES
from dxn.weights.family import Architecture, Classifier, Family, TensorMap, TensorSource
from dxn.weights.public import FillResult, PublicModel
from dxn.weights.reading import all_families, read_public
from dxn.weights.saving import required_options, to_original

__all__ = [
    "FAMILIES",
    "Architecture",
    "Checkpoint",
    "Classifier",
    "Family",
    "FillResult",
    "PublicModel",
    "TensorMap",
    "TensorSource",
    "all_families",
    "read_checkpoint",
    "read_public",
    "required_options",
    "resize_tensor",
    "to_original",
]
