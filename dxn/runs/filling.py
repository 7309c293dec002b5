"""Load the weights of checkpoints into the model of a training that starts from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dxn.models.model import MultimodalModel, module_key
from dxn.tasks import Task
from dxn.weights.public import PublicModel


@dataclass(frozen=True)
class InitialWeights:
    """The checkpoints that a training starts from.

    Args:
        main: Checkpoint of the backbone, and of all adapters without a checkpoint of their own.
        adapters: Checkpoints of single adapters, by adapter key.
        strict: Whether missing and unexpected tensors are an error.
    """

    main: PublicModel | None = None
    adapters: Mapping[str, PublicModel] = field(default_factory=dict)
    strict: bool = True

    @property
    def checkpoints(self) -> list[PublicModel]:
        """All checkpoints, the main one first. Empty for a training from random weights."""
        main = [] if self.main is None else [self.main]
        return [*main, *self.adapters.values()]

    @property
    def are_published(self) -> bool:
        """Whether none of the checkpoints is a model that was trained with dxn."""
        return not any(public.family.is_dxn for public in self.checkpoints)

    def source(self, key: str, modality: str) -> PublicModel | None:
        """Return the checkpoint of the adapter `key`; None if it starts from random weights."""
        # The more specific option has priority: weights.adapters.NAME over weights.
        if key in self.adapters:
            return self.adapters[key]
        if self.main is not None and self.main.adapter_key(key, modality) is not None:
            return self.main
        return None

    def by_adapter(self, nodes: Mapping[str, str]) -> InitialWeights:
        """Return the same checkpoints by the keys that the adapters have in the model.

        Args:
            nodes: Key of each adapter in the configuration, by its key in the model.
        """
        adapters = {key: self.adapters[n] for key, n in nodes.items() if n in self.adapters}
        return replace(self, adapters=adapters)

    def prepare(self, adapters: Mapping[str, Any], task: Task) -> None:
        """Load the tokenizers of the checkpoints into the adapters and the task.

        Call it before the adapters are fitted: a vocabulary that is trained on the data would
        number the tokens differently than the rows of the checkpoint's embedding.
        """
        for key, adapter in adapters.items():
            public = self.source(key, adapter.modality)
            if public is not None:
                public.prepare({key: adapter})
        main = self.main
        if main is None or main.architecture.task != task.name:
            return
        labels = main.architecture.labels
        if labels is not None:
            task.target.start_from(labels)
        elif main.architecture.writes and (state := main.task_state()):
            task.target.load(state)

    def fill(self, model: MultimodalModel, task: Task) -> list[str]:
        """Copy the weights of all checkpoints into the model.

        Args:
            model: The model.
            task: The task that created the head of the model.

        Returns:
            Lines to print about tensors that were not loaded.
        """
        notices: list[str] = []
        for key, public in self.adapters.items():
            prefix = f"adapters.{module_key(key)}."
            result = public.fill(model, only=(prefix,), strict=self.strict)
            notices += _notices(public, result.missing, result.unexpected)
        if self.main is None:
            return notices
        main = self.main
        prefixes: list[str] = []
        for key, adapter in model.get_submodule("adapters").named_children():
            if self._source_of_module(key, adapter.modality) is main:
                prefixes.append(f"adapters.{key}.")
        new = self._new_tensors(model) if main.family.is_dxn else []
        # The user can choose another fusion than that of the checkpoint. Its parameters would be
        # reported as missing, so only the tensors that both have in common are requested.
        fusion = [n for n in main.tensor_map if n.startswith("fusion.") and n not in new]
        if main.family.is_dxn:
            head, head_notices = _own_head(main, model, task)
        else:
            head, head_notices = _public_head(main, task)
        only = (*prefixes, *fusion, "backbone.", *head)
        result = main.fill(model, only=only, strict=self.strict)
        missing = [*new, *result.missing]
        return [*notices, *_notices(main, missing, result.unexpected), *head_notices]

    def has_head(self, task: Task) -> bool:
        """Whether `fill` loads the output layer of the head."""
        if self.main is None:
            return False
        return bool({"head.", "head.out."} & set(_public_head(self.main, task)[0]))

    def loaded(self, model: MultimodalModel, task: Task) -> set[str]:
        """Return the names of the model's tensors that were loaded and still serve their purpose.

        finetune.freeze=all freezes exactly these tensors.
        """
        names: set[str] = set()
        # The head of a model that writes texts has the vocabulary of the checkpoint. Any other one
        # is trained even if it was loaded, because the meaning of the targets can have changed.
        head: list[str] = []
        if self.main is not None and (task.writes or task.target.source == "stream"):
            if self.main.family.is_dxn:
                head, _ = _own_head(self.main, model, task)
            else:
                head, _ = _public_head(self.main, task)
        for name in model.state_dict():
            if name.startswith("head.") and not name.startswith(tuple(head)):
                continue
            public = self.main
            if name.startswith("adapters."):
                key = name.split(".")[1]
                public = self._source_of_module(key, model.adapters[key].modality)
            if public is not None and public.source_name(name, model) in public.tensor_map:
                names.add(name)
        return names

    def _source_of_module(self, key: str, modality: Any) -> PublicModel | None:
        """Return `source` for the key of a submodule, which `module_key` may have changed."""
        original = next((k for k in self.adapters if module_key(k) == key), key)
        return self.source(original, modality)

    def _new_tensors(self, model: MultimodalModel) -> list[str]:
        """Return the adapters and the tensors of the fusion that a checkpoint of dxn lacks."""
        assert self.main is not None
        # Not only missing names: the embedding of the inputs has another shape for more inputs.
        shapes = {name: t.shape for name, t in self.main.checkpoint.tensors.items()}
        fusion = [
            name
            for name, tensor in model.state_dict().items()
            if name.startswith("fusion.") and shapes.get(name) != tensor.shape
        ]
        # A new adapter is one line for the user, instead of one line per tensor.
        new = [
            f"adapters.{key}"
            for key, adapter in model.get_submodule("adapters").named_children()
            if self._source_of_module(key, adapter.modality) is None
        ]
        return [*new, *fusion]


def _public_head(public: PublicModel, task: Task) -> tuple[list[str], list[str]]:
    """Return the prefixes of the head's tensors to load, and lines to print about the others."""
    labels = public.architecture.labels
    parts = public.architecture
    if parts.task == task.name and (parts.writes or parts.decoder):
        return ["head."], []
    # The rows of the output layer belong to the classes in this order, so the lists must be equal.
    is_same_task = public.architecture.task == task.name
    if is_same_task and list(labels or ()) == list(task.target.labels or ()):
        return ["head.pre.", "head.out."], []
    # The layers before the output layer, such as BERT's pooler, do not depend on the classes.
    prefixes = ["head.pre."]
    if labels is None:
        return prefixes, []
    notice = f"weights: the head for {len(labels)} classes is replaced by a new one for the targets"
    return prefixes, [notice]


