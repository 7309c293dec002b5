"""The families of public checkpoints: those of dxn, and those of other packages."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from dxn.core.errors import UserError
from dxn.weights.families.bart import BART, WHISPER
from dxn.weights.families.bert import BERT, DISTILBERT, MODERNBERT, ROBERTA
from dxn.weights.families.clip import CLIP_IMAGE, CLIP_TEXT, SIGLIP_IMAGE, SIGLIP_TEXT
from dxn.weights.families.hf_vit import DINOV2, DINOV2_REGISTERS, HF_VIT, VIDEOMAE
from dxn.weights.families.language_models import GPT2, LLAMA
from dxn.weights.families.llava import LLAVA
from dxn.weights.families.queries import EOMT, YOLOS
from dxn.weights.families.sounds import AST, WAV2VEC2
from dxn.weights.families.t5 import CHRONOS_BOLT, T5
from dxn.weights.families.vit import VIT
from dxn.weights.family import Family

ENTRY_POINTS = "dxn.families"
# The order has no effect, because a checkpoint may match only one family, except for the two towers
# of CLIP and of SigLIP. A program can append a family to this list. A package should declare an
# entry point instead, so that its family is available without importing the package.
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
    LLAMA,
    LLAVA,
    T5,
    CHRONOS_BOLT,
    BART,
    AST,
    WHISPER,
    WAV2VEC2,
    CLIP_IMAGE,
    CLIP_TEXT,
    SIGLIP_IMAGE,
    SIGLIP_TEXT,
    VIDEOMAE,
    YOLOS,
    EOMT,
]


def all_families() -> tuple[Family, ...]:
    """Return the families in `FAMILIES`, followed by those of installed packages.

    Raises:
        UserError: If an entry point cannot be loaded.
    """
    return (*FAMILIES, *_installed_families())


@functools.cache
def _installed_families() -> tuple[Family, ...]:
    """Load the entry points of the group "dxn.families", once per process."""
    # This function is called when the first checkpoint is read, not when dxn is imported, because
    # importing other packages may take long.
    families: list[Family] = []
    for entry_point in entry_points(group=ENTRY_POINTS):
        label = f"{ENTRY_POINTS}: {entry_point.name} = {entry_point.value}"
        try:
            family = entry_point.load()
        except Exception as error:  # importing another package can raise any exception
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"entry point {label}: cannot be loaded ({reason}); fix or uninstall the package"
            ) from error
        # Check the type here, so that the message contains the name of the entry point.
        if not isinstance(family, Family):
            raise UserError(
                f"entry point {label}: must be a dxn.weights.Family, got {type(family).__name__}; "
                "fix or uninstall the package"
            )
        families.append(family)
    return tuple(families)
