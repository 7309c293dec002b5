"""Generators of synthetic data sets."""

from dxn.datasets.digits import digits
from dxn.datasets.objects import objects
from dxn.datasets.shapes import shapes

__all__ = ["digits", "objects", "shapes"]