def _own_head(
    public: PublicModel, model: MultimodalModel, task: Task
) -> tuple[list[str], list[str]]:
    """Do the same as `_public_head` for a checkpoint of dxn.

    Its head is loaded completely or not at all, because the names of its tensors do not tell which
    of them depend on the classes.
    """
    parts = public.architecture
    state = model.state_dict()
    wanted = {name: t.shape for name, t in state.items() if name.startswith("head.")}
    saved = {n: t.shape for n, t in public.checkpoint.tensors.items() if n.startswith("head.")}
    if parts.task != task.name:
        reason = f"its task is {parts.task}, the task of this training is {task.name}"
    elif (parts.labels or []) != list(task.target.labels or ()):
        reason = "its classes or its vocabulary are different"
    elif wanted != saved:
        reason = "its tensors have other shapes"
    else:
        return ["head."], []
    # A head without tensors has nothing to load, so there is nothing to report.
    notice = f"weights: {public.checkpoint.source}: the head is not used: {reason}"
    return [], [notice] if wanted else []


def _notices(public: PublicModel, missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    source = public.checkpoint.source
    sentence = public.checkpoint.sentence
    remark = None if sentence is None else sentence.remark()
    lines = [] if remark is None else [remark]
    if missing:
        # transformers prints the same warning for newly initialized weights.
        lines.append(f"weights: {source} has no {', '.join(missing)}: initialized randomly")
    if unexpected:
        lines.append(f"weights: {source}: tensors not used: {', '.join(unexpected)}")
    return lines
