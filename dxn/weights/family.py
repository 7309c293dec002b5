"""The description of a family of public models: its architecture and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dxn.weights.checkpoint import Checkpoint

# Constructor options of one part of a model, as in a configuration.
Options = dict[str, Any]


@dataclass(frozen=True)
class TensorSource:
    """The conversion of tensors of a checkpoint to one tensor of a dxn model.

    Args:
        names: Names of the checkpoint's tensors.
        convert: Function that maps these tensors, in the order of `names`, to the dxn tensor.
        invert: Function that maps the dxn tensor to the tensors of `names`. Default: there is no
            inverse, and `Family.to_checkpoint` must return these tensors.
        moves: Whether `convert` only moves values, such as a transposition. It then receives the
            tensors in the dtype of the file, without a copy. Default: it receives them in float64,
            so that a sum or a product is rounded only once, when the result is copied to the model.
    """

    names: tuple[str, ...]
    convert: Callable[..., Tensor]
    invert: Callable[[Tensor], Sequence[Tensor]] | None = None
    moves: bool = False


# Names of the tasks that generate texts.
WRITERS = ("language", "generate")
# The source of each tensor of a dxn model, by the tensor's name.
TensorMap = dict[str, TensorSource]


@dataclass(frozen=True)
class Architecture:
    """The options of a dxn model that is equivalent to a checkpoint.

    Option groups are nested mappings, as in a configuration: {"norm": {"eps": 1e-6}}. The default
    classes are EarlyFusion, Backbone, the task's class, and dxn's built-in adapter for each key.
    The option `_target_` selects another class, also that of a task which is not listed here.

    The task decides the head, and with it the names of the head's tensors:

    - "classify": `labels` has K names, and head.out.weight is (K, D). Without labels, the model
      only embeds. "multilabel" and "tag" (a tag of each word) have the same names, and "regress"
      has one output without a name.
    - "span": the answer to a question is a part of a text. `inputs` has the names of both, and
      head.out.weight is (2, D).
    - "language": a causal language model. The rows of adapters.text.embedding.weight (V, D) are
      also the output layer. With `head={"output": {"tie_embeddings": False}}`, it is
      head.output.weight (V, D). See `OutputOptions` for its bias head.output.bias, a scale and a
      limit of the logits.
    - "generate": an encoder and a decoder, see `decoder`. The names are
      head.decoder.embedding.weight (V, D), head.decoder.pos_embed (max_len, D) if it is learned,
      head.decoder.output.* as above, head.decoder.backbone.norm.*, and
      head.decoder.backbone.blocks.{i}.*. These blocks have, in addition to those of the encoder,
      cross_norm, cross.query, cross.memory (keys, then values) and cross.proj.
      `conversions.blocks(..., to="head.decoder.backbone.blocks")` maps them. With
      `head={"share_tokenizer": True}`, which suits models from text to text, the embedding is that
      of the adapter and has no other name.

    - "detect": learned queries find objects in a picture, see `dxn.tasks.detect.head`.
    - "segment": learned queries find masks in a picture, see `dxn.tasks.segment.head`.
    - "forecast": quantiles of the next values of a series, by a decoder with one token, see
      `dxn.tasks.forecast.head`.

    Args:
        dim: Embedding dimension D.
        adapters: Options of each adapter, by the adapter's key, such as "text".
        backbone: Options of the backbone.
        fusion: Options of the fusion.
        head: Options of the head.
        decoder: Options of the decoder of the task "generate", such as max_len and pos_embed. Its
            `backbone` has the options of a Backbone, which is causal and has cross-attention.
        labels: Class names in the order of the outputs. Default: the checkpoint has no classifier.
        inputs: Names of the inputs, in the order of the fusion's tensors. Default: there is one
            input per adapter, and the fusion has no tensors that depend on the input.
        task: Name of the task of the head.
        state: State of the task, for `Target.load`, if it consists of other values than labels.
        embed_pool: Pooling of a model that only embeds, in place of that of `fusion` and the layers
            of `head`, which are for the training of a classifier. Default: the same.
        encoder: Options of adapters that replace others in a training without the decoder, by the
            adapter's key and their dotted name.
    """

    dim: int
    adapters: dict[str, Options]
    backbone: Options
    fusion: Options = field(default_factory=dict)
    head: Options = field(default_factory=dict)
    decoder: Options = field(default_factory=dict)
    labels: list[str] | None = None
    inputs: tuple[str, ...] = ()
    task: str = "classify"
    state: Options = field(default_factory=dict)
    embed_pool: str | None = None
    encoder: dict[str, Options] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the model generates texts."""
        return self.task in WRITERS


@dataclass(frozen=True)
class Classifier:
    """How the original library stores a classifier of a family.

    Args:
        config: Keys of config.json that name the class of the model and its labels.
        tensors: Names of the tensors of the head, by their names in the dxn model.
        prefix: Prefix of the other tensors, which a checkpoint without a head may lack.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, str]
    prefix: str = ""


@dataclass(frozen=True)
class Family:
    """A family of public models whose checkpoints have the same tensor names and metadata.

    Other packages can add a family: with an entry point in the group "dxn.families" that refers to
    a `Family` object, or by appending the object to `dxn.weights.FAMILIES`.

    Args:
        name: Name of the family in messages.
        matches: Function that returns whether a checkpoint belongs to this family.
        architecture: Function that returns the options of an equivalent dxn model.
        tensor_map: Function that returns the source of each tensor of this dxn model.
        part: Value of weights.part that selects this family if a checkpoint matches several
            families. CLIP, for example, has one tower per modality.
        heads: Tasks of the classes of transformers that the family reads, such as
            SequenceClassification, see `dxn.weights.hf.check_class`. None: config.json does not
            name a class of transformers.
        ignored: Regular expressions that match the names of tensors which dxn does not need.
        optional_biases: Suffixes of the names of biases that may be missing in a checkpoint. A
            missing bias is set to zero.
        classifier: Function of (checkpoint, labels) that describes a classifier of these labels.
            Default: the family cannot be saved in its original format.
        to_checkpoint: Function of (state dict, checkpoint, architecture) that returns the tensors
            of the original format for which the tensor map has no inverse, or another one. Default:
            all tensors have an inverse.
        is_dxn: Whether the model was trained with dxn.
    """

    name: str
    matches: Callable[[Checkpoint], bool]
    architecture: Callable[[Checkpoint], Architecture]
    tensor_map: Callable[[Checkpoint, Architecture], TensorMap]
    part: str | None = None
    heads: tuple[str, ...] | None = None
    ignored: tuple[str, ...] = ()
    optional_biases: tuple[str, ...] = ()
    classifier: Callable[[Checkpoint, Sequence[str]], Classifier] | None = None
    to_checkpoint: (
        Callable[[Mapping[str, Tensor], Checkpoint, Architecture], dict[str, Tensor]] | None
    ) = None
    is_dxn: bool = False
