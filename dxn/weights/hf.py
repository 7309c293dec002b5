"""Helper functions for the families whose checkpoints were written by transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.weights.checkpoint import Checkpoint, option_of
from dxn.weights.conversions import (
    LayerNames,
    copied,
    linears,
    patch_matrix,
    patch_positions,
)
from dxn.weights.family import Architecture, Classifier, Options, TensorMap, TensorSource

# Names of the query, key and value layers in CLIP and in Whisper's encoder.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
# Names of the layers of a block in ViT, DeiT and AST.
VIT_BLOCK: LayerNames = {
    "attn_norm": "layernorm_before",
    "attn.qkv": tuple(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attn.proj": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
# A tensor of the bare model, and its names as a part of a model with a head.
VIT_BASE = ("embeddings.cls_token", "vit", "deit", "dinov2", "dinov2_with_registers")
VIT_PATCHES = "embeddings.patch_embeddings.projection"
VIT_POSITIONS = "embeddings.position_embeddings"
VIT_BIASES = ("query.bias", "key.bias", "value.bias")  # missing if qkv_bias is False
# The task in a class of transformers, such as SequenceClassification in
# BertForSequenceClassification. A class of a bare model, such as BertModel, has none.
CLASS_TASK = re.compile(r"For([A-Z]\w*)$")
TAGS, ANSWERS = "TokenClassification", "QuestionAnswering"
# Those of encoders of texts, with their pretraining.
TEXT_HEADS = (
    *("SequenceClassification", TAGS, ANSWERS),
    *("PreTraining", "MaskedLM", "NextSentencePrediction"),
)
# dxn's name for each activation function of transformers.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def unsupported(checkpoint: Checkpoint, feature: str) -> NoReturn:
    """Raise an error for a checkpoint that needs a feature which dxn does not support.

    Raises:
        UserError: Always.
    """
    raise UserError(f"weights: {checkpoint.source}: dxn does not support {feature}")


def model_type(checkpoint: Checkpoint) -> str:
    """Return model_type from config.json, such as "bert", or "" if there is none."""
    return str(checkpoint.config.get("model_type", ""))


def is_type(*names: str) -> Callable[[Checkpoint], bool]:
    """Return a function that tells whether the model_type of a checkpoint is one of these."""
    return lambda checkpoint: model_type(checkpoint) in names


def tower(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    """Return the settings of one tower, "text" or "vision", which is alone or in a group."""
    return checkpoint.settings.get(f"{name}_config") or checkpoint.settings


def activation(checkpoint: Checkpoint, config: Mapping[str, Any], key: str = "hidden_act") -> str:
    """Return dxn's name of the activation function of the MLPs.

    Args:
        checkpoint: The checkpoint, for the error message.
        config: Settings that contain the activation function.
        key: Key of the activation function in `config`.

    Raises:
        UserError: If dxn does not support the activation function.
    """
    name = str(config.get(key, "gelu"))
    if name not in ACTIVATIONS:
        unsupported(checkpoint, f"the activation function {name!r}")
    return ACTIVATIONS[name]


def backbone_options(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Options:
    """Return the backbone's options from settings with the names that most families use."""
    return {
        "depth": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "block": {
            "mlp": activation(checkpoint, config),
            "hidden_dim": config["intermediate_size"],
        },
        "norm": {"eps": config["layer_norm_eps"]},
    }


def class_task(checkpoint: Checkpoint) -> str:
    """Return the task in the name of the checkpoint's class, see `CLASS_TASK`; "" if it has none.

    The class is the first of `architectures` in config.json. The names of the tensors do not tell
    tasks apart: `classifier` is a layer on a text, on each token, or on each choice.
    """
    match = CLASS_TASK.search(class_of(checkpoint))
    return match[1] if match else ""


def class_of(checkpoint: Checkpoint) -> str:
    """Return the name of the checkpoint's class in transformers; "" if config.json has none."""
    names = checkpoint.config.get("architectures") or [""]
    return str(names[0] if isinstance(names, list) else names)


def check_class(checkpoint: Checkpoint, heads: Sequence[str]) -> None:
    """Refuse a checkpoint whose class has a head that its family does not read.

    Args:
        checkpoint: The checkpoint.
        heads: The tasks of the heads that the family reads, see `CLASS_TASK`.

    Raises:
        UserError: If the class has another head, or is unknown but decides between two heads.
    """
    task = class_task(checkpoint)
    if task and task not in heads:
        choices = ", ".join(f"...For{head}" for head in heads)
        unsupported(checkpoint, f"the class {class_of(checkpoint)} (architectures), only {choices}")
    layers = ("classifier.weight", "score.weight")
    if TAGS in heads and not class_of(checkpoint) and any(name in checkpoint for name in layers):
        raise UserError(
            f"weights: {checkpoint.source}: config.json must have architectures, such as "
            '["BertForSequenceClassification"], which tell whether the classifier is for texts or '
            "for tokens"
        )


