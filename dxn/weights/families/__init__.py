"""The families of public checkpoints that dxn knows. There is one module per family."""

from __future__ import annotations

from dxn.weights.families.ast import AST
from dxn.weights.families.bert import BERT
from dxn.weights.families.clip import CLIP_IMAGE, CLIP_TEXT
from dxn.weights.families.dinov2 import DINOV2, DINOV2_REGISTERS
from dxn.weights.families.distilbert import DISTILBERT
from dxn.weights.families.gpt2 import GPT2
from dxn.weights.families.hf_vit import HF_VIT
from dxn.weights.families.modernbert import MODERNBERT
from dxn.weights.families.roberta import ROBERTA
from dxn.weights.families.vit import VIT
from dxn.weights.families.whisper import WHISPER
from dxn.weights.family import Family

# The order has no effect, because a checkpoint may match only one family, except for the two towers
# of CLIP. A program can append a family to this list. A package should declare an entry point
# instead, so that its family is available without importing the package.
FAMILIES: list[Family] = [
    VIT,
    HF_VIT,
    DINOV2,
    DINOV2_REGISTERS,
    BERT,
    ROBERTA,
    DISTILBERT,
    MODERNBERT,
    GPT2,
    AST,
    WHISPER,
    CLIP_IMAGE,
    CLIP_TEXT,
]
