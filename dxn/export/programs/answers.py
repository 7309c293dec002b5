"""Read the answer to a question from the outputs of a graph for each window of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dxn.export.programs.text import offsets

Arrays = Mapping[str, np.ndarray]


def lines(
    run: Callable[[Arrays], Arrays],
    arrays: Arrays,
    about: Mapping[str, Any],
    sample: Mapping[str, Any],
) -> list[str]:
    """Return the answer in the text of the first sample, its position and its probability.

    Args:
        run: Function from the inputs of the graph to its outputs.
        arrays: Prepared inputs of the samples.
        about: Content of preprocess.json.
        sample: Raw values of the first sample by the name of the input.
    """
    options = about["outputs"]
    context = options["input"]
    if not sample:
        return [f"write the inputs as NAME=VALUE, such as {context}=..."]
    text = sample[context]
    first, last, score = best(run, arrays, options)
    if first < 0:
        return [f"{score:.4f}  no answer"]
    spans = offsets(text[: about["inputs"][context]["max_chars"]], about["inputs"][context])
    start, stop = spans[first][0], spans[last][1]
    answer = text[start:stop]
    start += len(answer) - len(answer.lstrip())
    stop = start + len(answer.strip())
    return [f"{score:.4f}  {text[start:stop]}", f"characters {start} to {stop} of {context}"]


def best(
    run: Callable[[Arrays], Arrays], arrays: Arrays, options: Mapping[str, Any]
) -> tuple[int, int, float]:
    """Return the first and the last token of the most probable answer, and its probability.

    The tokens count those of the text, without special tokens. -1: there is no answer.
    """
    context, question = options["input"], options["question"]
    lead, middle, end = options["lead"], options["middle"], options["end"]
    count = int(arrays[f"{context}.mask"][0].sum()) - lead - end
    room = options["max_len"] - lead - options["tail"]
    if question:
        num_question = int(arrays[f"{question}.mask"][0].sum()) - lead - end
        num_question = min(num_question, options["max_question"])
        arrays = _part(arrays, question, 0, num_question, options)
        room -= middle + num_question
    step = room - min(max(room, 2) // 2, options["overlap"])
    top = (-1, -1, -np.inf)
    none = np.inf
    for name in options["others"]:
        if f"{name}.mask" in arrays:
            arrays = _first(arrays, name, options["max_len"])
    start = 0
    while True:
        stop = min(start + room, count)
        outputs = run(_part(arrays, context, start, stop, options))
        starts, ends = (outputs[key][0].astype(float) for key in ("start", "end"))
        none = min(none, starts[0] + ends[0])
        for i in range(stop - start):
            after = ends[1 + i : 1 + min(i + options["max_answer"], stop - start)]
            score = starts[1 + i] + after.max()
            if score > top[2]:
                top = (start + i, start + i + int(after.argmax()), score)
        if stop == count:
            break
        start += step
    if options["can_be_none"] and none >= top[2]:
        return -1, -1, float(np.exp(none))
    return top[0], top[1], float(np.exp(top[2]))


def _first(arrays: Arrays, name: str, count: int) -> Arrays:
    """Return the inputs with at most the first `count` tokens of a text.

    The model reads a long text in the same way, without the special tokens at its end.
    """
    shape = arrays[f"{name}.mask"].shape
    return {
        key: array[:, :count] if key.startswith(f"{name}.") and array.shape[:2] == shape else array
        for key, array in arrays.items()
    }


def _part(arrays: Arrays, name: str, start: int, stop: int, options: Mapping[str, Any]) -> Arrays:
    """Return the inputs of the first sample with the tokens start:stop of a text."""
    lead = options["lead"]
    shape = arrays[f"{name}.mask"].shape
    length = int(arrays[f"{name}.mask"][0].sum())
    columns = [
        *range(lead),
        *range(lead + start, lead + stop),
        *range(length - options["end"], length),
    ]
    window: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        is_text = key.startswith(f"{name}.") and array.shape[:2] == shape
        window[key] = array[:1, columns] if is_text else array[:1]
    return window