def span_options(checkpoint: Checkpoint) -> Options:
    """Return the options of an `Architecture` that answers questions; {} for any other one."""
    if class_task(checkpoint) != ANSWERS:
        return {}
    return {"task": "span", "inputs": ("question", "context")}


def span_tensors(checkpoint: Checkpoint, architecture: Architecture) -> TensorMap:
    """Return the tensors of a model that answers questions; {} for any other one."""
    if class_task(checkpoint) != ANSWERS:
        return {}
    count = len(architecture.inputs)

    def zeros(weight: Tensor) -> Tensor:
        return weight.new_zeros(count, weight.shape[1])

    # Both texts are one input of the original model, so nothing is added to tell them apart.
    return {
        "fusion.input_embedding.weight": TensorSource(("qa_outputs.weight",), zeros),
        **linears({"head.out": "qa_outputs"}),
    }


def first_of(checkpoint: Checkpoint, *names: str) -> str:
    """Return the first of these names that a tensor has, or the first one if none has."""
    return next((name for name in names if name in checkpoint), names[0])


def is_tied(checkpoint: Checkpoint, embedding: str, output: str) -> bool:
    """Whether the output layer is the embedding of the tokens: it is missing, or the same.

    Files in the format of torch contain both. transformers compares them too, whatever
    tie_word_embeddings says.
    """
    tensors = checkpoint.tensors
    return output not in tensors or torch.equal(tensors[embedding], tensors[output])


def writing_options(checkpoint: Checkpoint, max_len: int) -> Options:
    """Return options of the head of an encoder-decoder, with which the library generates texts.

    Args:
        checkpoint: The checkpoint.
        max_len: Maximum number of tokens of a text.

    Raises:
        UserError: If dxn does not support a value.
    """
    generation = checkpoint.generation
    # The head writes the most probable text.
    if generation.do_sample:
        unsupported(checkpoint, f"{option_of('do_sample', True)} of a model with a decoder")
    for name, value in generation.foreign.items():
        unsupported(checkpoint, option_of(name, value))
    start = (generation.decoder_start_token_id, generation.bos_token_id, generation.pad_token_id)
    begin = [i for i in start if i is not None and i >= 0][:1]
    if generation.forced_bos_token_id is not None:
        begin.append(generation.forced_bos_token_id)
    if not begin or not generation.eos_token_id:
        raise KeyError("decoder_start_token_id" if not begin else "eos_token_id")
    penalty = 1.0 if generation.length_penalty is None else generation.length_penalty
    if penalty < 0:
        unsupported(checkpoint, f"a negative length_penalty, got {penalty}")
    return {
        "share_tokenizer": True,
        "max_len": max_len,
        "marks": {"begin": begin, "end": generation.eos_token_id},
        "rules": rules(checkpoint, len(begin)),
        "beams": generation.num_beams or 1,
        "length_penalty": penalty,
    }


def rules(checkpoint: Checkpoint, num_begin: int) -> Options:
    """Return the rules about the tokens of a text, see `dxn.models.decoding.rules.Rules`.

    Args:
        checkpoint: The checkpoint.
        num_begin: Number of tokens before a text. The library counts all in a length, and all but
            the first one in a number of new tokens.
    """
    generation = checkpoint.generation
    shortest, longest = generation.min_length or 0, generation.max_length or 0
    if generation.min_new_tokens is not None:
        shortest = generation.min_new_tokens + 1
    if generation.max_new_tokens is not None:
        longest = generation.max_new_tokens + 1
    words = [ids[0] for ids in generation.bad_words_ids or [] if len(ids) == 1]
    if len(words) < len(generation.bad_words_ids or []):
        unsupported(checkpoint, "bad_words_ids of several tokens in generation_config.json")
    return {
        "forbidden": sorted({*words, *(generation.suppress_tokens or [])}),
        "forbidden_first": generation.begin_suppress_tokens or [],
        "min_new": max(shortest - num_begin, 0),
        "max_new": max(longest - num_begin, 0),
        "forced_end": generation.forced_eos_token_id not in (None, []),
        "no_repeat_ngram": generation.no_repeat_ngram_size or 0,
        "repetition_penalty": generation.repetition_penalty or 1.0,
        # All tokens after the first one count.
        "length_offset": num_begin - 1,
    }


def period(values: Sequence[Any]) -> list[Any]:
    """Return the shortest list that is repeated in `values`, such as the windows of all blocks."""
    sizes = range(1, len(values))
    return list(next((values[:n] for n in sizes if values[n:] == values[:-n]), values))


