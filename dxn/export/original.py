"""Save a fine-tuned public model as a folder that transformers or timm loads."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.files import replace_folder
from dxn.core.printable import override_value
from dxn.export.examples import examples
from dxn.models.decoding.decoder import Memory
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved.loading import from_public
from dxn.stacking.stacked import stacks_of
from dxn.tasks import Classify, Ctc, Generate
from dxn.tasks.generate.head import GenerateHead
from dxn.tasks.language import Language, LanguageHead
from dxn.tokenize.text.chat import read_template
from dxn.training.device import to_device
from dxn.weights import Architecture, Checkpoint, Classifier, PublicModel
from dxn.weights.checkpoint import read_json
from dxn.weights.conversions import VOCABULARIES
from dxn.weights.tokenizers import read_tokenizer

# Files of a checkpoint that its library reads besides the weights and config.json.
COPIED = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "target_tokenizer.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
COUNT = 4  # samples of the comparison
WRITTEN = 9  # tokens of each text of a decoder in the comparison
TOLERANCE = 1e-4  # of the outputs, relative to the largest one
# Tasks besides classify whose models can be saved, because config.json has no labels of them.
WITHOUT_LABELS = (Language.name, Generate.name, Ctc.name)
# Keys of config.json with the number of rows of a vocabulary.
VOCAB_SIZES = ("vocab_size", "decoder_vocab_size")
SavedDtype = Literal["float32", "bf16"]
DTYPES: dict[SavedDtype, torch.dtype] = {"float32": torch.float32, "bf16": torch.bfloat16}
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"


def save_original(
    predictor: Predictor, public: PublicModel, folder: Path, dtype: SavedDtype = "float32"
) -> None:
    """Write the folder, and compare its outputs with those of the model. See `Predictor`."""
    _check(predictor, public, folder)
    if dtype not in DTYPES:
        raise UserError(f"dtype: must be {' or '.join(DTYPES)}, got {dtype!r}")
    state = {name: t.detach().cpu() for name, t in predictor.model.state_dict().items()}
    task = predictor.task.name
    checkpoint = to_original(public, state, predictor.labels or (), task=task)
    with replace_folder(folder) as new:
        _write(checkpoint, new, "float32")
        for path in () if checkpoint.folder is None else checkpoint.folder.iterdir():
            if path.name in COPIED:
                shutil.copyfile(path, new / path.name)
        if task == Language.name:
            write_chat(new, predictor, checkpoint)
        if not _is_same(predictor, from_public(str(new), dtype="float32")):
            needed = _required_options(public, public.family.architecture(checkpoint))
            raise UserError(
                f"weights: {public.family.name} cannot represent this model, because its options "
                f"differ from those of the checkpoint; {needed}"
            )
        if dtype != "float32":
            _write(checkpoint, new, dtype)


def _write(checkpoint: Checkpoint, folder: Path, dtype: SavedDtype) -> None:
    """Write config.json, and the weights in this type."""
    # safetensors does not save tensors that share memory, such as chunks of one tensor.
    tensors = {
        name: (t.to(DTYPES[dtype]) if t.is_floating_point() else t).contiguous().clone()
        for name, t in checkpoint.tensors.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    # The second name is that of old versions of transformers.
    names = [name for name in ("dtype", "torch_dtype") if name in checkpoint.config]
    dtypes = dict.fromkeys(names, str(DTYPES[dtype]).removeprefix("torch."))
    config = json.dumps({**checkpoint.config, **dtypes}, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(config, encoding="utf-8")


@torch.no_grad()
def to_original(
    public: PublicModel,
    state: Mapping[str, Tensor],
    labels: Sequence[str],
    *,
    task: str = Classify.name,
) -> Checkpoint:
    """Return a trained model with the family's tensor names and config.json.

    Args:
        public: The checkpoint from which the training started.
        state: State dict of the trained model.
        labels: Names of the classes.
        task: Name of the task of the trained model: a classifier, or that of the checkpoint.

    Raises:
        UserError: If dxn cannot save models of this family, or a tensor has another shape.
    """
    family, checkpoint, architecture = public.family, public.checkpoint, public.architecture
    is_classifier = task == Classify.name
    if is_classifier:
        checkpoint, architecture = _classifier_of(public, state, labels)
    tensor_map = family.tensor_map(checkpoint, architecture)
    tensors: dict[str, Tensor] = {}
    # First invert the conversions of single tensors. Then the family adds the tensors that have no
    # inverse.
    for name, source in tensor_map.items():
        if name in state and source.invert is not None:
            tensors |= dict(zip(source.names, source.invert(state[name]), strict=True))
    if family.to_checkpoint is not None:
        tensors |= family.to_checkpoint(state, checkpoint, architecture)
    head = {n for ours, s in tensor_map.items() if ours.startswith("head.") for n in s.names}
    words = {n for ours, s in tensor_map.items() if ours.endswith(VOCABULARIES) for n in s.names}
    config = dict(checkpoint.config)
    for name, tensor in list(tensors.items()):
        old = checkpoint.tensors.get(name)
        # Optional biases that the checkpoint does not have. Those of a classifier are left out only
        # if the training did not change them. The others have no effect, see `save_original`.
        is_optional = old is None and name.endswith(family.optional_biases)
        if is_optional and not (is_classifier and tensor.any()):
            del tensors[name]
        elif old is not None and not (is_classifier and name in head):
            tensors[name] = _with_unused_rows(name, tensor, old, public, may_grow=name in words)
            if name in words and old.ndim == 2 and len(tensor) > len(old):
                sizes = {key: len(tensor) for key in VOCAB_SIZES if config.get(key) == len(old)}
                config |= sizes
    if "qkv_bias" in config:
        config["qkv_bias"] = any(name.endswith("query.bias") for name in tensors)
    if not is_classifier:
        used = {n for ours, s in tensor_map.items() if ours in state for n in s.names}
        if lacking := used & set(checkpoint.tensors) - set(tensors):
            raise UserError(
                f"weights: {family.name}: dxn cannot write {min(lacking)} in the original format; "
                "use the model folder of the run instead"
            )
        tensors = {**_unused_tensors(tensors, checkpoint, words), **tensors}
    return replace(checkpoint, tensors=tensors, config=config)


def _classifier_of(
    public: PublicModel, state: Mapping[str, Tensor], labels: Sequence[str]
) -> tuple[Checkpoint, Architecture]:
    """Return the checkpoint as one with a classifier, and its architecture.

    Raises:
        UserError: If the family has no classifier, or the trained model lacks one of its layers.
    """
    family = public.family
    if family.classifier is None:
        raise UserError(
            f"weights: {family.name} has no classifier in its original format that dxn can write; "
            "use the model folder of the run instead"
        )
    classifier = family.classifier(public.checkpoint, labels)
    # The checkpoint may have no head, or that of another task. The names of its tensors depend on
    # the head, so it is first changed to one with this classifier.
    checkpoint = _with_classifier(public.checkpoint, classifier, len(labels))
    architecture = family.architecture(checkpoint)
    missing = [name for name in classifier.tensors if name not in state]
    if missing:
        raise UserError(
            f"weights: a classifier of {family.name} has {classifier.tensors[missing[0]]}, but the "
            f"trained model has no {missing[0]}; {_required_options(public, architecture)}"
        )
    return checkpoint, architecture


def _unused_tensors(
    tensors: Mapping[str, Tensor], checkpoint: Checkpoint, words: Collection[str]
) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint that the dxn model does not read.

    They are constants, parts of other tasks, and copies of weights with another name, such as that
    of an output layer, which get the trained values.

    Args:
        tensors: The trained tensors.
        checkpoint: The checkpoint.
        words: Names of the tensors of vocabularies.
    """
    matrices = [n for n in tensors if n in checkpoint and checkpoint.tensors[n].ndim == 2]
    sizes = {n: (len(checkpoint.tensors[n]), len(tensors[n])) for n in words if n in matrices}
    grown = dict(sizes.values())
    result: dict[str, Tensor] = {}
    for name in sorted(set(checkpoint.tensors) - set(tensors)):
        old = checkpoint.tensors[name]
        result[name] = old
        if old.ndim != 2:
            continue
        same = (n for n in matrices if torch.equal(old, checkpoint.tensors[n]))
        if (twin := next(same, None)) is not None:
            result[name] = tensors[twin]
        elif len(old) == 1 and (missing := grown.get(old.shape[1], 0) - old.shape[1]) > 0:
            # A constant bias of the vocabulary.
            result[name] = F.pad(old, (0, missing))
    return result


