"""Readers, tokenizers and adapters, which convert any kind of data to Tokens.

`base.py` defines their base classes.
"""

from dxn.tokenize.audio.adapter import AudioAdapter
from dxn.tokenize.audio.options import (
    AudioAugment,
    AudioNormalization,
    PatchOptions,
    SpectrogramOptions,
)
from dxn.tokenize.base import ADAPTERS, Adapter, BadMedia, Masking, Reader, Tokenizer, pad
from dxn.tokenize.cells.category import CategoryAdapter, CategoryMasking
from dxn.tokenize.cells.cell import CellMasking
from dxn.tokenize.cells.date import DateAdapter
from dxn.tokenize.cells.number import NumberAdapter, PeriodicOptions
from dxn.tokenize.image.adapter import ImageAdapter
from dxn.tokenize.image.options import ImageAugment, ImageNormalization, ResizeOptions
from dxn.tokenize.masking import AudioMasking, ImageMasking, TextMasking
from dxn.tokenize.series.adapter import SeriesAdapter
from dxn.tokenize.series.masking import SeriesMasking
from dxn.tokenize.series.options import SeriesAugment
from dxn.tokenize.text.adapter import TextAdapter
from dxn.tokenize.text.options import (
    EmbeddingNormOptions,
    EmbeddingOptions,
    NgramOptions,
    TextAugment,
    TokenizerOptions,
)
from dxn.tokenize.text.vocabulary import train_tokenizer
from dxn.tokenize.video.adapter import VideoAdapter
from dxn.tokenize.video.masking import VideoMasking
from dxn.tokenize.video.options import VideoAugment, VideoSampling

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AudioAdapter",
    "AudioAugment",
    "AudioMasking",
    "AudioNormalization",
    "BadMedia",
    "CategoryAdapter",
    "CategoryMasking",
    "CellMasking",
    "DateAdapter",
    "EmbeddingNormOptions",
    "EmbeddingOptions",
    "ImageAdapter",
    "ImageAugment",
    "ImageMasking",
    "ImageNormalization",
    "Masking",
    "NgramOptions",
    "NumberAdapter",
    "PatchOptions",
    "PeriodicOptions",
    "Reader",
    "ResizeOptions",
    "SeriesAdapter",
    "SeriesAugment",
    "SeriesMasking",
    "SpectrogramOptions",
    "TextAdapter",
    "TextAugment",
    "TextMasking",
    "Tokenizer",
    "TokenizerOptions",
    "VideoAdapter",
    "VideoAugment",
    "VideoMasking",
    "VideoSampling",
    "pad",
    "train_tokenizer",
]
