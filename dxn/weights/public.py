"""Read a public checkpoint, and convert it to a dxn model: its configuration and its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dxn.config.model_plan import Input, ModelPlan
from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.core.files import LABELS
from dxn.core.tensors import check_after_loading, set_tensor
from dxn.core.untrusted import load_json
from dxn.models.fusion import shared_name
from dxn.models.model import MultimodalModel, module_key
from dxn.tokenize.base import ADAPTERS, Adapter
from dxn.tokenize.positions import PosEmbed2d
from dxn.tokenize.text.chat import read_template
from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.conversions import resize_tensor, with_new_rows
from dxn.weights.dxn_model import DXN_MODEL, reorder_inputs
from dxn.weights.families import all_families
from dxn.weights.family import Architecture, Family, Options, TensorMap, TensorSource
from dxn.weights.hf import check_class, model_type
from dxn.weights.sentence import with_modules
from dxn.weights.tokenizers import make_lowercase, read_tokenizer
from dxn.weights.unread import check_unread

FUSION = "dxn.models.EarlyFusion"
BACKBONE = "dxn.models.Backbone"
EMBED = "dxn.tasks.Embed"  # for a checkpoint without a classifier
# Class of the head of each task.
TASKS = {
    "classify": "dxn.tasks.Classify",
    "multilabel": "dxn.tasks.Multilabel",
    "regress": "dxn.tasks.Regress",
    "tag": "dxn.tasks.Tag",
    "language": "dxn.tasks.Language",
    "generate": "dxn.tasks.Generate",
    "ctc": "dxn.tasks.Ctc",
    "forecast": "dxn.tasks.Forecast",
    "span": "dxn.tasks.Span",
    "detect": "dxn.tasks.Detect",
    "segment": "dxn.tasks.Segment",
}
# What targets keep of a checkpoint, by their task: how it generates texts.
KEPT = {"language": ("ends", "sampling", "unused")}
DECODER = "dxn.models.Decoder"
EMBEDDING = ".embedding.weight"
REGISTERS = "fusion.pool.tokens"  # the class token and the registers
OUTPUT = "head.output."  # the output layer of a language model
TEXTS = "text"  # the part of a tower for texts
LOG_SCALE = "logit_scale"  # logarithm of the factor of the similarities of two towers
# Types of tensors whose values are the weights.
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MAX_NAMES = 8  # number of tensor names in an error message
# Suffixes of parameters that public checkpoints do not have. They are used only in masked
# pretraining and in models with several inputs, so their initial values have no effect otherwise.
UNMAPPED = (".mask_embedding", "fusion.input_embedding.weight")
# The layers from an encoder to a model, which most checkpoints of an encoder do not have.
PROJECTOR = re.compile(r"adapters\.[^.]+\.(up|down)\.")


@dataclass(frozen=True)
class FillResult:
    """The tensors that `PublicModel.fill` did not copy.

    Args:
        missing: Names of the model's tensors that the checkpoint does not have.
        unexpected: Names of the checkpoint's tensors that the family neither uses nor ignores.
        unfilled: Names of the head's tensors that are missing or have another shape in the
            checkpoint. They keep their initial values.
    """

    missing: Sequence[str]
    unexpected: Sequence[str]
    unfilled: Sequence[str]


@dataclass(frozen=True)
class PublicModel:
    """A checkpoint of a known family, with its conversion to a dxn model.

    Args:
        checkpoint: Tensors and metadata.
        family: Family of the checkpoint.
        architecture: Options of an equivalent dxn model.
        tensor_map: Source of each tensor of the dxn model.
    """

    checkpoint: Checkpoint
    family: Family
    architecture: Architecture
    tensor_map: TensorMap

    def plan(self) -> ModelPlan:
        """Return what determines the model.

        Raises:
            UserError: If the model was trained with dxn, so that it already has a config.yaml, or
                if the class of an adapter is unknown.
        """
        if self.family.is_dxn:
            raise UserError(
                f"weights: {self.checkpoint.source}: this model was trained with dxn; load it with "
                "run=FOLDER instead of weights="
            )
        arch = self.architecture
        dim = {"dim": arch.dim}
        adapters: dict[str, Any] = {}
        for key, options in arch.adapters.items():
            target = options.get("_target_") or ADAPTERS.get(key)
            if target is None:
                raise UserError(
                    f"weights: {self.family.name}: dxn has no adapter {key!r}; the family must set "
                    "the class of the adapter with the option _target_"
                )
            adapters[key] = {"_target_": target, **dim, **options}
        # The training data, and so its target column, is unknown.
        inputs = {key: Input(modality=key, column=key, adapter=key) for key in adapters}
        if arch.inputs:  # which share the only adapter
            (key,) = adapters
            inputs = {n: Input(modality=key, column=n, adapter=key) for n in arch.inputs}
        pool = {"pool": arch.embed_pool} if self._embeds and arch.embed_pool else {}
        return ModelPlan(
            inputs=inputs,
            adapters=adapters,
            fusion={"_target_": FUSION, **dim, "inputs": list(inputs), **arch.fusion, **pool},
            backbone={"_target_": BACKBONE, **dim, **arch.backbone},
            head=self._head(),
        )

    def _head(self) -> Options:
        """Return the node of the head.

        Raises:
            UserError: If the task is unknown, and the head has no class of its own.
        """
        arch = self.architecture
        if self._embeds:
            return {"_target_": EMBED, **({} if arch.embed_pool else arch.head)}
        target = arch.head.get("_target_") or TASKS.get(arch.task)
        if target is None:
            raise UserError(
                f"weights: {self.family.name}: dxn has no head for the task {arch.task!r}; the "
                "family must set the class of the head with the option _target_"
            )
        head = {"_target_": target, **arch.head}
        if arch.decoder:
            backbone = {"_target_": BACKBONE, "dim": arch.dim, "causal": True, "cross": True}
            backbone |= arch.decoder.get("backbone", {})
            head["decoder"] = {
                "_target_": DECODER,
                "_partial_": True,
                **arch.decoder,
                "backbone": backbone,
            }
        return head

    @property
    def _embeds(self) -> bool:
        """Whether the checkpoint has no head."""
        arch = self.architecture
        return arch.task == Architecture.task and arch.labels is None

    def task_state(self) -> dict[str, Any]:
        """Return the state of the task in `plan()`, for `Target.load`. {}: it has none."""
        arch = self.architecture
        if self.family.is_dxn and arch.task in KEPT:
            assert self.checkpoint.folder is not None
            state = load_json(self.checkpoint.folder / LABELS)
            return {name: state[name] for name in KEPT[arch.task] if name in state}
        if arch.task in KEPT:
            generation = self.checkpoint.generation
            ends = [i for i in generation.eos_token_id if i >= 0]
            unused = generation.not_of_language_models
            return {"ends": ends, "sampling": generation.sampling, "unused": unused}
        labels = {} if arch.labels is None else {"labels": list(arch.labels)}
        return {**labels, **arch.state}

    def adapter_key(self, key: str, modality: str) -> str | None:
        """Return the key of the checkpoint's adapter for an adapter of a model.

        It is the adapter with the same key, or else the one whose key is the modality. None means
        that the checkpoint has neither.

        Args:
            key: Key of the model's adapter: the original one, or the result of `module_key`.
            modality: Modality of the model's adapter.
        """
        adapters = self.architecture.adapters
        # The names in a state dict contain the result of module_key, a configuration the original.
        for name in adapters:
            if key in (name, module_key(name)):
                return name
        return modality if modality in adapters else None

    def source_name(self, name: str, model: MultimodalModel) -> str | None:
        """Return the name in the tensor map of a tensor of a model.

        The keys of adapters differ if a model has several adapters of one modality, which are all
        loaded from the only adapter of the checkpoint.

        Returns:
            The name; None for an adapter that the checkpoint does not have.
        """
        group, _, rest = name.partition(".")
        if group != "adapters":
            # With one backbone per input, each starts from the backbone of the checkpoint.
            return name if name in self.tensor_map else shared_name(name)
        key, _, rest = rest.partition(".")
        source = self.adapter_key(key, model.adapters[key].modality)
        return None if source is None else f"adapters.{module_key(source)}.{rest}"

    def for_inputs(self, names: Sequence[str]) -> PublicModel:
        """Return the checkpoint for a model with these inputs, in this order.

        Only models that were trained with dxn change, because their fusions have tensors that
        depend on the order of the inputs. See `reorder_inputs`.
        """
        if not self.architecture.inputs or tuple(names) == self.architecture.inputs:
            return self
        tensors = reorder_inputs(self.checkpoint.tensors, self.architecture.inputs, tuple(names))
        checkpoint = replace(self.checkpoint, tensors=tensors)
        architecture = replace(self.architecture, inputs=tuple(names))
        tensor_map = self.family.tensor_map(checkpoint, architecture)
        return PublicModel(checkpoint, self.family, architecture, tensor_map)

    def prepare(self, adapters: Mapping[str, Adapter]) -> None:
        """Set the checkpoint's tokenizer and chat template in adapters that have a vocabulary.

        Args:
            adapters: Adapters by key. Adapters that the checkpoint does not have are not changed.

        Raises:
            UserError: If the checkpoint has no tokenizer.
        """
        for key, adapter in adapters.items():
            source = self.adapter_key(key, adapter.modality)
            if source is None or adapter.tokenizer.vocabulary is None:
                continue
            # Without the tokenizer, the tokens of the rows of the embedding are unknown.
            folder = self.checkpoint.folder
            tokenizer = None if folder is None else read_tokenizer(folder)
            if tokenizer is None:
                raise UserError(
                    f"weights: {self.checkpoint.source}: no tokenizer in the folder of the "
                    "weights; add tokenizer.json, vocab.txt, or vocab.json and merges.txt"
                )
            node = self.architecture.adapters[source]
            options = (node.get("adapter") or node).get("tokenizer", {})
            if options.get("lowercase") and not self.family.is_dxn:
                make_lowercase(tokenizer)
            adapter.use_vocabulary(tokenizer)
            # A model of sentence-transformers reads a text as it is.
            template = None
            if folder is not None and self.checkpoint.sentence is None:
                template = read_template(folder)
            adapter.tokenizer.reader.template = template

    @torch.no_grad()
    def fill(
        self, model: MultimodalModel, *, only: Iterable[str] = ("",), strict: bool = True
    ) -> FillResult:
        """Copy the checkpoint's weights into a model, one tensor at a time.

        Each tensor gets the dtype that it has in the model. A parameter without values (device
        meta) is replaced by one with values, so that a model takes memory only when it is filled.
        Position embeddings and vocabularies of another size are resized, see `resize_tensor`, and
        registers that the checkpoint does not have keep their initial values.
        Tensors of the head that have another shape keep their initial values.

        Args:
            model: A `dxn.models.MultimodalModel`.
            only: Prefixes of the names of the tensors to copy. Default: all tensors.
            strict: Whether to raise an error for missing and unexpected tensors.

        Raises:
            UserError: If a tensor outside of the head has the wrong shape, or if `strict` is set
                and tensors are missing or unexpected. The message contains their names.
        """
        return self.for_inputs(tuple(model.inputs))._fill(model, tuple(only), strict)

    def _fill(self, model: MultimodalModel, only: tuple[str, ...], strict: bool) -> FillResult:
        """Copy the weights after `for_inputs`. See `fill`."""
        missing: list[str] = []
        unfilled: list[str] = []
        for name, target in sorted(model.state_dict().items()):
            source_name = self.source_name(name, model)
            if not name.startswith(only) or not self._is_needed(name, source_name):
                continue
            tensor = self._convert(self.tensor_map.get(source_name or ""))
            if tensor is not None and tensor.shape != target.shape:
                tensor = _resized(name, tensor, target.shape, model)
                if name == REGISTERS and len(tensor) < len(target) and not target.is_meta:
                    # Further registers, such as the queries of a head, start from the beginning.
                    tensor = torch.cat([tensor, target[len(tensor) :].to(tensor)])
            if tensor is not None and tensor.shape == target.shape:
                set_tensor(model, name, tensor)
            elif name.startswith("head."):
                # Fine-tuning on other classes needs a new head, so this is not an error.
                unfilled.append(name)
            elif tensor is None:
                missing.append(name)
            else:
                self._refuse_shape(name, source_name or "", tensor, target)
        # If a tensor of the checkpoint is not used, the dxn model may not be equivalent.
        unexpected = sorted(set(self.checkpoint.tensors) - self._used_names())
        if strict and (missing or unexpected):
            raise UserError(self._mismatch(missing, unexpected))
        return FillResult(missing, unexpected, unfilled)

    def _is_needed(self, name: str, source_name: str | None) -> bool:
        """Return whether the model needs a value for this tensor from the checkpoint.

        Args:
            name: Name of the tensor in the model.
            source_name: Name in the tensor map; None for an adapter that the checkpoint does not
                have.
        """
        if source_name is None:
            return False
        if source_name in self.tensor_map:
            return True
        if name.startswith("adapters.") and name.endswith((".mean", ".std")):
            return False  # buffers for the normalization of inputs, which are set by options
        if name.startswith("fusion.") and self.family.is_dxn:
            return False  # tensors of an input that the saved model does not have
        if PROJECTOR.match(name):
            return False
        return not name.startswith("head.") and not name.endswith(UNMAPPED)

    def _convert(self, source: TensorSource | None) -> Tensor | None:
        """Return the dxn tensor, or None if the checkpoint does not have its source.

        See `TensorSource` for the dtype.
        """
        if source is None:
            return None
        tensors: list[Tensor] = []
        for name in source.names:
            tensor = self.checkpoint.tensors.get(name)
            if tensor is None:
                tensor = self._zero_bias(name)
            if tensor is None:
                return None
            if not self.family.is_dxn and tensor.dtype not in FLOATS:
                raise UserError(
                    f"weights: {self.checkpoint.source}: {name} has the type "
                    f"{str(tensor.dtype).removeprefix('torch.')}, as in a quantized model; use a "
                    "checkpoint in float32, float16 or bfloat16"
                )
            check_after_loading({name: tensor}, f"weights: {self.checkpoint.source}")
            is_computed = tensor.is_floating_point() and not source.moves
            tensors.append(tensor.double() if is_computed else tensor)
        try:
            return source.convert(*tensors)
        # The shapes come from the file, and each conversion expects its own.
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise UserError(
                f"weights: {self.checkpoint.source}: {' + '.join(source.names)} cannot be "
                f"converted, got the shapes {shapes} ({error}); download it again"
            ) from error

    def _zero_bias(self, name: str) -> Tensor | None:
        """Return zeros for a missing optional bias, and None for any other tensor."""
        weight = self.checkpoint.tensors.get(re.sub(r"bias$", "weight", name))
        if weight is None or not name.endswith(self.family.optional_biases):
            return None
        return weight.new_zeros(len(weight))

    def _used_names(self) -> set[str]:
        """Return the names of the checkpoint's tensors that the family uses or ignores."""
        names = {name for source in self.tensor_map.values() for name in source.names}
        for pattern in map(re.compile, self.family.ignored):
            names.update(filter(pattern.match, self.checkpoint.tensors))
        return names

    def _refuse_shape(self, name: str, source_name: str, tensor: Tensor, target: Tensor) -> None:
        names = " + ".join(self.tensor_map[source_name].names)
        raise UserError(
            f"weights: {self.checkpoint.source}: {names} has the shape {tuple(tensor.shape)}, but "
            f"the model's {name} has the shape {tuple(target.shape)}; remove options that change "
            "the shape"
        )

    def _mismatch(self, missing: Sequence[str], unexpected: Sequence[str]) -> str:
        """Return the error message for missing and unexpected tensors."""
        problems: list[str] = []
        if missing:
            names = [
                " + ".join(self.tensor_map[name].names) if name in self.tensor_map else name
                for name in missing
            ]
            problems.append(f"missing tensors ({len(missing)}): {list_names(names, MAX_NAMES)}")
        if unexpected:
            problems.append(
                f"unexpected tensors ({len(unexpected)}): {list_names(unexpected, MAX_NAMES)}"
            )
        return (
            f"weights: {self.checkpoint.source}: the tensors do not match {self.family.name}: "
            f"{'; '.join(problems)}; set weights.strict=false to ignore this"
        )


