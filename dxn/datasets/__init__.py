"""Generators of synthetic data sets."""

from dxn.datasets.chats import chats
from dxn.datasets.dialled import dialled
from dxn.datasets.digits import digits
from dxn.datasets.fields import fields
from dxn.datasets.motion import motion
from dxn.datasets.objects import objects
from dxn.datasets.questions import questions
from dxn.datasets.shapes import shapes
from dxn.datasets.shops import shops
from dxn.datasets.spoken import spoken
from dxn.datasets.waves import waves

__all__ = [
    "chats",
    "dialled",
    "digits",
    "fields",
    "motion",
    "objects",
    "questions",
    "shapes",
    "shops",
    "spoken",
    "waves",
]
