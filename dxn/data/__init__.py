"""Data sets: data sources, reading and validation of rows, and batching."""

from dxn.data.batches import BatchOrder, make_loader
from dxn.data.check import Report, check, count_truncated, write_bad
from dxn.data.files import text_files
from dxn.data.folders import folder
from dxn.data.hub import hub
from dxn.data.opening import Fault, Opened, open_rows
from dxn.data.rows import InputSpec, Rows, Source
from dxn.data.samples import LoaderOptions, Samples
from dxn.data.splits import complete_splits
from dxn.data.stream import Stream, make_samples
from dxn.data.table import rows_of_table, table

__all__ = [
    "BatchOrder",
    "Fault",
    "InputSpec",
    "LoaderOptions",
    "Opened",
    "Report",
    "Rows",
    "Samples",
    "Source",
    "Stream",
    "check",
    "complete_splits",
    "count_truncated",
    "folder",
    "hub",
    "make_loader",
    "make_samples",
    "open_rows",
    "rows_of_table",
    "table",
    "text_files",
    "write_bad",
]
