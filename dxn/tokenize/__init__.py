"""Adapters, which convert raw text, images and audio to Tokens.

`adapter.py` defines the protocols of an adapter and the registry of the built-in adapters.
"""

from dxn.tokenize.adapter import (
    ADAPTERS,
    Adapter,
    Masking,
    Preprocessor,
    VocabularyAdapter,
    VocabularyPreprocessor,
)
from dxn.tokenize.audio import AudioAdapter
from dxn.tokenize.audio_options import (
    AudioAugment,
    AudioNormalization,
    PatchOptions,
    SpectrogramOptions,
)
from dxn.tokenize.category import CategoryAdapter, CategoryMasking
from dxn.tokenize.cells import CellMasking
from dxn.tokenize.date import DateAdapter
from dxn.tokenize.image import ImageAdapter
from dxn.tokenize.image_options import ImageAugment, ImageNormalization, ResizeOptions
from dxn.tokenize.masking import AudioMasking, ImageMasking, TextMasking
from dxn.tokenize.media import BadMedia
from dxn.tokenize.number import NumberAdapter, PeriodicOptions
from dxn.tokenize.series import SeriesAdapter
from dxn.tokenize.series_masking import SeriesMasking
from dxn.tokenize.series_options import SeriesAugment
from dxn.tokenize.target import TargetTokenizer
from dxn.tokenize.text import TextAdapter
from dxn.tokenize.text_options import (
    EmbeddingNormOptions,
    EmbeddingOptions,
    NgramOptions,
    TextAugment,
    TokenizerOptions,
)
from dxn.tokenize.text_tokenizer import train_tokenizer
from dxn.tokenize.video import VideoAdapter
from dxn.tokenize.video_masking import VideoMasking
from dxn.tokenize.video_options import VideoAugment, VideoSampling

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
    "Preprocessor",
    "ResizeOptions",
    "SeriesAdapter",
    "SeriesAugment",
    "SeriesMasking",
    "SpectrogramOptions",
    "TargetTokenizer",
    "TextAdapter",
    "TextAugment",
    "TextMasking",
    "TokenizerOptions",
    "VideoAdapter",
    "VideoAugment",
    "VideoMasking",
    "VideoSampling",
    "VocabularyAdapter",
    "VocabularyPreprocessor",
    "train_tokenizer",
]
