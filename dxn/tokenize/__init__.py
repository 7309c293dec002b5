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
from dxn.tokenize.image import ImageAdapter
from dxn.tokenize.image_options import ImageAugment, ImageNormalization, ResizeOptions
from dxn.tokenize.masking import AudioMasking, ImageMasking, TextMasking
from dxn.tokenize.media import BadMedia
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

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AudioAdapter",
    "AudioAugment",
    "AudioMasking",
    "AudioNormalization",
    "BadMedia",
    "EmbeddingNormOptions",
    "EmbeddingOptions",
    "ImageAdapter",
    "ImageAugment",
    "ImageMasking",
    "ImageNormalization",
    "Masking",
    "NgramOptions",
    "PatchOptions",
    "Preprocessor",
    "ResizeOptions",
    "SpectrogramOptions",
    "TargetTokenizer",
    "TextAdapter",
    "TextAugment",
    "TextMasking",
    "TokenizerOptions",
    "VocabularyAdapter",
    "VocabularyPreprocessor",
    "train_tokenizer",
]