def _resized(name: str, tensor: Tensor, shape: Sequence[int], model: MultimodalModel) -> Tensor:
    """Return positions or a vocabulary with the size of the model. See `resize_tensor`."""
    adapters = model.adapters.items()
    texts = [key for key, adapter in adapters if adapter.tokenizer.vocabulary is not None]
    is_text = name.startswith(tuple(f"adapters.{key}." for key in texts))
    is_embedding = is_text and name.endswith(EMBEDDING)
    module = model.get_submodule(name.rpartition(".")[0])
    grid = {}
    if isinstance(module, PosEmbed2d):
        grid = {"antialias": module.antialias, "is_time": module.is_time}
    if name.endswith(".pos_embed.weight"):
        tensor = tensor.double()  # computed as the conversions are
    # Positions of a text are discrete. Positions of images and audio are points on a continuous
    # axis, so their embeddings can be interpolated.
    tensor = resize_tensor(name, tensor, shape, continuous=not is_text, **grid)
    if not is_embedding and not name.startswith(OUTPUT):
        return tensor
    # A language model has one text, which can follow other inputs.
    adapter = model.adapters[name.split(".")[1] if is_embedding else texts[0]]
    # A tokenizer can have tokens of which the model has no rows, such as Gemma's for an image.
    added = adapter.tokenizer.vocabulary.get_added_tokens_decoder()
    num_new = max(adapter.num_new_tokens, sum(i >= len(tensor) for i in added))
    return with_new_rows(tensor, shape[0], num_new)


