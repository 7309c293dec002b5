"""Compute many rows on another engine: parts that can be continued, and Ray."""
