"""Learn discrete tokens of an input, from which it can be decoded again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange
from torch import Tensor, nn

from dxn.models.pooling import check_registers
from dxn.tasks.codec.head import CodecHead, Coded
from dxn.tasks.codec.metric import Fidelity, Reconstruction, similarity
from dxn.tasks.codec.quantize import check_levels
from dxn.tasks.codec.target import CodecTarget
from dxn.tasks.space import AnswerKind, Batch, LossSum
from dxn.tasks.task import Task

EDGE_SCALES = 3  # each half as large as the one before


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
        stages: Number of codes of each token. Each one is more exact than the previous one.
        latents: Number of learned tokens that become the codes, instead of one token per patch. It
            needs as many fusion.registers. 0: each patch has its own codes.
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
    latents: Annotated[int, Ge(0)] = 0
    absolute: Annotated[float, Ge(0)] = 0.0
    edges: Annotated[float, Ge(0)] = 0.0
    rate: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self):
        check_levels(self.levels)
        self.target = CodecTarget()
        self.metric = Fidelity(self.target, num_codes=math.prod(self.levels))

    @property
    def answer_kind(self) -> AnswerKind:
        """The codes of a sample."""
        return AnswerKind.CODES

    def check(self, config: Mapping[str, Any]) -> None:
        """Check the configuration, see `Task.check`."""
        super().check(config)
        registers = config.get("fusion", {}).get("registers") or 0
        check_registers(self.latents, registers, option="head.latents")

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> CodecHead:
        """Build a head with a quantization and a decoder."""
        return CodecHead(
            dim,
            target=self.target,
            levels=self.levels,
            stages=self.stages,
            latents=self.latents,
            decoder=self.decoder,
        )

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
        assert contents is not None
        rows = batch[self.target.input]["rows"].tolist()
        values, codes, mask = (x.detach().cpu() for x in (output.values, output.codes, output.mask))
        targets = {key: each.cpu() for key, each in batch["target"].items()}
        found: list[Reconstruction] = []
        for i in rows:
            true, valid = targets["values"][i], targets["valid"][i]
            groups, height, width = targets["size"][i].tolist()
            size = groups, height, width
            count = contents.count(size)
            true, valid, own = true[:count], valid[:count], values[i, :count]
            first, second, known = (contents.joined(x[None], size)[0] for x in (own, true, valid))
            scale = contents.scale.expand(first.shape[1:])
            error = ((first - second) * scale)[known].square().sum()
            power = (second * scale)[known].square().sum()
            ssim = math.nan
            if contents.peak is not None and self.target.size[0] == 1:
                pair = (contents.natural(x[0]).clamp(0, 1) for x in (first, second))
                ssim = similarity(*pair)
            kept = codes[i][mask[i]].to(torch.int32)
            number = int(known.sum())
            found.append(
                Reconstruction(kept, own.half(), size, float(error), float(power), number, ssim)
            )
        return found

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
        assert contents is not None
        return {self.target.input: contents.raw(prediction.values, prediction.size)}

    def _edges(self, difference: Tensor) -> Tensor:
        """Return the mean absolute difference of neighboring errors at several scales."""
        contents = self.target.contents
        assert contents is not None
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