def read_public(
    source: str,
    *,
    revision: str | None = None,
    part: str | None = None,
    prompt: str | None = None,
    trust: Sequence[str] = (),
    strict: bool = True,
) -> PublicModel:
    """Read a checkpoint of a known family, or a model that was trained with dxn.

    Args:
        source: A file, a folder, or OWNER/NAME on the hub.
        revision: Branch, tag or commit on the hub. Default: the main branch.
        part: Modality of the tower to use, if a checkpoint has one tower per modality.
        prompt: Name of the prompt that is put before each text, of a checkpoint of
            sentence-transformers with prompts. Default: its default_prompt_name.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.
        strict: Whether a setting in config.json that the family does not know is an error.

    Raises:
        UserError: If the checkpoint cannot be read, or if not exactly one family matches.
    """
    # `trust` has an effect only on models that were trained with dxn. The metadata of public
    # checkpoints does not refer to classes.
    checkpoint = read_checkpoint(source, revision=revision, trust=tuple(trust))
    if checkpoint.sentence is not None:
        checkpoint = replace(checkpoint, sentence=checkpoint.sentence.choose(prompt))
    elif prompt is not None:
        raise UserError(
            f"weights.prompt: {source} is no model of sentence-transformers with prompts, got "
            f"{prompt!r}; leave it out"
        )
    if checkpoint.config.get("quantization_config"):
        raise UserError(
            f"weights: {source}: its weights are quantized (quantization_config in config.json); "
            "use a checkpoint in float32, float16 or bfloat16"
        )
    try:
        family = _family_of(checkpoint, part)
    except (TypeError, ValueError, AttributeError) as error:
        raise _damaged(source, "a checkpoint", error) from error
    try:
        # The modules of sentence-transformers do not use the head.
        if family.heads is not None and checkpoint.sentence is None:
            check_class(checkpoint, family.heads)
        architecture = family.architecture(checkpoint)
        tensor_map = family.tensor_map(checkpoint, architecture)
        if strict:
            check_unread(checkpoint, family.name)
        if checkpoint.sentence is not None:
            parts = with_modules(checkpoint, family, architecture, tensor_map)
            family, architecture, tensor_map = parts
    except UserError:
        raise
    # Families read required settings and tensors with [...]. A KeyError therefore means that the
    # checkpoint is incomplete.
    except KeyError as error:
        raise UserError(
            f"weights: {source}: looks like {family.name}, but neither its tensors nor its "
            f"config.json contain {error}; download it again"
        ) from error
    # Everything comes from the files of the checkpoint, so any other failure means that they are
    # damaged, or contradict each other.
    except Exception as error:
        raise _damaged(source, family.name, error) from error
    return PublicModel(checkpoint, family, architecture, tensor_map)