def _required_options(public: PublicModel, architecture: Architecture) -> str:
    """Return a sentence about the options that a training needs to be saved, for messages."""
    groups = {"fusion": architecture.fusion, "head": architecture.head}
    options = [
        f"{group}.{name}={override_value(value, str)}"
        for group, values in groups.items()
        for name, value in values.items()
    ]
    return (
        f"train with weights={public.checkpoint.source} {' '.join(options)}, and with no other "
        "options of adapters, fusion and head that change what the model computes"
    )


def _with_classifier(checkpoint: Checkpoint, classifier: Classifier, rows: int) -> Checkpoint:
    """Return a checkpoint with the names of the classifier's tensors, but without their values.

    Args:
        checkpoint: The checkpoint.
        classifier: The classifier.
        rows: Number of classes.
    """
    tensors = dict(checkpoint.tensors)
    if not any(name.startswith(classifier.prefix) for name in tensors):
        tensors = {f"{classifier.prefix}{name}": tensor for name, tensor in tensors.items()}
    tensors |= {name: torch.zeros(rows, 1) for name in classifier.tensors.values()}
    config = {**checkpoint.config, **classifier.config}
    return replace(checkpoint, tensors=tensors, config=config)


def _with_unused_rows(
    name: str, tensor: Tensor, old: Tensor, public: PublicModel, *, may_grow: bool
) -> Tensor:
    """Return a tensor with the rows of the checkpoint that the dxn model does not have.

    These are tokens that the tokenizer does not use, and positions after the longest text.

    Args:
        name: Name of the tensor in the checkpoint.
        tensor: Trained tensor.
        old: Tensor of the checkpoint.
        public: The checkpoint.
        may_grow: Whether the trained tensor may have more rows, such as those of new tokens.

    Raises:
        UserError: If it has another shape than in the checkpoint otherwise.
    """
    # A vector can be stored with additional dimensions of size one, see `conversions.flattened`.
    lead = old.shape[: old.ndim - tensor.ndim]
    rows = old.reshape(-1) if all(size == 1 for size in lead) and tensor.ndim == 1 else old
    missing = len(rows) - len(tensor)
    if rows.shape[1:] == tensor.shape[1:] and (missing >= 0 or may_grow):
        unused = rows[len(tensor) :].to(tensor.dtype)
        return torch.cat([tensor, unused]).view(*lead, -1, *tensor.shape[1:])
    raise UserError(
        f"weights: {public.checkpoint.source}: {name} has the shape {tuple(old.shape)}, but "
        f"{tuple(tensor.shape)} after the training; train without options that change the shape, "
        "such as the image size"
    )


