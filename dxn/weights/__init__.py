"""Load public checkpoints as dxn models. `families/` has one module per family of checkpoints."""

from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.conversions import resize_tensor
from dxn.weights.encoder import as_encoder, load_encoder, unpadded
from dxn.weights.families import FAMILIES, all_families
from dxn.weights.family import Architecture, Classifier, Family, TensorMap, TensorSource
from dxn.weights.public import FillResult, PublicModel, read_public

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
    "as_encoder",
    "load_encoder",
    "read_checkpoint",
    "read_public",
    "resize_tensor",
    "unpadded",
]