def find_prompt(source: str, names: Sequence[str], *, revision: str | None = None) -> str | None:
    """Return the first of these names that a prompt of a checkpoint has; None if none has.

    Args:
        source: See `read_public`.
        names: Names of prompts.
        revision: See `read_public`.

    Raises:
        UserError: If the checkpoint cannot be read.
    """
    sentence = read_checkpoint(source, revision=revision).sentence
    prompts = {} if sentence is None else sentence.prompts
    return next((name for name in names if name in prompts), None)


def find_towers(source: str, *, revision: str | None = None) -> tuple[str, str, float]:
    """Return the towers of a checkpoint that compares inputs with texts, such as CLIP.

    Args:
        source: See `read_public`.
        revision: See `read_public`.

    Returns:
        The value of weights.part for the inputs, that for the texts, and the factor of the cosine
        similarities.

    Raises:
        UserError: If the checkpoint cannot be read, or does not have two towers.
    """
    checkpoint = read_checkpoint(source, revision=revision)
    parts = [family.part for family in all_families() if family.matches(checkpoint) and family.part]
    others = [part for part in parts if part != TEXTS]
    scale = checkpoint.tensors.get(LOG_SCALE)
    if len(parts) != 2 or len(others) != 1 or scale is None or scale.numel() != 1:
        raise UserError(
            f"labels: {source}: this checkpoint does not compare inputs with texts; use one with "
            "two towers, such as CLIP or SigLIP, or leave labels out"
        )
    return others[0], TEXTS, float(scale.exp())


