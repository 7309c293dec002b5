"""Kinds of fuzz.py whose inputs are single files: pictures and sounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_bytes import mutate

WRONG_SUFFIX = 0.02  # share of the files that get the suffix of another format


@dataclass(frozen=True)
class MediaFiles:
    """Mutated files, which are read and prepared as samples.

    Args:
        name: Name of the kind.
        files: The content of valid files of all formats, by file name.
        read: Function that reads a file as a data set does, and checks the result.
    """

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path], Any]

    def prepare(self, folder: Path) -> None:
        """Check that the valid files are read."""
        for name, content in self.files.items():
            path = folder / name
            path.write_bytes(content)
            self.read(path)

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Write a mutated file."""
        name = rand.choice(sorted(self.files))
        content, description = mutate(self.files[name], rand, list(self.files.values()))
        wrong = rand.choice(sorted(self.files)) if rand.random() < WRONG_SUFFIX else name
        (folder / wrong).write_bytes(content)
        return f"{name} as {wrong}: {description}"

    def use(self, folder: Path) -> Any:
        """Read the file as a path, which is how a data set names it."""
        (path,) = folder.iterdir()
        return self.read(path)
