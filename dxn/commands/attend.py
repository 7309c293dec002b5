"""The command `dxn attend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dxn.commands.model import FromWeights
from dxn.commands.options import Input
from dxn.config.command import OUTPUT_FOLDER


@dataclass(frozen=True, kw_only=True)
class Attend(FromWeights):
    """Draw the attention of a model for one sample.

    For a model that generates text, the cross-attention of each generated token is drawn, too.

    Args:
        input: One sample: a file (input=photo.jpg) or several inputs (input.text=...
            input.image=...).
        output: Folder for the drawings and attention.html, a page with all blocks and heads.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        'dxn attend run=RUN input.text="a fine film"',
        "dxn attend weights=models/vit photo.jpg",
    )

    input: Input
    output: Annotated[str, OUTPUT_FOLDER] = "attention"

    def execute(self) -> int:
        """Draw the attention, and print the share of each input."""
        from dxn.core.display import print_line
        from dxn.runs.attend import draw_attention
        from dxn.runs.predictor.option import read_sample

        predictor = self.load()
        sample = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
        folder = Path(self.output)
        name = str(self.run or self.weights.source)
        result = draw_attention(predictor, sample, folder, model_name=name)
        for name, share in result.shares.items():
            print_line(f"{name}: {share:.1%} of the attention")
        for note in result.notes:
            print_line(note)
        print_line(f"written: {folder}: {', '.join(path.name for path in result.files)}")
        print_line(f"open {result.files[-1]} in a browser")
        return 0
