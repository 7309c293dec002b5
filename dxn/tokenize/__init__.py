"""Raw text, images and audio to Tokens: one file a modality."""

from dxn.tokenize.audio import AudioAdapter, AudioAugment
from dxn.tokenize.image import ImageAdapter, ImageAugment
from dxn.tokenize.media import BadMedia
from dxn.tokenize.target import TargetTokenizer
from dxn.tokenize.text import TextAdapter, train_tokenizer

__all__ = [
    "AudioAdapter",
    "AudioAugment",
    "BadMedia",
    "ImageAdapter",
    "ImageAugment",
    "TargetTokenizer",
    "TextAdapter",
    "train_tokenizer",
]
