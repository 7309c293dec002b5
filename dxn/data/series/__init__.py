"""Series in tables: long and wide layouts, windows, timelines."""