def _check(predictor: Predictor, public: PublicModel, folder: Path) -> None:
    """Refuse models that have a part which no model of another library has.

    Raises:
        UserError: If there is such a part, or the folder has files that would be replaced.
    """
    if public.family.is_dxn:
        raise UserError(
            f"weights: {public.checkpoint.source}: is a model trained by dxn; set it to the public "
            "checkpoint whose format the files have"
        )
    reason = ""
    public_task, task = public.architecture.task, predictor.task.name
    allowed = [Classify.name, *(name for name in WITHOUT_LABELS if name == public_task)]
    if task not in allowed:
        choices = " or ".join(allowed)
        reason = f"its task is {task}, must be {choices}"
    elif len(predictor.inputs) > 1:
        reason = f"it has several inputs ({', '.join(predictor.inputs)})"
    elif predictor.num_members > 1:
        reason = "it is an ensemble; save one of its members"
    elif stacks_of(predictor.network):
        reason = "its answers are those of a mixture with a baseline; train with baseline=none"
    elif predictor.dtype != "float32":
        reason = f"its weights are {predictor.dtype}; load it without dtype"
    elif task == Ctc.name and list(predictor.labels or ()) != public.architecture.labels:
        reason = "its characters differ from those of the checkpoint"
    if reason:
        raise UserError(f"this model cannot be saved in its original format: {reason}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: must be a new or empty folder")


