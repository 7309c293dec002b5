"""Data sets: data sources, reading and validation of rows, and batching."""

from typing import TYPE_CHECKING, Any

from dxn.core.parts import lazy_names

# The module that defines each name. Modules are imported on first use: most of them import torch,
# which takes seconds, and `dxn.data.sources.detect` is needed before that. No module of this folder
# may have the name of an exported function: importing it would replace the function.
_MODULES = {
    "BatchOrder": "loader",
    "Issue": "reading",
    "InputSpec": "rows",
    "LoaderOptions": "loader",
    "Opened": "dataset",
    "Report": "inspect.check",
    "Rows": "rows",
    "Samples": "dataset",
    "Source": "rows",
    "TokenWindows": "token_windows",
    "complete_splits": "splits.split",
    "annotated": "sources.annotated",
    "count_truncated": "inspect.quality",
    "folder": "sources.folder",
    "hub": "sources.hub",
    "Loader": "loader",
    "make_samples": "token_windows",
    "open_rows": "reading",
    "rows_of_table": "sources.table",
    "table": "sources.table",
    "text_files": "sources.text",
    "write_bad": "inspect.check",
}

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
