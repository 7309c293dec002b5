"""The command `dxn export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from dxn.commands.model import FromRun, Labels
from dxn.config.command import OUTPUT_FOLDER
from dxn.runs.paths import is_run


@dataclass(frozen=True, kw_only=True)
class Export(FromRun, Labels):
    """Export a trained model to ONNX or torch.export, which run without dxn.

    Args:
        format: onnx (onnxruntime) or torch (torch.export).
        output: Folder to write (default: export/FORMAT in the run folder, or here).
        baseline: none leaves out the baseline of the model, and changes its predictions.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn export run=outputs/label",
        "dxn export run=latest format=torch output=exported",
    )

    format: Literal["onnx", "torch"] = "onnx"
    output: Annotated[str | None, OUTPUT_FOLDER] = None
    baseline: Literal["auto", "always", "none"] = "auto"

    def execute(self) -> int:
        """Export a model, compare the files with it, and write how to use them."""
        from dxn.core.display import next_step, print_line
        from dxn.export.folder import write_export
        from dxn.export.formats import check_format

        check_format(self.format)
        run = Path(self.required_run())
        # A model folder can be in the cache of the hub, where nothing else should be written.
        parent = run if is_run(run) else Path()
        folder = Path(self.output or parent / "export" / self.format)
        # Float32 on a CPU, because these are the weights that the run has.
        predictor = self.load(labels=self.labels, template=self.template)
        for line in write_export(predictor, folder, self.format, baseline=self.baseline):
            print_line(line)
        # The example runs the model without dxn.
        next_step("python", str(folder / "example.py"))
        return 0
