"""Readers, tokenizers and adapters, which convert any kind of data to Tokens.

`base.py` defines their base classes.
"""

from typing import TYPE_CHECKING, Any

from dxn.core.parts import lazy_names

# The module that defines each name. They are imported on first use: a command needs only the
# modalities of its data.
_MODULES = {
    "ADAPTERS": "base",
    "Adapter": "base",
    "AudioAdapter": "audio.adapter",
    "AudioAugment": "audio.augment",
    "AudioCodes": "code_adapters",
    "AudioNormalization": "audio.tokenizer",
    "BadMedia": "base",
    "CategoryAdapter": "cells.category",
    "CellMasking": "masking",
    "DateAdapter": "cells.date",
    "EmbeddingNormOptions": "text.options",
    "EmbeddingOptions": "text.options",
    "EncodedAdapter": "encoded_adapter",
    "ImageAdapter": "image.adapter",
    "ImageAugment": "image.augment",
    "ImageCodes": "code_adapters",
    "ImageNormalization": "image.normalization",
    "Masking": "masking",
    "NumberAdapter": "cells.number",
    "PatchMasking": "masking",
    "PatchOptions": "audio.tokenizer",
    "Reader": "base",
    "ResizeOptions": "image.tokenizer",
    "SeriesAdapter": "series.adapter",
    "SeriesAugment": "series.tokenizer",
    "SeriesCodes": "code_adapters",
    "SpectrogramOptions": "audio.spectrogram",
    "TextAdapter": "text.adapter",
    "TextAugment": "text.options",
    "TokenMasking": "masking",
    "Tokenizer": "base",
    "TokenizerOptions": "text.options",
    "VideoAdapter": "video.adapter",
    "VideoAugment": "video.tokenizer",
    "VideoCodes": "code_adapters",
    "VideoSampling": "video.reader",
    "pad": "base",
    "train_tokenizer": "text.vocabulary",
}

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
