"""Models that process Tokens: attention, backbones, decoders, fusions, and the complete model.

The code of this package does not depend on modalities or tasks. Adapters and heads are passed to it
as arguments.
"""

from typing import TYPE_CHECKING, Any

from dxn.core.parts import lazy_names

# The module that defines each name. They are imported on first use: a classifier needs no decoder.
_MODULES = {
    "Attention": "attention",
    "Backbone": "backbone",
    "Block": "blocks",
    "BlockOptions": "blocks",
    "BottleneckFusion": "late_fusion",
    "CrossAttention": "cross_attention",
    "Decoder": "decoding.decoder",
    "EarlyFusion": "fusion",
    "Ensemble": "model",
    "Hypothesis": "decoding.search",
    "InputVectors": "model",
    "KVCache": "decoding.decoder",
    "LanguageModel": "decoding.language_model",
    "LateFusion": "late_fusion",
    "Memory": "decoding.decoder",
    "Mlp": "blocks",
    "MultimodalModel": "model",
    "Network": "model",
    "NormOptions": "blocks",
    "OutputLayer": "decoding.output_layer",
    "OutputOptions": "decoding.output_layer",
    "PositionOptions": "blocks",
    "Recurrent": "recurrent",
    "RecurrentDecoder": "decoding.recurrent_decoder",
    "SeparateBackbones": "late_fusion",
    "beam_search": "decoding.generation",
    "count_parameters": "model",
    "generate": "decoding.generation",
    "greedy": "decoding.search",
    "linear_cross_entropy": "losses",
    "make_sampler": "decoding.search",
    "module_key": "model",
    "shared_name": "fusion",
}

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
