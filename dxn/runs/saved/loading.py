"""Load the model that a command names: a trained run, or a public checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch

from dxn.config.instantiate import build, merge_options
from dxn.core.display import list_names, print_line
from dxn.core.errors import UserError
from dxn.core.tensors import without_values
from dxn.models.model import MultimodalModel
from dxn.runs.build import build_adapters, build_model
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.saved import model_folder
from dxn.runs.saved.dtypes import Dtype, dtype_of_weights, set_dtype
from dxn.tasks import Task

if TYPE_CHECKING:
    from dxn.commands.options import Weights
    from dxn.weights import PublicModel

MAX_REASON = 300  # characters of the message of an error


def load_predictor(
    run: str | None,
    weights: Weights | None = None,
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    labels: Sequence[str] = (),
    template: str = "{}",
    trust: Sequence[str] = (),
    head: Mapping[str, Any] | None = None,
) -> Predictor:
    """Load a trained model, or a public checkpoint, for a command.

    Args:
        run: Run folder or model folder.
        weights: The public checkpoint.
        device: auto, cpu, cuda or mps.
        dtype: Data type of the weights, which is printed if it is not float32.
        labels: Names of classes, of which the model becomes a classifier.
        template: Text of a class.
        trust: Top-level packages besides dxn whose code the folder may use.
        head: Options of the head of the public checkpoint.

    Raises:
        UserError: If not exactly one of `run` and `weights` is set, or it cannot be loaded.
    """
    source = None if weights is None else weights.source
    if (run is None) == (source is None):
        raise UserError(
            "run: set run=RUN to use a trained model, or weights=... to use a public checkpoint"
        )
    if head and run is not None:
        raise UserError(
            f"head: a run has its own options, got {', '.join(head)}; use it only with weights=..."
        )
    if device == "auto":
        # Only CUDA is chosen automatically: some operations do not exist on mps.
        device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = None
    scale = 1.0
    if run is not None:
        predictor = model_folder.load(run, device=device, dtype=dtype, trust=trust)
    else:
        assert weights is not None and source is not None
        load = partial(
            from_public,
            source,
            revision=weights.revision,
            prompt=weights.prompt,
            strict=weights.strict,
            pad=weights.pad,
            device=device,
            dtype=dtype,
            trust=trust,
            head=head,
        )
        part = weights.part
        if labels:
            if part is not None:
                raise UserError(
                    "weights.part: cannot be combined with labels, which use both towers, got "
                    f"{part}; leave one of them out"
                )
            from dxn.weights.public import find_towers

            part, texts_part, scale = find_towers(source, revision=weights.revision)
            texts = load(part=texts_part)
        predictor = load(part=part)
    if predictor.dtype != "float32":
        line = f"dtype: {predictor.dtype} (set dtype=float32 for exact results)"
        print_line(line, stderr=True)
    if not labels:
        return predictor
    from dxn.runs.predictor import zero_shot

    if texts is not None:
        return zero_shot.tower_classifier(predictor, texts, labels, template, scale=scale)
    return zero_shot.classifier(predictor, labels, template)


def prompted(weights: Weights, names: Sequence[str]) -> Weights:
    """Return the options of a checkpoint with the first of these prompts that it has.

    A prompt that the user chose is kept.
    """
    if weights.source is None or weights.prompt is not None:
        return weights
    from dxn.weights.public import find_prompt

    prompt = find_prompt(weights.source, names, revision=weights.revision)
    return replace(weights, prompt=prompt)


def from_public(
    source: str,
    *,
    revision: str | None = None,
    part: str | None = None,
    prompt: str | None = None,
    strict: bool = True,
    pad: bool = True,
    device: str = "cpu",
    dtype: Dtype = "auto",
    trust: Sequence[str] = (),
    head: Mapping[str, Any] | None = None,
) -> Predictor:
    """Load a public checkpoint, such as ViT, BERT or AST, with the interface of a trained model.

    It can predict if the checkpoint contains a classifier.

    Args:
        source: Path of a file or folder, or OWNER/NAME on the Hugging Face hub.
        revision: Branch, tag or commit on the hub.
        part: Modality to use, for a checkpoint with one tower per modality, such as CLIP.
        prompt: Name of the prompt to put before each text, such as "query", for a checkpoint of
            sentence-transformers with prompts. Default: its default prompt.
        strict: Whether missing and unexpected tensors, and unknown settings, are an error.
        pad: Whether inputs are filled up as the checkpoint does, such as clips of Whisper with
            silence to 30 seconds. Embeddings are faster without, and others.
        device: Device to run on, such as "cuda".
        dtype: Data type of the weights: float32, bf16, int8, or auto, which is bf16 if the model is
            large and the device has instructions for bf16.
        trust: Top-level packages besides dxn whose code the family of the checkpoint may use.
        head: Options of the head in place of those of the checkpoint, such as {"language": "de"}.

    Raises:
        UserError: If the checkpoint cannot be read, lacks a layer of the head, or dxn does not
            support its architecture.
    """
    from dxn.weights import read_public, unpadded

    public = read_public(
        source, revision=revision, part=part, prompt=prompt, trust=tuple(trust), strict=strict
    )
    if not pad:
        public = unpadded(public)
    sentence = public.checkpoint.sentence
    if sentence is not None and (remark := sentence.remark()):
        print_line(remark, stderr=True)
    if head and head.get("pair"):
        from dxn.weights.hf import paired

        public = replace(public, architecture=paired(public.architecture))
    # Without values, so that only the weights of the checkpoint are in memory, in their dtype.
    with without_values():
        model, task = _build_public(public, trust, head or {})
    weights_dtype = dtype_of_weights(model, dtype, device)
    if weights_dtype is not None:
        from dxn.models.inference import cast

        cast(model, weights_dtype)  # first, so that the weights are loaded in their dtype
    filled = public.fill(model, strict=strict)
    if any(parameter.is_meta for parameter in model.parameters()):
        # The checkpoint lacks some of the large ones, such as with strict=false.
        model, task = _build_public(public, trust, head or {})
        filled = public.fill(model, strict=strict)
    if filled.unfilled:
        raise UserError(
            f"weights: {source}: has no layers for {list_names(filled.unfilled)}, so its answers "
            "would be random; train it with dxn train weights=..., or use another checkpoint"
        )
    model = model.to(device).eval()
    return Predictor(model, task, dtype=set_dtype(model, dtype, weights_dtype)).optimized()


def _build_public(
    public: PublicModel, trust: Sequence[str], head: Mapping[str, Any]
) -> tuple[MultimodalModel, Task]:
    """Build the model and the task of a public checkpoint."""
    plan = public.plan()
    plan = plan.model_copy(update={"head": merge_options(plan.head, head)})
    try:
        plan = plan.with_defaults(trust, where="" if head else "weights: ")
        adapters = build_adapters(plan.adapters, trust, where="weights: ")
        # The tokenizer first: its size is the number of rows of the embedding.
        public.prepare(adapters)
        task = build(plan.head, key="head" if head else "weights: head", trust=trust)
        if state := public.task_state():
            task.target.load(state)
        task.target.bind({name: adapters[key] for name, key in plan.keys.items()})
        return build_model(plan, task, adapters, trust=trust), task
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"weights: {public.checkpoint.source}: its config.json does not describe a model "
            f"({type(error).__name__}: {shorten(str(error), MAX_REASON)}); download it again"
        ) from error
