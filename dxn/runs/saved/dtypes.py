"""The data type of a model in use: the choice, and its effect on the metrics."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

from dxn.core.errors import UserError
from dxn.core.runtime import choose_bf16
from dxn.data.dataset import Samples
from dxn.models.model import MultimodalModel, Network
from dxn.runs.predictor.predictor import Predictor
from dxn.training.predict import score

Dtype: TypeAlias = Literal["auto", "float32", "bf16", "int8"]
# A model with fewer weights in linear layers is used as it is: preparing its inputs takes longer
# than its products.
MIN_WEIGHTS = 5_000_000
MAX_COMPARED = 1000  # rows whose metrics are also computed in float32


def dtype_of_weights(model: MultimodalModel, dtype: Dtype, device: str) -> torch.dtype | None:
    """Return the dtype in which the weights of a model are loaded. None: it is used as it is.

    Args:
        model: The model, whose weights need not be loaded yet.
        dtype: Data type of the weights. auto: bf16 if the model is large and the device has
            instructions for it, otherwise float32. int8: int8 in the linear layers of the
            backbones, and auto for all other weights.
        device: Device that the model will be moved to.

    Raises:
        UserError: If `dtype` is unknown.
    """
    if dtype not in get_args(Dtype):
        raise UserError(f"dtype: must be one of {', '.join(get_args(Dtype))}, got {dtype}")
    layers = {module for module in model.modules() if isinstance(module, nn.Linear)}
    is_large = sum(layer.weight.numel() for layer in layers) >= MIN_WEIGHTS
    if dtype in ("auto", "float32") and not is_large:
        return None
    is_bf16 = dtype == "bf16" or (dtype != "float32" and _prefers_bf16(model, device))
    return torch.bfloat16 if is_bf16 else torch.float32


def set_dtype(network: Network, dtype: Dtype, weights_dtype: torch.dtype | None) -> str:
    """Convert the models of a network in place, which are then only used.

    Args:
        network: The network with its weights, on its device.
        dtype: The option, see `dtype_of_weights`.
        weights_dtype: What `dtype_of_weights` returned for the option.

    Returns:
        The data type that is used: float32, bf16 or int8.

    Raises:
        UserError: If int8 is not possible for the model or its device.
    """
    if weights_dtype is None:
        return "float32"
    from dxn.models.inference import Int8Linear, convert  # a small model is used as it is

    for model in network.models:
        convert(model, weights_dtype, int8=dtype == "int8")
    if dtype != "int8":
        return "bf16" if weights_dtype == torch.bfloat16 else "float32"
    if not any(isinstance(module, Int8Linear) for module in network.modules()):
        device = next(network.parameters()).device
        raise UserError(
            f"dtype: int8 needs a transformer with linear layers of at least 128 columns on a CPU "
            f"or an NVIDIA GPU, got device={device.type}; use dtype=auto"
        )
    return "int8"


def difference(
    predictor: Predictor,
    reference: Predictor,
    samples: Samples,
    *,
    batch_size: int,
) -> str:
    """Compare the metrics of a model with those of the same model in float32.

    Args:
        predictor: The model.
        reference: The model in float32.
        samples: Samples with targets. At most `MAX_COMPARED` are used.
        batch_size: Number of samples per batch.

    Returns:
        A line with the difference of each metric.
    """
    compared = copy.copy(samples)
    compared.keep(MAX_COMPARED)
    figures: list[Mapping[str, float]] = []
    for compared_model in (predictor, reference):
        predictions = compared_model.run(compared, batch_size=batch_size)
        figures.append(score(predictions, compared, compared_model.task))
    changes = [
        f"{name} {value - figures[1][name]:+.4f}"
        for name, value in figures[0].items()
        if math.isfinite(value) and math.isfinite(figures[1].get(name, math.nan))
    ]
    rows = f"{len(compared.rows):,} rows"
    return f"{predictor.dtype} minus float32, {rows}: {', '.join(changes) or 'no metrics'}"


def _prefers_bf16(model: MultimodalModel, device: str) -> bool:
    from dxn.models.inference import foreign_parts

    # The code of somebody else may create tensors in float32, which bf16 layers reject.
    if foreign_parts(model):
        return False
    return choose_bf16(torch.device(device))[0]
