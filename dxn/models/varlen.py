"""Attention in sequences of different lengths, in one call of a kernel and without padding.

The kernel is that of FlashAttention-2 (arXiv:2307.08691), which torch contains for NVIDIA GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Limits of the kernel.
DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
CAPABILITY = (8, 0)  # of the GPU
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences whose tokens are the rows of one matrix (T, D).

    Args:
        starts: (B + 1,) int32. First row of each sequence, and T.
        longest: Number of tokens of the longest sequence, or more.
        causal: Each token attends only to itself and the tokens before it.
        window: Maximum distance between a query and a key. None: no limit.
    """

    starts: Tensor
    longest: int
    causal: bool = False
    window: int | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Average the values as `dxn.models.attention.attend` does, in each sequence separately.

        Args:
            query: (1, H, T, d), in one of DTYPES or, under autocast, in float32.
            key: (1, H, T, d).
            value: (1, H, T, d), in one of DTYPES.

        Returns:
            (1, H, T, d).
        """
        from torch.nn.attention.varlen import varlen_attn  # takes a second

        # Norms of queries and keys return float32 under autocast.
        query, key, value = (
            part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)
        )
        reach = UNLIMITED if self.window is None else self.window
        limits = (reach, 0 if self.causal else reach)
        longest = self.longest
        out = varlen_attn(
            query, key, value, self.starts, self.starts, longest, longest, window_size=limits
        )
        assert isinstance(out, Tensor)
        return out.transpose(0, 1)[None]


def is_available(x: Tensor, head_dim: int) -> bool:
    """Whether the kernel can compute attention to tokens x (..., D) with heads of d features."""
    if not x.is_cuda or torch.version.cuda is None or torch.compiler.is_exporting():
        return False
    autocast = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if autocast else x.dtype
    fits = head_dim <= MAX_HEAD_DIM and head_dim % HEAD_DIM_STEP == 0
    return fits and dtype in DTYPES and torch.cuda.get_device_capability(x.device) >= CAPABILITY
