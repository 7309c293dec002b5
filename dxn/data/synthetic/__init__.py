"""Generators of synthetic data sets."""

from dxn.data.synthetic.dialled import dialled
from dxn.data.synthetic.digits import digits
from dxn.data.synthetic.motion import motion
from dxn.data.synthetic.shapes import shapes
from dxn.data.synthetic.spoken import spoken
from dxn.data.synthetic.waves import waves

__all__ = ["dialled", "digits", "motion", "shapes", "spoken", "waves"]
