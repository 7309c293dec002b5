"""Trained codecs as parts of the adapters of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dxn.config.instantiate import completed
from dxn.config.model_plan import check_files, read_model_plan
from dxn.core.errors import UserError
from dxn.core.files import LABELS, WEIGHTS
from dxn.core.schema import validated
from dxn.core.untrusted import load_json
from dxn.runs.folder import model_folder
from dxn.tasks import Codec
from dxn.tasks.codec.task import CodecState
from dxn.tokenize.base import STATE_FILE, read_state


def with_codecs(config: dict[str, Any], trust: tuple[str, ...] = ()) -> dict[str, Any]:
    """Replace the run folder of each codec among the adapters by the parts of the codec.

    Raises:
        UserError: If a folder is not the run of a codec.
    """
    adapters = {
        key: {**node, "codec": codec_node(node["codec"], key=f"adapters.{key}.codec", trust=trust)}
        if isinstance(node.get("codec"), str)
        else node
        for key, node in config["adapters"].items()
    }
    return {**config, "adapters": adapters}


def codec_node(run: str, *, key: str, trust: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the node of a `StoredCodec` for the run folder of a codec.

    Args:
        run: The run folder.
        key: Option with the folder, for error messages.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If it is not the run of a codec, or a file is missing or damaged.
    """
    try:
        folder = model_folder(Path(run))
        check_files(folder)
        plan = read_model_plan(folder, trust=trust)
        labels = load_json(folder / LABELS)
        task = labels.get("task") if isinstance(labels, dict) else None
        if task != Codec.name or len(plan.inputs) != 1:
            raise UserError(
                f"{run} must be a run of head=codec, got a model of the task {task}; train one "
                "with dxn train DATA head=codec"
            )
        size = validated(CodecState, labels, folder / LABELS).size
        (codec_input,) = plan.inputs.values()
        # The weights have the name of the adapter, not that of the column.
        name = codec_input.adapter
        has_state = (folder / STATE_FILE).exists()
        state = read_state(folder, name) if has_state else None
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    node = {
        "_target_": "dxn.tasks.codec.stored.StoredCodec",
        "input": name,
        "adapter": plan.adapters[name],
        "state": state,
        "fusion": {**plan.fusion, "inputs": [name]},
        "backbone": plan.backbone,
        "task": plan.head,
        "size": list(size),
        "path": str((folder / WEIGHTS).resolve()),
    }
    return completed(node, trust, key=key)
