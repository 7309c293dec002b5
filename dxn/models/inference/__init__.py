"""Models that are only used: linear layers with packed or int8 weights, and the data type."""

from dxn.models.inference.convert import convert, foreign_parts, restore
from dxn.models.inference.linear import Activation, InferenceLinear, Int8Linear, PackedLinear

__all__ = [
    "Activation",
    "InferenceLinear",
    "Int8Linear",
    "PackedLinear",
    "convert",
    "foreign_parts",
    "restore",
]
