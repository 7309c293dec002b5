"""Models that process Tokens: attention, backbones, decoders, fusions, and the complete model.

The code of this package does not depend on modalities or tasks. Adapters and heads are passed to it
as arguments.
"""

from dxn.models.attention import Attention, CrossAttention
from dxn.models.backbone import Backbone
from dxn.models.blocks import Block, BlockOptions, Mlp, NormOptions
from dxn.models.decoding.cache import KVCache, Memory
from dxn.models.decoding.decoder import Decoder
from dxn.models.decoding.generation import beam_search, generate
from dxn.models.decoding.language_model import LanguageModel
from dxn.models.decoding.recurrent_decoder import RecurrentDecoder
from dxn.models.decoding.search import Hypothesis, greedy, make_sampler
from dxn.models.fusion import (
    BottleneckFusion,
    EarlyFusion,
    LateFusion,
    SeparateBackbones,
    backbone_of,
    shared_name,
)
from dxn.models.losses import linear_cross_entropy
from dxn.models.model import Ensemble, InputVectors, Model, Network, count_parameters, module_key
from dxn.models.positions import PositionOptions
from dxn.models.recurrent import Recurrent

__all__ = [
    "Attention",
    "Backbone",
    "Block",
    "BlockOptions",
    "BottleneckFusion",
    "CrossAttention",
    "Decoder",
    "EarlyFusion",
    "Ensemble",
    "Hypothesis",
    "InputVectors",
    "KVCache",
    "LanguageModel",
    "LateFusion",
    "Memory",
    "Mlp",
    "Model",
    "Network",
    "NormOptions",
    "PositionOptions",
    "Recurrent",
    "RecurrentDecoder",
    "SeparateBackbones",
    "backbone_of",
    "beam_search",
    "count_parameters",
    "generate",
    "greedy",
    "linear_cross_entropy",
    "make_sampler",
    "module_key",
    "shared_name",
]
