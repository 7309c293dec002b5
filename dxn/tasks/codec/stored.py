"""A trained codec, as a part of another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.parts import Recorded, arguments_of
from dxn.core.tensors import TensorFiles, set_tensor, write_tensors
from dxn.models.model import MultimodalModel
from dxn.tasks.codec.head import FiniteScalars
from dxn.tasks.codec.task import Codec
from dxn.tokenize.base import Reader

BATCH = 64  # raw values that are encoded together
MAX_KEPT = 500_000  # samples whose codes are kept, so that a server does not fill the memory


class StoredCodec(Recorded, nn.Module):
    """Turns raw values into codes, and codes into raw values. Its weights never change.

    Args:
        input: Name of the input of the codec.
        adapter: Adapter of the codec.
        state: What the adapter has learned besides its weights.
        fusion: Fusion of the codec.
        backbone: Backbone of the codec.
        task: The task `Codec`.
        size: G, H and W of the largest sample, see `CodecTarget`.
        path: File with the weights of the codec. None: `load` reads them.
    """

    def __init__(
        self,
        *,
        input: str,
        adapter: Any,
        fusion: Any,
        backbone: Any,
        task: Any,
        size: Sequence[int],
        state: Mapping[str, Any] | None = None,
        path: str | None = None,
    ):
        super().__init__()
        if not isinstance(task, Codec):
            raise ValueError(f"a codec needs the task codec, got {type(task).__name__}")
        if len(size) != 3 or min(size) < 1:
            raise ValueError(f"size must be three positive numbers, got {list(size)}")
        if state:
            try:
                adapter.load_state(state)
            except (LookupError, ValueError, TypeError, RuntimeError, OverflowError) as error:
                raise ValueError(f"state: {type(error).__name__}: {error}") from error
        self.input = input
        self.state = state
        self.path = path
        self._codes: dict[bytes, Tensor] = {}  # of each sample, by its digest
        self.task = task
        task.target.bind({input: adapter})
        groups, height, width = size
        task.target.size = groups, height, width
        self.tokenizer = adapter.tokenizer.plain()
        head = task.make_head(adapter.dim, fusion.width, {input: adapter})
        self.model = MultimodalModel(
            {input: adapter}, inputs={input: input}, fusion=fusion, backbone=backbone, head=head
        )
        self.model.requires_grad_(False).eval()
        if path is not None and Path(path).exists():
            self.load(Path(path))

    @property
    def reader(self) -> Reader:
        """Reader of the raw values."""
        return self.tokenizer.reader

    @property
    def scalars(self) -> FiniteScalars:
        """What makes codes of vectors, and vectors of codes."""
        return self.model.head.scalars

    @property
    def has_fixed_length(self) -> bool:
        """Whether all samples have the same number of codes, as pictures of one size have."""
        contents = self.task.target.contents
        return contents.peak is not None and self.task.target.size[0] == 1

    @property
    def num_tokens(self) -> int:
        """Number M of tokens of the largest sample, each of which has R codes."""
        contents = self.task.target.contents
        return contents.count(self.task.target.size)

    @property
    def row(self) -> int:
        """Number of tokens of a row of a picture or frame; 0 if tokens have no place in one."""
        contents = self.task.target.contents
        if contents.peak is None:
            return 0
        return contents.grid.count(self.task.target.size[2], 1)

    @property
    def step(self) -> int:
        """Number of tokens of a complete part of a value, such as those of a frame of a clip."""
        contents = self.task.target.contents
        return self.num_tokens if self.has_fixed_length else contents.step(self.task.target.size)

    def new_adapter(self, **changes: Any) -> Any:
        """Return an adapter with new weights that prepares values as that of the codec.

        Args:
            changes: Arguments that differ from those of the codec.
        """
        old = self.model.adapter(self.input)
        arguments = arguments_of(old) | changes
        arguments.pop("augment", None)  # would change the values in each epoch
        new = type(old)(**arguments)
        if self.state:
            new.load_state(self.state)
        statistics = dict(old.named_buffers())
        for name, buffer in new.named_buffers():
            buffer.copy_(statistics[name])
        new.tokenizer = new.tokenizer.plain()
        return new

    def codes(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the codes (M, R) of a prepared value. They are kept, and so computed once."""
        digest = blake2b(digest_size=16)
        for name, value in sample.items():
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.numpy().tobytes())
        key = digest.digest()
        if key in self._codes:
            return self._codes[key].long()
        (codes,) = self._encoded(self.tokenizer.collate([sample]), 1)
        if len(self._codes) < MAX_KEPT:
            self._codes[key] = codes.to(torch.int32)
        return codes.clone()

    def encode(self, raws: Sequence[Any]) -> list[Tensor]:
        """Return the codes (M, R) of raw values."""
        codes: list[Tensor] = []
        for start in range(0, len(raws), BATCH):
            part = raws[start : start + BATCH]
            codes += self._encoded(self.tokenizer.batch(part), len(part))
        return codes

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Any:
        """Return the raw value of codes (M, R), where M is a multiple of `step`.

        Raises:
            UserError: If there are no codes.
        """
        contents = self.task.target.contents
        if not len(codes):
            raise UserError("a value cannot be decoded from no codes")
        count = self.num_tokens if self.has_fixed_length else len(codes)
        mask = torch.ones(1, count, dtype=torch.bool)
        values = self.model.head.values(codes[None], mask)[0]
        return contents.raw(values, contents.size(count, self.task.target.size))

    @torch.inference_mode()
    def _encoded(self, part: dict[str, Any], size: int) -> list[Tensor]:
        """Return the codes (M, R) of each of the prepared values of a batch."""
        batch = {"#size": size, self.input: {**part, "rows": torch.arange(size)}}
        tokens, _ = self.model.encode(self.model.embed(batch))
        codes = self.model.head.codes(tokens)
        mask = tokens.select(self.input).mask
        return [sample[real] for sample, real in zip(codes, mask, strict=True)]

    def save(self, path: Path) -> None:
        """Write the weights to a file."""
        write_tensors(path, self.model.state_dict())

    def load(self, path: Path) -> None:
        """Read the weights from a file.

        Raises:
            UserError: If they are not those of this codec.
        """
        tensors = TensorFiles([path])
        expected = self.model.state_dict()
        missing = [name for name in expected if name not in tensors]
        wrong = [n for n in expected if n in tensors and tensors[n].shape != expected[n].shape]
        if missing or wrong:
            raise UserError(
                f"{path}: is not the weights of this codec: {(missing + wrong)[0]} is missing or "
                "has another shape; copy the model again"
            )
        with torch.no_grad():
            for name in expected:  # large weights have no values yet, see `without_values`
                set_tensor(self.model, name, tensors[name])
        self._codes.clear()
        # The values of patches contain copies of the statistics of the input.
        self.task.target.bind({self.input: self.model.adapter(self.input)})
