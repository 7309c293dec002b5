"""The transformer: attention, blocks, one backbone, fusion, heads, and the model that holds them."""

from dxn.models.attention import Attention
from dxn.models.backbone import Backbone
from dxn.models.blocks import Block, Mlp
from dxn.models.decoder import Decoder
from dxn.models.fusion import BottleneckFusion, EarlyFusion, LateFusion
from dxn.models.heads import Classify, Embed, Multilabel, Regress, Tag
from dxn.models.language import LanguageModel
from dxn.models.masked import Masked
from dxn.models.model import Model, count_parameters
from dxn.models.recurrent import Recurrent, RecurrentDecoder
from dxn.models.writing import Generate, Language

__all__ = [
    "Attention",
    "Backbone",
    "Block",
    "BottleneckFusion",
    "Classify",
    "Decoder",
    "EarlyFusion",
    "Embed",
    "Generate",
    "Language",
    "LanguageModel",
    "LateFusion",
    "Masked",
    "Mlp",
    "Model",
    "Multilabel",
    "Recurrent",
    "RecurrentDecoder",
    "Regress",
    "Tag",
    "count_parameters",
]
