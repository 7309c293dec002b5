"""The target of a codec: the values of the patches of its input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.target import Target
from dxn.tokenize.patch_contents import PatchContents

MAX_SHOWN = 3  # sizes in an error message


class CodecState(Strict):
    """The content of labels.json."""

    # JSON has no tuples.
    size: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]


class CodecTarget(Target):
    """The values of the patches of the input.

    Attributes:
        input: Name of the input. `bind` sets it and the values.
        size: G, H and W of the largest sample, see `PatchContents`. `prepare` sets it.
    """

    State: ClassVar[type[Strict]] = CodecState
    source = "inputs"

    def __init__(self):
        self.input = ""
        self.size = (1, 1, 1)
        self.contents: PatchContents | None = None

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Use the only input.

        Raises:
            UserError: If there are several, or it has no patches from which it can be put together.
        """
        if len(adapters) != 1:
            raise UserError(
                f"head=codec: needs one input, got {', '.join(adapters)}; choose one by its "
                "adapter, such as adapters=[image]"
            )
        ((self.input, adapter),) = adapters.items()
        contents = adapter.contents()
        if contents is None:
            raise UserError(
                f"head=codec: needs an input of patches (image, audio, video or series), got "
                f"{self.input} ({adapter.modality})"
            )
        if contents.restore is None:
            raise UserError(
                f"head=codec: {self.input} cannot be computed from the values of its patches; a "
                "spectrogram needs the option frontend=mel"
            )
        if contents.grid.size != contents.grid.stride:
            raise UserError(
                f"adapters.{adapter.modality}.stride: head=codec needs patches that do not overlap,"
                f" got patches of {contents.grid.size} with a stride of {contents.grid.stride}; set"
                " it to null"
            )
        self.contents = contents
        self.prepared_inputs = (self.input,)

    @property
    def peak(self) -> float | None:
        """Largest difference of two values, see `PatchContents`."""
        return None if self.contents is None else self.contents.peak

    def describe(self, values: Sequence[Any]) -> str:
        """Return the name of the input."""
        return f"the patches of {self.input}"

    def encode(
        self, value: Any, sample: dict[str, Any], rand: Random | None = None
    ) -> dict[str, Tensor] | None:
        """Return the normalized values (N, K) of the patches, and which of them are known."""
        assert self.contents is not None
        if self.input not in sample:
            return None
        groups, _, height, width = self.contents.read(sample[self.input])[0].shape
        values, valid = self.contents.patches(sample[self.input])
        size = torch.tensor([groups, height, width])
        return {"values": values, "valid": valid, "size": size}

    def collate(self, targets: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad the patches of the samples to (B, N, K), and stack the sizes (B, 3)."""
        pad = nn.utils.rnn.pad_sequence
        padded = {
            key: pad([target[key] for target in targets], True) for key in ("values", "valid")
        }
        return {**padded, "size": torch.stack([target["size"] for target in targets])}

    def prepare(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Find the size of the samples.

        Raises:
            UserError: If pictures have different sizes.
        """
        assert self.contents is not None
        sizes: set[tuple[int, int, int]] = set()
        for sample in samples:
            groups, height, width = sample["target"]["size"].tolist()
            sizes.add((groups, height, width))
        self.size = max(sizes, default=self.size)
        if self.contents.peak is not None and len({size[1:] for size in sizes}) > 1:
            shown = ", ".join(f"{h}×{w}" for _, h, w in sorted(sizes)[:MAX_SHOWN])
            raise UserError(
                f"head=codec: pictures of {self.input} must have one size (height×width), got "
                f"{shown} and others; set image_size and resize.mode=stretch of their adapter"
            )
