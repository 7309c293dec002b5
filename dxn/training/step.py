"""What belongs to one optimizer step: the figures of its batches, and the state before it."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dxn.data.dataset import Samples
from dxn.training.checkpoint import generator_states, set_generator_states

# Messages of the CPU that accelerate does not know: of C++, and of oneDNN, which computes layers.
OUT_OF_MEMORY = (
    "std::bad_alloc",
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory object",
)
MAX_NAMED = 5  # rows in a message


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a batch, or of a part of one.

    Args:
        total: Weighted sum of the losses of all targets (), detached.
        weight: Sum of these weights. 1 if `total` is the mean already.
        size: Number of samples.
        rows: Rows of the training split, of this process only.
    """

    total: Tensor
    weight: float
    size: int
    rows: Sequence[int] = ()

    @property
    def mean(self) -> Tensor:
        """Mean loss over the targets ()."""
        return self.total if self.weight in (0, 1) else self.total / self.weight

    @classmethod
    def sum(cls, parts: Sequence[BatchLoss]) -> BatchLoss:
        """Return the loss of all parts together."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            torch.stack([part.total for part in parts]).sum(),
            sum(part.weight for part in parts),
            sum(part.size for part in parts),
            [row for part in parts for row in part.rows],
        )


@dataclass(frozen=True)
class Start:
    """The state before an optimizer step, to which a training can return within the step.

    Args:
        batch: Number of finished batches of the epoch.
        generators: States of the random generators.
        statistics: Buffers of batch norms, and copies of them.
    """

    batch: int
    generators: Mapping[str, Tensor]
    statistics: Sequence[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, statistics: Sequence[Tensor], device: torch.device, batch: int) -> Start:
        """Copy the present state.

        Args:
            statistics: Return value of `statistics_of`.
            device: Device of the training.
            batch: Number of finished batches of the epoch.
        """
        copies = [(buffer, buffer.clone()) for buffer in statistics]
        return cls(batch, generator_states(device), copies)

    def restore(self, device: torch.device) -> None:
        """Restore the generators and the statistics in place."""
        set_generator_states(self.generators, device)
        self.restore_statistics()

    def restore_statistics(self) -> None:
        """Restore only the statistics, which a batch that is not finite has damaged."""
        for buffer, value in self.statistics:
            buffer.copy_(value)


def statistics_of(model: nn.Module) -> list[Tensor]:
    """Return the buffers of all batch norms, the only ones that the forward pass changes."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [buffer for norm in norms for buffer in norm.buffers()]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was too short, on the CPU or on an accelerator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    return should_reduce_batch_size(error) or any(text in str(error) for text in OUT_OF_MEMORY)


def name_rows(samples: Samples, epoch: int, rows: Sequence[int]) -> str:
    """Name the rows of a batch whose loss is not finite.

    These are the samples with values that are not finite, if there are any, or all rows of the
    batch.

    Args:
        samples: Samples of the training split.
        epoch: Epoch, which determines the augmentation.
        rows: Rows of the batch.
    """
    positions = {row: i for i, row in enumerate(samples.rows)}
    bad = [row for row in rows if not _is_finite(samples[epoch, positions[row]])]
    kind = "values that are not finite in" if bad else "batch with"
    named = bad or list(rows)
    names = [samples.describe_index(row) for row in named[:MAX_NAMED]]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"{kind} {', '.join(names)}{more}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return _are_finite(value.values())
    return not isinstance(value, list | tuple) or _are_finite(value)


def _are_finite(values: Iterable[Any]) -> bool:
    return all(_is_finite(value) for value in values)
