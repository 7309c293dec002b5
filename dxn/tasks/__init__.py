"""Tasks: target parsing, heads, losses, metrics and the rows of predictions.csv."""

from dxn.tasks.auto import Auto, infer_task, task_class
from dxn.tasks.classify import Classify
from dxn.tasks.contrastive import Contrastive
from dxn.tasks.embed import Embed
from dxn.tasks.forecast import Forecast
from dxn.tasks.generate import Generate
from dxn.tasks.generate_head import Generated
from dxn.tasks.heads import LinearHead, PreHead, TokenHead
from dxn.tasks.language import Language
from dxn.tasks.loss import LossSum
from dxn.tasks.masked import Masked
from dxn.tasks.multilabel import Multilabel
from dxn.tasks.regress import Regress
from dxn.tasks.tag import Tag
from dxn.tasks.task import (
    IGNORED,
    TASKS,
    ClassifiesByExample,
    Task,
    Window,
    Writes,
    read_state,
)

__all__ = [
    "IGNORED",
    "TASKS",
    "Auto",
    "ClassifiesByExample",
    "Classify",
    "Contrastive",
    "Embed",
    "Forecast",
    "Generate",
    "Generated",
    "Language",
    "LinearHead",
    "LossSum",
    "Masked",
    "Multilabel",
    "PreHead",
    "Regress",
    "Tag",
    "Task",
    "TokenHead",
    "Window",
    "Writes",
    "infer_task",
    "read_state",
    "task_class",
]
