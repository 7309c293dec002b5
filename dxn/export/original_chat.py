"""Save what a language model has learned besides its weights: tokens, a template and its ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dxn.runs.predictor.predictor import Predictor
from dxn.tokenize.text.chat import read_template
from dxn.weights import Checkpoint
from dxn.weights.checkpoint import read_json
from dxn.weights.tokenizers import read_tokenizer

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"


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
        known = read_template(folder)
        if known is None or known.source != template.source:
            (folder / TEMPLATE).write_text(template.source, encoding="utf-8")
        # An answer ends with this token, also if the checkpoint ended only whole texts.
        end = vocabulary.token_to_id(template.end)
        ends |= set() if end is None else {end}
    known_ends = checkpoint.generation.eos_token_id
    if ends and ends != set(known_ends):
        content: dict[str, Any] = read_json(folder / GENERATION)
        content["eos_token_id"] = [*known_ends, *sorted(ends - set(known_ends))]
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / GENERATION).write_text(text, encoding="utf-8")