def classifier_options(checkpoint: Checkpoint, classifier: str) -> Options:
    """Return the task, the labels and the state of an `Architecture` with a classifier.

    As in transformers, `problem_type` decides how its outputs are read, and a single output is a
    number.

    Args:
        checkpoint: The checkpoint.
        classifier: Name of the layer.

    Returns:
        The options; {} if the checkpoint has no such layer, or its class does not use it.

    Raises:
        UserError: If dxn does not support the problem_type.
    """
    labels = class_names(checkpoint, classifier)
    task = class_task(checkpoint)
    if labels is None or (class_of(checkpoint) and "Classification" not in task):
        return {}
    if task == TAGS:
        # The models were trained on words and punctuation marks.
        return {"task": "tag", "labels": labels, "state": {"punctuation": True}}
    kind = checkpoint.settings.get("problem_type")
    if kind == "multi_label_classification":
        return {"task": "multilabel", "labels": labels}
    if kind == "regression" or len(labels) == 1:
        if len(labels) > 1:
            unsupported(checkpoint, f"{len(labels)} numbers of one sample (problem_type={kind})")
        state = {"mean": 0.0, "std": 1.0, "sigmoid": pair_activation(checkpoint) == "Sigmoid"}
        return {"task": "regress", "state": state}
    if kind not in (None, "single_label_classification"):
        unsupported(checkpoint, f"problem_type={kind}")
    return {"labels": labels}


def pair_activation(checkpoint: Checkpoint) -> str:
    """Return the activation after the outputs of a CrossEncoder of sentence-transformers.

    Its name is Identity or Sigmoid, and "" for any other model.

    Raises:
        UserError: If dxn does not support it.
    """
    settings = checkpoint.settings
    group = settings.get("sentence_transformers") or {}
    path = group.get("activation_fn") or settings.get("sbert_ce_default_activation_function") or ""
    name = str(path).rpartition(".")[2]
    if name not in ("", "Identity", "Sigmoid"):
        unsupported(checkpoint, f"the activation function {path!r} of a CrossEncoder")
    return name


def paired(architecture: Architecture) -> Architecture:
    """Return the architecture of a classifier for two texts in one sequence."""
    return replace(
        architecture,
        inputs=("text", "text_pair"),
        head={**architecture.head, "pair": True},
        # Both texts are one input of the original model, so nothing is added to tell them apart.
        fusion={**architecture.fusion, "input_embedding": False},
    )


def class_names(checkpoint: Checkpoint, classifier: str) -> list[str] | None:
    """Return the class names of a classifier, or None if the checkpoint has no such layer.

    A class without a name in config.json is called LABEL_0, LABEL_1, ..., as in transformers.
    """
    count = checkpoint.num_rows(f"{classifier}.weight")
    names = checkpoint.config.get("id2label") or {}
    return distinct_names(str(names.get(str(i), f"LABEL_{i}")) for i in range(count)) or None


def distinct_names(names: Iterable[str]) -> list[str]:
    """Return the names of classes. One that occurs before gets the number of its class.

    ImageNet, for example, has two classes "crane", and COCO several classes "N/A".
    """
    result: dict[str, None] = {}
    for i, name in enumerate(names):
        while name in result:
            name = f"{name} {i}"
        result[name] = None
    return list(result)


def classifier(
    name: str, labels: Sequence[str], layers: Mapping[str, str], *, prefix: str
) -> Classifier:
    """Return the description of a classifier.

    Args:
        name: Name of its class in transformers.
        labels: Its labels.
        layers: Names of the layers of its head, by their names in the dxn model.
        prefix: Prefix of the tensors of the bare model.
    """
    config = {
        "architectures": [name],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }
    tensors = {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in layers.items()
        for kind in ("weight", "bias")
    }
    return Classifier(config, tensors, prefix)


def patch_tensors(
    image: Options, projection: str, positions: str, grid: Sequence[int] | None = None
) -> TensorMap:
    """Return the tensors of the adapter of a vision transformer.

    Args:
        image: Options of the adapter.
        projection: Name of the convolution of the patches.
        positions: Name of the position embeddings.
        grid: Number of patches (H, W). Default: the option resize.pos_grid.
    """
    side = image["patch_size"]
    return {
        "adapters.image.proj.weight": patch_matrix(
            f"{projection}.weight", channels=image["in_channels"], height=side, width=side
        ),
        "adapters.image.proj.bias": copied(f"{projection}.bias"),
        "adapters.image.pos_embed.weight": patch_positions(
            positions, grid or image["resize"]["pos_grid"]
        ),
    }
