"""Learn discrete tokens of an input, from which the values of its patches can be decoded again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.codec.head import CodecHead, Coded, check_levels
from dxn.tasks.metric import Metric
from dxn.tasks.space import AnswerKind, Batch, LossSum
from dxn.tasks.target import Target
from dxn.tasks.task import Task
from dxn.tokenize.patch_contents import PatchContents

MAX_SHOWN = 3  # sizes in an error message
# Constants of SSIM: the side of its window in pixels, the standard deviation of the weights in it,
# and two constants that avoid a division by a small number.
MIN_SIDE, SIGMA, K_MEANS, K_VARIANCES = 11, 1.5, 0.01, 0.03
EDGE_SCALES = 3  # each half as large as the one before


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
    contents: PatchContents
    peak: float | None = None  # of the contents, after `bind`

    def __init__(self):
        self.input = ""
        self.size = (1, 1, 1)

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Use the only input.

        Raises:
            UserError: If there are several inputs, or patches do not determine the input.
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
        self.peak = contents.peak
        self.prepared_inputs = (self.input,)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the name of the input."""
        return f"the patches of {self.input}"

    def encode(
        self, value: Any, sample: dict[str, Any], rand: Random | None = None
    ) -> dict[str, Tensor] | None:
        """Return the normalized values (N, K) of the patches, and which of them are known."""
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
        """Find the size of the largest sample.

        Raises:
            UserError: If pictures have different sizes.
        """
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
    def ratio(self) -> str:
        """Name of the ratio that the input has."""
        return "psnr" if self.target.peak else "snr"

    @property
    def monitored(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ratio, or the metric that the user has chosen."""
        return vars(self).get("monitored", self.ratio)

    @monitored.setter
    def monitored(self, name: str) -> None:
        vars(self)["monitored"] = name

    @property
    def row(self) -> tuple[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ratio of each sample."""
        return self.ratio, self.ratio

    def rows(self, predictions: Sequence[Reconstruction], targets: Sequence[None]) -> Tensor:
        """Return the sums of each sample, and its similarity and its bits."""
        rows = [
            (
                prediction.error,
                prediction.power,
                prediction.count,
                0.0 if math.isnan(prediction.ssim) else prediction.ssim,
                not math.isnan(prediction.ssim),
                prediction.codes.numel() * math.log2(self.num_codes),
                1.0,
            )
            for prediction in predictions
        ]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 7)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the ratio in decibels, the mean similarity, and the mean number of bits."""
        error, power, count, ssim, pictures, bits, rows = sums.unbind(-1)
        peak = self.target.peak
        # A constant has no power, so its ratio is undefined.
        signal = power.where(power > 0, math.nan) if peak is None else peak**2 * count
        results = {self.ratio: 10 * (signal / error).log10()}
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
        codes = torch.cat([prediction.codes for prediction in predictions])
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


@dataclass(kw_only=True, eq=False)
class Codec(Task[CodecTarget]):
    """Learn codes of the patches of an input, from which a decoder restores it.

    The input is a picture, a sound, a series or a clip. The loss is the mean squared error of the
    normalized values.

    Args:
        decoder: Constructor of the transformer of the decoder.
        levels: Numbers of levels whose product is the number of codes. Those of 8, 10, 12 and 14
            bits in FSQ are [8,6,5], [8,5,5,5], [7,5,5,5,5] and [8,8,8,6,5] (arXiv:2309.15505, table
            1).
        stages: Number of codes of each token. Each one is more exact than the previous one, for
            which each number needs at least 3 levels.
        absolute: Weight of the mean absolute error, which keeps edges sharper.
        edges: Weight of a perceptual term: the mean absolute error of the differences of
            neighboring pixels, in the picture and in two smaller versions of it.
        rate: Weight of the distance of each number of a code from its middle level, in levels of
            the first stage, see `FiniteScalars.distance`. All distances are added to the squared
            errors of all values. Then codes store an outline, which makes many values more exact,
            but no noise, so they are easier to predict.
    """

    name = "codec"

    decoder: Callable[[], nn.Module]
    levels: Sequence[int] = (8, 5, 5, 5)
    stages: Annotated[int, Ge(1)] = 1
    absolute: Annotated[float, Ge(0)] = 0.0
    edges: Annotated[float, Ge(0)] = 0.0
    rate: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self):
        check_levels(self.levels, self.stages)
        self.target = CodecTarget()
        self.metric = Fidelity(self.target, num_codes=math.prod(self.levels))

    @property
    def answer_kind(self) -> AnswerKind:
        """The codes of a sample."""
        return AnswerKind.CODES

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> CodecHead:
        """Build a head with a quantization and a decoder."""
        return CodecHead(self, dim)

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Find the size of the samples."""
        self.target.prepare(samples)

    def loss(self, output: Coded, batch: Batch) -> LossSum:
        """Return the mean error of the known values, which counts once per value, and the rate."""
        target, valid = batch["target"]["values"], batch["target"]["valid"]
        difference = (output.values - target) * valid
        total = difference.square().sum()
        if self.absolute:
            total = total + self.absolute * difference.abs().sum()
        if self.edges:
            total = total + self.edges * valid.sum() * self._edges(difference)
        if self.rate:
            # A sample without any known value teaches nothing.
            total = total + self.rate * (output.distance * valid.flatten(1).any(1)).sum()
        return LossSum(total, valid.sum().float())

    def predict(
        self, head: nn.Module, output: Coded, batch: Batch, *, draft: bool = False
    ) -> list[Reconstruction]:
        """Return the codes and the decoded values of each sample, and their errors."""
        contents = self.target.contents
        rows = batch[self.target.input]["rows"].tolist()
        values, codes, mask = (x.detach().cpu() for x in (output.values, output.codes, output.mask))
        targets = {key: tensor.cpu() for key, tensor in batch["target"].items()}
        predictions: list[Reconstruction] = []
        for i in rows:
            true, valid = targets["values"][i], targets["valid"][i]
            groups, height, width = targets["size"][i].tolist()
            size = groups, height, width
            count = contents.count(size)
            true, valid, decoded = true[:count], valid[:count], values[i, :count]
            first, second, is_valid = (
                contents.joined(x[None], size)[0] for x in (decoded, true, valid)
            )
            scale = contents.scale.expand(first.shape[1:])
            difference = (first - second) * scale
            ssim = math.nan
            if contents.peak is not None:
                # The errors are those of the picture that is written, whose values are limited.
                first, picture = (contents.natural(x) for x in (first, second))
                difference = first.clamp(0, 1) - picture
                if self.target.size[0] == 1:
                    ssim = similarity(first[0].clamp(0, 1), picture[0].clamp(0, 1))
            error = difference[is_valid].square().sum()
            power = (second * scale)[is_valid].square().sum()
            real_codes = codes[i][mask[i]].to(torch.int32)
            number = int(is_valid.sum())
            predictions.append(
                Reconstruction(
                    real_codes, decoded.half(), size, float(error), float(power), number, ssim
                )
            )
        return predictions

    def answer(
        self, prediction: Reconstruction, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the codes of each token as lists, the number of codes of a stage, and how close
        the decoded value is.
        """
        codes = prediction.codes.tolist()
        figures = self.metric.value(self.metric.rows([prediction], [None])[0])
        # JSON has no NaN, such as the similarity of small pictures.
        fidelity = {name: float(x) if x.isfinite() else None for name, x in figures.items()}
        return {"prediction": codes, "num_codes": math.prod(self.levels), "fidelity": fidelity}

    def columns(
        self, prediction: Any, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the codes, the number of tokens, and how close the decoded value is."""
        answer = self.answer(prediction)
        tokens = len(answer["prediction"])
        return {"prediction": answer["prediction"], "tokens": tokens, **answer["fidelity"]}

    def restored(self, prediction: Reconstruction) -> dict[str, Any]:
        """Return the decoded value."""
        contents = self.target.contents
        return {self.target.input: contents.raw(prediction.values, prediction.size)}

    def _edges(self, difference: Tensor) -> Tensor:
        """Return the mean absolute difference of neighboring errors at several scales."""
        contents = self.target.contents
        size = contents.size(difference.shape[1], self.target.size)
        x = contents.joined(difference, size)
        x = rearrange(x, "b g c h w -> (b g) c h w")
        total = x.new_zeros(())
        for _ in range(EDGE_SCALES):
            for axis in (2, 3):
                if x.shape[axis] > 1:
                    total = total + x.diff(dim=axis).abs().mean() / (2 * EDGE_SCALES)
            x = F.avg_pool2d(x, 2, ceil_mode=True)
        return total
