"""Tasks: targets, heads, losses, metrics and the rows of predictions.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxn.core.parts import lazy_names
from dxn.tasks.heads import HeadOptions, LinearHead, PreHead
from dxn.tasks.metric import Metric
from dxn.tasks.names import Names
from dxn.tasks.space import Categorical, LossSum, Space
from dxn.tasks.target import IGNORED, Target
from dxn.tasks.task import TASKS, Task

if TYPE_CHECKING:
    from dxn.tasks.any.task import WriteAny
    from dxn.tasks.classify import Classify
    from dxn.tasks.codec.task import Codec
    from dxn.tasks.contrastive.task import Contrastive
    from dxn.tasks.detect.task import Detect
    from dxn.tasks.embed import Embed
    from dxn.tasks.forecast.task import Forecast, Quantiles
    from dxn.tasks.generate.ctc import Ctc
    from dxn.tasks.generate.task import Generate
    from dxn.tasks.infer import Auto
    from dxn.tasks.language import Language, Window
    from dxn.tasks.masked import Masked
    from dxn.tasks.multilabel import Bernoulli, Multilabel
    from dxn.tasks.regress import Number, Regress
    from dxn.tasks.segment.task import Segment
    from dxn.tasks.span.task import Span
    from dxn.tasks.tag import Tag

__all__ = [
    "IGNORED",
    "TASKS",
    "Auto",
    "Bernoulli",
    "Categorical",
    "Classify",
    "Codec",
    "Contrastive",
    "Ctc",
    "Detect",
    "Embed",
    "Forecast",
    "Generate",
    "HeadOptions",
    "Language",
    "LinearHead",
    "LossSum",
    "Masked",
    "Metric",
    "Multilabel",
    "Names",
    "Number",
    "PreHead",
    "Quantiles",
    "Regress",
    "Segment",
    "Space",
    "Span",
    "Tag",
    "Target",
    "Task",
    "Window",
    "WriteAny",
]

# Modules of the tasks. They are imported when they are used, because a run needs one of them.
MODULES = {
    "Auto": "infer",
    "Bernoulli": "multilabel",
    "Classify": "classify",
    "Codec": "codec.task",
    "Contrastive": "contrastive.task",
    "Ctc": "generate.ctc",
    "Detect": "detect.task",
    "Embed": "embed",
    "Forecast": "forecast.task",
    "Generate": "generate.task",
    "Language": "language",
    "Masked": "masked",
    "Multilabel": "multilabel",
    "Number": "regress",
    "Quantiles": "forecast.task",
    "Regress": "regress",
    "Segment": "segment.task",
    "Span": "span.task",
    "Tag": "tag",
    "Window": "language",
    "WriteAny": "any.task",
}

if not TYPE_CHECKING:  # otherwise every name would be known
    __getattr__, __dir__ = lazy_names(__name__, MODULES)
