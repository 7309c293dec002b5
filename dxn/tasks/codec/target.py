"""The target of a codec: the values of the patches of its input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.tasks.target import Target
from dxn.tokenize.contents import PatchContents


class CodecTarget(Target):
    """The values of the patches of the input.

    Attributes:
        input: Name of the input. `bind` sets it and the values.
    """

    source = "inputs"

    def __init__(self):
        self.input = ""
        self.contents: PatchContents | None = None

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Use the only input.

        Raises:
            UserError: If there are several, or it has no patches from which it can be put together.
        """
        if len(adapters) != 1:
            raise UserError(
                f"head=codec: needs one input, got {', '.join(adapters)}; name its column, such as "
                "data.image=photo"
            )
        ((self.input, adapter),) = adapters.items()
        contents = adapter.contents()
        if contents is None:
            raise UserError(
                f"head=codec: needs an input of patches (image, audio, video or series), got "
                f"{self.input} ({adapter.modality})"
            )
        if contents.grid.size != contents.grid.stride:
            raise UserError(
                f"head=codec: patches must not overlap, got patches of {contents.grid.size} with a "
                f"stride of {contents.grid.stride}; leave out the stride"
            )
        if contents.size is None:
            raise UserError(
                f"adapters.{adapter.modality}.image_size: head=codec needs pictures of one size, "
                "got null; set it, such as 64 or [60,80]"
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
        values, valid = self.contents.patches(sample[self.input])
        return {"values": values, "valid": valid}

    def collate(self, targets: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad the patches of the samples to (B, N, K)."""
        pad = nn.utils.rnn.pad_sequence
        return {key: pad([each[key] for each in targets], True) for key in ("values", "valid")}
