"""Data sets: data sources, reading and validation of rows, and batching."""

import importlib
from typing import Any

# The module that defines each name. Modules are imported on first use: most of them import torch,
# which takes seconds, and `dxn.data.sources` is needed before that. No module may have the name of
# an exported function: importing it would replace the function by the module.
_MODULES = {
    "BatchOrder": "batches",
    "Fault": "opening",
    "InputSpec": "rows",
    "LoaderOptions": "samples",
    "Opened": "opening",
    "Report": "check",
    "Rows": "rows",
    "Samples": "samples",
    "Source": "rows",
    "Stream": "stream",
    "complete_splits": "splits",
    "count_truncated": "check",
    "folder": "folders",
    "hub": "hubs",
    "make_loader": "loader",
    "make_samples": "stream",
    "open_rows": "opening",
    "rows_of_table": "tables",
    "table": "tables",
    "text_files": "files",
    "write_bad": "check",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dxn.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dxn.data.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
