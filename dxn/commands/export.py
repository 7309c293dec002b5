"""The commands that give a model to others: `dxn export` and `dxn push`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from dxn.commands.options import OUTPUT_FOLDER, FromRun, FromWeights, Weights, ZeroShotLabels
from dxn.core.errors import UserError
from dxn.runs.folder import is_run


@dataclass(frozen=True, kw_only=True)
class Export(FromWeights, ZeroShotLabels):
    """Export a model to ONNX, torch.export or transformers, which run without dxn.

    Args:
        format: onnx (onnxruntime), torch (torch.export) or public: the files of the public
            checkpoint from which the training started, for transformers or timm.
        weights: The public checkpoint to export. With format=public, the checkpoint from which the
            training of the run started (default: that of the run).
        dtype: With format=public, the data type of the weights: float32 or bf16.
        output: Folder to write (default: export/FORMAT in the run folder, or here).
        baseline: auto exports the baseline of the model if a graph can compute its features, none
            leaves it out. Without it, the graph answers like the transformer alone.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn export run=outputs/label",
        "dxn export run=latest format=torch output=exported",
        "dxn export weights=sentence-transformers/all-MiniLM-L6-v2 output=exported",
        "dxn export run=latest format=public output=tuned",
    )

    needs: ClassVar[Mapping[str, Sequence[str]]] = {
        "format=public": ["dtype"],
    }
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {"format=public": ["baseline", "head"]}

    format: Literal["onnx", "torch", "public"] = "onnx"
    dtype: Literal["float32", "bf16"] = "float32"
    output: Annotated[str | None, OUTPUT_FOLDER] = None
    baseline: Literal["auto", "always", "none"] = "auto"

    def execute(self) -> int:
        """Export a model, compare the files with it, and write how to use them."""
        from dxn.core.display import next_step, print_line
        from dxn.export.folder import write_export
        from dxn.export.formats import check_format

        # A model folder can be in the cache of the hub, where nothing else should be written.
        parent = Path(self.run) if self.run is not None and is_run(Path(self.run)) else Path()
        folder = Path(self.output or parent / "export" / self.format)
        # A large model takes a minute.
        about = f"exporting {self.run or self.weights.source} to {folder} as {self.format}"
        # Float32 on a CPU, because these are the weights that the run has.
        texts = {"labels": self.labels, "template": self.template}
        if self.format == "public":
            run = self.required_run()
            source = self._weights_of(Path(run))
            print_line(about)
            options = {"revision": source.revision, "part": source.part, "dtype": self.dtype}
            FromRun.load(self, **texts).save_public(folder, str(source.source), **options)
            print_line(f"written: {folder}")
            return 0
        check_format(self.format)
        print_line(about)
        predictor = self.load(**texts)
        for line in write_export(predictor, folder, self.format, baseline=self.baseline):
            print_line(line)
        # The example runs the model without dxn.
        next_step("python", str(folder / "example.py"))
        return 0

    def _weights_of(self, run: Path) -> Weights:
        """Return the public checkpoint from which the training started.

        Raises:
            UserError: If it is unknown.
        """
        if self.weights.source is not None:
            return self.weights
        source = None
        if is_run(run):
            from dxn.runs.plan import read_plan

            node = read_plan(run).config["weights"]
            source = Weights(node["source"], node["revision"], node["part"])
        if source is None or source.source is None:
            raise UserError(
                f"weights: {run}: the public checkpoint from which the training started is "
                "unknown; set weights=MODEL"
            )
        return source


@dataclass(frozen=True, kw_only=True)
class Push(FromRun):
    """Upload a trained model with a model card to the Hugging Face hub.

    Args:
        repo: Repository OWNER/NAME, which is created if necessary.
        revision: Branch to write, which is created if necessary (default: main).
        private: Whether a new repository is private.
        license: License of the model for its card, such as apache-2.0.
        message: Message of the commit.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn push run=outputs/label repo=OWNER/NAME",
        "dxn push run=latest repo=OWNER/NAME private=false license=apache-2.0",
    )

    repo: str | None = None
    revision: str | None = None
    private: bool = True
    license: str | None = None
    message: str = "Upload a dxn model"

    def execute(self) -> int:
        """Upload the model folder of a run."""
        from dxn.core.display import print_line
        from dxn.export.hub import publish

        if self.repo is None:
            raise UserError("repo: set repo=OWNER/NAME to the repository to write")
        run = Path(self.required_run())
        lines = publish(
            run,
            self.repo,
            revision=self.revision,
            private=self.private,
            license=self.license,
            message=self.message,
            trust=self.settings.folder_trust,
        )
        for line in lines:
            print_line(line)
        return 0