def _is_same(trained: Predictor, saved: Predictor) -> bool:
    """Whether the trained model and the saved one have the same outputs."""
    (name,) = trained.inputs
    tokenizer = trained.tokenizers[name]
    raws = examples(name, tokenizer, COUNT, random.Random(0))
    # transformers takes the maximum length with each call.
    (saved_tokenizer,) = saved.tokenizers.values()
    saved_tokenizer.max_len = tokenizer.max_len
    expected = _outputs(trained, raws)
    outputs = _outputs(saved, raws)
    if outputs.shape != expected.shape:
        return False
    return bool((outputs - expected).abs().max() <= TOLERANCE * expected.abs().max())


@torch.inference_mode()
def _outputs(predictor: Predictor, raws: Sequence[Any]) -> Tensor:
    """Return the outputs (B, ...) for raw values of the only input."""
    (name,) = predictor.inputs
    prepare = predictor.tokenizers[name]
    collated = prepare.collate([prepare(raw) for raw in raws])
    count = len(raws)
    batch = {"#size": count, name: {**collated, "rows": torch.arange(count)}}
    batch = to_device(batch, predictor.device)
    model, head = predictor.model, predictor.model.head
    if not isinstance(head, LanguageHead | GenerateHead):
        return model(batch).cpu()
    # The output of these heads is a loss.
    tokens, _ = model.encode(model.embed(batch))
    if isinstance(head, LanguageHead):
        return (head.output(tokens.x) * tokens.mask[..., None]).cpu()
    size = head.decoder.embedding.num_embeddings
    ids = torch.randint(size, (count, WRITTEN), generator=torch.Generator().manual_seed(0))
    ids = ids.to(predictor.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    return head.decoder(ids, mask, Memory.from_tokens(tokens)).cpu()


def write_chat(folder: Path, predictor: Predictor, checkpoint: Checkpoint) -> None:
    """Write the files that differ from those of the checkpoint, which are copied to `folder`.

    Args:
        folder: Folder to write.
        predictor: The trained language model.
        checkpoint: The checkpoint from which the training started.
    """
    (tokenizer,) = predictor.tokenizers.values()
    vocabulary = tokenizer.vocabulary
    before = read_tokenizer(folder)
    if before is None or before.get_vocab() != vocabulary.get_vocab():
        vocabulary.save(str(folder / TOKENIZER))
    ends = set(predictor.task.target.ends)
    template = tokenizer.reader.template
    if template is not None:
        copied = read_template(folder)
        if copied is None or copied.source != template.source:
            (folder / TEMPLATE).write_text(template.source, encoding="utf-8")
        # An answer ends with this token, also if the checkpoint ended only whole texts.
        end = vocabulary.token_to_id(template.end)
        ends |= set() if end is None else {end}
    old_ends = checkpoint.generation.eos_token_id
    if ends and ends != set(old_ends):
        content: dict[str, Any] = read_json(folder / GENERATION)
        content["eos_token_id"] = [*old_ends, *sorted(ends - set(old_ends))]
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / GENERATION).write_text(text, encoding="utf-8")
