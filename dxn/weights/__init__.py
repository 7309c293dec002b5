"""Load public checkpoints as dxn models. `families/` has one module per family of checkpoints.

Three decisions keep special cases out of the model:

- Sums that do not depend on the input, such as the position of the class token, are computed when
  the weights are read. A missing bias is filled with zeros.
- The adapter contains everything before the first block, the fusion leading tokens and pooling, and
  the head everything after pooling. A model can therefore take its parts from different
  checkpoints.
- All other differences are options of a single class `Block`: layer scale, QK norm, windows,
  activations, biases.
"""

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
