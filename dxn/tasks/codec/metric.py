"""How close decoded values are to the original ones, and how many codes are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.tasks.codec.target import CodecTarget
from dxn.tasks.metric import Metric

# Constants of SSIM: the side of its window in pixels, the standard deviation of the weights in it,
# and two constants that avoid a division by a small number.
MIN_SIDE, SIGMA, K_MEANS, K_VARIANCES = 11, 1.5, 0.01, 0.03


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The codes of one sample, and what is decoded from them.

    Args:
        codes: (M, R).
        values: (N, K) float16. Normalized values of the patches.
        size: G, H and W, see `PatchContents`.
        error: Sum of the squared errors of all known values, in the unit of the raw value.
        power: Sum of the squared deviations of these values from the mean of the training split.
        count: Number of these values.
        ssim: Structural similarity of a picture; NaN for other inputs.
    """

    codes: Tensor
    values: Tensor
    size: tuple[int, int, int]
    error: float
    power: float
    count: int
    ssim: float


class Fidelity(Metric):
    """Peak signal-to-noise ratio, structural similarity, and the use of the codes.

    psnr is 10 log10(peak² / mean squared error) in decibels, over all values of all samples. Inputs
    without a peak value, such as sounds and series, have snr instead, the ratio of the variance to
    the squared error.

    Args:
        target: The values of the patches.
        num_codes: Number of codes of each of the R stages.
    """

    def __init__(self, target: CodecTarget, *, num_codes: int):
        self.target = target
        self.num_codes = num_codes

    @property
    def monitored(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ratio that the input has."""
        return "psnr" if self.target.peak else "snr"

    @property
    def row(self) -> tuple[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same ratio of each sample."""
        return self.monitored, self.monitored

    def rows(self, predictions: Sequence[Reconstruction], targets: Sequence[None]) -> Tensor:
        """Return the sums of each sample, and its similarity and its bits."""
        rows = [
            (
                each.error,
                each.power,
                each.count,
                0.0 if math.isnan(each.ssim) else each.ssim,
                not math.isnan(each.ssim),
                each.codes.numel() * math.log2(self.num_codes),
                1.0,
            )
            for each in predictions
        ]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 7)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the ratio in decibels, the mean similarity, and the mean number of bits."""
        error, power, count, ssim, pictures, bits, rows = sums.unbind(-1)
        peak = self.target.peak
        # A constant has no power, so its ratio is undefined.
        signal = power.where(power > 0, math.nan) if peak is None else peak**2 * count
        results = {self.monitored: 10 * (signal / error).log10()}
        if peak is not None:
            results["ssim"] = ssim / pictures
        return results | {"bits": bits / rows}

    def metrics(
        self, predictions: Sequence[Reconstruction], targets: Sequence[None], loss: float
    ) -> dict[str, float]:
        """Return the metrics, the share of the codes that occur in any sample, and their entropy.

        The entropy of the frequencies p of the codes of a stage is - sum p log2 p.
        """
        results = super().metrics(predictions, targets, loss)
        if not predictions:
            return results
        used, entropies = 0.0, 0.0
        codes = torch.cat([each.codes for each in predictions])
        for stage in codes.T:
            counts = stage.unique(return_counts=True)[1]
            frequencies = counts.double() / len(stage)
            used += len(counts) / self.num_codes
            entropies -= float((frequencies * frequencies.log2()).sum())
        stages = codes.shape[1]
        return results | {"codes_used": used / stages, "entropy": entropies / stages}


def similarity(first: Tensor, second: Tensor) -> float:
    """Return the structural similarity of two pictures (C, H, W) of values from 0 to 1.

    NaN if they are smaller than the window of the measure (Wang et al., 2004).
    """
    if min(first.shape[1:]) < MIN_SIDE:
        return math.nan
    # Autocast to bfloat16 would lose the variances, so that the result could be above 1.
    first, second = first.double(), second.double()
    distance = torch.arange(MIN_SIDE, dtype=torch.float64) - MIN_SIDE // 2
    weights = (-(distance**2) / (2 * SIGMA**2)).exp()
    window = weights[:, None] * weights / weights.sum() ** 2

    def smooth(x: Tensor) -> Tensor:
        return F.conv2d(x[:, None], window[None, None])

    mean, other = smooth(first), smooth(second)
    variance = smooth(first**2) - mean**2
    other_variance = smooth(second**2) - other**2
    covariance = smooth(first * second) - mean * other
    means, variances = K_MEANS**2, K_VARIANCES**2
    numerator = (2 * mean * other + means) * (2 * covariance + variances)
    denominator = (mean**2 + other**2 + means) * (variance + other_variance + variances)
    return float((numerator / denominator).mean())
