"""Models of sentence-transformers: a checkpoint of a family, changed by the modules after it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from dxn.core.tensors import TensorFiles, check_after_loading
from dxn.core.untrusted import shortened
from dxn.weights.checkpoint import Checkpoint
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.sentence_files import FILE, DenseSettings, damaged, unsupported

# dxn's activation by the name of its class in torch.
ACTIVATIONS = {"Identity": "linear", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


def with_modules(
    checkpoint: Checkpoint,
    family: Family,
    architecture: Architecture,
    tensor_map: TensorMap,
) -> tuple[Family, Architecture, TensorMap]:
    """Return what `read_public` found for a Transformer, changed to what its modules compute.

    Raises:
        UserError: If the Transformer reads no texts, or a file of a module is damaged.
    """
    sentence = checkpoint.sentence
    assert sentence is not None
    if "text" not in architecture.adapters:
        raise unsupported(sentence.folder, f"{FILE} with {family.name}, which reads no texts")
    if checkpoint.config.get("auto_map"):
        raise unsupported(sentence.folder, "code in the folder of a model (auto_map)")
    text = dict(architecture.adapters["text"])
    # Not an int in some files: 1e30, which means that there is no limit.
    limit = sentence.settings.max_seq_length or checkpoint.tokenizer_max_len
    text["max_len"] = min(text["max_len"], limit or text["max_len"])
    # The tokenizer decides which, and adds none if it has none to add.
    tokenizer: Options = {**text.get("tokenizer", {}), "special_tokens": True}
    if sentence.settings.do_lower_case:
        tokenizer["lowercase"] = True
    if sentence.prompt:
        tokenizer["prompt"] = sentence.prompt
    text["tokenizer"] = tokenizer
    # The tensors of the original head are not used.
    heads = {name: source for name, source in tensor_map.items() if name.startswith("head.")}
    unused = {re.escape(name) for source in heads.values() for name in source.names}
    family = replace(family, ignored=(*family.ignored, *(rf"{name}$" for name in sorted(unused))))
    tensor_map = {name: source for name, source in tensor_map.items() if name not in heads}
    head: Options = {"normalize": True} if sentence.normalize else {}
    if sentence.dense:
        weight, bias, activation = _dense(sentence.dense)
        head |= {"hidden": activation, "hidden_dim": len(weight)}
        for kind, tensor in (("weight", weight), ("bias", bias)):
            tensor_map[f"head.pre.dense.{kind}"] = TensorSource((), partial(_constant, tensor))
    architecture = replace(
        architecture,
        adapters={**architecture.adapters, "text": text},
        fusion={"pool": sentence.pool},
        head=head,
        decoder={},
        labels=None,
        inputs=(),
        task=Architecture.task,
        state={},
        embed_pool=None,
    )
    return family, architecture, tensor_map


def _constant(tensor: Tensor) -> Tensor:
    return tensor


def _dense(layers: Sequence[tuple[Path, DenseSettings]]) -> tuple[Tensor, Tensor, str]:
    """Return the weight, the bias and the activation of the linear layer that equals all layers.

    Raises:
        UserError: If a file is damaged, or there is no such layer.
    """
    activations: list[str] = []
    for folder, settings in layers:
        name = settings.activation_function
        kind = ACTIVATIONS.get(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
        if kind is None or settings.use_residual:
            what = "use_residual" if kind else f"the activation function {shortened(name)}"
            raise unsupported(folder, what)
        activations.append(kind)
    if set(activations[:-1]) - {"linear"}:
        raise unsupported(layers[0][0].parent, "several Dense layers with an activation between")
    parts = [_linear(folder, settings.bias) for folder, settings in layers]
    for (first, _), (second, _) in pairwise(parts):
        if second.shape[1] != len(first):
            raise damaged(layers[0][0].parent, "the sizes of its Dense layers do not fit together")
    weight, bias = parts[0]
    for outer, added in parts[1:]:
        weight, bias = outer @ weight, outer @ bias + added
    return weight, bias, activations[-1]


def _linear(folder: Path, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Return the weight (E, D) and the bias (E,) of a Dense in float64."""
    names = ("model.safetensors", "pytorch_model.bin")
    paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        raise damaged(folder, f"there is neither {' nor '.join(names)}")
    files = TensorFiles(paths[:1])
    wanted = ["linear.weight", *(["linear.bias"] if has_bias else [])]
    tensors = {name: files[name].double() for name in wanted if name in files}
    if set(tensors) != set(wanted) or tensors["linear.weight"].ndim != 2:
        raise damaged(folder, f"its weights must have {' and '.join(wanted)}")
    check_after_loading(tensors, f"weights: {folder}")
    weight = tensors["linear.weight"]
    bias = tensors.get("linear.bias", weight.new_zeros(len(weight)))
    if bias.shape != weight.shape[:1]:
        raise damaged(folder, "linear.bias does not fit to linear.weight")
    return torch.clone(weight), torch.clone(bias)
