"""Public checkpoints into dxn's own parts: one file a family."""

from dxn.weights.public import Public, read_public, save_public

__all__ = ["Public", "read_public", "save_public"]