def _damaged(source: str, name: str, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(
        f"weights: {source}: looks like {name}, but its tensors and its config.json do not fit "
        f"together ({type(error).__name__}: {error}); download it again"
    )


def _family_of(checkpoint: Checkpoint, part: str | None) -> Family:
    """Return the only family that matches, or the matching family that `part` selects."""
    # A model that was trained with dxn may also contain tensors with the names of a public family.
    if DXN_MODEL.matches(checkpoint):
        return DXN_MODEL
    families = all_families()
    matching = [family for family in families if family.matches(checkpoint)]
    if not matching:
        kind = model_type(checkpoint)
        tensors = f"the tensors {list_names(sorted(checkpoint.tensors), MAX_NAMES)}"
        raise UserError(
            f"weights: {checkpoint.source}: does not belong to a supported family "
            f"({', '.join(family.name for family in families)}), got "
            f"{f'model_type={kind!r}' if kind else tensors}; use another checkpoint, or add a "
            "family (docs/extend.md)"
        )
    if len(matching) > 1:
        selected = [family for family in matching if part is not None and family.part == part]
        if len(selected) != 1:
            names = " and ".join(family.name for family in matching)
            choices = [f"weights.part={family.part}" for family in matching if family.part]
            advice = f"; choose one with {' or '.join(choices)}" if choices else ""
            raise UserError(f"weights: {checkpoint.source}: contains {names}{advice}")
        matching = selected
    return matching[0]
