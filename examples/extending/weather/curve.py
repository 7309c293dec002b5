from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import pad

from dxn.core.tokens import Span, Tokens, sinusoidal
from dxn.tokenize import Adapter, BadMedia, Reader, Tokenizer


class CurveReader(Reader):
    modality = "curve"

    def read(self, cell):
        try:
            return torch.tensor([float(word) for word in str(cell).split()])
        except ValueError:
            raise BadMedia(f"must be numbers separated by spaces, got {cell!r}") from None


class CurveTokenizer(Tokenizer):
    # NaN stands for a missing number, and for the padding of a batch.
    fill: ClassVar = {"patches": torch.nan}

    def __init__(self, patch):
        self.reader, self.patch = CurveReader(), patch

    def __call__(self, raw, rand=None):  # (T,) to (N, patch)
        padded = pad(raw, (0, -len(raw) % self.patch), value=torch.nan)
        return {"patches": padded.view(-1, self.patch)}


class CurveAdapter(Adapter):
    reader = CurveReader

    def __init__(self, dim: int, *, patch: int = 6):
        super().__init__()
        self.dim, self.tokenizer, self.proj = dim, CurveTokenizer(patch), nn.Linear(patch, dim)
        self.register_buffer("scale", torch.tensor([0.0, 1.0]))  # mean and standard deviation

    def fit(self, raws):  # of the training split
        known = torch.cat([raw[raw.isfinite()] for raw in raws])
        self.scale.copy_(torch.stack([known.mean(), known.std(correction=0).clamp(min=1e-6)]))

    def forward(self, batch):
        patches = (batch["patches"] - self.scale[0]) / self.scale[1]  # (B, N, patch)
        mask = ~patches.isnan().all(-1)
        size, count = patches.shape[:2]  # not len, which an export would make constant
        index = torch.arange(count, device=patches.device)
        x = self.proj(patches.nan_to_num()) + sinusoidal(index, self.dim)  # NaN becomes the mean
        coords = torch.stack([index, index + 1], -1) * self.tokenizer.patch  # first and last number
        coords = coords.expand(size, -1, -1).where(mask[..., None], torch.nan)
        return Tokens(x, mask, (Span("curve", "curve", 0, count, coords),))
