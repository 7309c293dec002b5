"""What a program passes to generate texts and values, as the texts of a `Writer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.runs.predictor.writing import MAX_SCALE, Text, Writer

if TYPE_CHECKING:
    from dxn.runs.predictor.predictor import Predictor, Values


def texts_to_write(
    predictor: Predictor,
    writer: Writer,
    *,
    prompt: str | Sequence[str],
    system: str,
    chat: bool | None,
    inputs: Values | Sequence[Values] | Samples | None,
    count: int,
) -> list[Text]:
    """Return the texts that `Predictor.write` generates, see there."""
    task = predictor.task
    if task.writes:
        if system or chat:
            name, value = ("system", system) if system else ("chat", chat)
            raise UserError(
                f"{name}: this model generates a text for its inputs, got {value}; remove "
                "the option"
            )
        if not inputs or prompt:
            names = " or ".join(f"input.{name}=..." for name in predictor.inputs)
            got = "a prompt" if prompt else "no input"
            raise UserError(f"input: this model generates a text for {names}; got {got}")
        samples, items = _read_items(predictor, inputs)
        return [Text(item=item, samples=samples) for item in items for _ in range(count)]
    if task.is_supervised:
        raise UserError(f"this model generates no text (its task is {task.name}); use dxn predict")
    if writer.obstacle:
        raise UserError(f"generate: {writer.obstacle}")
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    samples, items = _read_items(predictor, inputs, before=task.target.last)
    if len(prompts) != len(items):
        if 1 not in (len(prompts), len(items)):
            raise UserError(
                f"input: needs one sample, or one per prompt, got {len(items)} samples and "
                f"{len(prompts)} prompts"
            )
        prompts, items = prompts * len(items), items * len(prompts)
    texts: list[Text] = []
    for text_prompt, item in zip(prompts, items, strict=True):
        for _ in range(count):
            text = writer.text_of(text_prompt, system=system, chat=chat, sample=item)
            text.item, text.samples = item, samples
            texts.append(text)
    return texts


def values_to_create(
    predictor: Predictor,
    name: str,
    inputs: Values | Sequence[Values] | Samples,
    *,
    count: int,
    guidance: float | None,
) -> list[Text]:
    """Return the values that `Predictor.create` creates, see there."""
    predictor.check_created(name)
    if guidance is not None and not 0 <= guidance <= MAX_SCALE:
        raise UserError(f"guidance: must be from 0 to {MAX_SCALE:g}, got {guidance}")
    samples, items = _read_items(predictor, inputs)
    others = [
        {key: value for key, value in item.items() if key != name}
        for item in items
        if item is not None
        for _ in range(count)
    ]
    if samples is None or not all(item.keys() & set(predictor.inputs) for item in others):
        raise UserError(f"input: needs another input than {name} in each sample")
    return [Text(item=item, samples=samples, create=name, guidance=guidance) for item in others]


def _read_items(
    predictor: Predictor,
    inputs: Values | Sequence[Values] | Samples | None,
    *,
    before: str = "",
) -> tuple[Samples | None, list[Mapping[str, Any] | None]]:
    """Return samples to write a text for, and the item of each of them; None without inputs.

    Args:
        predictor: The model.
        inputs: One sample, or several.
        before: Name of the text of a language model, which the prompt starts.
    """
    if isinstance(inputs, Samples):
        return inputs, [inputs[0, i] for i in range(len(inputs))]
    if not inputs:
        return None, [None]
    samples = [inputs] if isinstance(inputs, Mapping) else inputs
    others = [name for name in predictor.inputs if name != before]
    if any(before in sample for sample in samples) or not others:
        advice = f", or input.{others[0]}=... for what is before it" if others else ""
        raise UserError(f"input: a language model continues a text; set prompt=...{advice}")
    opened = predictor.samples(samples)
    return opened, [opened[0, i] for i in range(len(opened))]
