"""Generators of synthetic data sets."""

from dxn.data.synthetic.dialled import dialled
from dxn.data.synthetic.digits import digits
from dxn.data.synthetic.shapes import shapes
from dxn.data.synthetic.spoken import spoken

__all__ = ["dialled", "digits", "shapes", "spoken"]
