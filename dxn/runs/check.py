"""The command `dxn check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.config.instantiate import build
from dxn.core.display import count, print_line
from dxn.core.errors import UserError
from dxn.data.inspect.check import Report, check, remove_earlier, write_bad
from dxn.data.inspect.quality import check_kept
from dxn.data.reading import Issue
from dxn.runs.build import build_adapters, find_formats, fit_adapters
from dxn.runs.decide import (
    assign_inputs,
    check_combinations,
    decide_task,
    open_source,
    options_without_target,
    read_pretraining,
    readers_of,
    with_written_inputs,
)
from dxn.runs.saved.codecs import with_codecs
from dxn.tasks import Auto


def check_data(
    config: Mapping[str, Any], output: Path, trust: Sequence[str]
) -> tuple[Report, list[str]]:
    """Read a whole data set, print what it contains, and list what is bad in a file.

    Args:
        config: The configuration of a training.
        output: The list.
        trust: Top-level packages besides dxn whose code the nodes may use.

    Returns:
        The result, and the options that a training without a target needs. Empty: it has one.
    """
    remove_earlier(output)
    config = with_written_inputs(with_codecs(dict(config), tuple(trust)), trust)
    task = build(config["head"], key="head", trust=trust)
    readers = readers_of(config, trust)
    source = open_source(config, readers, task, trust)
    decided, errors = None, []
    try:
        # A data set without a target can be checked too, for example to train head=language on it.
        if source.target is not None:
            decided, _, notes = decide_task(task, config, source, readers, trust)
            if decided.is_supervised:
                targets, _, origins = source.targets()
                notes += decided.target.find_format(targets, origins)
            source = replace(source, notes=[*source.notes, *notes])
        if not config["weights"]["source"]:  # which determine options, such as a causal backbone
            check_combinations(config, decided or task, trust, ensemble=config["ensemble"])
        if config["pretrain"]:
            read_pretraining(config, trust)
    except UserError as error:
        # The rest of the data is checked nevertheless, so that all problems are listed.
        errors = str(error).splitlines()
    task = decided or task
    inputs, nodes = assign_inputs(config, source.inputs, readers, source.column)
    used = {key: config["adapters"][node] for key, node in nodes.items()}
    adapters = build_adapters(used, trust)
    for note in find_formats(adapters, inputs, source):
        print_line(f"note: {note}")

    def fit(splits: Mapping[str, Any]) -> None:
        # Only a fitted tokenizer can tell which texts are truncated.
        fit_adapters(adapters, inputs, splits["train"], ())
        if not isinstance(task, Auto):
            task.target.bind(named)  # raises UserError if it needs other inputs
            if task.target.is_text and splits["train"].targets is not None:
                task.target.fit(splits["train"].targets)  # the vocabulary of the texts
            for name, split in splits.items():
                cut.extend(check_kept(split, task, prepare, name))

    cut: list[str] = []
    named = {name: adapters[spec.adapter] for name, spec in inputs.items()}
    prepare = {name: adapter.tokenizer for name, adapter in named.items()}
    result = check(source, prepare, task=decided, fit=fit, errors=errors)
    result = replace(result, problems=[*result.problems, *map(Issue, cut)])
    # At once, because a table can have 100,000 columns, and rich takes a while for each call.
    print_line("\n".join(result.lines()))
    if result.listed:
        write_bad(result, output)
        print_line(f"written: {output} ({count(len(result.listed), 'line')})")
    if not isinstance(task, Auto):
        return result, []
    weights = config["weights"]["source"]
    # Those of a language model, without reading its tensors.
    if weights and (Path(weights) / "config.json").is_file():
        from dxn.weights.public import read_public

        public = read_public(weights, trust=trust, strict=config["weights"]["strict"])
        if public.architecture.backbone.get("causal"):
            config["backbone"]["causal"] = True
    return result, options_without_target(source, config)[0]
